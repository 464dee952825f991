"""The stored test data of the zoo: `test_data_set_N/input_K.pb`, `output_K.pb` and `test_data_N.npz`.

Files are matched to the graph's inputs and outputs by their number and never by
the names inside, which are wrong or missing in 66 sets (onnx/models#431).
Numbers sort as numbers: `input_10` comes after `input_9`.

    python -m onnx_models.datasets SET FOLDER     converts one set, in a process of its own
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import TensorProto, numpy_helper

from onnx_models import tensors, tools
from onnx_models.archive import extract
from onnx_models.hub import HubFile, fetch_file
from onnx_models.inputs import Port, UnsupportedInput
from onnx_models.outcomes import SuiteError
from onnx_models.tensors import Array, TensorFile

IN_PROCESS = 32 << 20
"""Bytes of a set's files up to which it is converted here; a larger one in a child, as memory is tight."""

LARGEST = 2 << 30
"""Bytes that one tensor file may have: the limit of protobuf messages."""

CHILD_SECONDS = 600.0

_MANIFEST = "set.json"
_SET = re.compile(r"test_data_set_(\d+)")
_NPZ = re.compile(r"test_data_(\d+)\.npz")
_MEMBER = re.compile(r"(input|output)_(\d+)\.pb")
_PARTS = ("input", "output")


class DataSetError(SuiteError):
    """A stored data set is damaged or does not fit the model."""


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
    in_set = len(parts) > 1 and _SET.fullmatch(parts[-2]) and _MEMBER.fullmatch(parts[-1])
    return bool(in_set or _NPZ.fullmatch(parts[-1]))


def obtain(
    test_data: Mapping[str, Any],
    folder: Path,
    *,
    cache: Path,
    offline: bool = False,
    mirrors: Sequence[str] = (),
) -> tuple[StoredSet, ...]:
    """The stored sets of a model, fetched and unpacked into `folder` unless they are there.

    Args:
        test_data: `Model.test_data`: `path`, `sha256` and `bytes` of the archive.
        folder: where the sets are unpacked; made whole or not at all.
        cache: the cache folder.
        offline: as for `hub.fetch_file`.
        mirrors: as for `hub.fetch_file`.

    Raises:
        SourceError: the archive cannot be had.
        HostileArchive: it is refused.
        DataSetError: it holds no data set.
    """
    if not folder.is_dir():
        spec = HubFile(
            path=str(test_data["path"]),
            sha256=str(test_data["sha256"]),
            bytes=int(test_data.get("bytes", 0)),
        )
        archive = fetch_file(spec, cache=cache, offline=offline, mirrors=mirrors)
        extract(archive, folder, keep=is_test_data)
    found = find_sets(folder)
    if not found:
        raise DataSetError(f"{test_data['path']}: holds no test_data_set_N and no test_data_N.npz")
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
    if not (destination / _MANIFEST).is_file():
        files = [stored.path] if stored.path.is_file() else [*stored.path.iterdir()]
        if sum(file.stat().st_size for file in files) <= IN_PROCESS:
            _convert(stored.path, destination)
        else:
            _convert_in_child(stored.path, destination)
    manifest = json.loads((destination / _MANIFEST).read_text(encoding="utf-8"))
    given = {part: _tensor_files(manifest[part], part, destination) for part in _PARTS}
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


def _convert_in_child(source: Path, destination: Path) -> None:
    destination.parent.mkdir(parents=True, exist_ok=True)
    command: list[str | Path] = [sys.executable, "-m", "onnx_models.datasets", source, destination]
    log = destination.with_name(f"{destination.name}.log")
    done = tools.run(command, log=log, timeout=CHILD_SECONDS)
    if not done.ok:
        raise DataSetError(
            done.first_error().removeprefix("error: ") or f"{source}: cannot be converted, see {log}"
        )


def _convert(source: Path, destination: Path) -> None:
    """Write every tensor and the manifest into a folder that then takes its name."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        inner = scratch / "set"
        inner.mkdir()
        manifest = _convert_npz(source, inner) if source.is_file() else _convert_folder(source, inner)
        (inner / _MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        if not (destination / _MANIFEST).is_file():
            shutil.rmtree(destination, ignore_errors=True)
            inner.rename(destination)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _convert_folder(source: Path, target: Path) -> dict[str, Any]:
    numbered: dict[str, dict[int, Path]] = {part: {} for part in _PARTS}
    for file in source.iterdir():
        match = _MEMBER.fullmatch(file.name)
        if match and numbered[match[1]].setdefault(int(match[2]), file) != file:
            raise DataSetError(f"{file}: {match[1]} {int(match[2])} is there twice: remove one")
    manifest: dict[str, Any] = {"notes": []}
    for part in _PARTS:
        numbers = sorted(numbered[part])
        if numbers and numbers != list(range(numbers[0], numbers[0] + len(numbers))):
            missing = next(n for n in range(numbers[0], numbers[-1]) if n not in numbered[part])
            raise DataSetError(f"{source}: {part}_{missing}.pb is missing: unpack the archive again")
        if numbers and numbers[0]:
            # ssd_mobilenet_v1_10, test_data_set_1 (onnx-mlir#1490): the order stands for the position.
            manifest["notes"].append(f"{source.name} numbers its {part}s from {numbers[0]}, taken as from 0")
        rows = [_store(numbered[part][n], part, k, target) for k, n in enumerate(numbers)]
        manifest[part] = rows
    if not manifest["input"]:
        raise DataSetError(f"{source}: holds no input_K.pb: unpack the archive again")
    return manifest


def _store(file: Path, part: str, k: int, target: Path) -> dict[str, Any]:
    array = read_pb(file)
    return {"unsupported": array} if isinstance(array, str) else _save(array, part, k, target)


def _save(array: Array, part: str, k: int, target: Path) -> dict[str, Any]:
    dtype = array.dtype.name
    if dtype not in tensors.known():
        return {"unsupported": f"{part} {k} has the element type {dtype}, which has no file form here"}
    name = f"{part}/{k}{tensors.suffix(dtype)}"
    tensors.write(array, target / name)
    return {"file": name, "dtype": dtype, "shape": list(array.shape)}


def read_pb(file: Path) -> Array | str:
    """The array of a TensorProto file, or what it holds instead that the suite does not feed.

    Raises:
        DataSetError: the file is damaged: no TensorProto, or not as long as its own shape says.
    """
    again = "fetch its archive again"
    size = file.stat().st_size
    if size > LARGEST:
        raise DataSetError(f"{file}: {size:,} bytes, more than a tensor file can have: {again}")
    proto = TensorProto()
    try:
        proto.ParseFromString(file.read_bytes())
    except DecodeError:
        raise DataSetError(f"{file}: expected a TensorProto, found damaged data: {again}") from None
    if proto.HasField("segment"):
        # Field 3 holds the tensors of a SequenceProto or OptionalProto; no writer of tensors uses segments.
        return f"{file.name} holds a sequence or an optional, not a tensor"
    if proto.data_type == TensorProto.STRING:
        return f"{file.name} holds strings"
    if not size or proto.data_type not in TensorProto.DataType.values() or not proto.data_type:
        raise DataSetError(f"{file}: expected a tensor, found element type {proto.data_type}: {again}")
    if proto.data_location == TensorProto.EXTERNAL or proto.external_data:
        raise DataSetError(f"{file}: refused: a stored tensor must hold its own data")
    _check_size(proto, file)
    try:
        array: Array = numpy_helper.to_array(proto)
    except (ValueError, TypeError, IndexError, MemoryError) as error:
        raise DataSetError(f"{file}: damaged ({error}): {again}") from None
    return array


def _check_size(proto: TensorProto, file: Path) -> None:
    elements = 1
    for dim in proto.dims:
        elements *= dim
    if min(proto.dims, default=0) < 0 or elements > LARGEST:
        raise DataSetError(f"{file}: damaged: its shape is {list(proto.dims)}: fetch its archive again")
    itemsize = onnx.helper.tensor_dtype_to_np_dtype(proto.data_type).itemsize
    packed = proto.data_type in (TensorProto.INT4, TensorProto.UINT4)
    if proto.HasField("raw_data") and not packed and len(proto.raw_data) != elements * itemsize:
        shape = "x".join(str(dim) for dim in proto.dims) or "scalar"
        raise DataSetError(
            f"{file}: damaged: expected {elements * itemsize:,} bytes for shape {shape}, "
            f"found {len(proto.raw_data):,}: fetch its archive again"
        )


def _convert_npz(source: Path, target: Path) -> dict[str, Any]:
    """Sets of 2017: `inputs` and `outputs`, each a list of arrays stacked along a first axis."""
    manifest: dict[str, Any] = {"notes": []}
    try:
        with zipfile.ZipFile(source) as members:
            unpacked = sum(info.file_size for info in members.infolist())
        if unpacked > LARGEST:
            raise DataSetError(f"{source}: refused: it unpacks to {unpacked:,} bytes")
        with np.load(source, allow_pickle=False) as arrays:
            for part in _PARTS:
                stacked = arrays[f"{part}s"] if f"{part}s" in arrays.files else ()
                manifest[part] = [
                    _save(np.asarray(array), part, k, target) for k, array in enumerate(stacked)
                ]
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        reason = "arrays of several shapes need a pickle" if "allow_pickle" in str(error) else error
        raise DataSetError(f"{source}: cannot be read ({reason}): use the .pb sets instead") from None
    if not manifest["input"]:
        raise DataSetError(f"{source}: holds no array 'inputs': use the .pb sets instead")
    return manifest


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert one set; the error, if any, is one line."""
    parser = argparse.ArgumentParser(prog="python -m onnx_models.datasets", description=__doc__)
    parser.add_argument("source", type=Path, help="test_data_set_N or test_data_N.npz")
    parser.add_argument("destination", type=Path, help="folder to make")
    options = parser.parse_args(arguments)
    try:
        _convert(options.source, options.destination)
    except SuiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
