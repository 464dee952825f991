"""Models that are slightly wrong on purpose: what a comparison must notice. Runs in the reference's child."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnx_models.inspection_child import model_tensors
from onnx_models.tensors import Array

LIMIT = 1_500_000_000
"""Bytes of weights beyond which no copy is made: protobuf ends at 2 GiB, and memory is finite."""

SMALLEST = 9
"""Elements from which on a float constant counts as a weight."""

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def with_rounded_weights(model: onnx.ModelProto) -> bool:
    """Round every float weight to bfloat16, in place; False when there is none.

    Where bfloat16 holds all of them exactly, as in models made by hand, they
    become 1/128 larger instead, bfloat16's next number.
    """
    return _change(model, lambda array: array.astype(ml_dtypes.bfloat16)) or _change(
        model, lambda array: array * (1 + 2.0**-7)
    )


def _change(model: onnx.ModelProto, changed: Callable[[Array], Array]) -> bool:
    any_change = False
    for tensor in _weights(model):
        array = numpy_helper.to_array(tensor)
        with np.errstate(over="ignore", invalid="ignore"):
            other = changed(array).astype(array.dtype)
        other = np.where(np.isfinite(other), other, array)
        if not np.array_equal(other, array, equal_nan=True):
            tensor.CopyFrom(numpy_helper.from_array(other, tensor.name))
            any_change = True
    return any_change


def _weights(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Float tensors that are weights: those of a few elements are bounds, scales and sizes of a shape."""
    for tensor in model_tensors(model):
        if tensor.data_type in _FLOATS and np.prod(tensor.dims, dtype=np.int64) >= SMALLEST:
            yield tensor
