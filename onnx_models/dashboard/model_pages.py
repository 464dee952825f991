"""A page per model: each device over time, numbers, commands, what is expected and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx_models.dashboard.render import Segment, Site, mark, model_page
from onnx_models.dashboard.site import Page
from onnx_models.dashboard.snapshot import TESTED, Subject


def pages(site: Site) -> Iterator[Page]:
    """`models/<collection>/<path>.html`."""
    last = max((run["position"] for run in site.snapshot.runs.values()), default=0)
    releases = {run["position"]: run for run in site.snapshot.runs.values()}
    for name, cases in site.subjects_by_model().items():
        model = site.models.get(name)
        known = [site.lines[case.id] for case in cases if case.id in site.lines]
        operators = _first(known, "operators") or (model.operators if model else {})
        yield site.page(
            "model.html",
            model_page(name),
            name=name,
            model=model,
            size=_first(known, "bytes") or (model.bytes if model else 0),
            opset=_first(known, "opset") or (model.opset_label if model else 0),
            tags=_first(known, "tags") or (model.tags if model else ()),
            operators=sorted(operators.items(), key=lambda item: (-item[1], item[0])),
            cases=[_case(site, case, releases, last) for case in cases],
        )


def _first(lines: Sequence[Mapping[str, Any]], key: str) -> Any:
    """What the first line says that says anything; an older record has fewer facts."""
    return next((line[key] for line in lines if line.get(key)), None)


def _case(site: Site, case: Subject, releases: Mapping[int, Mapping[str, Any]], last: int) -> dict[str, Any]:
    line = site.lines.get(case.id, {})
    strip = site.strips.get(case.key, ())
    return {
        "subject": case,
        "mark": mark(case.now),
        "line": line,
        "stages": [_stage(stage) for stage in line.get("stages", ()) if stage["stage"] in TESTED],
        "commands": "\n".join(shlex.join(command) for command in line.get("commands", ())),
        "strip": [_rectangle(segment, releases) for segment in strip],
        "width": last + 1,
        "since": _since(strip, releases),
    }


def _stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": stage["stage"],
        "ok": stage["ok"],
        "seconds": stage["seconds"],
        "memory": stage["peak_bytes"],
        "product": stage.get("product_bytes", 0),
        "reused": stage["reused"],
    }


def _rectangle(segment: Segment, releases: Mapping[int, Mapping[str, Any]]) -> dict[str, Any]:
    first, last = releases[segment.first], releases[segment.last]
    span = first["release"] if segment.first == segment.last else f"{first['release']} to {last['release']}"
    return {
        "x": segment.first,
        "width": segment.last - segment.first + 1,
        "state": segment.result.state,
        "title": f"{span}: {segment.result.words}",
    }


def _since(strip: Sequence[Segment], releases: Mapping[int, Mapping[str, Any]]) -> str:
    """The release from which on the case does what it does now."""
    return str(releases[strip[-1].first]["release"]) if strip else ""
