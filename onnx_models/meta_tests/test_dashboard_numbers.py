"""The site's numbers are those of the records, whatever order they came in."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from onnx_models.dashboard import snapshot
from onnx_models.dashboard.build import STALE_DAYS
from onnx_models.dashboard.render import percent
from onnx_models.meta_tests import histories
from onnx_models.meta_tests.histories import BEGIN, case, device, run
from onnx_models.meta_tests.site_reader import Reader, make
from onnx_models.runs import RunFile

MARKS = {"passed": "✓", "vacuous": "○", "skipped": "-", "error": "!", "missing": "?"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


def devices_of(files: Sequence[RunFile]) -> list[str]:
    names = sorted({name for file in files for name in file.header["devices"]})
    return [name for name in names if histories.now(files, name)]


@pytest.mark.parametrize("seed", range(8))
def test_the_overview_counts_what_the_records_say(folder: Path, site: Path, seed: int) -> None:
    files = histories.shuffled(seed)
    make(folder, site, *files)
    rows = Reader(site / "index.html").tables["devices"][1:]
    names = devices_of(files)
    assert [
        row[0].split()[0].removesuffix(name.upper()) for row, name in zip(rows, names, strict=True)
    ] == names
    for name, row in zip(names, rows, strict=True):
        counts = Counter(histories.now(files, name).values())
        total = counts.total()
        other = counts["skipped"] + counts["error"]
        shown = [counts["passed"], counts["vacuous"], counts["failed"], other, counts["missing"], total]
        assert row[5:] == [str(number) for number in shown]
        assert row[2] == percent(counts["passed"] / total)


@pytest.mark.parametrize("seed", range(8))
def test_the_matrix_shows_each_case_once(folder: Path, site: Path, seed: int) -> None:
    files = histories.shuffled(seed)
    make(folder, site, *files)
    names = devices_of(files)
    states = {name: histories.now(files, name) for name in names}
    head, *rows = Reader(site / "matrix.html").tables["matrix"]
    assert head == ["Model", "Task", *names]
    models = sorted({case.partition("/")[2] for name in names for case in states[name]})
    assert [" ".join(row[0].split()) for row in rows] == [
        f"{m.partition('/')[2]} {m.partition('/')[0]}" for m in models
    ]
    for model, row in zip(models, rows, strict=True):
        for name, cell in zip(names, row[2:], strict=True):
            state = states[name].get(f"{name}/{model}")
            expected = "ICRM" if state == "failed" else MARKS[state] if state else ""
            assert cell in (expected if state == "failed" else (expected,))


@pytest.mark.parametrize("seed", range(4))
def test_the_data_say_what_the_pages_say(folder: Path, site: Path, seed: int) -> None:
    files = histories.shuffled(seed)
    make(folder, site, *files)
    index = json.loads((site / "data" / "index.json").read_text("utf-8"))
    cases = json.loads((site / "data" / "cases.json").read_text("utf-8"))["cases"]
    assert {row["device"] for row in index["devices"]} == set(devices_of(files))
    for row in index["devices"]:
        expected = histories.now(files, row["device"])
        counts = {key: value for key, value in row["states"].items() if key != "total" and value}
        assert counts == dict(Counter(expected.values()))
        assert {c["case"]: c["state"] for c in cases if c["device"] == row["device"]} == expected


@pytest.mark.parametrize("seed", range(4))
def test_what_is_compared_is_each_result_of_each_run(folder: Path, site: Path, seed: int) -> None:
    """As `static/compare.js` reads it: a character per case, a space or nothing for none."""
    files = histories.shuffled(seed)
    make(folder, site, *files)
    data = site / "data" / "compare"
    index = json.loads((data / "index.js").read_text("utf-8").removeprefix("const COMPARE = ").rstrip(";\n"))
    names = [f"{index['devices'][d]}/{index['models'][m][0]}" for m, d in index["subjects"]]
    states = {"P": "passed", "V": "vacuous", "S": "skipped", "E": "error", " ": ""}
    found, expected = {}, {}
    for listed in index["runs"]:
        letters, faults = json.loads(
            (data / listed["file"]).read_text("utf-8").partition(" = ")[2].rstrip(";\n")
        )
        for name, letter in zip(names, letters, strict=False):
            if letter != " ":
                failed = letter not in states
                found[listed["id"], name] = faults[ord(letter) - 0x4E00] if failed else states[letter]
    for file in files:
        for line in file.cases:
            words = f"{line['stage']}: {line['signature'] or line['kind']}"
            told = histories.state(line)
            expected[file.id, line["id"]] = words if told == "failed" else told
    assert found == expected


def test_the_funnel_counts_who_got_through_each_stage(folder: Path, site: Path) -> None:
    stopped = [case(f"zoo/{s}{k}", stage=s, kind="error") for s in histories.STAGES[2:] for k in range(3)]
    fine = [case("zoo/a"), case("zoo/b", vacuous="v"), case("zoo/c", verdict="skipped", stages=[])]
    ours = [
        case("zoo/d", stage="fetch", kind="infrastructure"),
        case("zoo/e", stage="run", kind="infrastructure"),
    ]
    compiled = [case("zoo/a", "cuda", stage="compile"), case("zoo/b", "cuda", stage="compile", kind="crash")]
    lines = [*stopped, *fine, *ours, *compiled]
    make(folder, site, run(lines, devices={"cpu": device("cpu"), "cuda": device("cuda", "compile")}))
    cpu, cuda = Reader(site / "index.html").tables["funnel"][1:]
    assert [cell.split()[0] for cell in cpu] == ["cpu", "17", "11", "8", "5", "2"]
    assert [cell.split()[0] for cell in cuda] == ["cuda", "2", "2", "1", "-", "-"]


def test_what_the_newest_build_lacks_is_missing_and_not_fine(folder: Path, site: Path) -> None:
    whole = [case(f"zoo/{k}") for k in range(4)]
    make(
        folder,
        site,
        run(whole),
        run(whole[:1], number=1, release="3.1.0"),
        run(whole[:2], number=2, release="3.2.0"),
    )
    row = Reader(site / "index.html").tables["devices"][1]
    assert row[2] == "50.0 %"
    assert row[-2:] == ["2", "4"]
    page = Reader(site / "index.html")
    assert "cpu: 2 of 4 cases are missing under 3.2.0; they count as not passed." in page.text
    assert "zoo/3" in " ".join(cell for row in page.tables["change-4"] for cell in row)


def test_a_case_is_forgotten_after_enough_builds_without_it(folder: Path, site: Path) -> None:
    files = [run([case("zoo/new"), case("zoo/old")])]
    for number in range(1, snapshot.KNOWN + 1):
        files.append(run([case("zoo/new")], number=number, release=f"3.{number}.0"))
    make(folder, site, *files[:-1])
    assert Reader(site / "index.html").tables["devices"][1][-2:] == ["1", "2"]
    make(folder, site, files[-1])
    assert Reader(site / "index.html").tables["devices"][1][-2:] == ["0", "1"]


def test_a_vacuous_pass_is_not_a_pass(folder: Path, site: Path) -> None:
    make(folder, site, run([case("zoo/a", vacuous="v"), case("zoo/b", vacuous="v")]))
    assert Reader(site / "index.html").tables["devices"][1][2] == "0.0 %"
    badge = json.loads((site / "badges" / "cpu.json").read_text("utf-8"))
    assert badge["message"] == "0.0 % of 2"


@pytest.mark.parametrize(
    ("value", "shown"), [(1.0, "100.0 %"), (9999 / 10000, "99.9 %"), (1 / 3, "33.3 %"), (0.0, "0.0 %")]
)
def test_all_but_one_is_not_all(value: float, shown: str) -> None:
    assert percent(value) == shown


def test_back_fills_are_in_the_trend_over_releases_only(folder: Path, site: Path) -> None:
    good, bad = [case("zoo/a"), case("zoo/b")], [case("zoo/a"), case("zoo/b", stage="run", kind="error")]
    make(
        folder,
        site,
        run(good, release="3.1.0"),
        run(bad, number=1, release="3.0.0"),
        run(bad, number=2, release="3.2.0"),
    )
    tables = Reader(site / "index.html").tables
    assert [row[0] for row in tables["releases"][1:]] == ["3.2.0", "3.1.0", "3.0.0"]
    assert [row[0] for row in tables["runs"][1:]] == ["2026-01-03, 3.2.0", "2026-01-01, 3.1.0"]
    assert [row[1].split()[0] for row in tables["releases"][1:]] == ["50.0", "100.0", "50.0"]


def test_the_change_is_against_the_result_before(folder: Path, site: Path) -> None:
    before = [
        case("zoo/a"),
        case("zoo/b"),
        case("zoo/c", stage="run", kind="error"),
        case("zoo/d", vacuous="v"),
    ]
    after = [case("zoo/a"), case("zoo/b", stage="import", kind="crash"), case("zoo/c"), case("zoo/d")]
    make(folder, site, run(before), run(after, number=1, release="3.1.0"))
    page = Reader(site / "index.html")
    assert page.tables["devices"][1][2:4] == ["75.0 %", "+25.0from 3.0.0"]
    changed = {
        key: [row[0] for row in rows[1:]] for key, rows in page.tables.items() if key.startswith("change-")
    }
    assert changed == {"change-1": ["cpu/zoo/b"], "change-2": ["cpu/zoo/c"]}


ANSWERS = ("passed", "vacuous", "failed")
CHANGES = {
    ("passed", "failed"): "broken",
    ("vacuous", "failed"): "broken",
    ("failed", "passed"): "fixed",
    ("failed", "vacuous"): "fixed",
    **{(before, "missing"): "missing" for before in (*ANSWERS, "skipped", "error")},
}


@pytest.mark.parametrize("before", [*ANSWERS, "skipped", "error", "missing"])
@pytest.mark.parametrize("now", [*ANSWERS, "skipped", "error", "missing"])
def test_only_answers_are_held_against_each_other(before: str, now: str) -> None:
    """What a broken machine said, or a skip, makes nothing newly broken, and nothing fixed."""

    def result(state: str) -> snapshot.Result:
        return snapshot.Result(state=state, stage="run" if state == "failed" else "")

    subject = snapshot.Subject(
        key=0,
        id="cpu/zoo/a",
        model="a",
        collection="zoo",
        device="cpu",
        now=result(now),
        before=result(before),
    )
    assert subject.change == CHANGES.get((before, now), "")


def test_a_run_of_a_broken_machine_changes_no_number(folder: Path, site: Path) -> None:
    make(folder, site, run([case("zoo/a")]))
    assert Reader(site / "index.html").tables["devices"][1][2] == "100.0 %"
    spoilt = run([case("zoo/a", verdict="error")], number=1, release="3.1.0", broken="the disk is full")
    make(folder, site, spoilt)
    page = Reader(site / "index.html")
    assert page.tables["devices"][1][1:3] == ["3.0.0", "100.0 %"]
    assert "The newest run gives no verdicts: the disk is full" in page.text


def test_what_is_stale_or_incomplete_is_said(folder: Path, site: Path) -> None:
    make(folder, site, run([case("zoo/a")], complete=False), now=BEGIN + timedelta(days=STALE_DAYS))
    words = Reader(site / "index.html").text
    assert f"Stale: the newest run is {STALE_DAYS} days old." in words
    assert "Incomplete: the newest run was cut off" in words
    make(folder, site, run([case("zoo/a")], number=1), now=BEGIN + timedelta(days=STALE_DAYS))
    words = Reader(site / "index.html").text
    assert "Stale" not in words
    assert "Incomplete" not in words


def test_a_model_has_its_past(folder: Path, site: Path) -> None:
    broken = case(
        "zoo/a", stage="compile", kind="error", signature="illegal-op:onnx.If", excerpt="error: <no>"
    )
    other = run([case("zoo/b", "vulkan")], number=2, release="3.1.5")
    files = [run([case("zoo/a")]), run([case("zoo/a")], number=1, release="3.1.0")]
    files += [
        other,
        run([broken], number=3, release="3.2.0"),
        run([case("zoo/b")], number=4, release="3.3.0"),
    ]
    make(folder, site, *files)
    page = Reader(site / "models" / "zoo" / "a.html")
    strip = [(e["class"], e["x"], e["width"]) for tag, e in page.elements if tag == "rect" and "x" in e]
    # The runs of this device only: the one of another device is no gap, the newest without the case is one.
    assert strip == [("f-passed", "0", "2"), ("f-failed", "2", "1")]
    assert "3.2.0: compile: illegal-op:onnx.If. Before: 3.0.0 to 3.1.0: passed." in page.text
    assert "error: <no>" in page.text


@pytest.mark.parametrize(
    ("stage", "logs", "folder_of_case"),
    [
        (
            "compile",
            ["artifacts/zoo/a/iree-3/import.log", "artifacts/zoo/a/iree-3/cpu/compile.log"],
            "iree-3/cpu",
        ),
        ("import", ["artifacts/zoo/a/iree-3/import.log"], "iree-3/cpu"),
    ],
)
@pytest.mark.parametrize("url", ["", "https://ci.example/1"])
def test_a_case_says_where_its_files_are(
    folder: Path, site: Path, stage: str, logs: list[str], folder_of_case: str, url: str
) -> None:
    failed = case("zoo/a", stage=stage, kind="error")
    for row, log in zip(reversed(failed["stages"]), reversed(logs), strict=False):
        row["log"] = log
    make(folder, site, run([failed], url=url))
    page = Reader(site / "models" / "zoo" / "a.html")
    assert f"artifacts/zoo/a/{folder_of_case} in the artifacts of" in page.text
    jobs = [
        each["href"] for tag, each in page.elements if tag == "a" and "ci.example" in (each["href"] or "")
    ]
    assert len(jobs) == (2 if url else 0)  # here and at the foot of each page


def test_a_fault_says_where_to_begin_and_what_passes(folder: Path, site: Path) -> None:
    """The smallest model, the devices that run what it stops, the releases that did."""
    fault = {"stage": "compile", "kind": "error", "signature": "illegal-op:onnx.If"}

    def failing(name: str, nodes: int) -> Any:
        return case(name, **fault, operators={"If": 1, "Add": nodes - 1}, bytes=1000 * nodes)

    before = [case("zoo/a"), case("zoo/b"), failing("zoo/c", 9)]
    now = [failing("zoo/a", 30), failing("zoo/b", 7), failing("zoo/c", 9)]
    also = [case("zoo/a", "vulkan"), case("zoo/b", "vulkan", vacuous="one number"), case("zoo/c", "hip")]
    files = [run(before, release="3.0.0"), run([*now, *also], number=1, release="3.1.0")]
    make(folder, site, *files)
    words = Reader(site / "failures.html").text
    assert "Smallest model: zoo/b, 7 nodes, 7 kB." in words
    assert "Of its models pass 1 on hip, 1 on vulkan. Of its cases passed 2 until 3.0.0." in words


def test_an_operators_rate_is_over_all_models_that_have_it(folder: Path, site: Path) -> None:
    def of(name: str, device: str = "cpu", **more: Any) -> Any:
        return case(f"zoo/{name}", device, operators={"Conv": 3, "Relu": 1}, **more)

    before = [of("gone"), of("a")]
    now = [
        of("a"),
        of("b", vacuous="one number"),
        of("c", stage="compile", kind="error"),
        of("d", verdict="skipped", stage="fetch"),
        of("e", stage="run", kind="infrastructure"),
        case("zoo/f", operators={"Relu": 1}),
        of("a", "vulkan"),
    ]
    make(folder, site, run(before, release="3.0.0"), run(now, number=1, release="3.1.0"))
    page = Reader(site / "operators.html")
    rates = {row[0]: row[2:] for row in page.tables["operators"][1:]}
    assert rates == {
        "Conv": ["16.6 % 1 of 6", "100.0 % 1 of 1"],
        "Relu": ["28.5 % 2 of 7", "100.0 % 1 of 1"],
    }
    uses = {row[0]: int(row[1].split()[0]) for row in page.tables["operators"][1:]}
    share = (uses["Conv"] / 6 + uses["Relu"] * 2 / 7) / (uses["Conv"] + uses["Relu"])
    assert f"Weighted by that use: cpu {percent(share)}, vulkan 100.0 %." in page.text


def timed(number: int, compile_s: float, latency_s: float, *, reused: bool) -> RunFile:
    """A run of one case with a compile time, taken over from an earlier run or not, and a latency."""
    measured = {"median_s": latency_s, "mad_s": 0.0, "repetitions": 5, "invocations": 5, "command": []}
    passed = case("zoo/a", benchmark={"set": "seeded-0", "threads": 2, "iree": measured})
    for stage in passed["stages"]:
        stage |= {"seconds": compile_s if stage["stage"] == "compile" else 1.0, "reused": reused}
    return run([passed], number=number, release="3.1.0")


@pytest.mark.parametrize("reused", [False, True])
def test_a_lasting_change_is_named_and_a_time_taken_over_is_none(
    folder: Path, site: Path, reused: bool
) -> None:
    """Planted: from the seventh run on a compile time of 5 instead of 2 s, and half the latency."""
    steps = [(2.0, 0.1)] * 6 + [(5.0, 0.05)] * 3
    noise = [1.0, 1.004, 0.997, 1.002]
    files = [timed(k, c * noise[k % 4], t * noise[-k % 4], reused=reused) for k, (c, t) in enumerate(steps)]
    make(folder, site, *files)
    rows = Reader(site / "performance.html").tables["changes"][1:]
    expected = [["cpu/zoo/a", "latency", "3.1.0, 2026-01-07", "-50 %"]]
    if not reused:
        expected.insert(0, ["cpu/zoo/a", "compile time", "3.1.0, 2026-01-07", "+150 %"])
    assert [[*row[:3], row[5]] for row in rows] == expected


def test_times_of_two_machines_are_no_change(folder: Path, site: Path) -> None:
    """The newest three runs are of a machine half as fast; the series is theirs alone, and so too short."""
    files = []
    for k, seconds in enumerate([2.0] * 6 + [4.0] * 3):
        made = timed(k, seconds, seconds / 20, reused=False)
        line = dict(made.cases[0]) | {"machine": "slow" if seconds > 2 else "fast"}
        files.append(run([line], number=k, release="3.1.0"))
    make(folder, site, *files)
    page = Reader(site / "performance.html")
    assert "changes" not in page.tables
    assert (
        "A change needs at least 8 measured runs on one machine; the longest series here has 3." in page.text
    )


def test_a_flake_is_of_one_build_on_one_machine(folder: Path, site: Path) -> None:
    fault = {"stage": "run", "kind": "timeout"}
    files = [
        run([case("zoo/fixed", **fault), case("zoo/flaky"), case("zoo/moved", machine="a")]),
        run([case("zoo/fixed"), case("zoo/flaky")], number=1, release="3.1.0"),
        run([case("zoo/flaky", **fault), case("zoo/tried", verdict="flaky")], number=2, release="3.1.0"),
        run([case("zoo/moved", machine="b", **fault)], number=3),
    ]
    make(folder, site, *files)
    rows = Reader(site / "flakes.html").tables["flakes"][1:]
    assert {row[0] for row in rows} == {"cpu/zoo/flaky", "cpu/zoo/tried"}


def test_faults_are_by_what_they_stop(folder: Path, site: Path) -> None:
    """By models first: a fault of one model on many devices stops less than one of two models."""

    def of(name: str, device: str, fault: str) -> Any:
        return case(f"zoo/{name}", device, stage="compile", kind="error", signature=fault)

    cases = [of("a", "cpu", "a-one"), of("b", "cpu", "z-two"), of("c", "cpu", "z-two")]
    cases += [of("d", device, "m-wide") for device in ("cpu", "hip", "vulkan")]
    make(folder, site, run(cases))
    rows = Reader(site / "failures.html").tables["faults"][1:]
    assert [(row[0].removesuffix("error in compile"), *row[2:4]) for row in rows] == [
        ("z-two", "2", "2"),
        ("m-wide", "1", "3"),
        ("a-one", "1", "1"),
    ]


def test_a_few_models_at_a_desk_do_not_stand_for_a_release(folder: Path, site: Path) -> None:
    whole = [case(f"zoo/{name}") for name in "abcdefghij"]
    desk = run([case("zoo/a", stage="run", kind="error")], number=1)
    again = run([*whole[:8], case("zoo/i", stage="run", kind="error")], number=3, release="3.1.0")
    make(folder, site, run(whole), desk, run(whole, number=2, release="3.1.0"), again)
    rows = Reader(site / "index.html").tables["releases"][1:]
    # Nine of ten are a full run, whose missing case counts; one of ten is none.
    assert [(row[0], row[1].split()[0]) for row in rows] == [("3.1.0", "80.0"), ("3.0.0", "100.0")]


@pytest.mark.parametrize(
    "night", [{"verdict": "skipped", "stage": "fetch"}, {"stage": "run", "kind": "infrastructure"}]
)
def test_a_bad_night_hides_no_regression(folder: Path, site: Path, night: dict[str, Any]) -> None:
    files = [run([case("zoo/a")]), run([case("zoo/a", **night)], number=1)]
    files += [
        run([case("zoo/a", **night)], number=2),
        run([case("zoo/a", stage="run", kind="crash")], number=3),
    ]
    make(folder, site, *files)
    assert [row[0] for row in Reader(site / "index.html").tables["change-1"][1:]] == ["cpu/zoo/a"]
    assert "cpu/zoo/a: run: crash" in (site / "feed.xml").read_text("utf-8")


def test_machines_that_nobody_knows_are_not_one(folder: Path, site: Path) -> None:
    files = []
    for k, seconds in enumerate([2.0] * 6 + [4.0] * 3):
        line = dict(timed(k, seconds, seconds / 20, reused=False).cases[0]) | {"machine": ""}
        files.append(run([line], number=k))
    make(folder, site, *files)
    assert "changes" not in Reader(site / "performance.html").tables


def test_a_fault_is_not_said_to_pass_where_it_stops_others(folder: Path, site: Path) -> None:
    fault = {"stage": "compile", "kind": "error", "signature": "s"}
    cases = [case("zoo/a", **fault), case("zoo/b"), case("zoo/a", "hip"), case("zoo/b", "hip", **fault)]
    make(folder, site, run(cases))
    assert "Of its models pass" not in Reader(site / "failures.html").text


def test_matrix_and_operators_agree_on_what_a_model_has(folder: Path, site: Path) -> None:
    """A case that was stopped before its file was read has the operators of another device's record."""
    make(folder, site, run([case("zoo/a", operators={}), case("zoo/a", "hip", operators={"Gelu": 2})]))
    rows = Reader(site / "operators.html").tables["operators"][1:]
    assert [(row[0], row[2:]) for row in rows] == [("Gelu", ["100.0 % 1 of 1", "100.0 % 1 of 1"])]
    matrix = Reader(site / "matrix.html").elements
    (known,) = [each["data-operator"] for tag, each in matrix if tag == "tr" and "data-operator" in each]
    options = {
        each["value"]: each.get("data-name") for tag, each in matrix if tag == "option" and each.get("value")
    }
    assert options[known] == "Gelu"
