"""What is known to fail today, per device, with the reason.

A list holds deviations only: a case that no list names is expected to pass,
unless its collection is only being recorded. `docs/expectations.md` describes
the files for those who write them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from functools import cache
from pathlib import Path

from onnx_models import catalog, conditions, devices, lists
from onnx_models.conditions import Circumstances
from onnx_models.lists import Flaky, Layer
from onnx_models.outcomes import Expectation, UsageError

EXPECTATIONS = Path(__file__).parent / "expectations"
SHIPPED = "shipped"
"""The word that stands for the suite's own lists where files are asked for."""

EVERY_DEVICE = "all"
"""The stem of the file in a folder that holds for every device."""


_Rank = tuple[int, bool, int, int]
_Ranked = tuple[_Rank, Expectation]


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """All that is known beforehand of the cases of one device; later layers win."""

    layers: tuple[Layer, ...] = ()
    here: Circumstances
    _ids: Mapping[str, list[_Ranked]] = field(init=False, repr=False, compare=False)
    _globs: list[_Ranked] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Index the entries that hold here: a run asks for thousands of models."""
        ids: dict[str, list[_Ranked]] = {}
        globs: list[_Ranked] = []
        for number, layer in enumerate(self.layers):
            for entry in layer.entries:
                if conditions.holds(entry.when, self.here):
                    place = globs if entry.glob else ids.setdefault(entry.id, [])
                    place.append((_rank(number, entry), entry))
        object.__setattr__(self, "_ids", ids)
        object.__setattr__(self, "_globs", globs)

    def expect(self, model_id: str, *, without: Collection[Expectation] = ()) -> Expectation | None:
        """The entry that decides for a model, None when no entry does.

        The last file that names the model decides; in it an id before a glob,
        a glob with more letters before one with fewer, and an entry with more
        conditions before one with fewer. `without` some, as if they were not there.

        Raises:
            UsageError: two entries with the same claim to decide say different things.
        """
        found = [*self._ids.get(model_id, ()), *(each for each in self._globs if names(each[1], model_id))]
        ranked = sorted((each for each in found if each[1] not in without), key=lambda pair: pair[0])
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


def _rank(layer: int, entry: Expectation) -> _Rank:
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


def reject_strangers(wanted: Sequence[str], tested: Iterable[str]) -> None:
    """Refuse a file in a folder of lists that is named after no device: nobody would ever read it.

    Args:
        wanted: as for `files`.
        tested: names of the run's devices, which may be a user's own.

    Raises:
        UsageError: there is such a file.
    """
    known = {EVERY_DEVICE, *devices.names(), *tested}
    for word in wanted or (SHIPPED,):
        folder = EXPECTATIONS if word == SHIPPED else Path(word).absolute()
        stranger = next((file for file in sorted(folder.glob("*.toml")) if file.stem not in known), None)
        if stranger is not None:
            raise UsageError(
                f"{stranger}: named after no device, so nothing reads it: rename it to one of "
                f"{', '.join(sorted(known))}; the list of a device of your own is given as a file"
            )


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
    return Known(layers=tuple(lists.read(file, today=day) for file in found), here=here)


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
            device = collection in devices.names()
            how = "leave out the device, the file is named after it" if device else "correct or remove it"
            raise UsageError(f"{entry.source}: {entry.id!r}: no collection {collection!r}; {how}")
        wildcard = re.search(r"[*?]", collection) is not None
        places = catalogued if wildcard else (collection,)
        known: Iterable[str] = (each for place in places for each in catalogued.get(place, ()))
        if not any(names(entry, each) for each in known):
            near = [] if entry.glob else catalog.near(entry.id, catalogued.get(collection, ()))
            how = f"there is {', '.join(near)}" if near else "remove it"
            raise UsageError(f"{entry.source}: {entry.id!r} names no model of the catalogue; {how}")
