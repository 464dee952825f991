"""Tools that fail in every way: each gives its own failure and verdict, and nothing survives."""

from __future__ import annotations

import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from onnx_models import supervisor
from onnx_models.meta_tests.sandbox import Ended, Sandbox


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """A tool's misbehaviour and where its case must stop; a stage of None is a pass."""

    tool: str
    behaviour: str
    stage: str | None = None
    kind: str | None = None
    message: str = ""


FAULTS = {
    "good": Fault(tool="importer", behaviour="ok"),
    "import-exit": Fault(
        tool="importer",
        behaviour="exit 1 model.onnx: error: no such operator",
        stage="import",
        kind="error",
        message="error: no such operator",
    ),
    "import-nothing": Fault(
        tool="importer",
        behaviour="nothing",
        stage="import",
        kind="error",
        message="iree-import-onnx exits 0 and writes no model.mlir",
    ),
    "compile-exit": Fault(
        tool="compiler",
        behaviour="exit 1 model.mlir:1:1: error: failed to legalize",
        stage="compile",
        kind="error",
        message="error: failed to legalize",
    ),
    "compile-nothing": Fault(
        tool="compiler", behaviour="nothing", stage="compile", kind="error", message="writes no module.vmfb"
    ),
    "compile-crash": Fault(
        tool="compiler", behaviour="signal 11", stage="compile", kind="crash", message="SIGSEGV"
    ),
    # The Python wrapper of the wheel passes its child's SIGSEGV on as 256 - 11.
    "compile-wrapped-crash": Fault(
        tool="compiler",
        behaviour="exit 245 Stack dump:",
        stage="compile",
        kind="crash",
        message="SIGSEGV",
    ),
    "compile-chatty": Fault(tool="compiler", behaviour="print"),
    "compile-leaves-child": Fault(tool="compiler", behaviour="leave"),
    "compile-truncated": Fault(tool="compiler", behaviour="truncate", stage="run", kind="error"),
    "run-exit": Fault(
        tool="runner",
        behaviour="exit 1 INVALID_ARGUMENT; no",
        stage="run",
        kind="error",
        message="INVALID_ARGUMENT; no",
    ),
    "run-crash": Fault(tool="runner", behaviour="signal 6", stage="run", kind="crash", message="SIGABRT"),
    "run-more": Fault(
        tool="runner", behaviour="more", stage="run", kind="error", message="2 outputs specified"
    ),
    "run-nothing": Fault(
        tool="runner",
        behaviour="nothing",
        stage="compare",
        kind="mismatch",
        message="output 0 'y': 0.npy was not written",
    ),
    "run-truncated": Fault(
        tool="runner",
        behaviour="truncate",
        stage="compare",
        kind="mismatch",
        message="0.npy is not a whole .npy file",
    ),
    "run-fewer": Fault(
        tool="runner",
        behaviour="fewer",
        stage="compare",
        kind="mismatch",
        message="output 1 'z': 1.npy was not written",
    ),
    "run-shape": Fault(
        tool="runner",
        behaviour="shape",
        stage="compare",
        kind="mismatch",
        message="rank: expected 2 [2, 3], found 3 [2, 3, 1]",
    ),
    "run-dtype": Fault(
        tool="runner",
        behaviour="dtype",
        stage="compare",
        kind="mismatch",
        message="dtype: expected float32, found float64",
    ),
    "run-order": Fault(
        tool="runner", behaviour="order", stage="compare", kind="mismatch", message="output 0 'y': rmse"
    ),
    "run-scale": Fault(
        tool="runner", behaviour="scale 1.5", stage="compare", kind="mismatch", message="output 0 'y': rmse"
    ),
    "run-nan": Fault(
        tool="runner", behaviour="nan", stage="compare", kind="mismatch", message="not at the same places"
    ),
}

FAILING = [name for name, fault in FAULTS.items() if fault.stage]

# These stop at a limit. The limits hold for a whole run, so they have one of their own.
LIMITED = {
    "hangs": Fault(
        tool="compiler", behaviour="hang", stage="compile", kind="timeout", message="no end after 3 s"
    ),
    "forks-and-hangs": Fault(
        tool="compiler", behaviour="fork", stage="compile", kind="timeout", message="no end after 3 s"
    ),
    "exhausts": Fault(
        tool="importer", behaviour="exhaust", stage="import", kind="out-of-memory", message="stopped at "
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A run over a table of faults."""

    sandbox: Sandbox
    ended: Ended
    survivors: int


def run_table(folder: Path, faults: dict[str, Fault], *arguments: str) -> Told:
    sandbox = Sandbox(folder)
    sandbox.tools_by_model({name: (fault.tool, fault.behaviour) for name, fault in faults.items()})
    models = [word for name in faults for word in ("--model", str(sandbox.save(f"{name}.onnx")))]
    ended = sandbox.run(*models, *arguments)
    return Told(sandbox=sandbox, ended=ended, survivors=len(sandbox.survivors()))


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """All faults in one run."""
    return run_table(tmp_path_factory.mktemp("told"), FAULTS)


@pytest.fixture(scope="module")
def limited(tmp_path_factory: pytest.TempPathFactory) -> Told:
    """The faults that end at a limit."""
    folder = tmp_path_factory.mktemp("limited")
    return run_table(folder, LIMITED, "--compile-timeout", "3", "--memory-limit", "0.4")


@pytest.mark.parametrize("name", FAULTS)
def test_each_fault_has_its_own_failure(told: Told, name: str) -> None:
    fault, row = FAULTS[name], told.sandbox.case(f"cpu/local/{name}")
    assert (row["verdict"], row["stage"], row["kind"]) == (
        "regressed" if fault.stage else "passed",
        fault.stage or "compare",
        fault.kind,
    )
    assert fault.message in row["message"]
    assert bool(row["message"]) == bool(fault.stage)


@pytest.mark.parametrize("name", LIMITED)
def test_each_limit_has_its_own_failure(limited: Told, name: str) -> None:
    fault, row = LIMITED[name], limited.sandbox.case(f"cpu/local/{name}")
    assert (row["verdict"], row["stage"], row["kind"]) == ("regressed", fault.stage, fault.kind)
    assert row["message"].startswith(fault.message)


def test_nothing_survives(told: Told, limited: Told) -> None:
    assert (told.survivors, limited.survivors) == (0, 0)
    assert told.sandbox.survivors() == limited.sandbox.survivors() == []


def test_failures_give_exit_code_1_and_the_counts(told: Told) -> None:
    assert told.ended.code == 1
    foot = told.sandbox.record().foot
    passed = len(FAULTS) - len(FAILING)
    assert foot["complete"] is True
    assert foot["verdicts"] == {"passed": passed, "regressed": len(FAILING)}
    table = [line.split() for line in told.ended.output.splitlines()]
    head = next(words for words in table if words[:2] == ["device", "collected"])
    row = dict(zip(head, next(words for words in table if words[:1] == ["cpu"]), strict=True))
    stopped = [fault.stage for fault in FAULTS.values()]
    reached = len(FAULTS)
    assert int(row["collected"]) == int(row["fetched"]) == int(row["referenced"]) == reached
    for column, stage in (("imported", "import"), ("compiled", "compile"), ("ran", "run")):
        reached -= stopped.count(stage)
        assert int(row[column]) == reached
    assert int(row["matched"]) == int(row["passed"]) == passed
    assert int(row["regressed"]) == len(FAILING)


def test_failure_text_says_all_a_person_needs(told: Told) -> None:
    script = told.sandbox.script("local/compile-exit")
    text = told.ended.output
    at = text.index("cpu/local/compile-exit: regressed: expected to pass, stopped in compile (error)")
    block = text[at:].split("\n____")[0]
    assert "stage   compile" in block
    assert "kind    error" in block
    assert "error   model.mlir:1:1: error: failed to legalize" in block
    assert f"repeat  {script}" in block
    assert f"log     {script.parent / 'compile.log'}" in block
    assert '[[case]]\nid = "local/compile-exit"\nstage = "compile"\nkind = "error"' in block


def test_a_failed_stage_leaves_no_product(told: Told) -> None:
    products = {"import": ["../model.mlir", "module.vmfb"], "compile": ["module.vmfb"], "run": ["outputs"]}
    for name in FAILING:
        folder, stage = told.sandbox.script(f"local/{name}").parent, FAULTS[name].stage
        for product in products.get(stage or "", ()):
            left = list((folder / product).rglob("*.npy")) if product == "outputs" else [folder / product]
            assert not any(path.exists() for path in left), name


def test_a_long_log_is_bounded(told: Told) -> None:
    log = told.sandbox.script("local/compile-chatty").with_name("compile.log")
    assert supervisor.HEAD < log.stat().st_size < supervisor.HEAD + supervisor.TAIL + 1000


def test_per_output_numbers_are_recorded(told: Told) -> None:
    outputs = told.sandbox.case("cpu/local/run-fewer")["outputs"]
    assert [(row["name"], row["ok"], row["mismatch"]) for row in outputs] == [
        ("y", True, None),
        ("z", False, "no-output"),
    ]
    scaled = told.sandbox.case("cpu/local/run-scale")["outputs"]
    assert all(row["rmse"] > row["tolerance_rmse"] and row["would_pass_at"] > 1 for row in scaled)


@pytest.mark.parametrize(
    "name",
    [
        "good",
        "compile-chatty",
        "import-exit",
        "import-nothing",
        "compile-crash",
        "compile-wrapped-crash",
        "compile-truncated",
        "run-crash",
        "run-nothing",
        "run-order",
    ],
)
def test_commands_fail_if_and_only_if_the_case_does(told: Told, tmp_path: Path, name: str) -> None:
    script = told.sandbox.script(f"local/{name}")
    assert script.stat().st_mode & stat.S_IXUSR
    ended = told.sandbox.execute([script], cwd=tmp_path)
    assert (ended.code == 0) == (FAULTS[name].stage is None), ended.output[-2000:]


@pytest.mark.parametrize("name", ["hangs", "exhausts"])
def test_commands_stop_at_the_limits(limited: Told, tmp_path: Path, name: str) -> None:
    ended = limited.sandbox.execute([limited.sandbox.script(f"local/{name}")], cwd=tmp_path)
    assert ended.code == {"hangs": supervisor.TIMED_OUT, "exhausts": supervisor.OVER_MEMORY}[name]
    assert limited.sandbox.survivors() == []


def test_order_filter_and_workers_change_neither_inputs_nor_verdicts(told: Told, tmp_path: Path) -> None:
    names = ["good", "import-exit", "compile-crash", "run-order", "run-nan"]
    sandbox = told.sandbox
    models = [word for name in ("run-scale", *reversed(names)) for word in ("--model", f"{name}.onnx")]
    again = tmp_path / "other"
    only = " or ".join(names)
    record = tmp_path / "again.jsonl"
    sandbox.run(*models, "-k", only, "-n", "2", "--artifacts", again, "--record", record)
    first, second = sandbox.record(), sandbox.record(str(record))
    assert set(second.cases) == {f"cpu/local/{name}" for name in names}
    for case_id, row in second.cases.items():
        assert row["message"] == first.cases[case_id]["message"]
        assert second.verdicts[case_id] == first.verdicts[case_id]
    for name in names:
        for folder in ("inputs", "reference"):
            mine, other = sandbox.artifacts / "local" / name / folder, again / "local" / name / folder
            files = sorted(path.relative_to(mine) for path in mine.rglob("*.npy"))
            assert files == sorted(path.relative_to(other) for path in other.rglob("*.npy")) != []
            assert all((mine / path).read_bytes() == (other / path).read_bytes() for path in files)
