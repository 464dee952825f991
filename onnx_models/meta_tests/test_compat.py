"""Configurations of the earlier suite: read as they are, and refused where they say nothing."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import json5
import pytest

from onnx_models import catalog, compat, peers
from onnx_models.cases import Case
from onnx_models.catalog import Model
from onnx_models.compat import Config
from onnx_models.outcomes import Failure, Kind, Stage, UsageError, Verdict, judge

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

VISION = "tests/model_zoo/validated/vision/"
MNIST = f"{VISION}classification_models_test.py::test_models[mnist/model/mnist-12.onnx]"
YOLO = f"{VISION}object_detection_segmentation_models_test.py::test_models[yolov4/model/yolov4.onnx]"
AGE = f"{VISION}body_analysis_models_test.py::test_models[age_gender/models/age_googlenet.onnx]"

# Comments, single quotes, bare keys and trailing commas: what JSON5 has and real files use.
TEXT = f"""
// A device and what it can do.
{{
  config_name: 'gpu_thing',
  "iree_compile_flags": ["--iree-hal-target-device=hip", "--iree-rocm-target=gfx1100",],
  "iree_run_module_flags": ["--device=hip://1", '--device_allocator=caching'],
  "tests_and_expected_outcomes": {{
    "default": "skip",
    "{MNIST}": "pass",  /* the smallest */
    "{YOLO}": "fail-compile",
  }},
}}
"""

CONTENT = json5.loads(TEXT)


@pytest.fixture(scope="module")
def zoo() -> tuple[Model, ...]:
    return catalog.load(compat.COLLECTION)


def _write(folder: Path, text: str = TEXT, **changes: Any) -> Path:
    file = folder / "config.json"
    if changes:
        content = {**CONTENT, **changes}
        text = json.dumps({key: value for key, value in content.items() if value is not None})
    file.write_text(text, encoding="utf-8")
    return file


def _load(folder: Path, zoo: tuple[Model, ...], **outcomes: str) -> Config:
    tests = {{"mnist": MNIST, "yolo": YOLO, "age": AGE}.get(k, k): v for k, v in outcomes.items()}
    return compat.load(_write(folder, tests_and_expected_outcomes=tests), zoo)


def _of(zoo: tuple[Model, ...], name: str) -> Model:
    (found,) = (model for model in zoo if model.path.endswith(f"/{name}"))
    return found


def _case(config: Config, model: Model) -> Case:
    return config.apply(Case(model=model, device=config.device))


def test_file_becomes_a_device_and_outcomes(tmp_path: Path, zoo: tuple[Model, ...]) -> None:
    config = compat.load(_write(tmp_path), zoo)
    device = config.device
    assert (device.name, device.driver, device.absent, device.host_cpu) == ("gpu_thing", "hip", "skip", False)
    assert device.compile_flags == ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx1100")
    assert device.run_flags == ("--device=hip://1", "--device_allocator=caching")
    assert config.default == "skip"
    assert config.outcomes == {
        "zoo/vision/classification/mnist/model/mnist-12": "pass",
        "zoo/vision/object_detection_segmentation/yolov4/model/yolov4": "fail-compile",
    }


def test_module_for_the_host_depends_on_its_cpu(tmp_path: Path, zoo: tuple[Model, ...]) -> None:
    file = _write(tmp_path, iree_compile_flags=["--iree-llvmcpu-target-cpu=host"])
    assert compat.load(file, zoo).device.host_cpu


def test_every_zoo_model_has_a_key_that_names_it(tmp_path: Path, zoo: tuple[Model, ...]) -> None:
    assert all(model.source["path"] == f"validated/{model.path}.onnx" for model in zoo)
    config = _load(tmp_path, zoo, **{compat.key_of(model): "pass" for model in zoo})
    assert set(config.outcomes) == {model.id for model in zoo}
    assert compat.key_of(_of(zoo, "mnist-12")) == MNIST


def test_selection_is_the_earlier_suites_and_what_the_file_adds(
    tmp_path: Path, zoo: tuple[Model, ...]
) -> None:
    beyond = _of(zoo, "bertsquad-12")
    assert beyond.id not in peers.listed()
    config = _load(tmp_path, zoo, **{compat.key_of(beyond): "pass"})
    chosen = {model.id for model in config.selected(zoo)}
    assert chosen == peers.listed() | {beyond.id}
    assert len(chosen) == 38


@pytest.mark.parametrize("default", ["skip", None])
def test_model_that_the_file_does_not_name_is_skipped_with_a_reason(
    tmp_path: Path, zoo: tuple[Model, ...], default: str | None
) -> None:
    config = _load(tmp_path, zoo, mnist="pass", **({"default": default} if default else {}))
    assert _case(config, _of(zoo, "mnist-12")).skip == ""
    assert _case(config, _of(zoo, "yolov4")).skip == f"skip in {config.file}"


def test_default_can_be_any_outcome(tmp_path: Path, zoo: tuple[Model, ...]) -> None:
    config = _load(tmp_path, zoo, default="fail-import", mnist="pass")
    expectation = _case(config, _of(zoo, "yolov4")).expectation
    assert expectation is not None
    assert expectation.stage is Stage.IMPORT
    assert _case(config, _of(zoo, "mnist-12")).expectation is None


def test_default_leaves_models_from_outside_the_zoo_alone(tmp_path: Path, zoo: tuple[Model, ...]) -> None:
    model = Model(collection="local", path="mine", source={"type": "local", "path": "mine.onnx"})
    case = _case(_load(tmp_path, zoo, default="skip"), model)
    assert (case.skip, case.expectation, case.model.import_flags) == ("", None, ())


def test_pass_means_must_pass_even_where_a_collection_is_only_recorded(
    tmp_path: Path, zoo: tuple[Model, ...]
) -> None:
    config = _load(tmp_path, zoo, mnist="pass")
    case = config.apply(Case(model=_of(zoo, "mnist-12"), device=config.device, recording=True))
    assert not case.recording


def test_models_are_imported_as_the_earlier_suite_does(tmp_path: Path, zoo: tuple[Model, ...]) -> None:
    config = _load(tmp_path, zoo, default="pass")
    assert _case(config, _of(zoo, "mnist-12")).model.import_flags == ("--opset-version", "17")


@pytest.mark.parametrize(
    ("outcome", "stage", "kind", "verdict"),
    [
        ("fail-import", Stage.IMPORT, Kind.ERROR, Verdict.EXPECTED_FAILURE),
        ("fail-import", Stage.IMPORT, Kind.TIMEOUT, Verdict.EXPECTED_FAILURE),
        ("fail-import", Stage.COMPILE, Kind.ERROR, Verdict.IMPROVED),
        ("fail-compile", Stage.IMPORT, Kind.ERROR, Verdict.REGRESSED),
        ("fail-compile", Stage.COMPILE, Kind.CRASH, Verdict.EXPECTED_FAILURE),
        ("fail-compile", Stage.RUN, Kind.ERROR, Verdict.IMPROVED),
        ("fail-run", Stage.COMPILE, Kind.ERROR, Verdict.REGRESSED),
        ("fail-run", Stage.RUN, Kind.ERROR, Verdict.EXPECTED_FAILURE),
        ("fail-run", Stage.COMPARE, Kind.MISMATCH, Verdict.EXPECTED_FAILURE),
        ("pass", Stage.COMPARE, Kind.MISMATCH, Verdict.REGRESSED),
        ("fail-run", Stage.RUN, Kind.INFRASTRUCTURE, Verdict.ERROR),
        ("fail-run", None, None, Verdict.IMPROVED),
        ("pass", None, None, Verdict.PASSED),
    ],
)
def test_outcomes_are_judged_by_stage(
    tmp_path: Path,
    zoo: tuple[Model, ...],
    outcome: str,
    stage: Stage | None,
    kind: Kind | None,
    verdict: Verdict,
) -> None:
    case = _case(_load(tmp_path, zoo, mnist=outcome), _of(zoo, "mnist-12"))
    failure = Failure(stage=stage, kind=kind, message="x") if stage and kind else None
    judgement = judge(case.expectation, failure, case_id=case.model.id)
    assert judgement.verdict is verdict
    if verdict is Verdict.EXPECTED_FAILURE:
        assert judgement.reason.endswith(f"{outcome} in config.json")


@pytest.mark.parametrize(
    ("stage", "word"),
    [
        (None, "pass"),
        (Stage.IMPORT, "fail-import"),
        (Stage.COMPILE, "fail-compile"),
        (Stage.RUN, "fail-run"),
        (Stage.COMPARE, "fail-run"),
    ],
)
def test_advice_is_a_line_of_the_file(
    tmp_path: Path, zoo: tuple[Model, ...], stage: Stage | None, word: str
) -> None:
    config = _load(tmp_path, zoo, mnist="pass")
    failure = Failure(stage=stage, kind=Kind.ERROR, message="x") if stage else None
    line = config.advice(_of(zoo, "mnist-12"), failure).splitlines()[-1]
    assert json.loads("{" + line + "}") == {MNIST: word}
    assert str(config.file) in config.advice(_of(zoo, "mnist-12"), failure)


def test_no_advice_where_the_file_has_no_word(tmp_path: Path, zoo: tuple[Model, ...]) -> None:
    config = _load(tmp_path, zoo, mnist="pass")
    failure = Failure(stage=Stage.REFERENCE, kind=Kind.ERROR, message="x")
    assert config.advice(_of(zoo, "mnist-12"), failure) == ""


def test_documented_keys_that_nothing_reads_may_be_empty(tmp_path: Path, zoo: tuple[Model, ...]) -> None:
    assert compat.load(_write(tmp_path, skip_compile_tests=[], skip_run_tests=[]), zoo).outcomes
    with pytest.raises(UsageError, match=r"config.json: 'skip_run_tests' has no effect"):
        compat.load(_write(tmp_path, skip_run_tests=["x"]), zoo)


FUNCTION = f"{VISION}classification_models_test.py::test_mnist"
MISSPELT = MNIST.replace("mnist-12", "mnist-21")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tests_and_expected_outcomes": {MISSPELT: "pass"}}, "mnist-21.*names no model.*nearest:.*mnist-1"),
        ({"tests_and_expected_outcomes": {FUNCTION: "pass"}}, r"test_mnist' names no model.*nearest: tests/"),
        ({"tests_and_expected_outcomes": {MNIST: "fail-compare"}}, "'fail-compare': choose from pass, skip"),
        ({"tests_and_expected_outcomes": {MNIST: ["pass"]}}, r"unknown outcome \['pass'\]"),
        ({"tests_and_expected_outcomes": {"default": "xfail"}}, "'default': unknown outcome 'xfail'"),
        ({"tests_and_expected_outcomes": ["pass"]}, "'tests_and_expected_outcomes' must be an object"),
        ({"tests_and_expected_outcomes": None}, "'tests_and_expected_outcomes' is missing"),
        ({"config_name": None}, "'config_name' is missing"),
        ({"config_name": "../up"}, "'config_name' names a folder.*found '../up'"),
        ({"config_name": 7}, "'config_name' names a folder.*found 7"),
        ({"iree_compile_flags": None}, "'iree_compile_flags' is missing"),
        ({"iree_compile_flags": "--a --b"}, "'iree_compile_flags' must be a list of flags, found '--a --b'"),
        ({"iree_compile_flags": [1]}, "'iree_compile_flags' must be a list of flags"),
        ({"iree_run_module_flags": []}, "'iree_run_module_flags' must name a device"),
        ({"iree_run_flags": []}, "unknown key 'iree_run_flags': nearest: iree_run_module_flags"),
    ],
)
def test_wrong_content_is_a_usage_error(
    tmp_path: Path, zoo: tuple[Model, ...], changes: dict[str, Any], message: str
) -> None:
    removed = [key for key, value in changes.items() if value is None]
    file = _write(tmp_path, **changes)
    assert not any(key in file.read_text(encoding="utf-8") for key in removed)
    with pytest.raises(UsageError, match=message) as caught:
        compat.load(file, zoo)
    assert "\n" not in str(caught.value)
    assert str(caught.value).startswith(f"{file}: ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected one JSON5 object"),
        ("{", "expected one JSON5 object"),
        ("[" * 100_000, "expected one JSON5 object"),
        ("[]", "expected an object with config_name"),
        ("{config_name: 'a', config_name: 'b'}", "'config_name' stands there twice"),
        ('{"x": 1, "x": 2}', "'x' stands there twice"),
    ],
)
def test_wrong_text_is_a_usage_error(tmp_path: Path, zoo: tuple[Model, ...], text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        compat.load(_write(tmp_path, text), zoo)
    assert "\n" not in str(caught.value)


def test_unreadable_file_is_a_usage_error(tmp_path: Path, zoo: tuple[Model, ...]) -> None:
    with pytest.raises(UsageError, match=r"none.json: cannot be read"):
        compat.load(tmp_path / "none.json", zoo)
    with pytest.raises(UsageError, match="cannot be read"):
        compat.load(tmp_path, zoo)
    (tmp_path / "latin.json").write_bytes(b"{config_name: '\xe9'}")
    with pytest.raises(UsageError, match=r"latin.json: expected one JSON5 object"):
        compat.load(tmp_path / "latin.json", zoo)


def test_model_named_by_two_keys_is_a_usage_error(tmp_path: Path, zoo: tuple[Model, ...]) -> None:
    other = MNIST.replace("/classification_", "_").replace("[", "[classification/")
    with pytest.raises(UsageError, match=r"mnist-12' is named twice"):
        _load(tmp_path, zoo, **{MNIST: "pass", other: "pass"})


def test_peers_pass_as_many_models_as_is_known() -> None:
    zoo = {model.id for model in catalog.load("zoo")}
    assert peers.listed() <= zoo
    assert sum(map(peers.is_large, peers.listed())) == 5
    hints = Counter(
        driver
        for model_id in peers.listed()
        for driver in ("local-task", "hip", "vulkan")
        if " expects it to pass on " in peers.hint(model_id, driver)
    )
    assert hints == {"local-task": 19, "hip": 17, "vulkan": 9}


def test_hints_say_that_they_are_not_verified() -> None:
    mnist = "zoo/vision/classification/mnist/model/mnist-12"
    assert peers.hint(mnist, "local-sync").endswith("expects it to pass on cpu; not verified here")
    assert "runs it on no device" in peers.hint(
        "zoo/vision/object_detection_segmentation/yolov4/model/yolov4", "hip"
    )
    assert peers.hint(mnist, "cuda") == ""
    assert peers.hint("zoo/text/machine_comprehension/bert-squad/model/bertsquad-12", "hip") == ""
    assert peers.hint("skeletons/resnet50", "hip") == ""


def test_requirements_are_the_projects_without_iree() -> None:
    """A job installs `requirements.txt` of the folder it tests; it must not replace the job's own IREE."""
    project = peers.FACTS.parent.parent.parent / "pyproject.toml"
    if not project.is_file():
        pytest.skip("not a checkout")
    needed = tomllib.loads(project.read_text(encoding="utf-8"))["project"]["dependencies"]
    lines = (peers.FACTS.parent.parent / "requirements.txt").read_text(encoding="utf-8").splitlines()
    listed = {line for line in lines if line and not line.startswith("#")}
    extra = {"pytest-html", "pytest-reportlog", "pytest-timeout"}
    assert listed - extra == {line for line in needed if not line.startswith("iree-")}
