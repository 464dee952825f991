"""Models by devices, in one table to filter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from onnx_models.dashboard.render import Site, mark
from onnx_models.dashboard.site import Page
from onnx_models.dashboard.snapshot import Subject

SHORT = {"passed": "pa", "vacuous": "va", "failed": "f", "skipped": "sk", "error": "er", "missing": "mi"}
"""Classes of the cells, as `static/site.js` knows them; `n` is a device that the model is not tested on.
The page has 20,000 cells, so a letter counts: only failures say in a title what the letter means."""


def pages(site: Site) -> Iterator[Page]:
    """`matrix.html`."""
    devices = list(site.snapshot.devices)
    grouped = site.by_model
    operators = _index(op for cases in grouped.values() for op in site.operators(cases))
    faults = _index(each.now.fault for cases in grouped.values() for each in cases if each.now.fault)
    rows = [_row(site, name, cases, devices, operators, faults) for name, cases in grouped.items()]
    yield site.page(
        "matrix.html",
        "matrix.html",
        devices=[site.snapshot.devices[name] for name in devices],
        rows=rows,
        operators=operators,
        faults=faults,
        collections=sorted({row["collection"] for row in rows}),
        tasks=sorted({row["task"] for row in rows if row["task"]}),
    )


def _row(
    site: Site,
    name: str,
    cases: Sequence[Subject],
    devices: Sequence[str],
    operators: dict[str, int],
    faults: dict[str, int],
) -> dict[str, Any]:
    by_device = {each.device: each for each in cases}
    model = site.models.get(name)
    cells = []
    for device in devices:
        each = by_device.get(device)
        if each is None:
            cells.append(("n", "", "", ""))
        else:
            cells.append((SHORT[each.now.state], mark(each.now), each.now.words, each.now.fault))
    return {
        "id": name,
        "collection": cases[0].collection,
        "path": cases[0].model,
        "task": model.task if model else "",
        "cells": cells,
        "operators": " ".join(str(operators[op]) for op in sorted(site.operators(cases))),
        "faults": " ".join(str(faults[fault]) for *_, fault in cells if fault),
    }


def _index(words: Any) -> dict[str, int]:
    return {word: k for k, word in enumerate(sorted(set(words)))}
