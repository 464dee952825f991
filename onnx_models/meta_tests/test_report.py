"""Reports of a run: the numbers of the record, bounded, and nothing in them is markup but their own."""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from click.testing import CliRunner
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from onnx import helper

from onnx_models import difference, difference_report, junit, markdown, records, report, runs
from onnx_models.cli import main
from onnx_models.difference import differ
from onnx_models.meta_tests.histories import case, run, save, shuffled
from onnx_models.meta_tests.sandbox import PACKAGE, Sandbox, model_of, value
from onnx_models.runs import RunFile

HOSTILE = (
    "<script>alert(1)</script>",
    "a|b\n# c",
    "`code` **bold** [x](javascript:y) ![i](http://e.example/i.png)",
    "@octocat #1 GH-2 owner/repo#3 https://e.example www.e.example",
    "</details></td></table>",
    "\x1b[31m\u202e\x00\x85\u2028",
    "<!-- onnx_models: difference of two runs -->",
    "&lt;b&gt; &#64;x \\",
    "$x$ ~~y~~ ==z==",
)


def rendered(text: str) -> str:
    """HTML as GitHub makes it before it looks for mentions; raw HTML passes through: the harder test."""
    return str(MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(text))


def shown(page: str) -> str:
    """What a reader sees of HTML."""
    return html.unescape(re.sub(r"<[^>]*>", "", page)).replace("\u200b", "")


def tags(page: str) -> set[str]:
    return set(re.findall(r"<\s*([a-zA-Z!][\w-]*)", page))


OURS = {"h2", "h3", "p", "table", "thead", "tbody", "tr", "th", "td", "code", "details", "summary"}
OURS |= {"blockquote", "strong", "ul", "li", "br"}


def plain(text: str) -> str:
    """Text without what nobody sees."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


@settings(deadline=None)
@given(
    st.text(max_size=60)
    | st.sampled_from(HOSTILE)
    | st.from_regex(r"[<>@#|`*_\[\]()!~$&\\:/w. GH\d-]{1,40}", fullmatch=True)
)
@example("www.x.example")
@example("WWW.x https://x")
def test_any_text_is_shown_as_it_is_and_is_no_markup(words: str) -> None:
    cell = markdown.text(words)
    assert "\n" not in cell
    page = rendered(f"x {cell} y")
    assert tags(page) == {"p"}, page
    assert shown(page).split() == f"x {plain(words)} y".split()
    seen = html.unescape(re.sub(r"<[^>]*>", "", page))
    assert not re.search(r"@\w|#\d|GH-\d|://|www\.\w", seen, re.IGNORECASE), seen
    table = rendered("\n".join(markdown.table(["a", "b"], [[cell, markdown.code(words)]])))
    assert table.count("<td>") == 2
    assert tags(table) <= {"table", "thead", "tbody", "tr", "th", "td", "code"}


def test_a_long_text_is_cut() -> None:
    cut = markdown.text("<" * 10_000_000, 100)
    assert html.unescape(cut) == "<" * 99 + "…"


FAILED = {"stage": "compile", "kind": "error", "signature": "s", "title": "S of t", "message": "m"}


def whole() -> RunFile:
    """A run with each verdict."""
    return run(
        [
            case("zoo/a"),
            case("zoo/v", vacuous="one number"),
            case("zoo/r", **FAILED, reason="expected to pass"),
            case("zoo/e", **FAILED, verdict="expected-failure"),
            case("zoo/c", **FAILED | {"signature": "t"}, verdict="changed"),
            case("zoo/f", verdict="flaky"),
            case("zoo/i", verdict="improved"),
            case("zoo/n", **FAILED, verdict="new"),
            case("zoo/x", verdict="error", reason="the pytest worker died"),
            case("zoo/s", stage="fetch", stages=[], verdict="skipped", reason="no driver"),
            case("zoo/a", "cuda", stage="compile"),
        ]
    )


def rows(text: str, heading: str) -> list[list[str]]:
    """The cells of the first table after a heading."""
    part = text[text.index(heading) :]
    lines = part[part.index("|") :].split("\n\n")[0].splitlines()
    return [
        [shown(cell).strip() for cell in line.strip("|").split("|")] for line in lines if "---" not in line
    ]


def test_the_numbers_are_those_of_the_record() -> None:
    text = report.run_markdown(whole())
    head, cpu, cuda = rows(text, "## ONNX models")
    counts = dict(zip(head, cpu, strict=True))
    once = ("vacuous", "expected-failure", "improved", "regressed", "changed", "flaky", "new", "skipped")
    stages = {"collected": "10", "fetched": "9", "referenced": "9", "imported": "9"}
    stages |= dict.fromkeys(("compiled", "ran", "matched"), "5")
    assert counts == {"device": "cpu"} | stages | dict.fromkeys(("passed", *once, "error"), "1")
    assert cuda[:2] == ["cuda", "1"]
    assert rows(text, "### Regressed (1)")[1:] == [["cpu/zoo/r", "compile: s", "expected to pass"]]
    for heading in (
        "Failing in another way (1)",
        "Improved: the lists",
        "Flaky (1)",
        "Errors of the machine",
    ):
        assert heading in text
    assert rows(text, "### Faults by the models")[1:] == [
        ["s", "S of t", "3", "3", "e, n, r"],
        ["t", "S of t", "1", "1", "c"],
    ]
    assert "<details><summary>Slowest stages</summary>" in text
    assert "Most memory: 0.00 GiB" in text
    assert "suite 0.1.0" in shown(rendered(text))
    assert tags(rendered(text)) <= OURS


def test_what_takes_no_time_is_not_among_the_slowest() -> None:
    quick = case("zoo/a")
    for stage in quick["stages"]:
        stage["seconds"] = 0.04
    assert "Slowest" not in report.run_markdown(run([quick]))


def test_compile_only_devices_have_no_numbers_where_they_have_no_stage() -> None:
    made = run([case("zoo/a", "cuda", stage="compile")])
    made.header["devices"]["cuda"]["last_stage"] = "compile"
    head, row = rows(report.run_markdown(made), "## ONNX models")
    assert [dict(zip(head, row, strict=True))[name] for name in ("referenced", "ran", "matched")] == ["-"] * 3


@pytest.mark.parametrize(
    ("made", "words"),
    [
        (lambda: run([]), "No case was selected, so nothing is known of this IREE."),
        (lambda: run([case("zoo/a")]), "Every case did what was expected of it."),
        (
            lambda: run([case("zoo/a"), dict(whole().cases[9])]),
            "Every case that ran did what was expected of it.",
        ),
        (lambda: run([dict(whole().cases[9])]), "1 of 1 cases did not run: 1 x no driver."),
        (
            lambda: run([case("zoo/a")], devices=["cpu", "cuda"]),
            "No case of cuda: nothing is known of IREE there",
        ),
        (lambda: run([case("zoo/a")], complete=False), "Incomplete. Not every selected case ran to its end"),
        (lambda: run([case("zoo/a", verdict="error")], broken="9 of 9 died"), "No verdicts. 9 of 9 died"),
    ],
    ids=["empty", "fine", "fine-but", "all-skipped", "silent", "incomplete", "broken"],
)
def test_what_there_is_to_say_of_an_odd_run_is_said(made: Any, words: str) -> None:
    text = shown(rendered(report.run_markdown(made())))
    assert words in text
    if "nothing is known of this" in words or "1 of 1" in words:
        assert "Every case" not in text


def hostile_run(number: int = 0, *, passes: bool = False) -> RunFile:
    """Markup in every text that a record holds."""
    lines = []
    for k, words in enumerate(HOSTILE):
        name = f"{k}{words}"
        failure = {} if passes else {"stage": "run", "kind": "error", "message": words, "signature": words}
        lines.append(case(f"zoo/{name}", f"cpu{words}", title=words, excerpt=words, reason=words, **failure))
    names = {"release": HOSTILE[0], "iree": HOSTILE[3], "suite": HOSTILE[2]}
    return run(lines, number=number, complete=False, broken=HOSTILE[3], **names)


def test_hostile_records_are_shown_as_text(tmp_path: Path) -> None:
    base, head = hostile_run(passes=True), hostile_run(1)
    (tmp_path / "runs").mkdir()
    save(tmp_path / "runs", base, head)
    found = differ(base, head)
    assert len(found.of("broken")) == len(HOSTILE)
    for text in (
        report.run_markdown(head, found),
        difference_report.as_markdown(found),
        difference_report.as_markdown(differ(base, run([], number=1, devices=list(base.header["devices"])))),
    ):
        page = rendered(text.removeprefix(difference_report.COMMENT_MARK))
        assert tags(page) <= OURS
        assert page.count("<details>") == page.count("</details>")
        assert not re.search(r"@octocat|[^&]#\d", html.unescape(page))
        for words in HOSTILE[:4]:
            assert plain(words)[:30] in shown(page)
    assert all(line.isprintable() for line in difference_report.as_text(found))


@pytest.mark.parametrize("count", [1, 300, 5000])
def test_reports_are_bounded_and_closed(count: int) -> None:
    huge = {
        "message": "@<x>|" * (2_000_000 // count),
        "title": "`" * 2000,
        "signature": "s" * 2000,
        "reason": "|" * 9000,
    }
    base = run([case(f"zoo/{'m' * 200}{k}") for k in range(count)])
    head = run([case(f"zoo/{'m' * 200}{k}", stage="run", kind="error", **huge) for k in range(count)])
    found, back = differ(base, head), differ(head, base)
    comment, summary = difference_report.as_markdown(found), report.run_markdown(head, found)
    folded = difference_report.as_markdown(back)
    assert comment.startswith(f"{difference_report.COMMENT_MARK}\n### {count} newly broken; 0 as before\n")
    assert "<details>" in folded
    for text, limit in (
        (comment, difference_report.COMMENT_LIMIT),
        (folded, difference_report.COMMENT_LIMIT),
        (summary, report.SUMMARY_LIMIT),
    ):
        assert len(text.encode()) <= limit
        page = rendered(text)
        assert page.count("<details>") == page.count("</details>")
        assert ("left out here" in text) == (count > 1)


def test_each_kind_has_its_fold_and_the_broken_are_in_sight() -> None:
    base = run([case("zoo/a"), case("zoo/b", **FAILED), case("zoo/c")])
    head = run([case("zoo/a", **FAILED), case("zoo/b"), case("zoo/d")])
    text = difference_report.as_markdown(differ(base, head))
    assert text.splitlines()[1] == (
        "### 1 newly broken, 1 fixed, 1 missing from the newer run, 1 added; 0 as before"
    )
    assert re.findall(r"<summary>(.*?)</summary>", text) == [
        "1 fixed",
        "1 missing from the newer run",
        "1 added",
    ]
    assert text.index("**1 newly broken**") < text.index("<details>")
    assert rows(text, "**1 newly broken**")[1] == ["cpu/zoo/a", "passed", "compile: s", "S of t (m)"]
    assert rows(text, "| device")[1] == ["cpu", "2 of 3", "2 of 4, 1 missing", "±0"]


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 10_000))
def test_any_history_can_be_reported(seed: int) -> None:
    one, other, *_ = shuffled(seed)
    found = differ(one, other)
    for text in (report.run_markdown(other, found), difference_report.as_markdown(found)):
        assert tags(rendered(text.removeprefix(difference_report.COMMENT_MARK))) <= OURS
    json.dumps([report.as_json(other), difference_report.as_json(found)], allow_nan=False)
    ElementTree.fromstring(junit.of_run(other))


def properties(node: ElementTree.Element) -> dict[str, str]:
    return {each.attrib["name"]: each.attrib["value"] for each in node.findall("./properties/property")}


def test_junit_counts_as_the_run_did() -> None:
    suite = ElementTree.fromstring(junit.of_run(whole()))[0]
    assert suite.attrib["tests"] == "11"
    assert {k: suite.attrib[k] for k in ("failures", "errors", "skipped")} == {
        "failures": "4",  # regressed, changed, flaky, improved
        "errors": "1",
        "skipped": "2",
    }
    assert properties(suite)["release"] == "3.0.0"
    assert properties(suite)["machine"] == "f" * 12
    cases = {node.attrib["name"]: node for node in suite.findall("testcase")}
    broken = cases["test_model[cpu/zoo/r]"]
    told = {"device": "cpu", "collection": "zoo", "model": "r", "verdict": "regressed", "state": "failed"}
    told |= {"stage": "compile", "kind": "error", "signature": "s"}
    for stage in ("fetch", "reference", "import", "compile"):
        told |= {f"{stage}-seconds": "1.000", f"{stage}-peak-bytes": "1000"}
    assert properties(broken) == told
    assert [(child.tag, child.attrib, child.text) for child in broken][1:] == [
        ("failure", {"message": "expected to pass"}, "m")
    ]
    assert properties(cases["test_model[cpu/zoo/v]"])["vacuous"] == "one number"
    assert cases["test_model[cpu/zoo/s]"][1].attrib == {"message": "no driver", "type": "pytest.skip"}


@settings(deadline=None)
@given(st.text(max_size=30) | st.sampled_from(HOSTILE))
def test_junit_is_xml_whatever_a_record_holds(words: str) -> None:
    made = run([case(f"zoo/{words}", message=words, excerpt=words, reason=words, stage="run", kind="error")])
    (node,) = ElementTree.fromstring(junit.of_run(made)).iter("testcase")
    assert properties(node)["model"].split() == junit.legal(words).split()


def test_junit_is_bounded() -> None:
    huge = "x" * 10_000_000
    made = run([case("zoo/a", message=huge, excerpt=huge, reason=huge, stage="run", kind="error")])
    assert len(junit.of_run(made)) < 30_000


def invoke(*argv: str | Path) -> Any:
    return CliRunner().invoke(main, [str(word) for word in argv])


def test_the_command_writes_what_it_is_asked_for(tmp_path: Path) -> None:
    folder = save(tmp_path / "runs", whole())
    (file,) = runs.files(folder)
    plain_report = invoke("report", file)
    assert (plain_report.exit_code, plain_report.stdout) == (0, report.run_markdown(whole()))
    assert invoke("report", f"{folder}@3.0.0", "--markdown").stdout == plain_report.stdout
    found = json.loads(invoke("report", file, "--json").stdout)
    assert found["states"]["cpu"] == {
        "passed": 3,
        "vacuous": 1,
        "failed": 4,
        "skipped": 1,
        "error": 1,
        "total": 10,
    }
    assert found["complete"] is True
    done = invoke("report", file, "--junit", tmp_path / "new" / "junit.xml")
    assert (done.exit_code, done.stdout) == (0, plain_report.stdout)
    assert (tmp_path / "new" / "junit.xml").read_text(encoding="utf-8") == junit.of_run(whole())
    save(folder, run([case("zoo/a", **FAILED)], number=1, release="3.1.0"))
    against = invoke("report", f"{folder}@3.1.0", "--base", file)
    assert "### Against IREE 3.0.0" in against.stdout
    assert "**1 newly broken**" in against.stdout
    save(folder, run([case("zoo/a")], number=2, release="3.2.0", suite="9"))
    assert "> suite differs too: 0.1.0, now 9" in invoke("report", f"{folder}@3.2.0", "--base", file).stdout


@pytest.mark.parametrize(
    ("policy", "code"),
    [
        ("regressed", 1),
        ("error,improved", 1),
        ("incomplete", 0),
        ("skipped", 1),
        ("missing", 4),
        ("", 0),
    ],
)
def test_the_exit_code_follows_the_policy(policy: str, code: int, tmp_path: Path) -> None:
    (file,) = runs.files(save(tmp_path / "runs", whole()))
    done = invoke("report", file, "--fail-on", policy)
    assert done.exit_code == code, done.output
    assert bool(done.stdout) == (code != 4)


@pytest.mark.parametrize(
    "made",
    [lambda: run([]), lambda: run([case("zoo/a")], complete=False), lambda: run([case("zoo/a")], broken="x")],
    ids=["empty", "cut-off", "broken"],
)
def test_a_run_that_says_nothing_can_fail_too(made: Any, tmp_path: Path) -> None:
    (file,) = runs.files(save(tmp_path / "runs", made()))
    assert invoke("report", file, "--fail-on", "improved").exit_code == 0
    for policy in ("regressed", "incomplete", "improved,incomplete"):
        done = invoke("report", file, "--fail-on", policy)
        assert done.exit_code == 1
        assert done.stderr == f"--fail-on {policy}: 1, the first is run {made().id}\n"


def test_a_report_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (file,) = runs.files(save(tmp_path / "runs", whole()))
    for place in (tmp_path, file / "x.xml"):
        done = invoke("report", file, "--junit", place)
        assert (done.exit_code, done.stdout) == (1, "")
        assert done.stderr.startswith(f"error: {place}: cannot be written")
        assert len(done.stderr.splitlines()) == 1


def test_an_old_record_is_reported(tmp_path: Path) -> None:
    for file in sorted(Path(__file__).with_name("old_records").iterdir()):
        done = invoke("report", file, "--junit", tmp_path / "junit.xml")
        assert done.exit_code == 0, done.output
        assert "### Regressed" in done.stdout
        assert len(ElementTree.parse(tmp_path / "junit.xml").findall(".//testcase")) == 14


@pytest.fixture(scope="module")
def github(tmp_path_factory: pytest.TempPathFactory) -> Sandbox:
    """A run as a GitHub job would start it: two workers, a summary file, JUnit XML."""
    sandbox = Sandbox(tmp_path_factory.mktemp("github"))
    names = ("good", "a&<b>]]>", "wrong")
    sandbox.tools_by_model({"wrong": ("runner", "scale 1.5")})
    rounds = model_of([helper.make_node("Exp", ["x"], ["y"])], [value("x")], [value("y")])
    for name in names:
        sandbox.save(f"{name}.onnx", rounds if name == "good" else None)
    (sandbox.folder / "summary.md").write_text("an earlier step", encoding="utf-8")
    sandbox.env["GITHUB_STEP_SUMMARY"] = str(sandbox.folder / "summary.md")
    chosen: Sequence[str] = [word for name in names for word in ("--model", f"{name}.onnx")]
    argv = [*chosen, "--device", "cpu", "--device", "cuda", "-n", "2", "--junitxml", "junit.xml"]
    ended = sandbox.run(*argv, "--record", "record.jsonl")
    assert ended.code == 1, ended.output
    return sandbox


def test_a_run_reports_itself_to_github_once(github: Sandbox) -> None:
    text = (github.folder / "summary.md").read_text(encoding="utf-8")
    told = report.run_markdown(runs.read(github.folder / "record.jsonl"))
    assert text == f"an earlier step\n{told}"
    assert "### Regressed (1)" in text


def test_pytests_own_junit_has_the_properties_of_each_case(github: Sandbox) -> None:
    """Also from workers, and as `report --junit` writes them from the record later."""
    theirs = ElementTree.parse(github.folder / "junit.xml")
    ours = ElementTree.fromstring(junit.of_run(runs.read(github.folder / "record.jsonl")))
    one, other = (
        {properties(node)["device"] + "/" + properties(node)["model"]: node for node in tree.iter("testcase")}
        for tree in (theirs, ours)
    )
    assert len(one) == 6
    assert {key: properties(node) for key, node in one.items()} == {
        key: properties(node) for key, node in other.items()
    }
    assert {key: [child.tag for child in node][1:] for key, node in one.items()} == {
        key: [child.tag for child in node][1:] for key, node in other.items()
    }
    (suite,) = theirs.iter("testsuite")
    (again,) = ours.iter("testsuite")
    assert properties(suite) == properties(again)
    assert properties(suite)["release"]
    assert {k: suite.attrib[k] for k in ("tests", "failures", "errors", "skipped")} == {
        k: again.attrib[k] for k in ("tests", "failures", "errors", "skipped")
    }
    assert float(properties(one["cpu/good"])["noise-ratio"]) < 10
    assert properties(one["cpu/wrong"])["signature"].startswith("mismatch")


def test_a_summary_that_cannot_be_written_does_not_end_the_run(sandbox: Sandbox) -> None:
    sandbox.env["GITHUB_STEP_SUMMARY"] = str(sandbox.folder / "no" / "such" / "folder.md")
    ended = sandbox.run("--model", "tiny.onnx")
    assert ended.code == 0, ended.output
    assert "no summary in GITHUB_STEP_SUMMARY" in ended.output
    assert sandbox.record().foot["complete"] is True


def test_the_documentation_names_every_field_of_a_record() -> None:
    text = (PACKAGE.parent / "docs" / "reports.md").read_text(encoding="utf-8")
    schema = json.loads(records.SCHEMA.read_text(encoding="utf-8"))["$defs"]
    parts = dict(re.findall(r"^### (Header|Case|Footer)\n\n(.*?)\n\n", text, re.MULTILINE | re.DOTALL))
    for heading, part in parts.items():
        first = [
            cell for line in part.splitlines()[2:] for cell in re.findall(r"`(\w+)`", line.split("|")[1])
        ]
        assert sorted(first) == sorted(schema[heading.lower()]["properties"]), heading
    for kind in difference.KINDS:
        assert f"`{kind}`" in text


def test_the_summary_takes_several_records(tmp_path: Path) -> None:
    made = [whole(), run([case("zoo/a")], number=1, run="r\x1b[31m", complete=False)]
    files = []
    for k, each in enumerate(made):
        (tmp_path / f"{k}.jsonl.gz").write_bytes(runs.packed(each.rows()))
        files.append(tmp_path / f"{k}.jsonl.gz")
    done = invoke("summary", *files)
    assert done.exit_code == 0, done.output
    first, second = done.stdout.split("\n\n")
    assert first.splitlines()[0] == f"run {whole().id}, IREE 3.0.0, complete"
    assert second.splitlines()[0] == "run r [31m, IREE 3.0.0, NOT complete"
    assert first.splitlines()[2].startswith("cpu")
    assert invoke("summary", files[0], tmp_path / "lost.jsonl").exit_code == 1


@pytest.mark.parametrize("width", [1, 97, 400])
def test_what_is_bounded_keeps_its_limit_and_closes_what_it_opened(width: int) -> None:
    lines = ["<details><summary>x</summary>", *(["ü" * width] * 20_000), "</details>"]
    text = markdown.bounded(lines, 60_000, "The rest is left out here; the record has all of it.")
    assert 58_000 < len(text.encode()) <= 60_000
    assert text.count("<details>") == text.count("</details>") == 1
    assert text.endswith("has all of it.\n")
