"""Which rule an output gets, from the operators that make it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnx_models.outcomes import SuiteError
from onnx_models.semantics import rules


def _model(nodes: Sequence[Any], *outputs: str, **weights: Any) -> onnx.ModelProto:
    initializers = [numpy_helper.from_array(np.asarray(value), name) for name, value in weights.items()]
    ports = [onnx.ValueInfoProto(name=name) for name in outputs]
    graph = helper.make_graph(nodes, "g", [onnx.ValueInfoProto(name="x")], ports, initializers)
    return helper.make_model(graph)


NODE = helper.make_node


def test_indices_are_traced_to_what_they_point_into() -> None:
    nodes = [
        NODE("ArgMax", ["s"], ["a"], axis=2, keepdims=0),
        NODE("Cast", ["a"], ["b"], to=6),
        NODE("TopK", ["s", "k"], ["v", "i"], axis=1),
        NODE("Identity", ["i"], ["j"]),
    ]
    found = rules(_model(nodes, "b", "j", "v"), {})
    assert (found["b"].rule, found["b"].params, found["b"].scores) == (
        "indices",
        {"axis": 2, "keepdims": False},
        "s",
    )
    assert (found["j"].rule, found["j"].params, found["j"].scores) == (
        "indices",
        {"axis": 1, "keepdims": True},
        "s",
    )
    assert (found["v"].rule, found["v"].scores) == ("values", "")
    assert found["b"].origin == "ArgMax"


def test_an_index_that_was_computed_with_is_no_index() -> None:
    nodes = [NODE("ArgMax", ["s"], ["a"]), NODE("Add", ["a", "one"], ["b"])]
    assert rules(_model(nodes, "b"), {})["b"].rule == "values"


def test_everything_behind_a_suppression_is_rows_of_one_group() -> None:
    nodes = [
        NODE("NonMaxSuppression", ["boxes", "scores"], ["chosen"]),
        NODE("Gather", ["boxes", "chosen"], ["picked"]),
        NODE("Relu", ["x"], ["other"]),
    ]
    found = rules(_model(nodes, "chosen", "picked", "other"), {})
    assert [found[name].rule for name in ("chosen", "picked", "other")] == ["rows", "rows", "values"]
    assert found["chosen"].params == found["picked"].params


def test_quantized_outputs_are_allowed_their_own_step() -> None:
    nodes = [
        NODE("QuantizeLinear", ["x", "s"], ["q"]),
        NODE("Reshape", ["q", "shape"], ["r"]),
        NODE("DequantizeLinear", ["q", "s"], ["d"]),
        NODE("Transpose", ["d"], ["t"]),
        NODE("Relu", ["d"], ["e"]),
        NODE("DequantizeLinear", ["q", "x"], ["unknown"]),
    ]
    found = rules(_model(nodes, "r", "t", "e", "unknown", s=np.float32(0.25)), {})
    assert (found["r"].rule, found["r"].params) == ("quantized", {"step": 1})
    assert (found["t"].rule, found["t"].params) == ("quantized", {"step": 0.25})
    assert (found["e"].rule, found["unknown"].rule) == ("values", "values")


def test_only_short_chains_of_correctly_rounded_operators_are_exact() -> None:
    short = [NODE("Add", ["x", "x"], ["a"]), NODE("Reshape", ["a", "s"], ["y"])]
    assert rules(_model(short, "y"), {})["y"].exact_graph
    summing = [NODE("MatMul", ["x", "x"], ["a"]), NODE("Relu", ["a"], ["y"])]
    assert not rules(_model(summing, "y"), {})["y"].exact_graph
    long = [NODE("Add", [f"x{i or ''}", "x"], [f"x{i + 1}"]) for i in range(20)]
    assert not rules(_model(long, "x20"), {})["x20"].exact_graph


def test_the_catalogue_has_the_last_word_and_must_be_right() -> None:
    model = _model([NODE("Relu", ["x"], ["y"])], "y")
    found = rules(model, {"y": {"rule": "quantized", "step": 2}})["y"]
    assert (found.rule, found.params, found.origin) == ("quantized", {"step": 2}, "catalogue")
    with pytest.raises(SuiteError, match="no output 'z': the model's outputs are 'y'"):
        rules(model, {"z": {"rule": "exact"}})
    with pytest.raises(SuiteError, match="rule is one of"):
        rules(model, {"y": {"rule": "loose"}})
