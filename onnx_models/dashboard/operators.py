"""Pass rate per operator, beside how many models of the zoo have it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from typing import Any

from onnx_models import catalog
from onnx_models.dashboard.render import Site
from onnx_models.dashboard.site import Page

ZOO = ("zoo", "zoo-turnkey")


def pages(site: Site) -> Iterator[Page]:
    """`operators.html`."""
    devices = list(site.snapshot.devices)
    tested: dict[str, dict[str, list[int]]] = defaultdict(lambda: {name: [0, 0] for name in devices})
    for cases in site.by_model.values():
        for operator in site.operators(cases):
            for subject in cases:
                cell = tested[operator][subject.device]
                cell[0] += subject.now.state == "passed"
                cell[1] += 1
    weights, models = zoo_use()
    rows: list[dict[str, Any]] = [
        {"name": name, "weight": weights.get(name, 0), "cells": [tested[name][device] for device in devices]}
        for name in tested
    ]
    rows.sort(key=lambda row: (-row["weight"], row["name"]))
    weighted = []
    for k, device in enumerate(devices):
        known = [(row["weight"], row["cells"][k]) for row in rows if row["cells"][k][1]]
        total = sum(weight for weight, _ in known)
        share = sum(weight * passed / count for weight, (passed, count) in known)
        weighted.append((device, share / total if total else None))
    yield site.page(
        "operators.html",
        "operators.html",
        rows=rows,
        devices=devices,
        catalogue=models,
        weighted=[(device, value) for device, value in weighted if value is not None],
    )


def zoo_use() -> tuple[Counter[str], int]:
    """How many models of the zoo have each operator, and how many models there are."""
    models = [model for name in ZOO for model in catalog.load(name)]
    return Counter(operator for model in models for operator in model.operators), len(models)
