"""What a page says of a case beyond the tables: the newest line of its record."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from onnx_models import runs
from onnx_models.dashboard.snapshot import Subject
from onnx_models.history import History

Case = Mapping[str, Any]

EXCERPT_LIMIT = 4000
"""Characters of a log that a page shows; a record of another tool may hold more."""

_LINES, _WORDS = 40, 2000


def newest_lines(history: History, subjects: Iterable[Subject]) -> dict[str, Case]:
    """By case id, the trimmed record line of its newest result; none for a missing case's empty result."""
    wanted: dict[int, set[str]] = defaultdict(set)
    for subject in subjects:
        run = subject.now.run if subject.now.run >= 0 else subject.before.run if subject.before else -1
        wanted[run].add(subject.id)
    files = dict(history.rows("SELECT key, file FROM run"))
    found: dict[str, Case] = {}
    for key, ids in wanted.items():
        if key in files:
            for row in runs.stream(history.folder / files[key]):
                if row["type"] == "case" and row["id"] in ids:
                    found[row["id"]] = _trimmed(row)
    return found


def _trimmed(row: Mapping[str, Any]) -> dict[str, Any]:
    """A line without what no page shows, and with every text bounded."""
    kept = {key: row.get(key) for key in _KEPT}
    for key in ("message", "title", "reason", "vacuous"):
        kept[key] = _bounded(str(row.get(key, "")), _WORDS)
    kept["excerpt"] = _bounded(str(row.get("excerpt", "")), EXCERPT_LIMIT)
    kept["notes"] = [_bounded(str(note), _WORDS) for note in row.get("notes", ())[:_LINES]]
    kept["commands"] = [
        [_bounded(str(word), _WORDS) for word in command]
        for stage in row.get("stages", ())
        for command in stage.get("commands", ())[:1]
    ]
    worst = max(row.get("outputs", ()), key=lambda each: _number(each.get("ratio")), default=None)
    kept["worst"] = worst and {key: worst.get(key) for key in ("name", "ratio", "max_abs", "rmse", "basis")}
    kept["outputs"] = len(row.get("outputs", ()))
    kept["unhealthy"] = _bounded(str(row.get("health", {}).get("problem", "")), _WORDS)
    return kept


_KEPT = (
    "expected",
    "stages",
    "attempts",
    "bytes",
    "opset",
    "operators",
    "benchmark",
    "tags",
    "verdict",
    "kind",
    "stage",
    "signature",
)


def _number(value: object) -> float:
    return float(value) if isinstance(value, (int, float)) else -1.0


def _bounded(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
