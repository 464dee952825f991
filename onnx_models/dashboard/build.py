"""Builds the site from a folder of runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path

from onnx_models import catalog
from onnx_models.catalog import Model
from onnx_models.dashboard import (
    about,
    beside,
    charts,
    comparison,
    failures,
    feeds,
    flakes_page,
    matrix,
    model_pages,
    operators,
    overview,
    performance,
    site,
    timeline,
)
from onnx_models.dashboard.details import newest_lines
from onnx_models.dashboard.render import HERE, Site
from onnx_models.dashboard.site import Page, Put, Written
from onnx_models.dashboard.snapshot import Snapshot, take
from onnx_models.history import History

PARTS = (
    overview,
    matrix,
    failures,
    operators,
    comparison,
    performance,
    flakes_page,
    about,
    feeds,
)

STALE_DAYS = 8
"""A nightly job that has missed a week is broken, whatever its last numbers say."""


def build(
    runs: Path, folder: Path, *, base_url: str = "", now: datetime | None = None
) -> tuple[Written, dict[str, str]]:
    """Build, or bring up to date.

    Args:
        runs: the run files.
        folder: the site, made when it is not there.
        base_url: where the site will be, for the feed.
        now: the time that staleness is told by.

    Returns:
        What was written, and by file name why a run could not be read.

    Raises:
        SuiteError: there is no such folder of runs, or the site cannot be written.
    """
    site.claim(folder)
    history = History(runs)
    # Millions of objects live until the last page is written; looking through them for cycles takes seconds.
    gc.disable()
    try:
        snapshot = take(history)
        with ThreadPoolExecutor(2) as threads:
            # DuckDB works and vl-convert starts while Python reads lines.
            past = threads.submit(timeline.read, history)
            threads.submit(charts.warm_up)
            lines = newest_lines(history, snapshot.subjects)
        made = Site(
            history=history,
            snapshot=snapshot,
            lines=lines,
            timeline=past.result(),
            models=_catalogue({each.collection for each in snapshot.subjects}),
            base_url=base_url,
            notices=_notices(snapshot, history.broken, now or datetime.now(timezone.utc)),
        )
        return site.write(_pages(made, folder), folder), history.broken
    finally:
        gc.enable()
        history.close()


def _pages(made: Site, folder: Path) -> Iterator[Page | Put]:
    for file in sorted((HERE / "static").iterdir()):
        if file.suffix in (".css", ".js", ".svg"):
            yield Page(path=f"static/{file.name}", text=file.read_text(encoding="utf-8"))
    yield Page(path=".nojekyll", text="")
    with beside.written(list(model_pages.drafts(made)), made.everywhere, folder) as models:
        for part in PARTS:
            yield from part.pages(made)
        yield from models


def _catalogue(collections: set[str]) -> dict[str, Model]:
    known = set(catalog.collections())
    return {model.id: model for name in sorted(collections & known) for model in catalog.load(name)}


def _notices(snapshot: Snapshot, broken: dict[str, str], now: datetime) -> list[str]:
    """What to know before trusting any number."""
    notices = [f"A run could not be read and is left out: {why}" for why in list(broken.values())[:5]]
    newest = snapshot.newest
    if newest is None:
        return notices
    age = (now - newest["started"].replace(tzinfo=timezone.utc)).days
    if age >= STALE_DAYS:
        notices.append(f"Stale: the newest run is {age} days old.")
    if not newest["complete"]:
        notices.append("Incomplete: the newest run was cut off, or a part of it is missing.")
    if newest["broken"]:
        notices.append(f"The newest run gives no verdicts: {newest['broken']}")
    for device in snapshot.devices.values():
        if device.counts["missing"]:
            notices.append(
                f"{device.name}: {device.counts['missing']} of {device.counts['total']} cases are missing "
                f"under {device.release}; they count as not passed."
            )
    return notices
