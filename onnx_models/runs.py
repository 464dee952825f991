"""Finished runs as files: immutable, compressed, readable years later.

`<run id>.jsonl.gz` holds the lines of a record (`records`). A file is written
whole or not at all, never again, and says the same bytes for the same run.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import re
import tempfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from onnx_models.migrations import migrate
from onnx_models.records import SCHEMA, SCHEMA_VERSION, RecordError

if TYPE_CHECKING:
    from jsonschema import Draft202012Validator

SUFFIX = ".jsonl.gz"

LINE_LIMIT = 16 * 2**20
"""Bytes of one line; a real one has 1 to 20 kB. Longer is damage, or a bomb."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFile:
    """A whole run: its header, its cases in the order in which they ended, its footer."""

    header: Mapping[str, Any]
    cases: tuple[Mapping[str, Any], ...]
    footer: Mapping[str, Any]

    @property
    def id(self) -> str:
        """Names the run."""
        return str(self.header["run"])

    @property
    def parts(self) -> tuple[dict[str, Any], list[dict[str, Any]], dict[str, Any]]:
        """Header, cases and footer."""
        return dict(self.header), [dict(case) for case in self.cases], dict(self.footer)

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """The lines of its file."""
        yield self.header
        yield from self.cases
        yield self.footer


def read(path: Path, *, allow_incomplete: bool = False) -> RunFile:
    """A record file, `.jsonl` or `.jsonl.gz`, of any schema up to today's.

    Args:
        path: the file.
        allow_incomplete: take a file whose footer is missing, as one of a run that was cut off.

    Raises:
        RecordError: a line is not as the schema says, a case is there twice, or the footer is missing.
    """
    rows: list[dict[str, Any]] = []
    validator, schema = _validator(), 0
    with _opened(path) as stream:
        for number, line in _lines(path, stream, cut=allow_incomplete):
            row = _parse(path, number, line)
            schema = _schema(path, row) if number == 1 else schema
            fault = next(iter(validator.iter_errors(row)), None)
            if fault is not None:
                raise RecordError(f"{path}:{number}: {_brief(fault.message)} at {fault.json_path}")
            rows.append(migrate(row, schema))
    return _whole(path, rows, allow_incomplete)


def stream(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that `add` wrote, migrated, one at a time; only its frame is checked.

    Raises:
        RecordError: it is no record file, of a newer schema, cut off or damaged.
    """
    schema, last = 0, ""
    with _opened(path) as file:
        for number, line in _lines(path, file):
            row = _parse(path, number, line)
            schema = _schema(path, row) if number == 1 else schema
            last = str(row.get("type"))
            yield migrate(row, schema)
    if last != "footer":
        raise RecordError(f"{path}: no footer; the run was cut off, run it again")


def write(run: RunFile, folder: Path) -> Path:
    """Put a run into a folder as `<run id>.jsonl.gz`.

    Raises:
        RecordError: another run of that id is there, or the folder cannot be written.
    """
    if not re.fullmatch(r"\w[\w.+-]{0,199}", run.id):
        raise RecordError(f"run {run.id!r}: cannot name a file: only letters, digits and _.+-")
    target = folder / f"{run.id}{SUFFIX}"
    data = packed(run.rows())
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if target.exists():
            if target.read_bytes() == data:
                return target
            raise RecordError(f"{target}: there already, with other content: runs are never written again")
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=".new-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(data)
            Path(name).chmod(0o644)
            os.link(name, target)  # unlike a rename, fails when another process was faster
        finally:
            Path(name).unlink(missing_ok=True)
    except FileExistsError:
        return write(run, folder)
    except OSError as error:
        raise RecordError(f"{target}: cannot be written ({error.strerror}); name another folder") from None
    return target


def packed(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The bytes of a run's file: the same for the same lines, whenever they are written."""
    text = io.BytesIO()
    with gzip.GzipFile(fileobj=text, mode="wb", compresslevel=6, mtime=0, filename="") as file:
        for row in rows:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            file.write(line.encode("utf-8", "surrogatepass") + b"\n")
    return text.getvalue()


def files(folder: Path) -> tuple[Path, ...]:
    """The run files of a folder, sorted by name.

    Raises:
        RecordError: it is no folder.
    """
    if not folder.is_dir():
        raise RecordError(f"{folder}: no folder of runs: make one with onnx-models merge RECORD -o {folder}")
    return tuple(sorted(path for path in folder.iterdir() if path.name.endswith(SUFFIX) and path.is_file()))


def _whole(path: Path, rows: Sequence[dict[str, Any]], allow_incomplete: bool) -> RunFile:
    if not rows or rows[0]["type"] != "header":
        raise RecordError(f"{path}: no header; this is not a record file")
    cases = [row for row in rows[1:] if row["type"] == "case"]
    ended = rows[-1]["type"] == "footer"
    if not ended and not allow_incomplete:
        raise RecordError(f"{path}: no footer; the run was cut off, run it again (or --allow-incomplete)")
    if len(cases) != len(rows) - 1 - ended:
        raise RecordError(f"{path}: a header or footer among the cases; this is more than one run")
    footer = rows[-1] if ended else _cut_off(rows[0], cases)
    if len(cases) != footer["cases"]:
        raise RecordError(f"{path}: the footer counts {footer['cases']} cases, the file has {len(cases)}")
    seen: set[str] = set()
    for case in cases:
        if case["id"] in seen:
            raise RecordError(
                f"{path}: the case {_brief(case['id'])} is there twice; this is more than one run"
            )
        seen.add(case["id"])
    return RunFile(header=rows[0], cases=tuple(cases), footer=footer)


def _cut_off(header: Mapping[str, Any], cases: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The footer of a run that has none."""
    verdicts: dict[str, int] = {}
    for case in cases:
        verdicts[case["verdict"]] = verdicts.get(case["verdict"], 0) + 1
    return {
        "type": "footer",
        "finished": header["started"],
        "complete": False,
        "cases": len(cases),
        "verdicts": dict(sorted(verdicts.items())),
    }


def _opened(path: Path) -> IO[bytes] | gzip.GzipFile:
    try:
        with path.open("rb") as file:
            magic = file.read(2)
        if magic == b"\x1f\x8b":
            return gzip.open(path, "rb")
        return path.open("rb")
    except OSError as error:
        raise RecordError(f"{path}: not a record file ({error.strerror}); name the .jsonl of a run") from None


def _lines(
    path: Path, stream: IO[bytes] | gzip.GzipFile, *, cut: bool = False
) -> Iterator[tuple[int, bytes]]:
    """The lines with their numbers; with `cut`, an unfinished end is left out."""
    number = 0
    try:
        while line := stream.readline(LINE_LIMIT + 1):
            number += 1
            if len(line) > LINE_LIMIT:
                raise RecordError(f"{path}:{number}: a line of more than {LINE_LIMIT >> 20} MiB; damaged")
            if cut and not line.endswith(b"\n"):
                return
            yield number, line
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        if not cut:
            raise RecordError(f"{path}: damaged after line {number} ({error}); copy it again") from None


def _parse(path: Path, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line, parse_constant=_refuse, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        why = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise RecordError(f"{path}:{number}: not JSON ({_brief(why)}); the run was cut off here") from None
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


def _schema(path: Path, row: Mapping[str, Any]) -> int:
    if row.get("type") != "header":
        raise RecordError(f"{path}: no header; this is not a record file")
    schema = row.get("schema")
    if not isinstance(schema, int) or isinstance(schema, bool) or schema < 1:
        raise RecordError(f"{path}: schema {_brief(repr(schema))}; this is not a record file")
    if schema > SCHEMA_VERSION:
        raise RecordError(
            f"{path}: schema {schema}, this version reads up to {SCHEMA_VERSION}: update onnx-models"
        )
    return schema


def _brief(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text[:400]).split())
    return line if len(line) <= 200 else line[:199] + "…"


@cache
def _validator() -> Draft202012Validator:
    from jsonschema import Draft202012Validator

    return Draft202012Validator(json.loads(SCHEMA.read_text(encoding="utf-8")))


def run_id(path: Path) -> str:
    """The id of the run in a file, by its name."""
    name = path.name
    with suppress(ValueError):
        return name[: name.index(".jsonl")]
    return path.stem
