"""How long one invocation takes: measured values as a number with its noise, and when two differ.

Pure: what is run, and how, is said in `benchmark`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from statistics import median
from typing import Any

SPREADS = 3.0
"""MADs beyond which two medians differ."""

NOISE = 0.05
"""Share of a latency that is noise in any case: what differs from one run to the next, such as the clock
of the processor, is the same for all repetitions of one, and so not in their MAD."""

RESOLUTION = 2e-6
"""Seconds that are noise in any case: less than it takes to wake a worker."""

_UNITS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0}


class UnreadableResult(Exception):
    """A tool's result that holds no measurement; the text says what is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetitions:
    """Seconds per invocation, one value for each repetition, and the invocations that they stand for."""

    seconds: tuple[float, ...]
    invocations: int

    def __add__(self, other: Repetitions) -> Repetitions:
        return Repetitions(
            seconds=self.seconds + other.seconds, invocations=self.invocations + other.invocations
        )

    @property
    def total(self) -> float:
        """Seconds of all invocations together."""
        return sum(self.seconds) / len(self.seconds) * self.invocations

    def to_json(self) -> dict[str, Any]:
        """Median, median absolute deviation, and how many values they are of, in seconds."""
        middle = median(self.seconds)
        return {
            "median_s": float(f"{middle:.6g}"),
            "mad_s": float(f"{median(abs(each - middle) for each in self.seconds):.6g}"),
            "repetitions": len(self.seconds),
            "invocations": self.invocations,
        }


def parse_google_benchmark(text: str, function: str) -> Repetitions:
    """The repetitions in the JSON of `iree-benchmark-module` (google benchmark, its schema 1).

    Args:
        text: the file that `--benchmark_out` names.
        function: what was measured; a result of anything else is refused.

    Raises:
        UnreadableResult: it is no such file, or its numbers are none.
    """
    try:
        rows = json.loads(text)["benchmarks"]
        found = [row for row in rows if row.get("run_type") == "iteration"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise UnreadableResult("its result is no JSON of google benchmark") from None
    if not found:
        raise UnreadableResult("its result holds no repetition")
    measured = [_repetition(row, function) for row in found]
    return Repetitions(
        seconds=tuple(seconds for seconds, _ in measured), invocations=sum(count for _, count in measured)
    )


def _repetition(row: Mapping[str, Any], function: str) -> tuple[float, int]:
    if row.get("error_occurred"):
        raise UnreadableResult(str(row.get("error_message") or "it failed without a message"))
    name, unit = str(row.get("name")), _UNITS.get(str(row.get("time_unit")))
    if name.split("/")[0] != f"BM_{function}".split("/")[0]:
        raise UnreadableResult(f"its result is of {name!r}, not of {function!r}")
    time, count = row.get("real_time"), row.get("iterations")
    if unit is None or not _positive(time) or not _positive(count):
        raise UnreadableResult(f"its result says {time!r} {row.get('time_unit')!r} of {count!r} invocations")
    assert isinstance(time, int | float)
    assert isinstance(count, int | float)
    return time * unit, int(count)


def _positive(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )


def parse_child(text: str) -> Repetitions:
    """The repetitions in the answer of the onnxruntime child.

    Raises:
        UnreadableResult: onnxruntime refused, or the answer is none.
    """
    try:
        row = json.loads(text)
        error, seconds, count = row.get("error"), row.get("seconds", ()), row.get("invocations")
    except (ValueError, AttributeError, RecursionError):
        raise UnreadableResult("its result is no JSON object") from None
    if error is not None:
        raise UnreadableResult(str(error))
    if not isinstance(seconds, list) or not seconds or not all(map(_positive, [*seconds, count])):
        raise UnreadableResult(f"its result says {str(seconds)[:100]} of {count!r} invocations")
    return Repetitions(seconds=tuple(map(float, seconds)), invocations=int(count))


def listed(cases: Iterable[Mapping[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Case, latency, onnxruntime's, and the ratio, of those that were measured, the largest ratio first."""
    found = []
    for case in cases:
        iree, peer = (case.get("benchmark", {}).get(side) or {} for side in ("iree", "onnxruntime"))
        if "median_s" in iree:
            ratio = case["benchmark"].get("ratio")
            other = time_text(peer["median_s"]) if "median_s" in peer else "-"
            words = (str(case["id"]), time_text(iree["median_s"]), other, f"{ratio:.3g}" if ratio else "-")
            found.append((ratio or 0.0, words))
    return [words for _, words in sorted(found, key=lambda each: (-each[0], each[1]))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shift:
    """IREE's latency before and after, in seconds, against what may be noise.

    `noise` is a share (0.05: 5 %), `control` the factor by which onnxruntime's own latency moved.
    """

    before: float
    after: float
    noise: float
    control: float = 1.0

    @property
    def kind(self) -> str:
        """`slower`, `faster`, or empty where the change may be noise or the machine's.

        It counts when IREE's latency itself moved by more than noise, and also when held against
        onnxruntime's, which was measured in turn with it: what moved both was the machine.
        """
        if abs(self.after - self.before) <= RESOLUTION:
            return ""
        factor, limit = self.after / self.before, 1 + self.noise
        smallest = min(factor, factor / self.control)
        largest = max(factor, factor / self.control)
        return "slower" if smallest > limit else "faster" if largest < 1 / limit else ""

    def __str__(self) -> str:
        beside = "" if self.control == 1.0 else f", onnxruntime {100 * (self.control - 1):+.1f} %"
        return (
            f"one invocation took {time_text(self.before)}, now {time_text(self.after)} "
            f"({100 * (self.after / self.before - 1):+.1f} %{beside}, noise {100 * self.noise:.1f} %)"
        )


def shift(before: Mapping[str, Any], after: Mapping[str, Any]) -> Shift | None:
    """Hold two cases' `benchmark` against each other; None where they are not of one kind.

    Both must come from one machine (fingerprint), which only the caller knows. Noise is the larger of
    5 % and three times the largest MAD, as a share of its median.
    """
    if not all(_positive(each.get("iree", {}).get("median_s")) for each in (before, after)):
        return None
    if any(before.get(key) != after.get(key) for key in ("set", "threads")):
        return None
    peers = [each.get("onnxruntime", {}) for each in (before, after)]
    both = all(_positive(peer.get("median_s")) for peer in peers)
    measured = [before["iree"], after["iree"], *(peers if both else ())]
    spread = max(float(each.get("mad_s") or 0.0) / each["median_s"] for each in measured)
    return Shift(
        before=before["iree"]["median_s"],
        after=after["iree"]["median_s"],
        noise=max(NOISE, SPREADS * spread),
        control=peers[1]["median_s"] / peers[0]["median_s"] if both else 1.0,
    )


def time_text(seconds: float) -> str:
    """`1.23 ms`: three digits with a unit that fits."""
    for unit in ("s", "ms", "us"):
        if seconds >= _UNITS[unit]:
            return f"{seconds / _UNITS[unit]:.3g} {unit}"
    return f"{seconds / _UNITS['ns']:.3g} ns"
