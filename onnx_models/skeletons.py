"""Gives a zoo topology of the onnx package seeded weights; runs as a child process.

The `light_*` models of the onnx package have the same constant in every weight, so
their output does not depend on the input. Here each weight is drawn anew. The file
is the same byte by byte on every machine: a draw is the sum of the four 16-bit
parts of one raw 64-bit word of the Philox generator (numpy guarantees the raw
stream, not the distributions built on it), and beyond that only integer arithmetic
and single IEEE operations are used, no libm.

    python -m onnx_models.skeletons SOURCE TARGET [--logits F] [--branch F]

The weights are streamed to TARGET: the peak is that of one block of rows, not of the
model (vgg19 is 0.57 GB).
"""

from __future__ import annotations

import argparse
import hashlib
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import numpy_helper

_BLOCK = 1 << 20
"""Draws made at a time, unless one row is longer."""

_UNIT = math.sqrt((2**32 - 1) / 3.0)
"""Standard deviation of the sum of four independent uniform 16-bit integers: sqrt(4 (2**32 - 1) / 12)."""

_RELU_GAIN = math.sqrt(2 / (1 - 1 / math.pi))
"""Keeps the variance of centred weights through ReLU: of a standard normal it leaves (1 - 1/pi) / 2."""

_PASS_THROUGH = ("Reshape", "Unsqueeze")


@dataclass(frozen=True, slots=True, kw_only=True)
class Weight:
    """How one weight is drawn: `mean + std * z`, z of mean 0 and variance 1.

    `rows` splits the weight into outputs. When `centred`, each row's own mean is taken
    off: then the mean that ReLU leaves in its input does not pass, which would
    otherwise make the outputs for any two inputs alike within a few layers.
    """

    name: str
    shape: tuple[int, ...]
    rows: int
    mean: float
    std: float
    centred: bool

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


def draw(weight: Weight, seed: str) -> Iterator[NDArray[np.float32]]:
    """The weight's values in blocks of rows, little-endian float32.

    `seed` and the weight's name choose the stream, never the order of drawing.
    """
    key = int.from_bytes(hashlib.sha256(f"{seed}/{weight.name}".encode()).digest()[:16], "little")
    words = np.random.Philox(key=key)
    fan_in = weight.size // weight.rows
    step = max(1, _BLOCK // fan_in)
    scale, mean = np.float32(weight.std / _UNIT), np.float32(weight.mean)
    for first in range(0, weight.rows, step):
        rows = min(step, weight.rows - first)
        parts = words.random_raw(rows * fan_in).view(np.uint16).reshape(-1, 4)
        whole = parts.sum(axis=1, dtype=np.int64).reshape(rows, fan_in) - 2 * (2**16 - 1)
        if weight.centred:
            whole -= whole.sum(axis=1, keepdims=True) // fan_in
        yield (whole.astype(np.float32) * scale + mean).astype("<f4")


def plan(model: onnx.ModelProto, *, logits: float = 1.0, branch: float = 1.0) -> list[Weight]:
    """Decide how each floating-point weight of a `light_*` model is drawn.

    Convolutions and matrix products get centred He weights by fan-in (He et al. 2015), the
    last of them scaled by `logits` so that softmax does not saturate; the scale of a
    BatchNormalization that ends a residual branch is around `branch`; other scales and
    variances are near 1, means and biases near 0.

    Raises:
        ValueError: a weight is used in a way this does not know.
    """
    shapes = _weight_shapes(model.graph)
    uses = [(node, k, name) for node in model.graph.node for k, name in enumerate(node.input)]
    users = {name: (node, k) for node, k, name in uses}
    last = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm")][-1]
    summed = {name for node in model.graph.node if node.op_type == "Sum" for name in node.input}
    weights = []
    for name, shape in shapes.items():
        if name not in users:
            continue
        node, position = users[name]
        while node.op_type in _PASS_THROUGH:
            node, position = users[node.output[0]]
        gain = logits if node is last else _RELU_GAIN
        scale = branch if node.op_type == "BatchNormalization" and node.output[0] in summed else 1.0
        weights.append(_rule(name, shape, node.op_type, position, gain=gain, scale=scale))
    return weights


def _rule(
    name: str, shape: tuple[int, ...], op_type: str, position: int, *, gain: float, scale: float
) -> Weight:
    role = (op_type, position)
    if role in (("Conv", 1), ("Gemm", 1)):
        rows = shape[0] if op_type == "Conv" else math.prod(shape[:-1])
        std = gain / math.sqrt(math.prod(shape) // rows)
        return Weight(name=name, shape=shape, rows=rows, mean=0.0, std=std, centred=True)
    if role == ("BatchNormalization", 1):
        mean, std = scale, 0.1 * scale
    elif role in (("BatchNormalization", 4), ("Mul", 1)):
        mean, std = 1.0, 0.1
    elif position > 0 and op_type in ("Conv", "Gemm", "BatchNormalization", "Add"):
        mean, std = 0.0, 0.1
    else:
        raise ValueError(f"weight {name!r} is input {position} of {op_type}: no rule says how to draw it")
    return Weight(name=name, shape=shape, rows=1, mean=mean, std=std, centred=False)


def _weight_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Name and shape of every floating-point constant, made by ConstantOfShape or stored."""
    stored = {tensor.name: tensor for tensor in graph.initializer}
    shapes = {t.name: tuple(t.dims) for t in graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    for node in graph.node:
        if node.op_type == "ConstantOfShape":
            sizes = numpy_helper.to_array(stored[node.input[0]])
            shapes[node.output[0]] = tuple(int(n) for n in sizes)
    return shapes


def strip(model: onnx.ModelProto, weights: Sequence[Weight]) -> None:
    """Take the constants out of the model, so that only `weights` must be added, and only true inputs stay.

    Initializers need not be graph inputs from IR version 4 on.
    """
    graph = model.graph
    model.ir_version = max(4, model.ir_version)
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    used = {name for node in nodes for name in node.input} - {weight.name for weight in weights}
    stored = {tensor.name for tensor in graph.initializer}
    kept = [tensor for tensor in graph.initializer if tensor.name in used]
    inputs = [value for value in graph.input if value.name not in stored]
    for field, values in (("node", nodes), ("initializer", kept), ("input", inputs)):
        graph.ClearField(field)
        getattr(graph, field).extend(values)


def write(model: onnx.ModelProto, weights: Sequence[Weight], seed: str, file: BinaryIO) -> None:
    """Write the model with its weights, one block at a time.

    A protobuf message may be cut anywhere between fields and a repeated field may go on
    later, so the graph is its serialised remains followed by one `initializer` each.
    """
    graph = model.graph.SerializeToString(deterministic=True)
    model.ClearField("graph")
    heads = [_initializer_head(weight) for weight in weights]
    length = len(graph) + sum(len(head) + 4 * w.size for head, w in zip(heads, weights, strict=True))
    file.write(model.SerializeToString(deterministic=True))
    file.write(_field(onnx.ModelProto, "graph", length) + graph)
    for head, weight in zip(heads, weights, strict=True):
        file.write(head)
        for block in draw(weight, seed):
            file.write(block.tobytes())


def _initializer_head(weight: Weight) -> bytes:
    """All of an `initializer` field but the bytes of its values, which must follow."""
    tensor = onnx.TensorProto(name=weight.name, dims=weight.shape, data_type=onnx.TensorProto.FLOAT)
    head = tensor.SerializeToString(deterministic=True)
    head += _field(onnx.TensorProto, "raw_data", 4 * weight.size)
    return _field(onnx.GraphProto, "initializer", len(head) + 4 * weight.size) + bytes(head)


def _field(message: type, name: str, length: int) -> bytes:
    """Tag and length of a length-delimited field (protobuf wire type 2)."""
    number: int = message.DESCRIPTOR.fields_by_name[name].number  # type: ignore[attr-defined]
    return _varint(number << 3 | 2) + _varint(length)


def _varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def main(arguments: Sequence[str] | None = None) -> int:
    """Make one seeded model; 1 and one line on stderr when that is impossible."""
    parser = argparse.ArgumentParser(prog="python -m onnx_models.skeletons")
    parser.add_argument("source", type=Path, help="a light_* model")
    parser.add_argument("target", type=Path, help="the file to write")
    parser.add_argument("--logits", type=float, default=1.0, help="scale of the last layer")
    parser.add_argument("--branch", type=float, default=1.0, help="scale at the end of residual branches")
    options = parser.parse_args(arguments)
    try:
        model = onnx.load(options.source)
        weights = plan(model, logits=options.logits, branch=options.branch)
        strip(model, weights)
        with options.target.open("wb") as file:
            write(model, weights, options.source.name, file)
    except Exception as error:  # onnx gives the protobuf errors of its load no name of their own
        print(f"{options.source}: cannot be given weights: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
