"""Looking after the cache folder: what is in it, whether it is sound, and what can go.

Covers the downloaded files (`store`); the files that the suite makes or takes
from packages (`cache.keep`) are listed and verified with them, but not pruned:
they are few, and nothing leases them.
"""

from __future__ import annotations

import contextlib
import re
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import Timeout
from rich.table import Table

from onnx_models.files import sha256_of, size_text
from onnx_models.outcomes import UsageError
from onnx_models.store import UNPACKED, Store, problem_of, read_record, record_path

GRACE = 60.0
"""Seconds since last use in which prune spares a file: between its download and its lease."""

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_KEPT = re.compile(r"(.+)-([0-9a-f]{12})\.onnx")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One file of the cache.

    `sha256` is only its first twelve digits for a file that the suite made.
    `last_used` is in seconds since the epoch, `names` are the paths it serves.
    """

    sha256: str
    path: Path
    bytes: int
    names: tuple[str, ...]
    route: str
    last_used: float
    in_use: bool = False
    prunable: bool = True

    @property
    def name(self) -> str:
        """What to call the file: its first path, else its hash."""
        return self.names[0] if self.names else self.sha256

    def as_json(self) -> dict[str, Any]:
        """JSON-ready fields, for `--json`."""
        fields = ("name", "names", "sha256", "bytes", "route", "last_used", "in_use", "prunable", "path")
        values: dict[str, Any] = {field: getattr(self, field) for field in fields}
        return values | {"names": list(self.names), "path": str(self.path)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """What `prune` did: the entries that left, those spared because they are in use, and sizes in bytes."""

    removed: tuple[Entry, ...]
    spared: tuple[Entry, ...]
    bytes_before: int
    bytes_after: int

    def __str__(self) -> str:
        spared = f", {len(self.spared)} spared because they are in use" if self.spared else ""
        freed = size_text(self.bytes_before - self.bytes_after)
        kept = size_text(self.bytes_after)
        return f"removed {len(self.removed)} files, {freed}; {kept} kept{spared}"


def entries(cache: Path) -> tuple[Entry, ...]:
    """Every file of the cache, the longest unused first (`onnx-models cache ls`)."""
    store = Store(root=cache)
    found = [*_stored(store), *_unpacked(store), *_kept(cache)]
    return tuple(sorted(found, key=lambda entry: (entry.last_used, entry.sha256)))


def verify(cache: Path, *, remove: bool = False) -> tuple[tuple[Entry, str], ...]:
    """Hash every file again; the wrong ones with what is wrong, removed on request."""
    wrong = []
    store = Store(root=cache)
    for entry in entries(cache):
        if entry.path.is_dir():
            continue  # no hash is known of what an archive held
        if entry.prunable:
            problem = problem_of(entry.path, entry.sha256, int(read_record(entry.path).get("bytes", 0)))
        else:
            digest = sha256_of(entry.path)
            sound = digest.startswith(entry.sha256)
            problem = "" if sound else f"sha256 {digest[:12]}… instead of sha256 {entry.sha256}…"
        if problem:
            wrong.append((entry, problem))
            if remove:
                _remove(store, entry)
    return tuple(wrong)


def prune(cache: Path, max_bytes: int, *, grace: float = GRACE) -> Pruned:
    """Remove the least recently used files until `max_bytes` are kept; never one in use or in the making.

    Unfinished downloads that nobody works on go first.
    """
    store = Store(root=cache)
    for part in cache.glob("partial/*"):
        with (
            contextlib.suppress(Timeout, OSError),
            store.lock(part.name.partition(".")[0]).acquire(timeout=0),
        ):
            part.unlink(missing_ok=True)
    found = entries(cache)
    before = kept = sum(entry.bytes for entry in found)
    removed, spared = [], []
    for entry in found:
        if kept <= max_bytes:
            break
        if not entry.prunable:
            continue
        if time.time() - entry.last_used >= grace and _remove(store, entry):
            kept -= entry.bytes
            removed.append(entry)
        else:
            spared.append(entry)
    return Pruned(removed=tuple(removed), spared=tuple(spared), bytes_before=before, bytes_after=kept)


def parse_size(text: str) -> int:
    """Bytes from `50GB`, `1.5T`, `200M` or `1000`; decimal units, as on disks.

    Raises:
        UsageError: anything else.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)B?\s*", text, re.IGNORECASE)
    if not match:
        raise UsageError(f"{text!r} is no size: write it like 50GB, 1.5TB or 200M")
    return int(float(match[1]) * _UNITS[match[2].upper()])


def table(found: Sequence[Entry]) -> Table:
    """`cache ls` for people, the total at its foot."""
    total = size_text(sum(entry.bytes for entry in found))
    made = Table("file", "size", "last used", "", "from", show_footer=True)
    made.columns[0].footer, made.columns[1].footer = f"{len(found)} files", total
    made.columns[1].justify = "right"
    for entry in found:
        others = f" (+{len(entry.names) - 1} aliases)" if len(entry.names) > 1 else ""
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.last_used))
        mark = "in use" if entry.in_use else ""
        made.add_row(f"{entry.name}{others}", size_text(entry.bytes), used, mark, entry.route)
    return made


def _stored(store: Store) -> list[Entry]:
    found = []
    for file in store.files():
        with contextlib.suppress(OSError):  # pruned by another process meanwhile
            record = read_record(file)
            found.append(
                Entry(
                    sha256=file.name,
                    path=file,
                    bytes=file.stat().st_size,
                    names=tuple(record.get("names", ())),
                    route=str(record.get("route", "")),
                    last_used=(record_path(file) if record else file).stat().st_mtime,
                    in_use=store.in_use(file.name),
                )
            )
    return found


def _unpacked(store: Store) -> list[Entry]:
    """Archive-only models, unpacked beside the stored archives (`zoo.fetch_archive`)."""
    found = []
    for folder in store.root.glob(f"{UNPACKED}/{'?' * 64}"):
        with contextlib.suppress(OSError):
            inside = [path for path in folder.rglob("*") if path.is_file()]
            name = next((path.name for path in inside if path.suffix == ".onnx"), folder.name)
            found.append(
                Entry(
                    sha256=folder.name,
                    path=folder,
                    bytes=sum(path.stat().st_size for path in inside),
                    names=(name,),
                    route="unpacked",
                    last_used=folder.stat().st_mtime,
                    in_use=store.in_use(folder.name),
                )
            )
    return found


def _kept(cache: Path) -> list[Entry]:
    found = []
    for file in cache.glob("**/*.onnx"):
        match = _KEPT.fullmatch(file.relative_to(cache).as_posix())
        if match and file.with_name(f"{file.name}.verified").exists():
            facts = file.stat()
            found.append(
                Entry(
                    sha256=match[2],
                    path=file,
                    bytes=facts.st_size,
                    names=(match[1],),
                    route="made here or from a package",
                    last_used=facts.st_mtime,
                    prunable=False,
                )
            )
    return found


def _remove(store: Store, entry: Entry) -> bool:
    """Remove a file that nobody uses or writes; whether it went."""
    if not entry.prunable:
        entry.path.unlink(missing_ok=True)
        return True
    with store.unleased(entry.sha256) as free:
        try:
            with contextlib.ExitStack() as stack:
                stack.enter_context(store.lock(entry.sha256).acquire(timeout=0))
                if free and entry.path.is_dir():
                    shutil.rmtree(entry.path)
                elif free:
                    entry.path.unlink(missing_ok=True)
                    record_path(entry.path).unlink(missing_ok=True)
        except (Timeout, OSError):
            return False
    return free
