"""Measures a case that passed: `iree-benchmark-module` and, on a CPU, onnxruntime in turn with it.

Both have the machine to themselves, the same input set and the same number of
threads, and take turns, so that what slows the machine meets both. Nothing is
taken from the stage cache: a latency is of today. Whatever goes wrong is a note
in the record and no verdict.
"""

from __future__ import annotations

import json
import math
import os
import re
import shlex
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
from filelock import FileLock

from onnx_models import artifacts, latency, machine, tools
from onnx_models.artifacts import CaseFolder
from onnx_models.cases import Case
from onnx_models.files import write_atomic
from onnx_models.inspection import run_child
from onnx_models.latency import Repetitions, UnreadableResult
from onnx_models.outcomes import Kind, Outcome, Stage, SuiteError
from onnx_models.reference import Reference
from onnx_models.stages import Settings
from onnx_models.tensors import TensorFile

SECONDS = 5.0
"""Default of `--benchmark-seconds`: what is aimed at for one case, start and loading not counted."""

ROUNDS = 3
"""Turns that each side has. Each is a process of its own, so that where it lies in memory varies too."""

LOADING = 60.0
"""Seconds that a process may take beyond its measurement, to start and to load the largest models."""

RESULT_LIMIT = 1 << 20
"""Bytes of a result file that are looked at; fifteen repetitions take 10 kB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How a case is measured.

    Attributes:
        rounds: turns of each side.
        repetitions: values per turn; their median and MAD over all turns are the result.
        repetition_s: seconds that one value takes, at least one invocation.
        warmup_s: seconds before the first value of a turn, 0 where one invocation takes too long.
        timeout: seconds after which a process is stopped.
    """

    rounds: int
    repetitions: int
    repetition_s: float
    warmup_s: float
    timeout: float


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """What one of the two needs to take its turn."""

    command: tuple[str, ...]
    result: Path
    log: Path


def plan(seconds: float, run_seconds: float) -> Plan | None:
    """Spread a budget; None where not even three invocations of one side fit.

    The budget is met where an invocation is short; a side never takes more than three times as much.

    Args:
        seconds: what is aimed at.
        run_seconds: what the run stage took for the set: an invocation and the loading before it.
    """
    if run_seconds > seconds:
        return None
    limit = 6 * seconds + LOADING
    if run_seconds > seconds / 4:
        return Plan(rounds=1, repetitions=3, repetition_s=0.001, warmup_s=0.0, timeout=limit)
    turn = seconds / (2 * ROUNDS)
    repetitions = 5 if run_seconds <= turn / 2 else 3
    warmup = turn / 4
    one = (turn - warmup) / repetitions
    return Plan(rounds=ROUNDS, repetitions=repetitions, repetition_s=one, warmup_s=warmup, timeout=limit)


def measure(
    case: Case, model_file: Path, reference: Reference, outcome: Outcome, settings: Settings, seconds: float
) -> Outcome:
    """The outcome with its `benchmark`, or with a note that says why there is none.

    Args:
        case: the model and the device.
        model_file: the verified model file.
        reference: inputs; the first set is measured.
        outcome: of a case whose outputs matched.
        settings: tools, limits and the artifacts folder.
        seconds: what is aimed at, see `plan`.
    """
    name = reference.sets[0].name
    threads = _threads(case)
    about: dict[str, Any] = {"set": name, "threads": threads}
    try:
        with FileLock(settings.folder(case).device / ".lock"):
            about |= _Measurement(case, model_file, reference, outcome, settings).take(seconds, threads)
    except (UnreadableResult, SuiteError, OSError) as error:
        about["note"] = str(error)
    notes = (f"benchmark: {about['note']}",) if about.get("note") and "iree" not in about else ()
    return replace(outcome, benchmark=about, notes=(*outcome.notes, *notes))


def _threads(case: Case) -> int:
    """Worker threads of a CPU device: one per core that this process may use; 0 for other devices."""
    if case.device.driver != "local-task":
        return int(case.device.driver == "local-sync")
    for flag in (*case.device.run_flags, *case.model.run_flags):
        own = re.fullmatch(r"--task_topology_(?:max_)?group_count=([1-9]\d*)", flag)
        if own:
            return int(own.group(1))
    cores = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else cores
    return max(1, min(cores, usable))


class _Measurement:
    """One case's measurement: both sides, turn by turn."""

    def __init__(
        self, case: Case, model_file: Path, reference: Reference, outcome: Outcome, settings: Settings
    ) -> None:
        self.case, self.model_file, self.settings = case, model_file, settings
        self.set, self.folder = reference.sets[0], settings.folder(case)
        self.run = next(result for result in outcome.stages if result.stage is Stage.RUN)

    def take(self, seconds: float, threads: int) -> dict[str, Any]:
        per_set = self.run.seconds / max(1, len(self.run.commands))
        planned = plan(seconds, per_set)
        if planned is None:
            wanted = f"give --benchmark-seconds {math.ceil(per_set * 10) / 10:g} or more"
            return {"note": f"a run takes {per_set:.1f} s, too long for {seconds:g} s: {wanted}"}
        iree = self._iree(planned, threads)
        peer = self._peer(planned, threads) if threads else None
        self._write_script(iree, peer)
        mine: list[Repetitions] = []
        theirs: list[Repetitions] = []
        note = "" if peer else "onnxruntime runs on the CPU: no ratio for another device"
        with machine.shared(self.settings.artifacts, alone=True):
            for _ in range(planned.rounds):
                mine.append(self._iree_turn(iree, planned))
                if peer and not note:
                    try:
                        theirs.append(self._peer_turn(peer, planned))
                    except (UnreadableResult, SuiteError) as error:
                        note = f"onnxruntime: {error}"
        return _summary(mine, [] if note else theirs, iree, planned, note)

    def _iree(self, planned: Plan, threads: int) -> _Side:
        tool = self.settings.toolchain.benchmark
        assert tool is not None
        result = self.folder.device / "benchmark-iree.json"
        flags = [word for word in self.run.commands[0][1:] if not word.startswith("--output=")]
        if self.case.device.driver == "local-task" and not any(
            flag.startswith(("--task_topology_group_count", "--task_topology_max_group_count"))
            for flag in flags
        ):
            flags.append(f"--task_topology_group_count={threads}")
        flags += [
            f"--function={_function(self.folder, self.set.name)}",
            f"--benchmark_repetitions={planned.repetitions}",
            f"--benchmark_min_time={planned.repetition_s:.4f}s",
            f"--benchmark_min_warmup_time={planned.warmup_s:.4f}",
            f"--benchmark_out={result.name}",
            "--benchmark_out_format=json",
        ]
        log = self.folder.device / "benchmark-iree.log"
        return _Side(command=(str(tool.path), *flags), result=result, log=log)

    def _peer(self, planned: Plan, threads: int) -> _Side:
        folder = self.folder.device
        asked, told = folder / "benchmark-onnxruntime.request.json", folder / "benchmark-onnxruntime.json"
        request = {
            # The link, by which the script survives a move of the artifacts; external data lies elsewhere.
            "model": self.folder.relative(self.folder.onnx)
            if not self.case.model.external_data
            else str(self.model_file.resolve()),
            "options": {"graph_optimization_level": "all"},
            "threads": threads,
            "inputs": [self._input(each) for each in self.set.inputs],
            "repetitions": planned.repetitions,
            "repetition_s": planned.repetition_s,
            "warmup_s": planned.warmup_s,
        }
        write_atomic(asked, json.dumps(request, indent=1) + "\n")
        return _Side(command=(str(asked), str(told)), result=told, log=folder / "benchmark-onnxruntime.log")

    def _input(self, tensor: TensorFile) -> dict[str, Any]:
        path = self.folder.relative(tensor.path)
        return {"name": tensor.name, "dtype": tensor.dtype, "shape": list(tensor.shape), "path": path}

    def _iree_turn(self, side: _Side, planned: Plan) -> Repetitions:
        side.result.unlink(missing_ok=True)
        finished = tools.run(
            side.command,
            log=side.log,
            timeout=planned.timeout,
            memory_limit=self.settings.memory_limit,
            cwd=self.folder.device,
        )
        if not finished.ok:
            raise UnreadableResult(f"iree-benchmark-module: {_ending(finished)}")
        found = latency.parse_google_benchmark(_text(side.result), _function(self.folder, self.set.name))
        if len(found.seconds) != planned.repetitions:
            wanted = f"{len(found.seconds)} repetitions instead of {planned.repetitions}"
            raise UnreadableResult(f"iree-benchmark-module: its result holds {wanted}")
        if found.total > finished.seconds:
            raise UnreadableResult("iree-benchmark-module: its result holds more time than it ran for")
        return found

    def _peer_turn(self, side: _Side, planned: Plan) -> Repetitions:
        side.result.unlink(missing_ok=True)
        finished = run_child(
            "latency_child",
            *side.command,
            log=side.log,
            timeout=planned.timeout,
            memory=self.settings.memory_limit,
        )
        if not finished.ok:
            raise UnreadableResult(_ending(finished))
        return latency.parse_child(_text(side.result))

    def _write_script(self, iree: _Side, peer: _Side | None) -> None:
        """Let `commands.sh --benchmark` repeat one turn of each, after all else."""
        text = self.folder.script.read_text(encoding="utf-8").partition(_PART)[0]
        text = text.replace(artifacts.TAKES_NOTHING, artifacts.TAKES_BENCHMARK)
        lines = ['if [ "${1:-}" = --benchmark ]; then', f"  {shlex.join(iree.command)}"]
        if peer:
            asked, told = (Path(word).name for word in peer.command)
            home = shlex.quote(str(tools.SUPERVISOR.parents[1]))
            child = f'"$python" -m onnx_models.latency_child {asked} {told}'
            lines += [f"  PYTHONPATH={home} {child}", f"  cat {told}"]
        whole = text + _PART + "\n".join([*lines, "fi"]) + "\n"
        write_atomic(self.folder.script, whole, executable=True)


_PART = "\n# benchmark: one turn of each side as it was measured\n"


def _function(folder: CaseFolder, data_set: str) -> str:
    """The function that the run called: `iree-benchmark-module` takes no default where there are inputs.

    Raises:
        UnreadableResult: the run's log does not name it.
    """
    log = folder.log(Stage.RUN, data_set)
    text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    named = re.search(r"^EXEC @(.+)$", text, re.MULTILINE)
    if named is None:
        raise UnreadableResult(f"{log.name} does not name the function that ran: give --no-reuse")
    return named.group(1)


def _ending(finished: tools.Finished) -> str:
    kind = "" if finished.kind in (None, Kind.ERROR) else f"{finished.kind.value}: "
    return kind + finished.first_error()


def _text(result: Path) -> str:
    """A result file's text, cut off where it is too long to be one."""
    try:
        with result.open("rb") as file:
            return file.read(RESULT_LIMIT).decode("utf-8", errors="replace")
    except FileNotFoundError:
        raise UnreadableResult(f"exits 0 and writes no {result.name}") from None


def _summary(
    mine: list[Repetitions], theirs: list[Repetitions], iree: _Side, planned: Plan, note: str
) -> dict[str, Any]:
    one = sum(mine[1:], mine[0]).to_json()
    row: dict[str, Any] = {
        "rounds": planned.rounds,
        "repetitions": one["repetitions"],
        "iree": one | {"command": list(iree.command)},
        "ratio": None,
    }
    if theirs:
        other = sum(theirs[1:], theirs[0]).to_json()
        row["onnxruntime"] = other | {"version": metadata.version("onnxruntime")}
        row["ratio"] = float(f"{one['median_s'] / other['median_s']:.4g}")
    return row | ({"note": note} if note else {})
