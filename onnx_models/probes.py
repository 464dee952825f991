"""Models that are slightly wrong on purpose: what a comparison must notice. Runs in the reference's child."""

from __future__ import annotations

from collections.abc import Iterator

import ml_dtypes
import numpy as np
import onnx
from onnx import TensorProto, numpy_helper

from onnx_models.inspection_child import model_tensors
from onnx_models.tensors import Array

LIMIT = 1_500_000_000
"""Bytes of weights beyond which no copy is made: protobuf ends at 2 GiB, and memory is finite."""

_FLOATS = (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16)


def with_rounded_weights(model: onnx.ModelProto) -> bool:
    """Round every float weight to bfloat16, in place; False when there is none.

    Weights that bfloat16 holds exactly (small integers, powers of two) are
    made 1/256 larger instead, which is bfloat16's next number.
    """
    changed = False
    for tensor in _weights(model):
        array = numpy_helper.to_array(tensor)
        if (rounded := _rounded(array)) is not None:
            tensor.CopyFrom(numpy_helper.from_array(rounded, tensor.name))
            changed = True
    return changed


def _weights(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """Float tensors with more than one element: single ones are epsilons, bounds and sizes."""
    for tensor in model_tensors(model):
        if tensor.data_type in _FLOATS and np.prod(tensor.dims, dtype=np.int64) > 1:
            yield tensor


def _rounded(array: Array) -> Array | None:
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = array.astype(ml_dtypes.bfloat16).astype(array.dtype)
        if np.array_equal(rounded, array, equal_nan=True):
            rounded = (array * (1 + 2.0**-8)).astype(array.dtype)
    finite: Array = np.where(np.isfinite(rounded), rounded, array)
    return None if np.array_equal(finite, array, equal_nan=True) else finite
