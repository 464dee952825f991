"""A page per model: each device over time, numbers, commands, what is expected and why."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from onnx_models.dashboard.charts import escaped
from onnx_models.dashboard.render import Draft, Site, model_page
from onnx_models.dashboard.snapshot import Subject
from onnx_models.dashboard.timeline import Segment


def drafts(site: Site) -> Iterator[Draft]:
    """`models/<collection>/<path>.html`."""
    runs = {name: site.timeline.runs_of(name) for name in site.snapshot.devices}
    for name, cases in site.by_model.items():
        model = site.models.get(name)
        known = [site.lines[case.id] for case in cases if case.id in site.lines]
        values = {
            "name": name,
            "task": model.task if model else "",
            "family": model.family if model else "",
            "size": _first(known, "bytes") or (model.bytes if model else 0),
            "opset": _first(known, "opset") or (model.opset_label if model else 0),
            "tags": _first(known, "tags") or (model.tags if model else ()),
            "operators": sorted(site.operators(cases).items(), key=lambda item: (-item[1], item[0])),
            "cases": [_case(site, case, runs[case.device]) for case in cases],
        }
        yield Draft(template="model.html", path=model_page(name), values=values)


def _first(lines: Sequence[Mapping[str, Any]], key: str) -> Any:
    """What the first line says that says anything; an older record has fewer facts."""
    return next((line[key] for line in lines if line.get(key)), None)


def _case(site: Site, case: Subject, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    line = site.lines.get(case.id, {})
    strip = site.timeline.strip(case.id, case.device)
    return {
        "device": case.device,
        "now": case.now,
        "line": line,
        "stages": [_stage(stage) for stage in line.get("stages", ())],
        "commands": "\n".join(" ".join(map(_quoted, command)) for command in line.get("commands", ())),
        "strip": "".join(_rectangle(segment, runs) for segment in strip),
        "job": site.snapshot.runs[case.now.run]["url"] if case.now.run in site.snapshot.runs else "",
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


_quoted = cache(shlex.quote)


def _rectangle(segment: Segment, runs: Sequence[Mapping[str, Any]]) -> str:
    """A part of the strip as SVG; a template takes seconds for the hundred thousand that a year has."""
    title = f"{_span(runs[segment.first], runs[segment.last])}: {segment.result.words}"
    return (
        f'<rect class="f-{segment.result.state}" x="{segment.first}" '
        f'width="{segment.last - segment.first + 1}" height="10"><title>{escaped(title)}</title></rect>'
    )


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
