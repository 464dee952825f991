"""The first page: how good is IREE on each device, and what changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onnx_models.dashboard import charts
from onnx_models.dashboard.render import Site
from onnx_models.dashboard.site import Page
from onnx_models.dashboard.trends import Point
from onnx_models.versions import version_key

LISTED = 40
"""Cases of each kind of change that the page shows; the feed and data/changes.json have all."""

SHOWN = 60
"""Rows of a trend's table."""

CHANGES = (
    ("broken", "Newly broken"),
    ("fixed", "Fixed"),
    ("changed", "Failing in another way"),
    ("missing", "Missing from the newest release"),
)


def pages(site: Site) -> Iterator[Page]:
    """`index.html`."""
    snapshot = site.snapshot
    changes = [
        (words, [each for each in snapshot.subjects if each.change == kind]) for kind, words in CHANGES
    ]
    yield site.page(
        "overview.html",
        "index.html",
        devices=list(snapshot.devices.values()),
        changes=changes,
        listed=LISTED,
        releases=_trend(snapshot.over_releases, by_release=True),
        runs=_trend(snapshot.over_runs, by_release=False),
    )


def _trend(points: Sequence[Point], *, by_release: bool) -> dict[str, Any]:
    """A chart and its table; no chart of a single point in time."""
    if by_release:
        ordered = sorted(points, key=lambda point: version_key(point.release))
    else:
        ordered = sorted(points, key=lambda point: point.started)
    table: dict[tuple[str, str], dict[str, Any]] = {}
    rows = []
    for point in ordered:
        rate = point.counts["passed"] / point.counts["total"] if point.counts["total"] else 0.0
        started = point.started.isoformat()
        key = ("", point.release) if by_release else (started, point.release)
        table.setdefault(key, {})[point.device] = {"rate": rate, "counts": point.counts}
        rows.append({"device": point.device, "rate": rate, "release": point.release, "started": started})
    svg = ""
    if len(table) > 1:
        svg = charts.trend(
            rows,
            x="release" if by_release else "started",
            ordinal=by_release,
            title="Pass rate by IREE release" if by_release else "Pass rate by run",
            description="One line per device; the numbers are in the table that follows.",
        )
    listed = list(reversed(table.items()))
    devices = sorted({point.device for point in points})
    return {"svg": svg, "rows": listed[:SHOWN], "devices": devices, "more": max(0, len(listed) - SHOWN)}
