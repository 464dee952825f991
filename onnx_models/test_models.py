"""The conformance test: one case for each model on each device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from onnx_models.cases import Case
from onnx_models.outcomes import Outcome
from onnx_models.reference import Reference
from onnx_models.stages import Settings, run_stages


def test_model(
    case: Case,
    model_file: Path,
    reference: Reference | None,
    settings: Settings,
    settle: Callable[[Outcome], None],
) -> None:
    settle(run_stages(case, model_file, reference, settings))
