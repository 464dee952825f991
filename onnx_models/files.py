"""What several parts ask of a file: its hash, its size in words, what it surely is, and a whole write."""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

LFS_POINTER = b"version https://git-lfs"
"""How the text begins that Git LFS keeps in a file's place."""


def sha256_of(file: Path) -> str:
    """Lower-case hex sha256 of a file, read in pieces."""
    total = hashlib.sha256()
    with file.open("rb") as stream:
        while piece := stream.read(1 << 20):
            total.update(piece)
    return total.hexdigest()


def size_text(count: int) -> str:
    """Bytes in decimal units, as people write them: `1.3 MB`, `580.0 GB`."""
    for unit, scale in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count} B"


def is_web_page(head: bytes) -> bool:
    """Whether a file that begins so is HTML: a login, proxy or error page, in the place of a download."""
    return head.lstrip()[:512].lower().startswith((b"<!doctype", b"<html", b"<head", b"<?xml"))


def describe(head: bytes) -> str:
    """What the first bytes of a file show it to be, when it is not the model that was asked for; else ''."""
    if head.startswith(LFS_POINTER):
        return "a Git LFS pointer (the text that stands for the file, not the file)"
    if is_web_page(head):
        title = re.search(rb"<title[^>]*>([^<]{1,80})", head, re.IGNORECASE)
        named = f" titled {title[1].decode('utf-8', 'replace').strip()!r}" if title else ""
        return f"an HTML page{named} (a login, proxy or error page)"
    return ""


def write_atomic(path: Path, content: str | bytes, *, executable: bool = False) -> None:
    """Write a whole file, or leave what is there; who reads it meanwhile sees one or the other."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=".new-")
    temporary = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        temporary.chmod(0o755 if executable else 0o644)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
