"""`--artifacts`, `--record`, `--iree-bin`, `--no-reuse` and `--offline`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnx_models import runs
from onnx_models.meta_tests.sandbox import Sandbox, copy_of_package, tiny_model


def reused(sandbox: Sandbox, *arguments: str | Path) -> dict[str, bool]:
    """Run, and say for each stage whether it came from the cache."""
    ended = sandbox.run("--model", "tiny.onnx", *arguments)
    assert ended.code == 0, ended.output
    return {stage["stage"]: stage["reused"] for stage in sandbox.case("cpu/local/tiny")["stages"]}


NEVER = {"fetch": False, "compare": False}


def test_what_is_unchanged_is_reused_and_what_is_not_runs_again(sandbox: Sandbox) -> None:
    none = {**NEVER, "reference": False, "import": False, "compile": False, "run": False}
    everything = {**NEVER, "reference": True, "import": True, "compile": True, "run": True}
    assert reused(sandbox) == none
    assert reused(sandbox) == everything
    assert reused(sandbox, "--run-timeout", "300") == everything, "a pass holds under any limit"
    assert reused(sandbox, "--no-reuse") == none
    compiler = sandbox.folder / "bin" / "iree-compile"
    compiler.write_text(compiler.read_text(encoding="utf-8") + "# rebuilt\n", encoding="utf-8")
    assert reused(sandbox) == {**everything, "compile": False, "run": False}
    device = sandbox.folder / "cpu.toml"
    device.write_text(
        'title = "x"\ndriver = "local-task"\ncompile_flags = ["--new"]\nrun_flags = []\n', encoding="utf-8"
    )
    assert reused(sandbox, "--device", "cpu.toml") == {**everything, "compile": False, "run": False}
    sandbox.save("tiny.onnx", tiny_model((4,)))
    assert reused(sandbox, "--device", "cpu.toml") == none


def test_devices_of_one_run_share_an_import_and_a_reference_that_no_earlier_run_made(
    sandbox: Sandbox,
) -> None:
    text = 'title = "x"\ndriver = "local-task"\ncompile_flags = ["--new"]\nrun_flags = []\n'
    (sandbox.folder / "other.toml").write_text(text, encoding="utf-8")
    for _ in range(2):
        ended = sandbox.run("--model", "tiny.onnx", "--no-reuse", "--device", "cpu", "--device", "other.toml")
        assert ended.code == 0, ended.output
        rows = [sandbox.case(f"{device}/local/tiny")["stages"] for device in ("cpu", "other")]
        again = [[row["stage"] for row in stages if row["reused"]] for stages in rows]
        assert again == [[], ["reference", "import"]]


def test_a_damaged_product_is_made_again(sandbox: Sandbox) -> None:
    reused(sandbox)
    folder = sandbox.script("local/tiny").parent
    (folder / "outputs" / "seeded-0" / "1.npy").unlink()
    (folder / "stages.json").write_text(
        (folder / "stages.json").read_text(encoding="utf-8"), encoding="utf-8"
    )
    assert reused(sandbox)["run"] is False
    (folder / "stages.json").write_text("{broken", encoding="utf-8")
    again = reused(sandbox)
    assert (again["import"], again["compile"], again["run"]) == (True, False, False)


def test_artifacts_and_record_default_to_the_current_folder(sandbox: Sandbox) -> None:
    argv = sandbox.argv("--model", "tiny.onnx")
    at = argv.index("--record")
    ended = sandbox.execute(argv[:at] + argv[at + 2 :])
    (record,) = (sandbox.folder / "artifacts" / "runs").iterdir()
    assert re.fullmatch(r"\d{8}T\d{6}Z-\d+\.jsonl", record.name)
    assert f"record: {record}" in ended.output
    assert f"artifacts: {sandbox.folder / 'artifacts'}" in ended.output
    head, _, _ = runs.read(record).parts
    assert head["run"] == record.stem


def test_artifacts_elsewhere_with_a_difficult_name(sandbox: Sandbox) -> None:
    elsewhere = sandbox.folder / "my 'own' $folder é"
    ended = sandbox.run("--model", "tiny.onnx", "--artifacts", elsewhere)
    assert ended.code == 0, ended.output
    (script,) = elsewhere.glob("local/tiny/*/cpu/commands.sh")
    assert sandbox.execute([script], cwd=Path("/")).code == 0
    assert not sandbox.artifacts.exists()


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_artifacts_that_cannot_be_written(sandbox: Sandbox, place: str) -> None:
    (sandbox.folder / "file").write_text("", encoding="utf-8")
    line = sandbox.refused("--model", "tiny.onnx", "--artifacts", place)
    assert f"{sandbox.folder / place}: cannot be written" in line
    assert line.endswith("give --artifacts DIR")


@pytest.mark.parametrize("place", ["folder", "file/below.jsonl"])
def test_a_record_that_cannot_be_written(sandbox: Sandbox, place: str) -> None:
    (sandbox.folder / "file").write_text("", encoding="utf-8")
    (sandbox.folder / "folder").mkdir()
    (sandbox.folder / "artifacts").mkdir()
    line = sandbox.refused("--model", "tiny.onnx", "--record", place)
    assert f"{sandbox.folder / place}: cannot be written" in line
    assert line.endswith("give --record FILE")


@pytest.mark.parametrize(
    ("place", "message"),
    [
        ("lost", "--iree-bin lost: not a folder: give the one that holds iree-compile"),
        (".", "--iree-bin .: has none of iree-import-onnx, iree-compile, iree-run-module: did you mean"),
        ("broken", "iree-compile: not executable (chmod +x it)"),
        ("failing", "iree-compile --version: failed (no library)"),
    ],
)
def test_wrong_tools(sandbox: Sandbox, place: str, message: str) -> None:
    for name in ("broken", "failing"):
        (sandbox.folder / name).mkdir()
        program = sandbox.folder / name / "iree-compile"
        program.write_text("#!/bin/sh\necho no library; exit 1\n", encoding="utf-8")
        program.chmod(0o755 if name == "failing" else 0o644)
    for name in ("iree-import-onnx", "iree-run-module"):
        (sandbox.folder / "failing" / name).symlink_to(sandbox.folder / "bin" / name)
    assert message in sandbox.refused("--model", "tiny.onnx", "--iree-bin", place)


def test_the_header_names_the_tools(sandbox: Sandbox) -> None:
    sandbox.tools(compiler="exit 1 x: error: no")
    ended = sandbox.run("--model", "tiny.onnx")
    path = sandbox.folder / "bin" / "iree-compile"
    assert f"iree-compile: 3.13.0rc20261016 from {path} (--iree-bin)" in ended.output
    (tool,) = [t for t in sandbox.record().head["tools"] if t["name"] == "iree-compile"]
    assert tool == {
        "name": "iree-compile",
        "path": str(path),
        "origin": "--iree-bin",
        "version": "3.13.0rc20261016",
    }


def test_offline_and_lost_files_are_errors_of_the_host(sandbox: Sandbox, tmp_path: Path) -> None:
    home = copy_of_package(sandbox.folder, models={"lost": tmp_path / "lost.onnx"})
    with (home / "onnx_models" / "catalogue" / "tiny.toml").open("a", encoding="utf-8") as file:
        package = 'index = "pypi", package = "nothing", version = "1", wheel = "x.whl", member = "x"'
        file.write(
            f"[[model]]\npath = 'far'\nsha256 = '{64 * '0'}'\nsource = {{ type = 'wheel', {package} }}\n"
        )
    sandbox.env["PYTHONPATH"] = str(home)
    ended = sandbox.run("--collection", "tiny", "--offline")
    assert ended.code == 1
    assert "1 skipped, 1 error" in ended.output
    assert sandbox.survivors() == []
    far, lost = sandbox.case("cpu/tiny/far"), sandbox.case("cpu/tiny/lost")
    assert (lost["verdict"], lost["stage"], lost["kind"]) == ("error", "fetch", "infrastructure")
    assert "no such file" in lost["message"]
    assert far["verdict"] == "skipped"
    assert "downloads are off" in far["reason"]
