"""How far one array is from another, measured in float64, a slice at a time.

Two arrays of any size are measured in a few megabytes beyond their own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx_models.tensors import Array
from onnx_models.tolerance import EPS, TINY

SLICE = 1 << 19
"""Elements converted to float64 at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """Differences of the elements that are finite on both sides; the rest is counted as places.

    `places` names the first kind of non-finite value (`NaN`, `+Inf`, `-Inf`)
    that is not at the same places, with its first index; None when all agree.
    `scale` and `largest` are the rms and the largest magnitude of the expected
    finite values. `p99_ulp` counts units in the last place of each element's
    own magnitude.
    """

    count: int
    finite: int
    rmse: float
    max_abs: float
    max_rel: float
    worst: tuple[int, ...]
    worst_values: tuple[float, float]
    scale: float
    largest: float
    cosine: float
    snr_db: float
    p99_ulp: float
    places: tuple[str, tuple[int, ...]] | None = None


def scale_of(array: Array) -> tuple[float, float]:
    """Root mean square and largest magnitude of the finite values; zeros when there are none."""
    peak, count = 0.0, 0
    for part in _slices(array):
        finite = part[np.isfinite(part)]
        if finite.size:
            peak, count = max(peak, float(np.max(np.abs(finite)))), count + finite.size
    if not peak:
        return 0.0, 0.0
    total = sum(float(np.sum(np.square(part[np.isfinite(part)] / peak))) for part in _slices(array))
    return peak * math.sqrt(total / count), peak


def measure(expected: Array, found: Array, dtype: str, precise: Array | None = None) -> Errors:
    """Measure `found` against `expected`, two arrays of one shape.

    Args:
        expected: the reference at its own precision; its NaN and Inf are the places to keep.
        found: what is judged.
        dtype: element type whose eps gives the ulp.
        precise: better values of `expected`, used wherever both are finite.
    """
    total = _Sums()
    ulps = np.zeros(expected.size, dtype=np.float32)
    offset = 0
    shape = expected.shape
    for want, best, got in zip(
        _slices(expected), _slices(expected if precise is None else precise), _slices(found), strict=True
    ):
        want = np.where(np.isfinite(want) & np.isfinite(best), best, want)
        ulps[offset : offset + want.size] = total.add(want, got, offset, EPS[dtype], TINY.get(dtype, 0.0))
        offset += want.size
    return total.errors(shape, ulps)


def _slices(array: Array) -> Iterator[np.ndarray[Any, np.dtype[np.float64]]]:
    flat = array.reshape(-1)
    for start in range(0, flat.size, SLICE):
        yield flat[start : start + SLICE].astype(np.float64)


class _Sums:
    """Running totals of `measure`."""

    def __init__(self) -> None:
        self.count = self.finite = 0
        self.square = self.expected_square = self.found_square = self.product = 0.0
        self.max_abs, self.max_rel, self.largest = -1.0, 0.0, 0.0
        self.worst_at, self.worst_values = 0, (0.0, 0.0)
        self.places: tuple[str, int] | None = None

    @np.errstate(over="ignore", invalid="ignore")
    def add(self, want: Array, got: Array, offset: int, eps: float, tiny: float) -> Array:
        self.count += want.size
        self._check_places(want, got, offset)
        both = np.isfinite(want) & np.isfinite(got)
        a, b = np.where(both, want, 0.0), np.where(both, got, 0.0)
        self.finite += int(both.sum())
        magnitude, error = np.abs(a), np.abs(a - b)
        self.square += float(np.sum(np.square(error)))
        self.expected_square += float(np.sum(np.square(a)))
        self.found_square += float(np.sum(np.square(b)))
        self.product += float(np.sum(a * b))
        at = int(np.argmax(error))
        if error[at] > self.max_abs:
            self.max_abs, self.worst_at = float(error[at]), offset + at
            self.worst_values = (float(want[at]), float(got[at]))
        self.largest = max(self.largest, float(magnitude.max()))
        self.max_rel = max(self.max_rel, float(np.max(error / np.maximum(magnitude, tiny or 1e-300))))
        spacing = eps * np.exp2(np.floor(np.log2(np.maximum(magnitude, tiny or 1e-300))))
        ulps: Array = np.minimum(error / spacing, 3e38)
        return ulps

    def _check_places(self, want: Array, got: Array, offset: int) -> None:
        if self.places is not None:
            return
        for name, a, b in (
            ("NaN", np.isnan(want), np.isnan(got)),
            ("+Inf", np.isposinf(want), np.isposinf(got)),
            ("-Inf", np.isneginf(want), np.isneginf(got)),
        ):
            if (differ := a != b).any():
                self.places = (name, offset + int(np.argmax(differ)))
                return

    def errors(self, shape: tuple[int, ...], ulps: Array) -> Errors:
        finite = max(self.finite, 1)
        # Squares beyond 1e308 overflow; the rmse is then Inf, which no bound admits, unless all is equal.
        if self.max_abs == 0.0:
            self.square = 0.0
        norm = math.sqrt(self.expected_square) * math.sqrt(self.found_square)
        return Errors(
            count=self.count,
            finite=self.finite,
            rmse=math.sqrt(self.square / finite),
            max_abs=max(self.max_abs, 0.0),
            max_rel=self.max_rel,
            worst=_unravel(self.worst_at, shape),
            worst_values=self.worst_values,
            scale=math.sqrt(self.expected_square / finite),
            largest=self.largest,
            cosine=self.product / norm if norm else float(self.expected_square == self.found_square),
            snr_db=10 * math.log10(self.expected_square / self.square)
            if self.square and self.expected_square
            else math.inf * (1 if not self.square else -1),
            p99_ulp=_percentile_99(ulps),
            places=None if self.places is None else (self.places[0], _unravel(self.places[1], shape)),
        )


def _unravel(at: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    if not shape or 0 in shape:
        return ()
    return tuple(int(i) for i in np.unravel_index(at, shape))


def _percentile_99(values: Array) -> float:
    if not values.size:
        return 0.0
    rank = min(values.size - 1, math.ceil(0.99 * values.size) - 1)
    values.partition(rank)
    return float(values[rank])


def difference(expected: Array, found: Array) -> dict[str, Any]:
    """`noise.Difference` of two evaluations of one output, as plain data."""
    if expected.shape != found.shape:
        return {"rmse": 0.0, "worst": 0.0, "different": int(expected.size), "structure": True}
    a, b = real(expected), real(found)
    errors = measure(a, b, a.dtype.name if a.dtype.name in EPS else "float64")
    different = int(np.count_nonzero(expected != found))
    return {
        "rmse": min(errors.rmse, 1e300),
        "worst": min(errors.max_abs, 1e300),
        "different": different,
        "structure": errors.places is not None,
    }


def real(array: Array) -> Array:
    """A complex array as pairs of its parts along a new last axis; any other as it is."""
    if array.dtype.kind != "c":
        return array
    return array.reshape(-1).view(array.real.dtype).reshape((*array.shape, 2))


def tiny(dtype: str) -> float:
    """The smallest normal number of a float type, 0 where none is known."""
    return TINY.get(dtype, 0.0)
