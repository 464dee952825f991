"""Where fetched and made model files are kept, and how a file gets in.

A file has its final name only once its size and sha256 are verified; its name holds
the start of the hash, so that a changed catalogue record never meets an old file.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import filelock

from onnx_models.catalog import Model
from onnx_models.files import sha256_of
from onnx_models.outcomes import SuiteError

LOCK_SECONDS = 1800.0
"""How long to wait for another worker that is making the same file."""


class SourceError(SuiteError):
    """A model's file cannot be had; the message is one line with the next step."""


class OfflineError(SourceError):
    """A file is not in the cache and downloads are off: a skip, an error with `--require-models`."""


def default_cache() -> Path:
    """`$ONNX_MODELS_CACHE`, `$IREE_TEST_FILES`, else `onnx_models` in the user's cache folder."""
    own = os.environ.get("ONNX_MODELS_CACHE") or os.environ.get("IREE_TEST_FILES")
    if own:
        return Path(own).expanduser()
    shared = os.environ.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "onnx_models"


def place(model: Model, cache: Path) -> Path:
    """Where the model's file lies in the cache, whether it is there or not."""
    return cache / model.collection / f"{model.path}-{model.sha256[:12]}.onnx"


def keep(model: Model, cache: Path, make: Callable[[Path], None], *, lock: str = "") -> Path:
    """The model's cached file, made when it is missing or damaged.

    `make` writes the path it is given, which lies beside the final name. `lock` names what
    workers must not do at the same time (by default: this model).

    Raises:
        SourceError: `make` failed, made another file than the record says, or the cache
            cannot be written.
    """
    target = place(model, cache)
    if _intact(model, target):
        return target
    with locked(cache, lock or model.id):
        if not _intact(model, target):
            with _writable(cache):
                target.parent.mkdir(parents=True, exist_ok=True)
                with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as scratch:
                    made = Path(scratch) / "model.onnx"
                    make(made)
                    verify(model, made)
                    _seal(made)
                    made.replace(target)
                    _mark(made).replace(_mark(target))
    return target


def verify(model: Model, file: Path) -> None:
    """Hold a file against the record.

    Raises:
        SourceError: size or sha256 differ.
    """
    found = file.stat().st_size
    if model.bytes and found != model.bytes:
        raise SourceError(
            f"{model.id}: expected {model.bytes} bytes, found {found}: nothing was kept, try again"
        )
    digest = sha256_of(file)
    if digest != model.sha256:
        raise SourceError(f"{model.id}: expected sha256 {model.sha256}, found {digest}: nothing was kept")


def missing_offline(model: Model, cache: Path) -> OfflineError:
    """The error of a file that only a download gives, when downloads are off."""
    return OfflineError(
        f"{model.id}: {place(model, cache)} is missing and downloads are off: "
        f"run '{fetch_command(model.id, cache)}' with a network"
    )


def fetch_command(name: str, cache: Path) -> str:
    """The command that fetches a model into that cache."""
    words = ["onnx-models", "fetch", name]
    return shlex.join([*words, "--cache-dir", str(cache)] if cache != default_cache() else words)


@contextlib.contextmanager
def locked(cache: Path, name: str) -> Iterator[None]:
    """Hold the cache's lock of that name; a second process waits for the first to finish.

    Raises:
        SourceError: the cache cannot be written, or the other process takes too long.
    """
    file = cache / "locks" / (re.sub(r"[^\w.=-]+", "_", name) + ".lock")
    with _writable(cache):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = filelock.FileLock(file, timeout=LOCK_SECONDS)
        try:
            lock.acquire()
        except filelock.Timeout:
            wait = f"another process has been at {name} for {LOCK_SECONDS:.0f} s"
            raise SourceError(f"{wait}: end it, or remove {file}") from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _writable(cache: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        hint = "choose another folder with ONNX_MODELS_CACHE"
        raise SourceError(f"cache {cache}: cannot be written ({error}): {hint}") from error


def _mark(file: Path) -> Path:
    return file.with_name(f"{file.name}.verified")


def _stamp(file: Path) -> str:
    facts = file.stat()
    return f"{facts.st_size} {facts.st_mtime_ns}"


def _seal(file: Path) -> None:
    """Note size and time of a verified file, so that half a gigabyte need not be hashed in every run."""
    _mark(file).write_text(_stamp(file), encoding="ascii")


def _intact(model: Model, file: Path) -> bool:
    """Whether the file is the verified one; one whose mark is gone or differs is hashed again."""
    try:
        if _mark(file).read_text(encoding="ascii") == _stamp(file):
            return True
    except (OSError, ValueError):
        pass
    try:
        verify(model, file)
    except (OSError, SourceError):
        return False
    with contextlib.suppress(OSError):  # a cache that is mounted read-only serves as well
        _seal(file)
    return True
