"""Markdown of data that nobody vouches for: names and messages show as text, whatever they hold."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

_SPECIAL = re.compile(r"[\\`*_{}\[\]<>()#|~@&$]|:(?=//)|(?<=[wW]{3})\.|(?<=[gG][hH])-")

_BREAK = "&#8203;"
"""A space of no width. GitHub looks for mentions and references after it has read the entities."""

_LINKS = frozenset("@#:.-")


def text(value: object, limit: int = 300) -> str:
    """One line in which nothing is markup, a mention, a link or the end of a table's cell."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(value)[: 4 * limit]).split())
    if len(line) > limit:
        line = line[: limit - 1] + "…"
    return _SPECIAL.sub(_escaped, line)


def _escaped(found: re.Match[str]) -> str:
    return f"&#{ord(found[0])};{_BREAK if found[0] in _LINKS else ''}"


def code(value: object, limit: int = 300) -> str:
    """The same in a typewriter face."""
    shown = text(value, limit)
    return f"<code>{shown}</code>" if shown else ""


def table(head: Sequence[str], rows: Iterable[Sequence[str]], *, right: Iterable[int] = ()) -> list[str]:
    """A table; the cells are Markdown already. `right` are the columns of numbers."""
    numbers = set(right)
    lines = ["| " + " | ".join(head) + " |"]
    lines.append("|" + "|".join("---:" if k in numbers else "---" for k in range(len(head))) + "|")
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return [*lines, ""]


def details(summary: str, lines: Iterable[str]) -> list[str]:
    """Lines behind a triangle."""
    return [f"<details><summary>{summary}</summary>", "", *lines, "</details>", ""]


def bounded(lines: Sequence[str], limit: int, rest: str) -> str:
    """The lines up to `limit` bytes, cut at a line, and what to say of the rest."""
    kept: list[str] = []
    size, opened = 0, 0
    for line in lines:
        size += len(line.encode()) + 1
        if size > limit - 200:
            kept += ["", *(["</details>"] * opened), "", rest]
            break
        opened += line.startswith("<details>") - line.startswith("</details>")
        kept.append(line)
    return "\n".join(kept).rstrip("\n") + "\n"
