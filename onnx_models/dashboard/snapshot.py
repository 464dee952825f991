"""What is known now: for each case its newest result under the newest release, and what it was before.

A device's newest release is that of its newest run by version. A case that one of the builds
shortly before it had and that this one lacks is missing: it stays in the denominator.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from onnx_models.dashboard import trends
from onnx_models.dashboard.trends import Point
from onnx_models.history import STATES, History
from onnx_models.outcomes import Stage

KNOWN = 10
"""Builds of a device, the newest included, whose cases are known: several bad nights in a row hide no case,
and a model that the catalogue has dropped is forgotten some day."""

ANSWERED = ("passed", "vacuous", "failed")
"""States that say something of IREE: one bad night between a pass and a failure hides no regression."""

TESTED = ("import", "compile", "run", "compare")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One result of a case; `run` is the key of its run, -1 where it is missing."""

    state: str
    stage: str = ""
    kind: str = ""
    fault: str = ""
    run: int = -1
    numbers: Mapping[str, float | None] = field(default_factory=dict)

    @property
    def what(self) -> tuple[str, str, str]:
        """What makes two failures the same one."""
        return (self.stage, self.kind, self.fault) if self.state == "failed" else ("", "", "")

    @property
    def words(self) -> str:
        """A state in a few words."""
        return f"{self.stage}: {self.fault or self.kind}" if self.state == "failed" else self.state


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A case over all runs."""

    key: int
    id: str
    model: str
    collection: str
    device: str
    now: Result
    before: Result | None = None

    @property
    def model_id(self) -> str:
        """`collection/path`."""
        return f"{self.collection}/{self.model}"

    @property
    def change(self) -> str:
        """`broken`, `fixed`, `changed`, `missing` or nothing, against the result before."""
        if self.before is None or self.now.state == self.before.state == "missing":
            return ""
        if self.now.state == "missing":
            return "missing"
        if self.now.state not in ANSWERED or self.before.state not in ANSWERED:
            return ""
        was, now = self.before.state != "failed", self.now.state != "failed"
        if was != now:
            return "fixed" if now else "broken"
        return "changed" if self.now.what != self.before.what else ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A device now.

    Attributes:
        counts: cases by state, `total` among them.
        before: the same before the newest run, None without an older one.
        funnel: cases that got through import, compile, run and comparison; None where there is no such stage.
        release, run: of the newest result.
    """

    name: str
    title: str
    release: str
    run: int
    compile_only: bool
    counts: Mapping[str, int]
    before: Mapping[str, int] | None
    funnel: Mapping[str, int | None]
    previous: str = ""

    @property
    def rate(self) -> float:
        """Share of all cases that passed and could have failed."""
        return self.counts["passed"] / self.counts["total"] if self.counts["total"] else 0.0

    @property
    def change(self) -> float | None:
        """Difference of the rate to before, None without an older result."""
        if not self.before or not self.before["total"]:
            return None
        return self.rate - self.before["passed"] / self.before["total"]


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """Everything that the pages count."""

    runs: Mapping[int, Mapping[str, Any]]
    devices: Mapping[str, Device]
    subjects: Sequence[Subject]
    over_runs: Sequence[Point]
    over_releases: Sequence[Point]

    @cached_property
    def newest(self) -> Mapping[str, Any] | None:
        """The newest run by version."""
        return max(self.runs.values(), key=lambda run: run["position"], default=None)


_NUMBERS = (
    "import_s",
    "compile_s",
    "run_s",
    "peak_bytes",
    "mlir_bytes",
    "vmfb_bytes",
    "ratio",
    "latency_s",
    "peer_s",
)


def take(history: History) -> Snapshot:
    """Read the state of things out of the history."""
    runs = {row["key"]: row for row in history.records("SELECT * FROM run ORDER BY position")}
    tested: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    known = history.records(
        """SELECT device.*, run.key FROM device JOIN run ON run.key = device.run
           WHERE run.broken = '' ORDER BY run.position"""
    )
    for row in known:
        tested[row["name"]].append(row)
    tallies = trends.tally(history)
    devices: dict[str, Device] = {}
    subjects: list[Subject] = []
    for name in sorted(tested):
        mine = [row for row in tested[name] if (row["run"], name) in tallies]
        if mine:
            found = _subjects(history, name, mine, runs)
            subjects += found
            devices[name] = _device(name, mine, found, runs)
    over_runs = [p for name in devices for p in trends.over_runs(name, tested[name], runs, tallies)]
    over_releases = [p for name in devices for p in trends.over_releases(name, tested[name], runs, tallies)]
    subjects.sort(key=lambda each: each.id)
    return Snapshot(
        runs=runs, devices=devices, subjects=subjects, over_runs=over_runs, over_releases=over_releases
    )


def _subjects(
    history: History, device: str, tested: Sequence[Mapping[str, Any]], runs: Mapping[int, Mapping[str, Any]]
) -> list[Subject]:
    """The device's cases: all of its newest releases, each with its newest result and the answer before."""
    releases = list(dict.fromkeys(runs[row["run"]]["release"] for row in reversed(tested)))[:KNOWN]
    wanted = [row["run"] for row in tested if runs[row["run"]]["release"] in releases]
    numbers = ", ".join(_NUMBERS)
    rows = history.records(
        f"""SELECT subject.key, subject.id, subject.model, subject.collection, result.run,
                   state::TEXT AS state, coalesce(stage, '') AS stage, coalesce(kind, '') AS kind,
                   coalesce(fault.name, '') AS fault, {numbers}
            FROM result JOIN subject ON subject.key = result.subject JOIN run ON run.key = result.run
                LEFT JOIN fault ON fault.key = result.fault
            WHERE subject.device = ? AND list_contains(?, result.run)
            QUALIFY row_number() OVER (PARTITION BY subject.key ORDER BY run.position DESC) <= 2
                 OR state IN {ANSWERED} AND row_number() OVER (
                    PARTITION BY subject.key, state IN {ANSWERED} ORDER BY run.position DESC) <= 2
            ORDER BY subject.key, run.position DESC""",
        [device, wanted],
    )
    grouped: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for row in rows:
        grouped[row["key"]].append(row)
    return [_subject(device, mine, runs, releases[0]) for mine in grouped.values()]


def _subject(
    device: str, rows: Sequence[Mapping[str, Any]], runs: Mapping[int, Mapping[str, Any]], release: str
) -> Subject:
    results = [
        Result(
            state=row["state"],
            stage=row["stage"],
            kind=row["kind"],
            fault=row["fault"],
            run=row["run"],
            numbers={name: row[name] for name in _NUMBERS},
        )
        for row in rows
    ]
    here = runs[results[0].run]["release"] == release
    now, older = (results[0], results[1:]) if here else (Result(state="missing"), results)
    first = rows[0]
    return Subject(
        key=first["key"],
        id=first["id"],
        model=first["model"],
        collection=first["collection"],
        device=device,
        now=now,
        before=next((each for each in older if each.state in ANSWERED), older[0] if older else None),
    )


def _device(
    name: str,
    tested: Sequence[Mapping[str, Any]],
    subjects: Sequence[Subject],
    runs: Mapping[int, Mapping[str, Any]],
) -> Device:
    newest = tested[-1]
    earlier = [each.before for each in subjects if each.before is not None]
    only = newest["last_stage"] == Stage.COMPILE.value
    release = runs[newest["run"]]["release"]
    previous = next((runs[row["run"]] for row in reversed(tested[:-1])), None)
    return Device(
        name=name,
        title=newest["title"] or name,
        release=release,
        run=newest["run"],
        compile_only=only,
        counts=_count([each.now for each in subjects]),
        before=_count(earlier) if earlier else None,
        funnel=_funnel([each.now for each in subjects], only),
        previous=previous["release"] if previous and previous["release"] != release else "the run before",
    )


def _count(results: Sequence[Result]) -> dict[str, int]:
    counts = dict.fromkeys((*STATES, "total"), 0)
    for each in results:
        counts[each.state] += 1
        counts["total"] += 1
    return counts


def _funnel(results: Sequence[Result], compile_only: bool) -> dict[str, int | None]:
    order = {stage: place for place, stage in enumerate(TESTED)}
    reached: dict[str, int | None] = {}
    for stage, place in order.items():
        if compile_only and stage in ("run", "compare"):
            reached[stage] = None
            continue
        reached[stage] = sum(
            each.state in ("passed", "vacuous")
            or (each.state == "failed" and order.get(each.stage, 0) > place)
            for each in results
        )
    return reached
