"""Weights outside the model file, before the import (external data) and after it (parameter files)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper
from onnx.external_data_helper import set_external_data

from onnx_models.meta_tests.sandbox import Sandbox, model_of, value

SIZE = 64
WEIGHTS = np.random.default_rng(0).normal(size=(SIZE, SIZE)).astype(np.float32)

LOWER = "from onnx_models import stages\nstages.PARAMETERS_APART = 1\n"
"""A pytest plugin that treats every model as a large one."""


def dense(*, external: str = "") -> onnx.ModelProto:
    """y = x @ w."""
    weights = numpy_helper.from_array(WEIGHTS, "w")
    if external:
        set_external_data(weights, external)
        weights.ClearField("raw_data")
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    return model_of([node], [value("x", shape=(3, SIZE))], [value("y", shape=(3, SIZE))], [weights])


@pytest.fixture
def real(tmp_path: Path) -> Sandbox:
    """A folder for runs with the installed IREE tools."""
    return Sandbox(tmp_path)


def run(sandbox: Sandbox, *arguments: str) -> None:
    argv = sandbox.argv(*arguments)
    at = argv.index("--iree-bin")
    ended = sandbox.execute(argv[:at] + argv[at + 2 :])
    assert ended.code == 0, ended.output


def test_a_large_models_weights_go_to_a_parameter_file(real: Sandbox, tmp_path: Path) -> None:
    real.save("dense.onnx", dense())
    (real.folder / "lower.py").write_text(LOWER, encoding="utf-8")
    real.env["PYTHONPATH"] += f":{real.folder}"
    run(real, "-p", "lower", "--model", "dense.onnx")
    assert real.case("cpu/local/dense")["verdict"] == "passed"
    script = real.script("local/dense")
    text = script.read_text(encoding="utf-8")
    assert "--large-model --externalize-params --save-params-to ../model.irpa" in text
    assert "--parameters=model=../model.irpa" in text
    parameters = script.parent.parent / "model.irpa"
    assert parameters.stat().st_size > WEIGHTS.nbytes
    assert (script.parent.parent / "model.mlir").stat().st_size < WEIGHTS.nbytes
    ended = real.execute([script], cwd=tmp_path)
    assert ended.code == 0, ended.output


def test_external_data_reaches_the_importer_and_a_change_of_it_is_seen(real: Sandbox) -> None:
    file = real.save("in a folder/dense.onnx", dense(external="w.bin"))
    reused: list[set[bool]] = []
    for factor in (1, 1, 2):
        weights = (WEIGHTS * factor).tobytes()
        if not reused or factor == 2:
            file.with_name("w.bin").write_bytes(weights)
        run(real, "--model", "in a folder/dense.onnx")
        row = real.case("cpu/local/dense")
        assert row["verdict"] == "passed"
        reused.append(
            {stage["reused"] for stage in row["stages"] if stage["stage"] not in ("fetch", "compare")}
        )
        folder = real.artifacts / "local" / "dense"
        x, y = (np.load(folder / part / "seeded-0" / "0.npy") for part in ("inputs", "reference"))
        np.testing.assert_allclose(y, x @ (WEIGHTS * factor), rtol=1e-3, atol=1e-4)
    assert reused == [{False}, {True}, {False}]
    assert f"iree-import-onnx '{file}'" in real.script("local/dense").read_text(encoding="utf-8")


def test_external_data_and_a_parameter_file_go_together(real: Sandbox) -> None:
    file = real.save("large.onnx", dense(external="w.bin"))
    file.with_name("w.bin").write_bytes(WEIGHTS.tobytes())
    (real.folder / "lower.py").write_text(LOWER, encoding="utf-8")
    real.env["PYTHONPATH"] += f":{real.folder}"
    run(real, "-p", "lower", "--model", "large.onnx")
    row = real.case("cpu/local/large")
    assert row["verdict"] == "passed"
    words = row["stages"][2]["commands"][0]
    assert {"--large-model", "--externalize-params"} <= set(words)


def test_missing_external_data_is_named_before_any_tool_starts(sandbox: Sandbox) -> None:
    sandbox.save("dense.onnx", dense(external="w.bin"))
    line = sandbox.refused("--model", "dense.onnx")
    assert "dense.onnx: external data 'w.bin' is missing: fetch it into the model's folder" in line
