"""Writes pages: only those that changed, and only into a folder that is a site or empty."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from onnx_models.outcomes import SuiteError, UsageError

MARKER = ".onnx-models-site"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One file of the site: its path with `/`, and its text."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """What a build did."""

    pages: int
    changed: int
    removed: int
    largest: tuple[str, int]


def claim(folder: Path) -> None:
    """Make the site's folder, or take one that is a site already.

    Raises:
        UsageError: something else lies there.
        SuiteError: it cannot be written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / MARKER).exists():
            if any(folder.iterdir()):
                raise UsageError(
                    f"{folder}: holds other files: name an empty folder or one with a site in it"
                )
            (folder / MARKER).write_text("Made by onnx-models dashboard; may be removed.\n", "utf-8")
    except OSError as error:
        raise SuiteError(f"{folder}: cannot be written ({error.strerror}); name another folder") from None


def write(pages: Iterable[Page], folder: Path) -> Written:
    """Write the pages and remove what no page of this build is.

    A reader of the site while it is written sees each page as it was or as it is.
    """
    kept = {folder / MARKER}
    inside: set[Path] = set()
    changed = 0
    largest = ("", 0)
    for page in pages:
        target = folder / page.path
        if target in kept:
            raise SuiteError(f"{page.path}: two pages of one name")
        kept.add(target)
        if target.parent not in inside:
            _require_inside(target.parent, folder)
            inside.add(target.parent)
        data = page.text.encode("utf-8", "replace")
        largest = max(largest, (page.path, len(data)), key=lambda each: each[1])
        if not _same(target, data):
            _replace(target, data)
            changed += 1
    removed = _sweep(folder, kept)
    return Written(pages=len(kept) - 1, changed=changed, removed=removed, largest=largest)


def _require_inside(place: Path, folder: Path) -> None:
    """Refuse a folder of the site that is a link to somewhere else: what lies there is not ours."""
    if not place.resolve().is_relative_to(folder.resolve()):
        raise UsageError(f"{place}: a link that leads out of the site: remove it and build again")


def _same(target: Path, data: bytes) -> bool:
    try:
        return target.stat().st_size == len(data) and target.read_bytes() == data
    except OSError:
        return False


def _replace(target: Path, data: bytes) -> None:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(name).chmod(0o644)
            Path(name).replace(target)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
    except OSError as error:
        raise SuiteError(
            f"{target}: cannot be written ({error.strerror}); free some space and build again"
        ) from None


def _sweep(folder: Path, kept: set[Path]) -> int:
    removed = 0
    for place, folders, files in os.walk(folder, topdown=False):
        for name in files:
            if Path(place, name) not in kept:
                Path(place, name).unlink()
                removed += 1
        for name in folders:
            inner = Path(place, name)
            if not inner.is_symlink() and not any(inner.iterdir()):
                inner.rmdir()
    return removed


def file_name(text: str) -> str:
    """A relative path that is safe in any folder and any URL, different for different texts.

    `a/b` stays `a/b`; whatever is not a plain letter, digit or one of `_.-` becomes its code.
    """
    parts = ["".join(map(_safe, part)) for part in text.split("/")]
    safe = [part if part.strip(".") else part.replace(".", "~2e~") or "~" for part in parts]
    return "/".join(part if len(part) <= 120 else f"{part[:100]}~{_short(part)}" for part in safe)


def _safe(c: str) -> str:
    return c if c.isascii() and (c.isalnum() or c in "_.-") else f"~{ord(c):x}~"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
