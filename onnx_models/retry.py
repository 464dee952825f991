"""Runs an unexpected result again before it counts, and tells a flake from a change."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from onnx_models.lists import Flaky
from onnx_models.outcomes import (
    Expectation,
    Failure,
    Judgement,
    Kind,
    Outcome,
    Stage,
    Verdict,
    toml_string,
)

LIMITED = (Kind.TIMEOUT, Kind.OUT_OF_MEMORY)
"""What may come from the load of the machine: such a result counts only when it came alone."""

Again = Callable[[Stage, bool], Outcome]
"""Runs a case again, from a stage on, with the machine to itself or not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Confirmed:
    """The outcome that counts, its verdict, and how each try ended (empty after a single one)."""

    outcome: Outcome
    judgement: Judgement
    attempts: tuple[Failure | None, ...] = ()


def confirm(
    first: Outcome,
    judged: Callable[[Failure | None], Judgement],
    again: Again,
    *,
    case_id: str,
    expectation: Expectation | None,
    flaky: Flaky | None,
    retries: int,
) -> Confirmed:
    """Run a case again while its result is unexpected, at most `retries` times.

    Results that differ make the case flaky, and green only where the list says
    so. A timeout or exhausted memory is tried again alone, and then only what
    happened alone counts. What the stage cache holds of such a second try is not
    run a third time.
    """
    tries, outcome, counted = [first.failure], first, [first.failure]
    for _ in range(retries):
        judgement = judged(outcome.failure)
        start = _start(outcome.failure, expectation)
        if judgement.green or judgement.verdict is Verdict.ERROR or _confirmed(outcome, start):
            break
        limited = outcome.failure is not None and outcome.failure.kind in LIMITED
        outcome = again(start, limited)
        tries.append(outcome.failure)
        counted = [outcome.failure] if limited and len(tries) == 2 else [*counted, outcome.failure]
        if len({_what(each) for each in counted}) > 1:
            break
    attempts = tuple(tries) if len(tries) > 1 else ()
    if len({_what(each) for each in counted}) > 1:
        judgement = _flake(counted, case_id, flaky)
    else:
        judgement = judged(outcome.failure)
    return Confirmed(outcome=outcome, judgement=judgement, attempts=attempts)


def _start(failure: Failure | None, expectation: Expectation | None) -> Stage:
    """The first stage that must run anew: no later than where either result lies.

    A good import stays, for other devices may be reading it.
    """
    stages = [each.stage for each in (failure, expectation) if each is not None and each.stage is not None]
    earliest = min(stages or [Stage.COMPILE], key=lambda stage: stage.order)
    first = (
        Stage.IMPORT if failure is not None and failure.stage.order <= Stage.IMPORT.order else Stage.COMPILE
    )
    return min(max(earliest, first, key=lambda s: s.order), Stage.RUN, key=lambda s: s.order)


def _confirmed(outcome: Outcome, start: Stage) -> bool:
    """Whether all that would run again comes from the cache, and was tried again when it was made."""
    tools = [r for r in outcome.stages if start.order <= r.stage.order < Stage.COMPARE.order]
    return bool(tools) and all(result.reused and result.confirmed for result in tools)


def _what(failure: Failure | None) -> object:
    return failure and failure.what


def _flake(counted: list[Failure | None], case_id: str, flaky: Flaky | None) -> Judgement:
    spoken = ", then ".join(described(each) for each in counted)
    if flaky is not None:
        return Judgement(
            verdict=Verdict.FLAKY, reason=f"flaky, as listed ({flaky.why}): {spoken}", excused=True
        )
    return Judgement(
        verdict=Verdict.FLAKY,
        reason=f"results differ: {spoken}",
        advice=f"if this is known, add:\n{propose_flaky(case_id, spoken)}",
    )


def described(failure: Failure | None) -> str:
    """How one try ended."""
    if failure is None:
        return "passes"
    return f"{failure.stage.value} ({failure.kind.value}) as {failure.signature or failure.message}"


def propose_flaky(case_id: str, why: str) -> str:
    """The entry of the list of flakes; a person has to improve its reason."""
    return f"[[flaky]]\nid = {toml_string(case_id)}\nwhy = {toml_string(why)}"
