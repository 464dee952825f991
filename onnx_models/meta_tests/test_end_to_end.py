"""The real IREE tools and the real onnxruntime, on models of a few bytes."""

from __future__ import annotations

from pathlib import Path

import pytest
from onnx import helper

from onnx_models.meta_tests.sandbox import Sandbox, model_of, value


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """A run over a model that passes, one with strange names, and one that IREE does not import."""
    sandbox = Sandbox(tmp_path_factory.mktemp("real"))
    sandbox.save("tiny.onnx")
    strange = ["a b", "größe:0", "c/d"]
    nodes = [helper.make_node("Neg", [name], [f"{name}!"]) for name in strange]
    sandbox.save(
        "strange name.onnx", model_of(nodes, list(map(value, strange)), [value(f"{n}!") for n in strange])
    )
    argv = sandbox.argv("--model", "tiny.onnx", "--model", "strange name.onnx")
    at = argv.index("--iree-bin")
    (sandbox.folder / "output.txt").write_text(sandbox.execute(argv[:at] + argv[at + 2 :]).output)
    return sandbox


@pytest.mark.parametrize("name", ["tiny", "strange name"])
def test_a_good_model_matches(real: Sandbox, tmp_path: Path, name: str) -> None:
    row = real.case(f"cpu/local/{name}")
    assert row["verdict"] == "passed", real.output()
    assert all(stage["peak_bytes"] > 0 for stage in row["stages"] if stage["commands"])
    assert len(row["outputs"]) == {"tiny": 2, "strange name": 3}[name]
    ended = real.execute([real.script(f"local/{name}")], cwd=tmp_path)
    assert ended.code == 0, ended.output


def test_the_header_names_the_wheels(real: Sandbox) -> None:
    head = real.record().head
    assert {tool["name"] for tool in head["tools"]} == {"iree-import-onnx", "iree-compile", "iree-run-module"}
    assert all(tool["version"][0].isdigit() for tool in head["tools"])
    assert head["iree"] == head["tools"][1]["version"]


def test_a_damaged_reference_fails_the_script(real: Sandbox, tmp_path: Path) -> None:
    script = real.script("local/tiny")
    (real.artifacts / "local" / "tiny" / "reference" / "seeded-0" / "0.npy").write_bytes(b"")
    assert real.execute([script], cwd=tmp_path).code != 0
