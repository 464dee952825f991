"""Outputs whose elements have no fixed place: indices that may tie, rows that are a set. Pure numpy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onnx_models.tensors import Array

MATCH_LIMIT = 20_000
"""Rows beyond which no partner is searched for: the search is quadratic."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """One output of a group of rows, and how far each of its elements may be off."""

    expected: Array
    found: Array
    slack: float


def tied(expected: Array, found: Array, scores: Array, *, axis: int, keepdims: bool, slack: float) -> Array:
    """Where two arrays of indices point to scores that are equal within `slack`.

    Indices out of range, and those that occur twice along the axis, tie with nothing.

    Args:
        expected: indices into `scores` along `axis`.
        found: indices of the same shape.
        scores: what was sorted or maximised.
        axis: the axis that was.
        keepdims: whether the indices still have that axis.
        slack: absolute difference of two scores that counts as a tie.
    """
    wanted, given = (a if keepdims else np.expand_dims(a, axis) for a in (expected, found))
    inside = (given >= 0) & (given < scores.shape[axis])
    safe = np.where(inside, given, 0)
    gap = np.abs(
        np.take_along_axis(scores, safe, axis).astype(np.float64)
        - np.take_along_axis(scores, wanted, axis).astype(np.float64)
    )
    ordered = np.sort(given, axis=axis)
    twice = (np.diff(ordered, axis=axis) == 0).any(axis=axis, keepdims=True)
    equal: Array = (given == wanted) | (inside & (gap <= slack) & ~twice)
    return equal if keepdims else np.squeeze(equal, axis)


def row_axis(array: Array) -> int:
    """The axis along which the rows of a detection output lie: the first that is not a batch of one."""
    return 1 if array.ndim > 1 and array.shape[0] == 1 else 0


def partners(columns: Sequence[Column]) -> Array | None:
    """For each expected row, the found row that matches it in every column; None when one has none.

    Each found row is used once. A row's own place is preferred, then the nearest.

    Args:
        columns: outputs of the same number of rows, which move together.
    """
    wanted = np.concatenate([_rows(column.expected) for column in columns], axis=1)
    given = np.concatenate([_rows(column.found) for column in columns], axis=1)
    slack = np.concatenate([np.full(_rows(column.expected).shape[1], column.slack) for column in columns])
    free = np.ones(len(given), dtype=bool)
    chosen = np.full(len(wanted), -1)
    at_home = _apart(wanted, given, slack) <= 1
    chosen[at_home] = np.flatnonzero(at_home)
    free[at_home] = False
    if len(wanted) > MATCH_LIMIT and free.any():
        return None
    for row in np.flatnonzero(~at_home):
        others = np.flatnonzero(free)
        distance = _apart(wanted[row], given[others], slack)
        if not others.size or not distance.min() <= 1:
            return None
        chosen[row] = others[int(np.argmin(distance))]
        free[chosen[row]] = False
    return chosen


def _rows(array: Array) -> Array:
    moved = np.moveaxis(array, row_axis(array), 0)
    return moved.reshape(moved.shape[0], -1).astype(np.float64)


def _apart(wanted: Array, given: Array, slack: Array) -> Array:
    """The largest difference of each row in units of the slack; 0 where equal, NaN and Inf included."""
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio = np.abs(wanted - given) / slack
    same = (wanted == given) | (np.isnan(wanted) & np.isnan(given))
    ratio = np.where(same, 0.0, np.where(np.isnan(ratio), np.inf, ratio))
    worst: Array = ratio.max(axis=-1, initial=0.0)
    return worst
