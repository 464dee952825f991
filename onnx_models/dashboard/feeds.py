"""The numbers for others: badges, an Atom feed of regressions, JSON with a schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from onnx_models.dashboard.render import Site, badge_path, model_page, percent
from onnx_models.dashboard.site import Page, file_name
from onnx_models.dashboard.snapshot import Subject
from onnx_models.dashboard.trends import Point
from onnx_models.junit import legal

VERSION = 1
"""Of the data's form; raised when a field changes its meaning or goes."""

SCHEMA = Path(__file__).parents[1] / "schema" / "site.schema.json"

ENTRIES = 100


def pages(site: Site) -> Iterator[Page]:
    """`badges/`, `feed.xml` and `data/`."""
    for device in site.snapshot.devices.values():
        yield Page(path=badge_path(device.name), text=_json(_badge(device.name, device.counts)))
    yield Page(path="feed.xml", text=_feed(site))
    yield Page(path="data/index.json", text=_json(_index(site)))
    yield Page(path="data/schema.json", text=SCHEMA.read_text(encoding="utf-8"))
    runs = sorted(site.snapshot.runs.values(), key=lambda run: -run["position"])
    yield Page(path="data/runs.json", text=_json({"version": VERSION, "runs": [_run(site, r) for r in runs]}))
    cases = [_case(site, each) for each in site.snapshot.subjects]
    yield Page(path="data/cases.json", text=_json({"version": VERSION, "cases": cases}, compact=True))
    changed = [_change(site, each) for each in site.snapshot.subjects if each.change]
    yield Page(path="data/changes.json", text=_json({"version": VERSION, "changes": changed}))


def _badge(device: str, counts: Any) -> dict[str, Any]:
    """https://shields.io/badges/endpoint-badge."""
    rate = counts["passed"] / counts["total"] if counts["total"] else 0.0
    colour = (
        "brightgreen" if rate >= 0.9 else "green" if rate >= 0.75 else "yellow" if rate >= 0.5 else "orange"
    )
    return {
        "schemaVersion": 1,
        "label": f"ONNX on IREE {device}",
        "message": f"{percent(rate)} of {counts['total']}",
        "color": colour,
    }


def _index(site: Site) -> dict[str, Any]:
    return {
        "version": VERSION,
        "schema": "schema.json",
        "files": ["runs.json", "cases.json", "changes.json"],
        "devices": [
            {
                "device": device.name,
                "title": device.title,
                "release": device.release,
                "compile_only": device.compile_only,
                "states": dict(device.counts),
                "funnel": dict(device.funnel),
                "rate": round(device.rate, 6),
                "badge": f"../{badge_path(device.name)}",
            }
            for device in site.snapshot.devices.values()
        ],
        "releases": [_point(point) for point in site.snapshot.over_releases],
    }


def _point(point: Point) -> dict[str, Any]:
    return {"device": point.device, "release": point.release, "states": dict(point.counts)}


def _run(site: Site, run: Any) -> dict[str, Any]:
    points = [point for point in site.snapshot.over_runs if point.run == run["key"]]
    return {
        "run": run["id"],
        "release": run["release"],
        "iree": run["iree"],
        "suite": run["suite"],
        "started": run["started"].isoformat() + "Z",
        "cases": run["cases"],
        "complete": run["complete"],
        "broken": run["broken"],
        "url": run["url"],
        "states": {point.device: dict(point.counts) for point in points},
    }


def _case(site: Site, subject: Subject) -> dict[str, Any]:
    numbers = {key: value for key, value in subject.now.numbers.items() if value is not None}
    run = site.snapshot.runs.get(subject.now.run)
    return {
        "case": subject.id,
        "device": subject.device,
        "model": subject.model_id,
        "state": subject.now.state,
        "stage": subject.now.stage,
        "kind": subject.now.kind,
        "fault": subject.now.fault,
        "run": run["id"] if run else "",
        "numbers": {key: float(f"{value:.6g}") for key, value in numbers.items()},
    }


def _change(site: Site, subject: Subject) -> dict[str, Any]:
    assert subject.before is not None
    before = site.snapshot.runs.get(subject.before.run)
    return {
        "case": subject.id,
        "change": subject.change,
        "before": subject.before.words,
        "now": subject.now.words,
        "since": before["release"] if before else "",
        "page": f"../{model_page(subject.model_id)}#{file_name(subject.device)}",
    }


def _feed(site: Site) -> str:
    """Atom (RFC 4287); an entry's id is the same in every build that has it."""
    base = site.base_url.rstrip("/") + "/" if site.base_url else ""
    atom = "http://www.w3.org/2005/Atom"
    ElementTree.register_namespace("", atom)
    feed = ElementTree.Element(f"{{{atom}}}feed")
    newest = site.snapshot.newest
    updated = _time(newest["started"]) if newest else "1970-01-01T00:00:00Z"

    def add(parent: ElementTree.Element, name: str, text: str = "", **attributes: str) -> ElementTree.Element:
        child = ElementTree.SubElement(parent, f"{{{atom}}}{name}", attributes)
        child.text = legal(text) if text else None
        return child

    add(feed, "title", "ONNX models on IREE: regressions")
    add(feed, "id", base or "urn:onnx-models:regressions")
    add(feed, "updated", updated)
    add(add(feed, "author"), "name", "onnx_models")
    if base:
        add(feed, "link", rel="self", href=f"{base}feed.xml")
    for subject in [each for each in site.snapshot.subjects if each.change == "broken"][:ENTRIES]:
        run = site.snapshot.runs[subject.now.run]
        entry = add(feed, "entry")
        add(entry, "title", f"{subject.id}: {subject.now.words} on IREE {run['release']}")
        add(entry, "id", f"urn:onnx-models:{file_name(run['id'])}:{file_name(subject.id)}")
        add(entry, "updated", _time(run["started"]))
        add(entry, "link", href=f"{base}{model_page(subject.model_id)}#{file_name(subject.device)}")
        line = site.lines.get(subject.id, {})
        add(
            entry,
            "summary",
            f"Passed before. {line.get('title') or line.get('message') or subject.now.words}",
        )
    ElementTree.indent(feed)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{ElementTree.tostring(feed, encoding="unicode")}\n'


def _time(when: datetime) -> str:
    return f"{when:%Y-%m-%dT%H:%M:%SZ}"


def _json(value: Any, *, compact: bool = False) -> str:
    if compact:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":")) + "\n"
    return json.dumps(value, ensure_ascii=False, indent=1) + "\n"
