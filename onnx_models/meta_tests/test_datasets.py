"""Stored test data: by number, never by name; damaged, odd and unsupported files are told apart."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import ml_dtypes
import numpy as np
import onnx
import pytest
from onnx import TensorProto, numpy_helper

from onnx_models import datasets, pb_files, tensors
from onnx_models.archive import HostileArchive
from onnx_models.catalog import Model
from onnx_models.datasets import (
    StoredSet,
    convert,
    distrusted,
    find_sets,
    is_test_data,
    obtain,
    stored_sets,
)
from onnx_models.inputs import Port, UnsupportedInput
from onnx_models.meta_tests.hub_server import HubServer, served
from onnx_models.stored_sets import DataSetError
from onnx_models.tensors import Array

ONE = np.arange(6, dtype=np.float32).reshape(2, 3)


def pb(array: Array, name: str = "misleading") -> bytes:
    made: bytes = numpy_helper.from_array(array, name).SerializeToString()
    return made


IN_A_CHILD = datasets.convert_files


@pytest.fixture(autouse=True)
def without_a_child(monkeypatch: pytest.MonkeyPatch) -> None:
    """The child's own function in its place: it costs half a second a set."""
    monkeypatch.setattr(datasets, "convert_files", pb_files.convert_files)


def stored(folder: Path, **files: bytes) -> StoredSet:
    """A set on disk; `input_0=...` becomes `input_0.pb`."""
    path = folder / "test_data_set_0"
    path.mkdir(parents=True)
    for name, content in files.items():
        (path / f"{name}.pb").write_bytes(content)
    return StoredSet(name=path.name, index=0, path=path)


def port(name: str = "x", dtype: str = "float32", rank: int | None = 2, kind: str = "tensor") -> Port:
    return Port(name=name, dtype=dtype, shape=None if rank is None else (None,) * rank, kind=kind)


@pytest.fixture
def out(tmp_path: Path) -> Path:
    return tmp_path / "out" / "set"


def test_files_are_matched_by_number_whatever_their_names(tmp_path: Path, out: Path) -> None:
    data = stored(tmp_path, input_0=pb(ONE, "second"), input_1=pb(ONE + 1, "first"), output_0=pb(ONE * 2, ""))
    made = convert(data, out, inputs=[port("first"), port("second")], outputs=[port("y")])
    assert [tensors.read(t)[0, 0] for t in made.inputs] == [0, 1]
    assert np.array_equal(tensors.read(made.outputs[0]), ONE * 2)
    assert [t.path for t in made.inputs] == [out / "input" / "0.npy", out / "input" / "1.npy"]
    assert made.notes == ()
    assert [p.name for p in out.parent.iterdir()] == ["set"]


def test_numbers_sort_as_numbers(tmp_path: Path, out: Path) -> None:
    data = stored(tmp_path, **{f"input_{k}": pb(np.array([k])) for k in range(13)})
    made = convert(data, out, inputs=[port(f"i{k}", "int64", 1) for k in range(13)])
    assert [int(tensors.read(t)[0]) for t in made.inputs] == list(range(13))


def test_sets_sort_as_numbers_and_are_found_in_the_models_folder(tmp_path: Path) -> None:
    for k in (10, 9, 0):
        (tmp_path / "mnist" / f"test_data_set_{k}").mkdir(parents=True)
    for k in (2, 11):
        (tmp_path / "mnist" / f"test_data_{k}.npz").write_bytes(b"")
    (tmp_path / "mnist" / "test_data_set_x").mkdir()
    names = [found.name for found in find_sets(tmp_path)]
    assert names == ["test_data_set_0", "test_data_set_9", "test_data_set_10", "test_data_2", "test_data_11"]


def test_a_set_number_that_is_there_twice_is_an_error(tmp_path: Path) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder / "test_data_set_0").mkdir(parents=True)
    with pytest.raises(DataSetError, match="data set 0 is there twice"):
        find_sets(tmp_path)


def test_a_set_that_starts_at_one_is_taken_in_order(tmp_path: Path, out: Path) -> None:
    made = convert(stored(tmp_path, input_1=pb(ONE)), out, inputs=[port()])
    assert np.array_equal(tensors.read(made.inputs[0]), ONE)
    assert made.notes == ("test_data_set_0 numbers its inputs from 1, taken as from 0",)


def test_a_gap_is_an_error(tmp_path: Path, out: Path) -> None:
    with pytest.raises(DataSetError, match=r"input_1\.pb is missing"):
        convert(stored(tmp_path, input_0=pb(ONE), input_2=pb(ONE)), out)
    assert not out.parent.exists() or not list(out.parent.iterdir())


def test_one_number_in_two_files_is_an_error(tmp_path: Path, out: Path) -> None:
    with pytest.raises(DataSetError, match="input 0 is there twice"):
        convert(stored(tmp_path, input_0=pb(ONE), input_00=pb(ONE)), out)


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int8", "uint16", "int32", "int64", "float16", "float64", "bfloat16"]
)
@pytest.mark.parametrize("shape", [(), (0, 3), (2, 3)])
def test_every_type_and_shape_survives(tmp_path: Path, out: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.ones(shape, tensors.dtype_named(dtype))
    made = convert(stored(tmp_path, input_0=pb(array)), out, inputs=[port(dtype=dtype, rank=len(shape))])
    back = tensors.read(made.inputs[0])
    assert (back.dtype, back.shape) == (array.dtype, shape)
    assert back.tobytes() == array.tobytes()


def test_values_in_typed_fields_are_read(tmp_path: Path, out: Path) -> None:
    proto = onnx.helper.make_tensor("x", TensorProto.FLOAT, [2], [1.5, 2.5])
    assert not proto.HasField("raw_data")
    made = convert(stored(tmp_path, input_0=proto.SerializeToString()), out)
    assert tensors.read(made.inputs[0]).tolist() == [1.5, 2.5]


SEQUENCE = numpy_helper.from_list([ONE], name="abc").SerializeToString()
OPTIONAL = numpy_helper.from_optional(ONE, name="abc").SerializeToString()
STRINGS = numpy_helper.from_array(np.array(["a"], dtype=object)).SerializeToString()
INT4 = numpy_helper.from_array(np.ones(4, ml_dtypes.int4)).SerializeToString()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (SEQUENCE, "input_0.pb holds a sequence or an optional"),
        (OPTIONAL, "input_0.pb holds a sequence or an optional"),
        (STRINGS, "input_0.pb holds strings"),
        (INT4, "element type int4"),
    ],
    ids=["sequence", "optional", "strings", "int4"],
)
def test_what_cannot_be_fed_is_unsupported(tmp_path: Path, out: Path, content: bytes, words: str) -> None:
    with pytest.raises(UnsupportedInput, match=words):
        convert(stored(tmp_path, input_0=content), out)


def test_unsupported_outputs_are_only_noted(tmp_path: Path, out: Path) -> None:
    made = convert(stored(tmp_path, input_0=pb(ONE), output_0=SEQUENCE), out, outputs=[port()])
    assert made.outputs == ()
    assert made.notes == (
        "stored outputs not used: output_0.pb holds a sequence or an optional, not a tensor",
    )


def proto(**fields: object) -> bytes:
    made: bytes = TensorProto(**fields).SerializeToString()  # type: ignore[arg-type]
    return made


EXTERNAL = TensorProto(dims=[1], data_type=1, data_location=TensorProto.EXTERNAL)
EXTERNAL.external_data.add(key="location", value="/etc/passwd")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "expected a tensor, found element type 0"),
        (b"not a protobuf", "expected a TensorProto, found damaged data"),
        (b"version https://git-lfs.github.com/spec/v1\n", "expected a TensorProto, found damaged data"),
        (pb(np.ones(100))[:-9], "expected a TensorProto, found damaged data"),
        (proto(dims=[2, 3], data_type=1, raw_data=bytes(20)), "expected 24 bytes for shape 2x3, found 20"),
        (proto(dims=[2, 3], data_type=1), "damaged"),
        (proto(dims=[2, 3], data_type=1, float_data=[1.0]), "damaged"),
        (proto(dims=[-1], data_type=1, raw_data=bytes(4)), "its shape is .-1."),
        (proto(dims=[1 << 40, 1 << 40], data_type=1), "its shape is"),
        (proto(dims=[1], data_type=99, raw_data=b"x"), "element type 99"),
        (EXTERNAL.SerializeToString(), "must hold its own data"),
    ],
    ids=[
        "empty",
        "text",
        "pointer",
        "cut",
        "short",
        "no-data",
        "few",
        "negative",
        "huge",
        "type",
        "external",
    ],
)
def test_damaged_files_are_named(tmp_path: Path, out: Path, content: bytes, words: str) -> None:
    with pytest.raises(DataSetError, match=words) as caught:
        convert(stored(tmp_path, input_0=content), out)
    assert "input_0.pb" in str(caught.value)
    assert not out.exists()


@pytest.mark.parametrize(
    ("ports", "words"),
    [
        ([port(), port()], "holds 1 inputs, the model has 2"),
        ([port(dtype="int64")], r"input 0 \('x'\): expected int64, found float32"),
        ([port(rank=4)], r"expected rank 4, found \[2, 3\]"),
        ([port(kind="sequence")], "the model has a sequence here"),
    ],
)
def test_inputs_that_do_not_fit_the_model_are_an_error(
    tmp_path: Path, out: Path, ports: list[Port], words: str
) -> None:
    data = stored(tmp_path, input_0=pb(ONE), output_0=pb(ONE))
    with pytest.raises(DataSetError, match=words):
        convert(data, out, inputs=ports)
    made = convert(data, out, inputs=[port(rank=None)], outputs=ports)
    assert made.outputs == ()
    assert made.notes[0].startswith("stored outputs not used")


def test_npz_sets_of_old_archives(tmp_path: Path, out: Path) -> None:
    np.savez(tmp_path / "test_data_3.npz", inputs=np.stack([ONE, ONE + 1]), outputs=[ONE])
    (found,) = find_sets(tmp_path)
    made = convert(found, out, inputs=[port(), port()], outputs=[port()])
    assert (made.name, made.index) == ("test_data_3", 3)
    assert np.array_equal(tensors.read(made.inputs[1]), ONE + 1)


def test_npz_files_that_are_refused(tmp_path: Path, out: Path) -> None:
    path = tmp_path / "test_data_0.npz"
    ragged = np.empty(2, object)
    ragged[:] = [ONE, ONE[0]]
    cases = (("need a pickle", "inputs", ragged), ("no array 'inputs'", "x", ONE))
    for words, name, array in cases:
        np.savez(path, allow_pickle=True, **{name: array})
        with pytest.raises(DataSetError, match=words):
            convert(find_sets(tmp_path)[0], out)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(DataSetError, match="cannot be read"):
        convert(find_sets(tmp_path)[0], out)


@pytest.mark.parametrize("content", [pb(ONE), b"damaged!"], ids=["good", "damaged"])
def test_a_set_is_converted_by_a_child(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(datasets, "convert_files", IN_A_CHILD)
    monkeypatch.setattr(pb_files, "convert_files", None)
    data = stored(tmp_path, input_0=content)
    if content == pb(ONE):
        assert np.array_equal(tensors.read(convert(data, out).inputs[0]), ONE)
    else:
        with pytest.raises(DataSetError, match=r"input_0\.pb: expected a TensorProto, found damaged data"):
            convert(data, out)


def test_a_converted_set_is_used_again(tmp_path: Path, out: Path) -> None:
    data = stored(tmp_path, input_0=pb(ONE))
    first = convert(data, out)
    (data.path / "input_0.pb").write_bytes(b"")
    assert convert(data, out) == first


def test_what_the_catalogue_says_against_a_set(tmp_path: Path) -> None:
    data = StoredSet(name="test_data_set_1", index=1, path=tmp_path)
    bad: list[dict[str, object]] = [
        {"set": 1, "part": "inputs", "why": "numbered from 1"},
        {"set": "*", "part": "outputs", "why": "made with VNNI"},
        {"set": 2, "part": "inputs", "why": "no matter"},
    ]
    assert distrusted(bad, data) == {"inputs": "numbered from 1", "outputs": "made with VNNI"}


@pytest.mark.parametrize(
    ("member", "wanted"),
    [
        ("mnist/test_data_set_0/input_0.pb", True),
        ("test_data_set_10/output_3.pb", True),
        ("mnist/test_data_0.npz", True),
        ("mnist/model.onnx", False),
        ("mnist/test_data_set_0/._input_0.pb", False),
        ("input_0.pb", False),
    ],
)
def test_only_test_data_is_unpacked(member: str, wanted: bool) -> None:
    assert is_test_data(member) == wanted


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with served(tmp_path / "served") as running:
        monkeypatch.setenv("ONNX_MODELS_MEDIA_ENDPOINT", running.media)
        yield running


def packed(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as out:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            out.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


def recorded(
    server: HubServer, members: dict[str, bytes], *, bad: tuple[dict[str, object], ...] = ()
) -> Model:
    """A model whose test data archive, with these members, lies on the server."""
    path, content = "validated/mnist-12.tar.gz", packed(**members)
    test_data = {"path": path, "sha256": server.add(path, content), "bytes": len(content), "bad": bad}
    return Model(collection="zoo", path="mnist-12", source={"type": "hub"}, test_data=test_data)


def test_sets_are_fetched_unpacked_and_kept(server: HubServer, tmp_path: Path) -> None:
    members = {"mnist/model.onnx": b"weights", "mnist/test_data_set_0/input_0.pb": pb(ONE)}
    model = recorded(server, members)
    for _ in range(2):
        (found,) = obtain(model, tmp_path / "stored", cache=tmp_path / "cache")
        assert found.name == "test_data_set_0"
    assert server.bodies("validated/mnist-12.tar.gz") == 1
    assert not list((tmp_path / "stored").rglob("*.onnx"))


def test_a_model_without_test_data_has_no_sets(tmp_path: Path) -> None:
    model = Model(collection="zoo", path="x", source={"type": "hub"})
    assert stored_sets(model, tmp_path, cache=tmp_path, inputs=[], outputs=[]) == ((), ())


def test_sets_that_cannot_be_trusted_are_left_out_and_named(server: HubServer, tmp_path: Path) -> None:
    members = {f"m/test_data_set_{k}/{part}_0.pb": pb(ONE) for k in range(4) for part in ("input", "output")}
    members["m/test_data_set_2/input_0.pb"] = b"damaged!"
    bad: tuple[dict[str, object], ...] = (
        {"set": 1, "part": "inputs", "why": "wrong names"},
        {"set": 3, "part": "outputs", "why": "made with VNNI"},
    )
    model = recorded(server, members, bad=bad)
    folder = tmp_path / "stored"
    used, notes = stored_sets(model, folder, cache=tmp_path / "cache", inputs=[port()], outputs=[port()])
    assert [(made.name, len(made.outputs)) for made in used] == [
        ("test_data_set_0", 1),
        ("test_data_set_3", 0),
    ]
    assert used[1].notes == ("stored outputs not used: made with VNNI",)
    assert notes[0] == "test_data_set_1 is not used: wrong names"
    assert notes[1].startswith("test_data_set_2 is not used: ")
    assert notes[1].endswith("found damaged data: fetch its archive again")


@pytest.mark.parametrize(
    ("members", "error", "words"),
    [
        ({"mnist/model.onnx": b"x"}, DataSetError, "holds no test_data_set_N"),
        ({"../evil/test_data_set_0/input_0.pb": b"x"}, HostileArchive, "leads out of its folder"),
    ],
)
def test_archives_without_good_sets(
    server: HubServer, tmp_path: Path, members: dict[str, bytes], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        obtain(recorded(server, members), tmp_path / "stored", cache=tmp_path / "cache")
