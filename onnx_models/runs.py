"""Finished runs as files: immutable, compressed, readable years later.

`<run id>.jsonl.gz` holds the lines of a record (`records`). A file is written
whole or not at all, and never again.
"""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from onnx_models import record_lines
from onnx_models.migrations import migrate
from onnx_models.outcomes import Verdict
from onnx_models.record_lines import brief
from onnx_models.records import RecordError

SUFFIX = ".jsonl.gz"

_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS, errno.EMLINK)
"""What a file system says that has no hard links, as on a USB stick or a share."""


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
    def whole(self) -> bool:
        """Whether it has cases, ran to its end, and says something of IREE; no other is known to be fine."""
        return bool(self.footer["complete"] and not self.footer.get("host_broken") and self.cases)

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
    header: dict[str, Any] | None = None
    footer: dict[str, Any] | None = None
    cases: dict[str, dict[str, Any]] = {}
    with record_lines.opened(path) as stream:
        for number, schema, line in record_lines.rows(path, stream, cut=allow_incomplete):
            row = migrate(line, schema)
            if header is None:
                header = row
                continue
            if footer is not None or row["type"] == "header":
                raise RecordError(f"{path}:{number}: a line after the footer; this is more than one run")
            if row["type"] == "footer":
                footer = row
                continue
            _check_case(f"{path}:{number}", row, header, cases)
            cases[row["id"]] = row
    if header is None:
        raise RecordError(f"{path}: no header; this is not a record file")
    if footer is None and not allow_incomplete:
        raise RecordError(
            f"{path}: no footer; the run was cut off: run it again, or keep what is there with "
            "onnx-models merge --allow-incomplete"
        )
    footer = footer or _cut_off(header, cases.values())
    _check_ends(path, header, cases.values(), footer)
    return RunFile(header=header, cases=tuple(cases.values()), footer=footer)


def stream(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a file that `write` wrote, migrated, one at a time; only its frame is checked.

    Raises:
        RecordError: it is no record file, of a newer schema, cut off or damaged.
    """
    last = ""
    with record_lines.opened(path) as file:
        for _, schema, row in record_lines.rows(path, file, strict=False):
            last = str(row.get("type"))
            yield migrate(row, schema)
    if not last:
        raise RecordError(f"{path}: no header; this is not a record file")
    if last != "footer":
        raise RecordError(f"{path}: no footer; the run was cut off, run it again")


def header_of(path: Path) -> dict[str, Any]:
    """The header of a record file; the rest is not read.

    Raises:
        RecordError: it is no record file, or of a newer schema.
    """
    with record_lines.opened(path) as file:
        for _, schema, row in record_lines.rows(path, file):
            return migrate(row, schema)
    raise RecordError(f"{path}: no header; this is not a record file")


def write(run: RunFile, folder: Path) -> Path:
    """Put a run into a folder as `<run id>.jsonl.gz`.

    Raises:
        RecordError: another run of that id is there, or the folder cannot be written.
    """
    if not re.fullmatch(r"\w[\w.+-]{0,199}", run.id):
        raise RecordError(f"run {run.id!r}: cannot name a file: only letters, digits and _.+-")
    target = folder / f"{run.id}{SUFFIX}"
    try:
        if not folder.is_dir():
            folder.mkdir(parents=True)
        _link(packed(run.rows()), target)
    except FileExistsError:
        if folder.is_dir() and list(read(target).rows()) == list(run.rows()):
            return target
        raise RecordError(
            f"{target if folder.is_dir() else folder}: there already, with other content: "
            "runs are never written again, name another folder"
        ) from None
    except OSError as error:
        raise RecordError(f"{target}: cannot be written ({error.strerror}); name another folder") from None
    return target


def _link(data: bytes, target: Path) -> None:
    """Write a whole file that is not there yet; what fails leaves nothing."""
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=".new-")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        Path(name).chmod(0o644)
        try:
            os.link(name, target)  # unlike a rename, fails when another process was faster
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            if target.exists():
                raise FileExistsError from None
            Path(name).replace(target)
    finally:
        Path(name).unlink(missing_ok=True)


def packed(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """The bytes of a run's file: the same for the same lines, whenever they are written (by one zlib)."""
    text = io.BytesIO()
    with gzip.GzipFile(fileobj=text, mode="wb", compresslevel=6, mtime=0, filename="") as file:
        for row in rows:
            line = json.dumps(row, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
            file.write(line.encode() + b"\n")
    return text.getvalue()


def files(folder: Path) -> tuple[Path, ...]:
    """The run files of a folder, sorted by name; none of an empty one.

    Raises:
        RecordError: it is no folder, or one of other things.
    """
    if not folder.is_dir():
        raise RecordError(f"{folder}: no folder of runs: make one with onnx-models merge RECORD -o {folder}")
    there = [path for path in folder.iterdir() if not path.name.startswith(".")]
    found = tuple(sorted(path for path in there if path.name.endswith(SUFFIX) and path.is_file()))
    if there and not found:
        records = sorted(path.name for path in there if path.suffix == ".jsonl")
        how = (
            f"runs are made of records: onnx-models merge {folder / records[-1]} -o RUNS"
            if records
            else "name another"
        )
        raise RecordError(f"{folder}: holds no runs (*{SUFFIX}): {how}")
    return found


def _check_case(
    place: str, case: Mapping[str, Any], header: Mapping[str, Any], seen: Mapping[str, object]
) -> None:
    if case["id"] in seen:
        raise RecordError(f"{place}: the case {brief(case['id'])} is there twice; this is more than one run")
    if case["device"] not in header["devices"]:
        raise RecordError(f"{place}: device {brief(case['device'])} is not in the header; damaged")
    if case["verdict"] == Verdict.PASSED.value and case["kind"] is not None:
        raise RecordError(f"{place}: {brief(case['id'])} passed and failed ({brief(case['kind'])}); damaged")
    if case["id"] != f"{case['device']}/{case['collection']}/{case['model']}":
        raise RecordError(f"{place}: the id {brief(case['id'])} is not device/collection/model; damaged")


def _check_ends(
    path: Path,
    header: Mapping[str, Any],
    cases: Collection[Mapping[str, Any]],
    footer: Mapping[str, Any],
) -> None:
    if len(cases) != footer["cases"]:
        raise RecordError(f"{path}: the footer counts {footer['cases']} cases, the file has {len(cases)}")
    if footer["verdicts"] != dict(Counter(case["verdict"] for case in cases)):
        raise RecordError(f"{path}: the footer's verdicts are not those of the cases; damaged")
    for stamp in (header["started"], footer["finished"]):
        try:
            datetime.fromisoformat(stamp)
        except ValueError:
            raise RecordError(f"{path}: {brief(repr(stamp))} is no time; damaged") from None


def _cut_off(header: Mapping[str, Any], cases: Collection[Mapping[str, Any]]) -> dict[str, Any]:
    """The footer of a run that has none."""
    verdicts = Counter(case["verdict"] for case in cases)
    return {
        "type": "footer",
        "finished": header["started"],
        "complete": False,
        "cases": len(cases),
        "verdicts": dict(sorted(verdicts.items())),
    }


def run_id(path: Path) -> str:
    """The id of the run in a file, by its name."""
    name = path.name
    with suppress(ValueError):
        return name[: name.index(".jsonl")]
    return path.stem
