"""Shards become the run that they are parts of, in any order, or it is said why they do not."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from onnx_models import migrations, runs
from onnx_models.cli import main
from onnx_models.merge import MergeError, merge
from onnx_models.meta_tests.histories import case, device, run, save
from onnx_models.runs import RunFile

CASES = [
    case("zoo/a"),
    case("zoo/b", stage="compile", kind="error", signature="s"),
    case("zoo/c", vacuous="one number"),
    case("wheels/a", stage="fetch", stages=[], verdict="skipped"),
    case("zoo/a", "cuda", stage="compile"),
    case("zoo/b", "cuda", stage="import", kind="crash"),
]


def part(cases: Sequence[Any], number: int = 0, of: int = 0, **more: Any) -> RunFile:
    """A shard (`number` of `of`), or a run of its own."""
    shard = {"shard": f"{number}/{of}"} if of else {}
    return run(cases, run=f"r{number}", **{"devices": ("cpu", "cuda")} | shard | more)


def halves(**more: Any) -> list[RunFile]:
    return [part(CASES[:3], 1, 2), part(CASES[3:], 2, 2, **more)]


@settings(deadline=None)
@given(data=st.data())
def test_a_run_that_was_split_is_whole_again_in_any_order(data: st.DataObject) -> None:
    count = data.draw(st.integers(2, 4))
    homes = data.draw(st.lists(st.integers(1, count), min_size=len(CASES), max_size=len(CASES)))
    days = data.draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    parts = [
        run(
            [line for line, home in zip(CASES, homes, strict=True) if home == k],
            number=days[k - 1],
            run=f"r{k}",
            devices=("cpu", "cuda"),
            shard=f"{k}/{count}",
        )
        for k in range(1, count + 1)
    ]
    merged = merge(data.draw(st.permutations(parts)), within=timedelta(days=9))
    assert merged == merge(parts, within=timedelta(days=9))
    assert merged.run.cases == tuple(
        {"machine": "f" * 12} | line for line in sorted(CASES, key=lambda line: str(line["id"]))
    )
    assert merged.run.footer["complete"] is True
    assert merged.run.footer["cases"] == len(CASES)
    assert merged.run.footer["verdicts"] == {"passed": 3, "regressed": 2, "skipped": 1}
    assert merged.run.footer["finished"] == max(each.footer["finished"] for each in parts)
    assert merged.run.header["started"] == min(each.header["started"] for each in parts)
    assert merged.run.header["shard"] == ""
    assert sorted(each["shard"] for each in merged.run.header["merged"]) == [
        f"{k}/{count}" for k in range(1, count + 1)
    ]
    assert [migrations.fault(dict(row), 3) for row in merged.run.rows()] == [""] * (len(CASES) + 2)


def test_one_run_is_itself() -> None:
    whole = part(CASES)
    assert merge([whole]).run == whole


def test_runs_of_different_devices_become_one_and_gaps_are_told() -> None:
    cpu = run([case("zoo/a"), case("zoo/b")], run="c")
    cuda = run([case("zoo/a", "cuda")], run="d", host=dict(cpu.header["host"]) | {"fingerprint": "e" * 12})
    merged = merge([cuda, cpu])
    assert merged.missing == ("device cuda: 1 models missing: zoo/b",)
    assert sorted(merged.run.header["devices"]) == ["cpu", "cuda"]
    assert {line["id"]: line["machine"][0] for line in merged.run.cases} == {
        "cpu/zoo/a": "f",
        "cpu/zoo/b": "f",
        "cuda/zoo/a": "e",
    }
    assert [each["fingerprint"][0] for each in merged.run.header["merged"]] == ["f", "e"]


def test_what_is_merged_again_keeps_its_origins() -> None:
    third = run([case("zoo/z", "hip")], number=1, run="r3")
    merged = merge([third, merge(halves()).run])
    assert [each["run"] for each in merged.run.header["merged"]] == ["r1", "r2", "r3"]
    assert {line["device"] for line in merged.run.cases} == {"cpu", "cuda", "hip"}


def facts(**more: Any) -> Callable[[], list[RunFile]]:
    return lambda: halves(**more)


MIXED: dict[str, tuple[Callable[[], list[RunFile]], str]] = {
    "release": (facts(release="3.1.0", iree="3.0.0"), "r1 and r2 are of different release: 3.0.0 and 3.1.0"),
    "compiler": (facts(iree="3.1.0"), "different iree: 3.0.0 and 3.1.0"),
    "suite": (facts(suite="9"), "different suite: 0.1.0 and 9"),
    "catalogue": (facts(catalogue="1" * 64), "different catalogue"),
    "onnxruntime": (
        facts(packages={"onnx": "1", "onnxruntime": "2", "numpy": "1", "pytest": "1"}),
        "different onnxruntime: 1 and 2",
    ),
    "twice": (lambda: [part(CASES, 1), part(CASES, 1)], "run r1 is there twice"),
    "case twice": (
        lambda: [part(CASES[:3], 1), part(CASES[2:], 2)],
        "case cpu/zoo/c is in the runs r1 and r2: merge two runs one by one, or take the later of "
        "a repeated part with --prefer-last",
    ),
    "splits": (lambda: [part(CASES[:3], 1, 2), part(CASES[3:], 2, 3)], "parts of 2 and of 3 shards"),
    "no such shard": (lambda: [part(CASES[:3], 1, 2), part(CASES[3:], 3, 2)], "shard 3 of 2"),
    "days": (
        lambda: [part(CASES[:3], 1, 2), run(CASES[3:], number=8, run="r2", shard="2/2")],
        "r1 and r2 began 8 days apart",
    ),
    "nothing": (list, "nothing to merge"),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_is_not_of_one_run_is_refused(name: str) -> None:
    """Also by those who take incomplete runs."""
    made, words = MIXED[name]
    for allow in (False, True):
        with pytest.raises(MergeError, match=words):
            merge(made(), allow_incomplete=allow)


def test_one_device_with_other_flags_is_another() -> None:
    one, other = halves()
    devices = dict(other.header["devices"])
    devices["cpu"] = device("cpu") | {"compile_flags": ["--iree-opt-level=O3"]}
    other = replace(other, header=dict(other.header) | {"devices": devices})
    with pytest.raises(MergeError, match="compile_flags of device cpu"):
        merge([one, other])


def test_what_machines_found_of_a_device_is_joined() -> None:
    parts = []
    for each, name in zip(halves(), ("A100", "H200"), strict=True):
        devices = dict(each.header["devices"]) | {"cuda": device("cuda") | {"found": [name, "same"]}}
        parts.append(replace(each, header=dict(each.header) | {"devices": devices}))
    assert merge(parts).run.header["devices"]["cuda"]["found"] == ["A100", "same", "H200"]


def test_tools_of_unknown_version_may_differ_by_their_hash() -> None:
    def tool(version: str) -> list[dict[str, str]]:
        return [{"name": "iree-compile", "path": "/x", "origin": "o", "version": version}]

    one, other = halves(tools=tool("unknown-1"))
    one = replace(one, header=dict(one.header) | {"tools": tool("unknown-2")})
    assert len(merge([one, other]).run.cases) == len(CASES)
    for each in (tool("3.0.0"), tool("3.0.1")):
        one, other = other, replace(one, header=dict(one.header) | {"tools": each})
    with pytest.raises(MergeError, match=r"different iree-compile: 3\.0\.. and 3\.0\.."):
        merge([one, other])


INCOMPLETE: dict[str, tuple[Callable[[], list[RunFile]], str]] = {
    "a shard": (lambda: halves()[:1], "device cpu: shard 2 of 2 is missing; device cuda: shard 2 of 2"),
    "shards of one device": (
        lambda: [
            part(CASES[:3], 1, 3),
            part(CASES[3:], 2, 3),
            run([], run="r3", shard="3/3", devices=["cpu"]),
        ],
        "^device cuda: shard 3 of 3 is missing: add what is missing, or merge what is there with --allow-",
    ),
    "cut off": (lambda: halves(complete=False), "run r2 is incomplete"),
    "broken": (lambda: halves(broken="the disk is full"), "run r2 says nothing of IREE: the disk is full"),
}


@pytest.mark.parametrize("name", INCOMPLETE)
def test_what_is_incomplete_is_refused_unless_it_is_allowed_and_stays_incomplete(name: str) -> None:
    made, words = INCOMPLETE[name]
    with pytest.raises(MergeError, match=words):
        merge(made())
    merged = merge(made(), allow_incomplete=True)
    assert any(line in words for line in merged.missing)
    if len(made()) > 1:
        assert merged.run.footer["complete"] is False
        assert "host_broken" not in merged.run.footer


def test_a_run_whose_parts_all_broke_says_nothing() -> None:
    parts = [part(CASES[:3], 1, 2, broken="no driver"), part(CASES[3:], 2, 2, broken="no driver")]
    assert merge(parts).run.footer["host_broken"] == "no driver"


def test_the_later_one_is_preferred_when_asked() -> None:
    first = run([case("zoo/a", stage="run", kind="error"), case("zoo/b")], run="z")
    again = run([case("zoo/a")], number=1, run="a")
    for order in ([first, again], [again, first]):
        merged = merge(order, prefer_last=True).run
        assert {line["id"]: line["verdict"] for line in merged.cases} == {
            "cpu/zoo/a": "passed",
            "cpu/zoo/b": "passed",
        }
        assert merged.footer["verdicts"] == {"passed": 2}


@pytest.mark.parametrize("gone", [{"complete": False}, {"broken": "no driver"}, {}], ids=str)
def test_a_job_that_was_run_again_replaces_its_first_try(gone: dict[str, Any]) -> None:
    first, second = halves()
    tried = run(
        [dict(line) for line in second.cases[:2]], run="r0", shard="2/2", devices=("cpu", "cuda"), **gone
    )
    again = replace(second, header=dict(second.header) | {"started": "2026-01-02T02:00:00+00:00"})
    with pytest.raises(MergeError):
        merge([first, tried, again])
    merged = merge([tried, again, first], prefer_last=True).run
    assert merged.footer["complete"] is True
    assert [each["run"] for each in merged.header["merged"]] == ["r1", "r2"]
    other = replace(tried, header=dict(tried.header) | {"shard": "1/2"})
    if gone:
        with pytest.raises(MergeError, match="run r0"):
            merge([first, other, again], prefer_last=True)


def test_a_part_that_was_to_test_another_device_too_is_not_replaced() -> None:
    """It was cut off before its second device, for which a later part of the first one does not stand."""
    cut = run([case("zoo/a")], run="r0", devices=("cpu", "cuda"), complete=False)
    again = run([case("zoo/a")], number=1, run="r1", devices=("cpu",))
    with pytest.raises(MergeError, match="run r0 is incomplete"):
        merge([cut, again], prefer_last=True)


def test_hostile_names_are_one_line() -> None:
    one, other = halves(release="x\n\x1b[31m\u202e" + "y" * 10_000)
    with pytest.raises(MergeError) as caught:
        merge([one, other])
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) <= 600


def test_the_command_writes_one_file_that_can_be_read(tmp_path: Path) -> None:
    folder = save(tmp_path / "parts", *halves())
    runner = CliRunner()
    files = [str(path) for path in runs.files(folder)]
    done = runner.invoke(main, ["merge", *files, "-o", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    (file,) = runs.files(tmp_path / "runs")
    assert done.stdout.strip() == str(file)
    assert runs.read(file).footer["cases"] == len(CASES)
    again = runner.invoke(main, ["merge", *files[::-1], "-o", str(tmp_path / "runs")])
    assert (again.exit_code, again.stdout) == (0, done.stdout)
    assert runs.files(tmp_path / "runs") == (file,)


def test_the_command_says_what_is_missing_and_writes_nothing(tmp_path: Path) -> None:
    folder = save(tmp_path / "parts", halves()[0])
    runner = CliRunner()
    argv = ["merge", str(runs.files(folder)[0]), "-o", str(tmp_path / "runs")]
    done = runner.invoke(main, argv)
    assert done.exit_code == 1
    assert done.stderr.startswith("error: device cpu: shard 2 of 2 is missing")
    assert not (tmp_path / "runs").exists()
    done = runner.invoke(main, [*argv, "--allow-incomplete"])
    assert done.exit_code == 0
    assert done.stderr.splitlines()[0] == "device cpu: shard 2 of 2 is missing"
    assert len(runs.files(tmp_path / "runs")) == 1


def test_the_command_takes_a_cut_off_record_only_when_told(tmp_path: Path) -> None:
    (file,) = runs.files(save(tmp_path / "parts", part(CASES)))
    plain = tmp_path / "r.jsonl"
    lines = [*part(CASES).rows()][:-1]
    plain.write_text("".join(json.dumps(row) + "\n" for row in lines) + '{"type": "ca', encoding="utf-8")
    runner = CliRunner()
    assert runner.invoke(main, ["merge", str(plain), "-o", str(tmp_path / "runs")]).exit_code == 1
    done = runner.invoke(main, ["merge", str(plain), "--allow-incomplete", "-o", str(tmp_path / "runs")])
    assert done.exit_code == 0, done.output
    assert runs.read(Path(done.stdout.strip())).footer["complete"] is False
    assert file.exists()


@pytest.mark.parametrize("argv", [["-o", "x"], ["r.jsonl"], ["r.jsonl", "-o", "x", "--within", "soon"]])
def test_wrong_use_is_refused(argv: list[str]) -> None:
    done = CliRunner().invoke(main, ["merge", *argv])
    assert done.exit_code in (2, 4)
    assert "Traceback" not in done.output


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (["-k", "a"], ["-k", "a"], True),
        (["-k", "a"], ["-k", "b"], False),
        (["-k", "a"], [], False),
        (["-ka"], ["-kb"], False),
        (["-ka"], ["-k", "a"], True),
        (["--collection=zoo"], ["--collection", "zoo"], True),
        (
            ["--collection", "zoo", "--shard", "1/2", "-n", "2"],
            ["--collection", "zoo", "--shard", "2/2"],
            True,
        ),
        (["--collection=zoo"], ["--collection=nodes"], False),
        (["--lf"], [], False),
    ],
)
def test_parts_of_a_split_are_of_one_selection(one: list[str], other: list[str], same: bool) -> None:
    parts = halves()
    for part_, words in zip(parts, (one, other), strict=True):
        dict.update(part_.header, {"arguments": words})
    if same:
        assert merge(parts).run.footer["complete"] is True
    else:
        with pytest.raises(MergeError, match="different selection"):
            merge(parts)
