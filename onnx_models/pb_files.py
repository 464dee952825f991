"""Tensors in the zoo's stored files, as tensor files of the suite.

python -m onnx_models.pb_files SET FOLDER     converts one set, in a process of its own
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto, numpy_helper

from onnx_models import tensors
from onnx_models.outcomes import SuiteError
from onnx_models.stored_sets import MANIFEST, MEMBER, PARTS, DataSetError
from onnx_models.tensors import Array

LARGEST = 2 << 30
"""Bytes that one tensor file may have: the limit of protobuf messages."""


def convert_files(source: Path, destination: Path) -> None:
    """Write every tensor and a manifest into a folder that then takes its name.

    Args:
        source: a folder `test_data_set_N` or a file `test_data_N.npz`.
        destination: gets `input/K.npy`, `output/K.npy` and `MANIFEST`, whose rows have
            `file`, `dtype` and `shape`, or `unsupported` with the reason.

    Raises:
        DataSetError: a file is damaged or missing; nothing is left.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{destination.name}-", dir=destination.parent))
    try:
        inner = scratch / "set"
        inner.mkdir()
        manifest = _convert_npz(source, inner) if source.is_file() else _convert_folder(source, inner)
        (inner / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        if not (destination / MANIFEST).is_file():
            shutil.rmtree(destination, ignore_errors=True)
            inner.rename(destination)
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def _convert_folder(source: Path, target: Path) -> dict[str, Any]:
    numbered: dict[str, dict[int, Path]] = {part: {} for part in PARTS}
    for file in source.iterdir():
        match = MEMBER.fullmatch(file.name)
        if match and numbered[match[1]].setdefault(int(match[2]), file) != file:
            raise DataSetError(f"{file}: {match[1]} {int(match[2])} is there twice: remove one")
    manifest: dict[str, Any] = {"notes": []}
    for part in PARTS:
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
            for part in PARTS:
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
    parser = argparse.ArgumentParser(
        prog="python -m onnx_models.pb_files", description="Convert one stored data set."
    )
    parser.add_argument("source", type=Path, help="test_data_set_N or test_data_N.npz")
    parser.add_argument("destination", type=Path, help="folder to make")
    options = parser.parse_args(arguments)
    try:
        convert_files(options.source, options.destination)
    except SuiteError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
