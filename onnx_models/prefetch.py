"""Many files at once: what a selection would download, and the download with its progress.

Paths with the same content are one download; each file's own lock lets several
such commands, on several machines, share the work.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from onnx_models.files import size_text
from onnx_models.hub import HubFile, fetch_file
from onnx_models.outcomes import SuiteError
from onnx_models.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a download would do: files by content, each once; `bytes` of unknown size count as 0."""

    present: tuple[HubFile, ...]
    missing: tuple[HubFile, ...]
    resumed_bytes: int
    aliases: int

    @property
    def missing_bytes(self) -> int:
        """Bytes to download, those of unfinished downloads not counted again."""
        return max(0, sum(file.bytes for file in self.missing) - self.resumed_bytes)

    @property
    def present_bytes(self) -> int:
        """Bytes of the selection that are in the cache."""
        return sum(file.bytes for file in self.present)

    def __str__(self) -> str:
        return (
            f"{len(self.missing)} files to download, {size_text(self.missing_bytes)}; "
            f"{len(self.present)} in the cache, {size_text(self.present_bytes)}; "
            f"{self.aliases} are copies of others"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Fetched:
    """How one file's download ended: `path` in the cache, or `error`."""

    file: HubFile
    path: Path | None = None
    error: str = ""


class _Stopped(Exception):
    """The user pressed Ctrl-C: leave the partial file for the next time."""


def plan(files: Iterable[HubFile], cache: Path) -> Plan:
    """Look at the cache only: sizes before anything is fetched (`fetch --dry-run`)."""
    store = Store(root=cache)
    given = list(files)
    unique: dict[str, HubFile] = {}
    for file in given:
        unique.setdefault(file.sha256, file)
    present = tuple(file for file in unique.values() if store.find(file.sha256, file.bytes))
    missing = tuple(file for file in unique.values() if file not in present)
    parts = (store.part(file.sha256) for file in missing)
    resumed = sum(part.stat().st_size for part in parts if part.exists())
    return Plan(present=present, missing=missing, resumed_bytes=resumed, aliases=len(given) - len(unique))


def plan_table(planned: Plan) -> Table:
    """`fetch --dry-run` for people: every file to download, the largest last, the total at the foot."""
    made = Table("to download", "size", show_footer=True)
    made.columns[0].footer = f"{len(planned.missing)} files"
    made.columns[1].footer = size_text(planned.missing_bytes)
    made.columns[1].justify = "right"
    for file in sorted(planned.missing, key=lambda file: (file.bytes, file.path)):
        made.add_row(file.path, size_text(file.bytes) if file.bytes else "unknown")
    return made


def fetch_all(
    files: Iterable[HubFile],
    *,
    cache: Path,
    workers: int = 4,
    offline: bool = False,
    mirrors: Sequence[str] = (),
    console: Console | None = None,
) -> tuple[Fetched, ...]:
    """Fetch every file, `workers` at a time; one that fails does not stop the others.

    Args:
        files: any number, aliases included; each content is fetched once.
        cache: the cache folder.
        workers: parallel downloads.
        offline: as for `hub.fetch_file`.
        mirrors: as for `hub.fetch_file`.
        console: where to draw a bar for each running download and one for all; None draws nothing.

    Returns:
        One result for each content, in the order given.

    Raises:
        StoreError: the disk cannot hold what is missing; nothing was started.
    """
    planned = plan(files, cache)
    Store(root=cache).ensure_space(planned.missing_bytes, f"{len(planned.missing)} files")
    stop = threading.Event()
    bars = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=console is None,
        transient=True,
    )
    total = sum(file.bytes for file in planned.missing)
    with bars, ThreadPoolExecutor(max_workers=workers) as pool:
        overall = bars.add_task(f"{len(planned.missing)} files", total=total or None)
        try:
            wanted = [*planned.present, *planned.missing]
            return tuple(
                pool.map(lambda file: _fetch(file, cache, offline, mirrors, bars, overall, stop), wanted)
            )
        except BaseException:
            stop.set()
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def _fetch(
    file: HubFile,
    cache: Path,
    offline: bool,
    mirrors: Sequence[str],
    bars: Progress,
    overall: TaskID,
    stop: threading.Event,
) -> Fetched:
    bar = bars.add_task(Path(file.path).name, total=file.bytes or None)
    seen = 0

    def progress(done: int) -> None:
        nonlocal seen
        if stop.is_set():
            raise _Stopped
        bars.update(bar, completed=done)
        bars.advance(overall, done - seen)
        seen = done

    try:
        path = fetch_file(file, cache=cache, offline=offline, mirrors=mirrors, progress=progress)
    except SuiteError as error:
        return Fetched(file=file, error=str(error))
    finally:
        bars.remove_task(bar)
    return Fetched(file=file, path=path)
