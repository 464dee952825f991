"""The float64 evaluator's own operators against onnxruntime, and the widening of models."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

onnxruntime = pytest.importorskip("onnxruntime")

from onnx.reference import ReferenceEvaluator  # noqa: E402

from onnx_models.float64_child import widen  # noqa: E402
from onnx_models.float64_operators import OPERATORS  # noqa: E402

RNG = np.random.Generator(np.random.PCG64(5))


def _array(*shape: int) -> Any:
    return RNG.standard_normal(shape).astype(np.float32)


def _model(
    op: str, shape: Sequence[int], weights: Sequence[Any], opset: int, **attributes: Any
) -> onnx.ModelProto:
    names = [f"w{i}" for i in range(len(weights))]
    node = helper.make_node(op, ["x", *names], ["y"], **attributes)
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    initializers = [numpy_helper.from_array(array, name) for name, array in zip(names, weights, strict=True)]
    graph = helper.make_graph([node], "g", [x], [y], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def _evaluate(model: onnx.ModelProto, x: Any) -> Any:
    outputs: Any = ReferenceEvaluator(model, new_ops=OPERATORS).run(None, {"x": x})
    return outputs[0]


NORM: list[Any] = [_array(4), _array(4), _array(4), np.abs(_array(4))]

CASES: list[tuple[str, tuple[int, ...], list[Any], int, dict[str, Any]]] = [
    ("Conv", (2, 4, 9), [_array(6, 4, 3), _array(6)], 17, {"pads": [1, 2], "strides": [2]}),
    ("Conv", (1, 4, 9, 8), [_array(6, 2, 3, 2)], 17, {"group": 2, "dilations": [2, 1], "pads": [0, 1, 2, 3]}),
    (
        "Conv",
        (1, 4, 9, 8),
        [_array(4, 1, 3, 3), _array(4)],
        17,
        {"group": 4, "auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ),
    ("Conv", (1, 4, 9, 8), [_array(3, 4, 2, 2)], 17, {"auto_pad": "SAME_LOWER"}),
    ("Conv", (1, 2, 5, 6, 7), [_array(3, 2, 3, 3, 3)], 17, {"auto_pad": "VALID"}),
    (
        "ConvTranspose",
        (1, 4, 5, 6),
        [_array(4, 3, 3, 2), _array(3)],
        17,
        {"strides": [2, 3], "pads": [1, 0, 0, 1]},
    ),
    ("ConvTranspose", (1, 4, 5), [_array(4, 2, 3)], 17, {"group": 2, "strides": [2], "output_padding": [1]}),
    ("ConvTranspose", (1, 4, 5, 5), [_array(4, 3, 3, 3)], 17, {"dilations": [2, 1]}),
    ("MaxPool", (1, 4, 9, 8), [], 17, {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ("MaxPool", (1, 4, 9), [], 17, {"kernel_shape": [3], "dilations": [2], "auto_pad": "VALID"}),
    ("MaxPool", (1, 4, 9, 8), [], 17, {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_UPPER"}),
    ("MaxPool", (1, 1, 6, 6), [], 17, {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}),
    ("AveragePool", (1, 4, 9, 8), [], 17, {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    ("AveragePool", (1, 4, 9), [], 17, {"kernel_shape": [4], "pads": [1, 2], "count_include_pad": 1}),
    (
        "AveragePool",
        (1, 4, 9, 8),
        [],
        17,
        {"kernel_shape": [3, 3], "strides": [2, 2], "auto_pad": "SAME_LOWER"},
    ),
    ("BatchNormalization", (2, 4, 3, 3), NORM, 7, {}),
    ("BatchNormalization", (2, 4, 3, 3), NORM, 9, {"epsilon": 1e-3, "momentum": 0.8}),
    ("BatchNormalization", (2, 4), NORM, 15, {}),
    ("LRN", (1, 7, 3, 3), [], 13, {"size": 5, "alpha": 0.3, "beta": 0.6, "bias": 2.0}),
    ("GlobalMaxPool", (2, 4, 5), [], 17, {}),
    ("Identity", (2, 3), [], 17, {}),
]


@pytest.mark.parametrize(("op", "shape", "weights", "opset", "attributes"), CASES)
def test_an_operator_agrees_with_onnxruntime_and_float64_is_better(
    op: str, shape: Sequence[int], weights: Sequence[Any], opset: int, attributes: dict[str, Any]
) -> None:
    model, x = _model(op, shape, weights, opset, **attributes), _array(*shape)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    (expected,) = session.run(None, {"x": x})
    found = _evaluate(model, x)
    assert found.dtype == np.float32
    assert found.shape == expected.shape
    assert np.allclose(found, expected, rtol=1e-4, atol=1e-5)
    widen(model)
    wide = _evaluate(model, x.astype(np.float64))
    assert wide.dtype == np.float64
    assert np.allclose(wide, expected, rtol=1e-4, atol=1e-5)
    if op not in ("MaxPool", "GlobalMaxPool", "Identity"):
        assert not np.array_equal(wide.astype(np.float32), wide)


def test_widening_reaches_constants_casts_and_subgraphs() -> None:
    branch = helper.make_graph(
        [helper.make_node("Constant", [], ["b"], value_float=0.1)],
        "b",
        [],
        [helper.make_empty_tensor_value_info("b")],
    )
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], to=TensorProto.FLOAT),
        helper.make_node("Greater", ["a", "a"], ["c"]),
        helper.make_node("If", ["c"], ["d"], then_branch=branch, else_branch=branch),
        helper.make_node("Add", ["a", "d"], ["y"]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.INT64, ())
    graph = helper.make_graph(nodes, "g", [x], [helper.make_tensor_value_info("y", TensorProto.FLOAT, ())])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    widen(model)
    y = _evaluate(model, np.array(3))
    assert y.dtype == np.float64
    assert y == 3 + np.float64(np.float32(0.1))
