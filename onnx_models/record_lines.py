"""The lines of a record file as JSON objects; what is damaged or hostile is refused in one line.

A file may come from anywhere: every bound here keeps a small file from taking
all memory, and a strange one from ending in a traceback further on.
"""

from __future__ import annotations

import gzip
import json
import math
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

from onnx_models.migrations import fault
from onnx_models.records import SCHEMA_VERSION, RecordError

LINE_LIMIT = 16 * 2**20
"""Bytes of one line; a real one has 1 to 20 kB. Longer is damage, or a bomb."""

FILE_LIMIT = 2**30
"""Bytes of all lines, uncompressed; 19,200 real cases have 50 to 200 MB."""

DEPTH_LIMIT = 16
"""Levels of a line; a real one has 5."""

WHOLE_LIMIT = 2**63
"""Whole numbers stay below: what databases and other readers take for one."""


def opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    """A record file for reading, unpacked where it is packed, whatever its name says.

    Raises:
        RecordError: it is no file, or cannot be read.
    """
    try:
        with path.open("rb") as file:
            magic = file.read(2)
        if magic == b"\x1f\x8b":
            return gzip.open(path, "rb")
        return path.open("rb")
    except IsADirectoryError:
        raise RecordError(
            f"{path}: a folder, not a record file: name a run of it, as {path}@RELEASE or {path}@RUN"
        ) from None
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        raise RecordError(f"{path}: not a record file ({why}); name the .jsonl of a run") from None


def rows(
    path: Path, stream: IO[bytes] | gzip.GzipFile, *, cut: bool = False, strict: bool = True
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Number, schema version and content of each line.

    Args:
        path: names the file in messages.
        stream: the opened file.
        cut: leave out an unfinished end.
        strict: hold each line against the schema of its version; else only its frame is looked at.

    Raises:
        RecordError: a line is none, or not as the schema says.
    """
    schema = 0
    for number, line in _lines(path, stream, cut=cut):
        row = _parse(path, number, line)
        if number == 1:
            schema = _schema(path, row)
        if strict:
            wrong = fault(row, schema) or _too_deep(row)
            if wrong:
                raise RecordError(f"{path}:{number}: {brief(wrong)}")
        yield number, schema, row


def _lines(path: Path, stream: IO[bytes] | gzip.GzipFile, *, cut: bool) -> Iterator[tuple[int, bytes]]:
    number, size = 0, 0
    try:
        while line := stream.readline(LINE_LIMIT + 1):
            number, size = number + 1, size + len(line)
            if len(line) > LINE_LIMIT:
                raise RecordError(f"{path}:{number}: a line of more than {LINE_LIMIT >> 20} MiB; damaged")
            if size > FILE_LIMIT:
                raise RecordError(f"{path}:{number}: more than {FILE_LIMIT >> 20} MiB of lines; damaged")
            if cut and not line.endswith(b"\n"):
                return
            yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not cut:
            raise RecordError(f"{path}: damaged after line {number} ({error}); copy it again") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read ({error.strerror}); copy it again") from None


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        text = line.decode("utf-8")
        row = json.loads(text, parse_constant=_refuse, parse_float=_finite, parse_int=_whole)
        if "\\ud" in text or "\\uD" in text:
            json.dumps(row, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError:
        raise RecordError(f"{path}:{number}: not UTF-8; this is not a record file") from None
    except UnicodeEncodeError:
        raise RecordError(f"{path}:{number}: half of a character (a lone surrogate); damaged") from None
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecordError(f"{path}:{number}: not JSON ({brief(why)}); the run was cut off here") from None
    if not isinstance(row, dict):
        raise RecordError(f"{path}:{number}: expected an object, found {type(row).__name__}")
    return row


def _refuse(word: str) -> float:
    raise ValueError(f"{word} is no JSON number")


def _finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(f"{text[:40]} is too large")
    return value


def _whole(text: str) -> int:
    if len(text) > 20 or abs(int(text)) >= WHOLE_LIMIT:
        raise ValueError(f"{text[:40]} is too large")
    return int(text)


def _too_deep(row: object) -> str:
    level = [row]
    for _ in range(DEPTH_LIMIT):
        level = [
            inner
            for each in level
            for inner in (each.values() if isinstance(each, dict) else each if isinstance(each, list) else ())
            if isinstance(inner, (dict, list))
        ]
        if not level:
            return ""
    return "nested too deeply"


def _schema(path: Path, row: Mapping[str, Any]) -> int:
    if row.get("type") != "header":
        raise RecordError(f"{path}: no header; this is not a record file")
    schema = row.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise RecordError(f"{path}: schema {brief(repr(schema))}; this is not a record file")
    if schema > SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema {schema}, this version reads up to {SCHEMA_VERSION}: update onnx-models"
        )
    return schema


def brief(text: str, limit: int = 200) -> str:
    """One printable line of at most so many characters."""
    line = " ".join(printable(text[: 2 * limit]).split())
    return line if len(line) <= limit else line[: limit - 1] + "…"


def printable(text: str) -> str:
    """Text that a terminal shows and does not obey."""
    return "".join(c if c.isprintable() else " " for c in text)
