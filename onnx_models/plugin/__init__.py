"""The pytest plugin: options, the cases as tests, fixtures, verdicts, and the record of a run.

The plugin is inert unless the conformance test is among what pytest collects.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import shlex
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from time import monotonic
from typing import Any, NoReturn

import pytest
from filelock import FileLock

from onnx_models import (
    artifacts,
    benchmark,
    environments,
    file_facts,
    junit,
    local,
    machine,
    peers,
    records,
    releases,
    retry,
    zoo,
)
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
    UsageError,
    Verdict,
    judge,
)
from onnx_models.plugin import options
from onnx_models.plugin.options import Run
from onnx_models.plugin.recorder import Recorder
from onnx_models.reference import Draw, Reference, make_reference
from onnx_models.selection import SIZE_CLASSES, size_class
from onnx_models.sources import fetch
from onnx_models.stages import Settings, run_stages, signed

PACKAGE = Path(__file__).resolve().parent.parent
CONFORMANCE = PACKAGE / "test_models.py"
META_TESTS = PACKAGE / "meta_tests"

RUN = pytest.StashKey[Run]()
STAGES = pytest.StashKey[list[StageResult]]()
RECORD = pytest.StashKey[dict[str, Any]]()
FILE = pytest.StashKey[Path]()
REFERENCE = pytest.StashKey[Reference]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Declare the options."""
    options.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Collect the conformance test when nothing else is named.

    pytest looks for its ini file before it knows these options, and so takes the
    file of `--model FILE` or the folder of `--artifacts DIR` for a place to collect
    from: then `testpaths` is not read.
    """
    for size in (*SIZE_CLASSES, "large"):
        config.addinivalue_line(
            "markers", f"{size}: models of that size class (onnx-models list --size {size})"
        )
    config.addinivalue_line("markers", "size_large: models that iree-test-suites/onnx_models marks as large")
    if config.args_source is config.ArgsSource.ARGS:
        return
    if config.option.model or _reaches(config, "."):
        config.args = [str(CONFORMANCE)]


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> int | None:
    """Run several releases one after the other, each in a pytest of its own with its own record."""
    if len(config.option.iree) < 2 or not _collects_conformance(config):
        return None
    try:
        return releases.run_each(config.option.iree, config.invocation_params.args, config.option.record)
    except SuiteError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionstart(session: pytest.Session) -> None:
    """Turn the options into cases before anything runs, so that a wrong one ends with exit code 4."""
    config = session.config
    if not _collects_conformance(config):
        return
    worker = getattr(config, "workerinput", None)
    asked = config.option.artifacts
    root = Path(asked).absolute() if asked else options.default_artifacts(config)
    try:
        run_id = worker["run"] if worker else records.new_run_id()
        run = options.make_run(config, Path(worker["artifacts"]) if worker else root, run_id)
        config.stash[RUN] = run
        if run.environment:
            held = contextlib.ExitStack()
            held.enter_context(environments.lease(run.environment, run.cache))
            config.add_cleanup(held.close)
        if worker is None and not config.option.collectonly:
            recorder = Recorder(config, run)
            config.pluginmanager.register(recorder, "onnx_models_recorder")
    except SuiteError as error:
        raise pytest.UsageError(str(error)) from None


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Tell an xdist worker where the controller puts the artifacts, and the run's name."""
    if RUN in node.config.stash:
        settings = node.config.stash[RUN].settings
        node.workerinput |= {"artifacts": str(settings.artifacts), "run": settings.run}


def _collects_conformance(config: pytest.Config) -> bool:
    return any(_reaches(config, argument.partition("::")[0]) for argument in config.args)


def _reaches(config: pytest.Config, argument: str) -> bool:
    place = (config.invocation_params.dir / argument).resolve()
    if config.option.pyargs and not place.exists():
        try:
            spec = importlib.util.find_spec(argument)
        except (ImportError, ValueError):
            return False
        if spec is None:
            return False
        place = Path(next(iter(spec.submodule_search_locations or ()), spec.origin or "")).resolve()
    if place == CONFORMANCE:
        return True
    if place not in CONFORMANCE.parents:
        return False
    between = CONFORMANCE.parents[: CONFORMANCE.parents.index(place)]
    return not any((folder / "pyvenv.cfg").exists() for folder in between)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Keep the suite's own tests out of a run of the models, unless they are named."""
    if collection_path != META_TESTS:
        return None
    named = any("meta_tests" in argument for argument in config.args)
    return None if named else True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection(session: pytest.Session) -> Generator[None, object, object]:
    """Collect without the garbage collector, which takes a third of the time of 16,275 cases."""
    if RUN not in session.config.stash or not gc.isenabled():
        return (yield)
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """One test per case."""
    if "case" not in metafunc.fixturenames or metafunc.module.__name__ != "onnx_models.test_models":
        return
    run = metafunc.config.stash.get(RUN, None)
    parameters = [
        pytest.param(
            case,
            id=case.id,
            marks=_marks(case),
        )
        for case in (run.cases if run else ())
    ]
    metafunc.parametrize("case", parameters)


def _marks(case: Case) -> list[pytest.MarkDecorator]:
    marks = [_size_mark(size_class(case.model))] if case.model.bytes else []
    if peers.is_large(case.model.id):
        marks.append(pytest.mark.size_large)
    if case.skip_reason:
        marks.append(pytest.mark.skip(reason=case.skip_reason))
    return marks


@cache
def _size_mark(size: str) -> pytest.MarkDecorator:
    mark: pytest.MarkDecorator = getattr(pytest.mark, size)
    return mark


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Attach a case's record to the report that ends it, so that it travels from any worker."""
    report = yield
    case = getattr(item, "callspec", None) and item.callspec.params.get("case")  # type: ignore[attr-defined]
    if not isinstance(case, Case):
        return report
    if call.excinfo is not None and isinstance(call.excinfo.value, SuiteError):
        report.longrepr = str(call.excinfo.value)
    if report.when == "call" or (report.when == "setup" and not report.passed):
        row = item.stash.get(RECORD, None) or _record_of(
            case, report, item, call.excinfo.value if call.excinfo else None
        )
        report.onnx_models = row  # type: ignore[attr-defined]
        item.user_properties += junit.properties(row)  # --junitxml reads those of the teardown's report
        report.user_properties = [*item.user_properties]
    return report


def _record_of(
    case: Case, report: pytest.TestReport, item: pytest.Item, raised: BaseException | None
) -> dict[str, Any]:
    """The record of a case that never reached a judgement.

    What the harness could not read, write or start is a fault of the machine,
    in the first stage that is not known to have ended.
    """
    if report.skipped:
        reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        return records.unfinished(case, Verdict.SKIPPED, reason.removeprefix("Skipped: "))
    reason = str(report.longrepr).strip().splitlines()[-1] if report.longrepr else "the test failed"
    done: list[StageResult] = [*item.stash.get(STAGES, [])]
    if isinstance(raised, (SuiteError, OSError)) and not isinstance(raised, UsageError):
        message = str(raised) if isinstance(raised, SuiteError) else f"{type(raised).__name__}: {raised}"
        flow = [stage for stage in Stage if case.needs_reference or stage is not Stage.REFERENCE]
        failure = Failure(stage=flow[len(done)], kind=Kind.INFRASTRUCTURE, message=message)
        done.append(StageResult(stage=failure.stage, seconds=0.0, failure=signed(failure)))
    return records.unfinished(case, Verdict.ERROR, reason, tuple(done))
