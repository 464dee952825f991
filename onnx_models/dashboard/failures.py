"""Faults by impact: what mending one would buy."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from onnx_models.dashboard import charts
from onnx_models.dashboard.render import Site
from onnx_models.dashboard.site import Page
from onnx_models.dashboard.snapshot import Subject

CHARTED = 12

RELEASES = 3
"""Releases that a fault's cases passed under last; more say nothing more."""

_SPANS = """
SELECT fault.name, fault.title, arg_min(run.release, run.position), arg_max(run.release, run.position),
       count(DISTINCT subject.model)
FROM result JOIN fault ON fault.key = result.fault JOIN run ON run.key = result.run
    JOIN subject ON subject.key = result.subject
GROUP BY ALL
"""


def pages(site: Site) -> Iterator[Page]:
    """`failures.html`."""
    spans = {name: (title, first, last, most) for name, title, first, last, most in site.history.rows(_SPANS)}
    grouped: dict[str, list[Subject]] = defaultdict(list)
    for subject in site.snapshot.subjects:
        if subject.now.state == "failed":
            grouped[subject.now.fault or f"{subject.now.stage}-{subject.now.kind}"].append(subject)
    passing = _passing(site.snapshot.subjects)
    faults = [_fault(site, name, cases, spans, passing) for name, cases in grouped.items()]
    faults.sort(key=lambda each: (-len(each["models"]), -each["cases"], each["name"]))
    gone = [
        {"name": name, "title": title, "first": first, "last": last, "models": most}
        for name, (title, first, last, most) in sorted(spans.items(), key=lambda item: (-item[1][3], item[0]))
        if name not in grouped
    ]
    svg = ""
    if faults:
        svg = charts.bars(
            [{"name": each["name"], "models": len(each["models"])} for each in faults[:CHARTED]],
            value="models",
            unit="models that it stops",
            title="Faults by the models that they stop",
            description="The numbers are in the table that follows.",
        )
    yield site.page("failures.html", "failures.html", faults=faults, gone=gone[:200], svg=svg)


def _fault(
    site: Site,
    name: str,
    cases: Sequence[Subject],
    spans: Mapping[str, tuple[str, str, str, int]],
    passing: Mapping[str, set[str]],
) -> dict[str, Any]:
    example = next((case for case in cases if site.lines.get(case.id, {}).get("excerpt")), cases[0])
    line = site.lines.get(example.id, {})
    title, first, last, _ = spans.get(name, ("", "-", "-", 0))
    return {
        "name": name,
        "anchor": f"f-{hashlib.sha256(name.encode('utf-8', 'replace')).hexdigest()[:10]}",
        "title": title or line.get("message", "") or name,
        "stage": cases[0].now.stage,
        "models": sorted({case.model_id for case in cases}),
        "cases": len(cases),
        "devices": sorted({case.device for case in cases}),
        "first": first,
        "last": last,
        "excerpt": line.get("excerpt", ""),
        "example": example.id,
        "smallest": _smallest(site, cases),
        "elsewhere": _elsewhere(cases, passing),
        "earlier": _earlier(site, cases),
    }


def _passing(subjects: Iterable[Subject]) -> dict[str, set[str]]:
    """By device, the models that pass there now."""
    found: dict[str, set[str]] = defaultdict(set)
    for subject in subjects:
        if subject.now.state == "passed":
            found[subject.device].add(subject.model_id)
    return found


def _smallest(site: Site, cases: Sequence[Subject]) -> dict[str, Any] | None:
    """The model to begin with: of those whose operators are known, the one with the fewest nodes."""
    sizes = []
    for case in cases:
        line = site.lines.get(case.id, {})
        nodes = sum(line.get("operators", {}).values())
        if nodes:
            sizes.append((nodes, line["bytes"], case.model_id))
    if not sizes:
        return None
    nodes, size, model = min(sizes)
    return {"model": model, "nodes": nodes, "bytes": size}


def _elsewhere(cases: Sequence[Subject], passing: Mapping[str, set[str]]) -> list[tuple[str, int]]:
    """Devices on which models that the fault stops pass now, and how many of them."""
    models = {case.model_id for case in cases}
    stopped = {case.device for case in cases}
    counts = [(device, len(models & passing[device])) for device in sorted(passing)]
    return [(device, number) for device, number in counts if number and device not in stopped]


def _earlier(site: Site, cases: Sequence[Subject]) -> list[tuple[str, int]]:
    """Releases under which cases of the fault passed last, the one of the most cases first."""
    last: Counter[str] = Counter()
    for case in cases:
        passed = [each for each in site.timeline.strip(case.id, case.device) if each.result.state == "passed"]
        if passed:
            last[site.timeline.runs_of(case.device)[passed[-1].last]["release"]] += 1
    return sorted(last.items(), key=lambda item: (-item[1], item[0]))[:RELEASES]
