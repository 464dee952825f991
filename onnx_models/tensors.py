"""Tensors as files, in the two forms that `iree-run-module` reads and writes.

A tensor is a `.npy` file, except for the element types that the format does
not know (bfloat16, float8): those are raw little-endian `.bin` files whose
shape and type stand on the command line (IREE 3.13).
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np

from onnx_models.outcomes import SuiteError

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_NPY = ("bool", "float16", "float32", "float64", "complex64", "complex128")
_INTEGERS = tuple(f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64))

IREE_RAW: Mapping[str, str] = MappingProxyType(
    {
        "bfloat16": "bf16",
        "float8_e4m3fn": "f8E4M3FN",
        "float8_e4m3fnuz": "f8E4M3FNUZ",
        "float8_e5m2": "f8E5M2",
        "float8_e5m2fnuz": "f8E5M2FNUZ",
        "float8_e8m0fnu": "f8E8M0FNU",
    }
)
"""Element types without a `.npy` form: numpy name to IREE name."""

MMAP_FROM = 1 << 20
"""Files from this many bytes on are mapped, not read: the harness stays small."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorFile:
    """A tensor on disk: `dtype` is numpy's or ml_dtypes' name, `path` ends in `suffix(dtype)`."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    path: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputError:
    """Why a tool's output file holds no tensor; takes the array's place in a comparison."""

    message: str


def dtype_named(name: str) -> np.dtype[Any]:
    """The numpy dtype of a name, bfloat16 and float8 included.

    Raises:
        SuiteError: the suite has no file form for this element type.
    """
    if name in _NPY or name in _INTEGERS:
        return np.dtype(name)
    if name in IREE_RAW:
        raw: np.dtype[Any] = np.dtype(getattr(ml_dtypes, name))
        return raw
    raise SuiteError(f"element type {name!r} has no tensor file form here: use one of {', '.join(known())}")


def known() -> tuple[str, ...]:
    """Every element type with a file form."""
    return (*_NPY, *_INTEGERS, *IREE_RAW)


def suffix(dtype: str) -> str:
    """`.npy`, or `.bin` for an element type that .npy does not know."""
    return ".bin" if dtype in IREE_RAW else ".npy"


def write(array: Array, path: Path) -> None:
    """Write a tensor in C order and little-endian, as its `path`'s suffix says, at once or not at all."""
    native = array.dtype.newbyteorder("<") if array.dtype.kind in "iufc" else array.dtype
    plain = np.asarray(array, dtype=native, order="C")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with partial.open("wb") as file:
            if path.suffix == ".bin":
                file.write(plain.tobytes())
            else:
                np.save(file, plain, allow_pickle=False)
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def read(tensor: TensorFile) -> Array:
    """The array of a file that the suite wrote; a large one is mapped and read-only.

    Raises:
        SuiteError: the file is missing or is not the tensor that it should be.
    """
    try:
        if tensor.path.suffix == ".bin":
            flat: Array = np.fromfile(tensor.path, dtype=dtype_named(tensor.dtype))
            return flat.reshape(tensor.shape)
        array = load_npy(tensor.path)
    except (OSError, ValueError, EOFError) as error:
        raise SuiteError(f"{tensor.path}: not readable ({error}): delete its folder and run again") from None
    if (array.dtype.name, array.shape) != (tensor.dtype, tensor.shape):
        expected, found = f"{tensor.dtype}{list(tensor.shape)}", f"{array.dtype.name}{list(array.shape)}"
        raise SuiteError(
            f"{tensor.path}: expected {expected}, found {found}: delete its folder and run again"
        )
    return array


def load_npy(path: Path) -> Array:
    """Load a `.npy` file without pickles, mapped when it is large.

    Raises:
        OSError, ValueError, EOFError: as `numpy.load`; also for an .npz archive, and for a header
            that promises more than the file has.
    """
    _reject_promises(path)
    mode: Any = "r" if path.stat().st_size >= MMAP_FROM else None
    array = np.load(path, mmap_mode=mode, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise ValueError("an .npz archive, not one array")
    return array


def _reject_promises(path: Path) -> None:
    """Refuse an array whose header names more bytes than follow: they would be allocated first."""
    with path.open("rb") as file:
        try:
            version = np.lib.format.read_magic(file)
        except ValueError:
            return  # no .npy at all: numpy.load says what it is
        if version == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        elif version == (2, 0):
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)
        else:
            raise ValueError(f"an .npy file of version {version[0]}.{version[1]}")
        follow = path.stat().st_size - file.tell()
    promised = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and promised > follow:
        raise ValueError(f"its header promises {promised} bytes, {follow} follow")


def iree_flag(tensor: TensorFile, path_text: str) -> str:
    """The `--input=` flag of `iree-run-module`; `path_text` is the file's path as the tool shall see it."""
    if tensor.path.suffix != ".bin":
        return f"--input=@{path_text}"
    dims = "".join(f"{size}x" for size in tensor.shape)
    return f"--input={dims}{IREE_RAW[tensor.dtype]}=@{path_text}"


def read_iree_output(path: Path, declared_dtype: str, reference_shape: Sequence[int]) -> Array | OutputError:
    """Read what `iree-run-module` wrote, as the type that the model declares.

    HAL element types carry no sign, so unsigned outputs come back signed and
    bool may come back as a byte (IREE 3.13): the bytes are viewed as the
    declared type when the width is the same. Any other difference is left for
    the comparison to report. A `.bin` has no shape of its own: its byte count
    must be that of `reference_shape`.
    """
    if not path.is_file():
        return OutputError(message=f"{path.name} was not written")
    if path.suffix == ".bin":
        return _read_raw(path, declared_dtype, reference_shape)
    try:
        array = load_npy(path)
    except (OSError, ValueError, EOFError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        return OutputError(message=f"{path.name} is not a whole .npy file ({reason})")
    if array.dtype.kind not in "biufc":
        return OutputError(message=f"{path.name} holds {array.dtype}, not numbers")
    return _as_declared(array, declared_dtype)


def _read_raw(path: Path, declared_dtype: str, shape: Sequence[int]) -> Array | OutputError:
    dtype = dtype_named(declared_dtype)
    expected = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    if (found := path.stat().st_size) != expected:
        wanted = f"{declared_dtype}{list(shape)} needs {expected}"
        return OutputError(message=f"{path.name} has {found} bytes where {wanted}")
    flat: Array = np.fromfile(path, dtype=dtype)
    return flat.reshape(tuple(shape))


def _as_declared(array: Array, declared_dtype: str) -> Array:
    if array.dtype.name == declared_dtype:
        return array
    declared = dtype_named(declared_dtype)
    found = array.dtype
    if declared.kind in "iu" and found.kind in "iu" and declared.itemsize == found.itemsize:
        return array.view(declared)
    if (
        declared.kind == "b"
        and found.kind in "iu"
        and found.itemsize == 1
        and bool(np.all((array == 0) | (array == 1)))
    ):
        return array.view(np.bool_)
    return array
