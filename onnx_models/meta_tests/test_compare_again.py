"""The last command of commands.sh: compare the files of a run again."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from onnx import TensorProto, helper

from onnx_models.catalog import Model
from onnx_models.reference import Draw, make_reference

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a model whose reference has two sets."""
    folder = tmp_path_factory.mktemp("model")
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, (2, 3)) for name in "xy")
    graph = helper.make_graph([helper.make_node("Exp", ["x"], ["y"])], "g", [x], [y])
    file = folder / "m.onnx"
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    file.write_bytes(proto.SerializeToString())
    local = Model(collection="local", path="m", source={"type": "local"})
    made = make_reference(local, file, folder, draw=Draw(seeds=2))
    assert made.failure is None
    return folder


def _verdict(*argv: Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, "-m", "onnx_models.verdict", *map(str, argv)]
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.run(words, capture_output=True, text=True, env=env, check=False)


def test_a_copy_of_the_reference_matches(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model / "reference", tmp_path / "outputs")
    done = _verdict(model, tmp_path / "outputs")
    assert (done.returncode, done.stdout) == (0, "seeded-0: matches\nseeded-1: matches\n")


def test_one_wrong_set_is_a_mismatch(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model / "reference", tmp_path / "outputs")
    wrong = tmp_path / "outputs" / "seeded-1" / "0.npy"
    np.save(wrong, np.load(wrong) * np.float32(1.01))
    done = _verdict(model, tmp_path / "outputs")
    assert done.returncode == 1
    assert done.stdout.startswith("seeded-0: matches\nseeded-1: MISMATCH\n  output 0 'y': rmse")


def test_outputs_that_are_missing_are_a_mismatch(model: Path, tmp_path: Path) -> None:
    done = _verdict(model, tmp_path)
    assert done.returncode == 1
    assert "0.npy was not written" in done.stdout


def test_without_a_reference_there_is_nothing_to_compare(model: Path, tmp_path: Path) -> None:
    assert _verdict(tmp_path, tmp_path).returncode == 2
    assert _verdict(tmp_path).returncode == 2
