"""What a case's record says of IREE, whatever was expected of it.

Verdicts hold a result against the lists of one release. Runs, releases and
devices are compared by what happened itself: these words.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import Enum
from typing import Any

from onnx_models.outcomes import Kind, Verdict


class State(str, Enum):
    """What became of a case."""

    PASSED = "passed"
    VACUOUS = "vacuous"
    FAILED = "failed"
    SKIPPED = "skipped"
    ERROR = "error"

    @property
    def answered(self) -> bool:
        """Whether it says anything of IREE."""
        return self in (State.PASSED, State.VACUOUS, State.FAILED)

    @property
    def passes(self) -> bool:
        """Whether IREE did all that was asked of it, told from a wrong answer or not."""
        return self in (State.PASSED, State.VACUOUS)


_OF_THE_HOST = frozenset((Kind.INFRASTRUCTURE.value, Kind.REFERENCE_UNHEALTHY.value))
_BEFORE_IREE = frozenset(("fetch", "reference"))


def state(case: Mapping[str, Any]) -> State:
    """The state of a case by its record line; a pass that could not have failed is vacuous."""
    if case["verdict"] == Verdict.SKIPPED.value:
        return State.SKIPPED
    if case["kind"] is None:
        if case["verdict"] == Verdict.ERROR.value:
            return State.ERROR
        return State.VACUOUS if case.get("vacuous") else State.PASSED
    if case["kind"] in _OF_THE_HOST or case["stage"] in _BEFORE_IREE:
        return State.ERROR
    return State.FAILED


def what(case: Mapping[str, Any]) -> tuple[str, str, str]:
    """Stage, kind and signature of a failure: what makes two of them the same; empty for a pass."""
    if case["kind"] is None:
        return "", "", ""
    return case["stage"] or "", case["kind"], case.get("signature", "")


def same_failure(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two failures are one fault; records of schema 1 name none, which tells nothing apart."""
    first, second = what(one), what(other)
    return first[:2] == second[:2] and (first[2] == second[2] or not first[2] or not second[2])


def describe(case: Mapping[str, Any] | None) -> str:
    """A state in a few words: `passed`, `compile: illegal-op:onnx.If`, `missing`."""
    if case is None:
        return "missing"
    found = state(case)
    if case["kind"] is None:
        return found.value
    stage, kind, signature = what(case)
    return f"{stage}: {signature or kind}"


def is_flaky(case: Mapping[str, Any]) -> bool:
    """Whether the tries of one run ended in different ways."""
    tries = {
        None if each is None else (each["stage"], each["kind"], each["signature"])
        for each in case.get("attempts", ())
    }
    return case["verdict"] == Verdict.FLAKY.value or len(tries) > 1


def count(cases: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """How many cases there are in each state, and `total`."""
    counts = {each.value: 0 for each in State}
    total = 0
    for case in cases:
        counts[state(case).value] += 1
        total += 1
    return counts | {"total": total}
