"""The right tools are chosen, named, told apart from another build, and asked as rarely as can be."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import numpy as np
import onnx
import onnx.helper
import pytest

from onnx_models import toolchain, tools
from onnx_models.meta_tests import fake_iree
from onnx_models.meta_tests.fake_iree import make_fake_iree
from onnx_models.outcomes import UsageError
from onnx_models.toolchain import COMPILER, IMPORTER, RUNNER, find_toolchain, list_devices

OWN = Path(sys.executable).parent


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IREE_BIN", raising=False)
    monkeypatch.setattr(toolchain, "_known", {})
    toolchain._devices.cache_clear()


@pytest.fixture
def python_bin(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with fake tools which passes for the running Python's; PATH has it and system folders."""
    folder = make_fake_iree(tmp_path / "python bin")
    (folder / "python").symlink_to(sys.executable)
    monkeypatch.setattr(sys, "executable", str(folder / "python"))
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(folder))
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), "/usr/bin", "/bin"]))
    return folder


def put_on_path(monkeypatch: pytest.MonkeyPatch, *folders: Path | str) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join(map(str, folders)))


def test_option_wins_over_all(tmp_path: Path, python_bin: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    one, two, three = (make_fake_iree(tmp_path / name) for name in ("1 a", "2", "3"))
    monkeypatch.setenv("IREE_BIN", str(two))
    put_on_path(monkeypatch, three, python_bin)
    found = find_toolchain(one)
    assert [found.importer.path, found.compiler.path, found.runner.path] == [
        one / name for name in (IMPORTER, COMPILER, RUNNER)
    ]
    assert found.compiler.origin == "--iree-bin"
    found = find_toolchain(None)
    assert (found.compiler.path, found.compiler.origin) == (two / COMPILER, "IREE_BIN")


def test_build_ahead_of_python_on_path_wins(
    tmp_path: Path, python_bin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = make_fake_iree(tmp_path / "build")
    put_on_path(monkeypatch, "/usr/bin", local, python_bin)
    found = find_toolchain(None).compiler
    assert (found.path, found.origin) == (local / COMPILER, "on PATH, ahead of Python")
    put_on_path(monkeypatch, python_bin, local)
    found = find_toolchain(None).compiler
    assert (found.path, found.origin) == (python_bin / COMPILER, "beside Python")


def test_without_python_on_path_the_first_entry_wins_and_no_other(
    tmp_path: Path, python_bin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = make_fake_iree(tmp_path / "build")
    put_on_path(monkeypatch, local, "/usr/bin")
    assert find_toolchain(None).compiler.path == local / COMPILER
    put_on_path(monkeypatch, "/usr/bin", local)
    assert find_toolchain(None).compiler.path == python_bin / COMPILER
    (python_bin / COMPILER).unlink()
    found = find_toolchain(None).compiler
    assert (found.path, found.origin) == (local / COMPILER, "on PATH")


def test_path_skips_what_cannot_run(
    tmp_path: Path, python_bin: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = make_fake_iree(tmp_path / "build")
    (local / COMPILER).chmod(0o644)
    (local / RUNNER).unlink()
    (local / RUNNER).mkdir()
    put_on_path(monkeypatch, local, python_bin)
    found = find_toolchain(None)
    assert found.importer.path.parent == local
    assert found.compiler.path.parent == found.runner.path.parent == python_bin


def test_tool_that_the_folder_lacks_is_told(tmp_path: Path, python_bin: Path) -> None:
    local = make_fake_iree(tmp_path / "build")
    (local / IMPORTER).unlink()
    found = find_toolchain(local)
    assert found.importer.path.parent == python_bin
    assert found.describe()[0].endswith("(beside Python; --iree-bin has none)")
    assert found.compiler.origin == "--iree-bin"


@pytest.mark.parametrize("option", ["--iree-bin", "IREE_BIN"])
@pytest.mark.parametrize("wrong", ["empty", "missing", "file", "parent of tools", "not executable", "folder"])
def test_wrong_folder(
    tmp_path: Path, python_bin: Path, monkeypatch: pytest.MonkeyPatch, option: str, wrong: str
) -> None:
    folder = tmp_path / "build"
    expected = f"{option} {folder}: has none of"
    if wrong == "empty":
        folder.mkdir()
    elif wrong == "missing":
        expected = f"{option} {folder}: not a folder"
    elif wrong == "file":
        folder.touch()
        expected = f"{option} {folder}: not a folder"
    elif wrong == "parent of tools":
        make_fake_iree(folder / "tools")
        expected = f"did you mean {folder / 'tools'}?"
    else:
        make_fake_iree(folder)
        (folder / COMPILER).chmod(0o644)
        expected = f"{folder / COMPILER}: not executable"
        if wrong == "folder":
            (folder / COMPILER).unlink()
            (folder / COMPILER).mkdir()
            expected = f"{folder / COMPILER}: a folder"
    if option == "IREE_BIN":
        monkeypatch.setenv(option, str(folder))
    with pytest.raises(UsageError) as error:
        find_toolchain(folder if option == "--iree-bin" else None)
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_nothing_found_says_what_to_install(python_bin: Path) -> None:
    for name in (IMPORTER, COMPILER, RUNNER):
        (python_bin / name).unlink()
    with pytest.raises(UsageError, match="pip install iree-base-compiler iree-base-runtime"):
        find_toolchain(None)


@pytest.mark.parametrize("behaviour", ["crash", "binary"])
def test_compiler_that_cannot_say_its_version(tmp_path: Path, behaviour: str) -> None:
    folder = make_fake_iree(tmp_path / "build")
    body = b"#!/bin/sh\necho 'x: error: bad build'\nkill -11 $$\n" if behaviour == "crash" else b"\0\1"
    (folder / COMPILER).write_bytes(body)
    with pytest.raises(UsageError, match="bad build" if behaviour == "crash" else "cannot be run"):
        find_toolchain(folder)


def test_versions_and_header_of_a_build(tmp_path: Path) -> None:
    found = find_toolchain(make_fake_iree(tmp_path / "build"))
    assert found.version == found.compiler.version == fake_iree.VERSION
    assert found.runner.version.startswith("unknown-")
    header = found.describe()
    assert header[1] == f"{COMPILER}: {fake_iree.VERSION} from {found.compiler.path} (--iree-bin)"
    assert len(header) == 3


def test_folder_name_is_safe_and_mixed_releases_are_told(tmp_path: Path) -> None:
    found = find_toolchain(make_fake_iree(tmp_path / "build"))
    compiler = dataclasses.replace(found.compiler, version="3.13.0rc20261016")
    mixed = dataclasses.replace(found, compiler=compiler)
    for version, lines in (("3.13.0", 3), ("3.13.0rc20261016", 3), ("3.12.0", 4), ("3.13.0rc20261017", 4)):
        runner = dataclasses.replace(found.runner, version=version)
        assert len(dataclasses.replace(mixed, runner=runner).describe()) == lines
    odd = dataclasses.replace(found, compiler=dataclasses.replace(compiler, version="3/4 b"))
    assert odd.version == "3_4_b"


def test_key_changes_when_a_build_changes(tmp_path: Path) -> None:
    build = tmp_path / "build"
    make_fake_iree(build / "tools")
    library = build / "lib" / "libIREECompiler.so.0"
    library.parent.mkdir()
    library.write_bytes(b"one")
    cache = tmp_path / "cache"

    def keys() -> tuple[str, ...]:
        toolchain._known.clear()
        found = find_toolchain(build / "tools", cache=cache)
        return found.importer.key, found.compiler.key, found.runner.key

    first = keys()
    assert keys() == first
    library.write_bytes(b"longer")
    second = keys()
    make_fake_iree(build / "tools", runner="scale 2")
    third = keys()
    assert second[1] != first[1]
    assert third[2] != second[2]
    assert third[1] == second[1]


def count_runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    runs: list[str] = []
    run = tools.run

    def counted(argv, **options):  # type: ignore[no-untyped-def]
        runs.append(str(argv[0]))
        return run(argv, **options)

    monkeypatch.setattr(tools, "run", counted)
    return runs


def test_versions_are_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, cache = make_fake_iree(tmp_path / "build"), tmp_path / "cache"
    runs = count_runs(monkeypatch)
    first = find_toolchain(folder, cache=cache)
    assert runs == [str(folder / COMPILER)]
    assert find_toolchain(folder) == first  # in one process
    toolchain._known.clear()
    assert find_toolchain(folder, cache=cache) == first  # in another
    assert len(runs) == 1
    for kept in (cache / "tools").iterdir():
        kept.write_text("{broken")
    toolchain._known.clear()
    assert find_toolchain(folder, cache=cache) == first
    assert len(runs) == 2
    toolchain._known.clear()
    (tmp_path / "file").touch()
    assert find_toolchain(folder, cache=tmp_path / "file") == first


@pytest.mark.parametrize("form", ["plain", "env", "long"])
def test_interpreter_of_a_wrapper(tmp_path: Path, form: str) -> None:
    start = {
        "plain": f"#!{sys.executable}\n# -*- coding: utf-8 -*-\n",
        "env": "#!/usr/bin/env python3\n",
        "long": f"#!/bin/sh\n'''exec' \"{sys.executable}\" \"$0\" \"$@\"\n' '''\n",
    }[form]
    script = tmp_path / COMPILER
    script.write_text(start + "import sys\nfrom iree.compiler.x import main\n")
    expected = shutil.which("python3") if form == "env" else sys.executable
    assert toolchain._interpreter(script) == expected
    script.write_text(start + "print('not of a wheel')\n")
    assert toolchain._interpreter(script) is None


def test_package_installed_from_a_folder_can_be_rebuilt(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "iree_base_runtime-9.9.9.dist-info"
    library = site / "iree" / "_runtime_libs" / "iree-run-module"
    for folder in (info, library.parent):
        folder.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: iree-base-runtime\nVersion: 9.9.9\n")
    library.write_bytes(b"one")
    (library.parent / "__init__.py").touch()
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    script = make_fake_iree(tmp_path / "bin") / RUNNER
    script.write_text(f"#!{python}\nfrom iree._runtime.x import main\n")

    def key() -> str:
        return find_toolchain(tmp_path / "bin", cache=tmp_path / "cache").runner.key

    assert key() == "9.9.9; iree-base-runtime 9.9.9"
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: iree-base-runtime\nVersion: 9.9.9\n\n")
    (info / "direct_url.json").write_text('{"url": "file:///x"}')
    first = key()
    assert first.startswith("9.9.9; iree-base-runtime 9.9.9; iree-run-module 3 ")
    library.write_bytes(b"other")
    assert key() != first


def test_devices(tmp_path: Path) -> None:
    found = find_toolchain(make_fake_iree(tmp_path / "build"))
    assert list_devices(found, "local-task") == ("local-task://",)
    assert list_devices(found, "cuda") == ()
    toolchain._devices.cache_clear()
    make_fake_iree(tmp_path / "build").joinpath(RUNNER).write_text("#!/bin/sh\necho cuda://0\nexit 1\n")
    assert list_devices(found, "cuda") == ()


# The real tools, and that the fake ones are like them --------------------------------------------


def relu(path: Path) -> Path:
    """Two outputs of different types and a 0-d one, with a symbolic dim."""
    h, t = onnx.helper, onnx.TensorProto
    nodes = [
        h.make_node("Relu", ["x"], ["y"]),
        h.make_node("Cast", ["y"], ["u"], to=t.UINT8),
        h.make_node("ReduceMax", ["x"], ["z"], keepdims=0),
    ]
    value = h.make_tensor_value_info
    outputs = [value("y", t.FLOAT, ["N", 3]), value("u", t.UINT8, ["N", 3]), value("z", t.FLOAT, [])]
    graph = h.make_graph(nodes, "g", [value("x", t.FLOAT, ["N", 3])], outputs)
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 17)], ir_version=8), path)
    return path


def run_all(folder: Path, chain: toolchain.Toolchain) -> list[np.ndarray]:
    folder.mkdir()
    values = np.linspace(-3, 9, 6, dtype="f4").reshape(2, 3)
    np.save(folder / "x y.npy", values)
    mlir, vmfb = folder / "m.mlir", folder / "m.vmfb"
    outputs = [folder / f"{index}.npy" for index in range(3)]
    target = ["--iree-hal-target-device=local", "--iree-hal-local-target-device-backends=llvm-cpu"]
    commands: list[list[str | Path]] = [
        [chain.importer.path, relu(folder / "-it's m.onnx"), "-o", mlir, "--opset-version", "17"],
        [chain.compiler.path, mlir, *target, "--iree-llvmcpu-target-cpu=host", "-o", vmfb],
        [
            chain.runner.path,
            f"--module={vmfb}",
            "--device=local-task",
            f"--input=@{folder / 'x y.npy'}",
            *[f"--output=@{output}" for output in outputs],
        ],
    ]
    for command in commands:
        finished = tools.run(command, log=folder / "log", timeout=120)
        assert finished.ok, finished.first_error()
    return [np.load(output) for output in outputs]


@pytest.mark.skipif(not (OWN / COMPILER).exists(), reason="the IREE wheels are not installed beside Python")
def test_real_tools_and_fake_tools_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put_on_path(monkeypatch, OWN, "/usr/bin", "/bin")
    real = find_toolchain(None)
    assert real.version.startswith(real.importer.version.partition("rc")[0])
    assert real.importer.key.endswith(f"onnx {onnx.__version__}")
    assert len(real.describe()) == 3
    assert list_devices(real, "local-task") == ("local-task://",)
    assert list_devices(real, "no-such-driver") == ()
    fake = find_toolchain(make_fake_iree(tmp_path / "fake"))
    expected, found = run_all(tmp_path / "real", real), run_all(tmp_path / "faked", fake)
    for one, other in zip(expected, found, strict=True):
        assert one.dtype == other.dtype
        np.testing.assert_array_equal(one, other)


LIES = ["ok", "shape", "dtype", "order", "scale 1.5", "nan", "fewer", "truncate", "nothing"]


@pytest.mark.parametrize("lie", LIES)
def test_fake_runner_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lie: str) -> None:
    module, source = tmp_path / "m.vmfb", relu(tmp_path / "m.onnx")
    module.write_bytes(fake_iree.MAGIC + b'"."\n' + source.read_bytes())
    np.save(tmp_path / "x.npy", np.linspace(-3, 9, 6, dtype="f4").reshape(2, 3))

    def run_as(behaviour: str) -> list[tuple[object, ...]]:
        outputs = [tmp_path / f"{index}.npy" for index in range(3)]
        for output in outputs:
            output.unlink(missing_ok=True)
        flags = [f"--module={module}", f"--input=@{tmp_path / 'x.npy'}"]
        monkeypatch.setattr(sys, "argv", ["x", *flags, *[f"--output=@{output}" for output in outputs]])
        fake_iree.main("runner", behaviour)
        if lie == "truncate":
            return [(output.stat().st_size,) for output in outputs]
        arrays = [np.load(output) for output in outputs if output.exists()]
        return [(array.shape, array.dtype, array.tobytes()) for array in arrays]

    true = run_as("ok")
    assert (run_as(lie) == true) == (lie == "ok")
    assert run_as(f"{lie} when no such argument") == true
    if lie in ("fewer", "nothing"):
        assert run_as(lie) == (true[:2] if lie == "fewer" else [])


def test_finding_imports_neither_onnx_nor_numpy() -> None:
    code = "import sys; import onnx_models.toolchain; print({'onnx', 'numpy'} & set(sys.modules))"
    root = Path(toolchain.__file__).parent.parent
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
