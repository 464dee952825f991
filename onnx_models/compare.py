"""Whether a tool's outputs are the reference's: structure first, then values by each output's policy.

Pure: arrays in, a `Comparison` out. No difference of structure is ever
forgiven, so that an empty, permuted, transposed or mistyped answer cannot pass.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from onnx_models import metrics, tensors, tolerance
from onnx_models.metrics import Errors
from onnx_models.reference import ReferenceSet
from onnx_models.tensors import Array, OutputError
from onnx_models.tolerance import Policy

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
    def real(self) -> Array:
        """The values, a complex one as its two parts."""
        return metrics.real(self.array)

    @property
    def judged(self) -> Policy:
        """The policy, or that of the element type."""
        return self.policy or tolerance.default_policy(self.array.dtype.name, *metrics.scale_of(self.real))


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
    records = [
        _judge(index, want, got) for index, (want, got) in enumerate(zip(expected, found, strict=False))
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


def _judge(index: int, expected: Expected, found: Array | OutputError) -> Numbers:
    want = expected.array
    record: Numbers = {
        "index": index,
        "name": expected.name,
        "dtype": want.dtype.name,
        "shape": list(want.shape),
    }
    record |= {"ok": False, "mismatch": None, "problem": ""}
    if isinstance(found, OutputError):
        return record | {"mismatch": "no-output", "problem": found.message}
    record |= {"found_dtype": found.dtype.name, "found_shape": list(found.shape)}
    if (mismatch := _structure(want, found)) is not None:
        return record | {"mismatch": mismatch[0], "problem": mismatch[1]}
    policy = expected.policy or tolerance.default_policy(want.dtype.name, *metrics.scale_of(_real(want)))
    record |= {"rule": policy.rule, "basis": policy.basis, "rule_origin": policy.origin}
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


def _real(array: Array) -> Array:
    if array.dtype.kind != "c":
        return array
    return array.reshape(-1).view(array.real.dtype).reshape((*array.shape, 2))


def _exact(expected: Expected, found: Array, policy: Policy) -> Numbers:
    want = expected.array
    differ = want != found
    count = int(np.count_nonzero(differ))
    numbers: Numbers = {"count": int(want.size), "different": count, "mismatch": None, "problem": ""}
    if not count:
        return numbers
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(differ)), want.shape)) if want.shape else ()
    pair = _worst(at, want[at].item(), found[at].item())
    problem = f"{count} of {want.size} elements differ, first {_at(pair)}"
    return numbers | {"worst": pair, "mismatch": "exact", "problem": problem}


def _values(expected: Expected, found: Array, policy: Policy) -> Numbers:
    want, got = _real(expected.array), _real(found)
    name = want.dtype.name
    errors = metrics.measure(want, got, name, expected.precise)
    bounds = tolerance.tolerance(policy, name, errors.scale, errors.largest)
    numbers = _numbers(errors, policy, bounds)
    if errors.places is not None:
        what, at = errors.places
        pair = _worst(at, float(want[at]), float(got[at]))
        problem = f"{what} not at the same places, first {_at(pair)}"
        return numbers | {"worst": pair, "mismatch": "non-finite", "problem": problem}
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


def _numbers(errors: Errors, policy: Policy, bounds: tolerance.Tolerance) -> Numbers:
    needed = max(_ratio(errors.rmse, bounds.rmse), _ratio(errors.max_abs, bounds.worst))
    return {
        "count": errors.count,
        "finite": errors.finite,
        "basis": policy.basis,
        "noise": _plain(policy.noise),
        "ratio": _plain(_ratio(errors.rmse, policy.noise)),
        "rmse": _plain(errors.rmse),
        "max_abs": _plain(errors.max_abs),
        "max_rel": _plain(errors.max_rel),
        "cosine": _plain(errors.cosine),
        "snr_db": _plain(errors.snr_db),
        "p99_ulp": _plain(errors.p99_ulp),
        "scale": _plain(errors.scale),
        "worst": _worst(errors.worst, *errors.worst_values),
        "tolerance_rmse": _plain(bounds.rmse),
        "tolerance_worst": _plain(bounds.worst),
        "would_pass_at": _plain(needed),
    }


def _ratio(value: float, unit: float) -> float:
    if value == 0.0:
        return 0.0
    return value / unit if unit else math.inf


def _plain(value: float) -> float | None:
    """JSON has no NaN and no Inf: None stands for them."""
    return float(value) if math.isfinite(value) else None


def _worst(at: tuple[int, ...], want: Any, got: Any) -> Numbers:
    def text(value: Any) -> Any:
        return (
            str(value)
            if isinstance(value, complex) or (isinstance(value, float) and not math.isfinite(value))
            else value
        )

    return {"index": list(at), "expected": text(want), "found": text(got)}


def _at(pair: Mapping[str, Any]) -> str:
    return f"at {pair['index']}: expected {_short(pair['expected'])}, found {_short(pair['found'])}"


def _short(value: Any) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


_RULES = {"exact": _exact, "values": _values}


def compare_set(reference: ReferenceSet, folder: Path) -> Comparison:
    """Judge what a tool wrote to `folder/<k>.npy` (or `.bin`) for one input set.

    Raises:
        SuiteError: a file of the reference is damaged.
    """
    expected, found = [], []
    for index, output in enumerate(reference.outputs):
        precise = reference.precise.get(index)
        expected.append(
            Expected(
                name=output.name,
                array=tensors.read(output),
                policy=reference.policies[index] if reference.policies else None,
                precise=None if precise is None else tensors.read(precise),
            )
        )
        file = folder / f"{index}{tensors.suffix(output.dtype)}"
        found.append(tensors.read_iree_output(file, output.dtype, output.shape))
    return compare(expected, found)
