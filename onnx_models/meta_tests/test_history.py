"""The history says what the records say, and survives files that come, change, go or are broken."""

from __future__ import annotations

import gzip
import itertools
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import duckdb
import pytest
from click.testing import CliRunner
from packaging.version import Version

from onnx_models import history, runs, states
from onnx_models.cli import main
from onnx_models.files import sha256_of
from onnx_models.history import History
from onnx_models.meta_tests import histories
from onnx_models.meta_tests.histories import case, run, save
from onnx_models.outcomes import Kind, Stage, SuiteError, UsageError, Verdict
from onnx_models.records import RecordError
from onnx_models.runs import RunFile
from onnx_models.versions import version_key

NUMBERS = """import_s, compile_s, run_s, peak_bytes, mlir_bytes, vmfb_bytes, ratio, latency_s, peer_s, fresh,
    result.machine"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


def answer(folder: Path, query: str, *parameters: Any) -> list[tuple[Any, ...]]:
    found = History(folder)
    try:
        assert found.broken == {}
        return found.rows(query, parameters)
    finally:
        found.close()


def contents(folder: Path) -> list[tuple[Any, ...]]:
    """All results by name, in an order that no key decides."""
    return answer(
        folder,
        f"""SELECT run.id, run.position, run.trend, subject.id, state, verdict, stage, kind, fault.name,
                   fault.title, {NUMBERS}
            FROM result JOIN run ON run.key = result.run JOIN subject ON subject.key = result.subject
                LEFT JOIN fault ON fault.key = result.fault ORDER BY 1, 4""",
    )


@pytest.mark.parametrize("seed", range(6))
def test_the_tables_hold_what_the_records_say(folder: Path, seed: int) -> None:
    files = histories.shuffled(seed)
    save(folder, *files)
    expected = [
        (file.id, line["id"], histories.state(line), line["verdict"], line["kind"], line["signature"] or None)
        for file in files
        for line in file.cases
    ]
    query = """SELECT run.id, subject.id, state::TEXT, verdict, kind, fault.name
               FROM result JOIN run ON run.key = run JOIN subject ON subject.key = subject
               LEFT JOIN fault ON fault.key = fault"""
    assert Counter(answer(folder, query)) == Counter(expected)
    per_run = {(f.id, f.header["release"], len(f.cases), f.footer["complete"]) for f in files}
    assert set(answer(folder, "SELECT id, release, cases, complete FROM run")) == per_run


def test_the_state_is_that_of_the_reports(folder: Path) -> None:
    """The rule is written in SQL too, for 7 million lines; both must be one."""
    kinds = [None, *(kind.value for kind in Kind)]
    every = itertools.product(Verdict, [None, *Stage], kinds, ("", "one number"))
    lines = [
        case(f"zoo/{k}", verdict=verdict.value, kind=kind, vacuous=vacuous)
        | {"stage": stage.value if stage else None}
        for k, (verdict, stage, kind, vacuous) in enumerate(every)
    ]
    runs.write(run(lines), folder)
    found = dict(answer(folder, "SELECT subject.id, state::TEXT FROM result JOIN subject ON key = subject"))
    assert found == {line["id"]: states.state(line).value for line in lines}
    assert len(set(found.values())) == 5


def test_the_numbers_of_a_case(folder: Path) -> None:
    stages = [
        {"stage": "import", "seconds": 1.5, "peak_bytes": 7, "product_bytes": 11},
        {"stage": "compile", "seconds": 2.5, "peak_bytes": 9, "product_bytes": 13},
        {"stage": "run", "seconds": 0.5, "peak_bytes": 8, "product_bytes": 0},
    ]
    whole = [each | {"ok": True, "reused": False, "commands": [], "log": None} for each in stages]
    outputs = [{"ratio": 1.0}, {"ratio": 2.5}, {"ratio": None}, {}]
    benchmark = {"iree": {"median_s": 0.25}, "onnxruntime": {"median_s": 0.125}}
    timed = case("zoo/a", stages=whole, outputs=outputs, benchmark=benchmark)
    reused = case("zoo/b", stages=[whole[0], whole[1] | {"reused": True}], machine="m" * 12)
    save(folder, run([timed, reused, case("zoo/c", stages=[])]))
    assert answer(folder, f"SELECT {NUMBERS} FROM result JOIN subject ON key = subject ORDER BY id") == [
        (1.5, 2.5, 0.5, 9, 11, 13, 2.5, 0.25, 0.125, True, "f" * 12),
        (1.5, 2.5, None, 9, 11, 13, None, None, None, False, "m" * 12),
        (None, None, None, None, None, None, None, None, None, True, "f" * 12),
    ]


def test_runs_are_in_order_of_release_then_time(folder: Path) -> None:
    releases = ("3.9.0", "3.10.0rc20260102", "3.9.0", "3.10.0", "2.9.0", "3.10.0")
    files = [run([case("zoo/a")], number=k, release=release) for k, release in enumerate(releases)]
    save(folder, *files)
    ordered = sorted(files, key=lambda f: (Version(f.header["release"]), f.header["started"]))
    assert answer(folder, "SELECT id FROM run ORDER BY position") == [(f.id,) for f in ordered]
    # 2.9.0 and the second 3.9.0 ran after a newer release had: they fill in, and are no news.
    trend = answer(folder, "SELECT release, trend FROM run ORDER BY started")
    assert trend == list(zip(releases, (True, True, False, True, False, True), strict=True))


def test_a_build_without_a_version_is_after_all_releases() -> None:
    names = ["3.10.0", "my-branch", "3.9.0", "3.10.0rc1"]
    assert sorted(names, key=version_key) == ["3.9.0", "3.10.0rc1", "3.10.0", "my-branch"]


@pytest.mark.parametrize("seed", range(3))
def test_one_run_at_a_time_makes_what_all_at_once_make(folder: Path, tmp_path: Path, seed: int) -> None:
    files = histories.shuffled(seed)
    for file in files:
        grown = contents(save(folder, file))
    assert grown == contents(save(tmp_path / "all", *files))


def test_an_unchanged_file_is_not_read_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    contents(save(folder, run([case("zoo/a")])))
    monkeypatch.setattr(history, "convert", lambda *_: pytest.fail("converted again"))
    assert len(contents(folder)) == 1


def test_a_file_is_hashed_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SETTLED", -1.0)
    contents(save(folder, run([case("zoo/a")])))
    monkeypatch.setattr(history, "sha256_of", lambda _: pytest.fail("hashed again"))
    assert len(contents(folder)) == 1


def test_a_file_that_just_changed_is_hashed_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time would not tell a second change within the clock's tick."""
    monkeypatch.setattr(history, "SETTLED", 3600.0)
    contents(save(folder, run([case("zoo/a")])))
    hashed: list[str] = []

    def counted(path: Path) -> str:
        hashed.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(history, "sha256_of", counted)
    contents(folder)
    assert len(hashed) == 1


@pytest.mark.parametrize("settled", [-1.0, 3600.0])
def test_a_file_that_changed_is_read_again_and_one_that_went_is_taken_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, settled: float
) -> None:
    monkeypatch.setattr(history, "SETTLED", settled)
    first, second = run([case("zoo/a")]), run([case("zoo/a"), case("zoo/b")], number=1)
    save(folder, first, second)
    assert len(contents(folder)) == 3
    # By hand: the suite itself never writes a run again. The time and the size say nothing.
    file = folder / f"{first.id}.jsonl.gz"
    before = file.stat()
    broken = run([case("zoo/a", stage="compile", kind="crash")])
    file.write_bytes(runs.packed(broken.rows()))
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert [row[4] for row in contents(folder)] == ["failed", "passed", "passed"]
    file.unlink()
    assert [row[4] for row in contents(folder)] == ["passed", "passed"]
    assert answer(folder, "SELECT position FROM run") == [(0,)]


@pytest.mark.parametrize("harm", ["garbage", "empty", "other layout", "foreign", "gone", "cut"])
def test_a_derived_database_is_made_anew_when_it_is_no_good(folder: Path, harm: str) -> None:
    expected = contents(save(folder, *histories.shuffled(1)))
    database = folder / ".derived" / "history.duckdb"
    if harm == "garbage":
        database.write_bytes(b"\0\xff" * 9000)
    elif harm == "empty":
        database.write_bytes(b"")
    elif harm == "gone":
        database.unlink()
    elif harm == "cut":
        database.write_bytes(database.read_bytes()[:-5000])
    else:
        query = "UPDATE layout SET number = 0" if harm == "other layout" else "DROP TABLE layout"
        with duckdb.connect(str(database)) as connection:
            connection.execute(query)
    assert contents(folder) == expected


def broken_files() -> dict[str, bytes]:
    good = b"".join(json.dumps(row).encode() + b"\n" for row in run([case("zoo/x")], number=9).rows())
    head, line, foot = good.splitlines(keepends=True)
    packed = gzip.compress(good)
    wrong = json.loads(line)
    return {
        "no footer": gzip.compress(head + line),
        "no header": gzip.compress(line + foot),
        "two runs": gzip.compress(good + good),
        "a case twice": gzip.compress(head + line + line + foot.replace(b'"cases": 1', b'"cases": 2')),
        "a case lost": gzip.compress(head + foot),
        "no gzip": b"hello",
        "plain text": b"\x1f\x8b" + b"hello" * 20,
        "cut short": packed[: len(packed) // 2],
        "empty": b"",
        "no JSON": gzip.compress(head + b"{]\n" + foot),
        "a list": gzip.compress(head + b"[1]\n" + foot),
        "of the future": gzip.compress(good.replace(b'"schema": 3', b'"schema": 99')),
        "no number": gzip.compress(good.replace(b'"seconds": 1.0', b'"seconds": "long"')),
        "no date": gzip.compress(head.replace(b'"2026-01-10', b'"someday') + line + foot),
        "another name": gzip.compress(head + json.dumps(wrong | {"id": "cpu/zoo/y"}).encode() + b"\n" + foot),
        "no Unicode": gzip.compress(head + line.replace(b"zoo/x", b"zoo/\\ud800") + foot),
        "no device": gzip.compress(head + json.dumps(wrong | {"device": None}).encode() + b"\n" + foot),
    }


@pytest.mark.parametrize("name", broken_files())
def test_a_broken_file_is_named_and_the_others_are_read(folder: Path, name: str) -> None:
    save(folder, *(run([case("zoo/a")], number=k) for k in range(3)))
    (folder / "bad.jsonl.gz").write_bytes(broken_files()[name])
    for _ in range(2):  # it is named each time, not only when it is new
        found = History(folder)
        assert list(found.broken) == ["bad.jsonl.gz"]
        assert "bad.jsonl.gz" in found.broken["bad.jsonl.gz"]
        assert "\n" not in found.broken["bad.jsonl.gz"]
        assert found.rows("SELECT count(*) FROM result") == [(3,)]
        assert found.rows("SELECT count(*) FROM run") == [(3,)]
        found.close()


def test_two_files_of_one_run_are_one_run(folder: Path) -> None:
    file = run([case("zoo/a")])
    save(folder, file)
    (folder / "copy.jsonl.gz").write_bytes(runs.packed(file.rows()))
    found = History(folder)
    assert len(found.broken) == 1
    assert "is there already" in next(iter(found.broken.values()))
    assert found.rows("SELECT count(*) FROM result") == [(1,)]
    found.close()


@pytest.mark.parametrize("schema", [1, 2])
def test_old_records_are_read(folder: Path, schema: int) -> None:
    newer = {"release", "shard", "url"}, {"excerpt", "health", "bytes", "opset", "operators", "benchmark"}
    older = {"signature", "title", "attempts", "excused", "vacuous"}
    file = run([case("zoo/a"), case("zoo/b", stage="compile", kind="error")], release="2.9.0")
    header = {k: v for k, v in file.header.items() if k not in newer[0]} | {"schema": schema}
    header["host"] = {k: v for k, v in header["host"].items() if k != "fingerprint"}
    gone = newer[1] | (older if schema == 1 else set())
    lines = [{k: v for k, v in line.items() if k not in gone} for line in file.cases]
    for line in lines:
        for stage in line["stages"]:
            del stage["product_bytes"]
    folder.mkdir()
    path = folder / "old.jsonl.gz"
    path.write_bytes(runs.packed([header, *lines, file.footer]))
    assert runs.read(path).header["release"] == "2.9.0"
    found = answer(
        folder, "SELECT release, run.machine, state::TEXT FROM result JOIN run ON key = run ORDER BY 3"
    )
    assert found == [("2.9.0", "", "failed"), ("2.9.0", "", "passed")]


def test_a_fault_has_the_title_of_the_newest_run(folder: Path, tmp_path: Path) -> None:
    def titled(number: int, release: str, title: str) -> RunFile:
        line = case("zoo/a", stage="compile", kind="error", signature="s", title=title)
        return run([line], number=number, release=release)

    files = [titled(0, "3.1.0", "new"), titled(1, "3.0.0", "old"), titled(2, "2.9.0", "oldest")]
    for chosen in (files, files[::-1]):
        place = tmp_path / chosen[0].id
        for file in chosen:
            assert answer(save(place, file), "SELECT count(*) FROM fault") == [(1,)]
        assert answer(place, "SELECT title FROM fault") == [("new",)]


def test_no_folder_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="no folder of runs: make one with onnx-models merge"):
        History(tmp_path / "none")


def test_a_database_in_use_is_waited_for_and_then_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = History(save(folder, run([case("zoo/a")])))
    monkeypatch.setattr(history, "PATIENCE", 0.2)
    with pytest.raises(SuiteError, match="another process is using it"):
        History(folder)
    assert first.rows("SELECT count(*) FROM run") == [(1,)]
    monkeypatch.setattr(history, "PATIENCE", 60.0)
    closing = threading.Timer(0.3, first.close)
    closing.start()
    second = History(folder)
    assert second.rows("SELECT count(*) FROM run") == [(1,)]
    second.close()


def test_without_duckdb_it_is_said_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save(folder, run([case("zoo/a")]))
    monkeypatch.setattr(history, "find_spec", lambda _: None)
    with pytest.raises(UsageError, match=r"pip install 'onnx-models\[dashboard\]'"):
        History(folder)


@pytest.mark.parametrize(
    "query",
    [
        "DELETE FROM run",
        "SELECT 1; DROP TABLE run",
        "COPY run TO 'stolen.csv'",
        "ATTACH 'x.db'",
        "SELEC 1",
        "SELECT nothing",
        "",
    ],
)
def test_a_question_changes_nothing(folder: Path, query: str) -> None:
    found = History(save(folder, run([case("zoo/a")])))
    with pytest.raises(UsageError, match="--sql"):
        found.ask(query)
    assert found.ask("SELECT count(*) AS n FROM run") == [{"n": 1}]
    found.close()


def states_of(files: Sequence[RunFile]) -> Counter[tuple[str, str]]:
    return Counter((file.id, histories.state(line)) for file in files for line in file.cases)


def test_a_folder_of_many_runs(folder: Path) -> None:
    """More files than one batch, of which one in the middle is broken."""
    files = [
        run([case(f"zoo/{k % 5}"), case("zoo/x", vacuous="v")], number=k)
        for k in range(history.BATCH * 2 + 3)
    ]
    save(folder, *files)
    bad = folder / f"{files[history.BATCH + 2].id}.jsonl.gz"
    bad.write_bytes(bad.read_bytes()[:100])
    found = History(folder)
    assert list(found.broken) == [bad.name]
    kept = [file for file in files if file.id not in bad.name]
    rows = found.rows("SELECT run.id, state::TEXT FROM result JOIN run ON key = run")
    assert Counter(rows) == states_of(kept)
    found.close()


def test_a_build_without_a_version_is_ordered_by_its_time(folder: Path) -> None:
    """It must neither stay the newest for ever nor make later releases back-fills."""
    releases = ["unknown-1234abcd", "3.0.0", "unknown-1234abcd", "3.1.0", "2.9.0"]
    made = [run([case("zoo/a")], number=k, release=release) for k, release in enumerate(releases)]
    history = History(save(folder, *made))
    try:
        rows = history.rows("SELECT release, trend FROM run ORDER BY position")
    finally:
        history.close()
    assert rows == [
        ("unknown-1234abcd", True),
        ("2.9.0", False),
        ("3.0.0", True),
        ("unknown-1234abcd", True),
        ("3.1.0", True),
    ]


def test_a_query_sees_the_tables_and_no_files(folder: Path, tmp_path: Path) -> None:
    secret = tmp_path / "secret.csv"
    secret.write_text("a\n1\n")
    history = History(save(folder, run([case("zoo/a")])))
    try:
        assert history.ask("SELECT count(*) AS n FROM run") == [{"n": 1}]
        for query in (f"SELECT * FROM read_csv('{secret}')", f"SELECT * FROM '{secret}'"):
            with pytest.raises(UsageError, match="--sql: "):
                history.ask(query)
    finally:
        history.close()


def limited(blocks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A command whose files may not grow beyond so many kB: as a full disk, it fails in the middle."""
    words = shlex.join([sys.executable, "-m", "onnx_models", *arguments])
    return subprocess.run(
        ["bash", "-c", f"ulimit -f {blocks}; exec {words}"], capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("blocks", [4, 16], ids=["no room for a database", "no room for its rows"])
def test_a_full_disk_is_the_machines_fault_and_no_runs(tmp_path: Path, blocks: int) -> None:
    for number in range(4):
        save(tmp_path, run([case(f"zoo/{k}") for k in range(300)], number=number))
    done = limited(blocks, "history", str(tmp_path), "--json")
    assert done.returncode == 1
    assert re.fullmatch(r"error: .*history\.duckdb: cannot be used \(.*\); free some space.*\n", done.stderr)
    assert len(json.loads(limited(10**6, "history", str(tmp_path), "--json").stdout)) == 4


@pytest.mark.parametrize("command", [["history"], ["dashboard", "-o", "site"]])
def test_output_that_cannot_be_written_is_one_line(tmp_path: Path, command: list[str]) -> None:
    save(tmp_path / "runs", run([case("zoo/a")]))
    with Path("/dev/full").open("w", encoding="utf-8") as full:
        words = [sys.executable, "-m", "onnx_models", command[0], str(tmp_path / "runs"), *command[1:]]
        done = subprocess.run(
            words, stdout=full, stderr=subprocess.PIPE, text=True, check=False, cwd=tmp_path
        )
    assert done.returncode == 1
    assert done.stderr == "error: the output: No space left on device\n"


def test_ctrl_c_in_a_query_is_no_fault(folder: Path) -> None:
    save(folder, run([case("zoo/a")]))
    opened = History(folder)
    stop = threading.Timer(0.5, lambda: os.kill(os.getpid(), signal.SIGINT))
    stop.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            opened.rows("SELECT max(range) FROM range(30000000000)")
    finally:
        stop.cancel()
        opened.close()


@pytest.mark.parametrize("name", ["iree=main", "run=5", "device=x", "release=9"])
def test_the_name_of_a_folder_is_no_column(tmp_path: Path, name: str) -> None:
    """DuckDB takes folders called so for columns of the files in them, unless it is told not to."""
    made = run([case("zoo/a")])
    opened = History(save(tmp_path / name / "runs", made))
    try:
        assert opened.broken == {}
        found = opened.rows("SELECT run.id, run.iree, run.release, subject.device FROM run, subject")
        assert found == [(made.id, "3.0.0", "3.0.0", "cpu")]
    finally:
        opened.close()


@pytest.mark.parametrize("line", ['{"type": null}', "{}", '{"type": "note"}'])
def test_a_line_of_no_kind_is_named_and_the_others_are_shown(tmp_path: Path, line: str) -> None:
    save(tmp_path, run([case("zoo/a")]), run([case("zoo/a")], number=1))
    bad = sorted(tmp_path.glob("*.gz"))[0]
    lines = gzip.decompress(bad.read_bytes()).decode().splitlines()
    bad.write_bytes(gzip.compress("\n".join([lines[0], line, *lines[1:]]).encode()))
    opened = History(tmp_path)
    try:
        assert list(opened.broken) == [bad.name]
        assert opened.rows("SELECT count(*) FROM run") == [(1,)]
    finally:
        opened.close()


def test_a_table_shows_text_and_obeys_none_of_it(tmp_path: Path) -> None:
    save(tmp_path, run([case("zoo/a")], release="[/b]3[red]\x1b[31m"))
    done = limited(10**6, "history", str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "[/b]3[red] [31m" in done.stdout
    assert "\x1b" not in done.stdout


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("SELECT 1 AS b, 2 AS b", "error: --sql: two columns are called 'b': name them with AS\n"),
        ("SELECT '\udcff'", "error: --sql: not UTF-8\n"),
    ],
)
def test_a_query_that_would_lose_something_is_refused(tmp_path: Path, query: str, said: str) -> None:
    done = CliRunner().invoke(main, ["history", str(save(tmp_path, run([case("zoo/a")]))), "--sql", query])
    assert (done.exit_code, done.output) == (4, said)


def test_json_has_no_nan(tmp_path: Path) -> None:
    folder = str(save(tmp_path, run([case("zoo/a")])))
    done = CliRunner().invoke(
        main, ["history", folder, "--json", "--sql", "SELECT 'nan'::DOUBLE AS a, 1.5 AS b"]
    )
    assert json.loads(done.output, parse_constant=lambda word: pytest.fail(word)) == [{"a": None, "b": "1.5"}]
