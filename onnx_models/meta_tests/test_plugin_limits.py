"""`--import-timeout`, `--compile-timeout`, `--run-timeout` and `--memory-limit`."""

from __future__ import annotations

import pytest

from onnx_models.meta_tests.sandbox import Sandbox


@pytest.mark.parametrize(
    ("stage", "text"), [("import", "0"), ("compile", "-1"), ("run", "soon"), ("run", "inf"), ("run", "nan")]
)
def test_a_timeout_is_seconds_above_0(sandbox: Sandbox, stage: str, text: str) -> None:
    line = sandbox.refused("--model", "tiny.onnx", f"--{stage}-timeout={text}")
    assert f"argument --{stage}-timeout: {text!r} is no number of seconds above 0" in line


@pytest.mark.parametrize("text", ["-1", "much"])
def test_a_memory_limit_is_gigabytes(sandbox: Sandbox, text: str) -> None:
    line = sandbox.refused("--model", "tiny.onnx", f"--memory-limit={text}")
    assert f"argument --memory-limit: {text!r} is no number of gigabytes" in line


def test_each_timeout_is_that_of_its_stage_and_a_longer_one_runs_again(sandbox: Sandbox) -> None:
    sandbox.tools(runner="hang")
    seen = []
    for seconds in ("1", "1", "2"):
        sandbox.run("--model", "tiny.onnx", "--run-timeout", seconds)
        row = sandbox.case("cpu/local/tiny")
        assert (row["stage"], row["kind"]) == ("run", "timeout")
        seen.append((row["stages"][-1]["reused"], row["message"]))
    assert seen == [
        (False, "no end after 1 s"),
        (True, "no end after 1 s"),
        (False, "no end after 2 s"),
    ]
    assert sandbox.survivors() == []


def test_a_higher_memory_limit_runs_again(sandbox: Sandbox) -> None:
    sandbox.tools(compiler="exhaust 400000000")
    seen = []
    for gigabytes in ("0.2", "0.1", "0"):
        sandbox.run("--model", "tiny.onnx", "--memory-limit", gigabytes)
        row = sandbox.case("cpu/local/tiny")
        (compiled,) = [stage for stage in row["stages"] if stage["stage"] == "compile"]
        seen.append((compiled["reused"], row["kind"]))
    assert seen == [(False, "out-of-memory"), (True, "out-of-memory"), (False, None)]
