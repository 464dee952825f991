"""A site is the same however it was built, and safe whatever the names in it are."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from click.testing import CliRunner, Result

from onnx_models import cli, runs
from onnx_models.dashboard.build import build
from onnx_models.dashboard.site import MARKER, Page, file_name, write
from onnx_models.meta_tests import histories
from onnx_models.meta_tests.histories import case, run, save
from onnx_models.meta_tests.site_reader import NOW, Reader, make
from onnx_models.outcomes import SuiteError, UsageError
from onnx_models.runs import RunFile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "runs"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    return tmp_path / "site"


def everything(site: Path) -> dict[str, bytes]:
    return {str(p.relative_to(site)): p.read_bytes() for p in sorted(site.rglob("*")) if p.is_file()}


HOSTILE = {
    "markup": "<script>alert(1)</script>",
    "attribute": '"><img src=x onerror=alert(1)>',
    "quote": "a'b\"c`d",
    "up": "../../../outside",
    "dots": "..",
    "root": "/etc/passwd",
    "slashes": "a//b/./c",
    "percent": "%2e%2e/%00",
    "template": "{{ 7 * 7 }}{% raw %}",
    "right to left": "\u202eelpmis\u202c",
    "letters": "模型-ñ-🤖",
    "long": "x" * 3000,
    "long parts": "/".join(["y" * 300] * 10),
    "device name": "CON",
    "line": "a\nb\u2028c",
    "nul": "a\x00b",
    "spaces": "  a  ",
    "hash": "a#b?c=d&e",
    "upper": "A",
    "lower": "a",
    "empty": "",
}


def hostile_run(number: int = 0) -> RunFile:
    """Every text of a record is what somebody hostile would put there."""
    lines = []
    for name in HOSTILE.values():
        bad = {
            "signature": f"s-{name}"[:500],
            "title": name,
            "message": name,
            "excerpt": name,
            "reason": name,
        }
        facts: dict[str, Any] = {"tags": [name], "operators": {name: 1}, "notes": [name], "vacuous": ""}
        lines.append(case(f"zoo/{name}", stage="compile", kind="error", **bad, **facts))
        lines.append(case(f"zoo/{name}", "vulkan", outputs=[{"name": name, "ratio": 2.0}], **facts))
    return run(lines, number=number)


def test_hostile_names_are_text(folder: Path, site: Path) -> None:
    make(folder, site, hostile_run())
    assert {p.name for p in site.parent.iterdir()} == {"runs", "site"}
    pages = [p for p in site.rglob("*") if p.suffix == ".html"]
    assert len([p for p in pages if p.is_relative_to(site / "models")]) == len(HOSTILE)
    for page in pages:
        read = Reader(page)
        scripts = [e for tag, e in read.elements if tag == "script"]
        assert all((e.get("src") or "").split("/")[-2:][0] in ("static", "compare") for e in scripts)
        assert not [tag for tag, _ in read.elements if tag in ("img", "iframe", "object", "base", "style")]
        assert not [e for _, e in read.elements for key in e if key.startswith("on") or key == "style"]
        assert "49" not in read.text or "{{ 7 * 7 }}" in read.text or page.name != "template.html"
    matrix = Reader(site / "matrix.html")
    names = {row[0].strip() for row in matrix.tables["matrix"][1:]}
    assert any(name.startswith("<script>alert(1)</script>") for name in names)
    assert any(name.startswith("{{ 7 * 7 }}{% raw %}") for name in names)


def test_hostile_names_keep_data_readable(folder: Path, site: Path) -> None:
    make(folder, site, hostile_run(), hostile_run(1))
    for file in site.rglob("*.json"):
        json.loads(file.read_text(encoding="utf-8"))
    cases = json.loads((site / "data" / "cases.json").read_text("utf-8"))["cases"]
    assert {c["model"] for c in cases} >= {
        f"zoo/{HOSTILE[k]}" for k in ("markup", "up", "template", "letters")
    }
    assert b"<script" not in b"".join(p.read_bytes() for p in site.rglob("*.js"))


@pytest.mark.parametrize("name", ["<b>", "..", "a/b", 'x" onload="y', "ü" * 500])
def test_hostile_devices_are_text(folder: Path, site: Path, name: str) -> None:
    make(folder, site, run([case("zoo/a", name)]), run([case("zoo/a", name)], number=1, release="3.1.0"))
    assert {p.name for p in site.parent.iterdir()} == {"runs", "site"}
    assert Reader(site / "index.html").tables["devices"][1][0].startswith(name)
    assert_links(site)


def test_values_of_other_types_are_as_if_not_there(folder: Path, site: Path) -> None:
    """`merge` refuses such a line; somebody may put one into the folder by hand."""
    keys: tuple[str, ...] = (
        "message",
        "title",
        "excerpt",
        "reason",
        "attempts",
        "expected",
        "notes",
        "health",
        "bytes",
        "opset",
    )
    keys += ("operators", "flags", "tags", "excused")
    values: list[Any] = [None, 3, -1, 1e300, "x", [], [None], [{}], {}, {"a": None}]
    lines = [case(f"zoo/{key}-{k}") | {key: value} for key in keys for k, value in enumerate(values)]
    outputs: list[Any] = [[{"name": 3, "ratio": None, "max_abs": "big"}], [], None]
    lines += [case(f"zoo/outputs-{k}", outputs=value) for k, value in enumerate(outputs)]
    folder.mkdir()
    (folder / "odd.jsonl.gz").write_bytes(runs.packed(run(lines).rows()))
    _, broken = build(folder, site, now=NOW)
    assert broken == {}
    assert len(list((site / "models" / "zoo").iterdir())) == len(lines)


@pytest.mark.parametrize("url", ["javascript:alert(1)", 'https://x/"onclick="y', "https://x/ y", "//x", ""])
def test_a_link_out_is_an_address_or_none(folder: Path, site: Path, url: str) -> None:
    folder.mkdir()
    (folder / "odd.jsonl.gz").write_bytes(runs.packed(run([case("zoo/a")], url=url).rows()))
    build(folder, site, now=NOW)
    out = [link for _, link in links(site) if link.startswith("http")]
    assert set(out) <= {url}
    assert not [link for _, link in links(site) if link.startswith(("javascript", "//"))]


def test_a_huge_log_makes_no_huge_page(folder: Path, site: Path) -> None:
    log = "<pre>\n" * (10_000_000 // 6)
    lines = [
        case(
            "zoo/a", stage="run", kind="crash", excerpt=log, message=log[:100_000], notes=["n" * 10_000] * 50
        )
    ]
    written = make(folder, site, run(lines))
    assert written.largest[1] < 400_000
    assert "<pre>" in Reader(site / "models" / "zoo" / "a.html").text


def test_file_names_differ_where_names_do() -> None:
    names = [*HOSTILE.values(), "x" * 3001, "a~62~", "a.", "A.html", "~", "~~", "a/", "/a"]
    made = [file_name(name) for name in names]
    assert len(set(made)) == len(set(names))
    for name in made:
        assert all(part not in ("", ".", "..") and len(part) <= 150 for part in name.split("/"))
        assert unquote(name) == name


def links(site: Path) -> Iterator[tuple[str, str]]:
    for page in site.rglob("*.html"):
        for tag, given in Reader(page).elements:
            target = given.get("src") if tag == "script" else given.get("href")
            if target is not None:
                yield str(page.relative_to(site)), target


def assert_links(site: Path) -> None:
    ids = {page: {e["id"] for _, e in Reader(page).elements if "id" in e} for page in site.rglob("*.html")}
    assert all(len(found) == len(set(found)) for found in ids.values())
    for page, link in links(site):
        assert not link.startswith(("/", "javascript:", "data:", "//")), (page, link)
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (site / page).parent / path if path else site / page
        assert target.resolve().is_file(), (page, link)
        assert target.resolve().is_relative_to(site.resolve()), (page, link)
        if anchor and "=" not in anchor:
            assert unquote(anchor) in ids[site / target.resolve().relative_to(site.resolve())], (page, link)


@pytest.mark.parametrize(
    "files", [[hostile_run(), hostile_run(1)], histories.shuffled(3)], ids=["hostile", "plain"]
)
def test_every_link_leads_somewhere_inside(folder: Path, site: Path, files: list[RunFile]) -> None:
    make(folder, site, *files)
    assert_links(site)


@pytest.mark.parametrize("seed", range(2))
def test_growing_a_site_makes_what_building_it_makes(
    tmp_path: Path, folder: Path, site: Path, seed: int
) -> None:
    files = [*histories.shuffled(seed, runs_made=5), hostile_run(20)]
    for file in files:
        make(folder, site, file)
    make(tmp_path / "other", tmp_path / "whole", *reversed(files))
    assert everything(site) == everything(tmp_path / "whole")


def test_taking_a_run_away_makes_what_was_never_there(tmp_path: Path, folder: Path, site: Path) -> None:
    files = histories.shuffled(5)
    make(folder, site, *files, hostile_run(20))
    (folder / f"{hostile_run(20).id}.jsonl.gz").unlink()
    make(folder, site)
    make(tmp_path / "other", tmp_path / "whole", *files)
    assert everything(site) == everything(tmp_path / "whole")


def test_only_what_changed_is_written(folder: Path, site: Path) -> None:
    first = make(folder, site, *histories.shuffled(2))
    assert first.changed == first.pages
    times = {p: p.stat().st_mtime_ns for p in site.rglob("*")}
    again = make(folder, site)
    assert (again.pages, again.changed, again.removed) == (first.pages, 0, 0)
    assert {p: p.stat().st_mtime_ns for p in site.rglob("*")} == times


def test_what_is_no_longer_of_the_site_goes(folder: Path, site: Path) -> None:
    make(folder, site, run([case("zoo/a/b"), case("zoo/c")]))
    (site / "models" / "zoo" / "a" / "b.html").write_text("changed by hand", "utf-8")
    (site / "left.html").write_text("x", "utf-8")
    done = make(folder, site)
    assert (done.changed, done.removed) == (1, 1)
    for file in folder.glob("*.gz"):
        file.unlink()
    make(folder, site, run([case("zoo/c")], number=1))
    assert not (site / "models" / "zoo" / "a").exists()


def test_a_folder_of_others_is_refused(folder: Path, site: Path) -> None:
    save(folder, run([case("zoo/a")]))
    site.mkdir()
    (site / "thesis.tex").write_text("years of work", "utf-8")
    with pytest.raises(UsageError, match="holds other files"):
        build(folder, site)
    assert [p.name for p in site.iterdir()] == ["thesis.tex"]
    (site / "thesis.tex").unlink()
    build(folder, site)
    assert (site / MARKER).is_file()


def test_no_runs_are_a_site_that_says_so(folder: Path, site: Path) -> None:
    folder.mkdir()
    make(folder, site)
    assert "No run is in the history yet" in Reader(site / "index.html").text
    assert_links(site)
    assert json.loads((site / "data" / "index.json").read_text("utf-8"))["devices"] == []


def test_a_run_without_cases_is_no_fault(folder: Path, site: Path) -> None:
    make(folder, site, run([], devices=["cpu"]))
    assert_links(site)


def invoke(*arguments: Any) -> Result:
    return CliRunner().invoke(cli.main, [str(argument) for argument in arguments])


def test_a_broken_run_is_on_the_page_and_in_the_exit_code(folder: Path, site: Path) -> None:
    save(folder, run([case("zoo/a")]))
    (folder / "<b>.jsonl.gz").write_bytes(b"nothing")
    done = invoke("dashboard", folder, "-o", site)
    assert done.exit_code == 1
    assert "left out: " in done.output
    page = Reader(site / "index.html")
    assert "A run could not be read and is left out" in page.text
    assert page.tables["devices"][1][2] == "100.0 %"
    assert not [tag for tag, _ in page.elements if tag == "b" and "<b>" not in page.text]
    assert invoke("dashboard", folder, "-o", site, "--skip-broken").exit_code == 0


def test_the_command_line(folder: Path, site: Path) -> None:
    save(folder, run([case("zoo/a")]), run([case("zoo/a", vacuous="v")], number=1, release="3.1.0"))
    done = invoke("dashboard", folder, "-o", site)
    assert (done.exit_code, "files" in done.output) == (0, True)
    assert invoke("dashboard", folder / "none", "-o", site).exit_code == 1
    assert invoke("dashboard", folder, "-o", site, "--base-url", "javascript:x").exit_code == 4
    listed = json.loads(invoke("history", folder, "--json").output)
    assert [(row["release"], row["passed"], row["vacuous"]) for row in listed] == [
        ("3.0.0", 1, 0),
        ("3.1.0", 0, 1),
    ]
    assert "3.1.0" in invoke("history", folder).output
    asked = invoke("history", folder, "--json", "--sql", "SELECT max(release) AS newest FROM run")
    assert json.loads(asked.output) == [{"newest": "3.1.0"}]
    assert invoke("history", folder, "--sql", "DROP TABLE run").exit_code == 4


def test_two_pages_of_one_name_are_refused(site: Path) -> None:
    site.mkdir()
    with pytest.raises(SuiteError, match="two pages"):
        write([Page(path="a.html", text="1"), Page(path="a.html", text="2")], site)


def test_a_link_that_leads_out_of_the_site_is_refused(tmp_path: Path) -> None:
    runs_folder = save(tmp_path / "runs", run([case("zoo/a")]))
    site, outside = tmp_path / "site", tmp_path / "outside"
    build(runs_folder, site)
    outside.mkdir()
    (outside / "mine").write_text("mine")
    shutil.rmtree(site / "models")
    (site / "models").symlink_to(outside)
    with pytest.raises(UsageError, match=r"models.*: a link that leads out of the site"):
        build(runs_folder, site)
    assert [file.name for file in outside.rglob("*")] == ["mine"]
