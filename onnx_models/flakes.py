"""Finds, in the records of many runs, the cases whose result changes under one and the same IREE."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_models.outcomes import Kind, Verdict
from onnx_models.retry import propose_flaky
from onnx_models.update import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Flip:
    """A case that did not always end the same way under one build of IREE on one machine.

    `seen` counts the tries by how they ended, most frequent first; `runs` are the
    ids of the runs, oldest first.
    """

    case: str
    iree: str
    host: str
    seen: tuple[tuple[str, int], ...]
    runs: tuple[str, ...]

    @property
    def reason(self) -> str:
        """What was seen, in one sentence."""
        ends = ", ".join(f"{count} x {what}" for what, count in self.seen)
        return f"under IREE {self.iree} in {len(self.runs)} runs: {ends}"

    def toml(self) -> str:
        """The entry for the list of flakes."""
        return propose_flaky(self.case.partition("/")[2], self.reason)


def flips(runs: Iterable[Run]) -> tuple[Flip, ...]:
    """The cases that flipped, most even first: those say the least.

    Faults of the machine and cases that did not run are left out.
    """
    seen: dict[tuple[str, str, str], Counter[str]] = {}
    where: dict[tuple[str, str, str], list[str]] = {}
    for head, rows, _ in sorted(runs, key=lambda run: str(run[0]["started"])):
        for row in rows:
            ends = _ends(row)
            key = (str(row["id"]), str(head["iree"]), str(head["host"]["name"]))
            if ends:
                seen.setdefault(key, Counter()).update(ends)
                where.setdefault(key, []).append(str(head["run"]))
    found = [
        Flip(case=key[0], iree=key[1], host=key[2], seen=tuple(count.most_common()), runs=tuple(where[key]))
        for key, count in seen.items()
        if len(count) > 1
    ]
    return tuple(sorted(found, key=lambda flip: (flip.seen[0][1] / flip.seen[1][1], flip.case)))


def _ends(row: Mapping[str, Any]) -> Sequence[str]:
    """How each try of a case ended in one run."""
    if row.get("attempts"):
        return [_spoken(each) if each else "passes" for each in row["attempts"]]
    ran = row["verdict"] not in (Verdict.SKIPPED.value, Verdict.ERROR.value)
    if not ran or row["kind"] == Kind.INFRASTRUCTURE.value:
        return []
    return [_spoken(row) if row["kind"] else "passes"]


def _spoken(row: Mapping[str, Any]) -> str:
    signature = row.get("signature")
    return f"{row['stage']} ({row['kind']}){f' as {signature}' if signature else ''}"
