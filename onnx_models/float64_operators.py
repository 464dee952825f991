"""Operators for onnx's reference evaluator that are fast enough, or right, where its own are not (onnx 1.23).

Its Conv, ConvTranspose and pooling take minutes on a real model. Its
BatchNormalization of opsets 9 to 13 takes the statistics of the batch, its LRN
is one channel off, its GlobalMaxPool reduces the channels too. All work at the
precision of their operands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx.reference.op_run import OpRun
from onnx.reference.ops.op_conv import Conv as _Conv
from onnx.reference.ops.op_conv_transpose import ConvTranspose as _ConvTranspose
from onnx.reference.ops.op_max_pool import MaxPool as _MaxPool

from onnx_models.tensors import Array


class Conv(_Conv):
    """ONNX Conv of any rank, groups and dilation, with explicit or automatic padding."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        rank, kernel, groups = x.ndim - 2, w.shape[2:], group or 1
        steps, gaps = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
        spans = tuple((size - 1) * gap + 1 for size, gap in zip(kernel, gaps, strict=True))
        edges = _padding(x.shape[2:], spans, steps, auto_pad, pads)
        padded = np.pad(x, [(0, 0), (0, 0), *edges])
        out = _out(padded.shape[2:], spans, steps)
        weights = w.reshape(groups, w.shape[0] // groups, w.shape[1], *kernel)
        total = np.zeros((x.shape[0], groups, w.shape[0] // groups, int(np.prod(out))), x.dtype)
        for at, window in _windows(kernel, gaps, steps, out):
            part = padded[(slice(None), slice(None), *window)]
            columns = part.reshape(x.shape[0], groups, w.shape[1], -1)
            total += _tap(weights, at) @ columns
        result = total.reshape(x.shape[0], w.shape[0], *out)
        return (result if b is None else result + b.reshape(1, -1, *(1,) * rank),)


class ConvTranspose(_ConvTranspose):
    """ONNX ConvTranspose with explicit padding; the base class has the rest."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        w: Array,
        b: Array | None = None,
        auto_pad: str | None = None,
        dilations: Sequence[int] | None = None,
        group: int | None = None,
        kernel_shape: Sequence[int] | None = None,
        output_padding: Sequence[int] | None = None,
        output_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> Any:
        if output_shape or auto_pad not in (None, "NOTSET"):
            return super()._run(  # type: ignore[no-untyped-call]
                x, w, b, auto_pad, dilations, group, kernel_shape, output_padding, output_shape, pads, strides
            )
        rank, kernel, groups = x.ndim - 2, w.shape[2:], group or 1
        steps, gaps = tuple(strides or (1,) * rank), tuple(dilations or (1,) * rank)
        extra, edges = tuple(output_padding or (0,) * rank), tuple(pads or (0,) * 2 * rank)
        full = tuple(
            (size - 1) * step + (span - 1) * gap + 1 + more
            for size, step, span, gap, more in zip(x.shape[2:], steps, kernel, gaps, extra, strict=True)
        )
        weights = w.reshape(groups, w.shape[0] // groups, w.shape[1], *kernel)
        columns = x.reshape(x.shape[0], groups, w.shape[0] // groups, -1)
        total = np.zeros((x.shape[0], groups * w.shape[1], *full), x.dtype)
        for at, window in _windows(kernel, gaps, steps, x.shape[2:]):
            part = np.swapaxes(_tap(weights, at), -1, -2) @ columns
            total[(slice(None), slice(None), *window)] += part.reshape(x.shape[0], -1, *x.shape[2:])
        inner = tuple(slice(edges[i], full[i] - edges[i + rank]) for i in range(rank))
        result = total[(slice(None), slice(None), *inner)]
        return (result if b is None else result + b.reshape(1, -1, *(1,) * rank),)


class MaxPool(_MaxPool):
    """ONNX MaxPool without indices and without ceil_mode; the base class has the rest."""

    op_domain = ""

    def _run(  # type: ignore[override]
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        storage_order: int | None = None,
        strides: Sequence[int] | None = None,
    ) -> Any:
        if ceil_mode or len(self.onnx_node.output) > 1 or x.dtype.kind != "f":
            return super()._run(  # type: ignore[no-untyped-call]
                x, auto_pad, ceil_mode, dilations, kernel_shape, pads, storage_order, strides
            )
        kernel = tuple(kernel_shape or ())
        steps, gaps = tuple(strides or (1,) * len(kernel)), tuple(dilations or (1,) * len(kernel))
        spans = tuple((size - 1) * gap + 1 for size, gap in zip(kernel, gaps, strict=True))
        edges = _padding(x.shape[2:], spans, steps, auto_pad, pads)
        padded = np.pad(x, [(0, 0), (0, 0), *edges], constant_values=-np.inf)
        out = _out(padded.shape[2:], spans, steps)
        result = np.full((*x.shape[:2], *out), -np.inf, x.dtype)
        for _, window in _windows(kernel, gaps, steps, out):
            np.maximum(result, padded[(slice(None), slice(None), *window)], out=result)
        return (result,)


class AveragePool(OpRun):
    """ONNX AveragePool without ceil_mode, whose edges the versions of ONNX define differently."""

    op_domain = ""

    def _run(
        self,
        x: Array,
        auto_pad: str | None = None,
        ceil_mode: int | None = None,
        count_include_pad: int | None = None,
        dilations: Sequence[int] | None = None,
        kernel_shape: Sequence[int] | None = None,
        pads: Sequence[int] | None = None,
        strides: Sequence[int] | None = None,
    ) -> tuple[Array]:
        if ceil_mode:
            raise NotImplementedError("AveragePool with ceil_mode")
        kernel = tuple(kernel_shape or ())
        steps, gaps = tuple(strides or (1,) * len(kernel)), tuple(dilations or (1,) * len(kernel))
        spans = tuple((size - 1) * gap + 1 for size, gap in zip(kernel, gaps, strict=True))
        edges = [(0, 0), (0, 0), *_padding(x.shape[2:], spans, steps, auto_pad, pads)]
        inside = np.pad(
            np.ones((1, 1, *x.shape[2:]), x.dtype), edges, constant_values=bool(count_include_pad)
        )
        padded = np.pad(x, edges)
        out = _out(padded.shape[2:], spans, steps)
        total, count = np.zeros((*x.shape[:2], *out), x.dtype), np.zeros((1, 1, *out), x.dtype)
        for _, window in _windows(kernel, gaps, steps, out):
            total += padded[(slice(None), slice(None), *window)]
            count += inside[(slice(None), slice(None), *window)]
        return (total / count,)


class BatchNormalization(OpRun):
    """ONNX BatchNormalization at inference."""

    op_domain = ""

    def _run(
        self, x: Array, scale: Array, bias: Array, mean: Array, var: Array, epsilon: float = 1e-5, **_: Any
    ) -> tuple[Array]:
        shape = (1, -1, *(1,) * (x.ndim - 2))
        factor = scale / np.sqrt(var + np.asarray(epsilon, var.dtype))
        result: Array = (x - mean.reshape(shape)) * factor.reshape(shape) + bias.reshape(shape)
        return (result.astype(x.dtype),)


class LRN(OpRun):
    """ONNX LRN: the window of channels reaches floor((size - 1) / 2) back and the rest ahead."""

    op_domain = ""

    def _run(
        self, x: Array, alpha: float = 1e-4, beta: float = 0.75, bias: float = 1.0, size: int = 1
    ) -> tuple[Array]:
        before, channels = (size - 1) // 2, x.shape[1]
        edges = [(0, 0), (before, size - 1 - before), *[(0, 0)] * (x.ndim - 2)]
        squares = np.pad(np.square(x), edges)
        total = sum(squares[:, i : i + channels] for i in range(size))
        result: Array = x / (bias + alpha / size * total) ** beta
        return (result.astype(x.dtype),)


class GlobalMaxPool(OpRun):
    """ONNX GlobalMaxPool."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


class Identity(OpRun):
    """ONNX Identity, without a copy: exporters put one behind every weight."""

    op_domain = ""

    def _run(self, x: Array) -> tuple[Array]:
        return (x,)


OPERATORS = [Conv, ConvTranspose, MaxPool, AveragePool, BatchNormalization, LRN, GlobalMaxPool, Identity]


def _tap(weights: Array, at: tuple[int, ...]) -> Array:
    """The matrices of one kernel offset: groups x outputs x inputs."""
    index: Any = (slice(None), slice(None), slice(None), *at)
    tap: Array = weights[index]
    return tap


def _windows(
    kernel: Sequence[int], gaps: Sequence[int], steps: Sequence[int], out: Sequence[int]
) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """For each offset in the kernel, the strided places that it meets."""
    for at in itertools.product(*map(range, kernel)):
        yield (
            at,
            tuple(
                slice(i * gap, i * gap + (size - 1) * step + 1, step)
                for i, gap, step, size in zip(at, gaps, steps, out, strict=True)
            ),
        )


def _out(padded: Sequence[int], spans: Sequence[int], steps: Sequence[int]) -> tuple[int, ...]:
    return tuple((size - span) // step + 1 for size, span, step in zip(padded, spans, steps, strict=True))


def _padding(
    sizes: Sequence[int],
    spans: Sequence[int],
    steps: Sequence[int],
    auto_pad: str | None,
    pads: Sequence[int] | None,
) -> list[tuple[int, int]]:
    rank = len(sizes)
    if auto_pad in (None, "", "NOTSET"):
        given = tuple(pads or (0,) * 2 * rank)
        return [(given[i], given[i + rank]) for i in range(rank)]
    if auto_pad == "VALID":
        return [(0, 0)] * rank
    edges = []
    for size, span, step in zip(sizes, spans, steps, strict=True):
        total = max((-(-size // step) - 1) * step + span - size, 0)
        small, large = total // 2, total - total // 2
        edges.append((small, large) if auto_pad == "SAME_UPPER" else (large, small))
    return edges
