"""How each output's elements are to be judged, derived from the operators that make it.

Indices of a top-k or an argmax may tie; rows behind a NonMaxSuppression are a
set; a quantized output may be one step off. Runs in the reference's child.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from onnx_models.outcomes import SuiteError

PASSES_VALUES = frozenset({"Identity", "Cast"})
"""Operators that keep elements and their places."""

MOVES_VALUES = PASSES_VALUES | {
    *("Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Slice", "Gather", "Concat", "Split"),
    *("Expand", "Tile", "Pad", "DepthToSpace", "SpaceToDepth", "GatherElements", "GatherND"),
}
"""Operators that move elements and compute none."""

ROUNDS_ONCE = MOVES_VALUES | {
    *(
        "Relu",
        "Abs",
        "Neg",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Sqrt",
        "Max",
        "Min",
        "Clip",
        "Sign",
        "Floor",
        "Ceil",
    ),
    *("Round", "Where", "MaxPool", "GlobalMaxPool", "ReduceMax", "ReduceMin", "Constant", "ConstantOfShape"),
    *("Shape", "Size", "Range", "TopK", "Equal", "Less", "Greater", "LessOrEqual", "GreaterOrEqual", "Not"),
    *("And", "Or", "Xor", "ScatterND", "ScatterElements", "LeakyRelu", "NonZero", "OneHot", "Trilu"),
}
"""Operators whose results IEEE arithmetic fixes to half an ulp: they accumulate and approximate nothing."""

EXACT_DEPTH = 8
"""Longest chain of such operators whose rounding errors stay within a few ulp together."""

RULES = frozenset({"values", "exact", "indices", "rows", "quantized"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputRule:
    """The rule of one output. `scores` names the tensor that its indices point into."""

    rule: str
    params: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "element type"
    scores: str = ""
    exact_graph: bool = False

    def to_json(self) -> dict[str, Any]:
        """The part that goes into a policy."""
        params = dict(self.params)
        return {"rule": self.rule, "params": params, "origin": self.origin, "exact_graph": self.exact_graph}


def rules(model: onnx.ModelProto, overrides: Mapping[str, Any]) -> dict[str, OutputRule]:
    """The rule of each output, by name; `overrides` are the catalogue's.

    Raises:
        SuiteError: an override names no output, or no rule.
    """
    names = [port.name for port in model.graph.output]
    for name, given in overrides.items():
        if name not in names:
            raise SuiteError(
                f"compare: no output {name!r}: the model's outputs are {', '.join(map(repr, names))}"
            )
        if given.get("rule") not in RULES:
            raise SuiteError(f"compare: output {name!r}: rule is one of {', '.join(sorted(RULES))}")
    graph = _Graph(model.graph)
    found = {name: graph.rule(name) for name in names}
    for name, given in overrides.items():
        params = {key: value for key, value in given.items() if key not in ("rule", "scores")}
        found[name] = OutputRule(
            rule=given["rule"], params=params, origin="catalogue", scores=given.get("scores", "")
        )
    return found


class _Graph:
    """Producers and constants of the main graph, by tensor name."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.producers = {name: node for node in graph.node for name in node.output if name}
        self.constants = {tensor.name: tensor for tensor in graph.initializer}

    def rule(self, name: str) -> OutputRule:
        exact = self._is_exact(name)
        node = self._source(name, PASSES_VALUES)
        if node is not None and node.op_type in ("ArgMax", "ArgMin"):
            params = {"axis": _attribute(node, "axis", 0), "keepdims": bool(_attribute(node, "keepdims", 1))}
            return OutputRule(rule="indices", params=params, origin=node.op_type, scores=node.input[0])
        if node is not None and node.op_type == "TopK" and self._made_by(name, node) == 1:
            params = {"axis": _attribute(node, "axis", -1), "keepdims": True}
            return OutputRule(rule="indices", params=params, origin="TopK", scores=node.input[0])
        if any(each.op_type == "NonMaxSuppression" for each in self._ancestors(name)):
            return OutputRule(rule="rows", params={"group": "NonMaxSuppression"}, origin="NonMaxSuppression")
        moved = self._source(name, MOVES_VALUES)
        if moved is not None and (moved.op_type == "QuantizeLinear" or moved.op_type.startswith("QLinear")):
            return OutputRule(rule="quantized", params={"step": 1}, origin=moved.op_type)
        if moved is not None and moved.op_type == "DequantizeLinear":
            step = self._constant(moved.input[1])
            if step is not None:
                return OutputRule(rule="quantized", params={"step": step}, origin="DequantizeLinear")
        return OutputRule(rule="values", exact_graph=exact)

    def _source(self, name: str, through: frozenset[str]) -> onnx.NodeProto | None:
        """The node that makes a tensor's values, seen through operators that only pass them on."""
        node = self.producers.get(name)
        while node is not None and node.op_type in through and node.input:
            node = self.producers.get(node.input[0])
        return node

    def _made_by(self, name: str, node: onnx.NodeProto) -> int:
        """Which output of `node` the tensor is, seen through operators that pass values on."""
        while name not in node.output:
            name = self.producers[name].input[0]
        return list(node.output).index(name)

    def _ancestors(self, name: str) -> Iterator[onnx.NodeProto]:
        seen: set[str] = set()
        pending = [name]
        while pending:
            node = self.producers.get(pending.pop())
            if node is None or (key := node.output[0]) in seen:
                continue
            seen.add(key)
            yield node
            pending += node.input

    def _is_exact(self, name: str) -> bool:
        nodes = list(self._ancestors(name))
        computing = [node for node in nodes if node.op_type not in MOVES_VALUES]
        return len(computing) <= EXACT_DEPTH and all(node.op_type in ROUNDS_ONCE for node in nodes)

    def _constant(self, name: str) -> float | None:
        if name not in self.constants:
            return None
        value = np.asarray(numpy_helper.to_array(self.constants[name]), dtype=np.float64)
        return float(np.max(np.abs(value))) if value.size else None


def _attribute(node: onnx.NodeProto, name: str, default: int) -> int:
    return next((int(attribute.i) for attribute in node.attribute if attribute.name == name), default)
