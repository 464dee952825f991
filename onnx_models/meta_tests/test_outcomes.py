"""The judgement as a table: what was expected, what happened, and what that means."""

from __future__ import annotations

import sys
from itertools import product

import pytest

from onnx_models.outcomes import Expectation, Failure, Kind, Outcome, Stage, StageResult, Verdict, judge

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def expected(stage: Stage, kind: Kind) -> Expectation:
    return Expectation(id="c/m", stage=stage, kind=kind, why="known", source="cpu.toml")


def stopped(stage: Stage, kind: Kind) -> Failure:
    return Failure(stage=stage, kind=kind, message="it broke")


COMPILE_ERROR = (Stage.COMPILE, Kind.ERROR)


@pytest.mark.parametrize(
    ("expectation", "failure", "verdict"),
    [
        (None, None, Verdict.PASSED),
        (None, COMPILE_ERROR, Verdict.REGRESSED),
        (None, (Stage.COMPARE, Kind.MISMATCH), Verdict.REGRESSED),
        (COMPILE_ERROR, None, Verdict.IMPROVED),
        (COMPILE_ERROR, COMPILE_ERROR, Verdict.EXPECTED_FAILURE),
        (COMPILE_ERROR, (Stage.COMPILE, Kind.CRASH), Verdict.CHANGED),
        (COMPILE_ERROR, (Stage.COMPILE, Kind.TIMEOUT), Verdict.CHANGED),
        (COMPILE_ERROR, (Stage.IMPORT, Kind.ERROR), Verdict.REGRESSED),
        (COMPILE_ERROR, (Stage.REFERENCE, Kind.ERROR), Verdict.REGRESSED),
        (COMPILE_ERROR, (Stage.RUN, Kind.ERROR), Verdict.IMPROVED),
        (COMPILE_ERROR, (Stage.COMPARE, Kind.MISMATCH), Verdict.IMPROVED),
    ],
)
def test_judge(
    expectation: tuple[Stage, Kind] | None, failure: tuple[Stage, Kind] | None, verdict: Verdict
) -> None:
    known = expected(*expectation) if expectation else None
    found = stopped(*failure) if failure else None
    assert judge(known, found, case_id="c/m").verdict is verdict


@pytest.mark.parametrize(("stage", "kind"), list(product(Stage, Kind)))
def test_only_the_expected_stage_and_kind_is_green(stage: Stage, kind: Kind) -> None:
    green = [
        (s, k)
        for s, k in product(Stage, Kind)
        if judge(expected(stage, kind), stopped(s, k), case_id="c/m").verdict.green
    ]
    assert green == [(stage, kind)]
    assert not judge(expected(stage, kind), None, case_id="c/m").verdict.green
    assert not judge(None, stopped(stage, kind), case_id="c/m").verdict.green


def test_green_verdicts() -> None:
    assert {v for v in Verdict if v.green} == {
        Verdict.PASSED,
        Verdict.EXPECTED_FAILURE,
        Verdict.NEW,
        Verdict.SKIPPED,
    }


def test_advice_is_toml_to_paste() -> None:
    failure = Failure(stage=Stage.RUN, kind=Kind.CRASH, message='SIGSEGV: "x" \\ \t\u2028 end')
    advice = judge(None, failure, case_id='local/a "b"').advice
    head, _, text = advice.partition("\n")
    assert head == "if this is known, add:"
    assert tomllib.loads(text) == {
        "case": [{"id": 'local/a "b"', "stage": "run", "kind": "crash", "why": failure.message}]
    }


def test_advice_of_a_fix_names_the_file_and_the_entry() -> None:
    judgement = judge(expected(*COMPILE_ERROR), None, case_id="c/m")
    assert judgement.advice == f"remove from cpu.toml:\n{expected(*COMPILE_ERROR).toml()}"
    changed = judge(expected(*COMPILE_ERROR), stopped(Stage.RUN, Kind.ERROR), case_id="c/m")
    assert changed.advice.startswith("replace in cpu.toml:\n[[case]]\n")
    assert 'stage = "run"' in changed.advice


def test_a_failure_without_a_message_still_gives_a_valid_entry() -> None:
    failure = Failure(stage=Stage.RUN, kind=Kind.ERROR, message=" ")
    assert 'why = "no message"' in judge(None, failure, case_id="c/m").advice


def test_stages_are_ordered_as_they_run() -> None:
    words = [stage.value for stage in sorted(Stage, key=lambda stage: stage.order)]
    assert words == ["fetch", "reference", "import", "compile", "run", "compare"]


def test_an_outcome_fails_where_its_last_stage_does() -> None:
    failure = stopped(*COMPILE_ERROR)
    good = StageResult(stage=Stage.IMPORT, seconds=1.0)
    bad = StageResult(stage=Stage.COMPILE, seconds=1.0, failure=failure)
    assert Outcome(stages=(good, bad)).failure is failure
    assert Outcome(stages=(good,)).failure is None
    assert Outcome(stages=()).failure is None
