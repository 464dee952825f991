"""What the right answer is: onnxruntime's outputs on seeded inputs, made once and kept.

All work with the model happens in child processes; this module decides what to
make, checks what is there, and carries the result as values.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import Any

from filelock import FileLock, Timeout

from onnx_models import datasets, noise
from onnx_models.cache import SourceError
from onnx_models.catalog import Model
from onnx_models.inputs import UnsupportedInput
from onnx_models.inspection import ModelFileError, ModelInfo, inspect, refuse_obvious, run_child
from onnx_models.noise import Difference, Measured
from onnx_models.outcomes import Failure, Kind, Stage, SuiteError, UsageError
from onnx_models.reference_data import (
    Reference,
    ReferenceSet,
    file_sha256,
    load_reference,
    save_reference,
    tensor_file,
    write_json,
)
from onnx_models.tensors import TensorFile

__all__ = [
    "Draw",
    "ModelFileError",
    "ModelInfo",
    "Reference",
    "ReferenceSet",
    "file_sha256",
    "inspect",
    "load_reference",
    "make_reference",
]

ALGORITHM = 7
"""Raised whenever the same model and facts would give another reference: older ones are then made again."""

TIMEOUT = 900.0
"""Seconds for onnxruntime on one model, all sets."""

STORED = "stored"
"""Folder of a model's stored data sets, below the model's own."""

FLOAT64_SECONDS = 60.0
"""Budget of the float64 evaluation."""

FLOAT64_BYTES = 4 << 30
"""Resident memory of the float64 evaluation."""

FLOAT64_MODEL_BYTES = 400_000_000
"""Larger models are not tried in float64: widened weights and intermediates would not fit the budget."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Which input sets a reference has.

    Attributes:
        inputs: `stored` takes the model's stored data sets, `seeded` draws them, `all` does both;
            `default` takes the stored ones where there are any and draws otherwise.
        seeds: how many sets are drawn.
        cache: where fetched archives of stored sets are kept; None forbids stored sets.
        offline: whether nothing may be fetched.
    """

    inputs: str = "default"
    seeds: int = 1
    cache: Path | None = None
    offline: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    model: Model
    file: Path
    folder: Path
    draw: Draw
    stored: bool
    notes: tuple[str, ...]
    timeout: float
    memory_limit: int | None
    key: str


def make_reference(
    model: Model,
    model_file: Path,
    folder: Path,
    *,
    draw: Draw | None = None,
    timeout: float = TIMEOUT,
    memory_limit: int | None = None,
    reuse: bool = True,
) -> Reference:
    """Make a model's reference below `folder`, or take the one that is there.

    Writes `inputs/<set>/<k>`, `reference/<set>/<k>` and, last, `reference.json`.
    Two processes that want the same one make it once.

    Args:
        model: facts of inputs, dims, session and comparison.
        model_file: the file of the model.
        folder: the model's folder below the artifacts.
        draw: which input sets; one seeded set when not given.
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
        refuse_obvious(model_file)
    except ModelFileError as error:
        return _failed("", str(error))
    draw = draw or Draw()
    stored, notes = _stored_data(model, folder, draw)
    request = _Request(
        model=model,
        file=model_file,
        folder=folder,
        draw=draw,
        stored=stored,
        notes=notes,
        timeout=timeout,
        memory_limit=memory_limit,
        key=reference_key(model, model_file, draw, stored=stored),
    )
    try:
        with FileLock(folder / ".reference.lock").acquire(timeout=2 * timeout):
            if reuse and (kept := load_reference(folder, request.key)) is not None:
                return kept
            (folder / "reference.json").unlink(missing_ok=True)
            made = dataclasses.replace(_make(request), seconds=monotonic() - began)
            if _lasting(made):
                save_reference(made, folder)
            return made
    except Timeout:
        raise SuiteError(
            f"{folder}: another process has made its reference for {2 * timeout:.0f} s"
        ) from None


def _stored_data(model: Model, folder: Path, draw: Draw) -> tuple[bool, tuple[str, ...]]:
    """Whether the model's stored sets are here, unpacked; and a note when they should be and are not."""
    if not model.test_data or draw.inputs == "seeded" or draw.cache is None:
        return False, ()
    try:
        archive = stored_folder(model, folder) / "archive"
        datasets.obtain(model, archive, cache=draw.cache, offline=draw.offline)
    except SourceError as error:
        if draw.inputs != "default":
            raise
        return False, (f"seeded inputs, because the stored ones cannot be had: {error}".splitlines()[0],)
    return True, ()


def stored_folder(model: Model, folder: Path) -> Path:
    """Where a model's stored sets are unpacked: by content, so that a changed archive is never mixed up."""
    return folder / STORED / str(model.test_data["sha256"])[:12]


def reference_key(model: Model, model_file: Path, draw: Draw, *, stored: bool = False) -> str:
    """sha256 over all that a reference depends on; a user's .npy by its content.

    Raises:
        UsageError: such a .npy is missing.
    """
    parts = {
        "algorithm": ALGORITHM,
        "file": model.sha256 or file_sha256(model_file),
        "external": model.data_identity,
        "facts": _facts(model),
        "contents": [
            _content(fact.name, fact.params["path"]) for fact in model.inputs if fact.kind == "file"
        ],
        "sets": draw.seeds,
        "stored": [draw.inputs, dict(model.test_data)] if stored else None,
        "versions": {name: importlib.metadata.version(name) for name in ("onnxruntime", "onnx", "numpy")},
    }
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def _content(name: str, path: str) -> str:
    try:
        return file_sha256(Path(path))
    except OSError as error:
        raise UsageError(f"input {name!r}: {path}: {(error.strerror or str(error)).lower()}") from None


def _facts(model: Model) -> dict[str, Any]:
    """What of a model decides its reference, as plain data; `reference_child` makes a model of it again."""
    collection, _, path = model.shared_id.partition("/")  # names the seed, and twins share theirs
    return {
        "collection": collection,
        "path": path,
        "source": {},
        "inputs": [dataclasses.asdict(fact) for fact in model.inputs],
        "dims": dict(model.dims),
        "session": dict(model.session),
        "compare": dict(model.compare),
    }


def _make(request: _Request) -> Reference:
    question = {
        "model": str(request.file.absolute()),
        "folder": str(request.folder.absolute()),
        "facts": _facts(request.model),
        "sets": request.draw.seeds,
        "stored": [],
    }
    notes = request.notes
    if request.stored:
        try:
            sets, more = _stored_sets(request)
        except ModelFileError as error:
            return _failed(request.key, str(error))
        except UnsupportedInput as error:
            return _failed(request.key, str(error), kind=Kind.UNSUPPORTED_INPUT)
        notes += more
        question["stored"] = [_stored_row(each) for each in sets]
        if sets and request.draw.inputs != "all":
            question["sets"] = 0
        if not sets and request.draw.inputs == "stored":
            return _failed(request.key, f"no stored set can be used: {'; '.join(notes) or 'there is none'}")
    answer, peak = _ask("reference_child", question, request, request.timeout, request.memory_limit)
    if isinstance(answer, Failure):
        return Reference(key=request.key, failure=answer, peak_bytes=peak)
    info = ModelInfo.from_json(answer["info"]) if "info" in answer else None
    if "error" in answer:
        if answer.get("usage"):
            raise UsageError(answer["error"])
        kind = Kind(answer.get("kind", Kind.ERROR.value))
        failed = _failed(request.key, answer["error"], kind=kind, detail=answer.get("detail", ""))
        return dataclasses.replace(failed, info=info, peak_bytes=peak)
    assert info is not None
    precise, float64 = _float64(question, answer, info, request)
    judged = _judged(request, answer, precise, float64)
    return dataclasses.replace(judged, info=info, peak_bytes=peak, notes=(*notes, *judged.notes))


def _stored_sets(request: _Request) -> tuple[tuple[datasets.ConvertedSet, ...], tuple[str, ...]]:
    assert request.draw.cache is not None
    info = inspect(request.file, scratch=request.folder, memory_limit=request.memory_limit)
    sets, notes = datasets.stored_sets(
        request.model,
        stored_folder(request.model, request.folder),
        cache=request.draw.cache,
        inputs=info.inputs,
        outputs=info.outputs,
        offline=request.draw.offline,
    )
    return sets, (*notes, *(f"{each.name}: {note}" for each in sets for note in each.notes))


def _stored_row(each: datasets.ConvertedSet) -> dict[str, Any]:
    def rows(tensors: Sequence[TensorFile]) -> list[dict[str, Any]]:
        return [{**dataclasses.asdict(t), "path": str(t.path.absolute())} for t in tensors]

    return {"name": each.name, "inputs": rows(each.inputs), "outputs": rows(each.outputs)}


def _failed(key: str, message: str, *, kind: Kind = Kind.ERROR, detail: str = "") -> Reference:
    stage = Stage.IMPORT if kind is Kind.UNSUPPORTED_INPUT else Stage.REFERENCE
    return Reference(key=key, failure=Failure(stage=stage, kind=kind, message=message, detail=detail))


def _lasting(reference: Reference) -> bool:
    """Whether the same request would end the same way; a timeout may pass on another day."""
    return reference.failure is None or reference.failure.kind in (
        Kind.ERROR,
        Kind.UNSUPPORTED_INPUT,
        Kind.REFERENCE_UNHEALTHY,
    )


_WHO = {"reference_child": "onnxruntime", "float64_child": "the evaluation in float64"}


def _ask(
    child: str, question: Mapping[str, Any], request: _Request, timeout: float, memory: int | None
) -> tuple[Mapping[str, Any] | Failure, int]:
    """Run a child; its answer or how it failed, and its peak memory in bytes."""
    asked, told, log = (request.folder / f"{child}.{end}" for end in ("request.json", "answer.json", "log"))
    told.unlink(missing_ok=True)
    write_json(asked, question)
    try:
        finished = run_child(child, asked, told, log=log, timeout=timeout, memory=memory)
        if finished.ok and told.is_file():
            return json.loads(told.read_text(encoding="utf-8")), finished.peak_bytes
    finally:
        asked.unlink(missing_ok=True)
        told.unlink(missing_ok=True)
    # A child that answers says what onnxruntime refused; one that does not met a fault of the machine.
    kind = Kind.INFRASTRUCTURE if finished.kind in (None, Kind.ERROR) else finished.kind
    message = f"no end after {timeout:g} s" if kind is Kind.TIMEOUT else finished.first_error()
    failure = Failure(stage=Stage.REFERENCE, kind=kind, message=f"{_WHO[child]}: {message}")
    return failure, finished.peak_bytes


def _float64(
    question: Mapping[str, Any], answer: Mapping[str, Any], info: ModelInfo, request: _Request
) -> tuple[Sequence[Sequence[Mapping[str, Any] | None]] | None, str]:
    """Per set and output, the float64 evaluation's row; None, and why, where there is none."""
    rows = [row for each in answer["sets"] for row in each["outputs"] if row["largest"]]
    if all(row["rule"]["exact_graph"] for row in rows):
        return None, "no output that accumulates rounding errors"
    if info.bytes > FLOAT64_MODEL_BYTES:
        return None, f"the model has more than {FLOAT64_MODEL_BYTES} bytes"
    if foreign := next((name for name in info.operators if "::" in name), None):
        return None, f"operator {foreign} is not ONNX's own"
    asked = {"model": question["model"], "folder": question["folder"], "sets": answer["sets"]}
    memory = min(FLOAT64_BYTES, request.memory_limit or FLOAT64_BYTES)
    told, _ = _ask("float64_child", asked, request, min(FLOAT64_SECONDS, request.timeout), memory)
    if isinstance(told, Failure):
        return None, told.message.partition(": ")[2]
    return told.get("sets"), told.get("refused", "used")


def _judged(
    request: _Request,
    answer: Mapping[str, Any],
    precise: Sequence[Sequence[Mapping[str, Any] | None]] | None,
    float64: str,
) -> Reference:
    """Choose each output's policy and hold the reference against itself."""
    sets: list[ReferenceSet] = []
    all_measured: list[list[Measured]] = []
    for index, row in enumerate(answer["sets"]):
        wide = precise[index] if precise is not None else [None] * len(row["outputs"])
        measured = [_measured(each, better) for each, better in zip(row["outputs"], wide, strict=True)]
        sets.append(_set(row, request.folder, measured, wide))
        all_measured.append(measured)
    rows = answer["sets"][0]["outputs"]
    probes = {
        name: None if found is None else [Difference(**each) for each in found]
        for name, found in answer["probes"].items()
    }
    vacuous = noise.vacuity(all_measured[0], sets[0].policies, probes)
    unhealthy = _unhealthy(answer, all_measured)
    failure = None
    if unhealthy:
        failure = Failure(stage=Stage.REFERENCE, kind=Kind.REFERENCE_UNHEALTHY, message=unhealthy)
    return Reference(
        key=request.key,
        failure=failure,
        sets=tuple(sets),
        notes=(*answer["notes"], *_odd_values(rows), *([f"vacuous: {vacuous}"] if vacuous else [])),
        vacuous=vacuous,
        health=_health(answer, float64),
    )


def _unhealthy(answer: Mapping[str, Any], all_measured: Sequence[Sequence[Measured]]) -> str:
    """Why the reference is no judge, by any of its sets; empty when it is one."""
    unoptimised = answer["options"]["graph_optimization_level"] == "disable"
    for row, measured in zip(answer["sets"], all_measured, strict=True):
        if unoptimised:  # Fusing changes a quantized model's results: that is noise, and no ill health.
            measured = [dataclasses.replace(each, optimisation=None) for each in measured]
        outputs = row["outputs"]
        repeats = [Difference(**each["repeat"]) for each in outputs]
        found = noise.unhealthy([each["name"] for each in outputs], measured, repeats)
        if found:
            return f"{row['name']}: {found}" if len(all_measured) > 1 else found
    return ""


def _odd_values(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Notes on outputs that are not all numbers; the inputs are finite."""
    return [
        f"the reference's output {row['name']!r} holds {row['nan']} NaN and {row['inf']} Inf"
        for row in rows
        if row.get("nan") or row.get("inf")
    ]


def _measured(row: Mapping[str, Any], wide: Mapping[str, Any] | None) -> Measured:
    return Measured(
        dtype=row["dtype"],
        count=math.prod(row["shape"]),
        scale=row["scale"],
        largest=row["largest"],
        rule=row["rule"]["rule"],
        params=row["rule"]["params"],
        origin=row["rule"]["origin"],
        optimisation=Difference.from_json(row.get("optimisation")),
        float64=Difference.from_json(wide["difference"] if wide else None),
        exact_graph=row["rule"]["exact_graph"],
    )


def _set(
    row: Mapping[str, Any],
    folder: Path,
    measured: Sequence[Measured],
    wide: Sequence[Mapping[str, Any] | None],
) -> ReferenceSet:
    policies = tuple(noise.choose(each) for each in measured)
    precise: dict[int, TensorFile] = {}
    for index, (policy, better) in enumerate(zip(policies, wide, strict=True)):
        if policy.basis == "float64" and better is not None:
            precise[index] = tensor_file(better["tensor"], folder)
    return ReferenceSet(
        name=row["name"],
        inputs=tuple(tensor_file(each, folder) for each in row["inputs"]),
        outputs=tuple(tensor_file(each, folder) for each in row["outputs"]),
        policies=policies,
        precise=precise,
        scores={int(index): tensor_file(each, folder) for index, each in row.get("scores", {}).items()},
    )


def _health(answer: Mapping[str, Any], float64: str) -> dict[str, Any]:
    """The record of what was checked: plain data, one row per output of the first set."""
    outputs = []
    for index, row in enumerate(answer["sets"][0]["outputs"]):
        kept = {
            key: row[key] for key in ("name", "scale", "largest", "nan", "inf", "subnormal") if key in row
        }
        changes = {key: found[index] for key, found in answer["probes"].items() if found is not None}
        if "stored" in row:
            kept["stored"] = row["stored"]
        outputs.append(
            kept | {"repeat": row["repeat"], "optimisation": row.get("optimisation"), "probes": changes}
        )
    return {"float64": float64, "options": answer["options"], "outputs": outputs}
