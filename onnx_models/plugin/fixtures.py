"""The fixtures of the conformance test: a model's file, its reference, and the judgement of a case."""

from __future__ import annotations

import contextlib
import shlex
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import pytest
from filelock import FileLock

from onnx_models import artifacts, benchmark, file_facts, local, machine, peers, records, retry, zoo
from onnx_models.cache import OfflineError
from onnx_models.cases import Case
from onnx_models.files import write_atomic
from onnx_models.inspection import with_file_facts
from onnx_models.outcomes import (
    Expectation,
    Failure,
    Judgement,
    Kind,
    Outcome,
    Stage,
    StageResult,
    SuiteError,
    Verdict,
    judge,
)
from onnx_models.plugin.options import RUN, Run
from onnx_models.reference import Draw, Reference, make_reference
from onnx_models.sources import fetch
from onnx_models.stages import Settings, run_stages, signed

STAGES = pytest.StashKey[list[StageResult]]()
RECORD = pytest.StashKey[dict[str, Any]]()
FILE = pytest.StashKey[Path]()
REFERENCE = pytest.StashKey[Reference]()


@pytest.fixture
def settings(pytestconfig: pytest.Config) -> Settings:
    """Tools, limits and the artifacts folder of the run."""
    return pytestconfig.stash[RUN].settings


@pytest.fixture
def model_file(case: Case, request: pytest.FixtureRequest) -> Iterator[Path]:
    """The model's verified file, safe from `cache prune` while the case runs.

    What cannot be had is an error of the host, not of IREE. What is not to be
    downloaded (`--offline`) is a skip that names the file and the command.
    """
    run = request.config.stash[RUN]
    with zoo.lease(case.model, run.cache):
        file = _fetch(case, run, request)
        request.node.stash[FILE] = file
        folder = run.settings.folder(case)
        with artifacts.held(folder, whole=case.model.collection == local.COLLECTION):
            yield file


def _fetch(case: Case, run: Run, request: pytest.FixtureRequest) -> Path:
    with _Watch(request.node, Stage.FETCH) as watch:
        try:
            return fetch(case.model, cache=run.cache, offline=run.offline)
        except SuiteError as error:
            if isinstance(error, OfflineError) and not request.config.option.require_models:
                pytest.skip(str(error))
            watch.failure = Failure(stage=Stage.FETCH, kind=Kind.INFRASTRUCTURE, message=str(error))
    assert watch.failure is not None
    _give_up(request, case, watch.failure)


@pytest.fixture
def reference(
    case: Case, model_file: Path, settings: Settings, request: pytest.FixtureRequest
) -> Reference | None:
    """Inputs and onnxruntime's outputs; None where the device is only compiled for."""
    if not case.needs_reference:
        return None
    run = request.config.stash[RUN]
    with _only_ours(settings.folder(case).model, settings) as settings:
        made = _reference(case, model_file, settings, run.draw, retries=request.config.option.retries)
    request.node.stash[REFERENCE] = made
    failure = made.failure and signed(made.failure)
    if failure is not None and failure.kind is Kind.UNSUPPORTED_INPUT:
        return made
    result = StageResult(
        stage=Stage.REFERENCE,
        seconds=made.seconds,
        peak_bytes=made.peak_bytes,
        reused=made.reused,
        failure=failure,
    )
    if failure is not None:
        # onnxruntime names the file; its folder is no part of the reason that a list keeps.
        plain = failure.message.replace(str(model_file.absolute()), model_file.name)
        failure = replace(failure, message=plain)
        result = replace(result, failure=failure)
    request.node.stash[STAGES].append(result)
    if failure is not None:
        _give_up(request, case, failure)
    return made


@contextlib.contextmanager
def _only_ours(folder: Path, settings: Settings) -> Iterator[Settings]:
    """Settings that reuse a model's reference only if this run made it, where nothing older is wanted.

    A second device must not make it anew: the first one's tool may be reading it.
    """
    if settings.reuse:
        yield settings
        return
    folder.mkdir(parents=True, exist_ok=True)
    marker = folder / ".reference-run"
    with FileLock(folder / ".reference-run.lock"):
        ours = marker.is_file() and marker.read_text(encoding="utf-8") == settings.run
        yield replace(settings, reuse=ours)
        write_atomic(marker, settings.run)


def _reference(case: Case, model_file: Path, settings: Settings, draw: Draw, *, retries: int) -> Reference:
    """The reference; one that ran out of time or memory is tried again with the machine to itself."""
    folder = settings.folder(case).model

    def make(*, reuse: bool, alone: bool) -> Reference:
        with machine.shared(settings.artifacts, alone=alone):
            return make_reference(
                with_file_facts(case.model, model_file),
                model_file,
                folder,
                draw=draw,
                memory_limit=settings.memory_limit,
                reuse=reuse,
            )

    made = make(reuse=settings.reuse, alone=False)
    for _ in range(retries):
        if made.failure is None or made.failure.kind not in retry.LIMITED:
            break
        made = make(reuse=settings.reuse, alone=True)
    return made


def _give_up(request: pytest.FixtureRequest, case: Case, failure: Failure) -> NoReturn:
    """End a case whose fetch or reference failed: as expected, as new, or with pytest's ERROR."""
    outcome = Outcome(stages=tuple(request.node.stash[STAGES]))
    judgement = _judge(request.config, case, failure)
    if judgement.verdict not in (Verdict.EXPECTED_FAILURE, Verdict.NEW):
        judgement = replace(judgement, verdict=Verdict.ERROR, excused=False)
    _conclude(request, case, judgement, outcome)
    raise AssertionError("an error or an expected failure does not return")


@pytest.fixture
def settle(case: Case, request: pytest.FixtureRequest) -> Callable[[Outcome], None]:
    """Judge an outcome: pass, xfail as expected, or fail with what a person needs to act."""
    config = request.config

    def settle(outcome: Outcome) -> None:
        confirmed = retry.confirm(
            outcome,
            lambda failure: _judge(config, case, failure),
            lambda stage, alone: _again(request, case, stage, alone=alone),
            case_id=case.model.id,
            expectation=_expectation(config, case),
            flaky=case.flaky,
            retries=config.option.retries,
        )
        counted = _measured(request, case, confirmed.outcome)
        whole = replace(counted, stages=(*request.node.stash[STAGES], *counted.stages))
        _conclude(request, case, confirmed.judgement, whole, confirmed.attempts)

    return settle


def _measured(request: pytest.FixtureRequest, case: Case, outcome: Outcome) -> Outcome:
    """The outcome with its latency, where that is asked for and the outputs matched."""
    option = request.config.option
    reference: Reference | None = request.getfixturevalue("reference")
    if not option.benchmark or outcome.failure is not None or reference is None:
        return outcome
    model_file: Path = request.getfixturevalue("model_file")
    settings, seconds = request.config.stash[RUN].settings, option.benchmark_seconds or benchmark.SECONDS
    return benchmark.measure(case, model_file, reference, outcome, settings, seconds)


def _again(request: pytest.FixtureRequest, case: Case, stage: Stage, *, alone: bool) -> Outcome:
    """Run a case once more, from a stage on."""
    model_file: Path = request.getfixturevalue("model_file")
    reference: Reference | None = request.getfixturevalue("reference")
    settings = replace(request.config.stash[RUN].settings, again=stage, alone=alone)
    return run_stages(case, model_file, reference, settings)


def _judge(config: pytest.Config, case: Case, failure: Failure | None) -> Judgement:
    judgement = judge(_expectation(config, case), failure, case_id=case.model.id, recording=case.recording)
    return replace(judgement, excused=judgement.verdict in config.option.lenient)


def _expectation(config: pytest.Config, case: Case) -> Expectation | None:
    return None if config.option.runxfail else case.expectation


def _conclude(
    request: pytest.FixtureRequest,
    case: Case,
    judgement: Judgement,
    outcome: Outcome,
    attempts: tuple[Failure | None, ...] = (),
) -> None:
    run = request.config.stash[RUN]
    settings = run.settings
    if run.earlier and judgement.advice:
        advice = run.earlier.advice(case.model, outcome.failure) or judgement.advice
        judgement = replace(judgement, advice=advice)
    hint = peers.hint(case.model.id, case.device.driver)
    if outcome.failure and hint:
        outcome = replace(outcome, notes=(*outcome.notes, hint))
    outcome = _with_facts(request.node, case, outcome, run)
    request.node.stash[RECORD] = records.case_record(case, judgement, outcome, attempts)
    if judgement.excused:
        warnings.warn(
            f"{case.id}: {judgement.verdict.value}: {judgement.reason}", LenientWarning, stacklevel=1
        )
    if not judgement.green:
        pytest.fail(explain(case, judgement, outcome, settings), pytrace=False)
    if outcome.failure is not None:
        pytest.xfail(judgement.reason)


def _with_facts(item: pytest.Item, case: Case, outcome: Outcome, run: Run) -> Outcome:
    """The outcome with what the model's file says of itself, and how the reference was checked."""
    made = item.stash.get(REFERENCE, None)
    file = item.stash.get(FILE, None)
    info = made.info if made else None
    if info is not None:
        file_facts.remember(case.model, info, run.cache)
    elif file is not None:
        info = file_facts.of_file(case.model, file, run.cache)
    return replace(
        outcome,
        health=made.health if made else {},
        opset=file_facts.opset_of(info.opsets) if info else 0,
        operators=info.operators if info else {},
    )


class LenientWarning(UserWarning):
    """A result that the user asked not to be red."""


def explain(case: Case, judgement: Judgement, outcome: Outcome, settings: Settings) -> str:
    """The failure text of a case: where it stopped, why, how to repeat it, and what to write down."""
    failure, last = outcome.failure, outcome.stages[-1]
    lines = [f"{case.id}: {judgement.verdict.value}: {judgement.reason}"]
    if failure is not None:
        lines += [f"stage   {failure.stage.value}", f"kind    {failure.kind.value}"]
        lines += [f"error   {failure.message}"]
        if failure.signature:
            lines += [f"fault   {failure.signature}: {failure.title}"]
    if failure is None or failure.stage.order >= Stage.IMPORT.order:
        lines += [f"repeat  {shlex.quote(str(settings.folder(case).script))}"]
    if last.log is not None:
        lines += [f"log     {last.log}"]
    lines += [f"note    {note}" for note in outcome.notes]
    if failure is not None and failure.detail:
        lines += ["", failure.detail]
    if judgement.advice:
        lines += ["", judgement.advice]
    return "\n".join(lines)


class _Watch:
    """Times a stage that a fixture performs and keeps its result on the test item."""

    def __init__(self, item: pytest.Item, stage: Stage) -> None:
        self.item, self.stage = item, stage
        self.failure: Failure | None = None

    def __enter__(self) -> _Watch:
        self.began = monotonic()
        return self

    def __exit__(self, raised: type[BaseException] | None, *_: object) -> None:
        if raised is not None:
            return
        seconds = monotonic() - self.began
        self.item.stash.setdefault(STAGES, []).append(
            StageResult(stage=self.stage, seconds=seconds, failure=self.failure)
        )
