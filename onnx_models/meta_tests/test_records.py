"""Record files: valid by their schema, whole or refused, and the table made of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from onnx_models import devices, records, runs
from onnx_models.cases import Case
from onnx_models.catalog import Model
from onnx_models.outcomes import (
    Expectation,
    Failure,
    Judgement,
    Kind,
    Outcome,
    Stage,
    StageResult,
    Verdict,
    judge,
)
from onnx_models.toolchain import Tool, Toolchain

CPU, CUDA = devices.load("cpu"), devices.load("cuda")


def chain() -> Toolchain:
    tool = Tool(name="t", path=Path("/t"), origin="o", version="3.13.0", key="k")
    return Toolchain(importer=tool, compiler=tool, runner=tool)


def case(path: str, *, device: devices.Device = CPU, expectation: Expectation | None = None) -> Case:
    model = Model(collection="c", path=path, source={}, tags=("t",))
    return Case(model=model, device=device, expectation=expectation)


def row(path: str, last: Stage, kind: Kind | None = None, device: devices.Device = CPU) -> dict[str, Any]:
    """The line of a case that reached a stage and passed or failed there."""
    failure = Failure(stage=last, kind=kind, message="line\u2028break \x85 'x'") if kind else None
    stages = [StageResult(stage=stage, seconds=0.1) for stage in Stage if stage.order < last.order]
    if device is CUDA:
        stages = [result for result in stages if result.stage is not Stage.REFERENCE]
    stages.append(StageResult(stage=last, seconds=0.1, log=Path("/log"), failure=failure))
    judgement = judge(None, failure, case_id=f"c/{path}")
    return records.case_record(case(path, device=device), judgement, Outcome(stages=tuple(stages)))


def write(file: Path, *rows: dict[str, Any], complete: bool = True) -> Path:
    writer = records.Writer(file, records.header("r", chain(), [CPU, CUDA], ["-k", "x"]))
    for each in rows:
        writer.add(each)
    writer.close(complete=complete)
    return file


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(json.loads(records.SCHEMA.read_text(encoding="utf-8")))


def test_a_run_is_read_back(tmp_path: Path) -> None:
    lines = [row("a", Stage.COMPARE), row("b", Stage.COMPILE, Kind.CRASH)]
    lines.append(records.unfinished(case("c"), Verdict.SKIPPED, "no device"))
    known = Expectation(id="c/d", stage=Stage.RUN, kind=Kind.ERROR, why="w")
    judgement = Judgement(verdict=Verdict.EXPECTED_FAILURE, reason="r")
    lines.append(records.case_record(case("d", expectation=known), judgement, Outcome(stages=())))
    head, cases, foot = runs.read(write(tmp_path / "new" / "r.jsonl", *lines)).parts
    assert cases == lines
    assert head["devices"]["cuda"]["last_stage"] == "compile"
    assert head["arguments"] == ["-k", "x"]
    assert foot["cases"] == 4
    assert foot["complete"] is True
    assert foot["verdicts"] == {"expected-failure": 1, "passed": 1, "regressed": 1, "skipped": 1}


def test_unusual_line_breaks_do_not_split_a_line(tmp_path: Path) -> None:
    _, (read,), _ = runs.read(write(tmp_path / "r.jsonl", row("b", Stage.RUN, Kind.ERROR))).parts
    assert read["message"] == "line\u2028break \x85 'x'"


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        (slice(0, -1), "no footer; the run was cut off: run it again"),
        (slice(1, None), "no header; this is not a record file"),
        (slice(0, 0), "no header; this is not a record file"),
    ],
)
def test_a_file_without_its_ends_is_refused(tmp_path: Path, keep: slice, message: str) -> None:
    file = write(tmp_path / "r.jsonl", row("a", Stage.COMPARE))
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)[keep]
    file.write_text("".join(lines), encoding="utf-8")
    with pytest.raises(records.RecordError, match=message):
        runs.read(file)


def test_a_lost_line_a_cut_line_and_a_wrong_one_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path / "r.jsonl", row("a", Stage.COMPARE), row("b", Stage.COMPARE))
    head, first, second, foot = file.read_text(encoding="utf-8").splitlines()
    for lines, message in (
        ((head, first, foot), "the footer counts 2 cases, the file has 1"),
        ((head, first[:40]), r"r\.jsonl:2: not JSON .*the run was cut off here"),
        ((head, first, second.replace('"passed"', '"fine"'), foot), r"r\.jsonl:3: verdict must be one of"),
        (
            (head, first.replace('"tags"', '"labels"'), second, foot),
            r"r\.jsonl:2: must contain \['tags'\] properties",
        ),
    ):
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        with pytest.raises(records.RecordError, match=message):
            runs.read(file)


def test_what_is_no_record_is_refused(tmp_path: Path) -> None:
    for content in (b"\x80\xff", b"{}\n", b"hello\n"):
        (tmp_path / "r.jsonl").write_bytes(content)
        with pytest.raises(records.RecordError, match=r"r\.jsonl"):
            runs.read(tmp_path / "r.jsonl")
    with pytest.raises(records.RecordError, match="not a record file"):
        runs.read(tmp_path / "lost.jsonl")


def test_no_line_holds_what_json_does_not_know(tmp_path: Path) -> None:
    writer = records.Writer(tmp_path / "r.jsonl", records.header("r", chain(), [CPU], []))
    bad = row("a", Stage.COMPARE) | {"outputs": [{"rmse": float("nan")}]}
    with pytest.raises(ValueError, match="JSON"):
        writer.add(bad)


def test_the_funnel_counts_how_far_each_case_came() -> None:
    lines = [
        row("a", Stage.COMPARE),
        row("b", Stage.COMPARE, Kind.MISMATCH),
        row("c", Stage.RUN, Kind.ERROR),
        row("d", Stage.IMPORT, Kind.ERROR),
        row("e", Stage.REFERENCE, Kind.ERROR),
        records.unfinished(case("f"), Verdict.SKIPPED, "why"),
    ]
    counts = records.funnel(lines)["cpu"]
    assert [counts[column] for column in records.FUNNEL] == [6, 5, 4, 3, 3, 2, 1]
    assert (counts["passed"], counts["regressed"], counts["skipped"]) == (1, 4, 1)


def test_the_table_is_aligned_and_marks_what_a_device_lacks() -> None:
    lines = [row("a", Stage.COMPARE), row("a", Stage.COMPILE, device=CUDA)]
    head, cpu, cuda = records.summary(lines, compile_only=frozenset({"cuda"}))
    assert head.split() == ["device", *records.FUNNEL, "passed"]
    assert cpu.split() == ["cpu", "1", "1", "1", "1", "1", "1", "1", "1"]
    assert cuda.split() == ["cuda", "1", "1", "-", "1", "1", "-", "-", "1"]
    assert len({len(line) for line in (head, cpu, cuda)}) == 1


def test_run_ids_sort_by_time_and_are_file_names() -> None:
    assert records.new_run_id().replace("-", "").replace("T", "").replace("Z", "").isdigit()
