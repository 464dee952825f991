"""`--device`: unknown, absent, of one's own, and several at once."""

from __future__ import annotations

import shutil
from dataclasses import dataclass

import pytest

from onnx_models.meta_tests.sandbox import Ended, Record, Sandbox

OWN = """
title = "Mine"
driver = "local-task"
compile_flags = ["--iree-hal-target-device=local"]
run_flags = ["--device=local-task"]
"""

# The flag of no real driver: the fake tools list it as absent.
NOWHERE = OWN.replace('"local-task"', '"nowhere"').replace("Mine", "Nowhere")


@dataclass(frozen=True, slots=True, kw_only=True)
class Default:
    """A run that names no device."""

    sandbox: Sandbox
    ended: Ended
    record: Record


@pytest.fixture(scope="module")
def default(tmp_path_factory: pytest.TempPathFactory) -> Default:
    sandbox = Sandbox(tmp_path_factory.mktemp("default"))
    sandbox.tools()
    sandbox.save("tiny.onnx")
    argv = sandbox.argv("--model", "tiny.onnx", "-rs")
    at = argv.index("--device")
    ended = sandbox.execute(argv[:at] + argv[at + 2 :])
    return Default(sandbox=sandbox, ended=ended, record=sandbox.record())


def test_absent_by_default_is_a_visible_skip(default: Default) -> None:
    row = default.record.cases["vulkan/local/tiny"]
    assert (row["verdict"], row["stage"], row["stages"]) == ("skipped", None, [])
    assert row["reason"].startswith("no vulkan device here")
    assert "SKIPPED [1]" in default.ended.output
    assert "no vulkan device here: `iree-run-module --list_devices=vulkan` lists none" in default.ended.output
    assert default.ended.code == 0


def test_the_default_set(default: Default) -> None:
    stages = {key: row["stage"] for key, row in default.record.cases.items()}
    assert stages == {
        "cpu/local/tiny": "compare",
        "cuda/local/tiny": "compile",
        "hip/local/tiny": "compile",
        "vulkan/local/tiny": None,
    }
    assert "device cuda: NVIDIA GPU, sm_80: compile only" in default.ended.output
    table = [line.split() for line in default.ended.output.splitlines() if line.startswith("cuda ")]
    assert table == [["cuda", "1", "1", "-", "1", "1", "-", "-", "1", "0"]]


def test_devices_share_the_import_and_nothing_else(default: Default) -> None:
    rows = [default.record.cases[f"{device}/local/tiny"] for device in ("cpu", "cuda", "hip")]
    imports = [next(s for s in row["stages"] if s["stage"] == "import") for row in rows]
    assert [stage["reused"] for stage in imports] == [False, True, True]
    compiles = [next(s for s in row["stages"] if s["stage"] == "compile") for row in rows]
    assert not any(stage["reused"] for stage in compiles)
    assert len({stage["log"] for stage in imports}) == 1
    assert len({stage["log"] for stage in compiles}) == 3
    folders = {
        default.sandbox.script("local/tiny", device=device).parent for device in ("cpu", "cuda", "hip")
    }
    assert len(folders) == 3
    assert all((folder / "module.vmfb").is_file() for folder in folders)


def test_a_compile_only_script_compiles_only(default: Default) -> None:
    script = default.sandbox.script("local/tiny", device="cuda")
    (script.parent / "module.vmfb").unlink()
    assert default.sandbox.execute([script]).code == 0
    assert (script.parent / "module.vmfb").is_file()
    assert "iree-run-module" not in script.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "gpu"), "unknown device 'gpu': choose from cpu, cpu-generic, cuda"),
        (("--device", "nowhere.toml"), "device 'nowhere': no nowhere device here"),
        (("--device", "lost.toml"), "unknown device 'lost.toml'"),
        (("--device", "cpu", "--device", "cpu"), "a device is named twice"),
    ],
)
def test_wrong_use(sandbox: Sandbox, arguments: tuple[str, ...], message: str) -> None:
    (sandbox.folder / "nowhere.toml").write_text(NOWHERE, encoding="utf-8")
    assert message in sandbox.refused("--model", "tiny.onnx", *arguments)


def test_a_file_and_a_second_device_under_workers(sandbox: Sandbox) -> None:
    (sandbox.folder / "mine.toml").write_text(OWN, encoding="utf-8")
    ended = sandbox.run("--model", "tiny.onnx", "--device", "mine.toml", "--device", "cpu", "-n", "2")
    assert ended.code == 0, ended.output
    record = sandbox.record()
    assert {key: row["verdict"] for key, row in record.cases.items()} == {
        "mine/local/tiny": "passed",
        "cpu/local/tiny": "passed",
    }
    imports = [s["reused"] for row in record.cases.values() for s in row["stages"] if s["stage"] == "import"]
    assert sorted(imports) == [False, True]
    shutil.rmtree(sandbox.script("local/tiny", device="mine").parent)
    assert sandbox.script("local/tiny", device="cpu").is_file()
