"""A reference as values and as files: `reference.json` and the tensors that it names."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from onnx_models.files import sha256_of
from onnx_models.inspection import ModelInfo
from onnx_models.outcomes import Failure, Kind, Stage
from onnx_models.tensors import TensorFile
from onnx_models.tolerance import Policy


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSet:
    """One set of inputs and what onnxruntime makes of it.

    `policies` has one entry per output; `precise` holds the float64 evaluation
    of those outputs whose policy's basis is "float64", and `scores` what the
    indices of an output with the rule "indices" point into.
    """

    name: str
    inputs: tuple[TensorFile, ...]
    outputs: tuple[TensorFile, ...]
    policies: tuple[Policy, ...] = ()
    precise: Mapping[int, TensorFile] = field(default_factory=dict)
    scores: Mapping[int, TensorFile] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """Everything that a case needs from its model, or why there is none.

    `vacuous` says why these outputs cannot tell right from wrong, empty when they
    can. `health` is the JSON-ready record of the checks. `seconds` and
    `peak_bytes` are those of the making, also when `reused`.
    """

    key: str
    failure: Failure | None = None
    sets: tuple[ReferenceSet, ...] = ()
    notes: tuple[str, ...] = ()
    info: ModelInfo | None = None
    vacuous: str = ""
    health: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    peak_bytes: int = 0
    reused: bool = False


_hashes: dict[tuple[str, int, int], str] = {}


def file_sha256(file: Path) -> str:
    """sha256 of a file in hex, read once per process while it does not change."""
    stat = file.stat()
    identity = (str(file.resolve()), stat.st_size, stat.st_mtime_ns)
    if identity not in _hashes:
        _hashes[identity] = sha256_of(file)
    return _hashes[identity]


def load_reference(folder: Path, key: str | None = None) -> Reference | None:
    """The reference in a folder if it is whole and, where a `key` is given, has that key."""
    try:
        row = json.loads((folder / "reference.json").read_text(encoding="utf-8"))
        if key is not None and row["key"] != key:
            return None
        for entry in _rows(row):
            if file_sha256(folder / entry["file"]) != entry["sha256"]:
                return None
        return _reference(row, folder)
    except (OSError, ValueError, KeyError, TypeError):
        return None


def write_json(path: Path, row: Mapping[str, Any]) -> None:
    """Write strict JSON, at once or not at all."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_text(json.dumps(row, indent=1, allow_nan=False), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def save_reference(reference: Reference, folder: Path) -> None:
    """Write `reference.json`, which makes the files beside it a reference."""
    failure = reference.failure
    row = {
        "key": reference.key,
        "failure": None
        if failure is None
        else dataclasses.asdict(failure) | {"stage": failure.stage.value, "kind": failure.kind.value},
        "sets": [_set_row(each, folder) for each in reference.sets],
        "notes": list(reference.notes),
        "info": None if reference.info is None else reference.info.to_json(),
        "vacuous": reference.vacuous,
        "health": dict(reference.health),
        "seconds": reference.seconds,
        "peak_bytes": reference.peak_bytes,
    }
    write_json(folder / "reference.json", row)


def _set_row(each: ReferenceSet, folder: Path) -> dict[str, Any]:
    def tensors(files: Sequence[TensorFile]) -> list[dict[str, Any]]:
        return [_tensor_row(file, folder) for file in files]

    return {
        "name": each.name,
        "inputs": tensors(each.inputs),
        "outputs": tensors(each.outputs),
        "policies": [policy.to_json() for policy in each.policies],
        "precise": {str(index): _tensor_row(file, folder) for index, file in each.precise.items()},
        "scores": {str(index): _tensor_row(file, folder) for index, file in each.scores.items()},
    }


def _tensor_row(tensor: TensorFile, folder: Path) -> dict[str, Any]:
    return {
        "name": tensor.name,
        "dtype": tensor.dtype,
        "shape": list(tensor.shape),
        "file": tensor.path.relative_to(folder).as_posix(),
        "sha256": file_sha256(tensor.path),
    }


def _rows(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Every tensor that a `reference.json` names."""
    found: list[Mapping[str, Any]] = []
    for each in row["sets"]:
        found += [*each["inputs"], *each["outputs"], *each["precise"].values(), *each["scores"].values()]
    return found


def _reference(row: Mapping[str, Any], folder: Path) -> Reference:
    failure = row["failure"]
    if failure is not None:
        failure = Failure(**{**failure, "stage": Stage(failure["stage"]), "kind": Kind(failure["kind"])})
    return Reference(
        key=row["key"],
        failure=failure,
        sets=tuple(_set(each, folder) for each in row["sets"]),
        notes=tuple(row["notes"]),
        info=None if row["info"] is None else ModelInfo.from_json(row["info"]),
        vacuous=row["vacuous"],
        health=row["health"],
        seconds=row["seconds"],
        peak_bytes=row["peak_bytes"],
        reused=True,
    )


def _set(row: Mapping[str, Any], folder: Path) -> ReferenceSet:
    return ReferenceSet(
        name=row["name"],
        inputs=tuple(tensor_file(each, folder) for each in row["inputs"]),
        outputs=tuple(tensor_file(each, folder) for each in row["outputs"]),
        policies=tuple(Policy(**each) for each in row["policies"]),
        precise={int(index): tensor_file(each, folder) for index, each in row["precise"].items()},
        scores={int(index): tensor_file(each, folder) for index, each in row["scores"].items()},
    )


def tensor_file(row: Mapping[str, Any], folder: Path) -> TensorFile:
    """A tensor from its row, whose `file` is relative to the reference's folder."""
    path = folder / row["file"]
    return TensorFile(name=row["name"], dtype=row["dtype"], shape=tuple(row["shape"]), path=path)
