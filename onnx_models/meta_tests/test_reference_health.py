"""What a reference says of itself: noise, health and vacuity of tiny models, by the real child processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from onnx_models import compare, tensors
from onnx_models.catalog import InputFact, Model
from onnx_models.outcomes import Kind, Stage
from onnx_models.reference import Draw, Reference, make_reference

LOCAL = Model(collection="local", path="m", source={"type": "local"})
NODE = helper.make_node
RNG = np.random.Generator(np.random.PCG64(3))
WEIGHT = RNG.standard_normal((16, 8)).astype(np.float32)


def _reference(
    folder: Path,
    nodes: Sequence[Any],
    outputs: Sequence[str],
    model: Model = LOCAL,
    opset: int = 17,
    **weights: Any,
) -> Reference:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 16))
    ports = [helper.make_empty_tensor_value_info(name) for name in outputs]
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    graph = helper.make_graph(nodes, "g", [x], ports, initializers)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    file = folder / "m.onnx"
    file.write_bytes(proto.SerializeToString())
    return make_reference(model, file, folder / "art", draw=Draw(seeds=2 if model is LOCAL else 1))


def test_a_float64_evaluation_is_the_noise_basis(tmp_path: Path) -> None:
    nodes = [NODE("MatMul", ["x", "w"], ["a"]), NODE("Tanh", ["a"], ["y"])]
    made = _reference(tmp_path, nodes, ["y"], w=WEIGHT)
    assert (made.failure, made.vacuous, made.health["float64"]) == (None, "", "used")
    for each in made.sets:
        assert each.policies[0].basis == "float64"
        x, y, precise = (tensors.read(t) for t in (each.inputs[0], each.outputs[0], each.precise[0]))
        assert np.allclose(precise, np.tanh(x.astype(np.float64) @ WEIGHT.astype(np.float64)), atol=1e-14)
        assert each.policies[0].noise == pytest.approx(np.sqrt(np.mean((y - precise) ** 2)))
        assert 0 < each.policies[0].noise < 1e-6
    assert made.sets[0].policies[0].noise != made.sets[1].policies[0].noise
    assert make_reference(LOCAL, tmp_path / "m.onnx", tmp_path / "art", draw=Draw(seeds=2)).reused


def test_an_evaluator_that_disagrees_is_not_used(tmp_path: Path) -> None:
    """The evaluator of onnx 1.23 ignores sequence_lens of recurrent operators."""
    weights = {"w": RNG.standard_normal((1, 12, 1)), "r": RNG.standard_normal((1, 12, 3))}
    nodes = [
        NODE("Reshape", ["x", "shape"], ["s"]),
        NODE("LSTM", ["s", "w", "r", "", "lens"], ["y"], hidden_size=3),
    ]
    arrays: dict[str, Any] = {key: value.astype(np.float32) for key, value in weights.items()}
    shape, lens = np.array([16, 4, 1]), np.array([16, 3, 9, 1], np.int32)
    made = _reference(tmp_path, nodes, ["y"], shape=shape, lens=lens, **arrays)
    assert "does not agree with onnxruntime on output 'y'" in made.health["float64"]
    assert made.sets[0].policies[0].basis in ("optimisation", "default")
    assert made.sets[0].precise == {}


def test_operators_that_round_once_leave_only_ulps(tmp_path: Path) -> None:
    model = dataclasses.replace(LOCAL, path="big")
    made = _reference(tmp_path, [NODE("Relu", ["x"], ["a"])], ["a"], model)
    assert made.sets[0].policies[0].noise == 0.0
    row = compare.compare_set(made.sets[0], tmp_path / "art" / "reference" / "seeded-0").outputs[0]
    assert row["ok"]
    assert row["tolerance_rmse"] < 1e-6 * row["scale"]


@pytest.mark.parametrize(
    ("nodes", "weights", "text"),
    [
        (
            [NODE("Mul", ["x", "z"], ["a"]), NODE("Add", ["a", "c"], ["y"])],
            {"z": 0.0, "c": 2.0},
            "depends on the inputs",
        ),
        ([NODE("Mul", ["x", "z"], ["y"])], {"z": 0.0}, "empty or zero"),
        ([NODE("Slice", ["x", "o", "o"], ["y"])], {"o": None}, "empty or zero"),
        (
            [
                NODE("MatMul", ["x", "w"], ["a"]),
                NODE("Mul", ["a", "c"], ["b"]),
                NODE("Softmax", ["b"], ["y"]),
            ],
            {"w": WEIGHT, "c": 1e6},
            "weights rounded to bfloat16",
        ),
    ],
)
def test_a_reference_that_cannot_tell_right_from_wrong_is_vacuous(
    nodes: Sequence[Any], weights: dict[str, Any], text: str, tmp_path: Path
) -> None:
    arrays: dict[str, Any] = {
        k: np.zeros(1, np.int64) if v is None else np.asarray(v, np.float32) for k, v in weights.items()
    }
    assert text in _reference(tmp_path, nodes, ["y"], **arrays).vacuous


def test_one_output_that_discriminates_is_enough(tmp_path: Path) -> None:
    nodes = [NODE("MatMul", ["x", "w"], ["y"]), NODE("Mul", ["x", "z"], ["zero"])]
    made = _reference(tmp_path, nodes, ["zero", "y"], w=WEIGHT, z=np.float32(0))
    assert made.vacuous == ""


def test_weights_that_bfloat16_holds_are_still_varied(tmp_path: Path) -> None:
    made = _reference(tmp_path, [NODE("MatMul", ["x", "w"], ["y"])], ["y"], w=np.sign(WEIGHT))
    assert made.health["outputs"][0]["probes"]["weights"]["rmse"] > 1e-3
    assert made.vacuous == ""


def test_inputs_that_are_given_are_not_redrawn(tmp_path: Path) -> None:
    fact = InputFact(name="x", kind="constant", params={"value": 1.5})
    model = dataclasses.replace(LOCAL, inputs=(fact,))
    made = _reference(tmp_path, [NODE("MatMul", ["x", "w"], ["y"])], ["y"], model, w=WEIGHT)
    assert set(made.health["outputs"][0]["probes"]) == {"weights"}
    assert made.vacuous == ""


def test_a_reference_that_differs_from_run_to_run_is_unhealthy(tmp_path: Path) -> None:
    nodes = [NODE("RandomNormalLike", ["x"], ["n"]), NODE("Add", ["x", "n"], ["y"])]
    made = _reference(tmp_path, nodes, ["y"])
    assert made.failure is not None
    assert (made.failure.stage, made.failure.kind) == (Stage.REFERENCE, Kind.REFERENCE_UNHEALTHY)
    assert "run twice" in made.failure.message


def test_what_is_not_an_ordinary_number_is_counted(tmp_path: Path) -> None:
    nodes = [NODE("Log", ["x"], ["y"]), NODE("Mul", ["x", "t"], ["small"])]
    made = _reference(tmp_path, nodes, ["y", "small"], t=np.float32(1e-40))
    row, small = made.health["outputs"]
    assert made.notes[-1] == f"the reference's output 'y' holds {row['nan']} NaN and 0 Inf"
    assert row["nan"] > 0
    assert (row["inf"], row["subnormal"]) == (0, 0)
    assert small["subnormal"] > 0


def test_indices_carry_their_scores(tmp_path: Path) -> None:
    nodes = [NODE("MatMul", ["x", "w"], ["s"]), NODE("ArgMax", ["s"], ["y"], axis=1, keepdims=0)]
    made = _reference(tmp_path, nodes, ["y"], w=WEIGHT)
    first = made.sets[0]
    scores = tensors.read(first.scores[0])
    assert np.array_equal(scores.argmax(1), tensors.read(first.outputs[0]))
    assert (first.policies[0].rule, first.policies[0].params["axis"]) == ("indices", 1)
    assert made.vacuous == ""


def test_an_override_of_an_output_that_is_not_there_is_named(tmp_path: Path) -> None:
    model = dataclasses.replace(LOCAL, compare={"z": {"rule": "exact"}})
    made = _reference(tmp_path, [NODE("Relu", ["x"], ["y"])], ["y"], model)
    assert made.failure is not None
    assert "no output 'z'" in made.failure.message


def test_a_quantized_model_is_taken_without_optimisation(tmp_path: Path) -> None:
    scale, zero = np.float32(0.02), np.uint8(128)
    nodes = [NODE("QuantizeLinear", ["x", "s", "z"], ["q"]), NODE("DequantizeLinear", ["q", "s", "z"], ["y"])]
    made = _reference(tmp_path, nodes, ["y"], s=scale, z=zero)
    assert made.health["options"]["graph_optimization_level"] == "disable"
    assert any("quantized" in note for note in made.notes)
    assert made.sets[0].policies[0].rule == "quantized"
    assert made.sets[0].policies[0].params["step"] == pytest.approx(0.02)
