"""Pass rates over runs and over releases: the points of the trends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from onnx_models.history import STATES, History
from onnx_models.versions import base_release, version_key

Tallies = Mapping[tuple[int, str], Mapping[str, int]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A device's numbers in one run or release, for the trends."""

    device: str
    run: int
    release: str
    started: datetime
    counts: Mapping[str, int]


def tally(history: History) -> dict[tuple[int, str], dict[str, int]]:
    """By run and device, how many cases are in each state, and `total`."""
    rows = history.rows(
        """SELECT run, device, state::TEXT, count(*) FROM result JOIN subject ON subject.key = result.subject
           GROUP BY ALL"""
    )
    found: dict[tuple[int, str], dict[str, int]] = defaultdict(lambda: dict.fromkeys((*STATES, "total"), 0))
    for run, device, state, number in rows:
        found[run, device][state] += number
        found[run, device]["total"] += number
    return dict(found)


def over_runs(
    device: str,
    tested: Sequence[Mapping[str, Any]],
    runs: Mapping[int, Mapping[str, Any]],
    tallies: Tallies,
) -> list[Point]:
    """A point per run, by date; runs that only fill in what an older release does are left out."""
    points: list[Point] = []
    known, catalogue = 0, ""
    for row in sorted(tested, key=lambda each: runs[each["run"]]["started"]):
        run = runs[row["run"]]
        counts = tallies.get((row["run"], device))
        if not run["trend"] or counts is None:
            continue
        known = max(known, counts["total"]) if run["catalogue"] == catalogue else counts["total"]
        catalogue = run["catalogue"]
        points.append(_point(device, run, counts, known))
    return points


def over_releases(
    device: str,
    tested: Sequence[Mapping[str, Any]],
    runs: Mapping[int, Mapping[str, Any]],
    tallies: Tallies,
) -> list[Point]:
    """A point per release, the newest full run of it; builds of one release in the making are one.

    What that run lacks of the cases of an earlier one, under the same catalogue, is missing.
    """
    chosen: dict[str, Mapping[str, Any]] = {}
    known: dict[str, int] = {}
    for row in tested:
        run, counts = runs[row["run"]], tallies.get((row["run"], device))
        if counts is None:
            continue
        line = base_release(run["release"])
        most, total = known.get(line, 0), counts["total"]
        # A later run of a few models, at somebody's desk, does not stand for the release.
        if total * 10 >= most * 9:
            same = line in chosen and chosen[line]["catalogue"] == run["catalogue"]
            chosen[line], known[line] = run, max(most, total) if same else total
    return [
        _point(device, chosen[line], tallies[chosen[line]["key"], device], known[line], line)
        for line in sorted(chosen, key=version_key)
    ]


def _point(
    device: str, run: Mapping[str, Any], counts: Mapping[str, int], known: int, release: str = ""
) -> Point:
    missing = max(0, known - counts["total"])
    whole = dict(counts) | {"missing": missing, "total": counts["total"] + missing}
    return Point(
        device=device,
        run=run["key"],
        release=release or run["release"],
        started=run["started"],
        counts=whole,
    )
