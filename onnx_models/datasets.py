"""The stored test data of the zoo: `test_data_set_N/input_K.pb`, `output_K.pb` and `test_data_N.npz`.

Files are matched to the graph's inputs and outputs by their number and never by
the names inside, which are wrong or missing in 66 sets (onnx/models#431).
Numbers sort as numbers: `input_10` comes after `input_9`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx_models import tools
from onnx_models.archive import extract
from onnx_models.catalog import Model
from onnx_models.hub import fetch_file
from onnx_models.inputs import Port, UnsupportedInput
from onnx_models.stored_sets import MANIFEST, MEMBER, PARTS, DataSetError
from onnx_models.tensors import TensorFile
from onnx_models.zoo import stored_data_file

CHILD_SECONDS = 600.0

_SET = re.compile(r"test_data_set_(\d+)")
_NPZ = re.compile(r"test_data_(\d+)\.npz")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredSet:
    """A data set as it lies on disk: a folder of .pb files, or one .npz file; `index` is its number."""

    name: str
    index: int
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvertedSet:
    """A data set as tensor files in the order of the graph.

    `outputs` are what another machine computed once; empty when there are none
    that could be compared, and then `notes` says why.
    """

    name: str
    index: int
    inputs: tuple[TensorFile, ...]
    outputs: tuple[TensorFile, ...]
    notes: tuple[str, ...] = ()


def is_test_data(member: str) -> bool:
    """Whether an archive's member belongs to a data set; the model file, fetched already, does not."""
    parts = member.split("/")
    in_set = len(parts) > 1 and _SET.fullmatch(parts[-2]) and MEMBER.fullmatch(parts[-1])
    return bool(in_set or _NPZ.fullmatch(parts[-1]))


def stored_sets(
    model: Model,
    folder: Path,
    *,
    cache: Path,
    inputs: Sequence[Port],
    outputs: Sequence[Port],
    offline: bool = False,
) -> tuple[tuple[ConvertedSet, ...], tuple[str, ...]]:
    """The stored sets of a model that can be fed to it, and what was left out and why.

    A set that the catalogue distrusts, that is damaged or does not fit is left
    out with a note; distrusted outputs are dropped with a note in their set.

    Args:
        model: one without `test_data` has no stored sets.
        folder: unpacked and converted here, once.
        cache: the cache folder.
        inputs: the graph inputs that are not initializers, in order.
        outputs: the graph outputs, in order.
        offline: as for `hub.fetch_file`.

    Raises:
        SourceError, HostileArchive, DataSetError: as `obtain`.
        UnsupportedInput: as `convert`.
    """
    usable, notes = [], []
    for stored in obtain(model, folder / "archive", cache=cache, offline=offline):
        against = distrusted(model.test_data.get("bad", ()), stored)
        if "inputs" in against:
            notes.append(f"{stored.name} is not used: {against['inputs']}")
            continue
        try:
            made = convert(stored, folder / stored.name, inputs=inputs, outputs=outputs)
        except DataSetError as error:
            notes.append(f"{stored.name} is not used: {error}")
            continue
        if "outputs" in against and made.outputs:
            note = f"stored outputs not used: {against['outputs']}"
            made = replace(made, outputs=(), notes=(*made.notes, note))
        usable.append(made)
    return tuple(usable), tuple(notes)


def obtain(model: Model, folder: Path, *, cache: Path, offline: bool = False) -> tuple[StoredSet, ...]:
    """The stored sets of a model, fetched and unpacked into `folder` unless they are there.

    Raises:
        SourceError: the archive cannot be had.
        HostileArchive: it is refused.
        DataSetError: it holds no data set.
    """
    spec = stored_data_file(model)
    if spec is None:
        return ()
    if not folder.is_dir():
        extract(fetch_file(spec, cache=cache, offline=offline), folder, keep=is_test_data)
    found = find_sets(folder)
    if not found:
        raise DataSetError(f"{spec.path}: holds no test_data_set_N and no test_data_N.npz")
    return found


def find_sets(folder: Path) -> tuple[StoredSet, ...]:
    """The data sets in a folder or one level below, by number, folders before .npz files."""
    found: dict[tuple[bool, int], StoredSet] = {}
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        match, is_npz = _SET.fullmatch(path.name), False
        if not match or not path.is_dir():
            match, is_npz = _NPZ.fullmatch(path.name), True
        if not match or path.is_symlink():
            continue
        index = int(match[1])
        if (is_npz, index) in found:
            other = found[is_npz, index].path
            raise DataSetError(f"{path}: data set {index} is there twice, also as {other}: remove one")
        found[is_npz, index] = StoredSet(name=path.name.removesuffix(".npz"), index=index, path=path)
    return tuple(found[key] for key in sorted(found))


def distrusted(bad: Iterable[Mapping[str, Any]], stored: StoredSet) -> dict[str, str]:
    """What the catalogue says against a set: `inputs` and `outputs`, each with the reason."""
    rows = [row for row in bad if str(row.get("set", "*")) in ("*", str(stored.index))]
    return {str(row["part"]): str(row["why"]) for row in rows}


def convert(
    stored: StoredSet,
    destination: Path,
    *,
    inputs: Sequence[Port] | None = None,
    outputs: Sequence[Port] | None = None,
) -> ConvertedSet:
    """A stored set as tensor files below `destination`, made once, checked against the model.

    Args:
        stored: the set.
        destination: folder to make, with `input/K.npy` and `output/K.npy`; made whole or not at all.
        inputs: the graph inputs that are not initializers, in order; None checks nothing.
        outputs: the graph outputs, in order.

    Raises:
        DataSetError: a file is damaged or missing, or number, type or rank of the inputs are not the model's.
        UnsupportedInput: an input is no tensor, or of an element type without a file form.
    """
    if not (destination / MANIFEST).is_file():
        convert_files(stored.path, destination)
    manifest = json.loads((destination / MANIFEST).read_text(encoding="utf-8"))
    given = {part: _tensor_files(manifest[part], part, destination) for part in PARTS}
    notes = [str(note) for note in manifest["notes"]]
    for row in manifest["input"]:
        if "unsupported" in row:
            raise UnsupportedInput(f"{stored.path}: {row['unsupported']}")
    problem = _mismatch(given["input"], inputs, "inputs", stored)
    if problem:
        raise DataSetError(problem)
    problem = next((row["unsupported"] for row in manifest["output"] if "unsupported" in row), "")
    problem = problem or _mismatch(given["output"], outputs, "outputs", stored)
    if problem:
        notes.append(f"stored outputs not used: {problem}")
    return ConvertedSet(
        name=stored.name,
        index=stored.index,
        inputs=given["input"],
        outputs=() if problem else given["output"],
        notes=tuple(notes),
    )


def _mismatch(files: Sequence[TensorFile], ports: Sequence[Port] | None, part: str, stored: StoredSet) -> str:
    if ports is None:
        return ""
    if len(files) != len(ports):
        return f"{stored.path}: holds {len(files)} {part}, the model has {len(ports)}: use another set"
    for k, (file, port) in enumerate(zip(files, ports, strict=True)):
        where = f"{stored.path}: {part[:-1]} {k} ({port.name!r})"
        if port.kind != "tensor":
            return f"{where}: the model has a {port.kind} here, found a tensor"
        if file.dtype != port.dtype:
            return f"{where}: expected {port.dtype}, found {file.dtype}: use another set"
        if port.shape is not None and len(file.shape) != len(port.shape):
            return f"{where}: expected rank {len(port.shape)}, found {list(file.shape)}: use another set"
    return ""


def _tensor_files(rows: Sequence[Mapping[str, Any]], part: str, folder: Path) -> tuple[TensorFile, ...]:
    return tuple(
        TensorFile(
            name=f"{part}_{k}", dtype=row["dtype"], shape=tuple(row["shape"]), path=folder / row["file"]
        )
        for k, row in enumerate(rows)
        if "file" in row
    )


def convert_files(source: Path, destination: Path) -> None:
    """`pb_files.convert_files` in a child process: only children load onnx and hold tensors.

    Raises:
        DataSetError: as there.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [sys.executable, "-m", "onnx_models.pb_files", source, destination]
    log = destination.with_name(f"{destination.name}.log")
    done = tools.run(command, log=log, timeout=CHILD_SECONDS)
    if not done.ok:
        raise DataSetError(
            done.first_error().removeprefix("error: ") or f"{source}: cannot be converted, see {log}"
        )
