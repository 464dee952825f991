"""Writes pages: only those that changed, and only into a folder that is a site or empty."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from onnx_models.files import write_atomic
from onnx_models.outcomes import SuiteError, UsageError

MARKER = ".onnx-models-site"


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One file of the site: its path with `/`, and its text."""

    path: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Put:
    """A page that lies where it belongs: its path, its bytes, and whether they are other ones than before."""

    path: str
    size: int
    changed: bool


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


class Writer:
    """Puts pages into the folder of a site."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._inside: set[Path] = set()

    def put(self, page: Page) -> Put:
        """Write a page, unless it is there as it is; a reader sees it as it was or as it is.

        Raises:
            UsageError: a link leads out of the site there.
            SuiteError: it cannot be written.
        """
        target = self.folder / page.path
        if target.parent not in self._inside:
            _require_inside(target.parent, self.folder)
            self._inside.add(target.parent)
        data = page.text.encode("utf-8", "replace")
        changed = not _same(target, data)
        if changed:
            _replace(target, data)
        return Put(path=page.path, size=len(data), changed=changed)


def write(pages: Iterable[Page | Put], folder: Path) -> Written:
    """Write the pages that are not put there yet, and remove what no page of this build is."""
    writer = Writer(folder)
    kept = {folder / MARKER}
    changed = 0
    largest = ("", 0)
    for page in pages:
        done = page if isinstance(page, Put) else writer.put(page)
        target = folder / done.path
        if target in kept:
            raise SuiteError(f"{done.path}: two pages of one name")
        kept.add(target)
        largest = max(largest, (done.path, done.size), key=lambda each: each[1])
        changed += done.changed
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
        write_atomic(target, data)
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


@cache
def file_name(text: str) -> str:
    """A relative path that is safe in any folder and any URL, different for different texts.

    `a/b` stays `a/b`; whatever is not a plain letter, digit or one of `_.-` becomes its code.
    """
    parts = [re.sub(r"[^A-Za-z0-9_.-]", _code, part) for part in text.split("/")]
    safe = [part if part.strip(".") else part.replace(".", "~2e~") or "~" for part in parts]
    return "/".join(part if len(part) <= 120 else f"{part[:100]}~{_short(part)}" for part in safe)


def _code(character: re.Match[str]) -> str:
    return f"~{ord(character[0]):x}~"


def _short(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]
