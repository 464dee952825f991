"""The pytest plugin: its hooks. Options, fixtures and the record of a run have modules of their own.

The plugin is inert unless the conformance test is among what pytest collects.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
from collections.abc import Generator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from onnx_models import environments, junit, peers, records, releases
from onnx_models.cases import Case
from onnx_models.outcomes import Failure, Kind, Stage, StageResult, SuiteError, UsageError, Verdict
from onnx_models.plugin import options
from onnx_models.plugin.fixtures import RECORD, STAGES, model_file, reference, settings, settle
from onnx_models.plugin.options import RUN
from onnx_models.plugin.recorder import Recorder
from onnx_models.selection import SIZE_CLASSES, size_class
from onnx_models.stages import signed

PACKAGE = Path(__file__).resolve().parent.parent
CONFORMANCE = PACKAGE / "test_models.py"
META_TESTS = PACKAGE / "meta_tests"

__all__ = ["model_file", "reference", "settings", "settle"]


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
        files = config.option.record, getattr(config.option, "xmlpath", None)
        return releases.run_each(config.option.iree, config.invocation_params.args, *files)
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
        if worker:
            config.option.iree = worker["iree"]
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
        run = node.config.stash[RUN]
        node.workerinput |= {"artifacts": str(run.settings.artifacts), "run": run.settings.run}
        # `nightly` is another build after midnight: a worker takes the one that the header names.
        node.workerinput["iree"] = [run.environment.name] if run.environment else []


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
