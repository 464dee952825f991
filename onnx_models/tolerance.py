"""How far two right answers may lie apart: the constants of the comparison, in one place.

Every constant is explained in `docs/numerics.md` with the measurement behind it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from types import MappingProxyType
from typing import Any, Literal, TypeAlias

Basis: TypeAlias = Literal["float64", "optimisation", "ulp", "default", "exact"]
Rule: TypeAlias = Literal["values", "exact", "indices", "rows", "quantized"]

EPS: Mapping[str, float] = MappingProxyType(
    {
        "float16": 2.0**-10,
        "bfloat16": 2.0**-7,
        "float32": 2.0**-23,
        "float64": 2.0**-52,
        "float8_e4m3fn": 2.0**-3,
        "float8_e4m3fnuz": 2.0**-3,
        "float8_e5m2": 2.0**-2,
        "float8_e5m2fnuz": 2.0**-2,
        "float8_e8m0fnu": 1.0,
    }
)
"""Distance from 1 to the next number of each float type."""

TINY: Mapping[str, float] = MappingProxyType(
    {"float16": 2.0**-14, "bfloat16": 2.0**-126, "float32": 2.0**-126, "float64": 2.0**-1022}
)
"""Smallest normal number: below it IREE flushes to zero (IREE 3.13), so nothing there is compared."""

NOISE_FACTOR = 8.0
"""m: how many times the reference's own error a right answer may be away, in rmse."""

ULP_FLOOR = 2.0
"""k: how many eps of the output's scale are allowed whatever the noise."""

WORST_FACTOR = 4.0
"""How much further than the rmse bound's own terms the largest single error may go."""

FEW_SAMPLES = 15.0
"""A noise seen on n elements may be too small by luck: it is taken 1 + FEW_SAMPLES / n**2 times.

That follows the 95 % bound sqrt(n / chi2(0.05, n)) of a standard deviation: 16, 4.4, 2.9, 2.4 for
n = 1 to 4.
"""

DEFAULT_NOISE: Mapping[str, float] = MappingProxyType(
    {"float64": 1e-12, "float32": 1e-5, "float16": 2.0**-11, "bfloat16": 2.0**-8}
)
"""Noise assumed of an output relative to its scale where nothing could be measured."""


UNHEALTHY: Mapping[str, float] = MappingProxyType(
    {"float64": 1e-9, "float32": 1e-3, "float16": 2e-2, "bfloat16": 1e-1}
)
"""rmse relative to the scale beyond which two evaluations of one model are not one answer.

It is the tolerance that conformance suites commonly grant these types.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What an output is held against, and how.

    Attributes:
        rule: how elements are paired and judged.
        basis: where the noise comes from.
        noise: the reference's own error, as rmse, in the output's units.
        noise_max: the largest single difference behind `noise`.
        samples: how many elements `noise` was seen on, 0 where it was not measured.
        params: of the rule: `step` of a quantized output, `axis` of indices, `group` of rows.
        origin: why this rule: the producing operator, or "catalogue".
    """

    rule: Rule = "values"
    basis: Basis = "default"
    noise: float = 0.0
    noise_max: float = 0.0
    samples: int = 0
    params: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "element type"

    def to_json(self) -> dict[str, Any]:
        """The policy as plain data for `reference.json` and the record."""
        return asdict(self) | {"params": dict(self.params)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """The two bounds that an output must keep: on its rmse, and on its worst element."""

    rmse: float
    worst: float


def is_float(dtype: str) -> bool:
    """Whether values of this type carry rounding errors."""
    return dtype in EPS


def default_policy(dtype: str, scale: float, largest: float) -> Policy:
    """The policy where nothing is known of an output but its element type.

    Args:
        dtype: numpy's name.
        scale: root mean square of the output's finite values.
        largest: the largest magnitude among them.
    """
    if not is_float(dtype):
        return Policy(rule="exact", basis="exact")
    relative = DEFAULT_NOISE.get(dtype, EPS[dtype])
    return Policy(basis="default", noise=relative * scale, noise_max=relative * largest)


def health_bounds(dtype: str, scale: float, largest: float) -> Tolerance:
    """How far two evaluations of an output may differ for either to be a judge."""
    relative = UNHEALTHY.get(dtype, 4 * EPS[dtype])
    tiny = TINY.get(dtype, 0.0)
    return Tolerance(rmse=relative * scale + tiny, worst=2 * WORST_FACTOR * relative * largest + tiny)


def tolerance(policy: Policy, dtype: str, scale: float, largest: float) -> Tolerance:
    """Bounds of an output with this noise, type, rms `scale` and `largest` magnitude."""
    eps, tiny = EPS[dtype], TINY.get(dtype, 0.0)
    factor = NOISE_FACTOR * (1 + FEW_SAMPLES / policy.samples**2 if policy.samples else 1.0)
    rmse = factor * policy.noise + ULP_FLOOR * eps * scale + tiny
    worst = WORST_FACTOR * (factor * policy.noise_max + ULP_FLOOR * eps * largest) + tiny
    return Tolerance(rmse=rmse, worst=worst)
