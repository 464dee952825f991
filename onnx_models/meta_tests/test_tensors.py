"""Tensor files: the forms iree-run-module takes and gives, and what is wrong with a bad one."""

from __future__ import annotations

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from onnx_models import tensors
from onnx_models.outcomes import SuiteError
from onnx_models.tensors import OutputError, TensorFile


def _file(array: tensors.Array, folder: Path) -> TensorFile:
    path = folder / f"0{tensors.suffix(array.dtype.name)}"
    tensors.write(array, path)
    return TensorFile(name="x", dtype=array.dtype.name, shape=array.shape, path=path)


@pytest.mark.parametrize("dtype", tensors.known())
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_element_type_comes_back_as_written(dtype: str, shape: tuple[int, ...], tmp_path: Path) -> None:
    array = np.ones(shape).astype(tensors.dtype_named(dtype))
    file = _file(array, tmp_path)
    found = tensors.read(file)
    assert (found.dtype, found.shape, found.tobytes()) == (array.dtype, shape, array.tobytes())
    again = tensors.read_iree_output(file.path, dtype, shape)
    assert isinstance(again, np.ndarray)
    assert again.dtype == array.dtype
    assert [p.name for p in tmp_path.iterdir()] == [file.path.name]


def test_a_large_file_is_mapped_and_equal(tmp_path: Path) -> None:
    array = np.arange(400_000, dtype=np.float32)
    found = tensors.read(_file(array, tmp_path))
    assert isinstance(found, np.memmap)
    assert np.array_equal(found, array)


def test_fortran_and_big_endian_arrays_are_written_plainly(tmp_path: Path) -> None:
    array = np.asfortranarray(np.arange(6, dtype=">f4").reshape(2, 3))
    tensors.write(array, tmp_path / "0.npy")
    header = (tmp_path / "0.npy").read_bytes()[:128]
    assert b"'<f4'" in header
    assert b"'fortran_order': False" in header
    assert np.array_equal(np.load(tmp_path / "0.npy"), array)


def test_flags_name_the_type_only_where_npy_cannot(tmp_path: Path) -> None:
    plain = _file(np.zeros((1, 2), np.float32), tmp_path)
    assert tensors.iree_flag(plain, "a b.npy") == "--input=@a b.npy"
    raw = _file(np.zeros((1, 2), ml_dtypes.bfloat16), tmp_path)
    assert tensors.iree_flag(raw, "x.bin") == "--input=1x2xbf16=@x.bin"
    scalar = _file(np.zeros((), ml_dtypes.float8_e4m3fn), tmp_path)
    assert tensors.iree_flag(scalar, "x.bin") == "--input=f8E4M3FN=@x.bin"


def test_unsigned_outputs_that_come_back_signed_are_viewed(tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.array([-1, 1], np.int8))
    found = tensors.read_iree_output(tmp_path / "0.npy", "uint8", (2,))
    assert isinstance(found, np.ndarray)
    assert found.dtype == np.uint8
    assert found.tolist() == [255, 1]


def test_a_bool_that_comes_back_as_bytes_is_viewed_only_if_it_is_one(tmp_path: Path) -> None:
    for values, dtype in (([0, 1], "bool"), ([0, 2], "int8")):
        np.save(tmp_path / "0.npy", np.array(values, np.int8))
        found = tensors.read_iree_output(tmp_path / "0.npy", "bool", (2,))
        assert isinstance(found, np.ndarray)
        assert found.dtype == dtype


@pytest.mark.parametrize("found", ["int16", "float32"])
def test_another_width_or_class_of_type_is_left_for_the_comparison(found: str, tmp_path: Path) -> None:
    np.save(tmp_path / "0.npy", np.zeros(2, found))
    array = tensors.read_iree_output(tmp_path / "0.npy", "uint8", (2,))
    assert isinstance(array, np.ndarray)
    assert array.dtype == found


def test_damaged_outputs_are_values_not_exceptions(tmp_path: Path) -> None:
    np.save(whole := tmp_path / "whole.npy", np.zeros((64, 64), np.float32))
    np.save(large := tmp_path / "large.npy", np.zeros(400_000, np.float32))
    np.save(tmp_path / "objects.npy", np.array([None]), allow_pickle=True)
    np.save(tmp_path / "text.npy", np.array(["a"]))
    (tmp_path / "empty.npy").touch()
    (tmp_path / "junk.npy").write_bytes(b"junk" * 99)
    (tmp_path / "cut.npy").write_bytes(whole.read_bytes()[:-1])
    (tmp_path / "cut-large.npy").write_bytes(large.read_bytes()[:-1])
    (tmp_path / "header.npy").write_bytes(whole.read_bytes()[:40])
    (tmp_path / "0.bin").write_bytes(b"123")
    names = [
        "empty.npy",
        "junk.npy",
        "cut.npy",
        "cut-large.npy",
        "header.npy",
        "objects.npy",
        "text.npy",
        "no.npy",
    ]
    for name in names:
        found = tensors.read_iree_output(tmp_path / name, "float32", (64, 64))
        assert isinstance(found, OutputError), name
        assert name in found.message
        assert "\n" not in found.message
    raw = tensors.read_iree_output(tmp_path / "0.bin", "bfloat16", (2,))
    assert raw == OutputError(message="0.bin has 3 bytes where bfloat16[2] needs 4")


def test_a_reference_file_that_changed_is_a_suite_error(tmp_path: Path) -> None:
    file = _file(np.zeros((2, 3), np.float32), tmp_path)
    np.save(file.path, np.zeros((3, 2), np.float32))
    with pytest.raises(SuiteError, match=r"expected float32\[2, 3\], found float32\[3, 2\]"):
        tensors.read(file)
    file.path.write_bytes(b"")
    with pytest.raises(SuiteError, match="not readable"):
        tensors.read(file)


def test_an_element_type_without_a_file_form_is_named() -> None:
    with pytest.raises(SuiteError, match="'int4'"):
        tensors.dtype_named("int4")
