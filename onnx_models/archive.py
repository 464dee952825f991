"""Archives and external data are hostile until proven otherwise.

An archive is read member by member into a folder of its own beside the target,
which takes its name only when every member was good: nothing is ever written
elsewhere, and a refused archive leaves nothing. tarfile's own filters are not
enough here: they bound neither sizes nor counts, and its header parser reads
an extended header of any size into memory.
"""

from __future__ import annotations

import contextlib
import gzip
import re
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, cast

from onnx_models.files import describe, size_text
from onnx_models.outcomes import SuiteError

HEADER_BYTES = 256 << 10
"""The most that one tar header may take with its extensions; long names need less than 64 KiB."""

_CHUNK = 1 << 20


class HostileArchive(SuiteError):
    """An archive that is refused: what is wrong with which member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The most that an archive may unpack to.

    Weights shrink little and test data at most some hundredfold: an archive
    may grow to `growth` times its size, or to `floor` bytes if that is more,
    but never beyond `total`. The zoo's largest archive has 2.7 GB.
    """

    total: int = 16 << 30
    floor: int = 256 << 20
    growth: int = 50
    members: int = 10_000
    name: int = 1024

    def bytes_for(self, archive_bytes: int) -> int:
        """Bytes that an archive of that size may unpack to."""
        return min(self.total, max(self.floor, self.growth * archive_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A member of either kind of archive; `wrong` says why its kind is refused."""

    name: str
    size: int
    folder: bool
    wrong: str
    open: Callable[[], IO[bytes] | None]


def extract(
    archive: Path, target: Path, *, keep: Callable[[str], bool] | None = None, limits: Limits | None = None
) -> Path:
    """Unpack a tar, tar.gz or zip into the folder `target`, wholly or not at all.

    A target that exists is left as it is: another worker was first.

    Args:
        archive: the file; its hash was checked by whoever fetched it, which says nothing about its contents.
        target: folder to make.
        keep: which member names to write; the others are inspected all the same.
        limits: the most that is accepted.

    Raises:
        HostileArchive: a member that is absolute, leaves the target, is a link, device, sparse, encrypted,
            too large or named twice; too many members; data that is damaged or no archive.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{target.name[:64]}-", dir=target.parent))
    try:
        inner = scratch / "content"
        inner.mkdir()
        _unpack(archive, inner, keep or (lambda _: True), limits or Limits())
        with contextlib.suppress(OSError):
            inner.rename(target)
        if not target.is_dir():
            raise HostileArchive(f"{archive}: {target} cannot be made: remove what stands in its place")
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    return target


def _unpack(archive: Path, folder: Path, keep: Callable[[str], bool], limits: Limits) -> None:
    size = archive.stat().st_size
    allowed = limits.bytes_for(size)
    total = count = 0
    seen: dict[str, bool] = {}
    try:
        for member in _members(archive, allowed):
            count += 1
            total += member.size
            problem = member.wrong or _name_problem(member.name, limits.name)
            problem = problem or _twice(member, seen)
            if count > limits.members:
                problem = f"is one of more than {limits.members:,} members"
            if total > allowed:
                problem = f"brings the content to {size_text(total)}, {size_text(allowed)} allowed"
            if problem:
                raise HostileArchive(f"{archive}: refused: member {member.name[:200]!r} {problem}")
            if not member.folder and keep(member.name):
                _write(member, folder / PurePosixPath(member.name), archive)
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, gzip.BadGzipFile) as error:
        raise HostileArchive(
            f"{archive}: damaged or no archive ({error}): delete it and fetch it again"
        ) from None
    except (_TooMuch, NotImplementedError, RuntimeError, ValueError, OverflowError) as error:
        raise HostileArchive(f"{archive}: refused: {error}") from None
    if not count:
        raise HostileArchive(f"{archive}: refused: it is empty; delete it and fetch it again")


def _members(archive: Path, allowed: int) -> Iterator[_Member]:
    with archive.open("rb") as file:
        head = file.read(2048)
        file.seek(0)
        if zipfile.is_zipfile(archive) and head.startswith(b"PK"):
            yield from _zip_members(archive)
        elif head.startswith(b"\x1f\x8b"):
            with gzip.open(file) as plain:
                yield from _tar_members(cast(IO[bytes], plain), allowed)
        elif head[257:262] == b"ustar":
            yield from _tar_members(file, allowed)
        else:
            what = describe(head) or "something else"
            raise HostileArchive(f"{archive}: expected a .tar.gz or .zip, found {what}: fetch it again")


class _TooMuch(Exception):
    """A bound of `_Bounded` was met."""


class _Bounded:
    """A stream that refuses reads and positions beyond a bound, before the memory or time is spent.

    `budget` is what may still be read, set anew for each header and each content.
    """

    def __init__(self, stream: IO[bytes], allowed: int) -> None:
        self._stream = stream
        self._allowed = allowed
        self.budget = HEADER_BYTES

    def read(self, size: int = -1) -> bytes:
        self.budget -= size
        if size < 0 or self.budget < 0:
            raise _TooMuch(f"a header of the archive is larger than {size_text(HEADER_BYTES)}")
        return self._stream.read(size)

    def seek(self, offset: int, whence: int = 0) -> int:
        if offset > self._allowed:
            raise _TooMuch(f"the archive unpacks to more than {size_text(self._allowed)}")
        return self._stream.seek(offset, whence)

    def tell(self) -> int:
        return self._stream.tell()

    def close(self) -> None:
        """The stream is its opener's."""


def _tar_members(stream: IO[bytes], allowed: int) -> Iterator[_Member]:
    # Headers and padding come on top of the content.
    bounded = _Bounded(stream, allowed + 256 * HEADER_BYTES)
    with tarfile.open(fileobj=cast(IO[bytes], bounded), mode="r:") as tar:
        while True:
            bounded.budget = HEADER_BYTES
            info = tar.next()
            if info is None:
                return
            bounded.budget = max(0, info.size) + HEADER_BYTES
            yield _Member(
                name=info.name,
                size=info.size,
                folder=info.isdir(),
                wrong=_tar_problem(info),
                open=partial(tar.extractfile, info),
            )


def _tar_problem(info: tarfile.TarInfo) -> str:
    if info.issym() or info.islnk():
        return f"is a link to {info.linkname[:200]!r}"
    if info.isdev():
        return "is a device or a pipe"
    if info.issparse():
        return "is sparse"
    if not (info.isreg() or info.isdir()):
        return f"has the unknown type {info.type!r}"
    return "" if info.size >= 0 else "has a negative size"


def _zip_members(archive: Path) -> Iterator[_Member]:
    with zipfile.ZipFile(archive) as opened:
        for info in opened.infolist():
            kind = stat.S_IFMT(info.external_attr >> 16)
            wrong = ""
            if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
                wrong = "is a link" if kind == stat.S_IFLNK else "is a device or a pipe"
            elif info.flag_bits & 1:
                wrong = "is encrypted"
            yield _Member(
                # orig_filename: `filename` has lost what follows a NUL and, on Windows, the backslashes.
                name=info.orig_filename,
                size=info.file_size,
                folder=info.is_dir(),
                wrong=wrong,
                open=partial(opened.open, info),
            )


def _name_problem(name: str, longest: int) -> str:
    if not name:
        return "has no name"
    if len(name) > longest:
        return f"has a name of {len(name):,} characters"
    if any(ord(character) < 32 for character in name):
        return "has a control character in its name"
    if name.startswith("/") or re.match(r"[A-Za-z]:", name):
        return "has an absolute path"
    if "\\" in name:
        return "has a backslash in its name"
    if ".." in name.split("/"):
        return "leads out of its folder by '..'"
    return ""


def _twice(member: _Member, seen: dict[str, bool]) -> str:
    """Files that share a name, also where case does not count, and a file where a folder must be."""
    parts = [part for part in member.name.casefold().split("/") if part not in ("", ".")]
    name = "/".join(parts)
    if name in seen and not (member.folder and seen[name]):
        return "is there twice"
    for end in range(1, len(parts)):
        if not seen.setdefault("/".join(parts[:end]), True):
            return "lies below a file"
    seen[name] = member.folder
    return ""


def _write(member: _Member, path: Path, archive: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    left = member.size
    opened = member.open()
    if opened is None:
        raise HostileArchive(f"{archive}: refused: member {member.name[:200]!r} has no content")
    with opened as source, path.open("xb") as out:
        while left:
            chunk = source.read(min(left, _CHUNK))
            if not chunk:
                raise HostileArchive(
                    f"{archive}: member {member.name[:200]!r} ends {left:,} bytes early: fetch it again"
                )
            left -= out.write(chunk)
