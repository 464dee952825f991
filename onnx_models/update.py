"""Rewrites expectations from what runs found, and nothing else.

Only cases that ran to completion count. An entry that some other release wrote
stays: what an older release does differently goes into entries of its own,
with a version range.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from onnx_models import catalog, conditions, devices, expectations, lists
from onnx_models.conditions import Circumstances
from onnx_models.entries import Entries
from onnx_models.expectations import EXPECTATIONS, SHIPPED, Known
from onnx_models.files import write_atomic
from onnx_models.lists import Layer
from onnx_models.outcomes import Expectation, Failure, Kind, Stage, UsageError, Verdict, propose

Run = tuple[Mapping[str, Any], Sequence[Mapping[str, Any]], bool]
"""A run's header, its cases, and whether every selected case ran."""

_COMPLETED = frozenset(
    v.value
    for v in (
        Verdict.PASSED,
        Verdict.EXPECTED_FAILURE,
        Verdict.IMPROVED,
        Verdict.REGRESSED,
        Verdict.CHANGED,
        Verdict.NEW,
    )
)

_NO_REFERENCE = frozenset(k.value for k in (Kind.ERROR, Kind.REFERENCE_UNHEALTHY, Kind.UNSUPPORTED_INPUT))
"""A reference that fails so is an error of nobody's: the model has none, today and tomorrow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """A file before and after; `before` is None for a file that is not there yet."""

    file: Path
    before: str | None
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """What would be written, and the cases on which the runs contradict each other."""

    changes: tuple[Change, ...]
    contradictions: tuple[str, ...] = ()


def update(runs: Iterable[Run], wanted: Sequence[str] = (), *, today: date | None = None) -> Update:
    """The files as they should stand after these runs; nothing is written.

    Args:
        runs: in any order; a later run wins over an earlier one of another build of the same release.
        wanted: the files and folders of `--expectations`; the last one is rewritten.
        today: the date that `expires` is held against.

    Raises:
        UsageError: a run has no verdicts, or the files are not well-formed.
        SuiteError: a file cannot be edited.
    """
    day = today or date.today()
    ordered = sorted(runs, key=lambda run: str(run[0]["started"]))
    contradictions = _contradictions(ordered)
    desk = _Desk(wanted, day)
    for head, rows, complete in ordered:
        clear = [row for row in rows if _key(head, row) not in contradictions]
        for device in head["devices"]:
            mine = [row for row in clear if row["device"] == device and _completed(row)]
            if mine:
                desk.adopt(head, device, mine, complete=complete)
    return Update(changes=desk.changes(), contradictions=tuple(contradictions.values()))


def diff(changes: Iterable[Change]) -> str:
    """A unified diff that `git apply` takes at the top of the files' repository."""
    texts = []
    for change in changes:
        name = _in_repository(change.file)
        before = (change.before or "").splitlines(keepends=True)
        lines = difflib.unified_diff(
            before,
            change.after.splitlines(keepends=True),
            "/dev/null" if change.before is None else f"a/{name}",
            f"b/{name}",
        )
        head = f"diff --git a/{name} b/{name}\n"
        head += "new file mode 100644\n" if change.before is None else ""
        whole = (line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)
        texts.append(head + "".join(whole))
    return "".join(texts)


def write(changes: Iterable[Change]) -> None:
    """Write the files, each whole or not at all."""
    for change in changes:
        change.file.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(change.file, change.after)


def _in_repository(file: Path) -> str:
    roots = [folder for folder in file.parents if (folder / ".git").exists()]
    for root in (*roots[:1], Path.cwd()):
        if root in file.parents:
            return file.relative_to(root).as_posix()
    return file.name


def _completed(row: Mapping[str, Any]) -> bool:
    if row["collection"] not in catalog.collections() or row["kind"] == Kind.INFRASTRUCTURE.value:
        return False
    if row["stage"] == Stage.REFERENCE.value and row["kind"] is not None:
        return row["kind"] in _NO_REFERENCE
    return row["verdict"] in _COMPLETED


def _key(head: Mapping[str, Any], row: Mapping[str, Any]) -> tuple[str, str]:
    return str(head["iree"]), str(row["id"])


def _contradictions(runs: Sequence[Run]) -> dict[tuple[str, str], str]:
    """Cases with two results under one build of IREE: one entry cannot hold both, so none is written."""
    seen: dict[tuple[str, str], dict[tuple[Any, ...], str]] = {}
    for head, rows, _ in runs:
        for row in filter(_completed, rows):
            what = (row["stage"], row["kind"], row.get("signature", "")) if row["kind"] else ()
            seen.setdefault(_key(head, row), {}).setdefault(what, f"run {head['run']}: {_spoken(row)}")
    return {
        key: f"{key[1]}: IREE {key[0]} gives two results ({'; '.join(found.values())}): bind an entry to "
        "its machine with 'when', or list the case as [[flaky]]"
        for key, found in seen.items()
        if len(found) > 1
    }


def _spoken(row: Mapping[str, Any]) -> str:
    return f"{row['stage']} ({row['kind']}) as {row.get('signature', '')}" if row["kind"] else "passes"


class _Desk:
    """The files while they are being edited."""

    def __init__(self, wanted: Sequence[str], today: date) -> None:
        self.wanted, self.today = tuple(wanted) or (SHIPPED,), today
        self.before: dict[Path, str | None] = {}
        self.now: dict[Path, str] = {}
        self.entries: dict[Path, Entries] = {}
        self.layers: dict[Path, tuple[str, Layer]] = {}

    def changes(self) -> tuple[Change, ...]:
        """The files that differ from what they were."""
        return tuple(
            Change(file=file, before=self.before[file], after=text)
            for file, text in sorted(self.now.items())
            if text != (self.before[file] or "")
        )

    def adopt(
        self,
        head: Mapping[str, Any],
        device: str,
        rows: Sequence[Mapping[str, Any]],
        *,
        complete: bool,
    ) -> None:
        """Make the last file say what these cases did."""
        here = Circumstances.of(
            iree=head["iree"],
            device=device,
            system=head["host"]["system"],
            cpu=head["host"]["cpu"],
            found=head["devices"][device].get("found", ()),
        )
        target = self._target(device)
        last = Stage(head["devices"][device]["last_stage"])
        edit = _Edit(self, target, here, last)
        for row in rows:
            edit.settle(row)
        edit.state_release([row["id"].partition("/")[2] for row in rows] if complete else [])

    def known(self, here: Circumstances, target: Path) -> Known:
        """What the files say as edited so far; the target is their last layer."""
        paths = [
            file for file in expectations.files(self.wanted, here.device, creating=True) if file != target
        ]
        return Known(layers=tuple(self._layer(file) for file in (*paths, target)), here=here)

    def text(self, file: Path) -> str:
        """A file's text as edited so far, empty when there is no file."""
        if file not in self.now:
            self.before[file] = file.read_text(encoding="utf-8") if file.is_file() else None
            self.now[file] = self.before[file] or ""
        return self.now[file]

    def _layer(self, file: Path) -> Layer:
        text = self.text(file)
        if file not in self.layers or self.layers[file][0] != text:
            self.layers[file] = text, lists.parse(file, text, today=self.today)
        return self.layers[file][1]

    def edit(self, file: Path, change: Callable[[Entries], None]) -> None:
        """Change the entries of a file."""
        if file not in self.entries:
            self.entries[file] = Entries(file, self.text(file))
        change(self.entries[file])
        self.now[file] = self.entries[file].text()

    def _target(self, device: str) -> Path:
        word = self.wanted[-1]
        place = EXPECTATIONS if word == SHIPPED else Path(word).absolute()
        if place.suffix != ".toml":
            return place / f"{device}.toml"
        if place.stem in devices.names() and place.stem != device:
            raise UsageError(f"{place}: holds for {place.stem} only, the run has {device}: give a folder")
        return place


class _Edit:
    """One device's file being brought in line with one run."""

    def __init__(self, desk: _Desk, target: Path, here: Circumstances, last: Stage) -> None:
        self.desk, self.target, self.here, self.last = desk, target, here, last
        # As it was before this run: no case's edits concern another's.
        self.known = desk.known(here, target)
        stated = [layer.release for layer in self.known.layers if layer.release]
        self.stated = max(stated, default=None)
        self.older = self.stated is not None and here.minor < self.stated
        device = "" if target.stem == here.device else f"device={here.device}"
        release = conditions.of_release(here.minor) if self.older else ""
        self.when = "; ".join(filter(None, (release, device)))

    def settle(self, row: Mapping[str, Any]) -> None:
        """Make the files expect what a case did."""
        model = row["id"].partition("/")[2]
        decisive = self.known.expect(model)
        if row["kind"] is None:
            self._passes(model)
            return
        failure = Failure(
            stage=Stage(row["stage"]),
            kind=Kind(row["kind"]),
            message=row["message"],
            signature=row.get("signature", ""),
            title=row.get("title", ""),
        )
        own = self._own(model)
        if decisive is not None and decisive.covers(failure):
            if decisive in own and not decisive.signature:
                self._change(decisive, failure)
        elif decisive is not None and decisive in own and decisive.stage is not None:
            self._change(decisive, failure)
        else:
            if decisive is not None and decisive in own:
                self._remove(decisive)
            self._add(propose(model, failure, when=self.when, since=self.here.iree))

    def _passes(self, model: str) -> None:
        gone = [e for e in self._own(model) if e.stage is not None and not self._beyond(e)]
        for entry in gone:
            self._remove(entry)
        left = self.known.expect(model, without=gone)
        fails = left is not None and left.stage is not None and not self._beyond(left)
        if fails or (left is None and self.known.recording(model)):
            why = f"passes with IREE {self.here.iree}"
            self._add(Expectation(id=model, stage=None, kind=None, why=why, when=self.when))

    def _beyond(self, entry: Expectation) -> bool:
        """Whether an entry speaks of a stage that the run's device does not reach."""
        return entry.stage is not None and entry.stage.order > self.last.order

    def _own(self, model: str) -> list[Expectation]:
        """The entries of this model that are this run's to change.

        Not those of another release or for every device.
        """
        layer = self.known.layers[-1]
        return [
            entry
            for entry in layer.entries
            if not entry.glob
            and entry.id == model
            and conditions.holds(entry.when, self.here)
            and (not self.older or conditions.names_release(entry.when))
            and (self.target.stem == self.here.device or "device" in entry.when)
        ]

    def _change(self, entry: Expectation, failure: Failure) -> None:
        values = {"stage": failure.stage.value, "kind": failure.kind.value}
        values |= {"signature": failure.signature, "title": failure.title}
        self._edit(lambda entries: entries.find((entry.id, entry.when)).set(values))

    def _remove(self, entry: Expectation) -> None:
        self._edit(lambda entries: entries.remove((entry.id, entry.when)))

    def _add(self, entry: Expectation) -> None:
        fresh = replace(entry, source="")
        self._edit(lambda entries: entries.add(fresh.toml(), (fresh.id, fresh.when)))

    def state_release(self, completed: Sequence[str]) -> None:
        """Say for which release the entries hold, once all of them are known to hold for it."""
        layer = self.desk.known(self.here, self.target).layers[-1]
        bound = [e for e in layer.entries if not e.glob and not conditions.names_release(e.when)]
        newer = self.stated is None or self.here.minor > self.stated
        if newer and {entry.id for entry in bound} <= set(completed) and (completed or not layer.iree):
            self._state(self.here.minor)
        elif self.stated and self.older and not layer.iree and layer.entries:
            self._state(self.stated)

    def _state(self, release: tuple[int, int]) -> None:
        self._edit(lambda entries: entries.set_release(f"{release[0]}.{release[1]}"))

    def _edit(self, change: Callable[[Entries], None]) -> None:
        self.desk.edit(self.target, change)
