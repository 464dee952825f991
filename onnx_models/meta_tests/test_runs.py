"""Run files: whole, immutable, of every schema that there was; what is damaged or hostile is refused."""

from __future__ import annotations

import errno
import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from onnx_models import migrations, record_lines, records, runs
from onnx_models.meta_tests import histories
from onnx_models.records import RecordError
from onnx_models.runs import RunFile

OLD = Path(__file__).with_name("old_records")
"""Written by the code of that time, with the tests' fake tools; only paths and host are made neutral."""

SLOW = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def small() -> RunFile:
    return histories.run([histories.case("zoo/a"), histories.case("zoo/b", stage="compile", kind="error")])


def lines_of(run: RunFile) -> list[bytes]:
    return gzip.decompress(runs.packed(run.rows())).splitlines(keepends=True)


def refusal(path: Path, **options: bool) -> str:
    """The one line that says why a file is not read."""
    with pytest.raises(RecordError) as caught:
        runs.read(path, **options)
    text = str(caught.value)
    assert text.startswith(str(path))
    assert text.isprintable(), text
    assert len(text) < len(str(path)) + 400, text
    return text[len(str(path)) :]


@pytest.mark.parametrize("name", ["schema-1", "schema-2-early", "schema-2"])
def test_an_old_file_is_read_as_one_of_today(name: str, tmp_path: Path) -> None:
    file = OLD / f"{name}.jsonl"
    raw = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert raw[0]["schema"] == int(name[7])
    run = runs.read(file)
    assert [case["id"] for case in run.cases] == [row["id"] for row in raw[1:-1]]
    for row, old in zip(run.rows(), raw, strict=True):
        assert migrations.fault(dict(row), records.SCHEMA_VERSION) == ""
        kept = {key: old[key] for key in old.keys() - {"schema", "host", "stages"}}
        assert {key: row[key] for key in kept} == kept
    assert run.header["release"] == "3.13.0rc20261016"
    assert run.header["schema"] == records.SCHEMA_VERSION
    assert run.header["host"]["fingerprint"] == ""
    assert [*runs.stream(file)] == [*run.rows()]
    assert runs.header_of(file) == run.header
    assert runs.read(runs.write(run, tmp_path)) == run


def test_what_old_files_do_not_know_is_unknown() -> None:
    by_name = {each: runs.read(OLD / f"{each}.jsonl") for each in ("schema-1", "schema-2")}
    zeros = {each: histories_case(run, "cpu/tiny/zeros") for each, run in by_name.items()}
    assert zeros["schema-1"]["vacuous"] == ""
    assert "zero" in zeros["schema-2"]["vacuous"] or zeros["schema-2"]["vacuous"]
    crash = {each: histories_case(run, "cpu/tiny/compile-crash") for each, run in by_name.items()}
    assert crash["schema-1"]["attempts"] == []
    assert crash["schema-1"]["signature"] == ""
    assert crash["schema-2"]["signature"].startswith("compile-crash")
    assert {stage["product_bytes"] for stage in crash["schema-2"]["stages"]} == {0}


def histories_case(run: RunFile, case_id: str) -> Any:
    (found,) = [case for case in run.cases if case["id"] == case_id]
    return found


def test_each_version_has_its_schema_and_its_step() -> None:
    versions = range(1, records.SCHEMA_VERSION)
    assert sorted(migrations.STEPS) == [*versions]
    for version in versions:
        file = records.SCHEMA.with_name(f"record-{version}.schema.json")
        Draft202012Validator.check_schema(json.loads(file.read_text(encoding="utf-8")))
        assert migrations.fault({"type": "header"}, version)


def test_a_line_of_today_has_every_field(tmp_path: Path) -> None:
    """A file that claims schema 3 cannot lack what its readers rely on."""
    head, *cases, foot = ({**row} for row in small().rows())
    optional = {"merged", "machine", "host_broken"}
    for row in (head, cases[0], foot):
        assert migrations.fault(row, 3) == ""
        for key in row.keys() - optional:
            assert migrations.fault({k: v for k, v in row.items() if k != key}, 3), key


ANY = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**6) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


@st.composite
def spoiled(draw: st.DrawFn) -> dict[str, Any]:
    """A line with something in it replaced, removed or added."""
    row = json.loads(json.dumps(dict(draw(st.sampled_from([*small().rows()])))))
    spot: Any = row
    while True:
        key = draw(st.sampled_from(sorted(spot) if isinstance(spot, dict) else range(len(spot))))
        inner = spot[key]
        if isinstance(inner, dict | list) and inner and draw(st.booleans()):
            spot = inner
            continue
        action = draw(st.sampled_from(["replace", "remove", "add"]))
        if action == "replace":
            spot[key] = draw(ANY)
        elif action == "remove":
            del spot[key]
        elif isinstance(spot, dict):
            spot[draw(st.text(max_size=5))] = draw(ANY)
        return row  # type: ignore[no-any-return]


@SLOW
@given(spoiled())
def test_the_fast_check_says_what_the_standard_says(row: dict[str, Any]) -> None:
    validator = Draft202012Validator(json.loads(records.SCHEMA.read_text(encoding="utf-8")))
    assert (migrations.fault(row, records.SCHEMA_VERSION) == "") == validator.is_valid(row), row


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    head, *rest = lines_of(small())
    file = tmp_path / "r.jsonl"
    file.write_bytes(head.replace(b'"schema":3', b'"schema":4') + b"".join(rest))
    assert refusal(file) == ": schema 4, this version reads up to 3: update onnx-models"


def edited(change: Any) -> bytes:
    """A case's line after a change to it."""
    row = json.loads(lines_of(small())[1])
    change(row)
    return json.dumps(row).encode() + b"\n"


def nested(levels: int) -> object:
    found: object = 1
    for _ in range(levels):
        found = [found]
    return found


HOSTILE = {
    "unknown field": (edited(lambda r: r.update({"<script>\n": 1})), "must not contain"),
    "deep nesting": (b'{"type":"case","a":' + b"[" * 100_000, "nested too deeply"),
    "deep nesting, closed": (
        edited(lambda r: r.update(health={"a": nested(50)})),
        "nested too deeply",
    ),
    "a line of 17 MiB": (edited(lambda r: r.update(message="x" * 17 * 2**20)), "a line of more than 16 MiB"),
    "not a number": (edited(lambda r: r.update(bytes=float("nan"))), "NaN is no JSON number"),
    "infinity": (edited(lambda r: r["stages"][0].update(seconds=float("inf"))), "Infinity is no JSON number"),
    "infinity as a number": (edited(lambda r: None).replace(b"1.0", b"1e999"), "1e999 is too large"),
    "huge": (edited(lambda r: r.update(bytes=10**400)), "is too large"),
    "very huge": (
        edited(lambda r: r.update(bytes=1)).replace(b'"bytes": 1', b'"bytes": ' + b"1" * 9999),
        "large",
    ),
    "negative": (edited(lambda r: r.update(bytes=-1)), "bytes must be bigger than or equal to 0"),
    "a text for a number": (edited(lambda r: r.update(opset="17")), "opset must be integer"),
    "a number for a text": (edited(lambda r: r.update(message=7)), "message must be string"),
    "an unknown verdict": (edited(lambda r: r.update(verdict="fine\x1b[31m")), "verdict must be one of"),
    "an unknown kind": (edited(lambda r: r.update(kind="bad luck")), "kind must be one of"),
    "an unknown device": (
        edited(lambda r: r.update(device="tpu", id="tpu/zoo/a")),
        "device tpu is not in the header",
    ),
    "an id of its own": (edited(lambda r: r.update(id="cpu/zoo/z")), "is not device/collection/model"),
    "a second run": (lines_of(small())[0], "this is more than one run"),
    "half a character": (edited(lambda r: r.update(message="\ud800")), "a lone surrogate"),
    "not UTF-8": (b'{"type":"case\xff"}\n', "not UTF-8"),
    "UTF-16": ('{"type":"case"}\n'.encode("utf-16"), "not UTF-8"),
    "zeros": (b"\0" * 1000 + b"\n", "not JSON"),
    "a list": (b"[]\n", "expected an object, found list"),
    "no type": (b"{}\n", "must contain ['type'] properties"),
    "another type": (b'{"type":"cases"}\n', "type must be one of"),
}


@pytest.mark.parametrize("packed", [False, True], ids=["plain", "gzip"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_damaged_or_hostile_line_is_refused(name: str, packed: bool, tmp_path: Path) -> None:
    line, words = HOSTILE[name]
    head, _, second, foot = lines_of(small())
    data = head + line + second + foot
    file = tmp_path / "r.jsonl"
    file.write_bytes(gzip.compress(data, 1) if packed else data)
    text = refusal(file)
    assert words in text, text
    assert text.startswith(":2: "), text


FRAMES: dict[str, tuple[Any, str]] = {
    "a case twice": (lambda h, a, b, f: [h, a, a, b, f], ":3: the case cpu/zoo/a is there twice"),
    "no footer": (lambda h, a, b, f: [h, a, b], ": no footer; the run was cut off: run it again"),
    "only a header": (lambda h, a, b, f: [h], ": no footer"),
    "nothing": (lambda h, a, b, f: [], ": no header; this is not a record file"),
    "no header": (lambda h, a, b, f: [a, b, f], ": no header; this is not a record file"),
    "only a footer": (lambda h, a, b, f: [f], ": no header; this is not a record file"),
    "a case lost": (lambda h, a, b, f: [h, a, f], ": the footer counts 2 cases, the file has 1"),
    "a case after the footer": (lambda h, a, b, f: [h, a, f, b], ":4: a line after the footer"),
    "two runs": (lambda h, a, b, f: [h, a, b, f, h, a, b, f], ":5: a line after the footer"),
    "other verdicts": (
        lambda h, a, b, f: [h, a, b, f.replace(b'"regressed":1', b'"passed":1')],
        ": the footer's verdicts",
    ),
    "no such day": (
        lambda h, a, b, f: [h.replace(b"2026-01-01", b"2026-02-31"), a, b, f],
        "is no time; damaged",
    ),
    "no time": (
        lambda h, a, b, f: [h.replace(b"2026-01-01", b"yesterday"), a, b, f],
        ":1: started must match",
    ),
    "schema 0": (lambda h, a, b, f: [h.replace(b'"schema":3', b'"schema":0'), a, b, f], ": schema 0"),
    "schema true": (
        lambda h, a, b, f: [h.replace(b'"schema":3', b'"schema":true'), a, b, f],
        ": schema True",
    ),
    "schema text": (lambda h, a, b, f: [h.replace(b'"schema":3', b'"schema":"3"'), a, b, f], ": schema '3'"),
    "a script for an address": (
        lambda h, a, b, f: [h.replace(b'"url":""', b'"url":"javascript:x"'), a, b, f],
        ":1: url must match",
    ),
    "shard 0": (
        lambda h, a, b, f: [h.replace(b'"shard":""', b'"shard":"0/2"'), a, b, f],
        ":1: shard must match",
    ),
}


@pytest.mark.parametrize("name", FRAMES)
def test_a_file_that_is_not_one_whole_run_is_refused(name: str, tmp_path: Path) -> None:
    change, words = FRAMES[name]
    file = tmp_path / "r.jsonl"
    file.write_bytes(b"".join(change(*lines_of(small()))))
    assert words in refusal(file)


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    assert refusal(tmp_path / "lost.jsonl").endswith("name the .jsonl of a run")
    assert refusal(
        tmp_path
    ) == f": a folder, not a record file: name a run of it, as {tmp_path}@RELEASE or " + (f"{tmp_path}@RUN")
    (tmp_path / "r.jsonl.gz").write_bytes(b"\x1f\x8bnot gzip at all")
    assert "damaged after line 0" in refusal(tmp_path / "r.jsonl.gz")
    (tmp_path / "empty").write_bytes(b"")
    assert refusal(tmp_path / "empty") == ": no header; this is not a record file"
    with pytest.raises(RecordError, match="not a record file"):
        runs.read(Path("nul\0byte"))


def test_bombs_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one endless line nor endless lines fill the memory."""
    head, first, *_ = lines_of(small())
    file = tmp_path / "r.jsonl.gz"
    with gzip.open(file, "wb", 1) as out:
        out.write(head)
        for _ in range(64):
            out.write(b" " * 2**20)
    assert file.stat().st_size < 2**20
    assert ":2: a line of more than 16 MiB" in refusal(file)
    file.write_bytes(gzip.compress(head + first * 100_000, 1))
    assert ":3: the case cpu/zoo/a is there twice" in refusal(file)
    monkeypatch.setattr(record_lines, "FILE_LIMIT", 2**20)
    lines = [first.replace(b"zoo/a", b"zoo/a%d" % k).replace(b'"a"', b'"a%d"' % k) for k in range(2000)]
    file.write_bytes(gzip.compress(head + b"".join(lines), 1))
    assert "more than 1 MiB of lines" in refusal(file)


@SLOW
@given(data=st.data())
def test_a_cut_file_is_refused_or_the_beginning_of_the_run(data: st.DataObject, tmp_path: Path) -> None:
    """Also a gzip file that a full disk cut off."""
    whole = small()
    plain = b"".join(lines_of(whole))
    packed = data.draw(st.booleans())
    content = gzip.compress(plain) if packed else plain
    content = content[: data.draw(st.integers(0, len(content) - (1 if packed else 2)))]
    file = tmp_path / "r.jsonl"
    file.write_bytes(content)
    refusal(file)
    try:
        part = runs.read(file, allow_incomplete=True)
    except RecordError:
        assert "no header" in refusal(file, allow_incomplete=True)
        return
    assert part.header == whole.header
    assert part.cases == whole.cases[: len(part.cases)]
    if part.footer != whole.footer:
        assert part.footer["complete"] is False


@SLOW
@given(noise=st.binary(max_size=200), packed=st.booleans(), after=st.sampled_from([0, 1, 2, 3]))
def test_noise_is_refused(noise: bytes, packed: bool, after: int, tmp_path: Path) -> None:
    content = b"".join(lines_of(small())[:after]) + noise
    (tmp_path / "r.jsonl").write_bytes(gzip.compress(content) if packed else content)
    refusal(tmp_path / "r.jsonl")


@pytest.mark.parametrize("links", [True, False], ids=["links", "no links"])
def test_a_run_is_written_once_and_its_bytes_do_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, links: bool
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    if not links:
        monkeypatch.setattr("os.link", refuse)
    run = small()
    file = runs.write(run, tmp_path / "new" / "runs")
    assert file.name == f"{run.id}.jsonl.gz"
    assert file.stat().st_mode & 0o777 == 0o644
    before = file.read_bytes()
    assert before[4:8] == bytes(4)  # the time of a gzip file
    assert runs.write(run, file.parent) == file
    assert runs.packed(run.rows()) == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]
    other = histories.run([histories.case("zoo/other")])
    assert other.id == run.id
    with pytest.raises(RecordError, match="there already, with other content: runs are never written again"):
        runs.write(other, file.parent)
    assert file.read_bytes() == before
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_another_compression_is_the_same_run(tmp_path: Path) -> None:
    file = runs.write(small(), tmp_path)
    file.write_bytes(gzip.compress(gzip.decompress(file.read_bytes()), 1))
    assert runs.write(small(), tmp_path) == file


def test_where_nothing_can_be_written_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for folder in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(RecordError, match="name another folder"):
            runs.write(small(), folder)
    (tmp_path / "runs" / f"{small().id}.jsonl.gz").mkdir(parents=True)
    with pytest.raises(RecordError, match="a folder, not a record file"):
        runs.write(small(), tmp_path / "runs")


@pytest.mark.parametrize("name", ["../up", "a/b", "", ".hidden", "a\nb", "a" * 201, "-o"])
def test_a_run_cannot_name_a_file_elsewhere(name: str, tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="cannot name a file"):
        runs.write(histories.run([], run=name), tmp_path / "runs")
    assert list(tmp_path.iterdir()) == []


def test_the_files_of_a_folder(tmp_path: Path) -> None:
    made = sorted(runs.write(histories.run([], number=k), tmp_path) for k in (2, 1))
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".new-left").write_text("x")
    (tmp_path / "folder.jsonl.gz").mkdir()
    assert runs.files(tmp_path) == tuple(made)
    with pytest.raises(RecordError, match="no folder of runs: make one with onnx-models merge"):
        runs.files(tmp_path / "lost")


def test_streaming_needs_the_memory_of_one_line(tmp_path: Path) -> None:
    """And ends with an error where the file was cut off."""
    cases = [histories.case(f"zoo/m{k}", message="x" * 10_000) for k in range(300)]
    file = runs.write(histories.run(cases), tmp_path)
    rows: Iterator[dict[str, Any]] = runs.stream(file)
    assert next(rows)["type"] == "header"
    assert sum(1 for _ in rows) == 301
    plain = tmp_path / "cut.jsonl"
    plain.write_bytes(gzip.decompress(file.read_bytes())[:-300])
    plain.write_bytes(plain.read_bytes().rpartition(b"\n")[0] + b"\n")
    with pytest.raises(RecordError, match="no footer"):
        list(runs.stream(plain))
    plain.write_bytes(b"")
    with pytest.raises(RecordError, match="no header"):
        list(runs.stream(plain))


def test_no_file_stays_open(tmp_path: Path) -> None:
    file = runs.write(small(), tmp_path)
    before = len([*Path("/proc/self/fd").iterdir()])
    runs.header_of(file)
    runs.read(file)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["b.jsonl", "a.jsonl"], r"holds no runs \(\*\.jsonl\.gz\): .*onnx-models merge .*/b\.jsonl -o RUNS"),
        (["README.md"], "holds no runs .*: name another"),
    ],
)
def test_a_folder_of_other_things_is_no_empty_history(tmp_path: Path, names: list[str], message: str) -> None:
    assert runs.files(tmp_path) == ()
    (tmp_path / ".derived").mkdir()
    assert runs.files(tmp_path) == ()
    for name in names:
        (tmp_path / name).write_text("")
    with pytest.raises(RecordError, match=message):
        runs.files(tmp_path)
