"""One file of expectations: its form, checked entry by entry."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import Any

from onnx_models import conditions, toml_files
from onnx_models.outcomes import PASS, Expectation, Kind, Stage, UsageError

_TEXTS = ("id", "glob", "stage", "kind", "signature", "title", "why", "issue", "when", "since", "expires")
_FLAKY = ("id", "glob", "why", "issue", "when")


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaky:
    """A case, or a group, whose result is known to differ from run to run."""

    id: str
    why: str
    issue: str = ""
    when: str = ""
    glob: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One file: its entries in order, its list of flakes, and what holds for whole collections.

    Attributes:
        file: where it is from.
        iree: minor release that the entries without a version range were written for, empty when unsaid.
        entries: the `[[case]]` tables.
        flaky: the `[[flaky]]` tables.
        recorded: collections with `default = "record"`.
    """

    file: Path
    iree: str = ""
    entries: tuple[Expectation, ...] = ()
    flaky: tuple[Flaky, ...] = ()
    recorded: frozenset[str] = frozenset()

    @property
    def release(self) -> tuple[int, int] | None:
        """`iree` as numbers."""
        major, _, minor = self.iree.partition(".")
        return (int(major), int(minor)) if self.iree else None


def read(file: Path, *, today: date) -> Layer:
    """One file.

    Raises:
        UsageError: it is not well-formed, or an entry has expired or lacks its reason.
    """
    try:
        return parse(file, file.read_text(encoding="utf-8"), today=today)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not TOML ({error})") from None


def parse(file: Path, text: str, *, today: date) -> Layer:
    """What a file says or, with other text, would say.

    Raises:
        UsageError: as for `read`.
    """
    rows = toml_files.parse(text, file)
    unknown = sorted(set(rows) - {"case", "flaky", "collection", "iree"})
    if unknown:
        raise UsageError(
            f"{file}: unknown key {unknown[0]!r}: a file has [[case]], [[flaky]], [collection.NAME] and iree"
        )
    if not re.fullmatch(r"\d+\.\d+|", str(rows.get("iree", ""))):
        raise UsageError(f"{file}: iree = {rows['iree']!r}: expected a minor release such as '3.13'")
    tables = {name: rows.get(name, []) for name in ("case", "flaky")}
    for name, found in tables.items():
        if not isinstance(found, list) or not all(isinstance(row, dict) for row in found):
            raise UsageError(f"{file}: {name!r} must be [[{name}]] tables, one per entry, found {found!r}")
    return Layer(
        file=file,
        iree=rows.get("iree", ""),
        entries=_unique(file, [_entry(file, row, today) for row in tables["case"]]),
        flaky=_unique(file, [_flaky(file, row) for row in tables["flaky"]]),
        recorded=frozenset(_recorded(file, rows.get("collection", {}))),
    )


def _unique(file: Path, entries: list[Any]) -> tuple[Any, ...]:
    seen: set[tuple[str, str]] = set()
    for entry in entries:
        if (entry.id, entry.when) in seen:
            raise UsageError(f"{file}: {entry.id!r} is listed twice")
        seen.add((entry.id, entry.when))
    return tuple(entries)


def _texts(file: Path, row: Mapping[str, Any], known: Sequence[str]) -> dict[str, str]:
    """The row's texts, all well-formed; dates may be TOML dates."""
    where = f"{file}: {row.get('id', row.get('glob', '?'))!r}"
    for key, value in row.items():
        if key not in known:
            raise UsageError(f"{where}: unknown key {key!r}: choose from {', '.join(known)}")
        if isinstance(value, datetime):
            raise UsageError(f"{where}: {key!r} must be a date without a time, found {value}")
        if type(value) is not date and (not isinstance(value, str) or not value.strip()):
            raise UsageError(f"{where}: {key!r} must be a text, found {value!r}")
    if not {"id", "glob"} & set(row):
        raise UsageError(f"{where}: 'id' is missing: an entry names a model, or a 'glob' names several")
    if {"id", "glob"} <= set(row):
        raise UsageError(f"{where}: an entry has either 'id' or 'glob', not both")
    if "why" not in row:
        raise UsageError(f"{where}: 'why' is missing: an entry says what stops where, and why")
    try:
        conditions.parse(str(row.get("when", "")))
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    return {key: str(value) for key, value in row.items()}


def _entry(file: Path, row: Mapping[str, Any], today: date) -> Expectation:
    texts = _texts(file, row, _TEXTS)
    where = f"{file}: {texts.get('id', texts.get('glob'))!r}"
    passes = texts.get("stage") == PASS
    missing = [key for key in ("stage", "kind") if key not in texts and not (passes and key == "kind")]
    if missing:
        raise UsageError(f"{where}: {missing[0]!r} is missing: an entry says what stops where, and why")
    if passes and {"kind", "signature"} & set(texts):
        raise UsageError(f"{where}: a case that passes has no kind and no signature; remove them")
    for key, words in (("stage", [PASS, *(s.value for s in Stage)]), ("kind", [k.value for k in Kind])):
        if key in texts and texts[key] not in words:
            raise UsageError(f"{where}: {key} {texts[key]!r}: choose from {', '.join(words)}")
    stage = None if passes else Stage(texts["stage"])
    kind = None if passes else Kind(texts["kind"])
    if stage is Stage.FETCH:
        raise UsageError(f"{where}: a failed fetch is the host's, it cannot be expected")
    if kind is Kind.INFRASTRUCTURE:
        raise UsageError(f"{where}: a fault of the machine cannot be expected of a model")
    _reject_expired(where, texts.get("expires", ""), today)
    return Expectation(
        id=texts.get("id", texts.get("glob", "")),
        stage=stage,
        kind=kind,
        why=texts["why"],
        issue=texts.get("issue", ""),
        signature=texts.get("signature", ""),
        title=texts.get("title", ""),
        when=texts.get("when", ""),
        since=texts.get("since", ""),
        expires=texts.get("expires", ""),
        glob="glob" in texts,
        source=str(file),
    )


def _reject_expired(where: str, text: str, today: date) -> None:
    try:
        expired = bool(text) and date.fromisoformat(text) < today
    except ValueError:
        raise UsageError(f"{where}: expires = {text!r}: expected a date such as 2027-01-31") from None
    if expired:
        raise UsageError(f"{where}: expired on {text}: look at it again, then remove it or move the date")


def _flaky(file: Path, row: Mapping[str, Any]) -> Flaky:
    texts = _texts(file, row, _FLAKY)
    name = texts.pop("glob", None)
    return Flaky(**{"id": name} if name else {}, **texts, glob=name is not None, source=str(file))


def _recorded(file: Path, rows: Mapping[str, Any]) -> Iterable[str]:
    if not isinstance(rows, dict):
        raise UsageError(f"{file}: 'collection' must be [collection.NAME] tables, found {rows!r:.60}")
    for name, row in rows.items():
        if not isinstance(row, dict) or set(row) - {"default"} or row.get("default") not in ("record", PASS):
            raise UsageError(f'{file}: [collection.{name}] takes default = "record" or default = "pass"')
        if row["default"] == "record":
            yield name
