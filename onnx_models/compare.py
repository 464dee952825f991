"""Whether a tool's outputs are the reference's: structure first, then values by each output's policy.

Pure: arrays in, a `Comparison` out. No difference of structure is ever
forgiven, so that an empty, permuted, transposed or mistyped answer cannot pass.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnx_models import matching, metrics, tensors, tolerance
from onnx_models.metrics import Errors
from onnx_models.reference_data import ReferenceSet
from onnx_models.tensors import Array, OutputError
from onnx_models.tolerance import Policy, Tolerance

Numbers: TypeAlias = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """One reference output.

    `precise` holds better values in float64 where the policy's basis has them,
    `scores` what the indices of the rule "indices" point into.
    """

    name: str
    array: Array
    policy: Policy | None = None
    precise: Array | None = None
    scores: Array | None = None

    @property
    def judged(self) -> Policy:
        """The policy, or that of the element type alone."""
        scale, largest = metrics.scale_of(metrics.real(self.array))
        return self.policy or tolerance.default_policy(metrics.real(self.array).dtype.name, scale, largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The judgement of one set of outputs.

    `message` is the first mismatch in one line, empty when `ok`; `detail` names
    every one. `outputs` holds one JSON-ready mapping per output.
    """

    ok: bool
    message: str = ""
    detail: str = ""
    outputs: tuple[Mapping[str, Any], ...] = ()


def compare(expected: Sequence[Expected], found: Sequence[Array | OutputError]) -> Comparison:
    """Judge the outputs `found`, in the order of the model's outputs, against the `expected` ones."""
    if not expected:
        return Comparison(ok=False, message="the reference has no outputs: nothing was compared")
    aligned = _align_rows(expected, found)
    records = [
        _judge(index, want, got) for index, (want, got) in enumerate(zip(expected, aligned, strict=False))
    ]
    problems = [
        f"output {record['index']} {record['name']!r}: {record['problem']}"
        for record in records
        if record["problem"]
    ]
    if len(expected) != len(found):
        problems.insert(0, f"number of outputs: expected {len(expected)}, found {len(found)}")
    return Comparison(
        ok=not problems,
        message=problems[0] if problems else "",
        detail="\n".join(problems),
        outputs=tuple(records),
    )


def compare_set(reference: ReferenceSet, folder: Path) -> Comparison:
    """Judge what a tool wrote to `folder/<k>.npy` (or `.bin`) for one input set.

    Raises:
        SuiteError: a file of the reference is damaged.
    """
    expected, found = [], []
    for index, output in enumerate(reference.outputs):
        precise, scores = reference.precise.get(index), reference.scores.get(index)
        expected.append(
            Expected(
                name=output.name,
                array=tensors.read(output),
                policy=reference.policies[index],
                precise=None if precise is None else tensors.read(precise),
                scores=None if scores is None else tensors.read(scores),
            )
        )
        file = folder / f"{index}{tensors.suffix(output.dtype)}"
        found.append(tensors.read_iree_output(file, output.dtype, output.shape))
    return compare(expected, found)


def _judge(index: int, expected: Expected, found: Array | OutputError) -> Numbers:
    want = expected.array
    record: Numbers = {"index": index, "name": expected.name, "dtype": want.dtype.name}
    record |= {"shape": list(want.shape), "ok": False, "mismatch": None, "problem": ""}
    if isinstance(found, OutputError):
        return record | {"mismatch": "no-output", "problem": found.message}
    record |= {"found_dtype": found.dtype.name, "found_shape": list(found.shape)}
    if (mismatch := _structure(want, found)) is not None:
        return record | {"mismatch": mismatch[0], "problem": mismatch[1]}
    policy = expected.judged
    record |= {"rule": policy.rule, "rule_origin": policy.origin, "basis": policy.basis}
    numbers = _RULES[policy.rule](expected, found, policy)
    return record | numbers | {"ok": not numbers["problem"]}


def _structure(want: Array, found: Array) -> tuple[str, str] | None:
    if found.dtype != want.dtype:
        return "dtype", f"dtype: expected {want.dtype.name}, found {found.dtype.name}"
    if found.ndim != want.ndim:
        return (
            "rank",
            f"rank: expected {want.ndim} {list(want.shape)}, found {found.ndim} {list(found.shape)}",
        )
    if found.shape != want.shape:
        return "shape", f"shape: expected {list(want.shape)}, found {list(found.shape)}"
    return None


def _exact(expected: Expected, found: Array, policy: Policy) -> Numbers:
    return _counted(expected.array, found, expected.array == found)


def _counted(want: Array, found: Array, agrees: Array) -> Numbers:
    """Numbers of a rule that accepts or rejects each element by itself."""
    count = int(agrees.size - np.count_nonzero(agrees))
    numbers: Numbers = {"count": int(want.size), "different": count, "mismatch": None, "problem": ""}
    if not count:
        return numbers
    flat = int(np.argmin(agrees))
    at = tuple(int(i) for i in np.unravel_index(flat, want.shape)) if want.shape else ()
    pair = _worst(at, want[at].item(), found[at].item())
    problem = f"{count} of {want.size} elements differ, first {_at(pair)}"
    return numbers | {"worst": pair, "mismatch": "exact", "problem": problem}


def _indices(expected: Expected, found: Array, policy: Policy) -> Numbers:
    want, scores = expected.array, expected.scores
    if scores is None or not (_whole(want) and _whole(found)):
        return _exact(expected, found, policy)
    want, found = want.astype(np.int64), found.astype(np.int64)
    slack = 0.0
    if tolerance.is_float(scores.dtype.name):
        # The noise of the scores, not that of the indices: two that tie may lie far apart.
        dtype, (scale, largest) = scores.dtype.name, metrics.scale_of(scores)
        slack = tolerance.tolerance(
            tolerance.default_policy(dtype, scale, largest), dtype, scale, largest
        ).worst
    axis, keepdims = int(policy.params["axis"]), bool(policy.params.get("keepdims", True))
    agrees = matching.tied(want, found, scores, axis=axis, keepdims=keepdims, slack=slack)
    ties = int(np.count_nonzero(agrees & (want != found)))
    return _counted(want, found, agrees) | {"ties": ties, "tolerance_worst": _plain(slack)}


def _whole(array: Array) -> bool:
    """Whether all elements are whole numbers, as indices behind a Cast to a float type still are."""
    if array.dtype.kind in "iu":
        return True
    wide = metrics.real(array).astype(np.float64)
    return bool(np.all(np.isfinite(wide) & (wide == np.round(wide)) & (np.abs(wide) < 2**53)))


def _quantized(expected: Expected, found: Array, policy: Policy) -> Numbers:
    """One step of the output's scale is allowed, and on floats the rounding of the scale's product."""
    want, step = expected.array, float(policy.params["step"])
    if not tolerance.is_float(want.dtype.name):
        apart = np.abs(want.astype(np.float64) - found.astype(np.float64))
        return _counted(want, found, apart <= step) | {"max_abs": float(apart.max(initial=0.0)), "step": step}
    errors = metrics.measure(want, found, want.dtype.name)
    worst = step + tolerance.EPS[want.dtype.name] * tolerance.ULP_FLOOR * errors.largest
    bounds = Tolerance(rmse=worst, worst=worst)
    return _bounded(errors, policy, bounds, want, found) | {"step": step}


def _values(expected: Expected, found: Array, policy: Policy) -> Numbers:
    want, got = metrics.real(expected.array), metrics.real(found)
    if not tolerance.is_float(want.dtype.name):
        return _exact(expected, found, policy)
    errors = metrics.measure(want, got, want.dtype.name, expected.precise)
    bounds = tolerance.tolerance(policy, want.dtype.name, errors.scale, errors.largest)
    return _bounded(errors, policy, bounds, want, got)


def _bounded(errors: Errors, policy: Policy, bounds: Tolerance, want: Array, got: Array) -> Numbers:
    numbers = _numbers(errors, policy, bounds)
    if errors.places is not None:
        what, at = errors.places
        pair = _worst(at, float(want[at]), float(got[at]))
        problem = f"{what} not at the same places, first {_at(pair)}"
        return numbers | {"worst": pair, "mismatch": "non-finite", "problem": problem}
    # `not <=`: a bound that is no number must fail.
    if not errors.rmse <= bounds.rmse:
        problem = f"rmse {errors.rmse:.3g} exceeds {bounds.rmse:.3g}"
    elif not errors.max_abs <= bounds.worst:
        problem = f"largest error {errors.max_abs:.3g} exceeds {bounds.worst:.3g}"
    else:
        return numbers | {"mismatch": None, "problem": ""}
    problem += f" ({_against(numbers)}), worst {_at(numbers['worst'])}"
    return numbers | {"mismatch": "values", "problem": problem}


def _against(numbers: Numbers) -> str:
    ratio = numbers["ratio"]
    noise = f"noise {numbers['noise']:.3g} by {numbers['basis']}"
    return noise if ratio is None else f"{ratio:.3g} x {noise}"


def _numbers(errors: Errors, policy: Policy, bounds: Tolerance) -> Numbers:
    needed = max(_ratio(errors.rmse, bounds.rmse), _ratio(errors.max_abs, bounds.worst))
    numbers = {
        "noise": policy.noise,
        "noise_max": policy.noise_max,
        "ratio": _ratio(errors.rmse, policy.noise),
        "rmse": errors.rmse,
        "max_abs": errors.max_abs,
        "max_rel": errors.max_rel,
        "cosine": errors.cosine,
        "snr_db": errors.snr_db,
        "p99_ulp": errors.p99_ulp,
        "scale": errors.scale,
        "largest": errors.largest,
        "tolerance_rmse": bounds.rmse,
        "tolerance_worst": bounds.worst,
        "would_pass_at": needed,
    }
    plain: Numbers = {key: _plain(value) for key, value in numbers.items()}
    worst = _worst(errors.worst, *errors.worst_values)
    return plain | {
        "basis": policy.basis,
        "samples": policy.samples,
        "count": errors.count,
        "finite": errors.finite,
        "worst": worst,
    }


def _ratio(value: float, unit: float) -> float:
    if value == 0.0:
        return 0.0
    return value / unit if unit else math.inf


def _plain(value: float) -> float | None:
    """JSON has no NaN and no Inf: None stands for them."""
    return float(value) if math.isfinite(value) else None


def _worst(at: tuple[int, ...], want: Any, got: Any) -> Numbers:
    return {"index": list(at), "expected": _json(want), "found": _json(got)}


def _json(value: Any) -> Any:
    if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value)):
        return str(value)
    return value


def _at(pair: Mapping[str, Any]) -> str:
    return f"at {pair['index']}: expected {_short(pair['expected'])}, found {_short(pair['found'])}"


def _short(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _align_rows(
    expected: Sequence[Expected], found: Sequence[Array | OutputError]
) -> Sequence[Array | OutputError]:
    """Put the rows of detection outputs in the reference's order; outputs of one group move together.

    Where a row has no partner the order stays, and the comparison shows what differs.
    """
    groups: dict[tuple[str, int], list[int]] = {}
    aligned = list(found)
    for index, (want, got) in enumerate(zip(expected, found, strict=False)):
        policy = want.judged
        if policy.rule != "rows" or isinstance(got, OutputError) or want.array.ndim == 0:
            continue
        if _structure(want.array, got) is None:
            rows = want.array.shape[matching.row_axis(want.array)]
            groups.setdefault((str(policy.params.get("group", "")), rows), []).append(index)
    for members in groups.values():
        columns = [_column(expected[index], aligned[index]) for index in members]
        order = matching.partners(columns)
        if order is None:
            continue
        for index, column in zip(members, columns, strict=True):
            aligned[index] = np.take(column.found, order, axis=matching.row_axis(column.found))
    return aligned


def _column(expected: Expected, found: Array | OutputError) -> matching.Column:
    assert not isinstance(found, OutputError)
    name, slack = expected.array.dtype.name, 0.0
    if tolerance.is_float(name):
        scale, largest = metrics.scale_of(expected.array)
        slack = tolerance.tolerance(expected.judged, name, scale, largest).worst
    return matching.Column(expected=expected.array, found=found, slack=slack)


_RULES: Mapping[str, Callable[[Expected, Array, Policy], Numbers]] = {
    "exact": _exact,
    "values": _values,
    "indices": _indices,
    "quantized": _quantized,
    "rows": _values,
}
