"""`--benchmark`: what is measured, what it may not change, and what is no measurement."""

from __future__ import annotations

import json
import re
import shutil
import sys
from itertools import pairwise

import onnx
import pytest
from onnx import helper

from onnx_models import latency
from onnx_models.benchmark import ROUNDS, plan
from onnx_models.meta_tests.sandbox import PACKAGE, Sandbox, model_of, tiny_model, value
from onnx_models.toolchain import BENCHMARK, find_toolchain

TINY = "cpu/local/tiny"

SECONDS = ("--benchmark-seconds", "2")


def test_a_run_that_takes_too_long_says_what_to_give(sandbox: Sandbox) -> None:
    ended = sandbox.run("--model", "tiny.onnx", "--benchmark", "--benchmark-seconds", "0.001")
    assert ended.code == 0, ended.output
    note = sandbox.case(TINY)["benchmark"]["note"]
    assert re.fullmatch(
        r"a run takes \d+\.\d s, too long for 0\.001 s: give --benchmark-seconds \d+(?:\.\d)? or more", note
    )


def test_without_it_nothing_is_measured_and_the_tool_may_be_absent(sandbox: Sandbox) -> None:
    (sandbox.folder / "bin" / BENCHMARK).unlink()
    ended = sandbox.run("--model", "tiny.onnx")
    assert ended.code == 0, ended.output
    assert sandbox.case(TINY)["benchmark"] == {}
    assert len(sandbox.record().head["tools"]) == 3
    assert "--benchmark" not in sandbox.script("local/tiny").read_text(encoding="utf-8")


def test_the_tool_must_lie_beside_the_runner(sandbox: Sandbox) -> None:
    (sandbox.folder / "bin" / BENCHMARK).unlink()
    line = sandbox.refused("--model", "tiny.onnx", "--benchmark")
    assert f"--benchmark: {BENCHMARK} is not beside " in line


@pytest.mark.parametrize("text", ["0", "-1", "inf", "a while"])
def test_its_seconds_are_seconds(sandbox: Sandbox, text: str) -> None:
    line = sandbox.refused("--model", "tiny.onnx", "--benchmark", f"--benchmark-seconds={text}")
    assert f"argument --benchmark-seconds: {text!r} is no number of seconds above 0" in line


def test_its_seconds_alone_do_nothing_and_are_refused(sandbox: Sandbox) -> None:
    line = sandbox.refused("--model", "tiny.onnx", *SECONDS)
    assert "--benchmark-seconds says how long to measure: give --benchmark too" in line


def test_both_sides_are_measured(sandbox: Sandbox) -> None:
    ended = sandbox.run("--model", "tiny.onnx", "--benchmark", *SECONDS, "--seeds", "2")
    assert ended.code == 0, ended.output
    row, tools = sandbox.case(TINY), sandbox.record().head["tools"]
    found, folder = row["benchmark"], sandbox.script("local/tiny").parent
    assert [tool["name"] for tool in tools][-1] == BENCHMARK
    assert row["verdict"] == "passed"
    assert found["set"] == "seeded-0"
    assert found["threads"] >= 1
    assert found["iree"]["median_s"] == pytest.approx(0.002, rel=0.01)
    assert found["iree"]["mad_s"] == pytest.approx(1e-6, rel=0.01)
    assert found["repetitions"] == found["onnxruntime"]["repetitions"] == found["iree"]["repetitions"]
    assert found["repetitions"] % ROUNDS == 0
    assert 0 < found["onnxruntime"]["median_s"] < 0.01
    ratio = found["iree"]["median_s"] / found["onnxruntime"]["median_s"]
    assert found["ratio"] == pytest.approx(ratio, rel=1e-3)
    assert f"--task_topology_group_count={found['threads']}" in found["iree"]["command"]
    assert "--input=@../../inputs/seeded-0/0.npy" in found["iree"]["command"]
    asked = json.loads((folder / "benchmark-onnxruntime.request.json").read_text(encoding="utf-8"))
    assert asked["threads"] == found["threads"]
    assert "note" not in found
    ratio_text = f"(ratio {found['ratio']:.3g})"
    told = next(line for line in ended.output.splitlines() if line.startswith(f"latency {TINY}: 2 ms, onnx"))
    assert told.endswith(ratio_text)
    reported = sandbox.execute([sys.executable, "-m", "onnx_models", "report", "record.jsonl"]).output
    assert "<summary>Latency</summary>" in reported
    assert f"| 2 ms | {latency.time_text(found['onnxruntime']['median_s'])} |" in reported


def test_a_second_run_measures_anew_and_reuses_the_rest(sandbox: Sandbox) -> None:
    seen = []
    for seconds in ("0.002", "0.004"):
        sandbox.tools(benchmark=f"takes {seconds}")
        sandbox.run("--model", "tiny.onnx", "--benchmark", *SECONDS)
        row = sandbox.case(TINY)
        run = next(stage for stage in row["stages"] if stage["stage"] == "run")
        seen.append((run["reused"], round(row["benchmark"]["iree"]["median_s"], 3)))
    assert seen == [(False, 0.002), (True, 0.004)]


def test_the_script_repeats_it_when_asked(sandbox: Sandbox) -> None:
    sandbox.run("--model", "tiny.onnx", "--benchmark", *SECONDS)
    script = sandbox.script("local/tiny")
    for result in script.parent.glob("benchmark-*.json"):
        if "request" not in result.name:
            result.unlink()
    assert sandbox.execute([script]).code == 0
    assert not (script.parent / "benchmark-iree.json").exists()
    wrong = sandbox.execute([script, "--bench"])
    assert (wrong.code, wrong.output) == (2, f"usage: {script} [--benchmark]\n")
    ended = sandbox.execute([script, "--benchmark"], cwd=sandbox.folder)
    assert ended.code == 0, ended.output
    assert (script.parent / "benchmark-iree.json").is_file()
    assert '"seconds"' in ended.output


NO_MEASUREMENTS = {
    "exit 1 oh: error: no clock": "iree-benchmark-module: oh: error: no clock",
    "exit 245": "iree-benchmark-module: crash: fake: error: told to fail",
    "signal 11": "iree-benchmark-module: crash: SIGSEGV: no output",
    "nothing": "exits 0 and writes no benchmark-iree.json",
    "say no JSON": "its result is no JSON of google benchmark",
    "say []": "its result is no JSON of google benchmark",
    'say {"benchmarks": [3]}': "its result is no JSON of google benchmark",
    'say {"benchmarks": []}': "its result holds no repetition",
    "truncate": "its result is no JSON of google benchmark",
    "takes -1": "its result says -1",
    "takes nan": "its result says nan",
    "takes 1e300": "its result holds more time than it ran for",
    "repeats 2": "its result holds 2 repetitions instead of",
    "repeats 0": "its result holds no repetition",
}


def test_what_is_no_measurement_is_a_note_and_no_verdict(sandbox: Sandbox) -> None:
    names = {f"m{k}": behaviour for k, behaviour in enumerate(NO_MEASUREMENTS)}
    sandbox.tools_by_model({name: ("benchmark", behaviour) for name, behaviour in names.items()})
    models = [word for name in names for word in ("--model", sandbox.save(f"{name}.onnx"))]
    ended = sandbox.run(*models, "--benchmark", *SECONDS)
    assert ended.code == 0, ended.output
    for name, behaviour in names.items():
        row = sandbox.case(f"cpu/local/{name}")
        assert row["verdict"] == "passed"
        assert NO_MEASUREMENTS[behaviour] in row["benchmark"]["note"], behaviour
        assert "iree" not in row["benchmark"], behaviour
        assert f"benchmark: {row['benchmark']['note']}" in row["notes"]
        assert "\n" not in row["benchmark"]["note"]
        assert len(row["benchmark"]["note"]) < 500


def test_one_that_hangs_is_stopped(sandbox: Sandbox) -> None:
    sandbox.tools(benchmark="hang")
    # The limit is for the largest models; a copy of the package has a shorter one.
    home = sandbox.folder / "home"
    shutil.copytree(PACKAGE, home / "onnx_models", ignore=shutil.ignore_patterns("__pycache__"))
    module = home / "onnx_models" / "benchmark.py"
    text = module.read_text(encoding="utf-8")
    assert "LOADING = 60.0" in text
    module.write_text(text.replace("LOADING = 60.0", "LOADING = -10.0"), encoding="utf-8")
    sandbox.env["PYTHONPATH"] = str(home)
    ended = sandbox.run("--model", "tiny.onnx", "--benchmark", *SECONDS)
    assert ended.code == 0, ended.output
    assert sandbox.case(TINY)["benchmark"]["note"].startswith("iree-benchmark-module: timeout: still")
    assert sandbox.survivors() == []


def test_a_case_that_fails_is_not_measured(sandbox: Sandbox) -> None:
    sandbox.tools(runner="scale 2", benchmark="exit 1 it was started")
    ended = sandbox.run("--model", "tiny.onnx", "--benchmark")
    assert ended.code == 1, ended.output
    assert sandbox.case(TINY)["benchmark"] == {}


def test_a_pass_without_proof_is_measured_too(sandbox: Sandbox) -> None:
    constant = helper.make_tensor("one", 1, (2, 3), [1.0] * 6)
    nodes = [
        helper.make_node("Sub", ["x", "x"], ["zero"]),
        helper.make_node("Add", ["zero", "one"], ["y"]),
    ]
    model = model_of(nodes, [value("x")], [value("y")], [constant])
    onnx.checker.check_model(model)
    sandbox.save("tiny.onnx", model)
    sandbox.run("--model", "tiny.onnx", "--benchmark", *SECONDS)
    row = sandbox.case(TINY)
    assert row["vacuous"]
    assert row["benchmark"]["ratio"] > 0


def test_a_device_of_its_own_has_no_ratio(sandbox: Sandbox) -> None:
    text = (PACKAGE / "devices" / "cpu.toml").read_text(encoding="utf-8")
    other = sandbox.folder / "other.toml"
    other.write_text(text.replace("local-task", "vulkan"), encoding="utf-8")
    # The fake runner lists the devices of the CPU only.
    tool = sandbox.folder / "bin" / "iree-run-module"
    tool.write_text(
        tool.read_text(encoding="utf-8").replace(
            "fake_iree.main(",
            "if any('list_dev' in w for w in sys.argv): sys.exit(print('vulkan://0'))\nfake_iree.main(",
        ),
        encoding="utf-8",
    )
    ended = sandbox.run("--model", "tiny.onnx", "--device", "other.toml", "--benchmark")
    assert ended.code == 0, ended.output
    found = sandbox.case("other/local/tiny")["benchmark"]
    assert found["threads"] == 0
    assert found["iree"]["median_s"] > 0
    assert found["ratio"] is None
    assert "onnxruntime" not in found
    assert found["note"] == "onnxruntime runs on the CPU: no ratio for another device"
    assert not any(word.startswith("--task_topology") for word in found["iree"]["command"])


def test_a_name_of_a_function_is_no_flag_and_no_shell_word(sandbox: Sandbox) -> None:
    model = tiny_model()
    model.graph.name = "a 'b\" $(c)"
    sandbox.save("tiny.onnx", model)
    tool = sandbox.folder / "bin" / "iree-run-module"
    said = tool.read_text(encoding="utf-8").replace(
        "fake_iree.main", "print('EXEC @--v=1 $(boo)')\nfake_iree.main"
    )
    tool.write_text(said, encoding="utf-8")
    ended = sandbox.run("--model", "tiny.onnx", "--benchmark", *SECONDS)
    assert ended.code == 0, ended.output
    assert "no function `--v=1 $(boo)`" in sandbox.case(TINY)["benchmark"]["note"]


def test_workers_measure_one_at_a_time(sandbox: Sandbox) -> None:
    log = sandbox.folder / "times.txt"
    tool = sandbox.folder / "bin" / BENCHMARK
    text = tool.read_text(encoding="utf-8")
    tool.write_text(
        text.replace(
            "fake_iree.main(",
            "import time\nbegan = time.monotonic()\nimport atexit\ntime.sleep(1)\n"
            f"atexit.register(lambda: open({str(log)!r}, 'a').write(f'{{began}} {{time.monotonic()}}\\n'))\n"
            "fake_iree.main(",
        ),
        encoding="utf-8",
    )
    names = [sandbox.save(f"m{k}.onnx").name for k in range(3)]
    models = [word for name in names for word in ("--model", name)]
    ended = sandbox.run(*models, "--benchmark", "--benchmark-seconds", "4", "-n", "2")
    assert ended.code == 0, ended.output
    times = sorted(tuple(map(float, line.split())) for line in log.read_text(encoding="utf-8").splitlines())
    assert len(times) >= 3
    assert all(one[1] <= other[0] for one, other in pairwise(times))


@pytest.mark.parametrize("seconds", [0.5, 5.0, 60.0])
@pytest.mark.parametrize("run", [0.0, 0.01, 0.3, 2.0, 9.0, 40.0, 1000.0])
def test_a_plan_stays_near_its_budget(seconds: float, run: float) -> None:
    made = plan(seconds, run)
    if made is None:
        assert run > seconds
        return
    assert made.rounds * made.repetitions >= 3
    one = max(run, made.repetition_s)
    warmup = max(run, made.warmup_s) if made.warmup_s else 0.0
    assert made.rounds * (warmup + made.repetitions * one) <= 3 * seconds + 1e-9
    assert made.timeout > made.repetitions * one


def test_the_real_tools(sandbox: Sandbox) -> None:
    """By the graph's name, which may have spaces, with several inputs."""
    names = ["a b", "größe:0", "c/d"]
    nodes = [helper.make_node("Neg", [name], [f"{name}!"]) for name in names]
    model = model_of(nodes, list(map(value, names)), [value(f"{n}!") for n in names])
    model.graph.name = "a graph of names"
    file = sandbox.save("strange name.onnx", model)
    real = find_toolchain(None).runner.path.parent
    ended = sandbox.run("--model", file.name, "--iree-bin", real, "--benchmark", *SECONDS)
    assert ended.code == 0, ended.output
    found = sandbox.case("cpu/local/strange name")["benchmark"]
    assert "note" not in found
    assert found["iree"]["invocations"] > 100
    assert 1e-7 < found["iree"]["median_s"] < 0.1
    assert 1e-7 < found["onnxruntime"]["median_s"] < 0.1
    script = sandbox.script("local/strange name")
    assert sandbox.execute([script, "--benchmark"]).code == 0
