"""What is known to fail today, per device, with the reason.

A list holds deviations only: a case that no list names is expected to pass.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from onnx_models.outcomes import Expectation, Kind, Stage, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTATIONS = Path(__file__).parent / "expectations"

_KNOWN = ("id", "stage", "kind", "why", "issue")


def load(device: str, folder: Path = EXPECTATIONS) -> dict[str, Expectation]:
    """The expectations of a device by model id; empty when it has no file.

    Raises:
        UsageError: the file is not well-formed, or an entry lacks its reason.
    """
    file = folder / f"{device}.toml"
    if not file.is_file():
        return {}
    try:
        rows = tomllib.loads(file.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not TOML ({error})") from None
    unknown = sorted(set(rows) - {"case"})
    if unknown:
        raise UsageError(f"{file}: unknown key {unknown[0]!r}: entries are [[case]] tables")
    entries: dict[str, Expectation] = {}
    tables = rows.get("case", [])
    if not isinstance(tables, list) or not all(isinstance(row, dict) for row in tables):
        raise UsageError(f"{file}: 'case' must be [[case]] tables, one per entry, found {tables!r}")
    for row in tables:
        entry = _entry(file, row)
        if entry.id in entries:
            raise UsageError(f"{file}: {entry.id!r} is listed twice")
        entries[entry.id] = entry
    return entries


def _entry(file: Path, row: Mapping[str, Any]) -> Expectation:
    where = f"{file}: {row.get('id', '?')!r}"
    for key, value in row.items():
        if key not in _KNOWN:
            raise UsageError(f"{where}: unknown key {key!r}: choose from {', '.join(_KNOWN)}")
        if not isinstance(value, str) or not value.strip():
            raise UsageError(f"{where}: {key!r} must be a text, found {value!r}")
    missing = [key for key in _KNOWN[:4] if key not in row]
    if missing:
        raise UsageError(f"{where}: {missing[0]!r} is missing: an entry says what stops where, and why")
    try:
        stage, kind = Stage(row["stage"]), Kind(row["kind"])
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
    if stage is Stage.FETCH:
        raise UsageError(f"{where}: a failed fetch is the host's, it cannot be expected")
    issue = row.get("issue", "")
    return Expectation(id=row["id"], stage=stage, kind=kind, why=row["why"], issue=issue, source=str(file))
