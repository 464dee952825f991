"""The flags of a release: what an older tool calls otherwise, and what it does not know yet.

Device and model records hold the flags of the newest release. `spellings.toml`
says since when each of those that came later exists, so that one record serves
every release and the difference shows in `commands.sh` and in the record's notes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from packaging.version import InvalidVersion, Version

from onnx_models import toml_files

SPELLINGS = Path(__file__).with_name("spellings.toml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """A flag that is younger than the oldest release.

    Attributes:
        tool: the program that takes it.
        flag: its name today, `--` included.
        since: the first release that knows it.
        before: what older releases call it, empty where they have no such flag.
        takes_value: whether its value is the next word; else it is joined by `=` or there is none.
    """

    tool: str
    flag: str
    since: Version
    before: str = ""
    takes_value: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelled:
    """Flags as one release understands them, and a sentence for each that had to be left out."""

    flags: tuple[str, ...]
    notes: tuple[str, ...] = ()


def spell(tool: str, version: str, flags: Sequence[str]) -> Spelled:
    """The flags in the words of a tool's release.

    Args:
        tool: such as `iree-compile`.
        version: of the release; one that is no version (`unknown-...`) is taken for the newest.
        flags: as the newest release takes them.
    """
    try:
        release = Version(Version(version).base_version)
    except InvalidVersion:
        return Spelled(flags=tuple(flags))
    young = {each.flag: each for each in spellings() if each.tool == tool and release < each.since}
    kept: list[str] = []
    notes: list[str] = []
    words = iter(flags)
    for word in words:
        name, separator, value = word.partition("=")
        rule = young.get(name)
        if rule is None:
            kept.append(word)
        elif rule.before:
            kept.append(f"{rule.before}{separator}{value}")
        else:
            dropped = [word, *([next(words, "")] if rule.takes_value and not separator else [])]
            notes.append(
                f"{tool} {version} does not know {rule.flag} yet: left out {' '.join(filter(None, dropped))}"
            )
    return Spelled(flags=tuple(kept), notes=tuple(notes))


@cache
def spellings(file: Path = SPELLINGS) -> tuple[Spelling, ...]:
    """The rules of a file."""
    return tuple(_rules(toml_files.read_tables(file, "flag")))


def _rules(rows: Iterable[dict[str, object]]) -> Iterable[Spelling]:
    for row in rows:
        yield Spelling(
            tool=str(row["tool"]),
            flag=str(row["flag"]),
            since=Version(str(row["since"])),
            before=str(row.get("before", "")),
            takes_value=row.get("takes_value") is True,
        )
