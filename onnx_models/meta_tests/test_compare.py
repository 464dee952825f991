"""The comparison, on what it must reject."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as nps

from onnx_models import metrics, tensors, tolerance
from onnx_models.compare import Comparison, Expected, compare, compare_set
from onnx_models.reference_data import ReferenceSet
from onnx_models.tensors import Array, OutputError, TensorFile
from onnx_models.tolerance import Policy

RNG = np.random.Generator(np.random.PCG64(7))


def _normal(*shape: int, dtype: str = "float32") -> Array:
    return RNG.standard_normal(shape).astype(tensors.dtype_named(dtype))


def _expected(*arrays: Array, policy: Policy | None = None, **rest: Any) -> list[Expected]:
    return [Expected(name=f"y{i}", array=array, policy=policy, **rest) for i, array in enumerate(arrays)]


def _one(want: Array, got: Array | OutputError, policy: Policy | None = None, **rest: Any) -> Comparison:
    found = compare(_expected(want, policy=policy, **rest), [got])
    json.dumps(found.outputs, allow_nan=False)
    assert found.ok == (found.message == "")
    return found


def _mismatch(want: Array, got: Array | OutputError, policy: Policy | None = None, **rest: Any) -> Any:
    found = _one(want, got, policy, **rest)
    assert not found.ok
    return found.outputs[0]["mismatch"]


FLOATS = ["float16", "bfloat16", "float32", "float64"]
NOISY = Policy(basis="float64", noise=1e-6, noise_max=4e-6)


def test_nothing_to_compare_is_a_mismatch() -> None:
    assert not compare([], []).ok
    assert "nothing was compared" in compare([], []).message


@pytest.mark.parametrize("found", [0, 1, 3])
def test_the_number_of_outputs_counts(found: int) -> None:
    arrays = [_normal(3), _normal(3)]
    comparison = compare(_expected(*arrays), [*arrays, arrays[0]][:found])
    assert comparison.message == f"number of outputs: expected 2, found {found}"


@pytest.mark.parametrize("dtype", [*FLOATS, "int8", "uint64", "bool", "complex64"])
@pytest.mark.parametrize("shape", [(), (0, 4), (3, 5)])
def test_an_output_is_itself(dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(_normal(*shape) * 3).astype(tensors.dtype_named(dtype))
    assert _one(array, array.copy()).ok


def test_structure_comes_first() -> None:
    array = _normal(2, 3)
    assert _mismatch(array, array.astype(np.float64)) == "dtype"
    assert _mismatch(np.zeros(2, np.int32), np.zeros(2, np.uint32)) == "dtype"
    assert _mismatch(array, array.reshape(6)) == "rank"
    assert _mismatch(array, array.reshape(1, 2, 3)) == "rank"
    assert _mismatch(array, array.T) == "shape"
    assert _mismatch(array, array[:, :0]) == "shape"
    assert _mismatch(array, np.broadcast_to(array[:1], (1, 3))) == "shape"
    assert _mismatch(array, OutputError(message="0.npy was not written")) == "no-output"


def test_an_empty_output_does_not_stand_for_a_full_one() -> None:
    assert _mismatch(_normal(2, 3), np.zeros((0, 3), np.float32)) == "shape"
    assert _mismatch(np.zeros((0, 3), np.float32), _normal(2, 3)) == "shape"


def test_swapped_outputs_of_one_shape_are_found() -> None:
    a, b = _normal(4), _normal(4)
    comparison = compare(_expected(a, b), [b, a])
    assert [row["ok"] for row in comparison.outputs] == [False, False]
    assert len(comparison.detail.splitlines()) == 2


def test_transposed_data_of_equal_shape_is_found() -> None:
    array = _normal(8, 8)
    assert _mismatch(array, np.ascontiguousarray(array.T)) == "values"


def test_one_element_in_ten_million_is_found() -> None:
    array = _normal(10_000_000)
    wrong = array.copy()
    wrong[7_654_321] += 0.01
    found = _one(array, wrong, NOISY)
    assert not found.ok
    assert found.outputs[0]["worst"]["index"] == [7_654_321]
    assert "largest error 0.01" in found.message


def test_a_sign_flip_is_found() -> None:
    array = _normal(1000)
    wrong = array.copy()
    wrong[13] = -wrong[13]
    assert _mismatch(array, wrong) == "values"


def test_overflow_to_infinity_is_found() -> None:
    array = np.array([65504, 1], np.float16)
    assert _mismatch(array, np.array([np.inf, 1], np.float16)) == "non-finite"
    assert _one(np.array([np.inf, 1], np.float16), np.array([np.inf, 1], np.float16)).ok
    assert _mismatch(np.array([np.inf, 1], np.float16), np.array([-np.inf, 1], np.float16)) == "non-finite"
    assert _mismatch(np.array([np.inf, 1], np.float16), np.array([65504, 1], np.float16)) == "non-finite"


def test_a_nan_that_moved_is_found_and_one_in_place_is_not() -> None:
    array = np.array([1, np.nan, 3, 4], np.float32)
    assert _one(array, array.copy()).ok
    assert _mismatch(array, np.roll(array, 1)) == "non-finite"
    assert _mismatch(array, np.nan_to_num(array)) == "non-finite"


@pytest.mark.parametrize("dtype", FLOATS)
def test_one_ulp_everywhere_passes(dtype: str) -> None:
    array = _normal(1000, dtype=dtype)
    bits = array.view(np.dtype(f"u{array.dtype.itemsize}")) + 1
    found = _one(array, bits.view(array.dtype), Policy(basis="ulp"))
    assert found.ok
    assert 0.9 < found.outputs[0]["p99_ulp"] < 1.1


def test_an_offset_of_ten_times_the_tolerated_noise_fails_and_the_noise_passes() -> None:
    array = _normal(1000)
    policy = Policy(basis="float64", noise=1e-4, noise_max=4e-4)
    assert _one(array, array + np.float32(1e-4), policy).ok
    offset = np.float32(10 * tolerance.NOISE_FACTOR * 1e-4)
    found = _one(array, array + offset, policy)
    assert not found.ok
    assert found.outputs[0]["ratio"] == pytest.approx(10 * tolerance.NOISE_FACTOR, rel=1e-3)


@pytest.mark.parametrize("factor", [1.01, 0.99])
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_factor_of_one_percent_fails(factor: float, dtype: str) -> None:
    array = _normal(64, 10, dtype=dtype)
    assert _mismatch(array, (array * factor).astype(array.dtype)) == "values"


def test_a_dropped_channel_and_a_doubled_row_fail() -> None:
    array = _normal(1, 16, 7, 7)
    dropped, doubled = array.copy(), array.copy()
    dropped[:, 3] = 0
    doubled[:, :, 4] = doubled[:, :, 3]
    assert _mismatch(array, dropped) == "values"
    assert _mismatch(array, doubled) == "values"


def test_a_small_channel_beside_a_large_one_is_still_judged() -> None:
    array = np.concatenate([_normal(1000) * 300, np.abs(_normal(10))])
    wrong = array.copy()
    wrong[1005] = 0.0
    assert _mismatch(array, wrong, NOISY) == "values"


def test_integers_and_booleans_are_exact() -> None:
    ints = np.arange(10, dtype=np.int64)
    off = ints.copy()
    off[4] += 1
    found = _one(ints, off)
    assert (found.ok, found.outputs[0]["different"]) == (False, 1)
    assert "expected 4, found 5" in found.message
    big = np.array([2**62, 2**62 + 1], np.int64)
    assert _mismatch(big, big[::-1].copy()) == "exact"
    assert _mismatch(np.array([True, False]), np.array([True, True])) == "exact"


def test_negative_zero_is_zero() -> None:
    assert _one(np.array([0.0, 1.0], np.float32), np.array([-0.0, 1.0], np.float32)).ok


def test_subnormals_may_be_flushed_but_normals_may_not() -> None:
    assert _one(np.array([1e-40, 0.0], np.float32), np.zeros(2, np.float32)).ok
    assert _mismatch(np.array([1e-30, 0.0], np.float32), np.zeros(2, np.float32)) == "values"


def test_values_whose_squares_overflow_are_still_judged() -> None:
    huge = np.array([1e300, -2e300])
    assert _one(huge, huge.copy()).ok
    assert _mismatch(huge, huge * 1.01) == "values"
    assert _mismatch(huge, -huge) == "values"


def test_a_single_zero_expected_and_a_number_found_fails() -> None:
    assert _mismatch(np.zeros(3, np.float32), np.full(3, 1e-6, np.float32)) == "values"


def test_complex_values_are_judged_by_both_parts() -> None:
    array = (_normal(5) + 1j * _normal(5)).astype(np.complex64)
    assert _one(array, array.copy()).ok
    assert _mismatch(array, array.conj()) == "values"


def test_better_values_move_the_target_but_not_the_places() -> None:
    want, precise = np.array([1.0, np.inf], np.float32), np.array([1.0 + 3e-5, 7e4])
    policy = Policy(basis="float64", noise=1e-7, noise_max=1e-7)
    near = np.array([1.0 + 3e-5, np.inf], np.float32)
    assert _one(want, near, policy, precise=precise).ok
    assert not _one(want, want.copy(), policy, precise=precise).ok
    assert _mismatch(want, np.array([1.0 + 3e-5, 7e4], np.float32), policy, precise=precise) == "non-finite"


def test_quantized_outputs_may_be_one_step_off() -> None:
    ints = np.array([3, 250, 7], np.uint8)
    policy = Policy(rule="quantized", basis="exact", params={"step": 1})
    assert _one(ints, np.array([4, 249, 7], np.uint8), policy).ok
    assert not _one(ints, np.array([5, 250, 7], np.uint8), policy).ok
    assert not _one(np.array([0], np.uint8), np.array([255], np.uint8), policy).ok, "no wrap-around"
    floats = np.array([0.5, -1.5, 2.0], np.float32)
    policy = Policy(rule="quantized", basis="default", params={"step": 0.25})
    assert _one(floats, floats + np.float32(0.25), policy).ok
    assert not _one(floats, floats + np.float32(0.5), policy).ok


def test_indices_may_tie_within_the_noise_only() -> None:
    scores = np.array([[0.1, 0.9, 0.9 + 1e-6, 0.5]], np.float32)
    policy = Policy(rule="indices", basis="optimisation", noise=1e-7, noise_max=1e-6, params={"axis": 1})
    want = np.array([[2]])
    assert _one(want, np.array([[2]]), policy, scores=scores).ok
    tie = _one(want, np.array([[1]]), policy, scores=scores)
    assert (tie.ok, tie.outputs[0]["ties"]) == (True, 1)
    for wrong in (0, 3, 4, -1):
        assert _mismatch(want, np.array([[wrong]]), policy, scores=scores) == "exact"
    flat = Policy(rule="indices", params={"axis": 1, "keepdims": False}, noise_max=1e-6)
    assert _one(np.array([2]), np.array([1]), flat, scores=scores).ok
    assert _mismatch(np.array([2]), np.array([0]), flat, scores=scores) == "exact"


def test_one_index_twice_is_no_tie() -> None:
    scores = np.array([0.9, 0.9, 0.1], np.float32)
    policy = Policy(rule="indices", noise_max=1e-6, params={"axis": 0})
    assert _one(np.array([0, 1]), np.array([1, 0]), policy, scores=scores).ok
    assert _mismatch(np.array([0, 1]), np.array([0, 0]), policy, scores=scores) == "exact"


def test_the_noise_of_indices_forgives_no_wrong_index() -> None:
    scores = np.array([[0.1, 0.9, 0.2, 0.5]], np.float32)
    policy = Policy(rule="indices", basis="optimisation", noise=200.0, noise_max=400.0, params={"axis": 1})
    assert _mismatch(np.array([[1]]), np.array([[0]]), policy, scores=scores) == "exact"


def test_indices_behind_a_cast_are_indices_and_odd_ones_are_compared_exactly() -> None:
    scores = np.array([[0.9, 0.9, 0.2]], np.float32)
    policy = Policy(rule="indices", params={"axis": 1})
    want = np.array([[0]], np.float32)
    assert _one(want, np.array([[1]], np.float32), policy, scores=scores).ok
    for odd in (0.5, np.nan, np.inf, -np.inf, -1.0, 3.0, 1e30):
        found = np.array([[odd]], np.float32)
        assert not _one(want, found, policy, scores=scores).ok, odd
    assert not _one(np.array([[0.5]], np.float32), want, policy, scores=scores).ok


def _detections(boxes: Array, classes: Array) -> Sequence[Expected]:
    policy = Policy(rule="rows", basis="default", noise=1e-6, noise_max=1e-5, params={"group": "nms"})
    return [
        Expected(name="boxes", array=boxes, policy=policy),
        Expected(name="classes", array=classes, policy=policy),
    ]


def test_rows_are_a_set_and_move_together() -> None:
    boxes, classes = _normal(1, 20, 4), RNG.integers(0, 9, (20,))
    order = RNG.permutation(20)
    assert compare(_detections(boxes, classes), [boxes[:, order], classes[order]]).ok
    near = boxes[:, order] + np.float32(1e-6)
    assert compare(_detections(boxes, classes), [near, classes[order]]).ok
    assert not compare(_detections(boxes, classes), [boxes[:, order], classes]).ok
    assert not compare(_detections(boxes, classes), [boxes[:, order] + np.float32(1e-2), classes[order]]).ok
    twice = order.copy()
    twice[0] = twice[1]
    assert not compare(_detections(boxes, classes), [boxes[:, twice], classes[twice]]).ok


def test_a_found_row_stands_for_one_expected_row_only() -> None:
    a, b, c, x = _normal(4, 4)
    policy = Policy(rule="rows", basis="ulp", params={"group": "nms"})
    want, got = np.stack([a, a, b, c]), np.stack([b, c, a, x])
    assert not _one(want, got, policy).ok
    assert _one(want, np.stack([b, c, a, a]), policy).ok


def test_rows_that_the_rule_does_not_cover_keep_their_places() -> None:
    boxes = _normal(20, 4)
    assert _mismatch(boxes, boxes[::-1].copy()) == "values"


def test_the_record_has_the_numbers() -> None:
    want = np.array([1.0, 2.0, -4.0, 0.0], np.float32)
    got = np.array([1.0, 2.5, -4.0, 0.0], np.float32)
    row = _one(want, got, NOISY).outputs[0]
    assert (row["rule"], row["basis"], row["noise"]) == ("values", "float64", 1e-6)
    assert row["rmse"] == pytest.approx(0.25)
    assert row["ratio"] == pytest.approx(0.25e6)
    assert (row["max_abs"], row["max_rel"]) == (0.5, 0.25)
    assert row["worst"] == {"index": [1], "expected": 2.0, "found": 2.5}
    assert row["snr_db"] == pytest.approx(10 * np.log10(21 / 0.25))
    assert row["cosine"] == pytest.approx(22 / np.sqrt(21 * 23.25))
    needed = max(row["rmse"] / row["tolerance_rmse"], row["max_abs"] / row["tolerance_worst"])
    assert row["would_pass_at"] == pytest.approx(needed)
    assert row["would_pass_at"] > 1


@pytest.mark.parametrize("missing", ["file", "cut"])
def test_files_are_compared_by_position(missing: str, tmp_path: Path) -> None:
    arrays = {"y": _normal(3), "b": _normal(2, dtype="bfloat16")}
    files, found = [], tmp_path / "found"
    for index, (name, array) in enumerate(arrays.items()):
        file = f"{index}{tensors.suffix(array.dtype.name)}"
        tensors.write(array, tmp_path / file)
        tensors.write(array, found / file)
        files.append(TensorFile(name=name, dtype=array.dtype.name, shape=array.shape, path=tmp_path / file))
    policies = (Policy(basis="ulp"), Policy(basis="ulp"))
    reference = ReferenceSet(name="seeded-0", inputs=(), outputs=tuple(files), policies=policies)
    assert compare_set(reference, found).ok
    if missing == "file":
        (found / "1.bin").unlink()
    else:
        (found / "1.bin").write_bytes(b"\0")
    comparison = compare_set(reference, found)
    assert [row["ok"] for row in comparison.outputs] == [True, False]
    assert "1.bin" in comparison.message


def test_a_large_comparison_takes_little_memory() -> None:
    import tracemalloc

    array = _normal(4_000_000)
    got = array * np.float32(1 + 1e-7)
    tracemalloc.start()
    try:
        metrics.measure(array, got, "float32")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 4 * array.nbytes


FINITE = st.floats(-1e3, 1e3, width=32)
ARRAYS = nps.arrays(np.float32, st.integers(2, 40), elements=FINITE)


@settings(max_examples=40, deadline=None)
@given(st.lists(nps.arrays(np.float32, 5, elements=FINITE), min_size=2, max_size=4), st.randoms())
def test_a_permutation_of_different_outputs_is_always_caught(arrays: list[Array], random: Any) -> None:
    order = list(range(len(arrays)))
    random.shuffle(order)
    policy = Policy(basis="ulp")
    alike = all(_one(a, arrays[i], policy).ok for a, i in zip(arrays, order, strict=True))
    unequal = any(np.abs(a - arrays[i]).max() > 1.0 for a, i in zip(arrays, order, strict=True))
    whole = compare(_expected(*arrays, policy=policy), [arrays[i] for i in order])
    assert whole.ok == alike
    if unequal:
        assert not whole.ok


@settings(max_examples=40, deadline=None)
@given(ARRAYS, ARRAYS, st.integers(-40, 40), st.floats(0, 1e-2))
def test_scaling_both_sides_and_the_noise_never_changes_a_verdict(
    want: Array, error: Array, power: int, noise: float
) -> None:
    size = min(len(want), len(error))
    want = np.where(np.abs(want) < 1e-3, np.float32(1), want)[:size]
    got = want + error[:size] * np.float32(1e-3)
    factor = 2.0**power
    scaled = Policy(basis="float64", noise=noise * factor, noise_max=noise * factor)
    plain = Policy(basis="float64", noise=noise, noise_max=noise)
    big = np.float32(factor)
    assert _one(want, got, plain).ok == _one(want * big, got * big, scaled).ok


@settings(max_examples=40, deadline=None)
@given(ARRAYS, st.floats(0, 1), st.floats(0, 1), st.floats(1, 100))
def test_more_noise_never_turns_a_pass_into_a_failure(
    want: Array, error: float, noise: float, wider: float
) -> None:
    got = want + np.float32(error)
    narrow = Policy(basis="float64", noise=noise, noise_max=noise)
    wide = Policy(basis="float64", noise=noise * wider, noise_max=noise * wider)
    if _one(want, got, narrow).ok:
        assert _one(want, got, wide).ok


def test_a_bfloat16_array_is_judged_by_its_own_ulp() -> None:
    array = np.array([1, 2, 3], ml_dtypes.bfloat16)
    assert _one(array, (array.astype(np.float32) * 1.004).astype(ml_dtypes.bfloat16), Policy(basis="ulp")).ok
    assert not _one(array, np.array([1, 2, 5], ml_dtypes.bfloat16), Policy(basis="ulp")).ok
