"""Every result of every run as one matrix: a year of 19,200 cases is 7 million of them.

Rows are runs by age of the release, columns are cases by id: nothing here depends
on the keys of the database, which differ between one that grew and one made anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onnx_models.dashboard.snapshot import Result
from onnx_models.history import History

ABSENT = -1
"""The outcome of a case that a run did not have."""

_RESULTS = """
SELECT result.run, result.subject, hash(state, stage, kind, fault) AS code FROM result
"""

_OUTCOMES = """
SELECT DISTINCT hash(state, stage, kind, fault) AS code, state::TEXT, coalesce(stage, ''), coalesce(kind, ''),
    coalesce(fault.name, '')
FROM result LEFT JOIN fault ON fault.key = result.fault ORDER BY code
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Runs of a device in a row in which a case did the same, as places among the device's runs."""

    first: int
    last: int
    result: Result


@dataclass(frozen=True, kw_only=True)
class Timeline:
    """What each case did in each run.

    Attributes:
        runs: by age of the release.
        subjects: id, `collection/path` and device of each case, by id.
        outcomes: what the numbers in `codes` stand for.
        codes: runs x cases.
        tested: the places of the runs that set out to test a device.
    """

    runs: Sequence[Mapping[str, Any]]
    subjects: Sequence[tuple[str, str, str]]
    outcomes: Sequence[Result]
    codes: NDArray[np.int32]
    tested: Mapping[str, Sequence[int]]

    @cached_property
    def _columns(self) -> dict[str, int]:
        return {case: place for place, (case, _, _) in enumerate(self.subjects)}

    @cached_property
    def _strips(self) -> dict[str, Mapping[int, Sequence[Segment]]]:
        return {}

    @cached_property
    def _runs(self) -> dict[str, Sequence[Mapping[str, Any]]]:
        return {device: [self.runs[row] for row in rows] for device, rows in self.tested.items()}

    def runs_of(self, device: str) -> Sequence[Mapping[str, Any]]:
        """The runs of a device, by age of the release."""
        return self._runs.get(device, ())

    def strip(self, case: str, device: str) -> Sequence[Segment]:
        """A case's past; runs of its device that did not have it are in no segment."""
        return self._segments(device).get(self._columns.get(case, -1), ())

    def _segments(self, device: str) -> Mapping[int, Sequence[Segment]]:
        """By column, of all cases of a device at once."""
        if device not in self._strips:
            rows = np.asarray(self.tested.get(device, ()), np.intp)
            columns = [k for k, (_, _, name) in enumerate(self.subjects) if name == device]
            self._strips[device] = self._cut(rows, np.asarray(columns, np.intp))
        return self._strips[device]

    def _cut(self, rows: NDArray[np.intp], mine: NDArray[np.intp]) -> Mapping[int, Sequence[Segment]]:
        codes = self.codes[np.ix_(rows, mine)]
        begins = np.ones(codes.shape, np.bool_)
        begins[1:] = codes[1:] != codes[:-1]
        columns, starts = np.nonzero(begins.T)
        ends = np.append(starts[1:], 0) - 1
        ends[ends < 0] = len(rows) - 1  # the next one begins in another column
        values = codes[starts, columns]
        kept = values != ABSENT
        found: dict[int, list[Segment]] = defaultdict(list)
        for column, start, end, value in zip(
            *(each[kept].tolist() for each in (mine[columns], starts, ends, values)), strict=True
        ):
            found[column].append(Segment(first=start, last=end, result=self.outcomes[value]))
        return found


def read(history: History) -> Timeline:
    """Read all of it out of the history."""
    runs = history.records("SELECT * FROM run ORDER BY position")
    known = history.rows("SELECT key, id, collection || '/' || model, device FROM subject ORDER BY id")
    outcomes = history.rows(_OUTCOMES)
    table = history.columns(_RESULTS)
    hashes = np.array([row[0] for row in outcomes], np.uint64)
    codes = np.full((len(runs), len(known)), ABSENT, np.int32)
    rows = _places([run["key"] for run in runs])[table["run"]]
    codes[rows, _places([key for key, *_ in known])[table["subject"]]] = np.searchsorted(
        hashes, table["code"]
    )
    # A case whose runs have all gone from the folder is still in the database, but in no run.
    kept = np.flatnonzero((codes != ABSENT).any(axis=0))
    place = {run["key"]: run["position"] for run in runs}
    tested: dict[str, list[int]] = {}
    for run, name in history.rows("SELECT run, name FROM device"):
        tested.setdefault(name, []).append(place[run])
    return Timeline(
        runs=runs,
        subjects=[(known[k][1], known[k][2], known[k][3]) for k in kept.tolist()],
        outcomes=[
            Result(state=state, stage=stage, kind=kind, fault=fault)
            for _, state, stage, kind, fault in outcomes
        ],
        codes=codes[:, kept],
        tested={name: sorted(rows) for name, rows in sorted(tested.items())},
    )


def _places(keys: Sequence[int]) -> NDArray[np.intp]:
    """By key, its place in the sequence."""
    places = np.zeros(max(keys, default=-1) + 1, np.intp)
    places[np.asarray(keys, np.intp)] = np.arange(len(keys))
    return places
