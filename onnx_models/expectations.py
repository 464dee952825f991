"""What is known to fail today, per device, with the reason.

A list holds deviations only: a case that no list names is expected to pass,
unless its collection is only being recorded. `docs/expectations.md` describes
the files for those who write them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import Any

from onnx_models import conditions, devices
from onnx_models.conditions import Circumstances
from onnx_models.outcomes import PASS, Expectation, Kind, Stage, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

EXPECTATIONS = Path(__file__).parent / "expectations"
SHIPPED = "shipped"
"""The word that stands for the suite's own lists where files are asked for."""

EVERY_DEVICE = "all"
"""The stem of the file in a folder that holds for every device."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that is known beforehand of the cases of one device; later layers win."""

    layers: tuple[Layer, ...] = ()
    here: Circumstances

    def expect(self, model_id: str) -> Expectation | None:
        """The entry that decides for a model, None when no entry does.

        The last file that names the model decides; in it an id before a glob,
        a glob with more letters before one with fewer, and an entry with more
        conditions before one with fewer.

        Raises:
            UsageError: two entries with the same claim to decide say different things.
        """
        ranked = sorted(
            ((_rank(layer, entry), entry) for layer, entry in self._holding(model_id)),
            key=lambda pair: pair[0],
        )
        if len(ranked) > 1 and ranked[-1][0] == ranked[-2][0] and ranked[-1][1].what != ranked[-2][1].what:
            first, second = ranked[-2][1], ranked[-1][1]
            raise UsageError(
                f"{second.source}: {first.id!r} and {second.id!r} say different things of {model_id!r} and "
                "neither is more specific: give one an id or a narrower 'when'"
            )
        return ranked[-1][1] if ranked else None

    def flaky(self, model_id: str) -> Flaky | None:
        """The list's word on a model that is known to be flaky."""
        for layer in reversed(self.layers):
            for entry in layer.flaky:
                if names(entry, model_id) and conditions.holds(entry.when, self.here):
                    return entry
        return None

    def recording(self, model_id: str) -> bool:
        """Whether the model's collection is only being recorded."""
        return any(model_id.partition("/")[0] in layer.recorded for layer in self.layers)

    def _holding(self, model_id: str) -> Iterable[tuple[int, Expectation]]:
        for number, layer in enumerate(self.layers):
            for entry in layer.entries:
                if names(entry, model_id) and conditions.holds(entry.when, self.here):
                    yield number, entry


def _rank(layer: int, entry: Expectation) -> tuple[int, bool, int, int]:
    letters = 0 if not entry.glob else len(re.sub(r"[*?]", "", entry.id))
    return layer, not entry.glob, letters, len(conditions.parse(entry.when))


def names(entry: Expectation | Flaky, model_id: str) -> bool:
    """Whether an entry speaks of a model."""
    return _pattern(entry.id).fullmatch(model_id) is not None if entry.glob else entry.id == model_id


@cache
def _pattern(glob: str) -> re.Pattern[str]:
    """`**/` takes any folders or none, `*` and `?` stay within one, all else is itself."""
    words = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
    parts = re.split(r"(\*\*/|\*\*|\*|\?)", glob)
    return re.compile("".join(words.get(part, re.escape(part)) for part in parts))


def files(wanted: Sequence[str], device: str, *, creating: bool = False) -> tuple[Path, ...]:
    """The files that hold for a device, in order; those of a shipped list need not exist.

    Args:
        wanted: files, folders and the word `shipped`; empty means `shipped`.
        device: the device's name.
        creating: whether the last one may be missing, for it is about to be written.

    Raises:
        UsageError: a path does not exist.
    """
    found: list[Path] = []
    for number, word in enumerate(wanted or (SHIPPED,), 1):
        place = EXPECTATIONS if word == SHIPPED else Path(word).absolute()
        if place.is_dir():
            found += [
                place / f"{stem}.toml"
                for stem in (EVERY_DEVICE, device)
                if (place / f"{stem}.toml").is_file()
            ]
        elif place.is_file():
            if place.stem == device or place.stem not in devices.names():
                found.append(place)
        elif place != EXPECTATIONS and not (creating and number == len(wanted)):
            raise UsageError(
                f"--expectations {word}: no such file or folder; give a .toml file, a folder, or "
                f"the word {SHIPPED!r}"
            )
    return tuple(dict.fromkeys(found))


def load(
    wanted: Sequence[str], here: Circumstances, *, creating: bool = False, today: date | None = None
) -> Known:
    """Everything known of a device's cases.

    Args:
        wanted: as for `files`.
        here: the circumstances of the run.
        creating: as for `files`.
        today: the date that `expires` is held against.

    Raises:
        UsageError: a file is not well-formed, or an entry has expired or lacks its reason.
    """
    day = today or date.today()
    found = files(wanted, here.device, creating=creating)
    return Known(layers=tuple(read(file, today=day) for file in found), here=here)


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
    try:
        rows = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: not TOML ({error})") from None
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


def reject_stale(entries: Iterable[Expectation | Flaky], catalogued: Mapping[str, frozenset[str]]) -> None:
    """Refuse entries that no model answers to.

    Args:
        entries: those of every file of the run.
        catalogued: collection to the ids of its models.

    Raises:
        UsageError: an entry names nothing.
    """
    for entry in entries:
        collection = entry.id.partition("/")[0]
        if not entry.glob and collection not in catalogued:
            raise UsageError(f"{entry.source}: {entry.id!r}: no collection {collection!r}; remove it")
        wildcard = re.search(r"[*?]", collection) is not None
        places = catalogued if wildcard else (collection,)
        known: Iterable[str] = (each for place in places for each in catalogued.get(place, ()))
        if not any(names(entry, each) for each in known):
            raise UsageError(f"{entry.source}: {entry.id!r} names no model of the catalogue; remove it")


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
    try:
        stage = None if passes else Stage(texts["stage"])
        kind = None if passes else Kind(texts["kind"])
    except ValueError as error:
        raise UsageError(f"{where}: {error}") from None
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
    for name, row in rows.items():
        if not isinstance(row, dict) or set(row) - {"default"} or row.get("default") not in ("record", PASS):
            raise UsageError(f'{file}: [collection.{name}] takes default = "record" or default = "pass"')
        if row["default"] == "record":
            yield name
