"""Devices as data: what ships, what a malformed file is told, and what presence means."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnx_models import devices
from onnx_models.outcomes import Stage, UsageError

GOOD = 'title = "T"\ndriver = "fast"\ncompile_flags = ["-c"]\nrun_flags = ["-r"]\n'


def nothing(driver: str) -> tuple[str, ...]:
    return ()


def everything(driver: str) -> tuple[str, ...]:
    return (f"{driver}://0",)


def write(folder: Path, text: str) -> str:
    file = folder / "mine.toml"
    file.write_text(text, encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("name", devices.names())
def test_shipped_devices_load(name: str) -> None:
    device = devices.load(name)
    assert (device.name, bool(device.title)) == (name, True)
    assert any(flag.startswith("--iree-hal-target-device=") for flag in device.compile_flags)


def test_shipped_set() -> None:
    assert set(devices.names()) >= {"cpu", "cpu-generic", "vulkan", "cuda", "hip", "vulkan-rdna3", "metal"}
    assert [d.name for d in devices.probe((), nothing)] == ["cpu", "cuda", "hip", "vulkan"]


@pytest.mark.parametrize(
    ("name", "found", "last", "skipped"),
    [
        ("cpu", True, Stage.COMPARE, False),
        ("cpu", False, Stage.COMPARE, True),
        ("cuda", False, Stage.COMPILE, False),
        ("cuda", True, Stage.COMPARE, False),
        ("vulkan-rdna3", True, Stage.COMPILE, False),
    ],
)
def test_presence(name: str, found: bool, last: Stage, skipped: bool) -> None:
    probed = devices.probe((), everything if found else nothing)
    device = next((d for d in probed if d.name == name), None)
    if device is None:
        (device,) = devices.probe((name,), everything if found else nothing)
    assert (device.last_stage, bool(device.skip_reason)) == (last, skipped)


def test_absent_by_default_says_why() -> None:
    (vulkan,) = [d for d in devices.probe((), nothing) if d.name == "vulkan"]
    assert vulkan.skip_reason == "no vulkan device here: `iree-run-module --list_devices=vulkan` lists none"


def test_absent_by_name_is_refused() -> None:
    with pytest.raises(UsageError, match="device 'vulkan': no vulkan device here"):
        devices.probe(("cpu", "vulkan"), lambda driver: () if driver == "vulkan" else (driver,))


def test_each_driver_is_asked_once() -> None:
    asked: list[str] = []

    def ask(driver: str) -> tuple[str, ...]:
        asked.append(driver)
        return (driver,)

    devices.probe(("cpu", "cpu-generic", "cuda"), ask)
    assert sorted(asked) == ["cuda", "local-task"]


def test_a_device_of_ones_own(tmp_path: Path) -> None:
    file = write(tmp_path, GOOD + "host_cpu = true\n[timeouts]\nrun = 5\nimport = 0.5\n")
    (device,) = devices.probe((file,), everything)
    assert device.name == "mine"
    assert device.compile_flags == ("-c",)
    assert dict(device.timeouts) == {Stage.RUN: 5.0, Stage.IMPORT: 0.5}
    assert (device.host_cpu, device.found) == (True, ("fast://0",))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("title =", "not TOML"),
        (GOOD + "colour = 1\n", "unknown key 'colour'"),
        (GOOD.replace('"T"', "3"), "'title' must be a str"),
        (GOOD + 'default = "yes"\n', "'default' must be a bool"),
        (GOOD.replace('["-c"]', '"-c"'), "'compile_flags' must be a list"),
        (GOOD.replace("title", "driver2"), "unknown key 'driver2'"),
        (GOOD.replace('title = "T"\n', ""), "'title' is missing"),
        (GOOD + 'absent = "explode"\n', '\'absent\' must be "skip" or "compile-only"'),
        (GOOD.replace('driver = "fast"\n', ""), "without a 'driver'"),
        (GOOD + "[timeouts]\nfetch = 3\n", "[timeouts] takes import, compile and run, not 'fetch'"),
        (GOOD + '[timeouts]\nrun = "3"\n', "[timeouts] takes seconds above 0, at most a year, found '3'"),
        (GOOD + "[timeouts]\nrun = 0\n", "[timeouts] takes seconds above 0, at most a year, found 0"),
        (GOOD + f"[timeouts]\nrun = {'9' * 400}\n", "[timeouts] takes seconds above 0, at most a year"),
        (GOOD.replace('["-c"]', "[3]"), "'compile_flags' takes texts such as '--device=hip', found 3"),
        (GOOD.replace('["-c"]', '[""]'), "'compile_flags' takes texts such as '--device=hip', found ''"),
        (GOOD.replace('["-r"]', '["a\\u0000b"]'), "'run_flags' takes texts"),
        (GOOD + "[timeouts]\nrun = inf\n", "[timeouts] takes seconds above 0, at most a year, found inf"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path, text)
    with pytest.raises(UsageError, match=f"^{re.escape(file)}: .*{re.escape(message)}"):
        devices.load(file)


def test_unknown_device_names_those_that_exist() -> None:
    with pytest.raises(UsageError, match="unknown device 'gpu': choose from cpu, cpu-generic, cuda"):
        devices.load("gpu")


def test_the_same_device_twice_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cpu.toml").write_text(GOOD, encoding="utf-8")
    for pair in (("cpu", "cpu"), ("cpu", str(tmp_path / "cpu.toml"))):
        with pytest.raises(UsageError, match="named twice"):
            devices.probe(pair, everything)


def test_host_cpu_names_the_features() -> None:
    assert devices.host_cpu()
    assert devices.host_cpu() == devices.host_cpu()
