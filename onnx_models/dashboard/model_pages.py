"""A page per model: each device over time, numbers, commands, what is expected and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from onnx_models.dashboard.render import Site, model_page
from onnx_models.dashboard.site import Page
from onnx_models.dashboard.snapshot import Subject
from onnx_models.dashboard.timeline import Segment


def pages(site: Site) -> Iterator[Page]:
    """`models/<collection>/<path>.html`."""
    runs = {name: site.timeline.runs_of(name) for name in site.snapshot.devices}
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
            cases=[_case(site, case, runs[case.device]) for case in cases],
        )


def _first(lines: Sequence[Mapping[str, Any]], key: str) -> Any:
    """What the first line says that says anything; an older record has fewer facts."""
    return next((line[key] for line in lines if line.get(key)), None)


def _case(site: Site, case: Subject, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    line = site.lines.get(case.id, {})
    strip = site.timeline.strip(case.id, case.device)
    return {
        "subject": case,
        "line": line,
        "stages": [_stage(stage) for stage in line.get("stages", ())],
        "commands": "\n".join(shlex.join(command) for command in line.get("commands", ())),
        "strip": [_rectangle(segment, runs) for segment in strip],
        "width": len(runs),
        "past": _past(strip, runs),
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


def _rectangle(segment: Segment, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    return {
        "x": segment.first,
        "width": segment.last - segment.first + 1,
        "state": segment.result.state,
        "title": f"{_span(runs[segment.first], runs[segment.last])}: {segment.result.words}",
    }


def _past(strip: Sequence[Segment], runs: Sequence[Mapping[str, Any]]) -> list[str]:
    """What the case does now and did before that, in words, each with the releases that it did so in."""
    spans: list[tuple[str, int, int]] = []
    for segment in strip:
        words, first = segment.result.words, segment.first
        if spans and spans[-1][0] == words:
            first = spans.pop()[1]
        spans.append((words, first, segment.last))
    return [f"{_span(runs[first], runs[last])}: {words}" for words, first, last in reversed(spans[-2:])]


def _span(first: Mapping[str, Any], last: Mapping[str, Any]) -> str:
    older, newer = first["release"], last["release"]
    return str(newer) if older == newer else f"{older} to {newer}"
