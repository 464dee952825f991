"""Two runs side by side: each change is named with its reason, and what is missing is never fine."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_models import difference, difference_report, runs
from onnx_models.cli import main
from onnx_models.difference import KINDS, differ
from onnx_models.merge import merge
from onnx_models.meta_tests.histories import case, run, save, shuffled, state
from onnx_models.runs import RunFile

MIRROR = {
    "broken": "fixed",
    "missing": "added",
    "unanswered": "answered",
    "vacuous": "proven",
    "changed": "changed",
}
MIRROR |= {value: key for key, value in MIRROR.items()}

OLD = Path(__file__).with_name("old_records")


def kinds(base: RunFile, head: RunFile) -> dict[str, str]:
    return {change.id: change.kind for change in differ(base, head).changes}


FAILED = {"stage": "compile", "kind": "error", "signature": "s", "title": "S of t", "message": "m"}
SKIPPED = {"stage": "fetch", "stages": [], "verdict": "skipped", "reason": "no driver"}
ERROR = {"stage": "fetch", "kind": "infrastructure", "message": "disk full", "verdict": "error"}
ROWS: dict[str, dict[str, Any] | None] = {
    "pass": {},
    "vacuous": {"vacuous": "one number"},
    "failed": FAILED,
    "later": FAILED | {"stage": "run"},
    "crash": FAILED | {"kind": "crash"},
    "other": FAILED | {"signature": "t"},
    "skipped": SKIPPED,
    "error": ERROR,
    "cut off": {"verdict": "error", "reason": "the pytest worker died"},
    "absent": None,
}

EXPECTED = {
    ("pass", "failed"): "broken",
    ("vacuous", "failed"): "broken",
    ("failed", "pass"): "fixed",
    ("failed", "vacuous"): "fixed",
    ("failed", "later"): "changed",
    ("failed", "crash"): "changed",
    ("failed", "other"): "changed",
    ("pass", "vacuous"): "vacuous",
    ("vacuous", "pass"): "proven",
    ("pass", "skipped"): "unanswered",
    ("pass", "error"): "unanswered",
    ("failed", "cut off"): "unanswered",
    ("error", "failed"): "answered",
    ("skipped", "pass"): "answered",
    ("pass", "absent"): "missing",
    ("failed", "absent"): "missing",
    ("skipped", "absent"): "missing",
    ("absent", "failed"): "added",
    ("absent", "pass"): "added",
    ("skipped", "error"): None,
    ("pass", "pass"): None,
    ("failed", "failed"): None,
    ("error", "cut off"): None,
}


@pytest.mark.parametrize(("before", "after"), EXPECTED, ids=lambda word: word.replace(" ", "-"))
def test_each_change_has_its_kind(before: str, after: str) -> None:
    def made(name: str) -> RunFile:
        row = ROWS[name]
        return run([case("zoo/kept"), *([] if row is None else [case("zoo/m", **row)])])

    kind = EXPECTED[before, after]
    assert kinds(made(before), made(after)) == ({"cpu/zoo/m": kind} if kind else {})
    for word in KINDS:
        assert differ(made(before), made(after)).violates([word]) is (word == kind)
    worse = kind in ("broken", "missing", "unanswered", "vacuous")
    assert differ(made(before), made(after)).violates(["regressed"]) is worse


def test_a_change_says_from_where_to_where_and_why() -> None:
    base = run([case("zoo/m"), case("zoo/n", **FAILED), case("zoo/o", **FAILED), case("zoo/p", **FAILED)])
    other = {
        "stage": "run",
        "kind": "crash",
        "signature": "crash:Tile",
        "title": "Tile crashes",
        "message": "SIG",
    }
    head = run([case("zoo/m", **FAILED), case("zoo/n"), case("zoo/o", **other)])
    found = {change.model: change for change in differ(base, head).changes}
    assert [(c.before, c.after, c.why) for _, c in sorted(found.items())] == [
        ("passed", "compile: s", "S of t (m)"),
        ("compile: s", "passed", "S of t (m)"),
        ("compile: s", "run: crash:Tile", "Tile crashes (SIG)"),
        ("compile: s", "missing", "S of t (m)"),
    ]
    (text,) = [line for line in difference_report.as_text(differ(base, head)) if "zoo/o" in line]
    assert text == "  cpu/zoo/o: compile: s -> run: crash:Tile  [Tile crashes (SIG)]"


@settings(deadline=None)
@given(seed=st.integers(0, 10_000))
def test_laws(seed: int) -> None:
    """Nothing changes from a run to itself; the way back mirrors the way there; no case is counted twice."""
    one, other, *_ = shuffled(seed)
    same = differ(one, one)
    assert (same.changes, same.apart) == ((), ())
    assert same.same == len(one.cases)
    there, back = differ(one, other), differ(other, one)
    flaky = [change for change in there.changes if change.kind == "flaky"]
    plain = [change for change in there.changes if change.kind != "flaky"]
    assert {c.id: MIRROR[c.kind] for c in plain} == {c.id: c.kind for c in back.changes if c.kind != "flaky"}
    assert {c.id: (c.after, c.before) for c in plain} == {
        c.id: (c.before, c.after) for c in back.changes if c.kind != "flaky"
    }
    assert len({c.id for c in plain}) == len(plain)
    compared = there.same + len({c.id for c in (*plain, *flaky)})
    apart = sum(int(line.rsplit("(", 1)[1].split()[0]) for line in there.apart)
    assert compared + apart == len({c["id"] for c in (*one.cases, *other.cases)})


@settings(deadline=None)
@given(seed=st.integers(0, 10_000))
def test_what_a_plain_count_says(seed: int) -> None:
    """Broken and fixed, counted a second time without the code under test."""
    one, other, *_ = shuffled(seed)
    before, after = ({c["id"]: state(c) for c in each.cases} for each in (one, other))
    words = [(before[key], after[key]) for key in before.keys() & after.keys()]
    passes = ("passed", "vacuous")
    counts = Counter(change.kind for change in differ(one, other).changes)
    assert counts["broken"] == sum(b in passes and a == "failed" for b, a in words)
    assert counts["fixed"] == sum(b == "failed" and a in passes for b, a in words)
    for found in differ(one, other).counts.values():
        for each in found:
            parts = ("passed", "vacuous", "failed", "skipped", "error", "missing")
            assert sum(each[name] for name in parts) == each["total"]


def test_what_the_newer_run_lacks_stays_in_the_denominator() -> None:
    base = run([case("zoo/a"), case("zoo/b"), case("zoo/c")])
    found = differ(base, run([case("zoo/a")]))
    assert kinds(base, run([case("zoo/a")])) == {"cpu/zoo/b": "missing", "cpu/zoo/c": "missing"}
    assert found.counts["cpu"][1]["total"] == 3
    assert "3 of 3 -> 1 of 3, 2 missing passed with proof (-2)" in difference_report.as_text(found)[1]


@pytest.mark.parametrize("cases", [[], [case("zoo/a", "cuda")]], ids=["nothing-ran", "one-device-ran"])
def test_a_device_that_gave_nothing_is_missing_not_left_out(cases: list[Any]) -> None:
    """The run set out to test it: its header says so."""
    base = run([case("zoo/a"), case("zoo/b"), case("zoo/a", "cuda")])
    found = differ(base, run(cases, devices=("cpu", "cuda")))
    assert {c.id for c in found.of("missing")} >= {"cpu/zoo/a", "cpu/zoo/b"}
    assert found.violates(["missing"])
    assert found.apart == ()


def test_only_what_both_set_out_to_do_is_compared() -> None:
    base = run([case(f"zoo/{k}", d) for k in range(60) for d in ("cpu", "hip")] + [case("wheels/a")])
    head = run([case(f"zoo/{k}", d) for k in range(60) for d in ("cpu", "cuda")])
    found = differ(base, head)
    assert found.changes == ()
    assert found.same == 60
    assert found.apart == (
        "only the older run has wheels on cpu (1 cases)",
        "only the older run has zoo on hip (60 cases)",
        "only the newer run has zoo on cuda (60 cases)",
    )
    assert difference_report.as_text(found)[-4:] == ["not compared", *(f"  {line}" for line in found.apart)]


def test_many_missing_cases_are_told_by_group() -> None:
    base = run([case(f"zoo/{k:03}") for k in range(300)] + [case("wheels/a")])
    found = differ(base, run([case("wheels/a"), case("zoo/000")]))
    assert len(found.of("missing")) == 299
    lines = difference_report.as_text(found)
    assert lines[-1] == "  299 cases of cpu/zoo: passed -> missing  [such as 001, 002, 003]"
    assert len(lines) < 8


def test_runs_with_nothing_in_common_say_so() -> None:
    found = differ(run([case("zoo/a")]), run([case("zoo/a", "cuda")]))
    assert "No case in common" in difference_report.as_text(found)[0]
    assert "The runs have no case in common." in difference_report.as_markdown(found)
    empty = differ(run([], devices=["cpu"]), run([], devices=["cpu"]))
    assert "No case in common" in difference_report.as_text(empty)[0]


def test_what_else_differs_is_noted() -> None:
    base = run([case("zoo/a")])
    packages = dict(base.header["packages"]) | {"onnxruntime": "2"}
    head = run(
        [case("zoo/a")],
        packages=packages,
        suite="9",
        catalogue="1" * 64,
        complete=False,
        broken="the disk is full",
    )
    assert differ(base, head).notes == (
        "the newer run says nothing of IREE: the disk is full",
        "the newer run is incomplete: not every selected case ran to its end",
        "suite differs too: 0.1.0, now 9",
        "onnxruntime differs too: 1, now 2",
        "the catalogues differ: models may have been added, removed or replaced",
    )
    assert "  note: suite differs too: 0.1.0, now 9" in difference_report.as_text(differ(base, head))
    assert "> suite differs too: 0.1.0, now 9" in difference_report.as_markdown(differ(base, head))
    assert differ(base, base).notes == ()


def test_records_that_name_no_fault_tell_none_apart() -> None:
    """Schema 1 had no signatures: against such a run, a failure has changed by its stage and kind only."""
    old, new = runs.read(OLD / "schema-1.jsonl"), runs.read(OLD / "schema-2.jsonl")
    assert kinds(old, new) == {"cpu/tiny/zeros": "vacuous"}
    assert kinds(new, old) == {"cpu/tiny/zeros": "proven"}


def test_a_new_flake_is_told_beside_its_change() -> None:
    tries = [None, {"stage": "run", "kind": "crash", "signature": "s", "message": "m"}]
    base = run([case("zoo/a"), case("zoo/b"), case("zoo/c", attempts=tries)])
    head = run(
        [
            case("zoo/a", attempts=tries),
            case("zoo/b", attempts=tries, **FAILED),
            case("zoo/c", attempts=tries),
        ]
    )
    assert [(c.kind, c.id) for c in differ(base, head).changes] == [
        ("broken", "cpu/zoo/b"),
        ("flaky", "cpu/zoo/a"),
        ("flaky", "cpu/zoo/b"),
    ]


def test_latency_is_compared_on_one_machine_only() -> None:
    def timed(median: float) -> dict[str, Any]:
        iree = {"median_s": median, "mad_s": 0.001, "repetitions": 9, "invocations": 90}
        return {"benchmark": {"set": "s", "threads": 1, "iree": iree}}

    base, head = run([case("zoo/a", **timed(1.0))]), run([case("zoo/a", **timed(2.0))])
    assert kinds(base, head) == {"cpu/zoo/a": "slower"}
    assert kinds(head, base) == {"cpu/zoo/a": "faster"}
    host = dict(head.header["host"]) | {"fingerprint": "e" * 12}
    elsewhere = replace(head, header=dict(head.header) | {"host": host})
    assert kinds(base, elsewhere) == {}
    unknown = replace(head, header=dict(head.header) | {"host": host | {"fingerprint": ""}})
    slow = replace(unknown, cases=base.cases)
    assert kinds(slow, unknown) == {}
    # In a merged run, a case's machine is its own, also where that is not known.
    merged = merge(
        [run([case("zoo/z")], run="a"), replace(unknown, header=dict(unknown.header) | {"run": "b"})]
    )
    assert kinds(base, merged.run) == {"cpu/zoo/z": "added"}


def saved(tmp_path: Path) -> tuple[str, RunFile, RunFile]:
    base = run([case("zoo/a"), case("zoo/b", **FAILED)])
    head = run([case("zoo/a", **FAILED), case("zoo/b", **FAILED)], number=1, release="3.1.0")
    return str(save(tmp_path / "runs", base, head)), base, head


def test_the_command_takes_files_releases_and_ids(tmp_path: Path) -> None:
    folder, base, head = saved(tmp_path)
    names = [
        (f"{folder}/{base.id}.jsonl.gz", f"{folder}/{head.id}.jsonl.gz"),
        (f"{folder}@3.0.0", f"{folder}@3.1.0"),
        (f"{folder}@{base.id}", f"{folder}@{head.id}"),
    ]
    outputs = {CliRunner().invoke(main, ["diff", *pair]).stdout for pair in names}
    assert len(outputs) == 1
    assert "1 newly broken; 1 as before" in outputs.pop()


def test_the_newest_run_of_a_release_is_taken(tmp_path: Path) -> None:
    folder, base, _ = saved(tmp_path)
    save(Path(folder), run([case("zoo/b")], number=9))
    done = CliRunner().invoke(main, ["diff", f"{folder}@3.1.0", f"{folder}@3.0.0", "--json"])
    found = json.loads(done.stdout)
    assert found["head"]["run"] == "20260110T020000Z-1"
    assert [(c["kind"], c["id"]) for c in found["changes"]] == [
        ("fixed", "cpu/zoo/b"),
        ("missing", "cpu/zoo/a"),
    ]
    assert found["counts"]["cpu"]["head"]["total"] == 2
    assert base.id != found["head"]["run"]


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        (None, 0),
        ("regressed", 1),
        ("broken", 1),
        ("fixed, regressed", 1),
        ("missing,changed,fixed", 0),
        ("bad", 4),
        ("regressed,,", 1),
        ("Regressed", 4),
    ],
)
def test_the_exit_code_follows_the_policy(policy: str | None, code: int, tmp_path: Path) -> None:
    folder, *_ = saved(tmp_path)
    for form in ([], ["--markdown"], ["--json"]):
        argv = ["diff", f"{folder}@3.0.0", f"{folder}@3.1.0", *form]
        done = CliRunner().invoke(main, argv + (["--fail-on", policy] if policy else []))
        assert done.exit_code == code, done.output
        assert bool(done.stdout) == (code != 4)
        if code == 4:
            assert done.stderr.startswith("error: --fail-on")
            assert "choose from regressed, broken, fixed" in done.stderr


@pytest.mark.parametrize("name", ["{0}@9.9.9", "{0}@", "{0}", "lost@1", "lost.jsonl", "@", ""])
def test_a_run_that_is_not_there_is_one_line(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, base, _ = saved(tmp_path)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["diff", name.format(folder), f"{folder}@{base.id}"])
    assert done.exit_code == 4  # and not 1, which a gate takes for a regression
    assert len(done.stderr.splitlines()) == 1, done.stderr
    assert done.stderr.startswith("error: ")


def test_a_damaged_neighbour_is_named(tmp_path: Path) -> None:
    folder, *_ = saved(tmp_path)
    (Path(folder) / "zz.jsonl.gz").write_bytes(b"\x1f\x8bdamaged")
    done = CliRunner().invoke(main, ["diff", f"{folder}@3.0.0", f"{folder}@3.1.0"])
    assert (done.exit_code, "zz.jsonl.gz: damaged" in done.stderr) == (4, True)


def test_the_order_of_a_report_is_that_of_its_kinds() -> None:
    assert list(difference.POLICY)[1:] == list(KINDS)
    assert list(KINDS)[:3] == ["broken", "fixed", "changed"]


def test_a_release_is_found_by_its_short_name(tmp_path: Path) -> None:
    folder, *_ = saved(tmp_path)
    done = CliRunner().invoke(main, ["diff", f"{folder}@3.0", f"{folder}@3.1"])
    assert done.exit_code == 0, done.output
    assert done.output == CliRunner().invoke(main, ["diff", f"{folder}@3.0.0", f"{folder}@3.1.0"]).output


COMPILED = {"stage": "compile"}
ONLY_COMPILED = [
    ({}, COMPILED, "unanswered"),
    (FAILED | {"stage": "run"}, COMPILED, "unanswered"),
    ({"stage": "compile", "kind": "error"}, COMPILED, "fixed"),
    (COMPILED, COMPILED, None),
    (COMPILED, {}, "answered"),
    (COMPILED, {"stage": "run", "kind": "crash"}, "answered"),
    (COMPILED, {"stage": "compile", "kind": "error"}, "broken"),
]


@pytest.mark.parametrize(("before", "after", "kind"), ONLY_COMPILED)
def test_a_device_that_is_only_compiled_for_answers_less(
    before: dict[str, Any], after: dict[str, Any], kind: str | None
) -> None:
    old, new = (run([case("zoo/kept"), case("zoo/m", **row)]) for row in (before, after))
    assert kinds(old, new) == ({"cpu/zoo/m": kind} if kind else {})


def test_a_device_of_another_last_stage_is_noted() -> None:
    old, new = run([case("zoo/a")]), run([case("zoo/a", stage="compile")])
    new.header["devices"]["cpu"]["last_stage"] = "compile"
    found = differ(old, new)
    assert "device cpu is tested up to another stage: compare, now compile" in found.notes
    assert found.violates(["regressed"])


@pytest.mark.parametrize(
    "head",
    [
        run([case("zoo/a")], complete=False),
        run([case("zoo/a")], broken="disk"),
        run([case("other/a")]),
        run([]),
    ],
    ids=["cut off", "broken", "nothing in common", "empty"],
)
def test_of_what_is_not_judged_nobody_knows_that_nothing_regressed(head: RunFile) -> None:
    assert differ(run([case("zoo/a")]), head).violates(["regressed"])
    assert not differ(run([case("zoo/a")]), head).violates(["slower"])
