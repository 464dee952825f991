"""What an earlier suite is known to test and to pass: hints for a reader, never verdicts.

The facts are `catalogue_facts/peer_expectations.toml`. Nothing here was measured by
this suite, so nothing here turns a case green or red.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from onnx_models import toml_files

FACTS = Path(__file__).parent / "catalogue_facts" / "peer_expectations.toml"

_CPU = ("local-task", "local-sync")


def listed() -> frozenset[str]:
    """Ids of the models that the earlier suite collects, whether it runs them or not."""
    facts = _facts()
    return frozenset(row["model"] for row in (*facts["passes"], *facts["left_out"]))


def import_flags() -> tuple[str, ...]:
    """Flags with which the earlier suite imports every model."""
    return tuple(_facts()["import_flags"])


def is_large(model_id: str) -> bool:
    """Whether the earlier suite marks the model `size_large`."""
    return model_id.startswith("zoo/") and model_id in _facts()["large"]


def hint(model_id: str, driver: str) -> str:
    """What the earlier suite expects of a model on a HAL driver; empty when it says nothing."""
    if not model_id.startswith("zoo/"):
        return ""
    facts = _facts()
    device = "cpu" if driver in _CPU else driver
    for row in facts["passes"]:
        if row["model"] == model_id and device in row["devices"]:
            return f"{facts['source']} expects it to pass on {device}; not verified here"
    for row in facts["left_out"]:
        if row["model"] == model_id:
            return f"{facts['source']} runs it on no device: {row['why']}; not verified here"
    return ""


@cache
def _facts() -> Mapping[str, Any]:
    return toml_files.read(FACTS)
