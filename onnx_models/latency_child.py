"""Child process of `benchmark`: how long onnxruntime takes for one invocation.

`python -m onnx_models.latency_child REQUEST.json ANSWER.json`

Paths in the request are relative to its own folder, so that the command can be
repeated by hand. Loading and the copies of inputs are not counted, as
`iree-benchmark-module` does not count them.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

from onnx_models import ort, tensors
from onnx_models.outcomes import SuiteError
from onnx_models.tensors import TensorFile


def answer(request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Load the model, warm up, and time each repetition; or say why not."""
    try:
        feeds = {row["name"]: tensors.read(_file(row, folder)) for row in request["inputs"]}
        runner = ort.Runner(folder / request["model"], request["options"], threads=int(request["threads"]))
        invoke = runner.prepared(feeds)
        one = warm_up(invoke, request["warmup_s"])
        count = max(1, math.ceil(request["repetition_s"] / one))
        seconds = [timed(invoke, count) for _ in range(int(request["repetitions"]))]
    except ort.Refusal as error:
        return {"error": error.first_line}
    except (ort.Unsupported, SuiteError) as error:
        return {"error": str(error)}
    return {"seconds": seconds, "invocations": count * len(seconds)}


def warm_up(invoke: Callable[[], object], seconds: float) -> float:
    """Run for so long, at least once; seconds of the fastest invocation, which counts the next ones."""
    fastest, end = math.inf, perf_counter() + seconds
    while True:
        fastest = min(fastest, timed(invoke, 1))
        if perf_counter() >= end:
            return max(fastest, 1e-7)


def timed(invoke: Callable[[], object], count: int) -> float:
    """Mean seconds of `count` invocations."""
    began = perf_counter()
    for _ in range(count):
        invoke()
    return (perf_counter() - began) / count


def _file(row: Mapping[str, Any], folder: Path) -> TensorFile:
    return TensorFile(
        name=row["name"], dtype=row["dtype"], shape=tuple(row["shape"]), path=folder / row["path"]
    )


if __name__ == "__main__":
    asked = Path(sys.argv[1])
    told = answer(json.loads(asked.read_text(encoding="utf-8")), asked.parent)
    Path(sys.argv[2]).write_text(json.dumps(told, allow_nan=False), encoding="utf-8")
