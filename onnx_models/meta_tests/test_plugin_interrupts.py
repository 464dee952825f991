"""Ctrl-C, a killed pytest and a killed worker: nothing survives, and no case is lost."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import psutil
import pytest

from onnx_models import records, runs
from onnx_models.meta_tests.sandbox import Sandbox, wait_until


@pytest.fixture
def hanging(sandbox: Sandbox) -> Sandbox:
    """Models a, b and c; the compiler of b forks and hangs."""
    sandbox.tools_by_model({"b": ("compiler", "fork")})
    for name in "abc":
        sandbox.save(f"{name}.onnx")
    return sandbox


MODELS = [word for name in "abc" for word in ("--model", f"{name}.onnx")]


def compilers(sandbox: Sandbox) -> list[psutil.Process]:
    """The compiler of b and its grandchild, once both are there."""
    found = []
    for process in sandbox.survivors():
        with contextlib.suppress(psutil.Error, OSError):
            compiles = any(word.endswith("/iree-compile") for word in process.cmdline()[:2])
            if compiles and "/local/b/" in process.cwd():
                found.append(process)
    return found


def start(sandbox: Sandbox, *arguments: str) -> int:
    """Start a run and come back when the compiler of b hangs."""
    process = sandbox.start(*MODELS, *arguments)
    wait_until(lambda: len(compilers(sandbox)) >= 2 or process.poll() is not None, "b hangs")
    assert process.poll() is None, sandbox.output()
    return process.pid


def end(pid: int) -> int:
    code = psutil.Process(pid).wait(timeout=120)
    assert isinstance(code, int)
    return int(code)


def test_ctrl_c_leaves_no_process_and_a_footer(hanging: Sandbox) -> None:
    pid = start(hanging)
    os.killpg(pid, signal.SIGINT)
    assert end(pid) == 2
    wait_until(lambda: hanging.survivors() == [], "nothing survives")
    record = hanging.record()
    assert record.foot["complete"] is False
    assert {key: row["verdict"] for key, row in record.cases.items()} == {
        "cpu/local/a": "passed",
        "cpu/local/b": "skipped",
        "cpu/local/c": "skipped",
    }
    assert record.cases["cpu/local/c"]["reason"].startswith("not run")
    folder = hanging.script("local/b").parent
    assert not (folder / "module.vmfb").exists()
    assert "record: " in hanging.output()


def test_ctrl_c_under_workers_leaves_no_process_and_a_footer(hanging: Sandbox) -> None:
    pid = start(hanging, "-n", "2")
    os.killpg(pid, signal.SIGINT)
    assert end(pid) == 2
    wait_until(lambda: hanging.survivors() == [], "nothing survives")
    record = hanging.record()
    assert record.foot["complete"] is False
    assert set(record.cases) == {"cpu/local/a", "cpu/local/b", "cpu/local/c"}
    assert record.cases["cpu/local/b"]["verdict"] == "skipped"
    assert not (hanging.script("local/b").parent / "module.vmfb").exists()


def test_kill_9_leaves_no_process_and_a_record_that_says_so(hanging: Sandbox) -> None:
    pid = start(hanging)
    os.kill(pid, signal.SIGKILL)
    assert end(pid) == -signal.SIGKILL
    wait_until(lambda: hanging.survivors() == [], "nothing survives")
    with pytest.raises(records.RecordError, match="no footer; the run was cut off: run it again"):
        runs.read(hanging.folder / "record.jsonl")


def test_a_killed_worker_costs_one_case_and_no_line(hanging: Sandbox) -> None:
    pid = start(hanging, "-n", "2")
    tools = compilers(hanging)
    workers = psutil.Process(pid).children()
    (worker,) = [p for p in workers if any(tool in p.children(recursive=True) for tool in tools)]
    worker.kill()
    assert end(pid) == 1
    wait_until(lambda: hanging.survivors() == [], "nothing survives")
    record = hanging.record()
    assert {key: row["verdict"] for key, row in record.cases.items()} == {
        "cpu/local/a": "passed",
        "cpu/local/b": "error",
        "cpu/local/c": "passed",
    }
    assert record.cases["cpu/local/b"]["reason"] == "the pytest worker died; run it again alone"
    assert record.foot["complete"] is True
    assert Path(hanging.folder / "record.jsonl").read_text(encoding="utf-8").count('"cpu/local/b"') == 1
