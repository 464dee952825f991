"""Small folders of runs, and what they say as plain Python counts it: the site must say the same."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

from packaging.version import Version

from onnx_models import runs
from onnx_models.records import SCHEMA_VERSION
from onnx_models.runs import RunFile

Row = dict[str, Any]

STAGES = ("fetch", "reference", "import", "compile", "run", "compare")
BEGIN = datetime(2026, 1, 1, 2, 0, tzinfo=timezone.utc)


def case(
    name: str, device: str = "cpu", *, stage: str = "compare", kind: str | None = None, **more: Any
) -> Row:
    """The line of a case, `collection/path`, that passed or failed in a stage."""
    collection, _, path = name.partition("/")
    reached = STAGES[: STAGES.index(stage) + 1]
    line: Row = {
        "type": "case",
        "id": f"{device}/{name}",
        "model": path,
        "collection": collection,
        "device": device,
        "verdict": "regressed" if kind else "passed",
        "reason": "",
        "stage": stage,
        "kind": kind,
        "message": f"{kind} in {stage}" if kind else "",
        "signature": "",
        "title": "",
        "excerpt": "",
        "attempts": [],
        "vacuous": "",
        "excused": False,
        "expected": None,
        "stages": [
            {
                "stage": each,
                "ok": kind is None or each != stage,
                "seconds": 1.0,
                "peak_bytes": 1000,
                "product_bytes": 10,
                "reused": False,
                "commands": [],
                "log": None,
            }
            for each in reached
        ],
        "outputs": [],
        "notes": [],
        "health": {},
        "bytes": 1000,
        "opset": 17,
        "operators": {"Conv": 1},
        "benchmark": {},
        "flags": {"import": [], "compile": [], "run": []},
        "tags": [],
    }
    return line | more


def run(
    cases: Iterable[Row],
    *,
    number: int = 0,
    release: str = "3.0.0",
    devices: Collection[str] = (),
    complete: bool = True,
    broken: str = "",
    **more: Any,
) -> RunFile:
    """A run that began `number` days after the first one."""
    lines = tuple(cases)
    started = BEGIN + timedelta(days=number)
    named = devices or sorted({line["device"] for line in lines})
    header = {
        "type": "header",
        "schema": SCHEMA_VERSION,
        "run": f"{started:%Y%m%dT%H%M%SZ}-1",
        "started": started.isoformat(),
        "suite": "0.1.0",
        "iree": release,
        "release": release,
        "tools": [],
        "packages": {"onnx": "1", "onnxruntime": "1", "numpy": "1", "pytest": "1"},
        "host": {"name": "h", "system": "Linux", "python": "3", "cpu": "c", "cores": 2, "memory_bytes": 1}
        | {"fingerprint": "f" * 12},
        "devices": devices if isinstance(devices, dict) else {name: device(name) for name in named},
        "catalogue": "0" * 64,
        "arguments": [],
        "shard": "",
        "url": "",
    }
    footer = {
        "type": "footer",
        "finished": (started + timedelta(hours=1)).isoformat(),
        "complete": complete,
        "cases": len(lines),
        "verdicts": dict(Counter(line["verdict"] for line in lines)),
    }
    return RunFile(
        header=header | more, cases=lines, footer=footer | ({"host_broken": broken} if broken else {})
    )


def device(name: str, last_stage: str = "compare") -> Row:
    """A device as a header has it."""
    return {
        "title": name.upper(),
        "driver": "",
        "found": [],
        "last_stage": last_stage,
        "compile_flags": [],
        "run_flags": [],
    }


def save(folder: Path, *files: RunFile) -> Path:
    """Runs as a folder; each line is what the schema says."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        runs.read(runs.write(file, folder))
    return folder


def shuffled(seed: int, *, models: int = 12, runs_made: int = 7) -> list[RunFile]:
    """A history in which everything happens: back-fills, gaps, broken machines, old states that return."""
    rng = random.Random(seed)
    names = [f"{rng.choice(('zoo', 'wheels'))}/m{k}" for k in range(models)]
    made = []
    for number in range(runs_made):
        release = rng.choice(("2.9.0", "3.0.0", "3.0.0rc20260103", "3.1.0"))
        devices = rng.sample(("cpu", "cuda", "vulkan"), rng.randint(1, 3))
        lines = [_any_case(rng, name, each) for each in devices for name in names if rng.random() < 0.9]
        broken = "the disk is full" if rng.random() < 0.1 else ""
        if broken:
            lines = [line | {"verdict": "error"} for line in lines]
        made.append(
            run(lines, number=number, release=release, devices=devices, complete=rng.random() < 0.9)
            if not broken
            else run(lines, number=number, release=release, devices=devices, broken=broken)
        )
    return made


def _any_case(rng: random.Random, name: str, on: str) -> Row:
    kinds = ("error", "crash", "timeout", "mismatch", "infrastructure", "reference-unhealthy")
    choice = rng.random()
    if choice < 0.4:
        outputs = [{"ratio": rng.choice((0.5, 1.25, 3.0))}, {"ratio": None}, {}]
        return case(name, on, vacuous=rng.choice(("", "", "one number")), outputs=outputs)
    if choice < 0.5:
        return case(name, on, stage="fetch", stages=[], verdict="skipped")
    if choice < 0.55:
        return case(name, on, verdict="error", reason="cut off")
    stage, kind = rng.choice(STAGES), rng.choice(kinds)
    fault = rng.choice(("", "illegal-op:onnx.If", "crash:Tile"))
    verdict = rng.choice(("regressed", "expected-failure", "changed", "flaky"))
    return case(name, on, stage=stage, kind=kind, signature=fault, title=fault.upper(), verdict=verdict)


def state(line: Mapping[str, Any]) -> str:
    """The state of a line, written down a second time and from the words of the site's page `about`."""
    if line["verdict"] == "skipped":
        return "skipped"
    if line["kind"] is not None:
        ours = line["kind"] in ("infrastructure", "reference-unhealthy") or line["stage"] in STAGES[:2]
        return "error" if ours else "failed"
    if line["verdict"] == "error":
        return "error"
    return "vacuous" if line.get("vacuous") else "passed"


def now(files: Sequence[RunFile], name: str) -> dict[str, str]:
    """Of one device, each case's state under the newest release, `missing` where that has none."""
    mine = [f for f in files if name in f.header["devices"] and not f.footer.get("host_broken")]
    mine = [f for f in mine if any(line["device"] == name for line in f.cases)]
    mine.sort(key=lambda f: (Version(f.header["release"]), f.header["started"]))
    if not mine:
        return {}
    newest = mine[-1].header["release"]
    found: dict[str, str] = {}
    for file in mine:
        for line in file.cases:
            if line["device"] == name:
                found[line["id"]] = state(line) if file.header["release"] == newest else "missing"
    return found
