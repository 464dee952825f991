"""References of tiny models: what is written, reused and refused, always through real child processes."""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_models import reference, tensors
from onnx_models.catalog import InputFact, Model
from onnx_models.outcomes import Kind, Stage, UsageError
from onnx_models.reference import Draw, ModelFileError, inspect, make_reference

LOCAL = Model(collection="local", path="m", source={"type": "local"})


def _value(
    name: str, dtype: int = TensorProto.FLOAT, shape: Sequence[int | str | None] | None = (2, 3)
) -> Any:
    return helper.make_tensor_value_info(name, dtype, shape)


def _save(path: Path, nodes: Sequence[Any], ins: Sequence[Any], outs: Sequence[Any], **weights: Any) -> Path:
    initializers = [numpy_helper.from_array(array, name) for name, array in weights.items()]
    graph = helper.make_graph(nodes, "g", ins, outs, initializers)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(model.SerializeToString())
    return path


def _affine(path: Path, scale: float = 2.0) -> Path:
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    weights = {"w": np.array(scale, np.float32)}
    return _save(
        path,
        nodes,
        [_value("x", shape=("N", 3)), _value("w", shape=())],
        [_value("y", shape=None)],
        **weights,
    )


def test_a_reference_is_files_that_agree_with_the_model(tmp_path: Path) -> None:
    file = _affine(tmp_path / "m.onnx")
    model = dataclasses.replace(LOCAL, dims={"N": 4})
    made = make_reference(model, file, tmp_path / "art", draw=Draw(seeds=2))
    assert made.failure is None
    assert [each.name for each in made.sets] == ["seeded-0", "seeded-1"]
    first, second = made.sets
    x, y = tensors.read(first.inputs[0]), tensors.read(first.outputs[0])
    assert [port.name for port in first.inputs] == ["x"], "an initializer among the inputs is not fed"
    assert x.shape == (4, 3)
    assert np.array_equal(y, x * np.float32(2))
    assert not np.array_equal(x, tensors.read(second.inputs[0]))
    assert first.outputs[0].path == tmp_path / "art" / "reference" / "seeded-0" / "0.npy"
    assert not list((tmp_path / "art").rglob("*.part"))


def test_the_harness_imports_neither_onnx_nor_onnxruntime() -> None:
    code = "import onnx_models.verdict, sys; print({'onnx', 'onnxruntime'} & set(sys.modules))"
    root = Path(__file__).parents[2]
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_an_unchanged_reference_is_reused_and_a_changed_one_made_again(tmp_path: Path) -> None:
    file, art = _affine(tmp_path / "m.onnx"), tmp_path / "art"
    made = make_reference(LOCAL, file, art)
    kept = make_reference(LOCAL, file, art)
    assert not made.reused
    assert kept == dataclasses.replace(made, reused=True)
    assert not make_reference(LOCAL, file, art, reuse=False).reused
    dims = make_reference(dataclasses.replace(LOCAL, dims={"N": 2}), file, art)
    assert (dims.reused, dims.sets[0].outputs[0].shape) == (False, (2, 3))
    _affine(file, scale=3.0)
    assert not make_reference(dataclasses.replace(LOCAL, dims={"N": 2}), file, art).reused


def test_a_damaged_reference_is_made_again(tmp_path: Path) -> None:
    file, art = _affine(tmp_path / "m.onnx"), tmp_path / "art"
    target = make_reference(LOCAL, file, art).sets[0].outputs[0].path
    whole = target.read_bytes()

    def change_json() -> None:
        (art / "reference.json").write_text("{")

    for damage in (
        target.unlink,
        lambda: target.write_bytes(whole[:-1]),
        lambda: target.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1])),
        change_json,
    ):
        damage()
        assert not make_reference(LOCAL, file, art).reused
        assert target.read_bytes() == whole


def _make(arguments: tuple[Path, Path]) -> bool:
    return make_reference(LOCAL, *arguments).reused


def test_two_workers_make_one_reference(tmp_path: Path) -> None:
    file = _affine(tmp_path / "m.onnx")
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        reused = pool.map(_make, [(file, tmp_path / "art")] * 2, chunksize=1)
    assert sorted(reused) == [False, True]


def test_a_users_array_is_part_of_the_key(tmp_path: Path) -> None:
    file, array = _affine(tmp_path / "m.onnx"), tmp_path / "x.npy"
    fact = InputFact(name="x", kind="file", params={"path": str(array)})
    model = dataclasses.replace(LOCAL, inputs=(fact,))
    for value in (1.0, 5.0):
        np.save(array, np.full((1, 3), value, np.float32))
        made = make_reference(model, file, tmp_path / "art")
        assert not made.reused
        assert tensors.read(made.sets[0].outputs[0]).tolist() == [[2 * value] * 3]


@pytest.mark.parametrize(
    "dtype", ["FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT16", "INT64", "UINT64", "BOOL"]
)
def test_shared_element_types_go_through(dtype: str, tmp_path: Path) -> None:
    kind = getattr(TensorProto, dtype)
    file = _save(
        tmp_path / "m.onnx",
        [helper.make_node("Identity", ["x"], ["y"])],
        [_value("x", kind)],
        [_value("y", kind)],
    )
    made = make_reference(LOCAL, file, tmp_path / "art")
    assert made.failure is None
    source, result = made.sets[0].inputs[0], made.sets[0].outputs[0]
    assert source.dtype == result.dtype == helper.tensor_dtype_to_np_dtype(kind).name
    assert tensors.read(source).tobytes() == tensors.read(result).tobytes()


def test_shapes_that_only_the_data_decides(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NonZero", ["x"], ["y"]),
        helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0),
    ]
    ins, outs = (
        [_value("x", TensorProto.INT64)],
        [_value("y", TensorProto.INT64, None), _value("s", TensorProto.INT64, ())],
    )
    file = _save(tmp_path / "m.onnx", nodes, ins, outs)
    zero = InputFact(name="x", kind="constant", params={"value": 0})
    made = make_reference(dataclasses.replace(LOCAL, inputs=(zero,)), file, tmp_path / "art")
    assert [each.shape for each in made.sets[0].outputs] == [(2, 0), ()]


def test_odd_but_valid_graphs(tmp_path: Path) -> None:
    """No inputs; an input that is an output; an unused input; names that no shell would like."""
    constant = helper.make_node("Constant", [], ["c"], value_floats=[1.0, 2.0])
    no_inputs = make_reference(
        LOCAL, _save(tmp_path / "a.onnx", [constant], [], [_value("c", shape=(2,))]), tmp_path / "a"
    )
    assert no_inputs.failure is None
    assert no_inputs.sets[0].inputs == ()
    relu = helper.make_node("Relu", ["a b/c:ü'\"-"], ["y"])
    ins = [_value("a b/c:ü'\"-"), _value("unused")]
    odd = make_reference(
        LOCAL, _save(tmp_path / "b.onnx", [relu], ins, [_value("y"), ins[0]]), tmp_path / "b"
    )
    assert odd.failure is None
    assert [each.name for each in odd.sets[0].inputs] == ["a b/c:ü'\"-", "unused"]
    x, y, same = (tensors.read(t) for t in (odd.sets[0].inputs[0], *odd.sets[0].outputs))
    assert np.array_equal(y, np.maximum(x, 0))
    assert np.array_equal(same, x)


def test_what_onnxruntime_refuses_is_a_reference_failure_in_its_own_words(tmp_path: Path) -> None:
    unknown = _save(
        tmp_path / "load.onnx", [helper.make_node("NoSuchOp", ["x"], ["y"])], [_value("x")], [_value("y")]
    )
    made = make_reference(LOCAL, unknown, tmp_path / "load")
    assert made.failure is not None
    assert (made.failure.stage, made.failure.kind) == (Stage.REFERENCE, Kind.ERROR)
    assert "NoSuchOp" in made.failure.message
    assert make_reference(LOCAL, unknown, tmp_path / "load").reused
    nodes = [helper.make_node("Reshape", ["x", "s"], ["y"])]
    run = _save(
        tmp_path / "run.onnx",
        nodes,
        [_value("x", shape=("N", 3)), _value("s", TensorProto.INT64, (1,))],
        [_value("y", shape=None)],
    )
    seven = InputFact(name="s", kind="constant", params={"value": 7})
    made = make_reference(dataclasses.replace(LOCAL, inputs=(seven,)), run, tmp_path / "run")
    assert made.failure is not None
    assert (made.failure.stage, made.failure.kind) == (Stage.REFERENCE, Kind.ERROR)
    assert "Reshape" in made.failure.message
    assert "\n" not in made.failure.message


def test_an_output_that_is_listed_twice_is_two_outputs(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    file = _save(tmp_path / "m.onnx", [relu], [_value("x")], [_value("y"), _value("y")])
    made = make_reference(LOCAL, file, tmp_path / "art")
    assert [each.path.name for each in made.sets[0].outputs] == ["0.npy", "1.npy"]


def test_a_model_without_outputs_is_one_clear_line(tmp_path: Path) -> None:
    relu = helper.make_node("Relu", ["x"], ["y"])
    made = make_reference(LOCAL, _save(tmp_path / "m.onnx", [relu], [_value("x")], []), tmp_path / "art")
    assert made.failure is not None
    assert made.failure.message == "local/m: the model has no outputs: there is nothing to compare"


def test_string_and_sequence_ports_stop_before_any_tool(tmp_path: Path) -> None:
    text = _value("x", TensorProto.STRING)
    same = helper.make_node("Identity", ["x"], ["y"])
    sequence = helper.make_tensor_sequence_value_info("y", TensorProto.FLOAT, None)
    cases = {
        "text-in": ([same], [text], [_value("y", TensorProto.STRING)]),
        "sequence-out": ([helper.make_node("SplitToSequence", ["x"], ["y"])], [_value("x")], [sequence]),
    }
    for name, graph in cases.items():
        made = make_reference(LOCAL, _save(tmp_path / f"{name}.onnx", *graph), tmp_path / name)
        assert made.failure is not None
        assert (made.failure.stage, made.failure.kind) == (Stage.IMPORT, Kind.UNSUPPORTED_INPUT)


def test_a_timeout_is_a_failure_that_is_tried_again(tmp_path: Path) -> None:
    file = _affine(tmp_path / "m.onnx")
    inspect(file)
    made = make_reference(LOCAL, file, tmp_path / "art", timeout=0.05)
    assert made.failure is not None
    assert made.failure.kind is Kind.TIMEOUT
    assert make_reference(LOCAL, file, tmp_path / "art").failure is None


def test_a_fact_that_does_not_fit_is_the_users_fault(tmp_path: Path) -> None:
    file = _affine(tmp_path / "m.onnx")
    with pytest.raises(UsageError, match="no dim 'M'"):
        make_reference(dataclasses.replace(LOCAL, dims={"M": 2}), file, tmp_path / "art")
    fact = InputFact(name="x", kind="file", params={"path": str(tmp_path / "none.npy")})
    absent = dataclasses.replace(LOCAL, inputs=(fact,))
    with pytest.raises(UsageError, match="no such file"):
        make_reference(absent, file, tmp_path / "art")


def test_inspection_reads_ports_and_operators_of_subgraphs(tmp_path: Path) -> None:
    branch = helper.make_graph([helper.make_node("Abs", ["x"], ["b"])], "b", [], [_value("b")])
    nodes = [helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)]
    file = _save(
        tmp_path / "m.onnx",
        nodes,
        [_value("c", TensorProto.BOOL, ()), _value("x", shape=("N", None))],
        [_value("y")],
    )
    info = inspect(file)
    assert [(port.name, port.dtype, port.shape) for port in info.inputs] == [
        ("c", "bool", ()),
        ("x", "float32", ("N", None)),
    ]
    assert info.operators == {"Abs": 2, "If": 1}
    assert (info.opsets, info.ir_version, info.external) == ({"ai.onnx": 17}, 8, False)
    assert info.bytes == file.stat().st_size
    assert info.sha256 == reference.file_sha256(file)
    assert reference.ModelInfo.from_json(json.loads(json.dumps(info.to_json()))) == info


def test_a_file_that_is_no_model_is_named_for_what_it_is(tmp_path: Path) -> None:
    whole = _affine(tmp_path / "whole.onnx").read_bytes()
    contents = {
        "empty": (b"", "empty"),
        "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n", "Git LFS pointer"),
        "page": (b"\n<!DOCTYPE html><html></html>", "web page"),
        "text": (b"hello, this is no model at all\n", "not an ONNX model"),
        "cut": (whole[:-5], "truncated"),
        "zeros": (b"\0" * 64, "not an ONNX model"),
    }
    for name, (content, text) in contents.items():
        file = tmp_path / f"{name}.onnx"
        file.write_bytes(content)
        with pytest.raises(ModelFileError, match=text) as caught:
            inspect(file)
        assert str(file) in str(caught.value)
        assert "\n" not in str(caught.value)
    with pytest.raises(ModelFileError, match="a folder"):
        inspect(tmp_path)
    with pytest.raises(ModelFileError, match="no such file"):
        inspect(tmp_path / "none.onnx")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    file = _affine(tmp_path / "m.onnx")
    file.chmod(0)
    with pytest.raises(ModelFileError, match="not readable"):
        inspect(file)


@pytest.mark.parametrize(
    "location", ["../secret.bin", "/etc/hostname", "link.bin", "", "C:\\secret.bin", "absent.bin"]
)
def test_external_data_outside_the_models_folder_is_refused(location: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (tmp_path / "secret.bin").write_bytes(b"\0" * 64)
    (home / "link.bin").symlink_to(tmp_path / "secret.bin")
    model = onnx.load(_affine(home / "m.onnx"))
    weight = model.graph.initializer[0]
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value=location)
    (home / "m.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(
        ModelFileError, match="missing" if location == "absent.bin" else "outside the model's folder"
    ):
        inspect(home / "m.onnx")
    assert make_reference(LOCAL, home / "m.onnx", tmp_path / "art").failure is not None


def test_external_data_inside_the_folder_is_used(tmp_path: Path) -> None:
    model = onnx.load(_affine(tmp_path / "m.onnx"))
    weight = model.graph.initializer[0]
    (tmp_path / "w.bin").write_bytes(np.array(5, np.float32).tobytes())
    weight.ClearField("raw_data")
    weight.data_location = TensorProto.EXTERNAL
    weight.external_data.add(key="location", value="w.bin")
    (tmp_path / "m.onnx").write_bytes(model.SerializeToString())
    info = inspect(tmp_path / "m.onnx")
    assert info.external
    assert info.bytes == (tmp_path / "m.onnx").stat().st_size + 4
    made = make_reference(LOCAL, tmp_path / "m.onnx", tmp_path / "art")
    x, y = tensors.read(made.sets[0].inputs[0]), tensors.read(made.sets[0].outputs[0])
    assert np.array_equal(y, x * np.float32(5))
