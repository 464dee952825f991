"""Builds sites for tests, and reads their pages as a reader has them."""

from __future__ import annotations

from datetime import datetime, timedelta
from html.parser import HTMLParser
from pathlib import Path

from onnx_models.dashboard.build import build
from onnx_models.dashboard.site import Written
from onnx_models.meta_tests.histories import BEGIN, save
from onnx_models.runs import RunFile

NOW = BEGIN + timedelta(days=8)

VOID = {"meta", "link", "input", "br"}


class Reader(HTMLParser):
    """A page as a reader has it: its elements, its tables' words, and whether each tag is closed."""

    def __init__(self, page: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: dict[str, list[list[str]]] = {}
        self.section = ""
        self.words: list[str] = []
        self._table: list[list[str]] | None = None
        self.feed(page.read_text(encoding="utf-8"))
        assert self.open == [], f"{page}: not closed: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        if tag == "section":
            self.section = given.get("aria-labelledby") or ""
        if tag == "table":
            self._table = self.tables.setdefault(given.get("id") or self.section, [])
        if tag == "tr" and self._table is not None:
            self._table.append([])
        if tag in ("td", "th") and self._table:
            self._table[-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag == "table":
            self._table = None

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self._table and self._table[-1] and {"td", "th"} & set(self.open):
            self._table[-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join("".join(self.words).split())


def make(folder: Path, site: Path, *files: RunFile, now: datetime = NOW) -> Written:
    save(folder, *files)
    written, broken = build(folder, site, now=now)
    assert broken == {}
    return written
