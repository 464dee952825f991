"""Tells a broken machine from a broken IREE, for a whole run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from onnx_models.outcomes import Kind, Stage, Verdict

HOST_BROKEN = 10
"""Exit code of a run that says nothing of IREE; pytest itself uses 0 to 5."""

SHARE = 50.0
"""Per cent of the cases, by default, whose failure in the machine's own part makes a run worthless."""

LEAST = 4
"""Fewer such cases say too little, as when one model is tested whose download fails."""


def broken_host(rows: Iterable[Mapping[str, Any]], *, share: float = SHARE) -> str:
    """Why a run says nothing of IREE, empty when it does.

    It says nothing when more than `share` per cent of the cases that were tried
    failed in fetch, in reference, or with one and the same infrastructure signature.
    """
    tried = [row for row in rows if row["verdict"] != Verdict.SKIPPED.value]
    causes: Counter[str] = Counter()
    for row in tried:
        # An unhealthy reference is the model's own; without a kind, the suite itself failed later.
        ours = row["kind"] not in (None, Kind.REFERENCE_UNHEALTHY.value)
        early = row["stage"] in (Stage.FETCH.value, Stage.REFERENCE.value)
        if row["verdict"] == Verdict.ERROR.value and ours and early:
            causes[f"failed in {row['stage']}"] += 1
        elif row["kind"] == Kind.INFRASTRUCTURE.value:
            causes[f"failed as {row.get('signature') or row['message']}"] += 1
    for cause, count in causes.most_common(1):
        if count >= LEAST and count > len(tried) * share / 100:
            return f"the host is broken, not IREE: {count} of {len(tried)} cases {cause}"
    return ""
