"""Configurations of iree-test-suites/onnx_models, taken as they are, so that a CI job can switch.

Such a file describes one device and what is expected there of some models of the zoo:

    {
      config_name: "cpu",
      iree_compile_flags: ["--iree-hal-target-device=local", ...],
      iree_run_module_flags: ["--device=local-task"],
      tests_and_expected_outcomes: {
        default: "skip",
        "tests/model_zoo/<group>_models_test.py::test_models[<file>]": "pass",
      },
    }

It is JSON5. `<group>/<file>` is the model's path in the zoo. What the earlier suite lets
pass in silence, an unknown key or outcome, is refused here.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import json5

from onnx_models import peers
from onnx_models.cases import Case
from onnx_models.catalog import Model
from onnx_models.devices import Device
from onnx_models.outcomes import Expectation, Failure, Stage, UsageError

COLLECTION = "zoo"
"""The collection whose models the keys name."""

PASS, SKIP = "pass", "skip"

FAILS: Mapping[str, tuple[Stage, Stage | None]] = MappingProxyType(
    {
        "fail-import": (Stage.IMPORT, None),
        "fail-compile": (Stage.COMPILE, None),
        "fail-run": (Stage.RUN, Stage.COMPARE),
    }
)
"""First and last stage of each expected failure; the earlier suite lets `iree-run-module` compare."""

OUTCOMES = (PASS, SKIP, *FAILS)

_TESTS = "tests_and_expected_outcomes"
_FLAGS = ("iree_compile_flags", "iree_run_module_flags")
_REQUIRED = ("config_name", *_FLAGS, _TESTS)
# In the format's description, read by no version of the earlier suite.
_UNREAD = ("skip_compile_tests", "skip_run_tests")

_KEY = "tests/model_zoo/{group}_models_test.py::test_models[{file}]"
_KEY_FORM = re.compile(r"tests/model_zoo/(?P<group>[^:\[]+)_models_test\.py::test_models\[(?P<file>[^\]]+)\]")
_NAME_FORM = re.compile(r"[A-Za-z0-9][\w.+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """One such file, held against the catalogue.

    `outcomes` has the models that the file names, by id; `default` is for the rest of the zoo.
    """

    file: Path
    device: Device
    outcomes: Mapping[str, str]
    default: str = SKIP

    def outcome(self, model: Model) -> str:
        """What the file expects of a model; one from outside the zoo, which it cannot name, must pass."""
        return self.outcomes.get(model.id, self.default) if model.collection == COLLECTION else PASS

    def selected(self, models: Iterable[Model]) -> tuple[Model, ...]:
        """Those that the earlier suite would collect, and those that the file names beyond."""
        wanted = peers.listed() | set(self.outcomes)
        return tuple(model for model in models if model.id in wanted)

    def apply(self, case: Case) -> Case:
        """The case with the file's outcome as its expectation, imported as the earlier suite does."""
        outcome, model = self.outcome(case.model), case.model
        if model.collection == COLLECTION and not model.import_flags:
            model = replace(model, import_flags=peers.import_flags())
        return replace(
            case,
            model=model,
            expectation=self._expectation(model, outcome),
            skip=f"skip in {self.file}" if outcome == SKIP else "",
        )

    def advice(self, model: Model, failure: Failure | None) -> str:
        """The line that would make the file say what happened; empty where it has no word for that."""
        if model.collection != COLLECTION or (failure and failure.stage.order < Stage.IMPORT.order):
            return ""
        word = _word(failure)
        found = "it passes" if failure is None else f"the failure in {failure.stage.value} is known"
        return f'if {found}, write in {self.file}:\n"{key_of(model)}": "{word}"'

    def _expectation(self, model: Model, outcome: str) -> Expectation | None:
        if outcome not in FAILS:
            return None
        stage, through = FAILS[outcome]
        why = f"{outcome} in {self.file.name}"
        return Expectation(
            id=model.id, stage=stage, through=through, kind=None, why=why, source=str(self.file)
        )


def key_of(model: Model) -> str:
    """The key of a zoo model in such a file."""
    group, task, file = f"validated/{model.path}.onnx".rsplit("/", model.path.count("/") - 1)[0], "", ""
    return _KEY.format(group=group, file=file or task)
