"""From measurements to a judgement: bases, health and vacuity."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from onnx_models import tolerance
from onnx_models.noise import Difference, Measured, choose, unhealthy, vacuity
from onnx_models.tolerance import Policy

NONE = Difference(rmse=0.0, worst=0.0, different=0, structure=False)
SMALL = Difference(rmse=1e-7, worst=4e-7, different=9, structure=False)
LARGE = Difference(rmse=0.1, worst=0.4, different=9, structure=False)
MOVED = dataclasses.replace(SMALL, structure=True)


def _measured(**given: Any) -> Measured:
    plain: dict[str, Any] = {
        "dtype": "float32",
        "count": 999,
        "scale": 1.0,
        "largest": 3.0,
        "params": {},
        "origin": "element type",
    }
    return Measured(**plain | given)


@pytest.mark.parametrize(
    ("given", "basis", "noise"),
    [
        ({"float64": SMALL, "optimisation": LARGE}, "float64", 1e-7),
        ({"float64": NONE}, "float64", 0.0),
        ({"float64": MOVED, "optimisation": SMALL}, "optimisation", 1e-7),
        ({"optimisation": SMALL, "exact_graph": True}, "optimisation", 1e-7),
        ({"optimisation": NONE, "exact_graph": True}, "ulp", 0.0),
        ({"optimisation": NONE}, "default", 1e-5),
        ({"optimisation": LARGE}, "default", 1e-5),
        ({}, "default", 1e-5),
        ({"dtype": "int64", "optimisation": LARGE}, "exact", 0.0),
    ],
)
def test_the_best_basis_wins(given: dict[str, Any], basis: str, noise: float) -> None:
    policy = choose(_measured(**given))
    assert (policy.basis, policy.noise) == (basis, noise)


def test_a_rule_keeps_its_parameters_and_origin() -> None:
    measured = _measured(
        dtype="int64", rule="indices", params={"axis": 1}, origin="ArgMax", optimisation=SMALL
    )
    policy = choose(measured)
    assert (policy.rule, policy.params, policy.origin, policy.noise_max) == (
        "indices",
        {"axis": 1},
        "ArgMax",
        0.0,  # what two sessions' indices differ by says nothing of how near their scores are
    )
    assert choose(_measured(dtype="uint8", rule="quantized", params={"step": 1})).rule == "quantized"


@pytest.mark.parametrize(
    ("measured", "repeat", "text"),
    [
        (_measured(optimisation=SMALL), SMALL, ""),
        (_measured(optimisation=LARGE), NONE, "with and without optimisation"),
        (_measured(optimisation=MOVED), NONE, "places or shape"),
        (_measured(), LARGE, "run twice"),
        (_measured(dtype="float16", optimisation=dataclasses.replace(SMALL, rmse=1e-2)), NONE, ""),
        (_measured(dtype="int64", optimisation=LARGE), NONE, ""),
    ],
)
def test_a_reference_that_disagrees_with_itself_is_unhealthy(
    measured: Measured, repeat: Difference, text: str
) -> None:
    found = unhealthy(["y"], [measured], [repeat])
    assert text in found
    assert bool(found) == bool(text)


def test_a_comparison_that_cannot_fail_is_vacuous() -> None:
    float_, int_ = _measured(float64=SMALL), _measured(dtype="int64", scale=0.0, largest=0.0)
    policy = choose(float_)

    def reason(measured: Measured, **probes: Difference | None) -> str:
        found = {name: None if change is None else [change] for name, change in probes.items()}
        return vacuity([measured], [choose(measured)], found)

    assert reason(float_, inputs=LARGE, weights=LARGE) == ""
    assert reason(float_, inputs=None, weights=None) == ""
    assert reason(float_, inputs=SMALL, weights=LARGE) == "no output depends on the inputs"
    assert reason(float_, inputs=MOVED, weights=SMALL) == "no output shows weights rounded to bfloat16"
    assert reason(int_, inputs=NONE) == "no output depends on the inputs"
    assert reason(int_, inputs=SMALL) == ""
    assert reason(int_, inputs=SMALL, weights=NONE) == ""
    assert reason(_measured(scale=0.0, largest=0.0)) == "every output is empty or zero"
    both = {"inputs": [NONE, LARGE]}
    assert vacuity([int_, float_], [choose(int_), policy], both) == "", "one output that can fail is enough"


def test_a_quantized_output_must_move_by_more_than_its_step() -> None:
    measured = _measured(dtype="uint8", rule="quantized", params={"step": 1}, scale=0.0, largest=0.0)
    one, two = (dataclasses.replace(LARGE, worst=float(steps)) for steps in (1, 2))
    assert vacuity([measured], [choose(measured)], {"inputs": [one]})
    assert not vacuity([measured], [choose(measured)], {"inputs": [two]})


@pytest.mark.parametrize("dtype", sorted(tolerance.DEFAULT_NOISE))
def test_defaults_admit_less_than_what_makes_a_reference_unhealthy(dtype: str) -> None:
    default = tolerance.tolerance(tolerance.default_policy(dtype, 1.0, 1.0), dtype, 1.0, 1.0)
    bounds = tolerance.health_bounds(dtype, 1.0, 1.0)
    assert default.rmse < bounds.rmse
    assert default.worst < bounds.worst


def test_a_policy_survives_json() -> None:
    policy = Policy(rule="indices", params={"axis": 1}, noise=1.0)
    assert Policy(**policy.to_json()) == policy


def test_noise_seen_on_few_elements_counts_for_more() -> None:
    def bound(count: int) -> float:
        policy = choose(_measured(float64=SMALL, count=count))
        return tolerance.tolerance(policy, "float32", 0.0, 0.0).rmse / (tolerance.NOISE_FACTOR * SMALL.rmse)

    assert [round(bound(count), 2) for count in (1, 2, 4, 1000)] == [16.0, 4.75, 1.94, 1.0]


def test_a_float64_evaluation_far_from_the_reference_is_no_basis() -> None:
    astray = Difference(rmse=0.5, worst=2.0, different=9, structure=False)
    assert choose(_measured(float64=astray)).basis != "float64"
    assert choose(_measured(float64=astray, optimisation=SMALL)).basis == "optimisation"
