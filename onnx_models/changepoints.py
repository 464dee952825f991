"""Where a series of measurements changed for good, told from noise.

A step counts when the medians before and after differ by more than 3 MAD (median absolute
deviation, scaled to a normal distribution's standard deviation) of the runs around it, by more
than a share that is worth a look, and by a robust t statistic that scanning a series of noise
does not reach. Binary segmentation finds several (Killick et al., PELT, 2012, names the family).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

LEAST_BEFORE, LEAST_AFTER = 5, 3
"""Runs on either side of a step; fewer are told from noise by nobody."""

WINDOW = 20
"""Runs on either side that are looked at: what lies further back had other reasons."""

DEVIATIONS = 3.0
T_LIMIT = 5.5
LEAST_SHARE = 0.03


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A lasting change: the index of the first value after it, and the medians on either side."""

    index: int
    before: float
    after: float

    @property
    def share(self) -> float:
        """The change relative to before."""
        return self.after / self.before - 1.0 if self.before else math.inf


def scaled_mad(values: Sequence[float], centre: float | None = None) -> float:
    """Median absolute deviation x 1.4826: the standard deviation, where the values are normal."""
    middle = median(values) if centre is None else centre
    return 1.4826 * median(abs(value - middle) for value in values)


def steps(values: Sequence[float]) -> tuple[Step, ...]:
    """The steps of a series in order, none when it is noise.

    Args:
        values: measurements in order of time, all finite.
    """
    return tuple(sorted(_between(values, 0, len(values)), key=lambda step: step.index))


def stepping(series: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Which rows `steps` finds a step in, for many series of one length at once.

    Args:
        series: a row per series, all finite.
    """
    count, length = series.shape
    found = np.zeros(count, np.bool_)
    middles: dict[tuple[int, int], NDArray[np.float64]] = {}

    def middle(start: int, end: int) -> NDArray[np.float64]:
        if (start, end) not in middles:
            middles[start, end] = _medians(series[:, start:end])
        return middles[start, end]

    for index in range(LEAST_BEFORE, length - LEAST_AFTER + 1):
        start, end = max(0, index - WINDOW), min(length, index + WINDOW)
        before, after = middle(start, index), middle(index, end)
        distance = np.abs(after - before)
        rows = np.flatnonzero((distance > LEAST_SHARE * np.abs(before)) & ~found)
        residuals = series[rows, start:end].copy()
        residuals[:, : index - start] -= before[rows, None]
        residuals[:, index - start :] -= after[rows, None]
        noise = np.maximum(1.4826 * _medians(np.abs(residuals)), 0.002 * np.abs(before[rows]))
        share = math.sqrt(1 / (index - start) + 1 / (end - index))
        # A product, not a quotient: a series that is 0 before has no noise at all.
        strong = (distance[rows] > DEVIATIONS * noise) & (distance[rows] > T_LIMIT * noise * share)
        found[rows[strong]] = True
    return found


def _medians(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    """The median of each row, in half the time of numpy.median, which looks for NaN too."""
    upper = rows.shape[1] // 2
    if rows.shape[1] % 2:
        return np.partition(rows, upper, axis=1)[:, upper]
    halves = np.partition(rows, (upper - 1, upper), axis=1)
    return (halves[:, upper - 1] + halves[:, upper]) / 2


def _between(values: Sequence[float], start: int, end: int) -> list[Step]:
    """The steps of a part: of the places where there may be one, that with the least left unexplained."""
    best: tuple[float, Step] | None = None
    for index in range(start + LEAST_BEFORE, end - LEAST_AFTER + 1):
        before, after = values[max(start, index - WINDOW) : index], values[index : min(end, index + WINDOW)]
        step = Step(index=index, before=median(before), after=median(after))
        residuals = [value - step.before for value in before] + [value - step.after for value in after]
        if _exceeds(step, residuals, len(before), len(after)):
            # By its t a split two runs too early wins: medians do not mind, and it has more runs.
            left = fmean(map(abs, residuals))
            if best is None or left < best[0]:
                best = left, step
    if best is None:
        return []
    at = best[1].index
    return [*_between(values, start, at), best[1], *_between(values, at, end)]


def _exceeds(step: Step, residuals: Sequence[float], before: int, after: int) -> bool:
    """Whether a step is more than noise; `residuals` are what the medians on its sides leave."""
    distance = abs(step.after - step.before)
    if distance <= LEAST_SHARE * abs(step.before):
        return False
    # A floor: a few values that happen to agree say little of the noise.
    noise = max(scaled_mad(residuals, 0.0), 0.002 * abs(step.before))
    t_limit = T_LIMIT * noise * math.sqrt(1 / before + 1 / after)
    # Products, not quotients: a series that is 0 before has no noise at all.
    return distance > DEVIATIONS * noise and distance > t_limit
