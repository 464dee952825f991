"""Time, memory and size now, and where they changed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_models.changepoints import LEAST_AFTER, LEAST_BEFORE, Step, stepping, steps
from onnx_models.dashboard import charts
from onnx_models.dashboard.render import Site, model_page, seconds, size
from onnx_models.dashboard.site import Page
from onnx_models.dashboard.snapshot import Subject

RECENT = 40
"""Runs in which changes are looked for: older ones have been seen, and a year of all series takes minutes."""

LISTED, CHARTED = 1500, 4

METRICS: dict[str, tuple[str, Callable[[float | None], str]]] = {
    "compile_s": ("compile time", seconds),
    "run_s": ("run time", seconds),
    "latency_s": ("latency", seconds),
    "peak_bytes": ("memory", size),
    "vmfb_bytes": ("module size", size),
}

ALWAYS_NEW = ("latency_s",)
"""What `--benchmark` measures in each run, whatever stages it took over from an earlier one."""

Numbers = NDArray[Any]

Table = Mapping[str, Numbers]


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
    runs = {run["position"]: run for run in site.snapshot.runs.values()}
    subjects = {each.key: each for each in site.snapshot.subjects}
    table = _measured(site)
    found: list[dict[str, Any]] = []
    longest = 0
    for metric in METRICS:
        for keys, places, values in _equally_long(table, metric):
            longest = max(longest, values.shape[1])
            for row in np.flatnonzero(stepping(values)):
                subject = subjects.get(int(keys[row]))
                if subject is not None:
                    series = [(runs[int(k)], float(v)) for k, v in zip(places[row], values[row], strict=True)]
                    found += [
                        _change(subject, metric, series, step) for step in steps([v for _, v in series])
                    ]
    found.sort(key=lambda each: (-abs(each["percent"]), each["id"], each["metric"], each["since"]))
    return found, longest


def _change(
    subject: Subject, metric: str, values: list[tuple[Mapping[str, Any], float]], step: Step
) -> dict[str, Any]:
    words, show = METRICS[metric]
    since = values[step.index][0]
    return {
        "id": subject.id,
        "page": model_page(subject.model_id),
        "metric": words,
        "since": f"{since['release']}, {since['started']:%Y-%m-%d}",
        "before": show(step.before),
        "after": show(step.after),
        "percent": 100 * step.share,
        "values": [(str(run["release"]), value) for run, value in values],
        "unit": "seconds" if show is seconds else "bytes",
    }


def _measured(site: Site) -> Table:
    """What was measured in the recent runs, each case on the machine that ran it last, by case and age.

    A stage that was not run again has its earlier time: no new measurement. A latency is always of its run.
    """
    new = {name: name if name in ALWAYS_NEW else f"CASE WHEN fresh THEN {name} END" for name in METRICS}
    columns = ", ".join(f"coalesce({value}, 0)::DOUBLE AS {name}" for name, value in new.items())
    return site.history.columns(
        f"""WITH recent AS (
                SELECT result.*, run.position AS place FROM result JOIN run ON run.key = result.run
                WHERE (fresh OR latency_s > 0) AND run.position > (SELECT max(position) FROM run) - ?),
            newest AS (SELECT subject, arg_max(machine, place) AS machine FROM recent
                       WHERE machine <> '' GROUP BY subject)
            SELECT subject, place, {columns} FROM recent JOIN newest USING (subject, machine)
            ORDER BY subject, place""",
        [RECENT],
    )


def _equally_long(table: Table, metric: str) -> Iterator[tuple[Numbers, Numbers, Numbers]]:
    """A metric's series in groups of one length each: cases, places of the runs, values; a row per series."""
    measured = table[metric] > 0
    subjects, places, values = (table[name][measured] for name in ("subject", "place", metric))
    keys, starts, lengths = np.unique(subjects, return_index=True, return_counts=True)
    for length in np.unique(lengths):
        chosen = lengths == length
        rows = starts[chosen][:, None] + np.arange(length)
        yield keys[chosen], places[rows], values[rows]


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
