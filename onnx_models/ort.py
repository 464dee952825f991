"""onnxruntime as the reference runs it: CPU, one thread unless told otherwise, its own messages.

Imported in child processes only.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

from onnx_models import tensors
from onnx_models.outcomes import SuiteError
from onnx_models.tensors import Array

LEVELS = {
    "disable": onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "all": onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

_FATAL_ONLY = 4


class Refusal(Exception):
    """onnxruntime does not load or run the model; the text is its own."""

    @property
    def first_line(self) -> str:
        """The message's first line."""
        return str(self).strip().splitlines()[0] if str(self).strip() else "onnxruntime gave no message"


class Unsupported(Exception):
    """An output that is no tensor of numbers, so that no tool could be compared on it."""


def session_options(
    given: Mapping[str, Any], operators: Mapping[str, int]
) -> tuple[dict[str, str], list[str]]:
    """The session configuration of a model, and what a reader must know of it.

    Quantized models differ with graph optimisation (quantize and dequantize
    nodes are fused) and, on x86 without VNNI, saturate in int8 products, so
    both are set unless the catalogue says otherwise.
    """
    options, notes = {str(key): str(value) for key, value in given.items()}, []
    if any(
        "Quantize" in name or name.startswith("QLinear") or name.endswith("Integer") for name in operators
    ):
        options.setdefault("session.x64quantprecision", "1")
        if "graph_optimization_level" not in options and "QuantizeLinear" in operators:
            options["graph_optimization_level"] = "disable"
            notes.append("quantized model: the reference is taken without graph optimisation")
    level = options.setdefault("graph_optimization_level", "all")
    if level not in LEVELS:
        raise SuiteError(f"session: graph_optimization_level {level!r}: choose from {', '.join(LEVELS)}")
    return options, notes


class Runner:
    """A loaded model.

    `model` is a file, or the bytes of a model whose external data (if any)
    lies beside `beside`.
    """

    def __init__(self, model: Path | bytes, options: Mapping[str, str], *, threads: int = 1) -> None:
        """Load the model.

        More than one thread changes the order of sums, and so is for timing only.

        Raises:
            Refusal: onnxruntime does not load it.
            Unsupported: an output is no tensor of numbers.
        """
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads, settings.inter_op_num_threads = threads, 1
        settings.log_severity_level = _FATAL_ONLY
        for key, value in options.items():
            if key == "graph_optimization_level":
                settings.graph_optimization_level = LEVELS[value]
            else:
                settings.add_session_config_entry(key, value)
        source = model if isinstance(model, bytes) else str(model)
        try:
            self._session = onnxruntime.InferenceSession(source, settings, providers=["CPUExecutionProvider"])
        except Exception as error:  # its exceptions have no common base but Exception
            raise Refusal(str(error)) from None
        self.inputs = tuple(port.name for port in self._session.get_inputs())
        self.outputs = tuple(port.name for port in self._session.get_outputs())
        for port in self._session.get_outputs():
            if not port.type.startswith("tensor(") or "string" in port.type:
                raise Unsupported(f"output {port.name!r} is of type {port.type}, not a tensor of numbers")

    def run(self, feeds: Mapping[str, Array]) -> list[Array]:
        """The outputs in the order of the model's.

        Raises:
            Refusal: onnxruntime does not run it.
        """
        results = self.prepared(feeds)()
        return [_array(name, result) for name, result in zip(self.outputs, results, strict=True)]

    def prepared(self, feeds: Mapping[str, Array]) -> Callable[[], Sequence[Any]]:
        """One invocation whose inputs are onnxruntime's own already; it may be called again and again."""
        values = {name: _value(array) for name, array in feeds.items() if name in self.inputs}

        def invoke() -> Sequence[Any]:
            try:
                results: Sequence[Any] = self._session.run_with_ort_values(None, values)
            except Exception as error:
                raise Refusal(str(error)) from None
            return results

        return invoke


def _value(array: Array) -> Any:
    if array.dtype.name in tensors.IREE_RAW:
        bits = array.view(np.dtype(f"u{array.dtype.itemsize}"))
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(bits, kind)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _array(name: str, value: Any) -> Array:
    if not value.is_tensor():
        raise Unsupported(f"output {name!r} is of type {value.data_type()}, not a tensor of numbers")
    dtype = onnx.helper.tensor_dtype_to_np_dtype(value.element_type())
    if dtype.name not in tensors.known():
        raise Unsupported(f"output {name!r} has element type {dtype.name}")
    if dtype.name not in tensors.IREE_RAW:
        plain: Array = value.numpy()
        return plain
    # OrtValue.numpy() refuses bfloat16 (onnxruntime 1.32): copy its bytes.
    shape: Sequence[int] = value.shape()
    raw = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(raw, dtype=dtype).reshape(shape)
