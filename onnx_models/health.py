"""Tells a broken machine from a broken IREE, for a whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from onnx_models.outcomes import Kind, Stage, Verdict

_OF_THE_MODEL = frozenset(
    kind.value for kind in (Kind.ERROR, Kind.REFERENCE_UNHEALTHY, Kind.UNSUPPORTED_INPUT)
)
"""A reference that fails so was answered: onnxruntime works, and the model has none on any machine."""

HOST_BROKEN = 10
"""Exit code of a run that says nothing of IREE; pytest itself uses 0 to 5."""

SHARE = 50.0
"""Per cent of the cases, by default, whose failure in the machine's own part makes a run worthless."""

LEAST = 4
"""Fewer such cases say too little, as when one model is tested whose download fails."""


def broken_host(rows: Iterable[Mapping[str, Any]], *, share: float = SHARE) -> str:
    """Why a run says nothing of IREE, empty when it does.

    It says nothing when more than `share` per cent of the cases that were tried
    failed in fetch or reference, or with one and the same infrastructure signature.
    A model that onnxruntime refuses is the model's own failure and counts for neither.
    """
    tried = [row for row in rows if row["verdict"] != Verdict.SKIPPED.value]
    causes: Counter[str] = Counter()
    for row in tried:
        if row["verdict"] == Verdict.EXPECTED_FAILURE.value or row["kind"] is None:
            continue
        fetch, reference = (row["stage"] == stage.value for stage in (Stage.FETCH, Stage.REFERENCE))
        if fetch or (reference and row["kind"] not in _OF_THE_MODEL):
            causes["failed in fetch or reference"] += 1
        if row["kind"] == Kind.INFRASTRUCTURE.value:
            causes[f"failed as {row.get('signature') or row['message']}"] += 1
    for cause, count in causes.most_common(1):
        if count >= LEAST and count > len(tried) * share / 100:
            return f"the host is broken, not IREE: {count} of {len(tried)} cases {cause}"
    return ""
