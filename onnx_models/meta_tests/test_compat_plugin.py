"""`--test-config-file`, `--cache-dir` and the earlier suite's variables, in whole runs.

The package under test is a copy whose zoo holds seven tiny models under real paths. One of
them comes from the hub, that is from the cache: nothing here may ask a network.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from onnx_models.meta_tests.sandbox import PACKAGE, Ended, Sandbox, copy_of_package
from onnx_models.store import Store

CLASSIFICATION = "vision/classification"
PATHS = {
    name: f"{CLASSIFICATION}/{name.partition('-')[0]}/model/{name}"
    for name in ("mnist-12", "alexnet-12", "vgg19-7", "caffenet-12", "squeezenet1.0-9", "resnet50-v1-12")
}
PATHS["alexnet-12"] = f"{CLASSIFICATION}/alexnet/model/bvlcalexnet-12"
PATHS["vgg19-7"] = f"{CLASSIFICATION}/vgg/model/vgg19-7"
PATHS["squeezenet1.0-9"] = f"{CLASSIFICATION}/squeezenet/model/squeezenet1.0-9"
PATHS["resnet50-v1-12"] = f"{CLASSIFICATION}/resnet/model/resnet50-v1-12"
PATHS["bertsquad-12"] = "text/machine_comprehension/bert-squad/model/bertsquad-12"

BEHAVIOURS = {
    "bvlcalexnet-12": ("compiler", "signal 11"),
    "vgg19-7": ("runner", "nan"),
    "caffenet-12": ("importer", "exit 1 x: error: no"),
}

OUTCOMES = {
    "mnist-12": "pass",
    "alexnet-12": "fail-compile",
    "vgg19-7": "fail-run",
    "caffenet-12": "pass",
    "squeezenet1.0-9": "fail-import",
}

CONFIG = {
    "config_name": "cpu_thing",
    "iree_compile_flags": ["--iree-hal-target-backends=llvm-cpu"],
    "iree_run_module_flags": ["--device=local-task"],
}


def key(name: str) -> str:
    file = PATHS[name].removeprefix(f"{CLASSIFICATION}/")
    return f"tests/model_zoo/validated/{CLASSIFICATION}_models_test.py::test_models[{file}.onnx]"


def config(sandbox: Sandbox, outcomes: Mapping[str, str], **changes: object) -> Path:
    file = sandbox.folder / "config.json"
    tests = {"default": "skip", **{key(name): outcome for name, outcome in outcomes.items()}}
    content = {**CONFIG, "tests_and_expected_outcomes": tests, **changes}
    # A trailing comma, as files of the earlier suite have them.
    file.write_text(json.dumps(content, indent=2)[:-2] + ",\n}\n", encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkout with seven models, of which `mnist-12` is in the cache at `earlier cache`."""
    folder = tmp_path_factory.mktemp("checkout")
    model = Sandbox(folder).save("tiny.onnx")
    home = copy_of_package(folder, models={"tiny": model})
    for name in ("conftest.py", "pytest.ini"):
        shutil.copy(PACKAGE.parent / name, home)
    facts = home / "onnx_models" / "catalogue_facts"
    facts.mkdir(exist_ok=True)
    shutil.copy(PACKAGE / "catalogue_facts" / "peer_expectations.toml", facts)
    content = model.read_bytes()
    sha256 = hashlib.sha256(content).hexdigest()
    kept = Store(root=folder / "earlier cache").file(sha256)
    kept.parent.mkdir(parents=True)
    kept.write_bytes(content)
    rows = [
        f"[[model]]\npath = '{path}'\nsource = {{ type = 'local', path = {json.dumps(str(model))} }}"
        for name, path in PATHS.items()
        if name != "mnist-12"
    ]
    mnist = PATHS["mnist-12"]
    rows.append(
        f"[[model]]\npath = '{mnist}'\nsource = {{ type = 'hub', path = 'validated/{mnist}.onnx' }}\n"
        f"sha256 = '{sha256}'\nbytes = {len(content)}"
    )
    (home / "onnx_models" / "catalogue" / "zoo.toml").write_text("\n".join(rows) + "\n", encoding="utf-8")
    return home


@pytest.fixture
def sandbox(tmp_path: Path, home: Path) -> Sandbox:
    """Fake tools that work, found by IREE_BIN as in a job that knows no option of this suite."""
    sandbox = Sandbox(tmp_path, home=home)
    sandbox.env["IREE_BIN"] = str(sandbox.tools())
    return sandbox


def run(sandbox: Sandbox, *arguments: str | Path) -> Ended:
    given = [str(argument) for argument in arguments]
    plugin = ["-p", "onnx_models.plugin", "--pyargs", "onnx_models", "--record", "record.jsonl"]
    return sandbox.execute([sys.executable, "-m", "pytest", *plugin, *given])


def test_job_of_the_earlier_suite_runs_with_one_path_changed(sandbox: Sandbox, home: Path) -> None:
    sandbox.tools_by_model(BEHAVIOURS)
    # Options win over variables.
    sandbox.env["IREE_TEST_CONFIG_FILE"] = str(sandbox.folder / "none.json")
    sandbox.env["IREE_TEST_FILES"] = sandbox.env["ONNX_MODELS_CACHE"]
    file = config(sandbox, OUTCOMES)
    options = ["-rA", "--log-cli-level=info", "--durations=0", f"--test-config-file={file}"]
    cache = ["--cache-dir", str(home.parent / "earlier cache"), "--record=record.jsonl", "--offline"]
    ended = sandbox.execute([sys.executable, "-m", "pytest", f"{home}/onnx_models/", *options, *cache])
    assert ended.code == 1, ended.output
    found = {row["model"].rpartition("/")[2]: row for row in sandbox.record().cases.values()}
    assert {name: (row["verdict"], row["stage"], row["kind"]) for name, row in found.items()} == {
        "mnist-12": ("passed", "compare", None),
        "bvlcalexnet-12": ("expected-failure", "compile", "crash"),
        "vgg19-7": ("expected-failure", "compare", "mismatch"),
        "caffenet-12": ("regressed", "import", "error"),
        "squeezenet1.0-9": ("improved", "compare", None),
        "resnet50-v1-12": ("skipped", None, None),
    }
    mnist = found["mnist-12"]
    assert mnist["id"] == f"cpu_thing/zoo/{PATHS['mnist-12']}"
    assert mnist["flags"] == {
        "import": ["--opset-version", "17"],
        "compile": CONFIG["iree_compile_flags"],
        "run": CONFIG["iree_run_module_flags"],
    }
    assert found["vgg19-7"]["expected"] == {"stage": "run", "kind": None, "why": "fail-run in config.json"}
    assert found["resnet50-v1-12"]["reason"] == f"skip in {file}"
    assert f"write in {file}:\n" in ended.output
    assert f'"{key("caffenet-12")}": "fail-import"' in ended.output
    assert f'"{key("squeezenet1.0-9")}": "pass"' in ended.output
    hint = "expects it to pass on cpu; not verified here"
    assert hint in ended.output
    assert hint in found["caffenet-12"]["notes"][-1]
    assert not any(hint in note for note in mnist["notes"])
    assert not Path(sandbox.env["ONNX_MODELS_CACHE"]).exists()


def test_variables_do_what_the_options_do(sandbox: Sandbox, home: Path) -> None:
    del sandbox.env["ONNX_MODELS_CACHE"]
    sandbox.env["XDG_CACHE_HOME"] = str(sandbox.folder / "nothing here")
    sandbox.env["IREE_TEST_CONFIG_FILE"] = str(config(sandbox, OUTCOMES))
    sandbox.env["IREE_TEST_FILES"] = str(home.parent / "earlier cache")
    ended = run(sandbox, "--offline", "--require-models", "-k", "mnist")
    assert ended.code == 0, ended.output
    assert sandbox.record().verdicts == {f"cpu_thing/zoo/{PATHS['mnist-12']}": ("passed", "compare", None)}


def test_collection_widens_and_a_mark_narrows_the_selection(sandbox: Sandbox) -> None:
    file = config(sandbox, OUTCOMES)
    ended = run(
        sandbox,
        "--test-config-file",
        file,
        "--collect-only",
        "-q",
        "--collection",
        "zoo",
        "-m",
        "not size_large",
    )
    assert "[cpu_thing/zoo/text/machine_comprehension/bert-squad/model/bertsquad-12]" in ended.output
    assert "vgg19-7" not in ended.output
    assert ended.output.count("cpu_thing/zoo/") == len(PATHS) - 1


def refused(sandbox: Sandbox, *arguments: str | Path) -> str:
    ended = run(sandbox, *arguments)
    assert ended.code == 4, ended.output
    assert "Traceback" not in ended.output
    assert not (sandbox.folder / "record.jsonl").exists()
    (line,) = (line for line in ended.output.splitlines() if line.startswith("ERROR: "))
    return line


def test_unknown_key_is_refused_before_anything_runs(sandbox: Sandbox) -> None:
    wrong = key("mnist-12").replace("mnist-12", "mnist-21")
    file = config(sandbox, {}, tests_and_expected_outcomes={wrong: "pass"})
    line = refused(sandbox, "--test-config-file", file)
    assert f"{file}: '{wrong}' names no model of the zoo: nearest: {key('mnist-12')}" in line


def test_device_and_config_together_are_refused(sandbox: Sandbox) -> None:
    sandbox.env["IREE_TEST_CONFIG_FILE"] = str(config(sandbox, {}))
    assert "--device cpu: IREE_TEST_CONFIG_FILE (" in refused(sandbox, "--device", "cpu")


def test_device_that_is_not_here_is_refused(sandbox: Sandbox) -> None:
    file = config(sandbox, {}, iree_run_module_flags=["--device=hip"])
    assert "device 'cpu_thing': no hip device here" in refused(sandbox, "--test-config-file", file)
