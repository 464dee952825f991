"""What a page says of a case beyond the tables: the newest line of its record.

A run that was merged has been held against the schema line by line; one that somebody put into
the folder has not, and checking 19,200 lines takes longer than all the rest. So every value that
a page shows is taken by its type here, and of another type it is as if it were not there.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnx_models import runs
from onnx_models.dashboard.snapshot import TESTED, Subject
from onnx_models.history import History
from onnx_models.records import RecordError

Case = Mapping[str, Any]

EXCERPT_LIMIT = 4000
"""Characters of a log that a page shows; a record of another tool may hold more."""

_LINES, _WORDS = 40, 2000

_OPERATORS = 400
"""Kinds of operators that a page lists; ONNX has 200."""


def newest_lines(history: History, subjects: Iterable[Subject]) -> dict[str, Case]:
    """By case id, the trimmed record line of its newest result, for a missing case that of its last one."""
    wanted: dict[int, set[str]] = defaultdict(set)
    for subject in subjects:
        run = subject.now.run if subject.now.run >= 0 else subject.before.run if subject.before else -1
        wanted[run].add(subject.id)
    found: dict[str, Case] = {}
    for key, file in history.rows("SELECT key, file FROM run ORDER BY position"):
        if key in wanted:
            try:
                for row in runs.stream(history.folder / file):
                    if row.get("type") == "case" and row.get("id") in wanted[key]:
                        found[row["id"]] = _trimmed(row)
            except RecordError as error:
                history.broken[file] = str(error)
    return found


def _trimmed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line without what no page shows, and with every text bounded."""
    outputs = _rows(row, "outputs")
    stages = [stage for stage in _rows(row, "stages") if stage.get("stage") in TESTED]
    worst = max(outputs, key=lambda each: _number(each, "ratio"), default=None)
    kept: dict[str, Any] = {
        key: _text(row, key) for key in ("message", "title", "reason", "vacuous", "signature")
    }
    return kept | {
        "excerpt": _text(row, "excerpt", EXCERPT_LIMIT),
        "notes": _texts(row, "notes"),
        "tags": _texts(row, "tags"),
        "bytes": _whole(row, "bytes"),
        "opset": _whole(row, "opset"),
        "operators": _operators(row),
        "benchmark": _benchmark(_table(row, "benchmark")),
        "expected": _expected(row),
        "stages": [_stage(stage) for stage in stages],
        "folder": _folder(stages, _text(row, "device")),
        "commands": [_texts({"words": c}, "words") for s in stages for c in _lists(s, "commands")[:1]],
        "worst": worst
        and {key: _measure(worst, key) for key in ("ratio", "max_abs", "rmse")} | _named(worst),
        "outputs": len(outputs),
        "unhealthy": _text(_table(row, "health"), "problem"),
    }


def _folder(stages: Sequence[Mapping[str, Any]], device: str) -> str:
    """Where the files of a case lie, by its last log; that of the import is a folder above the device's."""
    logs = [_text(stage, "log") for stage in stages]
    folder = next((log.rpartition("/")[0] for log in reversed(logs) if log), "")
    return f"{folder}/{device}" if folder and not folder.endswith(f"/{device}") else folder


def _stage(stage: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "stage": stage["stage"],
        "ok": stage.get("ok") is True,
        "seconds": _measure(stage, "seconds"),
        "peak_bytes": _whole(stage, "peak_bytes"),
        "product_bytes": _whole(stage, "product_bytes"),
        "reused": stage.get("reused") is True,
    }


def _expected(row: Mapping[str, Any]) -> dict[str, str] | None:
    told = _table(row, "expected")
    return {key: _text(told, key) for key in ("stage", "kind", "why")} if told else None


def _operators(row: Mapping[str, Any]) -> dict[str, int]:
    counts = list(_table(row, "operators").items())[:_OPERATORS]
    return {_bounded(name, 200): max(count, 0) for name, count in counts if isinstance(count, int)}


def _benchmark(row: Mapping[str, Any]) -> dict[str, Any]:
    """The two latencies; of none, nothing."""
    pair = {key: _measure(_table(row, key), "median_s") for key in ("iree", "onnxruntime")}
    return pair | {"threads": _whole(row, "threads")} if pair["iree"] is not None else {}


def _named(output: Mapping[str, Any]) -> dict[str, str]:
    return {key: _text(output, key, 200) for key in ("name", "basis")}


def _text(row: Mapping[str, Any], key: str, limit: int = _WORDS) -> str:
    value = row.get(key)
    return _bounded(value, limit) if isinstance(value, str) else ""


def _texts(row: Mapping[str, Any], key: str) -> list[str]:
    return [_bounded(value, _WORDS) for value in _lists(row, key)[:_LINES] if isinstance(value, str)]


def _lists(row: Mapping[str, Any], key: str) -> list[Any]:
    value = row.get(key)
    return value if isinstance(value, list) else []


def _rows(row: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    return [each for each in _lists(row, key) if isinstance(each, dict)]


def _table(row: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = row.get(key)
    return value if isinstance(value, dict) else {}


def _measure(row: Mapping[str, Any], key: str) -> float | None:
    value = row.get(key)
    return float(value) if isinstance(value, (int, float)) else None


def _number(row: Mapping[str, Any], key: str) -> float:
    value = _measure(row, key)
    return -1.0 if value is None else value


def _whole(row: Mapping[str, Any], key: str) -> int:
    value = row.get(key)
    return value if isinstance(value, int) and value >= 0 else 0


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
