"""Files that are no models, models that are odd, and names that are hard: one clear line, or it works."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_models import local
from onnx_models.meta_tests.sandbox import Ended, Record, Sandbox, model_of, tiny_model, value
from onnx_models.outcomes import UsageError

TINY = tiny_model().SerializeToString()

FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "empty: fetch it again"),
    "text": (b"hello, I am a text\n" * 20, "not an ONNX model"),
    "truncated": (TINY[:-7], "not an ONNX model, or truncated"),
    "cut-early": (TINY[:20], "not an ONNX model"),
    "lfs": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "a Git LFS pointer"),
    "page": (b"<!DOCTYPE html><html></html>", "a web page, not a model"),
    "npy": (b"\x93NUMPY\x01\x00v\x00{'descr': '<f4'}", "not an ONNX model"),
}


def refuse(file: Path) -> str:
    with pytest.raises(UsageError) as error:
        local.models([file], dims={}, shapes={}, files_in={})
    message = str(error.value)
    assert message.startswith(f"{file}: ")
    assert "\n" not in message
    return message


@pytest.mark.parametrize("name", FILES)
def test_what_is_no_model_is_named(tmp_path: Path, name: str) -> None:
    content, message = FILES[name]
    file = tmp_path / f"{name}.onnx"
    file.write_bytes(content)
    assert message in refuse(file)
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_a_folder_and_a_missing_file(tmp_path: Path) -> None:
    (tmp_path / "folder.onnx").mkdir()
    assert "a folder: give the .onnx file in it" in refuse(tmp_path / "folder.onnx")
    assert "no such file" in refuse(tmp_path / "lost.onnx")


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    """A loop of links: unlike a missing permission, it holds for the administrator too."""
    file = tmp_path / "loop.onnx"
    file.symlink_to(file)
    assert "not readable (Too many levels of symbolic links)" in refuse(file)


def test_exit_code_4_and_one_line(sandbox: Sandbox) -> None:
    (sandbox.folder / "lfs.onnx").write_bytes(FILES["lfs"][0])
    line = sandbox.refused("--model", "tiny.onnx", "--model", "lfs.onnx")
    assert line.endswith("lfs.onnx: a Git LFS pointer, not the model: run git lfs pull")


def node(kind: str, inputs: list[str], outputs: list[str]) -> onnx.NodeProto:
    return helper.make_node(kind, inputs, outputs)


def odd_models() -> dict[str, onnx.ModelProto]:
    x, y, z = value("x"), value("y"), value("z")
    weight = numpy_helper.from_array(np.full((2, 3), 2, np.float32), "w")
    strange = ["a b", "a/b:0", "größe 名", "--flag=1", "q\"'$x"]
    text = value("s", TensorProto.STRING, (2,))
    return {
        "no-inputs": model_of([node("Neg", ["w"], ["y"])], [], [y], [weight]),
        "no-outputs": model_of([node("Neg", ["x"], ["y"])], [x], []),
        "input-is-output": model_of([node("Neg", ["x"], ["y"])], [x], [x, y]),
        "unused-input": model_of([node("Neg", ["x"], ["y"])], [value("u"), x], [y]),
        "initializer-as-input": model_of([node("Mul", ["x", "w"], ["y"])], [value("w"), x], [y], [weight]),
        "duplicate-outputs": model_of([node("Neg", ["x"], ["y"])], [x], [y, y]),
        "strange-names": model_of(
            [node("Add", [name, name], [f"{name}!"]) for name in strange],
            [value(name) for name in strange],
            [value(f"{name}!") for name in strange],
        ),
        "string-input": model_of(
            [node("Identity", ["s"], ["t"])], [text], [value("t", TensorProto.STRING, (2,))]
        ),
        "scalar": model_of([node("Neg", ["x"], ["y"])], [value("x", shape=())], [value("y", shape=())]),
        "zero-size": model_of(
            [node("Neg", ["x"], ["y"])], [value("x", shape=(0, 3))], [value("y", shape=(0, 3))]
        ),
        "unknown-operator": model_of([node("Nonsense", ["x"], ["z"])], [x], [z]),
    }


NAMES = ("with space", "qu'o\"te", "-leading", "ünï 名", "new\nline", "a::test_model[b]", "semi;$(colon)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A run over odd models and hard file names."""

    sandbox: Sandbox
    ended: Ended
    record: Record


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    sandbox = Sandbox(tmp_path_factory.mktemp("odd"))
    sandbox.tools()
    files = [sandbox.save(f"{name}.onnx", model).name for name, model in odd_models().items()]
    files += [sandbox.save(f"{name}.onnx").name for name in NAMES]
    ended = sandbox.run(*(f"--model={name}" for name in files))
    return Told(sandbox=sandbox, ended=ended, record=sandbox.record())


ODD = {
    "no-inputs": ("passed", "compare", ""),
    "no-outputs": ("error", "reference", "the model has no outputs"),
    "input-is-output": ("passed", "compare", ""),
    "unused-input": ("passed", "compare", ""),
    "initializer-as-input": ("passed", "compare", ""),
    "duplicate-outputs": ("passed", "compare", ""),
    "strange-names": ("passed", "compare", ""),
    "string-input": ("regressed", "import", "input 's' has element type string"),
    "scalar": ("passed", "compare", ""),
    "zero-size": ("passed", "compare", ""),
    "unknown-operator": ("error", "reference", "Nonsense"),
}


@pytest.mark.parametrize("name", ODD)
def test_odd_models(told: Told, name: str) -> None:
    verdict, stage, message = ODD[name]
    row = told.record.cases[f"cpu/local/{name}"]
    assert (row["verdict"], row["stage"]) == (verdict, stage), row["message"]
    assert message in row["message"]
    assert "\n" not in row["message"]


def test_each_of_two_outputs_of_one_name_is_compared(told: Told) -> None:
    outputs = told.record.cases["cpu/local/duplicate-outputs"]["outputs"]
    assert [(row["name"], row["index"]) for row in outputs] == [("y", 0), ("y", 1)]


def test_a_string_input_starts_no_tool(told: Told) -> None:
    row = told.record.cases["cpu/local/string-input"]
    assert row["kind"] == "unsupported-input"
    assert [stage["commands"] for stage in row["stages"] if stage["commands"]] == []


def test_initializers_and_unused_inputs_are_fed_as_they_must(told: Told) -> None:
    for name, count in (("initializer-as-input", 1), ("unused-input", 2), ("no-inputs", 0)):
        stages = told.record.cases[f"cpu/local/{name}"]["stages"]
        (command,) = next(stage["commands"] for stage in stages if stage["stage"] == "run")
        assert sum(word.startswith("--input=") for word in command) == count


@pytest.mark.parametrize("name", NAMES)
def test_hard_file_names(told: Told, tmp_path: Path, name: str) -> None:
    assert told.record.cases[f"cpu/local/{name}"]["verdict"] == "passed"
    (script,) = (told.sandbox.artifacts / "local" / name).glob("iree-*/cpu/commands.sh")
    assert "commands.sh" in script.name
    if name in ("new\nline", "qu'o\"te"):
        assert told.sandbox.execute([script], cwd=tmp_path).code == 0


def test_failures_of_the_host_and_of_iree_are_told_apart(told: Told) -> None:
    assert told.ended.code == 1
    assert "1 failed" in told.ended.output
    assert "2 errors" in told.ended.output
    assert "Traceback" not in told.ended.output
    assert told.sandbox.survivors() == []
