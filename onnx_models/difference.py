"""What changed between two runs, case by case, and why.

A case that the newer run lacks is missing, never fine. Only what both runs set out
to do is compared: a device or collection that one of them left out is one line.
A run sets out to do its collections on the devices of its header, whatever came of it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
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
    "unanswered": "no longer answered (skipped, an error of the machine, or only compiled now)",
    "answered": "answered again (skipped, an error of the machine, or only compiled before)",
    "vacuous": "now passing without proof",
    "proven": "now passing with proof",
    "flaky": "newly flaky",
    "slower": "slower",
    "faster": "faster",
    "added": "added",
}
"""Each kind of change in words, in the order of a report."""

POLICY = {
    "regressed": ("broken", "missing", "unanswered", "vacuous"),
    **{kind: (kind,) for kind in KINDS},
}
"""The words of `--fail-on` and their kinds: what is no longer known to pass has regressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One case that is not as before.

    Attributes:
        kind: a key of `KINDS`.
        id: the case, `device/collection/model`.
        before, after: its state in a few words.
        why: the fault that the newer run names (the older one, when it is fixed), and its message.
    """

    kind: str
    id: str
    device: str
    collection: str
    model: str
    before: str
    after: str
    why: str = ""
    signature: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Two runs held side by side.

    `counts` has, per device that both ran, the states of the older and the newer run.
    `apart` names what only one of them set out to do, `notes` what else differs between
    them or keeps one from being whole. `judged` is false where the newer run is not whole, or
    where the two have nothing in common: nobody knows then that nothing regressed.
    """

    base: Mapping[str, Any]
    head: Mapping[str, Any]
    changes: tuple[Change, ...]
    same: int
    counts: Mapping[str, tuple[Mapping[str, int], Mapping[str, int]]]
    apart: tuple[str, ...]
    notes: tuple[str, ...]
    judged: bool

    def of(self, kind: str) -> tuple[Change, ...]:
        """The changes of one kind."""
        return tuple(change for change in self.changes if change.kind == kind)

    def violates(self, policy: Iterable[str]) -> bool:
        """Whether a change is of a kind that `--fail-on` names."""
        words = set(policy)
        kinds = {kind for word in words for kind in POLICY[word]}
        return ("regressed" in words and not self.judged) or any(c.kind in kinds for c in self.changes)


def differ(base: RunFile, head: RunFile) -> Difference:
    """Compare two runs; `base` is the older one."""
    before = {case["id"]: case for case in base.cases}
    after = {case["id"]: case for case in head.cases}
    shared = _set_out(base, head) & _set_out(head, base)
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
        counts={name: _counts(a, b) for name, (a, b) in sorted(counted.items())},
        apart=tuple(_apart(base, head, shared)),
        notes=tuple(_notes(base, head)),
        judged=bool(counted) and head.whole,
    )


def _counts(old: Sequence[Case], new: Sequence[Case]) -> tuple[dict[str, int], dict[str, int]]:
    """The states of both; what the newer run lacks stays in its denominator, as missing."""
    missing = len({case["id"] for case in old} - {case["id"] for case in new})
    before, after = states.count(old), states.count(new)
    return before | {"missing": 0}, after | {"missing": missing, "total": after["total"] + missing}


def compare_cases(old: Case | None, new: Case | None) -> Iterable[Change]:
    """How one case changed; nothing when it did not."""
    either = new or old
    if either is None:
        return

    def change(kind: str, by: Case | None) -> Change:
        return Change(
            kind=kind,
            id=either["id"],
            device=either["device"],
            collection=either["collection"],
            model=either["model"],
            before=states.describe(old),
            after=states.describe(new),
            why="" if by is None else _why(by),
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
            collection=new["collection"],
            model=new["model"],
            before=latency.time_text(shift.before),
            after=latency.time_text(shift.after),
            why=str(shift),
        )


def _machine(run: RunFile, case: Case) -> str:
    """The fingerprint of the machine that a case ran on, empty where that is not known."""
    return str(case["machine"] if "machine" in case else run.header["host"]["fingerprint"])


def _why(case: Case) -> str:
    title, message = str(case["title"]), str(case["message"])
    if not title or not message or message in title:
        return title or message or str(case["reason"])
    return f"{title} ({message})"


def _kind(old: Case, new: Case) -> str:
    before, after = states.state(old), states.state(new)
    if not after.answered:
        return "unanswered" if before.answered else ""
    if not before.answered:
        return "answered"
    if _only_compiled(new) and not _only_compiled(old) and _compiled(old):
        return "unanswered"
    if _only_compiled(old) and not _only_compiled(new) and _compiled(new):
        return "answered"
    if before.passes != after.passes:
        return "fixed" if after.passes else "broken"
    if after is State.FAILED:
        return "" if states.same_failure(old, new) else "changed"
    if before is not after:
        return "vacuous" if after is State.VACUOUS else "proven"
    return ""


def _only_compiled(case: Case) -> bool:
    """Whether a pass says nothing of the run: the device was only compiled for."""
    return case["kind"] is None and case["stage"] == "compile"


def _compiled(case: Case) -> bool:
    return case["kind"] is None or case["stage"] in ("run", "compare")


def _group(case: Case) -> tuple[str, str]:
    return case["device"], case["collection"]


def _groups(cases: Iterable[Case]) -> set[tuple[str, str]]:
    return {_group(case) for case in cases}


def _set_out(run: RunFile, other: RunFile) -> set[tuple[str, str]]:
    """What a run was to test, of what it or the other one has cases of."""
    own = _groups(run.cases)
    collections = {collection for _, collection in own}
    return own | {
        (device, collection)
        for device, collection in _groups(other.cases)
        if device in run.header["devices"] and (collection in collections or not own)
    }


def _apart(base: RunFile, head: RunFile, shared: set[tuple[str, str]]) -> Iterable[str]:
    for words, run in (("older", base), ("newer", head)):
        sizes = Counter(_group(case) for case in run.cases)
        for device, collection in sorted(sizes.keys() - shared):
            yield f"only the {words} run has {collection} on {device} ({sizes[device, collection]} cases)"


def _notes(base: RunFile, head: RunFile) -> Iterable[str]:
    for words, run in (("older", base), ("newer", head)):
        if run.footer.get("host_broken"):
            yield f"the {words} run says nothing of IREE: {run.footer['host_broken']}"
        if not run.footer["complete"]:
            yield f"the {words} run is incomplete: not every selected case ran to its end"
    for name in sorted(base.header["devices"].keys() & head.header["devices"].keys()):
        old, new = (run.header["devices"][name].get("last_stage") for run in (base, head))
        if old != new:
            yield f"device {name} is tested up to another stage: {old}, now {new}"
    facts = [(run.header | run.header["packages"]) for run in (base, head)]
    for name in ("suite", "onnx", "onnxruntime", "numpy"):
        old, new = (each.get(name, "unknown") for each in facts)
        if old != new:
            yield f"{name} differs too: {old}, now {new}"
    if base.header["catalogue"] != head.header["catalogue"]:
        yield "the catalogues differ: models may have been added, removed or replaced"
