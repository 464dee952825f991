from __future__ import annotations

import ast
import importlib.metadata
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterable, Mapping
from configparser import ConfigParser
from email import message_from_string
from pathlib import Path
from typing import Any

import pytest
from packaging.markers import default_environment
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import onnx_models
from onnx_models import catalog

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PACKAGE = Path(onnx_models.__file__).resolve().parent
ROOT = PACKAGE.parent

pytestmark = pytest.mark.skipif(
    not (ROOT / "pyproject.toml").is_file(), reason="needs a checkout: the package is installed without one"
)

PYTHONS = ("3.10", "3.11", "3.12", "3.13", "3.14")


def project() -> dict[str, Any]:
    table: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return table


def environment(python: str, system: str) -> dict[str, str]:
    platforms = {"Linux": ("linux", "x86_64"), "Darwin": ("darwin", "arm64")}
    sys_platform, machine = platforms[system]
    known: Mapping[str, str] = {key: str(value) for key, value in default_environment().items()}
    return {
        **known,
        "python_version": python,
        "python_full_version": f"{python}.1",
        "platform_system": system,
        "sys_platform": sys_platform,
        "platform_machine": machine,
    }


def locked() -> list[tuple[Requirement, int]]:
    """The lock's requirements, each with the number of its hashes."""
    text = re.sub(
        r"^\s*#.*\n", "", (ROOT / "requirements.lock").read_text(encoding="utf-8"), flags=re.MULTILINE
    )
    entries = []
    for line in text.replace("\\\n", " ").splitlines():
        requirement, *hashes = re.split(r"\s+--hash=sha256:", line.strip())
        entries.append((Requirement(requirement), len(hashes)))
    return entries


def applying(requirements: Iterable[Requirement], where: Mapping[str, str]) -> list[Requirement]:
    return [r for r in requirements if r.marker is None or r.marker.evaluate(dict(where))]


@pytest.mark.parametrize("system", ["Linux", "Darwin"])
@pytest.mark.parametrize("python", PYTHONS)
def test_lock_pins_each_declared_dependency_once(python: str, system: str) -> None:
    where = environment(python, system)
    declared = [Requirement(text) for text in project()["dependencies"]]
    for extra in ("dashboard", "dev"):
        declared += [Requirement(text) for text in project()["optional-dependencies"][extra]]
    pins: dict[str, list[str]] = {}
    for pin in applying((entry for entry, _ in locked()), where):
        (specifier,) = pin.specifier
        assert specifier.operator == "==", pin
        pins.setdefault(canonicalize_name(pin.name), []).append(specifier.version)
    assert [name for name, versions in pins.items() if len(versions) > 1] == []
    for requirement in applying(declared, where):
        versions = pins.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement} is not locked: run `make lock`"
        assert requirement.specifier.contains(versions[0]), f"{requirement} is locked to {versions[0]}"


def test_lock_has_hashes_and_names_no_place() -> None:
    assert [str(entry) for entry, hashes in locked() if not hashes] == []
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert re.findall(r"://| @ |--(?:extra-)?index-url|--find-links|--trusted-host", text) == []


def test_supported_pythons_are_declared() -> None:
    table = project()
    prefix = "Programming Language :: Python :: "
    assert [c.removeprefix(prefix) for c in table["classifiers"] if c.startswith(prefix)] == list(PYTHONS)
    bounds = Requirement(f"python{table['requires-python']}").specifier
    assert [p for p in ("3.9", *PYTHONS, "3.15") if bounds.contains(f"{p}.0")] == list(PYTHONS)


def imported(file: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names - set(sys.stdlib_module_names) - {"onnx_models", "tomllib"}


def owners() -> dict[str, set[str]]:
    """Top-level module to distributions; the standard library's own answer is poorer on Python 3.10."""
    found: dict[str, set[str]] = {"tomli": {"tomli"}}  # wanted, and installed, on 3.10 only
    for distribution in importlib.metadata.distributions():
        for file in distribution.files or ():
            if file.suffix in (".py", ".so", ".pyd"):
                module = file.parts[0].partition(".")[0]
                found.setdefault(module, set()).add(canonicalize_name(distribution.metadata["Name"]))
    return found


def test_every_third_party_import_is_declared() -> None:
    """A package that merely comes along with another one vanishes when that one changes its mind."""
    table = project()
    extras = {
        name: {canonicalize_name(Requirement(text).name) for text in texts}
        for name, texts in table["optional-dependencies"].items()
    }
    declared = {canonicalize_name(Requirement(text).name) for text in table["dependencies"]}
    declared |= extras["dashboard"]
    providers = owners()
    for file in sorted(PACKAGE.rglob("*.py")):
        allowed = set(declared)
        if "meta_tests" in file.parts:
            allowed |= extras["dev"]
            allowed |= {
                canonicalize_name(name) for name in ("packaging", "pluggy", "execnet")
            }  # pytest's own
        for module in imported(file):
            distributions = providers.get(module, set())
            assert distributions & allowed, f"{file.name} imports {module}: declare {distributions or 'it'}"


def run(arguments: list[str | Path], cwd: Path, **extra: str) -> str:
    env = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
    done = subprocess.run(
        arguments, cwd=cwd, env={**env, **extra}, text=True, capture_output=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("hatchling", reason="the build backend comes with `make venv`")
    folder = tmp_path_factory.mktemp("wheel")
    run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], ROOT)
    (built,) = folder.glob("*.whl")
    return built


def test_wheel_carries_code_data_and_tests(wheel: Path) -> None:
    tree = {
        file.relative_to(ROOT).as_posix()
        for file in PACKAGE.rglob("*")
        if file.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in file.parts)
    }
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert held == tree
    for pattern in (
        "catalogue/*.toml",
        "devices/*.toml",
        "schema/*.json",
        "py.typed",
        "meta_tests/test_*.py",
    ):
        assert [name for name in held if Path(name).match(f"onnx_models/{pattern}")], pattern


def test_wheel_declares_what_it_is(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.partition("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        facts = message_from_string(archive.read(f"{info}/METADATA").decode())
        entries = ConfigParser(delimiters=("=",))
        entries.read_string(archive.read(f"{info}/entry_points.txt").decode())
        licence = archive.read(f"{info}/licenses/LICENSE")
    assert (facts["Name"], facts["Version"]) == ("onnx-models", onnx_models.__version__)
    assert facts["License-Expression"] == "Apache-2.0"
    assert licence == (ROOT / "LICENSE").read_bytes()
    assert dict(entries["console_scripts"]) == {"onnx-models": "onnx_models.cli:main"}
    assert dict(entries["pytest11"]) == {"onnx_models.plugin": "onnx_models.plugin"}


def test_wheel_runs_from_an_empty_folder(wheel: Path, tmp_path: Path) -> None:
    site, empty = tmp_path / "site", tmp_path / "empty"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    empty.mkdir()
    expected = {f"test_model[cpu/{model.id}]" for model in catalog.load("wheels") if "magika" in model.id}
    command: list[str | Path] = [sys.executable, "-m", "pytest", "--pyargs", "onnx_models", "-k", "magika"]
    command += ["--device", "cpu", "--collect-only", "-q", "-p", "no:cacheprovider"]
    listed = run(command, empty, PYTHONPATH=str(site))
    assert {line.partition("::")[2] for line in listed.splitlines() if "::" in line} == expected
    assert expected


def test_plugin_is_registered_once(pytestconfig: pytest.Config) -> None:
    """The checkout's conftest.py and the installed entry point both ask for it."""
    names = [
        name
        for name, plugin in pytestconfig.pluginmanager.list_name_plugin()
        if getattr(plugin, "__name__", "") == "onnx_models.plugin"
    ]
    assert names == ["onnx_models.plugin"]


def test_console_script_answers() -> None:
    assert "Usage" in run([sys.executable, "-m", "onnx_models", "--help"], ROOT)


def test_conftest_only_loads_the_plugin() -> None:
    docstring, *asks, unless_installed = ast.parse((ROOT / "conftest.py").read_text(encoding="utf-8")).body
    assert isinstance(docstring, ast.Expr)
    assert [ast.unparse(line) for line in asks] == [
        "import os",
        "from importlib.metadata import entry_points",
    ]
    assert isinstance(unless_installed, ast.If)
    assert "'onnx_models.plugin' not in entry_points(" in ast.unparse(unless_installed.test)
    assert [ast.unparse(line) for line in unless_installed.body] == [
        "pytest_plugins = ['onnx_models.plugin']"
    ]


def test_ci_runs_reviewed_actions_and_the_script() -> None:
    workflows = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
    assert workflows
    for workflow in workflows:
        for action in re.findall(
            r"^\s*-?\s*uses:\s*(\S+.*)$", workflow.read_text(encoding="utf-8"), re.MULTILINE
        ):
            assert re.fullmatch(r"[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", action), (
                f"{workflow.name}: {action}"
            )
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
