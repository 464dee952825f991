"""Faults by impact: what mending one would buy."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

from onnx_models.dashboard import charts
from onnx_models.dashboard.render import Site
from onnx_models.dashboard.site import Page
from onnx_models.dashboard.snapshot import Subject

CHARTED = 12

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
    faults = [_fault(site, name, cases, spans) for name, cases in grouped.items()]
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
    site: Site, name: str, cases: Sequence[Subject], spans: dict[str, tuple[str, str, str, int]]
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
    }
