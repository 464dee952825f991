"""Any two runs, devices or releases: what `static/compare.js` reads, and what is shown without it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from onnx_models.dashboard.render import Site, model_page
from onnx_models.dashboard.site import Page, file_name

FIRST_FAULT = 0x4E00

_RESULTS = f"""
SELECT run.key, string_agg(coalesce(CASE WHEN state = 'passed' THEN 'P' WHEN state = 'vacuous' THEN 'V'
        WHEN state = 'skipped' THEN 'S' WHEN state = 'error' THEN 'E'
        WHEN state = 'failed' THEN chr({FIRST_FAULT} + coalesce(result.fault + 1, 0)::INTEGER) END, ' '), ''
        ORDER BY subject.key)
FROM run CROSS JOIN subject LEFT JOIN result ON result.run = run.key AND result.subject = subject.key
WHERE list_contains(?, run.key) GROUP BY run.key
"""

_BATCH = 32
"""Runs per query: each makes a row per case that any run has."""


def pages(site: Site) -> Iterator[Page]:
    """`compare.html` and `data/compare/`."""
    releases = []
    for device in site.snapshot.devices.values():
        cases = [each for each in site.snapshot.subjects if each.device == device.name and each.before]
        if cases and device.before:
            changed = [each for each in cases if each.change]
            releases.append((device.name, device.previous, device.release, changed))
    yield site.page("compare.html", "compare.html", releases=releases)
    yield from _data(site)


def _data(site: Site) -> Iterator[Page]:
    tested: dict[int, list[str]] = {}
    for run, device in site.history.rows("SELECT run, name FROM device ORDER BY name"):
        tested.setdefault(run, []).append(device)
    runs = sorted(site.snapshot.runs.values(), key=lambda run: -run["position"])
    listed = [
        {
            "id": run["id"],
            "release": run["release"],
            "started": f"{run['started']:%Y-%m-%d}",
            "devices": tested.get(run["key"], []),
            "file": f"{file_name(run['id'])}.js",
        }
        for run in runs
    ]
    subjects = site.history.rows("SELECT key, collection || '/' || model, device FROM subject ORDER BY key")
    models = {name: k for k, name in enumerate(dict.fromkeys(name for _, name, _ in subjects))}
    devices = {name: k for k, name in enumerate(dict.fromkeys(device for *_, device in subjects))}
    now = {each.model_id for each in site.snapshot.subjects}
    index = {
        "runs": listed,
        "devices": list(devices),
        "models": [[name, model_page(name) if name in now else "matrix.html"] for name in models],
        "subjects": [[models[name], devices[device]] for _, name, device in subjects],
        "faults": ["failed", *(name for (name,) in site.history.rows("SELECT name FROM fault ORDER BY key"))],
        "results": {},
    }
    yield Page(path="data/compare/index.js", text=f"const COMPARE = {script_json(index)};\n")
    for start in range(0, len(runs), _BATCH):
        wanted = [run["key"] for run in runs[start : start + _BATCH]]
        for key, text in site.history.rows(_RESULTS, [wanted]):
            run = site.snapshot.runs[key]
            body = f"COMPARE.results[{script_json(run['id'])}] = {script_json(text)};\n"
            yield Page(path=f"data/compare/{file_name(run['id'])}.js", text=body)


def script_json(value: Any) -> str:
    """JSON that is JavaScript too, and ends no element wherever it stands."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
