"""What can happen to a case, as values, and the one pure function that judges it.

A failure of the compiler under test is data, never an exception: it is carried
from the stage that saw it to the record, the report and the dashboard.
Exceptions (`SuiteError` and its subclasses) are kept for faults of the suite or
of its user.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any


class SuiteError(Exception):
    """A fault of the suite, its host or its user; the message is one line with the next step."""


class UsageError(SuiteError):
    """A wrong option, selection or data file: pytest exits with code 4."""


class Stage(str, Enum):
    """The steps of a case, in order; `Stage.order` compares them."""

    FETCH = "fetch"
    REFERENCE = "reference"
    IMPORT = "import"
    COMPILE = "compile"
    RUN = "run"
    COMPARE = "compare"

    @property
    def order(self) -> int:
        """Position in the flow, 0 for fetch."""
        return list(Stage).index(self)


class Kind(str, Enum):
    """Why a stage failed."""

    ERROR = "error"
    CRASH = "crash"
    TIMEOUT = "timeout"
    OUT_OF_MEMORY = "out-of-memory"
    MISMATCH = "mismatch"
    UNSUPPORTED_INPUT = "unsupported-input"
    INFRASTRUCTURE = "infrastructure"
    REFERENCE_UNHEALTHY = "reference-unhealthy"


class Verdict(str, Enum):
    """What a case's outcome means against its expectation."""

    PASSED = "passed"
    EXPECTED_FAILURE = "expected-failure"
    IMPROVED = "improved"
    REGRESSED = "regressed"
    CHANGED = "changed"
    FLAKY = "flaky"
    SKIPPED = "skipped"
    ERROR = "error"

    @property
    def green(self) -> bool:
        """Whether a run with only such verdicts ends with exit code 0."""
        return self in (Verdict.PASSED, Verdict.EXPECTED_FAILURE, Verdict.SKIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Where and why a case stopped.

    `message` is the first line that explains it; `detail` holds what a person
    needs beyond that line and may be long.
    """

    stage: Stage
    kind: Kind
    message: str
    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """One finished stage. `seconds` is wall time, `peak_bytes` the resident peak of the process tree.

    `reused` says that the result comes from the stage cache: the seconds and
    bytes are then those of the run that made it. `commands` are the argument
    lists that were run, one per input set in the run stage.
    """

    stage: Stage
    seconds: float
    peak_bytes: int = 0
    commands: tuple[tuple[str, ...], ...] = ()
    log: Path | None = None
    reused: bool = False
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All stages that a case went through and, when it was compared, each output's numbers.

    `outputs` holds one JSON-ready mapping per compared output. `notes` says
    what the reader of the number must know, such as a dim that was bound to a
    default because nothing names it.
    """

    stages: tuple[StageResult, ...]
    outputs: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def failure(self) -> Failure | None:
        """The failure of the last stage, None when every stage passed."""
        return self.stages[-1].failure if self.stages else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A known deviation of one case: where it stops today and why.

    `kind` None is any kind, `through` the last stage that counts as expected too:
    lists of other suites do not tell them apart.
    """

    id: str
    stage: Stage
    kind: Kind | None
    why: str
    issue: str = ""
    source: str = field(default="", compare=False)
    through: Stage | None = None

    @property
    def last_stage(self) -> Stage:
        """The last stage that counts as expected."""
        return self.through or self.stage

    @property
    def place(self) -> str:
        """Where it is expected to fail, in words."""
        kind = f" ({self.kind.value})" if self.kind else ""
        through = f" or {self.through.value}" if self.through else ""
        return f"{self.stage.value}{through}{kind}"

    def covers(self, failure: Failure) -> bool:
        """Whether this is the failure that is expected."""
        within = self.stage.order <= failure.stage.order <= self.last_stage.order
        return within and self.kind in (None, failure.kind)

    def toml(self) -> str:
        """The entry as it stands in an expectations file."""
        lines = ["[[case]]", f"id = {_toml(self.id)}"]
        lines += [f'stage = "{self.stage.value}"']
        if self.kind:
            lines += [f'kind = "{self.kind.value}"']
        lines += [f"why = {_toml(self.why)}"]
        if self.issue:
            lines += [f"issue = {_toml(self.issue)}"]
        return "\n".join(lines)


def _toml(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    printable = "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped)
    return f'"{printable}"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, the reason in one sentence, and the TOML to paste when a list must change."""

    verdict: Verdict
    reason: str = ""
    advice: str = ""


def judge(expectation: Expectation | None, failure: Failure | None, *, case_id: str) -> Judgement:
    """Hold what happened against what was expected.

    Args:
        expectation: the known deviation, or None when the case must pass.
        failure: where the case stopped, or None when it passed.
        case_id: `collection/path`, for the TOML to paste.
    """
    if failure is None and expectation is None:
        return Judgement(verdict=Verdict.PASSED)
    if failure is None and expectation is not None:
        return Judgement(
            verdict=Verdict.IMPROVED,
            reason=f"expected to fail in {expectation.place}, but passes",
            advice=f"remove from {expectation.source or 'the expectations'}:\n{expectation.toml()}",
        )
    assert failure is not None
    stopped = f"stopped in {failure.stage.value} ({failure.kind.value})"
    proposal = Expectation(
        id=case_id, stage=failure.stage, kind=failure.kind, why=failure.message.strip() or "no message"
    )
    if expectation is None:
        advice = f"if this is known, add:\n{proposal.toml()}"
        return Judgement(verdict=Verdict.REGRESSED, reason=f"expected to pass, {stopped}", advice=advice)
    expected = f"expected to fail in {expectation.place}"
    if expectation.covers(failure):
        return Judgement(verdict=Verdict.EXPECTED_FAILURE, reason=f"{expected}: {expectation.why}")
    if failure.stage.order > expectation.last_stage.order:
        verdict = Verdict.IMPROVED
    elif failure.stage.order < expectation.stage.order:
        verdict = Verdict.REGRESSED
    else:
        verdict = Verdict.CHANGED
    advice = f"replace in {expectation.source or 'the expectations'}:\n{proposal.toml()}"
    return Judgement(verdict=verdict, reason=f"{expected}, {stopped}", advice=advice)
