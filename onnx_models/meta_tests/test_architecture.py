"""The order of the modules, and what only some of them may do."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

import onnx_models
from onnx_models.meta_tests.sandbox import PACKAGE, Sandbox

ORDER = tuple(re.findall(r"^ {4,}(\w+) +\S", onnx_models.__doc__ or "", re.MULTILINE))
"""The modules as the package's own words list them: a module reaches only those above it."""

STARTERS = {"tools", "supervisor"}

PROCESS_WORDS = {"system", "popen", "fork", "forkpty", "posix_spawn", "posix_spawnp", "startfile"}


def module_of(file: Path) -> str:
    """A module's name inside the package; a package is one module, its `plugin.options` is `plugin`."""
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def sources() -> Iterator[tuple[str, Path, ast.Module]]:
    for file in sorted(PACKAGE.rglob("*.py")):
        if "meta_tests" not in file.parts and file.name not in ("__init__.py", "__main__.py"):
            yield module_of(file), file, ast.parse(file.read_text(encoding="utf-8"))
    init = PACKAGE / "plugin" / "__init__.py"
    yield "plugin", init, ast.parse(init.read_text(encoding="utf-8"))


def imported(tree: ast.Module) -> Iterator[str]:
    """Full names of what a module imports, also inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


@cache
def graph() -> Mapping[str, frozenset[str]]:
    """For each module of the package, those that it imports itself."""
    found: dict[str, set[str]] = {}
    for name, _, tree in sources():
        parts = [word.split(".") for word in imported(tree)]
        mine = {words[1] for words in parts if words[0] == "onnx_models" and len(words) > 1}
        found.setdefault(name, set()).update(mine - {name})
    return {name: frozenset(names & set(found)) for name, names in found.items()}


def reach(name: str) -> set[str]:
    """All modules that a module brings in, itself included."""
    seen, waiting = set(), [name]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            waiting += graph().get(module, ())
    return seen


def users_of(*packages: str) -> dict[str, list[str]]:
    """The files that import one of these packages, by module."""
    found: dict[str, list[str]] = {}
    for name, file, tree in sources():
        if any(word.split(".")[0] in packages for word in imported(tree)):
            found.setdefault(name, []).append(file.name)
    return found


def test_the_graph_is_read() -> None:
    assert {"outcomes", "plugin", "cli", "stages", "tools"} <= set(graph())
    assert "tools" in graph()["stages"]
    assert "outcomes" in reach("plugin")


def test_the_package_lists_each_of_its_modules_once() -> None:
    assert sorted(ORDER) == sorted(graph())


@pytest.mark.parametrize("name", ORDER)
def test_a_module_reaches_only_those_above_it(name: str) -> None:
    below = set(ORDER[ORDER.index(name) + 1 :])
    assert sorted(reach(name) & below) == []


def test_no_cycle() -> None:
    cycles = [name for name in graph() if any(name in reach(other) for other in graph()[name])]
    assert cycles == []


def test_only_the_plugin_imports_pytest() -> None:
    assert set(users_of("pytest", "_pytest", "xdist")) == {"plugin"}


def test_only_tools_starts_processes() -> None:
    assert set(users_of("subprocess", "multiprocessing", "pty")) <= STARTERS
    words = {
        name: ast.unparse(node)
        for name, _, tree in sources()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in ("os", "asyncio")
        and (node.attr in PROCESS_WORDS or node.attr.startswith(("exec", "spawn", "create_subprocess")))
        and name not in STARTERS
    }
    assert words == {}


@pytest.mark.parametrize("entry", ["plugin", "cli", "test_models"])
def test_the_harness_reaches_neither_onnx_nor_onnxruntime(entry: str) -> None:
    loaders = set(users_of("onnx", "onnxruntime"))
    assert sorted(reach(entry) & loaders) == []


def test_only_children_reach_onnxruntime() -> None:
    runners = set(users_of("onnxruntime"))
    assert runners
    entries = [name for name in graph() if reach(name) & runners]
    users = {name for name in entries if not any(name in graph()[other] for other in entries)}
    assert {name for name in users if not name.endswith("_child")} <= runners


SPY = """
import json, pathlib, sys

def pytest_sessionfinish(session):
    name = getattr(session.config, "workerinput", {}).get("workerid", "main")
    pathlib.Path(f"modules-{name}.json").write_text(json.dumps(sorted(sys.modules)))
"""


def test_no_process_of_pytest_loads_onnx(sandbox: Sandbox) -> None:
    (sandbox.folder / "spy.py").write_text(SPY, encoding="utf-8")
    sandbox.env["PYTHONPATH"] += f":{sandbox.folder}"
    ended = sandbox.run("--model", "tiny.onnx", "-n", "1", "-p", "spy")
    assert ended.code == 0, ended.output
    for name in ("main", "gw0"):
        modules = json.loads((sandbox.folder / f"modules-{name}.json").read_text(encoding="utf-8"))
        assert "onnx_models.plugin" in modules
        assert [m for m in modules if m.split(".")[0] in ("onnx", "onnxruntime", "torch", "iree")] == []
