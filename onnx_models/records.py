"""A run as JSON lines: a header, one line per case, and a footer.

The header says what ran where, the footer that the run is whole: a file without
one was cut off, and says so. `schema/record.schema.json` describes every line.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata
from pathlib import Path
from typing import Any, TextIO

import psutil

import onnx_models
from onnx_models import catalog
from onnx_models.cases import Case
from onnx_models.devices import Device, host_cpu
from onnx_models.outcomes import (
    Expectation,
    Failure,
    Judgement,
    Outcome,
    Stage,
    StageResult,
    SuiteError,
    Verdict,
)
from onnx_models.toolchain import Toolchain

SCHEMA_VERSION = 3
SCHEMA = Path(__file__).parent / "schema" / "record.schema.json"


class RecordError(SuiteError):
    """A record file that cannot be written, or is not one."""


def new_run_id() -> str:
    """UTC time and process, so that runs sort by age and never collide on one machine."""
    return f"{datetime.now(timezone.utc):%Y%m%dT%H%M%SZ}-{os.getpid()}"


def header(
    run: str,
    toolchain: Toolchain,
    devices: Iterable[Device],
    arguments: Sequence[str],
    *,
    shard: str = "",
) -> dict[str, Any]:
    """What every case of the run has in common.

    `release` is what a user would ask a package index for, such as `3.13.0`, where the tools are
    from one, else the compiler's own version. `shard` is `2/4` for the second of four parts.
    """
    return {
        "type": "header",
        "schema": SCHEMA_VERSION,
        "run": run,
        "started": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "suite": onnx_models.__version__,
        "iree": toolchain.version,
        "release": toolchain.release,
        "tools": [
            {"name": t.name, "path": str(t.path), "origin": t.origin, "version": t.version}
            for t in toolchain.tools
        ],
        "packages": {name: metadata.version(name) for name in ("onnx", "onnxruntime", "numpy", "pytest")},
        "host": {
            "name": socket.gethostname(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "cpu": host_cpu(),
            "cores": os.cpu_count() or 0,
            "memory_bytes": psutil.virtual_memory().total,
            "fingerprint": fingerprint(),
        },
        "devices": {
            d.name: {
                "title": d.title,
                "driver": d.driver,
                "found": list(d.found),
                "last_stage": d.last_stage.value,
                "compile_flags": list(d.compile_flags),
                "run_flags": list(d.run_flags),
            }
            for d in devices
        },
        "catalogue": catalog.digest(),
        "arguments": list(arguments),
        "shard": shard,
        "url": job_url(),
    }


def fingerprint() -> str:
    """12 hex digits that stay the same while processor, cores, memory (in GiB) and system kind do.

    Times and memory are only compared between runs of one fingerprint.
    """
    memory = round(psutil.virtual_memory().total / 2**30)
    parts = (platform.system(), platform.machine(), host_cpu(), os.cpu_count() or 0, memory)
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:12]


def job_url() -> str:
    """The page of the GitHub Actions job that runs this, empty elsewhere."""
    server, repository, run = (
        os.environ.get(f"GITHUB_{name}", "") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID")
    )
    return f"{server}/{repository}/actions/runs/{run}" if server and repository and run else ""


def case_record(
    case: Case, judgement: Judgement, outcome: Outcome, attempts: Sequence[Failure | None] = ()
) -> dict[str, Any]:
    """One line: what became of a case, stage by stage and output by output.

    `attempts` says how each try ended, None for a pass, where a case was run more than once.
    """
    failure = outcome.failure
    last = failure.stage if failure else outcome.stages[-1].stage if outcome.stages else None
    return {
        "type": "case",
        "id": case.id,
        "model": case.model.path,
        "collection": case.model.collection,
        "device": case.device.name,
        "verdict": judgement.verdict.value,
        "reason": judgement.reason,
        "stage": last.value if last else None,
        "kind": failure.kind.value if failure else None,
        "message": failure.message if failure else "",
        "signature": failure.signature if failure else "",
        "title": failure.title if failure else "",
        "excerpt": failure.excerpt if failure else "",
        "attempts": [_attempt(each) for each in attempts],
        "vacuous": outcome.vacuous if failure is None else "",
        "excused": judgement.excused,
        "expected": _expected(case.expectation),
        "stages": [_stage(result) for result in outcome.stages],
        "outputs": [dict(row) for row in outcome.outputs],
        "notes": list(outcome.notes),
        "health": dict(outcome.health),
        "bytes": case.model.bytes,
        "opset": outcome.opset,
        "operators": dict(sorted(outcome.operators.items())),
        "benchmark": dict(outcome.benchmark),
        "flags": {
            "import": list(case.model.import_flags),
            "compile": [*case.device.compile_flags, *case.model.compile_flags],
            "run": [*case.device.run_flags, *case.model.run_flags],
        },
        "tags": list(case.model.tags),
    }


def unfinished(
    case: Case, verdict: Verdict, reason: str, stages: tuple[StageResult, ...] = ()
) -> dict[str, Any]:
    """The line of a case that was skipped, cut off or never begun: it stays in the denominator."""
    return case_record(case, Judgement(verdict=verdict, reason=reason), Outcome(stages=stages))


def _expected(expectation: Expectation | None) -> dict[str, str | None] | None:
    if expectation is None or expectation.stage is None:
        return None
    row = {
        "stage": expectation.stage.value,
        "kind": expectation.kind.value if expectation.kind else None,
        "why": expectation.why,
    }
    return row | ({"signature": expectation.signature} if expectation.signature else {})


def _attempt(failure: Failure | None) -> dict[str, str] | None:
    if failure is None:
        return None
    return {
        "stage": failure.stage.value,
        "kind": failure.kind.value,
        "signature": failure.signature,
        "message": failure.message,
    }


def _stage(result: StageResult) -> dict[str, Any]:
    return {
        "stage": result.stage.value,
        "ok": result.failure is None,
        "seconds": round(result.seconds, 3),
        "peak_bytes": result.peak_bytes,
        "product_bytes": result.product_bytes,
        "reused": result.reused,
        "commands": [list(command) for command in result.commands],
        "log": str(result.log) if result.log else None,
    }


_BROKEN = {"verdict": Verdict.ERROR.value, "excused": False}


class Writer:
    """Appends the lines of one run to its file; the footer closes it."""

    def __init__(self, path: Path, head: Mapping[str, Any]) -> None:
        self.path = path
        self.counts: dict[str, int] = {}
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file: TextIO = path.open("w", encoding="utf-8")
        except OSError as error:
            raise RecordError(f"{path}: cannot be written ({error.strerror}); give --record FILE") from None
        self._line(head)

    def add(self, record: Mapping[str, Any]) -> None:
        """Write a case's line and count its verdict."""
        self.counts[record["verdict"]] = self.counts.get(record["verdict"], 0) + 1
        self._line(record)

    def close(self, *, complete: bool, broken: str = "") -> None:
        """Write the footer.

        Args:
            complete: whether every selected case ran to its end.
            broken: why the run says nothing of IREE; empty when it does.
        """
        finished = datetime.now(timezone.utc).isoformat(timespec="seconds")
        counts = dict(sorted(self.counts.items()))
        total = sum(counts.values())
        foot = {
            "type": "footer",
            "finished": finished,
            "complete": complete,
            "cases": total,
            "verdicts": counts,
        }
        self._line(foot | ({"host_broken": broken} if broken else {}))
        self._file.close()

    def retract(self, rows: Iterable[Mapping[str, Any]], reason: str) -> list[dict[str, Any]]:
        """Write the cases again without verdicts: each is an error of the machine.

        Returns:
            The lines as they now stand.
        """
        head = self.path.read_text(encoding="utf-8").splitlines()[0]
        retracted = [
            dict(row) | ({} if row["verdict"] == Verdict.SKIPPED.value else _BROKEN | {"reason": reason})
            for row in rows
        ]
        self._file.seek(0)
        self._file.truncate()
        self.counts.clear()
        self._line(json.loads(head))
        for row in retracted:
            self.add(row)
        return retracted

    def _line(self, row: Mapping[str, Any]) -> None:
        self._file.write(json.dumps(row, ensure_ascii=False, allow_nan=False) + "\n")
        self._file.flush()


FUNNEL = ("collected", "fetched", "referenced", "imported", "compiled", "ran", "matched")


_VERDICTS = (Verdict.PASSED.value, "vacuous", *(v.value for v in Verdict if v is not Verdict.PASSED))


def funnel(cases: Iterable[Mapping[str, Any]]) -> dict[str, dict[str, int]]:
    """Per device, how many cases got through each stage, then how many have each verdict.

    A pass that could not have failed counts as `vacuous` and not as `passed`.
    """
    table: dict[str, dict[str, int]] = {}
    for case in cases:
        row = table.setdefault(case["device"], dict.fromkeys((*FUNNEL, *_VERDICTS), 0))
        row["collected"] += 1
        row["vacuous" if case.get("vacuous") else case["verdict"]] += 1
        done = {stage["stage"] for stage in case["stages"] if stage["ok"]}
        for stage, column in zip(Stage, FUNNEL[1:], strict=True):
            row[column] += stage.value in done
    return table


def columns(table: Mapping[str, Mapping[str, int]]) -> list[str]:
    """The columns worth showing: the funnel, and each verdict that occurs."""
    verdicts = [name for name in _VERDICTS if any(row[name] for row in table.values())]
    return [*FUNNEL, *verdicts]


def summary(rows: Iterable[Mapping[str, Any]], *, compile_only: frozenset[str] = frozenset()) -> list[str]:
    """The funnel as aligned text, a line per device; '-' where a device has no such stage."""
    table = funnel(rows)
    shown = columns(table)
    head = ["device", *shown]
    lines = [head]
    for device, row in table.items():
        absent = ("referenced", "ran", "matched") if device in compile_only else ()
        lines.append([device, *("-" if c in absent else str(row[c]) for c in shown)])
    widths = [max(len(line[k]) for line in lines) for k in range(len(head))]
    return [
        "  ".join(
            cell.ljust(w) if k == 0 else cell.rjust(w)
            for k, (cell, w) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
