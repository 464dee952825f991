"""Time, memory and size now, and where they changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from onnx_models.changepoints import LEAST_AFTER, LEAST_BEFORE, Step, steps
from onnx_models.dashboard import charts
from onnx_models.dashboard.render import Site, model_page, seconds, size
from onnx_models.dashboard.site import Page

RECENT = 60
"""Runs in which changes are looked for: older ones have been seen, and a year of all series takes minutes."""

LISTED, CHARTED = 1500, 8

METRICS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "compile_s": ("compile time", seconds),
    "run_s": ("run time", seconds),
    "latency_s": ("latency", seconds),
    "peak_bytes": ("memory", size),
    "vmfb_bytes": ("module size", size),
}

_BLOCK = 6


def pages(site: Site) -> Iterator[Page]:
    """`performance.html`."""
    found, longest = changes(site)
    timed = [each for each in site.snapshot.subjects if each.now.numbers.get("compile_s")]
    timed.sort(key=lambda each: -(each.now.numbers["compile_s"] or 0.0))
    least = LEAST_BEFORE + LEAST_AFTER
    yield site.page(
        "performance.html",
        "performance.html",
        changes=found,
        charts=[_chart(each) for each in found[:CHARTED]],
        rows=timed[:LISTED],
        more=max(0, len(timed) - LISTED),
        devices=list(site.snapshot.devices),
        least=least,
        longest=longest,
        enough=longest >= least,
    )


def changes(site: Site) -> tuple[list[dict[str, Any]], int]:
    """The steps of all series in the recent runs, the largest first, and the length of the longest series."""
    found: list[dict[str, Any]] = []
    longest = 0
    for metric in METRICS:
        for (case, model), values in _suspects(site, metric).items():
            longest = max(longest, len(values))
            for step in steps([value for _, value in values]):
                found.append(_change(case, model, metric, values, step))
    longest = max(longest, _longest(site))
    found.sort(key=lambda each: (-abs(each["percent"]), each["id"]))
    return found, longest


def _change(
    case: str, model: str, metric: str, values: list[tuple[str, float]], step: Step
) -> dict[str, Any]:
    words, show = METRICS[metric]
    return {
        "id": case,
        "page": model_page(model),
        "metric": words,
        "since": values[step.index][0],
        "before": show(step.before),
        "after": show(step.after),
        "percent": 100 * step.share,
        "values": values,
        "unit": "seconds" if show is seconds else "bytes",
    }


def _longest(site: Site) -> int:
    rows = site.history.rows(
        """SELECT coalesce(max(n), 0) FROM (SELECT count(*) AS n FROM result JOIN run ON run.key = result.run
           WHERE fresh AND compile_s IS NOT NULL AND run.position > (SELECT max(position) FROM run) - ?
           GROUP BY subject, result.machine)""",
        [RECENT],
    )
    return int(rows[0][0])


def _suspects(site: Site, metric: str) -> dict[tuple[str, str], list[tuple[str, float]]]:
    """The series in which a block of runs differs from another by more than their noise; `steps` decides."""
    rows = site.history.rows(
        f"""WITH recent AS (
                SELECT result.subject, run.position AS place, run.release, result.machine,
                       {metric}::DOUBLE AS value
                FROM result JOIN run ON run.key = result.run
                WHERE fresh AND {metric} > 0 AND run.position > (SELECT max(position) FROM run) - ?),
            newest AS (SELECT subject, arg_max(machine, place) AS machine FROM recent GROUP BY subject),
            mine AS (SELECT recent.* FROM recent JOIN newest USING (subject, machine)),
            block AS (SELECT subject, place // {_BLOCK} AS block, median(value) AS middle, mad(value) AS noise
                      FROM mine GROUP BY ALL HAVING count(*) >= {LEAST_AFTER}),
            suspect AS (SELECT subject FROM block GROUP BY subject
                        HAVING max(middle) - min(middle) > greatest(0.03 * min(middle), 2 * median(noise)))
            SELECT subject.id, subject.collection || '/' || subject.model, mine.release, mine.value
            FROM mine JOIN suspect USING (subject) JOIN subject ON subject.key = mine.subject
            ORDER BY subject.key, mine.place""",
        [RECENT],
    )
    found: dict[tuple[str, str], list[tuple[str, float]]] = defaultdict(list)
    for case, model, release, value in rows:
        found[case, model].append((release, value))
    return found


def _chart(change: dict[str, Any]) -> str:
    """The series with all its steps; runs of one release are told apart by their number."""
    seen: dict[str, int] = defaultdict(int)
    rows = []
    for release, value in change["values"]:
        seen[release] += 1
        name = release if seen[release] == 1 else f"{release} #{seen[release]}"
        rows.append({"run": name, "value": value, "device": ""})
    marks = [
        {"run": rows[step.index]["run"], "label": "change"} for step in steps([r["value"] for r in rows])
    ]
    return charts.series(
        rows,
        marks,
        unit=f"{change['metric']}, {change['unit']}",
        title=f"{change['id']}: {change['metric']}",
        description=f"From {change['before']} to {change['after']} since {change['since']}.",
    )
