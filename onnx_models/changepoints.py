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
from statistics import median

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


def _between(values: Sequence[float], start: int, end: int) -> list[Step]:
    best: tuple[float, Step] | None = None
    for index in range(start + LEAST_BEFORE, end - LEAST_AFTER + 1):
        before, after = values[max(start, index - WINDOW) : index], values[index : min(end, index + WINDOW)]
        step = Step(index=index, before=median(before), after=median(after))
        strength = _strength(step, before, after)
        if strength and (best is None or strength > best[0]):
            best = strength, step
    if best is None:
        return []
    at = best[1].index
    return [*_between(values, start, at), best[1], *_between(values, at, end)]


def _strength(step: Step, before: Sequence[float], after: Sequence[float]) -> float:
    """The t statistic of a step, 0 when it is none."""
    distance = abs(step.after - step.before)
    if distance <= LEAST_SHARE * abs(step.before):
        return 0.0
    residuals = [value - step.before for value in before] + [value - step.after for value in after]
    # A floor: a few values that happen to agree say little of the noise.
    noise = max(scaled_mad(residuals, 0.0), 0.002 * abs(step.before))
    t = distance / (noise * math.sqrt(1 / len(before) + 1 / len(after)))
    return t if distance > DEVIATIONS * noise and t > T_LIMIT else 0.0
