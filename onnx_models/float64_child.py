"""Child process of `reference`: the model evaluated in float64, where that is a safe oracle.

`python -m onnx_models.float64_child REQUEST.json ANSWER.json`

`onnx.reference.ReferenceEvaluator` (onnx 1.23) gets some operators wrong, so it
must first agree with onnxruntime at the model's own precision.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, NodeProto, TensorProto, numpy_helper
from onnx.reference import ReferenceEvaluator

from onnx_models import float64_operators, metrics, tensors, tolerance
from onnx_models.inspection_child import all_graphs
from onnx_models.reference_data import tensor_file
from onnx_models.tensors import Array

NARROW = frozenset({TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16})
"""Element types that are widened to float64."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Per set and output, the float64 file and ORT's distance from it; `{"refused": why}` where unsafe."""
    folder, file = Path(request["folder"]), Path(request["model"])
    sets = [_load(row, folder) for row in request["sets"]]
    with np.errstate(all="ignore"):
        own = _evaluate(_load_model(file), sets[0][0])
        names = [row["name"] for row in request["sets"][0]["outputs"]]
        for name, expected, found in zip(names, sets[0][1], own, strict=True):
            if (why := _disagreement(expected, found)) is not None:
                return {"refused": f"the evaluator does not agree with onnxruntime on output {name!r}: {why}"}
        model = _load_model(file)
        widen(model)
        rows = [
            _compare(row, folder, outputs, _evaluate(model, {k: _wide(v) for k, v in feeds.items()}))
            for row, (feeds, outputs) in zip(request["sets"], sets, strict=True)
        ]
    return {"sets": rows}


def _load_model(file: Path) -> onnx.ModelProto:
    """The model with the default axis of an old Softmax written out: the evaluator takes the new default."""
    model = onnx.load(file)
    if any(entry.domain in ("", "ai.onnx") and entry.version < 13 for entry in model.opset_import):
        for node in model.graph.node:
            if node.op_type in ("Softmax", "LogSoftmax") and not node.attribute:
                node.attribute.append(onnx.helper.make_attribute("axis", 1))
    return model


def widen(model: onnx.ModelProto) -> None:
    """Make every float tensor, port and cast of a model float64, in place."""
    for graph in all_graphs(model):
        for tensor in graph.initializer:
            _widen_tensor(tensor)
        for value in (*graph.input, *graph.output, *graph.value_info):
            if value.type.tensor_type.elem_type in NARROW:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        _widen_nodes(graph.node)
    for function in model.functions:
        _widen_nodes(function.node)


def _widen_nodes(nodes: Iterable[NodeProto]) -> None:
    for node in nodes:
        if node.op_type == "Constant" and node.attribute[0].name in ("value_float", "value_floats"):
            given = node.attribute[0]
            value = np.array(given.f if given.name == "value_float" else list(given.floats), np.float64)
            del node.attribute[:]
            node.attribute.append(onnx.helper.make_attribute("value", numpy_helper.from_array(value)))
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                _widen_tensor(attribute.t)
            if attribute.name in ("to", "dtype") and attribute.i in NARROW:
                attribute.i = TensorProto.DOUBLE


def _widen_tensor(tensor: TensorProto) -> None:
    if tensor.data_type in NARROW:
        array = numpy_helper.to_array(tensor).astype(np.float64)
        tensor.CopyFrom(numpy_helper.from_array(array, tensor.name))


def _evaluate(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> list[Array]:
    evaluator = ReferenceEvaluator(model, new_ops=float64_operators.OPERATORS)
    return [np.asarray(output) for output in evaluator.run(None, dict(feeds))]


def _wide(array: Array) -> Array:
    return array.astype(np.float64) if tolerance.is_float(array.dtype.name) else array


def _load(row: Mapping[str, Any], folder: Path) -> tuple[dict[str, Array], list[Array]]:
    feeds = {each["name"]: tensors.read(tensor_file(each, folder)) for each in row["inputs"]}
    return feeds, [tensors.read(tensor_file(each, folder)) for each in row["outputs"]]


def _disagreement(expected: Array, found: Array) -> str | None:
    """Why the evaluator is not to be trusted with this model, None when it is."""
    if expected.shape != found.shape:
        return f"shape {list(found.shape)} for {list(expected.shape)}"
    dtype = expected.dtype.name
    if not tolerance.is_float(dtype):
        return None if np.array_equal(expected, found) else "other integers"
    errors = metrics.measure(expected, found, dtype)
    bounds = tolerance.health_bounds(dtype, errors.scale, errors.largest)
    if errors.places is not None:
        return f"other places of {errors.places[0]}"
    within = errors.rmse <= bounds.rmse and errors.max_abs <= bounds.worst
    return None if within else f"rmse {errors.rmse:.3g} at scale {errors.scale:.3g}"


def _compare(
    row: Mapping[str, Any], folder: Path, outputs: Sequence[Array], precise: Sequence[Array]
) -> list[dict[str, Any] | None]:
    rows: list[dict[str, Any] | None] = []
    for index, (output, wide) in enumerate(zip(outputs, precise, strict=True)):
        if not tolerance.is_float(output.dtype.name) or output.shape != wide.shape:
            rows.append(None)
            continue
        file = f"reference/{row['name']}/{index}.float64.npy"
        tensors.write(wide.astype(np.float64), folder / file)
        found = metrics.difference(wide.astype(np.float64), output)
        shape = list(wide.shape)
        tensor = {"name": row["outputs"][index]["name"], "dtype": "float64", "shape": shape, "file": file}
        rows.append({"tensor": tensor, "difference": found})
    return rows


if __name__ == "__main__":
    question = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    try:
        made = answer(question)
    except Exception as error:  # the evaluator raises whatever numpy does
        first = (str(error).strip().splitlines() or [""])[0]
        made = {"refused": f"the evaluator fails: {type(error).__name__}: {first}"}
    Path(sys.argv[2]).write_text(json.dumps(made, allow_nan=False), encoding="utf-8")
