"""Child process of `reference`, the only one that runs onnxruntime.

`python -m onnx_models.reference_child REQUEST.json ANSWER.json`
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_models import inputs, ort, tensors
from onnx_models.inputs import PlannedInput
from onnx_models.outcomes import Kind, SuiteError
from onnx_models.tensors import Array


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Make every set of a request; `{"error": ...}` where onnxruntime does not."""
    folder, notes = Path(request["folder"]), []
    options, note = ort.session_options(request["session"], request["operators"])
    notes += note
    try:
        runner = ort.Runner(Path(request["model"]), options)
        rows = [_make_set(runner, each, folder) for each in request["sets"]]
    except ort.Unsupported as error:
        return {"error": str(error), "kind": Kind.UNSUPPORTED_INPUT.value}
    except ort.Refusal as error:
        return {"error": error.first_line, "detail": str(error)}
    except SuiteError as error:
        return {"error": str(error)}
    return {"sets": rows, "notes": notes}


def _make_set(runner: ort.Runner, request: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    name = request["name"]
    feeds = {planned.name: inputs.generate(planned) for planned in _planned(request["inputs"])}
    outputs = runner.run(feeds)
    return {
        "name": name,
        "inputs": _write(feeds, folder, f"inputs/{name}"),
        "outputs": _write(dict(zip(runner.outputs, outputs, strict=True)), folder, f"reference/{name}"),
    }


def _planned(rows: Sequence[Mapping[str, Any]]) -> list[PlannedInput]:
    return [PlannedInput(**{**row, "shape": tuple(row["shape"])}) for row in rows]


def _write(arrays: Mapping[str, Array], folder: Path, place: str) -> list[dict[str, Any]]:
    rows = []
    for index, (name, array) in enumerate(arrays.items()):
        file = f"{place}/{index}{tensors.suffix(array.dtype.name)}"
        tensors.write(array, folder / file)
        rows.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "file": file})
    return rows


if __name__ == "__main__":
    request = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(json.dumps(answer(request), allow_nan=False), encoding="utf-8")
