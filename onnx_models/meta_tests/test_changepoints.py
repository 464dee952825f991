"""Steps of a series: found soon, and not in noise."""

from __future__ import annotations

import numpy as np
import pytest

from onnx_models.changepoints import stepping, steps


def noise(seed: int, n: int, *, level: float = 10.0, share: float = 0.02) -> list[float]:
    return [float(value) for value in np.random.default_rng(seed).normal(level, share * level, n)]


@pytest.mark.parametrize("share", [0.001, 0.02, 0.1])
def test_noise_has_no_steps(share: float) -> None:
    found = sum(bool(steps(noise(seed, 60, share=share))) for seed in range(400))
    assert found <= 4, "fewer than 1 % of series of pure noise"


def test_heavy_tails_have_few_steps() -> None:
    rng = np.random.default_rng(7)
    series = [[float(v) for v in 10 + 0.2 * rng.standard_t(3, 60)] for _ in range(200)]
    assert sum(bool(steps(each)) for each in series) <= 2


@pytest.mark.parametrize("factor", [0.9, 1.1, 2.0])
def test_a_step_of_ten_per_cent_is_found_within_three_runs(factor: float) -> None:
    hits = 0
    for seed in range(100):
        values = noise(seed, 30) + [factor * value for value in noise(seed + 1000, 3)]
        found = steps(values)
        hits += len(found) == 1 and abs(found[0].index - 30) <= 1
    assert hits >= 90


def test_two_steps_are_two() -> None:
    values = noise(1, 20) + noise(2, 20, level=15.0) + noise(3, 20, level=10.0)
    found = steps(values)
    assert [round(step.index, -1) for step in found] == [20, 40]
    assert found[0].share == pytest.approx(0.5, abs=0.05)


def test_a_size_without_noise_steps_where_it_changes() -> None:
    (step,) = steps([100.0] * 10 + [110.0] * 5)
    assert (step.index, step.before, step.after) == (10, 100.0, 110.0)
    assert steps([100.0] * 10 + [101.0] * 5) == (), "1 % is not worth a look"


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0] * 3, [0.0] * 20, [1.0] * 7])
def test_short_and_flat_series_have_none(values: list[float]) -> None:
    assert steps(values) == ()


@pytest.mark.parametrize("length", [3, 7, 8, 9, 21, 60])
def test_many_series_at_once_are_told_as_one_by_one(length: int) -> None:
    """`stepping` is `steps` over a matrix: it must not lose a step, nor see one more."""
    rng = np.random.default_rng(length)
    series = rng.normal(10.0, 0.2, (300, length)) * np.where(
        np.arange(length) >= rng.integers(0, length + 1, (300, 1)),
        rng.choice([1.0, 1.04, 1.2], (300, 1)),
        1.0,
    )
    series[:20] = np.round(series[:20])
    series[20:30] = 0.0
    expected = [bool(steps([float(value) for value in row])) for row in series]
    assert stepping(series).tolist() == expected
    assert any(expected) == (length >= 8)
    assert stepping(np.zeros((0, length))).tolist() == []
