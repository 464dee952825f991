"""Child process of `inspection`: `python -m onnx_models.inspection_child MODEL ANSWER.json`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

import onnx
from google.protobuf.message import DecodeError

from onnx_models.files import sha256_of


class _Refused(Exception):
    """The file is no usable model; the text says why."""


def describe(model_file: Path) -> dict[str, Any]:
    """The fields of `inspection.ModelInfo`, or `{"error": why}`."""
    try:
        model = _parse(model_file)
        external = [t for t in model_tensors(model) if t.data_location == onnx.TensorProto.EXTERNAL]
        beside = sorted({_location(tensor) for tensor in external})
        size = model_file.stat().st_size + _external_bytes(beside, model_file.parent)
    except _Refused as error:
        return {"error": str(error)}
    initializers = {t.name for t in model.graph.initializer}
    initializers |= {t.values.name for t in model.graph.sparse_initializer}
    return {
        "inputs": [_port(value) for value in model.graph.input if value.name not in initializers],
        "outputs": [_port(value) for value in model.graph.output],
        "ir_version": model.ir_version,
        "opsets": {entry.domain or "ai.onnx": entry.version for entry in model.opset_import},
        "operators": dict(sorted(Counter(_operator(node) for node in _all_nodes(model)).items())),
        "bytes": size,
        "external_files": beside,
        "sha256": sha256_of(model_file),
        "producer": f"{model.producer_name} {model.producer_version}".strip(),
    }


def _parse(model_file: Path) -> onnx.ModelProto:
    try:
        model = onnx.load(model_file, load_external_data=False)
    except DecodeError:
        raise _Refused("not an ONNX model, or truncated (protobuf does not parse): fetch it again") from None
    if not model.HasField("graph") or not (model.graph.node or model.graph.output):
        raise _Refused("not an ONNX model (it has no graph)")
    return model


def _external_bytes(locations: Iterable[str], folder: Path) -> int:
    """Size of the external files, each of which must exist inside the model's own folder."""
    home, total = folder.resolve(), 0
    for location in locations:
        file = folder / location
        absolute = PurePosixPath(location).is_absolute() or PureWindowsPath(location).is_absolute()
        if not location or absolute or not file.resolve().is_relative_to(home):
            raise _Refused(f"external data {location!r} lies outside the model's folder: refused")
        if not file.is_file():
            raise _Refused(f"external data {location!r} is missing: fetch it into the model's folder")
        total += file.stat().st_size
    return total


def _location(tensor: onnx.TensorProto) -> str:
    return next((entry.value for entry in tensor.external_data if entry.key == "location"), "")


def all_graphs(model: onnx.ModelProto) -> Iterator[onnx.GraphProto]:
    """The main graph and every subgraph, those of functions included."""
    yield model.graph
    for node in _all_nodes(model):
        yield from _subgraphs(node)


def _all_nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    yield from _nodes(model.graph.node)
    for function in model.functions:
        yield from _nodes(function.node)


def _nodes(nodes: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in nodes:
        yield node
        for graph in _subgraphs(node):
            yield from _nodes(graph.node)


def _subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    for attribute in node.attribute:
        if attribute.type == onnx.AttributeProto.GRAPH:
            yield attribute.g
        yield from attribute.graphs


def model_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Every weight and constant of a model, those of subgraphs and functions included."""
    yield from _initializers(model.graph)
    for node in _all_nodes(model):
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.TENSOR:
                yield attribute.t
            yield from attribute.tensors
        for graph in _subgraphs(node):
            yield from _initializers(graph)


def _initializers(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    yield from graph.initializer
    for sparse in graph.sparse_initializer:
        yield sparse.values
        yield sparse.indices


def _operator(node: onnx.NodeProto) -> str:
    return f"{node.domain}::{node.op_type}" if node.domain not in ("", "ai.onnx") else node.op_type


def _port(value: onnx.ValueInfoProto) -> dict[str, Any]:
    kind = value.type.WhichOneof("value") or "unknown"
    if kind != "tensor_type":
        return {"name": value.name, "dtype": "", "shape": None, "kind": kind.removesuffix("_type")}
    tensor = value.type.tensor_type
    shape = [_dim(dim) for dim in tensor.shape.dim] if tensor.HasField("shape") else None
    return {"name": value.name, "dtype": dtype_name(tensor.elem_type), "shape": shape, "kind": "tensor"}


def _dim(dim: onnx.TensorShapeProto.Dimension) -> int | str | None:
    if dim.HasField("dim_value"):
        # Some exporters write -1 for "any size".
        return dim.dim_value if dim.dim_value >= 0 else None
    # Paddle's exporter writes "?" for every dim without a name: they are not one symbol.
    return None if dim.dim_param in ("", "?") else dim.dim_param


def dtype_name(elem_type: int) -> str:
    """Name in numpy of an ONNX element type; "string" and "undefined" for those without one."""
    if elem_type in (onnx.TensorProto.STRING, onnx.TensorProto.UNDEFINED):
        return str(onnx.TensorProto.DataType.Name(elem_type)).lower()
    name: str = onnx.helper.tensor_dtype_to_np_dtype(elem_type).name
    return name


if __name__ == "__main__":
    answer = describe(Path(sys.argv[1]))
    Path(sys.argv[2]).write_text(json.dumps(answer), encoding="utf-8")
