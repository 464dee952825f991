"""An expectations file as blocks of text, so that an edit leaves every other line as it is.

A block is a table with the comment right above it. Comments that stand apart
belong to no entry and stay when entries go.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import tomlkit

from onnx_models import toml_files
from onnx_models.outcomes import SuiteError

_HEADER = re.compile(r"\s*\[\[?\s*([\w.\"'-]+)\s*\]\]?\s*(?:#.*)?$")


@dataclass(slots=True, kw_only=True)
class Block:
    """One table: the comment above it, its own lines, and what stands apart behind it."""

    table: str
    lead: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    tail: list[str] = field(default_factory=list)
    key: tuple[str, str] = field(init=False, default=("", ""))
    """The id or glob and the condition: what entries are sorted by; no edit changes it."""

    def __post_init__(self) -> None:
        if self.table in ("case", "flaky"):
            row = toml_files.parse("".join(self.body), "entry")[self.table][0]
            self.key = str(row.get("id", row.get("glob", ""))), str(row.get("when", ""))

    def set(self, values: Mapping[str, str]) -> None:
        """Give keys new values, and take out those whose value is empty; comments stay."""
        document = tomlkit.parse("".join(self.body))
        row = document[self.table][0]
        for key, value in values.items():
            if value:
                row[key] = value
            elif key in row:
                del row[key]
        self.body = tomlkit.dumps(document).rstrip("\n").splitlines(keepends=True)
        self.body[-1] += "\n"


class Entries:
    """The blocks of one file.

    Raises:
        SuiteError: the file is written in a form that cannot be edited line by line.
    """

    def __init__(self, file: Path, text: str) -> None:
        lines = text.splitlines(keepends=True)
        if lines and not lines[-1].endswith("\n"):
            lines[-1] += "\n"
        starts = [(k, found[1]) for k, found in _headers(lines)]
        self.preamble: list[str] = []
        self.blocks: list[Block] = []
        ends = [*(k for k, _ in starts), len(lines)][1:] if starts else []
        head = starts[0][0] if starts else len(lines)
        self.preamble, lead = _split_lead(lines[:head])
        try:
            for (start, table), end in zip(starts, ends, strict=True):
                part = lines[start:end]
                section, following = _split_lead(part) if end < len(lines) else (part, [])
                body, tail = _split_tail(section)
                self.blocks.append(Block(table=table, lead=lead, body=body, tail=tail))
                lead = following
            self._check(text)
        except (toml_files.TomlError, LookupError, TypeError, AttributeError):
            raise SuiteError(
                f"{file}: cannot be edited: write each entry as a [[case]] table of its own"
            ) from None

    def _check(self, text: str) -> None:
        rows = toml_files.parse(text, "text")
        found = [block.key for block in self.blocks if block.table == "case"]
        wanted = [(row.get("id", row.get("glob", "")), row.get("when", "")) for row in rows.get("case", [])]
        if found != wanted or self.text() != text + ("" if text.endswith("\n") or not text else "\n"):
            raise LookupError

    def find(self, key: tuple[str, str]) -> Block:
        """The entry with this id and condition."""
        return next(block for block in self.blocks if block.table == "case" and block.key == key)

    def add(self, text: str, key: tuple[str, str]) -> None:
        """Put a new entry where it belongs in the order."""
        fresh = Block(table="case", body=text.splitlines(keepends=True), tail=["\n"])
        fresh.body[-1] = fresh.body[-1].rstrip("\n") + "\n"
        cases = [k for k, block in enumerate(self.blocks) if block.table == "case"]
        at = next(
            (k for k in cases if self.blocks[k].key > key), cases[-1] + 1 if cases else len(self.blocks)
        )
        before = self.blocks[at - 1].tail if at else self.preamble
        if (before or at) and (not before or before[-1].strip()):
            before.append("\n")
        if at == len(self.blocks):
            fresh.tail = []
        self.blocks.insert(at, fresh)

    def remove(self, key: tuple[str, str]) -> None:
        """Take an entry and the comment above it out; comments that stand apart stay."""
        block = self.find(key)
        at = self.blocks.index(block)
        del self.blocks[at]
        apart = block.tail if any(line.strip() for line in block.tail) else []
        before = self.blocks[at - 1].tail if at else self.preamble
        before += apart
        if at == len(self.blocks):
            while before and not before[-1].strip():
                before.pop()

    def set_release(self, iree: str) -> None:
        """State the release that the entries were written for."""
        line = f'iree = "{iree}"\n'
        for k, old in enumerate(self.preamble):
            if re.match(r"\s*iree\s*=", old):
                self.preamble[k] = line
                return
        while self.preamble and not self.preamble[-1].strip():
            self.preamble.pop()
        if self.preamble:
            self.preamble.append("\n")
        self.preamble += [line, "\n"] if self.blocks else [line]

    def text(self) -> str:
        """The whole file."""
        parts = [line for block in self.blocks for line in (*block.lead, *block.body, *block.tail)]
        return "".join([*self.preamble, *parts])


def _headers(lines: list[str]) -> list[tuple[int, re.Match[str]]]:
    """The lines that begin a table, none of them inside a multi-line string."""
    found, inside = [], ""
    for k, line in enumerate(lines):
        match = None if inside else _HEADER.match(line)
        if match:
            found.append((k, match))
        for quote in ('"""', "'''"):
            if inside in ("", quote) and line.count(quote) % 2:
                inside = "" if inside else quote
    return found


def _split_lead(lines: list[str]) -> tuple[list[str], list[str]]:
    """Part off the comment lines at the end, which belong to what follows."""
    at = len(lines)
    while at and lines[at - 1].lstrip().startswith("#"):
        at -= 1
    return lines[:at], lines[at:]


def _split_tail(lines: list[str]) -> tuple[list[str], list[str]]:
    """Part off blank lines and comments behind a table's last key."""
    at = len(lines)
    while at and (not lines[at - 1].strip() or lines[at - 1].lstrip().startswith("#")):
        at -= 1
    return lines[:at], lines[at:]
