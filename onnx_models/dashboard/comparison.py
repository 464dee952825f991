"""Any two runs, devices or releases: what `static/compare.js` reads, and what is shown without it."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from onnx_models.dashboard.render import Site, model_page
from onnx_models.dashboard.site import Page, file_name
from onnx_models.dashboard.timeline import ABSENT, Timeline

FIRST_FAULT = 0x4E00

_LETTERS = {"passed": "P", "vacuous": "V", "skipped": "S", "error": "E"}


_UTF_32 = f"utf-32-{sys.byteorder[0]}e"
"""How numpy keeps letters in memory."""


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
    timeline = site.timeline
    models = {name: k for k, name in enumerate(dict.fromkeys(name for _, name, _ in timeline.subjects))}
    devices = {name: k for k, name in enumerate(dict.fromkeys(device for *_, device in timeline.subjects))}
    now = {each.model_id for each in site.snapshot.subjects}
    tested: dict[int, list[str]] = {}
    for device, rows in timeline.tested.items():
        for row in rows:
            tested.setdefault(row, []).append(device)
    index = {
        "runs": [_listed(run, tested.get(row, [])) for row, run in reversed(list(enumerate(timeline.runs)))],
        "devices": list(devices),
        "models": [[name, model_page(name) if name in now else "matrix.html"] for name in models],
        "subjects": [[models[name], devices[device]] for _, name, device in timeline.subjects],
        "results": {},
    }
    yield Page(path="data/compare/index.js", text=f"const COMPARE = {script_json(index)};\n")
    for row, run in enumerate(timeline.runs):
        file = f"{file_name(run['id'])}.js"
        body = f"COMPARE.results[{script_json(file)}] = {script_json(_results(timeline, row))};\n"
        yield Page(path=f"data/compare/{file}", text=body)


def _listed(run: Mapping[str, Any], devices: list[str]) -> dict[str, Any]:
    return {
        "id": run["id"],
        "release": run["release"],
        "started": f"{run['started']:%Y-%m-%d}",
        "devices": devices,
        "file": f"{file_name(run['id'])}.js",
    }


def _results(timeline: Timeline, row: int) -> list[Any]:
    """A run's results: a character per case, and the names that the characters of its faults stand for."""
    codes = timeline.codes[row]
    present = {code: timeline.outcomes[code] for code in np.unique(codes).tolist() if code != ABSENT}
    failed = {code: each.words for code, each in present.items() if each.state == "failed"}
    faults = sorted(set(failed.values()))
    letters = np.full(len(timeline.outcomes) + 1, " ", "U1")  # the last is that of ABSENT
    for code, each in present.items():
        letters[code] = _LETTERS.get(each.state) or chr(FIRST_FAULT + faults.index(failed[code]))
    return [letters[codes].tobytes().decode(_UTF_32).rstrip(" "), faults]


def script_json(value: Any) -> str:
    """JSON that is JavaScript too, and ends no element wherever it stands."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
