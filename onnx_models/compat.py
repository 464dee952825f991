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
import json
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
from onnx_models.devices import Device, require_flags
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
        """The case with the file's outcome as all that is expected, imported as the earlier suite does."""
        outcome, model = self.outcome(case.model), case.model
        if model.collection == COLLECTION and not model.import_flags:
            model = replace(model, import_flags=peers.import_flags())
        return replace(
            case,
            model=model,
            expectation=self._expectation(model, outcome),
            recording=False,
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
    area, task, file = model.path.split("/", 2)
    return _KEY.format(group=f"validated/{area}/{task}", file=f"{file}.onnx")


def load(file: Path, models: Sequence[Model]) -> Config:
    """Read a file and find its models among those of the zoo.

    Args:
        file: JSON5, so JSON too.
        models: the catalogued models of `COLLECTION`.

    Raises:
        UsageError: no such file, not of this form, or it names what does not exist.
    """
    content = _parse(file)
    tests: dict[str, Any] = dict(content[_TESTS])
    default = _outcome(file, "default", tests.pop("default", SKIP))
    ids = {f"validated/{model.path}.onnx": model.id for model in models}
    keys = [key_of(model) for model in models]
    outcomes: dict[str, str] = {}
    for key, value in tests.items():
        found = _KEY_FORM.fullmatch(key)
        model_id = ids.get(f"{found['group']}/{found['file']}") if found else None
        if model_id is None:
            near = difflib.get_close_matches(key, keys, n=1, cutoff=0.0)
            raise UsageError(f"{file}: {key!r} names no model of the zoo: nearest: {', '.join(near)}")
        if model_id in outcomes:
            raise UsageError(f"{file}: {model_id!r} is named twice: keep one key")
        outcomes[model_id] = _outcome(file, key, value)
    return Config(file=file, device=_device(file, content), outcomes=outcomes, default=default)


def _parse(file: Path) -> Mapping[str, Any]:
    try:
        content = _json5(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read ({error.strerror}): give the path of a config") from None
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise UsageError(f"{file}: expected one JSON5 object without repeated keys: {reason}") from None
    if not isinstance(content, dict):
        raise UsageError(f"{file}: expected an object with {', '.join(_REQUIRED)}, found {content!r:.60}")
    for key in content:
        if key not in (*_REQUIRED, *_UNREAD):
            near = difflib.get_close_matches(key, _REQUIRED, n=1, cutoff=0.0)
            raise UsageError(f"{file}: unknown key {key!r}: nearest: {', '.join(near)}")
        if key in _UNREAD and content[key]:
            raise UsageError(f"{file}: {key!r} has no effect: write the outcomes in {_TESTS!r}")
    for key in _REQUIRED:
        if key not in content:
            raise UsageError(f"{file}: {key!r} is missing")
    if not isinstance(content[_TESTS], dict):
        raise UsageError(f"{file}: {_TESTS!r} must be an object, found {content[_TESTS]!r:.60}")
    return content


def _json5(text: str) -> object:
    """Plain JSON goes to the fast parser: json5 0.17 takes a tenth of a second per kB."""
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError:
        return json5.loads(text, object_pairs_hook=_unique)


def _unique(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    content: dict[str, Any] = {}
    for key, value in pairs:
        if key in content:
            raise ValueError(f"{key!r} stands there twice")
        content[key] = value
    return content


def _outcome(file: Path, key: str, value: object) -> str:
    if value not in OUTCOMES:
        raise UsageError(f"{file}: {key!r}: unknown outcome {value!r}: choose from {', '.join(OUTCOMES)}")
    return str(value)


def _device(file: Path, content: Mapping[str, Any]) -> Device:
    """The driver is that of the run flags; without one `iree-run-module` has nothing to run on."""
    name = content["config_name"]
    if not isinstance(name, str) or not _NAME_FORM.fullmatch(name):
        raise UsageError(
            f"{file}: 'config_name' names a folder, so it has letters, digits and . _ + -, found {name!r}"
        )
    compile_flags, run_flags = (_flags(file, key, content[key]) for key in _FLAGS)
    uris = [flag.partition("=")[2] for flag in run_flags if flag.startswith("--device=")]
    driver = uris[0].partition("://")[0] if uris else ""
    if not driver:
        raise UsageError(f"{file}: 'iree_run_module_flags' must name a device, such as --device=local-task")
    return Device(
        name=name,
        title=f"{name} of {file.name}",
        compile_flags=compile_flags,
        run_flags=run_flags,
        driver=driver,
        host_cpu=any(flag.endswith("-target-cpu=host") for flag in compile_flags),
    )


def _flags(file: Path, key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(flag, str) and flag for flag in value):
        raise UsageError(f"{file}: {key!r} must be a list of flags, found {value!r:.60}")
    require_flags(value, f"{file}: {key!r}")
    return tuple(value)


def _word(failure: Failure | None) -> str:
    if failure is None:
        return PASS
    return next(
        word
        for word, (first, last) in FAILS.items()
        if first.order <= failure.stage.order <= (last or first).order
    )
