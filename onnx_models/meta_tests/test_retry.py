"""Unexpected results are tried again: what counts then, and who has the machine meanwhile."""

from __future__ import annotations

import fcntl
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from onnx_models import machine, retry
from onnx_models.lists import Flaky
from onnx_models.meta_tests.sandbox import wait_until
from onnx_models.outcomes import Expectation, Failure, Kind, Outcome, Stage, StageResult, Verdict, judge
from onnx_models.retry import Confirmed


def failed(stage: Stage, kind: Kind = Kind.ERROR, signature: str = "s") -> Failure:
    return Failure(stage=stage, kind=kind, message="m", signature=signature)


def outcome(failure: Failure | None) -> Outcome:
    stage = failure.stage if failure else Stage.COMPARE
    return Outcome(stages=(StageResult(stage=stage, seconds=1.0, failure=failure),))


ERROR, OTHER = failed(Stage.COMPILE), failed(Stage.COMPILE, signature="t")
TIMEOUT, MISMATCH = failed(Stage.COMPILE, Kind.TIMEOUT), failed(Stage.COMPARE, Kind.MISMATCH)
KNOWN = Expectation(id="c/m", stage=Stage.COMPILE, kind=Kind.ERROR, signature="s", why="w")


class Tries:
    """Ends as told, try by try, and notes how each was asked for."""

    def __init__(self, *ends: Failure | None) -> None:
        self.ends, self.asked = list(ends), list[tuple[Stage, bool]]()

    def __call__(self, stage: Stage, alone: bool) -> Outcome:
        self.asked.append((stage, alone))
        return outcome(self.ends.pop(0))


def confirm(
    first: Failure | None,
    again: Callable[[Stage, bool], Outcome],
    *,
    expectation: Expectation | None = None,
    flaky: Flaky | None = None,
    retries: int = 1,
) -> Confirmed:
    return retry.confirm(
        outcome(first),
        lambda failure: judge(expectation, failure, case_id="c/m"),
        again,
        case_id="c/m",
        expectation=expectation,
        flaky=flaky,
        retries=retries,
    )


@pytest.mark.parametrize(("first", "expectation"), [(None, None), (ERROR, KNOWN)])
def test_an_expected_result_is_not_tried_again(
    first: Failure | None, expectation: Expectation | None
) -> None:
    tries = Tries()
    confirmed = confirm(first, tries, expectation=expectation)
    assert confirmed.judgement.green
    assert (tries.asked, confirmed.attempts) == ([], ())


@pytest.mark.parametrize(
    ("first", "expectation", "stage"),
    [
        (ERROR, None, Stage.COMPILE),
        (MISMATCH, None, Stage.RUN),
        (None, KNOWN, Stage.COMPILE),
        (MISMATCH, KNOWN, Stage.COMPILE),
        (failed(Stage.IMPORT), KNOWN, Stage.IMPORT),
    ],
)
def test_a_try_begins_where_the_results_part(
    first: Failure | None, expectation: Expectation | None, stage: Stage
) -> None:
    tries = Tries(first)
    confirmed = confirm(first, tries, expectation=expectation)
    assert tries.asked == [(stage, False)]
    assert confirmed.judgement.verdict in (Verdict.REGRESSED, Verdict.IMPROVED)
    assert confirmed.attempts == (first, first)


@pytest.mark.parametrize("second", [None, OTHER])
def test_results_that_differ_are_flaky(second: Failure | None) -> None:
    confirmed = confirm(ERROR, Tries(second), retries=3)
    assert confirmed.judgement.verdict is Verdict.FLAKY
    assert not confirmed.judgement.green
    assert 'id = "c/m"' in confirmed.judgement.advice
    listed = confirm(ERROR, Tries(second), flaky=Flaky(id="c/m", why="threads"))
    assert listed.judgement.verdict is Verdict.FLAKY
    assert listed.judgement.green
    assert "threads" in listed.judgement.reason


def test_a_listed_flake_that_fails_every_time_is_red() -> None:
    confirmed = confirm(ERROR, Tries(ERROR), flaky=Flaky(id="c/m", why="threads"))
    assert confirmed.judgement.verdict is Verdict.REGRESSED
    assert not confirmed.judgement.green


def test_a_timeout_is_tried_alone_and_only_that_counts() -> None:
    tries = Tries(None)
    confirmed = confirm(TIMEOUT, tries)
    assert tries.asked == [(Stage.COMPILE, True)]
    assert confirmed.judgement.verdict is Verdict.PASSED
    assert confirmed.attempts == (TIMEOUT, None)
    assert confirm(TIMEOUT, Tries(TIMEOUT)).judgement.verdict is Verdict.REGRESSED


@pytest.mark.parametrize(
    ("reused", "confirmed", "tried"),
    [(True, True, False), (True, False, True), (False, True, True), (False, False, True)],
)
def test_a_confirmed_result_from_the_cache_is_believed(reused: bool, confirmed: bool, tried: bool) -> None:
    tries = Tries(ERROR, ERROR)
    good = StageResult(stage=Stage.IMPORT, seconds=1.0, reused=True)
    bad = StageResult(stage=Stage.COMPILE, seconds=1.0, reused=reused, confirmed=confirmed, failure=ERROR)
    first = Outcome(stages=(good, bad))
    found = retry.confirm(
        first,
        lambda failure: judge(None, failure, case_id="c/m"),
        tries,
        case_id="c/m",
        expectation=None,
        flaky=None,
        retries=1,
    )
    assert found.judgement.verdict is Verdict.REGRESSED
    assert (tries.asked != []) is tried


def test_no_tries_means_the_first_counts() -> None:
    assert confirm(TIMEOUT, Tries(), retries=0).judgement.verdict is Verdict.REGRESSED


def test_who_waits_to_be_alone_goes_before_newcomers(tmp_path: Path) -> None:
    order: list[str] = []

    def take(name: str, *, alone: bool) -> None:
        with machine.shared(tmp_path, alone=alone):
            order.append(name)

    def gate_is_held() -> bool:
        with (tmp_path / ".machine-gate.lock").open("ab") as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    with machine.shared(tmp_path), machine.shared(tmp_path):
        first = threading.Thread(target=take, args=("alone",), kwargs={"alone": True})
        first.start()
        wait_until(gate_is_held, "somebody waits to be alone")
        second = threading.Thread(target=take, args=("newcomer",), kwargs={"alone": False})
        second.start()
        assert order == []
    first.join()
    second.join()
    assert order == ["alone", "newcomer"]
