"""What changed between two runs, case by case, and why.

A case that the newer run lacks is missing, never fine. Only what both runs set out
to do is compared: a device or collection that one of them left out is one line.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_models import latency, states
from onnx_models.runs import RunFile
from onnx_models.states import State

Case = Mapping[str, Any]

KINDS = {
    "broken": "newly broken",
    "fixed": "fixed",
    "changed": "failing in another way",
    "missing": "missing from the newer run",
    "unanswered": "no longer answered (skipped, or an error of the machine)",
    "vacuous": "now passing without proof",
    "proven": "now passing with proof",
    "flaky": "newly flaky",
    "slower": "slower",
    "faster": "faster",
    "added": "added",
}
"""Each kind of change in words, in the order of a report."""

POLICY = {"regressed": ("broken",), **{kind: (kind,) for kind in KINDS}}
"""The words of `--fail-on` and the kinds that each stands for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One case that is not as before.

    Attributes:
        kind: a key of `KINDS`.
        id: the case, `device/collection/path`.
        before, after: its state in a few words.
        why: the reason that the newer run gives (the older one's, when it is fixed).
    """

    kind: str
    id: str
    device: str
    before: str
    after: str
    why: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two runs held side by side.

    `counts` has, per device that both ran, the states of the older and the newer run.
    `apart` names what only one of them set out to do.
    """

    base: Mapping[str, Any]
    head: Mapping[str, Any]
    changes: tuple[Change, ...]
    same: int
    counts: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]]
    apart: tuple[str, ...]

    def of(self, kind: str) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind == kind)

    def violates(self, policy: Iterable[str]) -> bool:
        """Whether a change is of a kind that `--fail-on` names."""
        kinds = {kind for word in policy for kind in POLICY[word]}
        return any(change.kind in kinds for change in self.changes)


def differ(base: RunFile, head: RunFile) -> Difference:
    """Compare two runs; `base` is the older one."""
    before = {case["id"]: case for case in base.cases}
    after = {case["id"]: case for case in head.cases}
    shared = _groups(base.cases) & _groups(head.cases)
    changes: list[Change] = []
    same = 0
    counted: dict[str, tuple[list[Case], list[Case]]] = defaultdict(lambda: ([], []))
    for key in sorted(before.keys() | after.keys()):
        old, new = before.get(key), after.get(key)
        either = new or old
        if either is None or _group(either) not in shared:
            continue
        for case, rows in zip((old, new), counted[either["device"]], strict=True):
            rows.extend([case] if case is not None else [])
        found = list(compare_cases(old, new))
        if old is not None and new is not None and _machine(base, old) == _machine(head, new) != "":
            found += compare_latencies(old, new)
        same += not found
        changes += found
    order = list(KINDS)
    changes.sort(key=lambda change: (order.index(change.kind), change.id))
    return Difference(
        base=base.header,
        head=head.header,
        changes=tuple(changes),
        same=same,
        counts={name: (states.count(a), states.count(b)) for name, (a, b) in sorted(counted.items())},
        apart=tuple(_apart(base, head)),
    )


def compare_cases(old: Case | None, new: Case | None) -> Iterable[Change]:
    """How one case changed; nothing when it did not."""
    either = new or old
    if either is None:
        return

    def change(kind: str, by: Case | None) -> Change:
        reason = "" if by is None else str(by.get("title") or by.get("message") or by.get("reason") or "")
        return Change(
            kind=kind,
            id=either["id"],
            device=either["device"],
            before=states.describe(old),
            after=states.describe(new),
            why=reason,
            signature="" if by is None else str(by.get("signature", "")),
        )

    if old is None:
        yield change("added", new)
    elif new is None:
        yield change("missing", old)
    else:
        kind = _kind(old, new)
        if kind:
            yield change(kind, old if kind == "fixed" else new)
        if states.is_flaky(new) and not states.is_flaky(old):
            yield change("flaky", new)


def compare_latencies(old: Case, new: Case) -> Iterable[Change]:
    """Whether one case, measured twice on one machine, became slower or faster beyond noise."""
    shift = latency.shift(old.get("benchmark", {}), new.get("benchmark", {}))
    if shift is not None and shift.kind:
        yield Change(
            kind=shift.kind,
            id=new["id"],
            device=new["device"],
            before=latency.time_text(shift.before),
            after=latency.time_text(shift.after),
            why=str(shift),
        )


def _machine(run: RunFile, case: Case) -> str:
    """The fingerprint of the machine that a case ran on, empty where that is not known."""
    return str(case.get("machine") or run.header["host"].get("fingerprint", ""))


def _kind(old: Case, new: Case) -> str:
    before, after = states.state(old), states.state(new)
    if not after.answered:
        return "unanswered" if before.answered else ""
    if not before.answered:
        return "added"
    if before.passes != after.passes:
        return "fixed" if after.passes else "broken"
    if after is State.FAILED:
        return "changed" if states.what(old) != states.what(new) else ""
    if before is not after:
        return "vacuous" if after is State.VACUOUS else "proven"
    return ""


def _group(case: Case) -> tuple[str, str]:
    return case["device"], case["collection"]


def _groups(cases: Iterable[Case]) -> set[tuple[str, str]]:
    return {_group(case) for case in cases}


def _apart(base: RunFile, head: RunFile) -> Iterable[str]:
    old, new = _groups(base.cases), _groups(head.cases)
    for run, groups in ((base, old - new), (head, new - old)):
        for device, collection in sorted(groups):
            cases: Sequence[Case] = [c for c in run.cases if _group(c) == (device, collection)]
            yield f"only {run.id} has {collection} on {device} ({len(cases)} cases)"
