"""Cases: every model on every device, ids that never move, and lists that may not go stale."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from onnx_models import cases, devices
from onnx_models.catalog import Model, load
from onnx_models.conditions import Circumstances
from onnx_models.expectations import Known
from onnx_models.lists import Layer
from onnx_models.outcomes import Expectation, Kind, Stage, UsageError

MODELS = tuple(Model(collection="c", path=path, source={}) for path in ("b/x", "a"))
CPU, CUDA = devices.load("cpu"), devices.load("cuda")


def known(model_id: str) -> Known:
    entry = Expectation(id=model_id, stage=Stage.RUN, kind=Kind.ERROR, why="w", source="cpu.toml")
    layer = Layer(file=Path("cpu.toml"), entries=(entry,))
    return Known(layers=(layer,), here=Circumstances.of(iree="3.13.0", device="cpu"))


def test_the_product_is_grouped_by_model() -> None:
    made = cases.combine(MODELS, [CPU, CUDA], {})
    assert [case.id for case in made] == ["cpu/c/b/x", "cuda/c/b/x", "cpu/c/a", "cuda/c/a"]


def test_an_expectation_holds_on_its_device_only() -> None:
    model = load("skeletons")[0]
    made = cases.combine([model], [CPU, CUDA], {"cpu": known(model.id)})
    assert [case.expectation is not None for case in made] == [True, False]


@pytest.mark.parametrize(
    ("model_id", "message"),
    [
        ("skeletons/never", "cpu.toml: 'skeletons/never' names no model of the catalogue; remove it"),
        ("typo/alexnet", "cpu.toml: 'typo/alexnet': no collection 'typo'; correct or remove it"),
        ("local/mine", "no collection 'local'"),
    ],
)
def test_stale_and_unknown_ids_are_refused_whatever_is_selected(model_id: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        cases.combine((), [CPU], {"cpu": known(model_id)})


def test_a_reference_is_needed_where_something_runs() -> None:
    model = MODELS[0]
    assert cases.Case(model=model, device=CPU).needs_reference
    assert not cases.Case(model=model, device=CUDA).needs_reference
    assert cases.Case(model=model, device=replace(CUDA, found=("cuda://0",))).needs_reference


def test_an_id_is_free_of_this_machine() -> None:
    assert str(Path.cwd()) not in cases.combine(MODELS, [CPU], {})[0].id
