"""Inputs: seeds, shapes, kinds, and every way in which facts can fail to fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_models import inputs, tensors
from onnx_models.catalog import INPUT_KINDS, InputFact, Model
from onnx_models.inputs import Port, UnsupportedInput, generate, plan
from onnx_models.outcomes import Kind, Stage, UsageError


def _model(*facts: InputFact, **dims: int) -> Model:
    return Model(collection="local", path="m", source={"type": "local"}, inputs=facts, dims=dims)


def _port(name: str, *shape: int | str | None, dtype: str = "float32") -> Port:
    return Port(name=name, dtype=dtype, shape=shape)


def _fact(name: str, kind: str, shape: tuple[int | str, ...] | None = None, **params: Any) -> InputFact:
    return InputFact(name=name, kind=kind, shape=shape, params=params)


def _arrays(model: Model, *ports: Port, set_index: int = 0) -> dict[str, tensors.Array]:
    planned = plan(model, ports, set_index=set_index)
    return {each.name: generate(each) for each in planned.inputs}


def test_values_depend_on_names_and_set_but_not_on_order_or_neighbours() -> None:
    a, b = _port("a", 8), _port("b", 8)
    both, reversed_, alone = _arrays(_model(), a, b), _arrays(_model(), b, a), _arrays(_model(), b)
    assert np.array_equal(both["b"], reversed_["b"])
    assert np.array_equal(both["b"], alone["b"])
    assert not np.array_equal(both["a"], both["b"])
    assert not np.array_equal(both["a"], _arrays(_model(), a, set_index=1)["a"])


def test_a_seed_is_the_same_on_every_machine() -> None:
    drawn = _arrays(_model(), _port("x", 3))["x"]
    assert [f"{value:.6f}" for value in drawn] == ["0.846533", "0.161742", "0.202394"]


@pytest.mark.parametrize("dtype", sorted(inputs.FEEDABLE))
@pytest.mark.parametrize("kind", sorted(set(INPUT_KINDS) - {"file", "sizes", "unsupported"}))
def test_every_kind_makes_every_element_type(kind: str, dtype: str) -> None:
    params: dict[str, dict[str, Any]] = {
        "ids": {"below": 5},
        "distances": {"below": 5},
        "constant": {"value": 1},
        "values": {"values": [1]},
    }
    model = _model(_fact("x", kind, **params.get(kind, {})))
    array = _arrays(model, _port("x", 4, 4, dtype=dtype))["x"]
    assert (array.dtype.name, array.shape) == (dtype, (4, 4))
    assert array.flags.c_contiguous
    assert np.isfinite(array.astype(np.float64)).all()


def test_kinds_do_what_their_names_say() -> None:
    model = _model(
        _fact("u", "uniform", low=2.0, high=3.0),
        _fact("n", "normal", mean=10.0, std=0.1),
        _fact("i", "ids", low=3, below=6),
        _fact("m", "mask", keep=0.75),
        _fact("c", "constant", value=7),
        _fact("v", "values", values=[[1, 2, 3]]),
        _fact("d", "distances", low=1, below=9),
        _fact("s", "sizes", of="u", axes=[1, 0]),
    )
    ports = [
        _port("u", 30, 40),
        _port("n", 500),
        _port("i", 300, dtype="int64"),
        _port("m", 2, 8, dtype="int64"),
    ]
    ports += [_port("c", 2), _port("v", 2, 3), _port("d", 5, 5, dtype="int64"), _port("s", 2, dtype="int64")]
    made = _arrays(model, *ports)
    assert made["u"].min() >= 2.0
    assert made["u"].max() <= 3.0
    assert made["u"].std() > 0.2
    assert abs(made["n"].mean() - 10.0) < 0.05
    assert set(made["i"].tolist()) == {3, 4, 5}
    assert made["m"].tolist() == [[1, 1, 1, 1, 1, 1, 0, 0]] * 2
    assert made["c"].tolist() == [7.0, 7.0]
    assert made["v"].tolist() == [[1.0, 2.0, 3.0]] * 2
    assert np.array_equal(made["d"], made["d"].T)
    assert set(np.diag(made["d"])) == {1}
    assert made["s"].tolist() == [40, 30]


def test_a_symbol_has_one_size_everywhere() -> None:
    a, b = _port("a", "N", 3), _port("b", 2, "N")
    planned = plan(_model(N=5), [a, b])
    assert [each.shape for each in planned.inputs] == [(5, 3), (2, 5)]
    assert not any("not bound" in note for note in planned.notes)
    by_fact = plan(_model(_fact("b", "uniform", (2, 7))), [a, b])
    assert [each.shape for each in by_fact.inputs] == [(7, 3), (2, 7)]
    with pytest.raises(UsageError, match=r"'N' is 5 elsewhere and 7 in input 'b'"):
        plan(_model(_fact("b", "uniform", (2, 7)), N=5), [a, b])


def test_a_fact_may_name_an_axis_that_the_file_does_not() -> None:
    model = _model(_fact("a", "uniform", ("L", 3)), _fact("b", "uniform", ("L",)), L=6)
    planned = plan(model, [_port("a", None, 3), _port("b", "rows")])
    assert [each.shape for each in planned.inputs] == [(6, 3), (6,)]


def test_an_unbound_dim_gets_a_stated_default() -> None:
    planned = plan(_model(), [_port("x", "N", None), Port(name="y", dtype="float32", shape=None)])
    assert [each.shape for each in planned.inputs] == [(1, 1), ()]
    assert "dim 'N' of input 'x' is not bound: 1 is used; bind it with --dim N=N" in planned.notes
    assert any("axis 1 of input 'x' has no size" in note for note in planned.notes)
    assert any("'y' has no shape" in note for note in planned.notes)


def test_a_default_range_is_stated() -> None:
    notes = plan(_model(), [_port("x", 2), _port("i", 2, dtype="int32")]).notes
    assert notes[0] == "input 'x' has no catalogue entry: uniform low -1.0, high 1.0 is used"
    assert notes[1] == "input 'i' has no catalogue entry: ids low 0, below 2 is used"


def test_a_model_without_inputs_has_an_empty_plan() -> None:
    assert plan(_model(), []).inputs == ()


@pytest.mark.parametrize(
    ("port", "text"),
    [
        (Port(name="s", dtype="string", shape=(1,)), "element type string"),
        (Port(name="s", dtype="complex64", shape=(1,)), "element type complex64"),
        (Port(name="s", dtype="int4", shape=(1,)), "element type int4"),
        (Port(name="s", dtype="", shape=None, kind="sequence"), "type sequence"),
        (Port(name="s", dtype="", shape=None, kind="optional"), "type optional"),
    ],
)
def test_what_cannot_be_fed_is_a_failure_of_its_own_kind(port: Port, text: str) -> None:
    with pytest.raises(UnsupportedInput, match=text) as caught:
        plan(_model(), [_port("x", 1), port])
    assert (caught.value.failure.stage, caught.value.failure.kind) == (Stage.IMPORT, Kind.UNSUPPORTED_INPUT)


@pytest.mark.parametrize(
    ("model", "text"),
    [
        (_model(_fact("z", "uniform")), r"no input 'z': the file's inputs are 'x', 'i'"),
        (_model(M=3), r"no dim 'M': the inputs' dims are 'N'"),
        (_model(N=-1), r"'N' is -1"),
        (_model(_fact("x", "uniform", (2, 3, 4))), r"'x': expected shape \[N,3\], found \[2,3,4\]"),
        (_model(_fact("x", "uniform", (2, 4))), r"expected shape \[N,3\], found \[2,4\]"),
        (_model(_fact("x", "uniform", (-2, 3))), "negative"),
        (_model(_fact("i", "sizes", of="y")), "no such input"),
    ],
)
def test_facts_that_do_not_fit_are_one_clear_line(model: Model, text: str) -> None:
    with pytest.raises(UsageError, match=text) as caught:
        plan(model, [_port("x", "N", 3), _port("i", 2, dtype="int8")])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "fact",
    [
        _fact("i", "ids", low=0, below=300),
        _fact("i", "ids", low=2, below=2),
        _fact("i", "values", values=[1, 2, 3]),
    ],
)
def test_ranges_that_do_not_fit_the_type_or_shape_are_refused(fact: InputFact) -> None:
    with pytest.raises(UsageError, match="'i'"):
        _arrays(_model(fact), _port("i", 2, 2, dtype="int8"))


def test_a_fact_may_name_its_input_by_position() -> None:
    model = _model(_fact("#1", "constant", value=3))
    assert _arrays(model, _port("x", 2), _port("y", 2))["y"].tolist() == [3.0, 3.0]
    with pytest.raises(UsageError, match="no input '#2'"):
        plan(_model(_fact("#2", "uniform")), [_port("x", 2)])
    with pytest.raises(UsageError, match="'x' has two entries"):
        plan(_model(_fact("#0", "uniform"), _fact("x", "uniform")), [_port("x", 2)])


def test_an_input_that_the_catalogue_calls_unsupported_is_one() -> None:
    with pytest.raises(UnsupportedInput, match="a sequence of images"):
        plan(_model(_fact("x", "unsupported", why="a sequence of images")), [_port("x", 2)])


def test_duplicate_inputs_are_refused() -> None:
    with pytest.raises(UsageError, match="'x' twice"):
        plan(_model(), [_port("x", 1), _port("x", 1)])


def test_a_users_array_is_taken_in_any_layout_and_byte_order(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    for index, array in enumerate((values, np.asfortranarray(values), values.astype(">f4"))):
        np.save(path := tmp_path / f"{index}.npy", array)
        made = _arrays(_model(_fact("x", "file", path=str(path))), _port("x", "N", 3))["x"]
        assert np.array_equal(made, values)
        assert made.dtype == np.dtype("<f4")
        assert made.flags.c_contiguous


def test_a_wrong_npy_is_one_clear_line(tmp_path: Path) -> None:
    np.save(tmp_path / "rank.npy", np.zeros(3, np.float32))
    np.save(tmp_path / "size.npy", np.zeros((2, 4), np.float32))
    np.save(tmp_path / "dtype.npy", np.zeros((2, 3)))
    np.save(tmp_path / "pickle.npy", np.array([None]), allow_pickle=True)
    np.savez(tmp_path / "many.npz", a=np.zeros(3))
    (tmp_path / "text.npy").write_text("no")
    (tmp_path / "empty.npy").touch()
    wrong = {
        "rank.npy": "expected shape",
        "size.npy": "expected shape",
        "dtype.npy": "expected float32, found float64",
    }
    wrong |= dict.fromkeys(("pickle.npy", "many.npz", "text.npy", "empty.npy"), "not a plain .npy")
    wrong["none.npy"] = "no such file"
    for name, text in wrong.items():
        with pytest.raises(UsageError, match=text) as caught:
            plan(_model(_fact("x", "file", path=str(tmp_path / name))), [_port("x", "N", 3)])
        assert "\n" not in str(caught.value)
        assert "'x'" in str(caught.value)
