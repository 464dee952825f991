"""Catalogue records of the model zoo as files: the `hub` and `hub-archive` sources, and the test data."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from onnx_models.archive import HostileArchive, extract
from onnx_models.cache import SourceError
from onnx_models.catalog import Model
from onnx_models.hub import HubFile, fetch_file
from onnx_models.store import UNPACKED, Store

TYPES = ("hub", "hub-archive")
"""The `source["type"]` of the records that this module serves."""


def fetch(model: Model, cache: Path, offline: bool) -> Path:
    """The verified file of a `hub` record, in the cache.

    Raises:
        AbsentFile: offline, and the file is not here.
        SourceError: no route gave it.
    """
    return fetch_file(model_file(model), cache=cache, offline=offline)


def fetch_archive(model: Model, cache: Path, offline: bool) -> Path:
    """The `.onnx` file of a `hub-archive` record, unpacked in the cache with its external data beside it.

    Raises:
        AbsentFile: offline, and neither the model nor its archive is here.
        SourceError: no route gave the archive, or it is refused, or does not hold exactly one model.
    """
    spec = model_file(model)
    folder = cache / UNPACKED / spec.sha256
    if folder.is_dir():
        with contextlib.suppress(OSError):
            os.utime(folder)
    else:
        with Store(root=cache).lease(spec.sha256):
            archive = fetch_file(spec, cache=cache, offline=offline)
            try:
                extract(archive, folder)
            except HostileArchive as error:
                raise SourceError(f"{model.id}: {error}") from None
    found = sorted(folder.rglob("*.onnx"))
    if len(found) != 1:
        names = ", ".join(str(path.relative_to(folder)) for path in found[:5]) or "none"
        raise SourceError(f"{model.id}: {spec.path}: expected one .onnx file in the archive, found {names}")
    return found[0]


@contextlib.contextmanager
def lease(model: Model, cache: Path) -> Iterator[None]:
    """Keep `upkeep.prune` away from a model's file while a case uses it; nothing for other sources."""
    if model.source.get("type") in TYPES:
        with Store(root=cache).lease(model_file(model).sha256):
            yield
    else:
        yield


def model_file(model: Model) -> HubFile:
    """What to fetch for a model: its file, or the archive that holds it."""
    return _hub_file(model, model.source, sha256=model.sha256, size=model.bytes)


def stored_data_file(model: Model) -> HubFile | None:
    """The archive of the model's stored data sets, None when the zoo has none."""
    return _hub_file(model, model.test_data) if model.test_data else None


def files(models: Iterable[Model], *, test_data: bool = True) -> Iterator[HubFile]:
    """Every file that a selection needs from the hub, for `prefetch`; other sources have none."""
    for model in models:
        if model.source.get("type") in TYPES:
            yield model_file(model)
            stored = stored_data_file(model)
            if test_data and stored:
                yield stored


def _hub_file(model: Model, row: Mapping[str, Any], *, sha256: str = "", size: int = 0) -> HubFile:
    return HubFile(
        path=str(row["path"]),
        sha256=str(row.get("sha256") or sha256),
        bytes=int(row.get("bytes") or size),
        repo=str(row.get("repo") or ""),
        wanted_by=model.id,
    )
