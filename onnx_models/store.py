"""Downloaded files, kept by content in the cache folder, shared by workers and machines.

A file is stored once under its sha256, whatever the paths that lead to it
(65 contents of the zoo have several). It gets its name only when size and hash
are right, and keeps it until `upkeep.prune`. Beside it lies a small record of
where it came from, whose modification time is the file's last use.

    files/<2 hex>/<sha256>        files/<2 hex>/<sha256>.json
    partial/<sha256>.part         locks/<sha256>.lock   locks/<sha256>.lease
    unpacked/<sha256>/            what an archive held that is a model's only form
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from filelock import FileLock, Timeout

from onnx_models.cache import SourceError
from onnx_models.files import describe, sha256_of, size_text

SPARE = 64 << 20
"""Bytes left free on the disk beside a download, so that logs and records still fit."""

STALL = 600.0
"""Seconds without growth after which the wait for another worker's download is given up."""

UNPACKED = "unpacked"

_SHA256 = re.compile(r"[0-9a-f]{64}")


class StoreError(SourceError):
    """The cache folder cannot do what is asked: full, not writable, or blocked by another process."""


class CorruptFile(SourceError):
    """A file has not the size or the sha256 that it must have; the message says what it is instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Store:
    """The content-addressed part of a cache folder; it need not exist yet."""

    root: Path

    def file(self, sha256: str) -> Path:
        """Where the file of that content lies, or will lie.

        Raises:
            SourceError: not a lower-case sha256, which must never reach a path.
        """
        if not _SHA256.fullmatch(sha256):
            raise SourceError(
                f"{sha256!r} is no sha256: expected 64 lower-case hex digits; fix the catalogue"
            )
        return self.root / "files" / sha256[:2] / sha256

    def part(self, sha256: str) -> Path:
        """Where an unfinished download of that content grows."""
        return self.root / "partial" / f"{self.file(sha256).name}.part"

    def files(self) -> Iterator[Path]:
        """Every stored file, in no order."""
        return (file for file in self.root.glob("files/??/*") if _SHA256.fullmatch(file.name))

    def find(self, sha256: str, size: int = 0) -> Path | None:
        """The file, its last use stamped; None when it is absent or has not `size` bytes (0: any)."""
        file = self.file(sha256)
        try:
            if not file.is_file() or (size and file.stat().st_size != size):
                return None
        except OSError:
            return None
        with contextlib.suppress(OSError):  # a shared cache may be read-only
            os.utime(record_path(file))
        return file

    def lock(self, sha256: str) -> FileLock:
        """The lock of whoever writes or removes that content; not blocking until it is acquired."""
        return FileLock(self.root / "locks" / f"{sha256}.lock")

    @contextlib.contextmanager
    def claim(self, sha256: str) -> Iterator[None]:
        """Hold the right to write this content; others wait as long as the holder makes progress.

        Raises:
            StoreError: the folder cannot be written, or the holder made no progress for `STALL` seconds.
        """
        part, lock = self.part(sha256), self.lock(sha256)
        try:
            for folder in (part.parent, self.file(sha256).parent, self.root / "locks"):
                folder.mkdir(parents=True, exist_ok=True)
            _wait(lock, part)
        except (OSError, NotImplementedError) as error:  # the latter: no locks on this file system
            raise StoreError(
                f"{self.root}: the cache cannot be written ({getattr(error, 'strerror', '') or error}): "
                "free it, or choose another folder with ONNX_MODELS_CACHE"
            ) from None
        try:
            yield
        finally:
            lock.release()

    def admit(self, sha256: str, *, size: int, name: str, route: str) -> Path:
        """Give the finished partial file its name, after a look at every byte of it; needs `claim`.

        The file is hashed as it lies on disk, which also catches a second
        writer where the file system's locks do not work.

        Raises:
            CorruptFile: size or hash differ; the partial file is removed.
            StoreError: the folder cannot take it; nothing is left behind.
        """
        part, file = self.part(sha256), self.file(sha256)
        problem = problem_of(part, sha256, size)
        if problem:
            part.unlink(missing_ok=True)
            raise CorruptFile(problem)
        names = sorted({name, *read_record(file).get("names", ())})
        record = {"names": names, "bytes": part.stat().st_size, "route": route, "fetched": int(time.time())}
        try:
            _write_record(file, record)
            with part.open("rb") as opened:
                os.fsync(opened.fileno())
            part.replace(file)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise StoreError(
                f"{file}: cannot be written ({error.strerror}): make room, then try again"
            ) from None
        return file

    def also(self, sha256: str, name: str) -> None:
        """Note one more path that a stored file serves; a read-only cache is left as it is."""
        file = self.file(sha256)
        record = read_record(file)
        if record and name not in record.get("names", []):
            record["names"] = sorted({name, *record["names"]})
            with contextlib.suppress(OSError):
                _write_record(file, record)

    @contextlib.contextmanager
    def lease(self, sha256: str) -> Iterator[None]:
        """Keep `upkeep.prune` of any process, on any machine, away from a file while it is in use.

        The lease ends with the process, however that ends. A cache in which no
        lock file can be made is used without one.
        """
        with contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):
                fcntl.flock(stack.enter_context(self._lease_file(sha256)), fcntl.LOCK_SH)
            yield

    @contextlib.contextmanager
    def unleased(self, sha256: str) -> Iterator[bool]:
        """Whether nobody holds a lease; when so, nobody gets one before the block ends."""
        with contextlib.ExitStack() as stack:
            try:
                fcntl.flock(stack.enter_context(self._lease_file(sha256)), fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                free = False
            else:
                free = True
            yield free

    def in_use(self, sha256: str) -> bool:
        """Whether some process holds a lease."""
        if not self._lease_path(sha256).exists():
            return False
        with self.unleased(sha256) as free:
            return not free

    def _lease_path(self, sha256: str) -> Path:
        return self.root / "locks" / f"{self.file(sha256).name}.lease"

    def _lease_file(self, sha256: str) -> IO[bytes]:
        path = self._lease_path(sha256)
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("a+b")

    def ensure_space(self, needed: int, what: str) -> None:
        """Refuse a download that the disk cannot hold, before it starts.

        Raises:
            StoreError: fewer than `needed` + `SPARE` bytes are free.
        """
        folder = next((p for p in (self.root, *self.root.absolute().parents) if p.exists()), Path("/"))
        free = shutil.disk_usage(folder).free
        if needed and needed + SPARE > free:
            raise StoreError(
                f"{what}: needs {size_text(needed)} in {self.root}, where {size_text(free)} are free: "
                "make room with 'onnx-models cache prune --max-size SIZE' or set ONNX_MODELS_CACHE"
            )


def problem_of(file: Path, sha256: str, size: int) -> str:
    """What is wrong with a file that should have that hash and size (0: any); '' when nothing is."""
    with file.open("rb") as opened:
        what = describe(opened.read(2048))
    found = file.stat().st_size
    if size and found != size:
        return f"{what or f'{found:,} bytes'} instead of {size:,} bytes"
    digest = sha256_of(file)
    if digest == sha256:
        return ""
    return f"{what or f'sha256 {digest[:12]}…'} instead of sha256 {sha256[:12]}…"


def record_path(file: Path) -> Path:
    """The record beside a stored file; its modification time is the file's last use."""
    return file.with_name(f"{file.name}.json")


def read_record(file: Path) -> dict[str, Any]:
    """`names`, `bytes`, `route` and `fetched` of a stored file; empty when there is no readable record."""
    try:
        record = json.loads(record_path(file).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _write_record(file: Path, record: dict[str, Any]) -> None:
    staged = file.with_name(f"{file.name}.{os.getpid()}.tmp")
    try:
        staged.write_text(json.dumps(record) + "\n", encoding="utf-8")
        staged.replace(record_path(file))
    finally:
        staged.unlink(missing_ok=True)


def _wait(lock: FileLock, part: Path) -> None:
    size = -1
    while True:
        try:
            lock.acquire(timeout=STALL)
            return
        except Timeout:
            grown = part.stat().st_size if part.exists() else 0
            if grown == size:
                raise StoreError(
                    f"{lock.lock_file}: another process holds it and made no progress in {STALL:.0f} s: "
                    "end that process, then try again"
                ) from None
            size = grown
