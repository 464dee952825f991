"""What a pytest user expects: -k, -n, -x, --maxfail, --lf, --collect-only, node ids and exit codes."""

from __future__ import annotations

import pytest

from onnx_models.meta_tests.sandbox import Ended, Sandbox

FAILS = ("b", "c")
MODELS = [word for name in "abcd" for word in ("--model", f"{name}.onnx")]


@pytest.fixture(scope="module")
def four(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """Models a to d, of which b and c do not compile; everything but that is in the stage cache."""
    sandbox = Sandbox(tmp_path_factory.mktemp("four"))
    sandbox.tools_by_model(dict.fromkeys(FAILS, ("compiler", "exit 1 x: error: no")))
    for name in "abcd":
        sandbox.save(f"{name}.onnx")
    ended = sandbox.run(*MODELS, "--record", "all.jsonl")
    assert ended.code == 1, ended.output
    return sandbox


def verdicts(sandbox: Sandbox) -> dict[str, str]:
    return {key.removeprefix("cpu/local/"): row["verdict"] for key, row in sandbox.record().cases.items()}


def check(sandbox: Sandbox, *arguments: str, code: int, complete: bool = True, **expected: str) -> Ended:
    ended = sandbox.run(*arguments)
    assert ended.code == code, ended.output
    assert verdicts(sandbox) == expected
    assert sandbox.record().foot["complete"] is complete
    return ended


def test_k_selects_and_only_the_selected_are_recorded(four: Sandbox) -> None:
    check(four, *MODELS, "-k", "local/a or local/d", code=0, a="passed", d="passed")


def test_k_that_selects_nothing_is_exit_code_5(four: Sandbox) -> None:
    ended = check(four, *MODELS, "-k", "nothing", code=5)
    assert "no case fits" not in ended.output  # a record that was asked for says so itself


def test_a_selection_of_nothing_leaves_no_record_and_says_what_is_near(four: Sandbox) -> None:
    before = set(four.folder.rglob("*.jsonl"))
    argv = [word for word in four.argv(*MODELS, "-k", "lokal/a") if word not in ("--record", "record.jsonl")]
    ended = four.execute(argv)
    assert ended.code == 5
    assert "no case fits -k 'lokal/a'" in ended.output
    assert set(four.folder.rglob("*.jsonl")) == before


def test_x_leaves_the_rest_recorded_as_not_run(four: Sandbox) -> None:
    ended = check(
        four, *MODELS, "-x", code=1, complete=False, a="passed", b="regressed", c="skipped", d="skipped"
    )
    assert "stopping after 1 failures" in ended.output
    assert four.case("cpu/local/c")["reason"] == "not run: the session ended before"


def test_maxfail_counts(four: Sandbox) -> None:
    check(
        four,
        *MODELS,
        "--maxfail=2",
        code=1,
        complete=False,
        a="passed",
        b="regressed",
        c="regressed",
        d="skipped",
    )


def test_lf_runs_the_failed_ones(four: Sandbox) -> None:
    four.run(*MODELS, "-k", "local/a or local/b or local/c")
    check(four, *MODELS, "--lf", code=1, b="regressed", c="regressed")


def test_workers_give_the_same_lines(four: Sandbox) -> None:
    check(four, *MODELS, "-n", "2", code=1, a="passed", b="regressed", c="regressed", d="passed")
    alone, spread = four.record("all.jsonl"), four.record()
    for case_id, row in spread.cases.items():
        other = alone.cases[case_id]
        for key in ("verdict", "stage", "kind", "message", "reason", "outputs", "notes", "flags"):
            assert row[key] == other[key], key
    assert spread.foot["verdicts"] == alone.foot["verdicts"] == {"passed": 2, "regressed": 2}
    assert spread.foot["cases"] == 4


def test_collect_only_writes_no_record(four: Sandbox) -> None:
    ended = four.run(*MODELS, "--collect-only", "-q", "--record", "collected.jsonl")
    assert ended.code == 0
    assert [line.split("::")[1] for line in ended.output.splitlines() if "::" in line] == [
        f"test_model[cpu/local/{name}]" for name in "abcd"
    ]
    assert not (four.folder / "collected.jsonl").exists()


def test_other_tests_are_left_alone(four: Sandbox) -> None:
    """With the plugin installed, a run of somebody's own tests looks for no tools and writes nothing."""
    (four.folder / "test_mine.py").write_text("def test_mine(): pass\n", encoding="utf-8")
    before = sorted(four.artifacts.rglob("*"))
    argv = [*four.argv()[:5], "test_mine.py", "--iree-bin", "lost", "-q"]
    ended = four.execute(argv)
    assert ended.code == 0, ended.output
    assert "1 passed" in ended.output
    assert "record:" not in ended.output
    assert sorted(four.artifacts.rglob("*")) == before
