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
    NEW = "new"
    SKIPPED = "skipped"
    ERROR = "error"

    @property
    def green(self) -> bool:
        """Whether a run with only such verdicts ends with exit code 0."""
        return self in (Verdict.PASSED, Verdict.EXPECTED_FAILURE, Verdict.NEW, Verdict.SKIPPED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """Where and why a case stopped.

    `message` is the first line that explains it; `detail` holds what a person
    needs beyond that line and may be long. `signature` names the fault the same
    way wherever it is met, and `title` says it in words. `excerpt` is the part of
    the tool's log around the error.
    """

    stage: Stage
    kind: Kind
    message: str
    detail: str = ""
    signature: str = ""
    title: str = ""
    excerpt: str = field(default="", compare=False)

    @property
    def what(self) -> tuple[Stage, Kind, str]:
        """What makes two failures the same one."""
        return self.stage, self.kind, self.signature


@dataclass(frozen=True, slots=True, kw_only=True)
class StageResult:
    """One finished stage. `seconds` is wall time, `peak_bytes` the resident peak of the process tree.

    `reused` says that the result comes from the stage cache: the seconds and
    bytes are then those of the run that made it. `confirmed` says that it comes
    from a second try, which gave the same or was to be believed. `commands` are the argument
    lists that were run, one per input set in the run stage. `product_bytes` is the size of the
    files that import or compile wrote, 0 for the other stages and after a failure.
    """

    stage: Stage
    seconds: float
    peak_bytes: int = 0
    commands: tuple[tuple[str, ...], ...] = ()
    log: Path | None = None
    reused: bool = False
    confirmed: bool = False
    product_bytes: int = 0
    failure: Failure | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """All stages that a case went through and, when it was compared, each output's numbers.

    `outputs` holds one JSON-ready mapping per compared output. `notes` says
    what the reader of the number must know, such as a dim that was bound to a
    default because nothing names it. `vacuous` says why the reference could not
    have told a wrong answer from a right one, empty when it could. `health` is the
    JSON-ready record of the reference's checks. `opset` (of the ONNX domain, 0 when the
    file was not read) and `operators` (occurrences by type) are the model file's own.
    `benchmark` is the JSON-ready result of the latency measurement, empty without one.
    """

    stages: tuple[StageResult, ...]
    outputs: tuple[Mapping[str, Any], ...] = ()
    notes: tuple[str, ...] = ()
    vacuous: str = ""
    health: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 0
    operators: Mapping[str, int] = field(default_factory=dict)
    benchmark: Mapping[str, Any] = field(default_factory=dict)

    @property
    def failure(self) -> Failure | None:
        """The failure of the last stage, None when every stage passed."""
        return self.stages[-1].failure if self.stages else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """A known deviation of one case or of a group of them: where it stops today and why.

    `stage` is None where an entry says that a case passes, against a wider rule
    or an earlier file that says otherwise. `kind` None is any kind, `through` the
    last stage that counts as expected too: lists of other suites do not tell
    them apart.

    Attributes:
        id: `collection/path` of a model, or of a `glob` the pattern.
        glob: whether `id` is a pattern.
        stage, kind, signature: where and how it stops; an empty signature stands for any.
        title: the signature in words.
        why: the reason, by a person.
        issue: URL of the report.
        when: where it holds (`conditions`), everywhere when empty.
        since: IREE version or date from which it is known.
        expires: date after which it must be looked at again.
        source: the file that it is from.
    """

    id: str
    stage: Stage | None
    kind: Kind | None
    why: str
    issue: str = ""
    signature: str = ""
    title: str = ""
    when: str = ""
    since: str = ""
    expires: str = ""
    glob: bool = False
    source: str = field(default="", compare=False)
    through: Stage | None = None

    @property
    def last_stage(self) -> Stage | None:
        """The last stage that counts as expected."""
        return self.through or self.stage

    @property
    def place(self) -> str:
        """Where it is expected to fail, in words."""
        if self.stage is None:
            return "no stage"
        kind = f" ({self.kind.value})" if self.kind else ""
        through = f" or {self.through.value}" if self.through else ""
        return f"{self.stage.value}{through}{kind}{f' as {self.signature}' if self.signature else ''}"

    @property
    def what(self) -> tuple[Stage | None, Kind | None, str]:
        """What it claims."""
        return self.stage, self.kind, self.signature

    def covers(self, failure: Failure) -> bool:
        """Whether this is the failure that is expected."""
        if self.stage is None or self.last_stage is None:
            return False
        within = self.stage.order <= failure.stage.order <= self.last_stage.order
        kinds = set(Kind) - {Kind.INFRASTRUCTURE} if self.kind is None else {self.kind}
        return within and failure.kind in kinds and self.signature in ("", failure.signature)

    def toml(self) -> str:
        """The entry as it stands in an expectations file."""
        rows = {
            "glob" if self.glob else "id": self.id,
            "stage": self.stage.value if self.stage else PASS,
            "kind": self.kind.value if self.kind else "",
            "signature": self.signature,
            "title": self.title,
            "why": self.why,
            "issue": self.issue,
            "when": self.when,
            "since": self.since,
            "expires": self.expires,
        }
        return "\n".join(
            ["[[case]]", *(f"{key} = {toml_string(value)}" for key, value in rows.items() if value)]
        )


PASS = "pass"
"""The `stage` of an entry that says that a case passes."""


def toml_string(text: str) -> str:
    """A basic TOML string."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    printable = "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in escaped)
    return f'"{printable}"'


def _described(stage: Stage, kind: Kind, signature: str) -> str:
    return f"{stage.value} ({kind.value}){' as ' if signature else ''}{signature}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """A verdict, the reason in one sentence, and the TOML to paste when a list must change.

    `excused` says that a verdict which is not green does not turn the run red:
    a listed flake, or a verdict that the user asked to be lenient about.
    """

    verdict: Verdict
    reason: str = ""
    advice: str = ""
    excused: bool = False

    @property
    def green(self) -> bool:
        """Whether the run may end with exit code 0."""
        return self.verdict.green or self.excused


def propose(case_id: str, failure: Failure, *, when: str = "", since: str = "") -> Expectation:
    """The entry that would expect this failure; a person still has to improve its reason."""
    return Expectation(
        id=case_id,
        stage=failure.stage,
        kind=failure.kind,
        signature=failure.signature,
        title=failure.title,
        why=failure.message.strip() or failure.title or "no message",
        when=when,
        since=since,
    )


def judge(
    expectation: Expectation | None, failure: Failure | None, *, case_id: str, recording: bool = False
) -> Judgement:
    """Hold what happened against what was expected.

    Args:
        expectation: the known deviation, or None when the case must pass.
        failure: where the case stopped, or None when it passed.
        case_id: `collection/path`, for the TOML to paste.
        recording: whether a case without an entry is one of a collection that is only being recorded.
    """
    if expectation is None and recording:
        return _new(failure)
    if expectation is None or expectation.stage is None:
        return _must_pass(failure, case_id)
    if failure is None:
        return Judgement(
            verdict=Verdict.IMPROVED,
            reason=f"expected to fail in {expectation.place}, but passes",
            advice=f"remove from {expectation.source or 'the expectations'}:\n{expectation.toml()}",
        )
    expected = f"expected to fail in {expectation.place}"
    if expectation.covers(failure):
        return Judgement(verdict=Verdict.EXPECTED_FAILURE, reason=f"{expected}: {expectation.why}")
    if failure.kind is Kind.INFRASTRUCTURE:
        return _of_the_host(failure, expected)
    if failure.stage.order > (expectation.through or expectation.stage).order:
        verdict = Verdict.IMPROVED
    elif failure.stage.order < expectation.stage.order:
        verdict = Verdict.REGRESSED
    else:
        verdict = Verdict.CHANGED
    action = "add" if expectation.glob else f"replace in {expectation.source or 'the expectations'}"
    return Judgement(
        verdict=verdict,
        reason=f"{expected}, {_stopped(failure)}",
        advice=f"{action}:\n{propose(case_id, failure, when=expectation.when).toml()}",
    )


def _must_pass(failure: Failure | None, case_id: str) -> Judgement:
    if failure is None:
        return Judgement(verdict=Verdict.PASSED)
    if failure.kind is Kind.INFRASTRUCTURE:
        return _of_the_host(failure, "expected to pass")
    return Judgement(
        verdict=Verdict.REGRESSED,
        reason=f"expected to pass, {_stopped(failure)}",
        advice=f"if this is known, add:\n{propose(case_id, failure).toml()}",
    )


def _new(failure: Failure | None) -> Judgement:
    if failure is not None and failure.kind is Kind.INFRASTRUCTURE:
        return _of_the_host(failure, "new")
    became = "passes" if failure is None else _stopped(failure)
    return Judgement(verdict=Verdict.NEW, reason=f"new, not yet adopted: {became}")


def _of_the_host(failure: Failure, expected: str) -> Judgement:
    reason = f"{expected}, {_stopped(failure)}: the machine is to blame, this says nothing of IREE"
    return Judgement(verdict=Verdict.ERROR, reason=reason)


def _stopped(failure: Failure) -> str:
    return f"stopped in {_described(failure.stage, failure.kind, failure.signature)}"
