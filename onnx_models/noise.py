"""How right the reference itself is, and what follows: each output's policy, its health, its vacuity.

Pure: the child processes measure, this module decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_models import tolerance
from onnx_models.tolerance import Policy, Rule, Tolerance, is_float


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """How far two evaluations of one output are apart.

    `rmse` and `worst` are over the values that are finite in both; `different`
    counts elements that are not equal; `structure` says that shapes, or the
    places of NaN and Inf, are not the same.
    """

    rmse: float
    worst: float
    different: int
    structure: bool

    @classmethod
    def from_json(cls, row: Mapping[str, Any] | None) -> Difference | None:
        """From a child's row, None where it measured nothing."""
        return None if row is None else cls(**row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What the child processes found out of one output.

    Attributes:
        dtype, count, scale, largest: of the output at its own precision.
        rule, params, origin: how its elements are to be judged, and why.
        optimisation: with all graph optimisation against none.
        float64: at its own precision against float64; None where that is no safe oracle.
        exact_graph: whether every operator above rounds at most once, so that no error accumulates.
    """

    dtype: str
    count: int
    scale: float
    largest: float
    rule: Rule = "values"
    params: Mapping[str, Any]
    origin: str
    optimisation: Difference | None = None
    float64: Difference | None = None
    exact_graph: bool = False


def choose(measured: Measured) -> Policy:
    """The policy of an output: its rule, and its noise by the best basis that there is."""
    dtype = measured.dtype
    if measured.rule == "indices" or not is_float(dtype):
        rule: Rule = measured.rule if measured.rule != "values" else "exact"
        return Policy(
            rule=rule,
            basis="exact",
            noise=0.0,
            noise_max=0.0,
            params=measured.params,
            origin=measured.origin,
        )
    plain = _by_best_basis(measured)
    return Policy(
        rule=measured.rule,
        basis=plain.basis,
        noise=plain.noise,
        noise_max=plain.noise_max,
        samples=plain.samples,
        params=measured.params,
        origin=measured.origin,
    )


def _by_best_basis(measured: Measured) -> Policy:
    default = tolerance.default_policy(measured.dtype, measured.scale, measured.largest)
    healthy = tolerance.health_bounds(measured.dtype, measured.scale, measured.largest)
    precise, optimisation = measured.float64, measured.optimisation
    if precise is not None and is_within(precise, healthy):
        return Policy(basis="float64", noise=precise.rmse, noise_max=precise.worst, samples=measured.count)
    if optimisation is not None and optimisation.rmse > 0 and is_within(optimisation, healthy):
        return Policy(
            basis="optimisation",
            noise=optimisation.rmse,
            noise_max=optimisation.worst,
            samples=measured.count,
        )
    if measured.exact_graph:
        return Policy(basis="ulp")
    return default


def is_within(difference: Difference, bounds: Tolerance) -> bool:
    """Whether two evaluations of a float output are one answer."""
    apart = difference.rmse <= bounds.rmse and difference.worst <= bounds.worst
    return apart and not difference.structure


def unhealthy(names: Sequence[str], outputs: Sequence[Measured], repeats: Sequence[Difference]) -> str:
    """Why a reference cannot be a judge: it differs from itself by too much. Empty if it can."""
    for name, measured, repeat in zip(names, outputs, repeats, strict=True):
        if measured.rule != "values" or not is_float(measured.dtype):
            continue
        bounds = tolerance.health_bounds(measured.dtype, measured.scale, measured.largest)
        for what, found in (("run twice", repeat), ("with and without optimisation", measured.optimisation)):
            if found is not None and not is_within(found, bounds):
                apart = "places or shape" if found.structure else f"rmse {found.rmse:.3g}"
                return f"onnxruntime {what} disagrees with itself on output {name!r}: {apart}"
    return ""


def sees(measured: Measured, policy: Policy, difference: Difference) -> bool:
    """Whether the comparison would reject an output that is wrong by `difference`."""
    if difference.structure:
        return True
    if not is_float(measured.dtype):
        return difference.different > 0 and (policy.rule != "quantized" or difference.worst > 1)
    bounds = tolerance.tolerance(policy, measured.dtype, measured.scale, measured.largest)
    if policy.rule == "quantized":
        return difference.worst > float(policy.params.get("step", 0.0)) + bounds.worst
    return difference.rmse > bounds.rmse or difference.worst > bounds.worst


PROBES: Mapping[str, str] = {
    "inputs": "no output depends on the inputs",
    "weights": "no output shows weights rounded to bfloat16",
}
"""What was changed in a probe, and what it means when no output shows it."""


def vacuity(
    outputs: Sequence[Measured], policies: Sequence[Policy], probes: Mapping[str, Sequence[Difference] | None]
) -> str:
    """Why a pass would say nothing, empty when the comparison is able to fail.

    Args:
        outputs: the reference's outputs.
        policies: of the outputs.
        probes: by name, each output's change; None where the probe does not apply.
    """
    if all(measured.largest == 0.0 and is_float(measured.dtype) for measured in outputs):
        return "every output is empty or zero"
    for name, reason in PROBES.items():
        changes = probes.get(name)
        # An index or a quantized value need not move with a small change: that is its nature, no vacuity.
        if changes is None or (name == "weights" and not any(is_float(each.dtype) for each in outputs)):
            continue
        if not any(sees(*each) for each in zip(outputs, policies, changes, strict=True)):
            return reason
    return ""
