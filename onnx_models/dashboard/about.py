"""How verdicts are made, and which runs the site is made of."""

from __future__ import annotations

from collections.abc import Iterator

from onnx_models.dashboard.render import Site
from onnx_models.dashboard.site import Page
from onnx_models.tolerance import NOISE_FACTOR


def pages(site: Site) -> Iterator[Page]:
    """`about.html`."""
    runs = sorted(site.snapshot.runs.values(), key=lambda run: -run["position"])
    yield site.page(
        "about.html", "about.html", runs=runs, devices=list(site.snapshot.devices), factor=NOISE_FACTOR
    )
