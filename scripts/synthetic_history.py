"""Makes a folder of runs as a year of nightly builds would leave it, to measure the dashboard with.

    python scripts/synthetic_history.py RUNS_DIR [--models 2400] [--devices 8] [--runs 365] [--seed 1]

The models are those of the catalogue, the lines have the form and the size of real ones. Faults come
and go with the builds, each on the models and devices that share it; some shards are missing, a few
cases are flaky, times have noise and steps. The same seed gives the same bytes.
"""

from __future__ import annotations

import argparse
import gzip
import json
from concurrent.futures import ProcessPoolExecutor
from datetime import datetime, timedelta, timezone
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from onnx_models import catalog
from onnx_models.records import SCHEMA_VERSION

DEVICES = ("cpu", "vulkan", "cuda", "hip", "metal", "cpu-arm64", "vulkan-rdna3", "hip-gfx1100")
BEGIN = datetime(2025, 12, 1, 2, 0, tzinfo=timezone.utc)
STAGES = ("fetch", "reference", "import", "compile", "run", "compare")
WORDS = (
    *(f"illegal-op:onnx.{op}" for op in ("If", "GRU", "LSTM", "Resize", "NonMaxSuppression", "Loop", "Scan")),
    *(f"operand-extent:linalg.{op}" for op in ("generic", "conv_2d", "pooling", "matmul")),
    *(f"crash:{place}" for place in ("TileAndFuse", "Vectorize", "Bufferize", "ConvertToLLVM")),
    "shared-memory-limit",
    "unresolved-materialization:tensor",
    "workgroup-count-hint",
    "dim-size",
)
FAULTS = 48


def catalogue() -> list[catalog.Model]:
    """The models of every collection."""
    names = ("zoo", "zoo-turnkey", "zoo-archives", "skeletons", "wheels")
    return [model for name in names for model in catalog.load(name)]


def subjects(models: int, devices: int) -> list[tuple[str, str, str]]:
    """Device, collection and model path of each case."""
    return [(d, m.collection, m.path) for m in catalogue()[:models] for d in DEVICES[:devices]]


def facts(models: int, devices: int) -> list[dict[str, Any]]:
    """What a line repeats of the catalogue."""
    rows = []
    for m in catalogue()[:models]:
        ops = {op: max(count, 1) for op, count in sorted(m.operators.items())}
        rows += [
            {"bytes": m.bytes, "operators": ops, "opset": m.opset_label or 17, "tags": list(m.tags)}
        ] * devices
    return rows


class World:
    """What holds over all runs: which fault hits which case when, and how long a case takes."""

    def __init__(self, models: int, devices: int, runs: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.subjects, self.facts = subjects(models, devices), facts(models, devices)
        self.count, self.seed = len(self.subjects), seed
        model = np.arange(self.count) // devices
        device = np.arange(self.count) % devices
        self.fault = np.full((runs, self.count), -1, np.int8)
        for fault in range(FAULTS):
            share = rng.beta(1, 30)
            hit = rng.random(self.count // devices) < share
            on = rng.random(devices) < (0.35 if fault % 3 else 0.9)
            start = 0 if fault < FAULTS // 2 else int(rng.integers(0, runs))
            end = runs if rng.random() < 0.5 else int(rng.integers(start, runs + 1))
            cases = hit[model] & on[device]
            self.fault[start:end, cases] = fault
        self.stage_of = rng.choice([3, 3, 3, 2, 4, 5], FAULTS)
        self.vacuous = (rng.random(self.count // devices) < 0.02)[model]
        self.seconds = np.exp(rng.normal(1.2, 0.9, (4, self.count)))
        self.step_at = np.where(
            rng.random(self.count) < 0.01, rng.integers(1, runs + 1, self.count), runs + 1
        )
        self.gap = {
            int(day): int(rng.integers(0, devices)) for day in rng.choice(runs, max(1, runs // 50), False)
        }
        self.devices = devices


def release(day: int) -> str:
    """The build of a day."""
    return f"3.{10 + day // 60}.0rc{BEGIN + timedelta(days=day):%Y%m%d}"


@cache
def world(models: int, devices: int, runs: int, seed: int) -> World:
    """One per process."""
    return World(models, devices, runs, seed)


def line(place: World, k: int, fault: int, seconds: np.ndarray, reason: str) -> dict[str, Any]:
    """A case's line, as `records.case_record` makes it."""
    device, collection, path = place.subjects[k]
    case = f"{collection}/{path}"
    failed = int(place.stage_of[fault]) if fault >= 0 else 9
    signature = WORDS[fault % len(WORDS)] if fault >= 0 else ""
    kind = (
        None
        if fault < 0
        else "mismatch"
        if failed == 5
        else "crash"
        if signature.startswith("crash")
        else "error"
    )
    tools = {
        "import": ["iree-import-onnx", "../../model.onnx", "-o", "../model.mlir", "--opset-version", "17"],
        "compile": [
            "iree-compile",
            "../model.mlir",
            "-o",
            "module.vmfb",
            f"--iree-hal-target-device={device}",
        ],
        "run": [
            "iree-run-module",
            "--module=module.vmfb",
            f"--device={device}",
            "--input=@../../inputs/s/0.npy",
        ],
    }
    stages = [
        {
            "stage": name,
            "ok": at != failed,
            "seconds": round(float(seconds[min(at, 3)]) * (0.1 if at in (0, 5) else 1.0), 3),
            "peak_bytes": 0 if at in (0, 5) else 200_000_000 + (k * 7919 + at) % 900_000_000,
            "product_bytes": (k * 104729) % 90_000_000 if at in (2, 3) and at != failed else 0,
            "reused": False,
            "commands": [tools[name]] if name in tools else [],
            "log": f"artifacts/{case}/iree/{device}/{name}.log" if name in tools else None,
        }
        for at, name in enumerate(STAGES[: min(failed, 5) + 1])
    ]
    output = {
        "set": "seeded-0",
        "index": 0,
        "name": "output",
        "dtype": "float32",
        "shape": [1, 1000],
        "ok": True,
    }
    output |= {"ratio": round(1.0 + (k % 97) / 40, 3), "max_abs": 1.3e-6, "rmse": 2.1e-7, "basis": "float64"}
    return {
        "type": "case",
        "id": f"{device}/{case}",
        "model": path,
        "collection": collection,
        "device": device,
        "verdict": "passed" if fault < 0 else "regressed",
        "reason": reason,
        "stage": STAGES[min(failed, 5)],
        "kind": kind if signature else None,
        "message": f"error: failed to legalize operation '{signature}' that was explicitly marked illegal"
        if signature
        else "",
        "signature": signature,
        "title": signature.replace(":", ": "),
        "excerpt": f"model.mlir:{100 + k % 900}:12: error: {signature}\n    %7 = torch.operator\n" * 3
        if signature
        else "",
        "attempts": [],
        "vacuous": "every output is the same number" if place.vacuous[k] and fault < 0 else "",
        "excused": False,
        "expected": None,
        "stages": stages,
        "outputs": [output] if fault < 0 else [],
        "notes": [],
        "health": {},
        **place.facts[k],
        "benchmark": {},
        "flags": {"import": [], "compile": tools["compile"][4:], "run": tools["run"][2:3]},
    }


def write(folder: Path, models: int, devices: int, runs: int, seed: int, day: int) -> Path:
    """One run's file."""
    place = world(models, devices, runs, seed)
    rng = np.random.default_rng([seed, day])
    name = f"{BEGIN + timedelta(days=day):%Y%m%dT%H%M%SZ}-{day}"
    fault = place.fault[day].copy()
    flaky = rng.random(place.count) < 0.0005
    fault[flaky & (fault < 0)] = FAULTS - 1
    noise = rng.normal(1.0, 0.03, place.seconds.shape) * np.where(day >= place.step_at, 1.25, 1.0)
    seconds = place.seconds * noise
    skipped = place.gap.get(day)
    lines, verdicts = [], {"passed": 0, "regressed": 0}
    for k in range(place.count):
        if skipped is not None and k % devices == skipped and (k // devices) % 4 == 1:
            continue
        row = line(place, k, int(fault[k]), seconds[:, k], "")
        verdicts[row["verdict"]] += 1
        lines.append(json.dumps(row, separators=(",", ":")))
    head = header(place, name, day)
    finished = BEGIN + timedelta(days=day, hours=5)
    foot = {"type": "footer", "finished": finished.isoformat(), "complete": skipped is None}
    foot |= {"cases": len(lines), "verdicts": verdicts}
    target = folder / f"{name}.jsonl.gz"
    with (
        target.open("wb") as raw,
        gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=1, mtime=0, filename="") as file,
    ):
        file.write("\n".join([json.dumps(head), *lines, json.dumps(foot), ""]).encode())
    return target


def header(place: World, name: str, day: int) -> dict[str, Any]:
    """A run's header."""
    device = {"driver": "x", "found": [], "last_stage": "compare", "compile_flags": [], "run_flags": []}
    return {
        "type": "header",
        "schema": SCHEMA_VERSION,
        "run": name,
        "started": (BEGIN + timedelta(days=day)).isoformat(),
        "suite": "0.1.0",
        "iree": release(day),
        "release": release(day),
        "tools": [],
        "packages": {"onnx": "1.23.2", "onnxruntime": "1.32.0", "numpy": "2.4.6", "pytest": "9.2.0"},
        "host": {"name": "farm", "system": "Linux", "python": "3.11.7", "cpu": "x86_64", "cores": 32}
        | {"memory_bytes": 2**37, "fingerprint": "0123456789ab"},
        "devices": {name: {"title": name.upper(), **device} for name in DEVICES[: place.devices]},
        "catalogue": "0" * 64,
        "arguments": [],
        "shard": "",
        "url": "",
    }


def main() -> None:
    """Write the runs that are not there yet."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    for name, default in (("models", 2400), ("devices", 8), ("runs", 365), ("seed", 1), ("jobs", 2)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--days", type=int, help="write only the first so many of the runs")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    days = range(options.runs if options.days is None else options.days)
    with ProcessPoolExecutor(options.jobs) as pool:
        arguments = (options.folder, options.models, options.devices, options.runs, options.seed)
        for done in [pool.submit(write, *arguments, day) for day in days]:
            done.result()


if __name__ == "__main__":
    main()
