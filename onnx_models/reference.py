"""What the right answer is: onnxruntime's outputs on seeded inputs, made once and kept.

All work with the model happens in child processes; this module decides what to
make, checks what is there, and carries the result as values.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

from filelock import FileLock, Timeout

from onnx_models import inputs
from onnx_models.catalog import Model
from onnx_models.inspection import ModelFileError, ModelInfo, inspect, run_child
from onnx_models.outcomes import Failure, Kind, Stage, SuiteError
from onnx_models.tensors import TensorFile
from onnx_models.tolerance import Policy

__all__ = [
    "ModelFileError",
    "ModelInfo",
    "Reference",
    "ReferenceSet",
    "file_sha256",
    "inspect",
    "load_reference",
    "make_reference",
]

ALGORITHM = 1
"""Raised whenever the same model and facts would give another reference: older ones are then made again."""

TIMEOUT = 900.0
"""Seconds for onnxruntime on one model, all sets."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReferenceSet:
    """One set of inputs and what onnxruntime makes of it.

    `policies` has one entry per output; `precise` holds the float64 evaluation
    of those outputs whose policy's basis is "float64".
    """

    name: str
    inputs: tuple[TensorFile, ...]
    outputs: tuple[TensorFile, ...]
    policies: tuple[Policy, ...] = ()
    precise: Mapping[int, TensorFile] = field(default_factory=dict)


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


def make_reference(
    model: Model,
    model_file: Path,
    folder: Path,
    *,
    sets: int = 1,
    timeout: float = TIMEOUT,
    memory_limit: int | None = None,
    reuse: bool = True,
) -> Reference:
    """Make a model's reference below `folder`, or take the one that is there.

    Writes `inputs/<set>/<k>`, `reference/<set>/<k>` and, last, `reference.json`.
    Two processes that want the same one make it once.

    Args:
        model: facts of inputs, dims and session.
        model_file: the file of the model.
        folder: the model's folder below the artifacts.
        sets: number of seeded input sets.
        timeout: seconds for each child process.
        memory_limit: bytes of resident memory of a child process.
        reuse: whether an intact reference with the same key is taken as it is.

    Raises:
        SuiteError: the folder cannot be written, or its lock is not given up.
        UsageError: the facts do not fit the model.
    """
    began = monotonic()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        key = reference_key(model, model_file, sets)
    except OSError as error:
        message = f"{model_file}: not readable ({error.strerror or error})"
        return _failed("", Failure(stage=Stage.REFERENCE, kind=Kind.ERROR, message=message))
    lock = FileLock(folder / ".reference.lock")
    try:
        with lock.acquire(timeout=2 * timeout):
            if reuse and (kept := load_reference(folder, key)) is not None:
                return kept
            made = _make(model, model_file, folder, sets, timeout, memory_limit, key)
            made = dataclasses.replace(made, seconds=monotonic() - began)
            if _lasting(made):
                _save(made, folder)
            return made
    except Timeout:
        raise SuiteError(
            f"{folder}: another process has made its reference for {2 * timeout:.0f} s"
        ) from None


def reference_key(model: Model, model_file: Path, sets: int) -> str:
    """sha256 over all that a reference depends on; a user's .npy by its content."""
    facts = []
    for fact in model.inputs:
        content = file_sha256(Path(fact.params["path"])) if fact.kind == "file" else ""
        facts.append([fact.name, fact.kind, fact.shape, dict(fact.params), content])
    parts = {
        "algorithm": ALGORITHM,
        "file": model.sha256 or file_sha256(model_file),
        "id": model.id,
        "facts": facts,
        "dims": dict(model.dims),
        "session": dict(model.session),
        "compare": dict(model.compare),
        "sets": sets,
        "versions": {name: importlib.metadata.version(name) for name in ("onnxruntime", "onnx", "numpy")},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True, default=str).encode()).hexdigest()


_hashes: dict[tuple[str, int, int], str] = {}


def file_sha256(file: Path) -> str:
    """sha256 of a file in hex, read once per process while it does not change."""
    stat = file.stat()
    identity = (str(file.resolve()), stat.st_size, stat.st_mtime_ns)
    if identity not in _hashes:
        total = hashlib.sha256()
        with file.open("rb") as stream:
            while chunk := stream.read(1 << 20):
                total.update(chunk)
        _hashes[identity] = total.hexdigest()
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


def _make(
    model: Model,
    model_file: Path,
    folder: Path,
    sets: int,
    timeout: float,
    memory_limit: int | None,
    key: str,
) -> Reference:
    (folder / "reference.json").unlink(missing_ok=True)
    try:
        info = inspect(model_file, scratch=folder, timeout=timeout, memory_limit=memory_limit)
        plans = [inputs.plan(model, info.inputs, set_index=index) for index in range(sets)]
    except ModelFileError as error:
        return _failed(key, Failure(stage=Stage.REFERENCE, kind=Kind.ERROR, message=str(error)))
    except inputs.UnsupportedInput as error:
        return _failed(key, error.failure, info)
    if not info.outputs:
        message = f"{model.id}: the model has no outputs: there is nothing to compare"
        return _failed(key, Failure(stage=Stage.REFERENCE, kind=Kind.ERROR, message=message), info)
    request = {
        "model": str(model_file.absolute()),
        "folder": str(folder.absolute()),
        "session": dict(model.session),
        "operators": dict(info.operators),
        "sets": [
            {"name": f"seeded-{index}", "inputs": [dataclasses.asdict(planned) for planned in plan.inputs]}
            for index, plan in enumerate(plans)
        ],
    }
    answer, peak = _ask(request, folder, timeout, memory_limit)
    if isinstance(answer, Failure):
        return dataclasses.replace(_failed(key, answer, info), peak_bytes=peak)
    return Reference(
        key=key,
        sets=tuple(_set(row, folder) for row in answer["sets"]),
        notes=(*plans[0].notes, *answer.get("notes", ())),
        info=info,
        vacuous=answer.get("vacuous", ""),
        health=answer.get("health", {}),
        peak_bytes=peak,
    )


def _failed(key: str, failure: Failure, info: ModelInfo | None = None) -> Reference:
    return Reference(key=key, failure=failure, info=info)


def _lasting(reference: Reference) -> bool:
    """Whether the same request would end the same way; a timeout may pass on another day."""
    return reference.failure is None or reference.failure.kind in (Kind.ERROR, Kind.UNSUPPORTED_INPUT)


def _ask(
    request: Mapping[str, Any], folder: Path, timeout: float, memory_limit: int | None
) -> tuple[Mapping[str, Any] | Failure, int]:
    """Run the onnxruntime child; its answer or the failure, and its peak memory in bytes."""
    question, answer, log = (folder / name for name in ("request.json", "answer.json", "reference.log"))
    answer.unlink(missing_ok=True)
    _write_json(question, request)
    finished = run_child("reference_child", question, answer, log=log, timeout=timeout, memory=memory_limit)
    try:
        row = json.loads(answer.read_text(encoding="utf-8")) if finished.ok and answer.is_file() else None
    finally:
        question.unlink(missing_ok=True)
        answer.unlink(missing_ok=True)
    if row is None:
        kind = finished.kind or Kind.ERROR
        message = f"onnxruntime: {kind.value}: {finished.first_error()}"
        if kind is Kind.TIMEOUT:
            message = f"onnxruntime: no end after {timeout:g} s"
        return Failure(stage=Stage.REFERENCE, kind=kind, message=message), finished.peak_bytes
    if "error" in row:
        kind = Kind(row.get("kind", Kind.ERROR.value))
        stage = Stage.IMPORT if kind is Kind.UNSUPPORTED_INPUT else Stage.REFERENCE
        failure = Failure(stage=stage, kind=kind, message=row["error"], detail=row.get("detail", ""))
        return failure, finished.peak_bytes
    return row, finished.peak_bytes


def _write_json(path: Path, row: Mapping[str, Any]) -> None:
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        partial.write_text(json.dumps(row, indent=1, allow_nan=False), encoding="utf-8")
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def _save(reference: Reference, folder: Path) -> None:
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
    _write_json(folder / "reference.json", row)


def _set_row(each: ReferenceSet, folder: Path) -> dict[str, Any]:
    def tensors(files: Sequence[TensorFile]) -> list[dict[str, Any]]:
        return [_tensor_row(file, folder) for file in files]

    return {
        "name": each.name,
        "inputs": tensors(each.inputs),
        "outputs": tensors(each.outputs),
        "policies": [policy.to_json() for policy in each.policies],
        "precise": {str(index): _tensor_row(file, folder) for index, file in each.precise.items()},
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
        found += [*each["inputs"], *each["outputs"], *each["precise"].values()]
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
        inputs=tuple(_tensor(each, folder) for each in row["inputs"]),
        outputs=tuple(_tensor(each, folder) for each in row["outputs"]),
        policies=tuple(Policy(**each) for each in row.get("policies", ())),
        precise={int(index): _tensor(each, folder) for index, each in row.get("precise", {}).items()},
    )


def _tensor(row: Mapping[str, Any], folder: Path) -> TensorFile:
    path = folder / row["file"]
    return TensorFile(name=row["name"], dtype=row["dtype"], shape=tuple(row["shape"]), path=path)
