"""Options, files and neighbours that mean no good: exit code 4 and one line, or a verdict."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_models import tensors
from onnx_models.meta_tests.sandbox import Sandbox, model_of, tiny_model, value
from onnx_models.outcomes import Kind, Stage
from onnx_models.signature import signature


def dynamic() -> onnx.ModelProto:
    """y = x + x of any length."""
    node = helper.make_node("Add", ["x", "x"], ["y"])
    return model_of([node], [value("x", shape=["N"])], [value("y", shape=["N"])])


def test_a_pipe_is_no_model_and_nobody_waits_for_its_writer(sandbox: Sandbox) -> None:
    sandbox.tools()
    os.mkfifo(sandbox.folder / "pipe.onnx")
    assert "pipe.onnx: a pipe, socket or device" in sandbox.refused("--model", "pipe.onnx")


@pytest.mark.parametrize("text", ["9" * 5000, str(2**63), str(2**31), "-1", "1e3", "\u0663"])
def test_a_dim_of_no_machine_is_refused(sandbox: Sandbox, text: str) -> None:
    sandbox.tools()
    sandbox.save("m.onnx", dynamic())
    assert "--dim N=" in sandbox.refused("--model", "m.onnx", "--dim", f"N={text}")


def test_a_shape_that_fits_nowhere_is_refused(sandbox: Sandbox) -> None:
    sandbox.tools()
    sandbox.save("m.onnx", dynamic())
    shape = f"x={2**30}x{2**30}"
    assert "elements are more than fit anywhere" in sandbox.refused("--model", "m.onnx", "--shape", shape)


@pytest.mark.parametrize("text", ["1e300", "1e-10", "inf", "nan", "-1"])
def test_a_memory_limit_that_limits_nothing_is_refused(sandbox: Sandbox, text: str) -> None:
    sandbox.tools()
    sandbox.save("m.onnx")
    line = sandbox.refused("--model", "m.onnx", f"--memory-limit={text}")
    assert "is no number of gigabytes" in line


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("collection = 3", "'collection' must be [collection.NAME] tables"),
        ("x = " + "[" * 3000, "not TOML"),
        (
            '[[case]]\nid = "a/b"\nstage = "run"\nkind = "error"\nwhy = "w"\nexpires = 2027-01-01T00:00:00\n',
            "'expires' must be a date without a time",
        ),
    ],
)
def test_a_hostile_list_is_refused(sandbox: Sandbox, text: str, words: str) -> None:
    sandbox.tools()
    sandbox.save("m.onnx")
    (sandbox.folder / "cpu.toml").write_text(text, encoding="utf-8")
    assert words in sandbox.refused("--model", "m.onnx", "--expectations", "cpu.toml")


def promise(path: Path, shape: tuple[int, ...]) -> None:
    """A .npy file whose header names more than the file has."""
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f4", "fortran_order": False, "shape": shape})
        file.write(b"1234")


@pytest.mark.parametrize("shape", [(10**15,), (2**40, 2**40), (2,)])
def test_an_output_that_promises_more_than_it_has_is_a_mismatch(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    promise(tmp_path / "0.npy", shape)
    found = tensors.read_iree_output(tmp_path / "0.npy", "float32", (2,))
    assert isinstance(found, tensors.OutputError)
    assert "not a whole .npy file (its header promises" in found.message


def test_an_input_that_promises_more_than_it_has_is_an_error_of_its_user(sandbox: Sandbox) -> None:
    sandbox.tools()
    sandbox.save("m.onnx", dynamic())
    promise(sandbox.folder / "x.npy", (10**15,))
    ended = sandbox.run("--model", "m.onnx", "--input", "x=x.npy")
    assert ended.code in (1, 4)
    assert "its header promises" in ended.output
    assert "Traceback" not in ended.output


def test_float_indices_get_a_verdict(sandbox: Sandbox) -> None:
    nodes = [
        helper.make_node("ArgMax", ["x"], ["i"], axis=1, keepdims=0),
        helper.make_node("Cast", ["i"], ["y"], to=TensorProto.FLOAT),
    ]
    sandbox.tools()
    sandbox.save("arg.onnx", model_of(nodes, [value("x", shape=[2, 5])], [value("y", shape=[2])]))
    ended = sandbox.run("--model", "arg.onnx")
    assert ended.code == 0, ended.output
    assert sandbox.case("cpu/local/arg")["verdict"] == "passed"


def test_what_cannot_be_fed_has_one_name_whatever_the_model() -> None:
    messages = [
        f"local/{name}: input {name!r} is of type sequence(uint8), not a tensor" for name in ("a", "b c")
    ]
    found = {signature(Stage.IMPORT, Kind.UNSUPPORTED_INPUT, "", message=text) for text in messages}
    assert [each.id for each in found] == ["unsupported-input:sequence(uint8)"]


def test_a_gpu_that_the_compiler_does_not_know_has_a_name() -> None:
    log = "a.mlir:1:57: error: missing GPU target in #hal.executable.target\n"
    assert signature(Stage.COMPILE, Kind.ERROR, log).id == "gpu-target"


def test_two_runs_of_two_files_of_one_name_do_not_mix(sandbox: Sandbox) -> None:
    """Each run's tools wait a moment, so that the runs overlap in every stage."""
    sandbox.tools()
    sandbox.save("a/m.onnx", tiny_model())
    node = helper.make_node("Sub", ["x", "x"], ["y"])
    sandbox.save("b/m.onnx", model_of([node], [value("x", shape=[7])], [value("y", shape=[7])]))
    for turn in range(3):
        started = [
            subprocess.Popen(
                sandbox.argv("--model", f"{name}/m.onnx", "--record", f"{name}{turn}.jsonl", "--no-reuse"),
                cwd=sandbox.folder,
                env=sandbox.env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
            for name in ("a", "b")
        ]
        output = [each.communicate(timeout=120)[0].decode(errors="replace") for each in started]
        assert [each.returncode for each in started] == [0, 0], "\n".join(output)
        shapes = [
            sandbox.case("cpu/local/m", f"{name}{turn}.jsonl")["outputs"][0]["shape"] for name in ("a", "b")
        ]
        assert shapes[0] != shapes[1] == [7]


def test_two_draws_of_one_model_do_not_mix(sandbox: Sandbox) -> None:
    sandbox.tools()
    sandbox.save("m.onnx")
    started = [
        subprocess.Popen(
            sandbox.argv("--model", "m.onnx", "--seeds", str(n), "--record", f"{n}.jsonl"),
            cwd=sandbox.folder,
            env=sandbox.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        for n in (1, 4)
    ]
    output = [each.communicate(timeout=120)[0].decode(errors="replace") for each in started]
    assert [each.returncode for each in started] == [0, 0], "\n".join(output)
    assert [len(sandbox.case("cpu/local/m", f"{n}.jsonl")["outputs"]) for n in (1, 4)] == [2, 8]
