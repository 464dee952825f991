"""What people read of two runs: a comment on GitHub, text on a terminal, data."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from onnx_models import markdown
from onnx_models.difference import KINDS, Change, Difference
from onnx_models.markdown import code, details, table, text
from onnx_models.record_lines import printable
from onnx_models.states import State

COMMENT_LIMIT = 60_000
"""Bytes of a comment; GitHub takes 65,536 characters."""

COMMENT_MARK = "<!-- onnx_models: difference of two runs -->"
"""First line of a comment, by which the next one finds and replaces it."""

_GATHERED = frozenset(("missing", "unanswered", "answered", "added"))
"""Kinds of which many are one fact: a group of cases was not run, or is new."""

_ROWS = 50
"""Of those, more are told by group."""

_MOST = 200
"""Rows of one kind in Markdown."""


def as_markdown(found: Difference) -> str:
    """A comment for a pull request: the numbers, then every change with its reason."""
    base, head = text(label(found.base)), text(label(found.head))
    lines = [COMMENT_MARK, f"### {_headline(found)}", "", f"{base} → {head}", ""]
    lines += notes_markdown(found)
    if found.counts:
        lines += table(
            ["device", "before", "now", "change"],
            [
                [text(device), _rate(old), _rate(new), _step(old, new)]
                for device, (old, new) in found.counts.items()
            ],
            right=(1, 2, 3),
        )
    lines += changes_markdown(found)
    return markdown.bounded(lines, COMMENT_LIMIT, "More is left out here; run onnx-models diff to see all.")


def as_text(found: Difference) -> list[str]:
    """The same for a terminal."""
    lines = [f"{label(found.base)} -> {label(found.head)}: {_headline(found)}"]
    lines += [f"  note: {note}" for note in found.notes]
    for device, (old, new) in found.counts.items():
        lines.append(f"  {device}: {_rate(old)} -> {_rate(new)} passed with proof ({_step(old, new)})")
    for kind, words in KINDS.items():
        changes = found.of(kind)
        if changes:
            lines += ["", f"{words} ({len(changes)})"]
            lines += [
                f"  {name}: {before} -> {now}{_because(why)}" for name, before, now, why in _rows(changes)
            ]
    if found.apart:
        lines += ["", "not compared", *(f"  {line}" for line in found.apart)]
    return [printable(line) for line in lines]


def as_json(found: Difference) -> dict[str, Any]:
    """The same as data."""
    return {
        "base": {key: found.base[key] for key in ("run", "release", "started")},
        "head": {key: found.head[key] for key in ("run", "release", "started")},
        "same": found.same,
        "counts": {device: {"base": old, "head": new} for device, (old, new) in found.counts.items()},
        "changes": [asdict(change) for change in found.changes],
        "not_compared": list(found.apart),
        "notes": list(found.notes),
    }


def _rows(changes: Sequence[Change]) -> list[tuple[str, str, str, str]]:
    """Case, before, now, why; of many cases that are only there in one run, a row for each group."""
    if changes[0].kind not in _GATHERED or len(changes) <= _ROWS:
        return [(change.id, change.before, change.after, change.why) for change in changes]
    groups: dict[tuple[str, str], list[Change]] = defaultdict(list)
    for change in changes:
        groups[change.device, change.collection].append(change)
    rows = []
    for (device, collection), members in groups.items():
        before, after = ({getattr(each, name) for each in members} for name in ("before", "after"))
        words = [only.pop() if len(only) == 1 else f"{len(only)} states" for only in (before, after)]
        some = ", ".join(each.model for each in members[:3])
        rows.append((f"{len(members)} cases of {device}/{collection}", *words, f"such as {some}"))
    return [(name, before, now, why) for name, before, now, why in rows]


def label(header: Mapping[str, Any]) -> str:
    """A run in a few words."""
    return f"IREE {header['release']} (run {header['run']})"


def _because(why: str) -> str:
    return f"  [{why[:200]}]" if why else ""


def _headline(found: Difference) -> str:
    counts = Counter(change.kind for change in found.changes)
    words = [f"{counts[kind]} {KINDS[kind]}" for kind in KINDS if counts[kind]]
    if not words:
        return f"No change in {found.same} cases" if found.same else "No case in common"
    return f"{', '.join(words)}; {found.same} as before"


def _rate(counts: Mapping[str, int]) -> str:
    missing = f", {counts['missing']} missing" if counts["missing"] else ""
    return f"{counts[State.PASSED.value]} of {counts['total']}{missing}"


def _step(old: Mapping[str, int], new: Mapping[str, int]) -> str:
    step = new[State.PASSED.value] - old[State.PASSED.value]
    return f"{step:+d}" if step else "±0"


def notes_markdown(found: Difference) -> list[str]:
    """What keeps the two from being compared as they stand."""
    return [line for note in found.notes for line in (f"> {text(note)}", "")]


def changes_markdown(found: Difference) -> list[str]:
    """Every change with its reason, the newly broken first and unfolded."""
    lines: list[str] = []
    if not found.changes:
        words = f"No change in {found.same} cases." if found.same else "The runs have no case in common."
        lines += [words, ""]
    for kind, words in KINDS.items():
        changes = found.of(kind)
        if changes:
            found_rows = _rows(changes)
            rows = [[code(name), *map(text, rest)] for name, *rest in found_rows[:_MOST]]
            body = ["", *table(["case", "before", "now", "why"], rows)]
            if len(found_rows) > _MOST:
                body += [f"… and {len(found_rows) - _MOST} more.", ""]
            lines += (
                details(f"{len(changes)} {words}", body)
                if kind != "broken"
                else [f"**{len(changes)} {words}**", *body]
            )
    if found.apart:
        lines += details(
            f"{len(found.apart)} groups not compared", [f"- {text(line)}" for line in found.apart]
        )
    return lines
