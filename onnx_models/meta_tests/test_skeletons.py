"""Seeded weights: the same bytes everywhere, the right statistics, and outputs that depend on the input."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnx_models import skeletons
from onnx_models.skeletons import Weight, draw, plan

SHAPES = {
    "conv_w": (4, 3, 3, 3),
    "conv_b": (4,),
    "scale": (4,),
    "bias": (4,),
    "mean": (4,),
    "var": (4,),
    "mul": (4,),
    "fc_w": (10, 4),
    "fc_b": (10,),
}


def light_model() -> onnx.ModelProto:
    """Built as the light_* models are: opset 9, IR 3, ConstantOfShape, initializers listed as inputs."""
    initializers = [numpy_helper.from_array(np.array(s, np.int64), f"{n}__SHAPE") for n, s in SHAPES.items()]
    initializers.append(numpy_helper.from_array(np.array([1, 4], np.int64), "flat"))
    initializers.append(numpy_helper.from_array(np.zeros((1, 1), np.float32), "unused"))
    value = numpy_helper.from_array(np.array([0.02], np.float32))
    nodes = [helper.make_node("ConstantOfShape", [f"{n}__SHAPE"], [n], value=value) for n in SHAPES]
    nodes += [
        helper.make_node("Conv", ["image", "conv_w", "conv_b"], ["c"]),
        helper.make_node("BatchNormalization", ["c", "scale", "bias", "mean", "var"], ["n"]),
        helper.make_node("Unsqueeze", ["mul"], ["mul2"], axes=[1, 2]),
        helper.make_node("Mul", ["n", "mul2"], ["m"]),
        helper.make_node("Sum", ["n", "m"], ["s"]),
        helper.make_node("Relu", ["s"], ["r"]),
        helper.make_node("GlobalAveragePool", ["r"], ["p"]),
        helper.make_node("Reshape", ["p", "flat"], ["f"]),
        helper.make_node("Gemm", ["f", "fc_w", "fc_b"], ["logits"], transB=1),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
    ]
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, 3, 8, 8])]
    inputs += [helper.make_tensor_value_info(t.name, t.data_type, t.dims) for t in initializers]
    output = helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, [1, 10])
    graph = helper.make_graph(nodes, "tiny", inputs, [output], initializers)
    return helper.make_model(graph, ir_version=3, opset_imports=[helper.make_opsetid("", 9)])


@pytest.fixture
def light(tmp_path: Path) -> Path:
    path = tmp_path / "light_tiny.onnx"
    onnx.save(light_model(), path)
    return path


def weight(**changes: Any) -> Weight:
    facts: dict[str, Any] = {
        "name": "w",
        "shape": (64, 300),
        "rows": 64,
        "mean": 0.0,
        "std": 1.0,
        "centred": False,
    }
    return Weight(**{**facts, **changes})


def test_the_stream_is_pinned() -> None:
    """Other bytes here mean other models everywhere: the records and every stored result go stale."""
    block = np.concatenate(list(draw(weight(shape=(2, 3), rows=2, mean=0.5, std=0.25), "light_tiny.onnx")))
    digest = hashlib.sha256(block.tobytes()).hexdigest()
    assert digest == "9ed74781ad745a8fbe42f613783faec460882cefe9d22523c674ea275e86c4b1"


def test_values_do_not_depend_on_the_size_of_the_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.concatenate(list(draw(weight(), "seed")))
    monkeypatch.setattr(skeletons, "_BLOCK", 700)
    pieces = list(draw(weight(), "seed"))
    assert len(pieces) == 32
    assert np.concatenate(pieces).tobytes() == whole.tobytes()


def test_seed_and_name_choose_other_values() -> None:
    streams = [draw(weight(), "a"), draw(weight(), "b"), draw(weight(name="v"), "a")]
    assert len({next(stream).tobytes() for stream in streams}) == 3


def test_mean_and_deviation() -> None:
    values = np.concatenate(list(draw(weight(shape=(100_000,), rows=1, mean=2.0, std=0.5), "s")))
    assert values.dtype == np.dtype("<f4")
    assert values.mean() == pytest.approx(2.0, abs=0.01)
    assert values.std() == pytest.approx(0.5, rel=0.01)


def test_centred_rows_have_no_mean() -> None:
    free = next(draw(weight(), "s")).mean(axis=1)
    centred = next(draw(weight(centred=True), "s")).mean(axis=1)
    assert np.abs(free).max() > 0.1
    assert np.abs(centred).max() < 1e-4


def test_plan_follows_the_use_of_each_weight() -> None:
    weights = {w.name: w for w in plan(light_model(), logits=3.0, branch=0.5)}
    assert set(weights) == set(SHAPES)
    conv, fc = weights["conv_w"], weights["fc_w"]
    assert (conv.rows, conv.centred) == (4, True)
    assert conv.std == pytest.approx(1.7129 / 27**0.5, rel=1e-4)
    assert (fc.rows, fc.centred) == (10, True)
    assert fc.std == pytest.approx(3.0 / 2.0)
    assert (weights["scale"].mean, weights["scale"].std) == (0.5, 0.05), "it ends a residual branch"
    assert (weights["var"].mean, weights["mul"].mean) == (1.0, 1.0)
    assert {weights[n].mean for n in ("conv_b", "bias", "mean", "fc_b")} == {0.0}


def test_branch_leaves_other_scales_alone() -> None:
    model = light_model()
    next(node for node in model.graph.node if node.op_type == "Sum").input[0] = "m"
    weights = {w.name: w for w in plan(model, branch=0.5)}
    assert (weights["scale"].mean, weights["scale"].std) == (1.0, 0.1)


def test_a_use_without_a_rule_is_refused() -> None:
    model = light_model()
    model.graph.node[-1].op_type = "MatMul"
    model.graph.node[-1].input.append("fc_w")
    with pytest.raises(ValueError, match="'fc_w' is input 1 of MatMul"):
        plan(model)


def test_the_written_file_is_one_valid_model(light: Path, tmp_path: Path) -> None:
    target = tmp_path / "made.onnx"
    assert skeletons.main([str(light), str(target)]) == 0
    model = onnx.load(target)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == 4
    assert [value.name for value in model.graph.input] == ["image"]
    assert {tensor.name for tensor in model.graph.initializer} == {*SHAPES, "flat"}
    assert "ConstantOfShape" not in {node.op_type for node in model.graph.node}
    stored = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    assert {name: stored[name].shape for name in SHAPES} == SHAPES
    for planned in plan(light_model()):
        expected = np.concatenate(list(draw(planned, "light_tiny.onnx"))).reshape(planned.shape)
        np.testing.assert_array_equal(stored[planned.name], expected)


def test_two_processes_write_the_same_bytes(light: Path, tmp_path: Path) -> None:
    targets = [tmp_path / "a.onnx", tmp_path / "b.onnx"]
    for target in targets:
        command = [sys.executable, "-m", "onnx_models.skeletons", str(light), str(target), "--logits=2.0"]
        subprocess.run(command, check=True)
    assert targets[0].read_bytes() == targets[1].read_bytes()


def first_output(path: Path, image: np.ndarray[Any, Any]) -> Any:
    (output,) = ReferenceEvaluator(str(path)).run(None, {"image": image})
    return output


def test_outputs_depend_on_the_input_once_seeded(light: Path, tmp_path: Path) -> None:
    target = tmp_path / "made.onnx"
    skeletons.main([str(light), str(target), "--logits=2.0"])
    rng = np.random.default_rng(0)
    images = [rng.normal(size=(1, 3, 8, 8)).astype(np.float32) for _ in range(2)]

    def difference(path: Path) -> float:
        a, b = (first_output(path, image) for image in images)
        return float(np.sqrt(np.mean((a - b) ** 2)) / np.sqrt(np.mean(a**2)))

    assert difference(target) > 0.02
    assert difference(light) < 1e-6, "the reason for seeding is gone"


@pytest.mark.parametrize("content", [b"", b"not a protobuf"])
def test_a_broken_source_is_one_line_and_no_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    source = tmp_path / "broken.onnx"
    source.write_bytes(content)
    assert skeletons.main([str(source), str(tmp_path / "made.onnx")]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{source}: cannot be given weights: ")
    assert error.count("\n") == 1
    assert not (tmp_path / "made.onnx").exists()
