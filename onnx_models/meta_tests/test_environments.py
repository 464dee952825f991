"""Toolchains of releases, made by a real pip from an index that is a folder of tiny wheels."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from onnx_models import environments, releases, runs
from onnx_models.cli import main
from onnx_models.environments import ToolchainError, provide
from onnx_models.meta_tests.fake_iree import TOOLS, start
from onnx_models.meta_tests.sandbox import PACKAGE, Sandbox
from onnx_models.outcomes import UsageError

OTHERS = ("onnx", "numpy", "protobuf")


def wheel(folder: Path, name: str, version: str, *, tools: tuple[str, ...] = (), requires: str = "") -> None:
    """A wheel with some of the fake tools as its scripts."""
    stem = f"{name.replace('-', '_')}-{version}"
    lines = [f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}", *requires.splitlines()]
    files = {
        f"{stem}.dist-info/METADATA": "\n".join(lines) + "\n",
        f"{stem}.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    for role in tools:
        files[f"{stem}.data/scripts/{TOOLS[role]}"] = f"{start()}fake_iree.main({role!r}, 'ok')\n"
    record = "".join(f"{path},,\n" for path in [*files, f"{stem}.dist-info/RECORD"])
    with zipfile.ZipFile(folder / f"{stem}-py3-none-any.whl", "w") as archive:
        for path, text in {**files, f"{stem}.dist-info/RECORD": record}.items():
            entry = zipfile.ZipInfo(path)
            entry.external_attr = 0o100755 << 16
            archive.writestr(entry, text)


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("index")
    needs = "Provides-Extra: onnx\n" + "\n".join(f"Requires-Dist: {name}; extra == 'onnx'" for name in OTHERS)
    for version in ("3.1.0", "3.2.0"):
        wheel(folder, "iree-base-compiler", version, tools=("importer", "compiler"), requires=needs)
        wheel(folder, "iree-base-runtime", version, tools=("runner", "benchmark"))
    wheel(folder, "iree-base-compiler", "3.3.0", requires=needs)
    for name in OTHERS:
        wheel(folder, name, "1.0")
    return folder


@pytest.fixture(scope="module")
def made(index: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cache with both releases, made by four processes at once, two for each."""
    cache = tmp_path_factory.mktemp("cache")
    call = "import sys; from pathlib import Path; from onnx_models import environments as e; "
    call += "print(e.provide(sys.argv[1], Path(sys.argv[2])).made)"
    environment = os.environ | {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    environment |= {"PYTHONPATH": str(PACKAGE.parent)}
    asked = [
        subprocess.Popen(
            [sys.executable, "-c", call, version, str(cache)], env=environment, stdout=subprocess.PIPE
        )
        for version in ("3.1.0", "3.2.0", "3.1.0", "3.2.0")
    ]
    said = [each.communicate(timeout=240)[0].decode() for each in asked]
    assert [each.returncode for each in asked] == [0] * 4
    assert (said[0], said[1]) == (said[2], said[3]), "each was made once"
    return cache


@pytest.fixture
def pip(index: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(index))


def test_both_are_whole_and_listed_by_age(made: Path) -> None:
    found = environments.environments(made)
    assert [each.name for each in found] == ["3.1.0", "3.2.0"]
    assert found[0].packages["onnx"] == "1.0"
    assert (found[0].bin / "iree-compile").is_file()
    ended = CliRunner().invoke(main, ["toolchains", "ls", "--cache-dir", str(made)])
    assert ended.exit_code == 0
    assert "3.2.0" in ended.output


def test_what_is_there_needs_no_index(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    assert provide("3.1.0", made, offline=True) == environments.find("3.1.0", made)


def test_what_a_killed_pip_left_is_made_anew(made: Path, pip: None) -> None:
    (made / "toolchains" / "3.1.0" / "onnx-models.json").unlink()
    (made / "toolchains" / "3.1.0" / "bin" / "iree-compile").unlink()
    assert environments.find("3.1.0", made) is None
    assert (provide("3.1.0", made).bin / "iree-compile").is_file()


def test_an_unknown_release_names_its_neighbours(pip: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"3\.1\.7: no such release .*: there is 3\.1\.0, 3\.2\.0, 3\.3\.0"):
        provide("3.1.7", tmp_path)
    assert environments.environments(tmp_path) == ()
    assert not (tmp_path / "toolchains" / "3.1.7").exists()


def test_a_part_that_no_index_has_is_named(pip: None, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"IREE 3\.3\.0: no such release"):
        provide("3.3.0", tmp_path)


def test_no_word_becomes_a_version(tmp_path: Path) -> None:
    for word in ("three", "", "../3.1.0", "3.1.0; rm"):
        with pytest.raises(UsageError, match="not a version: give one such as"):
            provide(word, tmp_path)


@pytest.mark.parametrize(
    ("asked", "name"),
    [
        ("3.9.0", "3.9.0"),
        ("3.9", "3.9.0"),
        ("v3", "3.0.0"),
        ("3.14rc20261120", "3.14.0rc20261120"),
        ("3.3.3+3.3", "3.3.3+3.3"),
        ("3.3+3.3", "3.3.0+3.3"),
    ],
)
def test_a_release_has_one_name(asked: str, name: str) -> None:
    assert environments.name_of(asked) == name


def test_offline_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ToolchainError, match=r"downloads are off: run onnx-models toolchains add 3\.1\.0"):
        provide("3.1.0", tmp_path, offline=True)


def test_an_index_that_cannot_be_reached_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "")
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    with pytest.raises(ToolchainError, match="the package index cannot be reached"):
        provide("3.1.0", tmp_path)


def test_a_full_disk_is_said_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environments, "NEEDED_BYTES", 10**18)
    with pytest.raises(ToolchainError, match="GB free, an environment needs"):
        provide("3.1.0", tmp_path)
    assert not (tmp_path / "toolchains").exists()


def test_a_release_in_use_is_not_removed(made: Path, pip: None) -> None:
    environment = provide("3.2.0", made)
    remove = ["toolchains", "rm", "3.2.0", "--cache-dir", str(made)]
    with environments.lease(environment, made):
        ended = CliRunner().invoke(main, remove)
        assert (ended.exit_code, "in use by a run" in ended.output) == (1, True)
    assert CliRunner().invoke(main, remove).output == "removed 3.2.0\n"
    ended = CliRunner().invoke(main, remove)
    assert ended.exit_code == 4
    assert "there is 3.1.0" in ended.output
    assert provide("3.2.0", made).name == "3.2.0"


@pytest.fixture
def here(sandbox: Sandbox, made: Path, index: Path) -> Sandbox:
    sandbox.env |= {"ONNX_MODELS_CACHE": str(made), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(index)}
    sandbox.save("m.onnx")
    return sandbox


def run(here: Sandbox, *words: str) -> tuple[int, str]:
    argv = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "onnx_models.plugin",
        "-p",
        "xdist",
        "--pyargs",
        "onnx_models",
    ]
    ended = here.execute([*argv, "--device", "cpu", "--model", "m.onnx", *words])
    return ended.code, ended.output


def test_one_release(here: Sandbox) -> None:
    code, output = run(here, "--iree", "3.1.0", "--record", "r.jsonl", "-n", "2")
    assert code == 0, output
    head = here.record("r.jsonl").head
    assert head["release"] == "3.1.0"
    assert all("toolchains/3.1.0/bin" in tool["path"] for tool in head["tools"])


def test_several_releases_write_a_record_each(here: Sandbox) -> None:
    code, output = run(here, "--iree", "3.1.0", "--iree=3.2.0", "--record", "r.jsonl", "--junitxml", "j.xml")
    assert code == 0, output
    for name in ("3.1.0", "3.2.0"):
        assert f'name="release" value="{name}"' in (here.folder / f"j-{name}.xml").read_text("utf-8")
    found = {name: here.record(f"r-{name}.jsonl").head["release"] for name in ("3.1.0", "3.2.0")}
    assert found == {"3.1.0": "3.1.0", "3.2.0": "3.2.0"}
    assert output.index("--- IREE 3.1.0") < output.index("--- IREE 3.2.0")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--iree", "3.1.0", "--iree-bin", "bin"), "names the tools: drop one"),
        (("--iree", "3.1.0", "--iree", "3.1"), "--iree 3.1.0 is given twice"),
        (("--iree", "newest"), "not a version"),
        (("--iree", "2.0.0"), "no such release"),
    ],
)
def test_wrong_releases_are_usage_errors(here: Sandbox, words: tuple[str, ...], message: str) -> None:
    code, output = run(here, *words)
    assert code == 4, output
    assert message in output
    assert "Traceback" not in output


def test_a_selection_over_releases_goes_into_a_history(here: Sandbox) -> None:
    command = [
        sys.executable,
        "-m",
        "onnx_models",
        "releases",
        "--iree",
        "3.1.0",
        "--iree",
        "9.9",
        "--iree",
        "3.2.0",
    ]
    command += ["--device", "cpu", "--runs", "kept", "--", "--model=m.onnx", "-p", "onnx_models.plugin"]
    ended = here.execute(command)
    assert ended.code == 1, ended.output
    assert "error: IREE 9.9.0: pytest ended with exit code 4" in ended.output
    kept = [runs.read(file) for file in runs.files(here.folder / "kept")]
    assert sorted(each.header["release"] for each in kept) == ["3.1.0", "3.2.0"]
    assert "IREE 3.1.0" in ended.output
    assert "No change in 1 cases" in ended.output


def test_options_that_take_a_value_are_taken_out() -> None:
    words = ["-k", "a", "--iree", "3.1.0", "--iree=3.2.0", "--record", "x", "--record=y", "-v"]
    assert list(releases.without(words, "--iree", "--record")) == ["-k", "a", "-v"]


def test_a_marker_of_another_place_is_no_environment(tmp_path: Path) -> None:
    folder = tmp_path / "toolchains" / "3.1.0"
    folder.mkdir(parents=True)
    for text in ("", "[]", json.dumps({"name": "3.2.0", "packages": {}, "made": ""})):
        (folder / "onnx-models.json").write_text(text, encoding="utf-8")
        assert environments.find("3.1.0", tmp_path) is None


def test_a_nightly_build_is_of_the_version_that_it_has(tmp_path: Path) -> None:
    """A name without a version sorts by no age, and would be a release of its own each night."""
    packages = {"iree-base-compiler": "3.14.0rc20261201"}
    for name, release in (("nightly-20261201", "3.14.0rc20261201"), ("2.9.0", "2.9.0")):
        made = environments.Environment(name=name, folder=tmp_path, packages=packages, made="")
        assert made.release == release
