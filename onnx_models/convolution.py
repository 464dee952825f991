"""Convolutions for onnx's reference evaluator that finish: its own take minutes on a real model (onnx 1.23).

One matrix product per kernel offset, at the precision of the operands.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from onnx.reference.ops.op_conv import Conv as _Conv
from onnx.reference.ops.op_conv_transpose import ConvTranspose as _ConvTranspose

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
        out = tuple(
            (size - span) // step + 1 for size, span, step in zip(padded.shape[2:], spans, steps, strict=True)
        )
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


OPERATORS = [Conv, ConvTranspose]


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
