"""Expectations: well-formed files, refused ones, and what a run makes of each entry."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from onnx_models import cases, devices, expectations
from onnx_models.conditions import Circumstances
from onnx_models.meta_tests.sandbox import Ended, Record, Sandbox, copy_of_package
from onnx_models.outcomes import Expectation, Kind, Stage, UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def entry(name: str, stage: str = "compile", kind: str = "error", why: str = "known") -> str:
    return f'[[case]]\nid = "tiny/{name}"\nstage = "{stage}"\nkind = "{kind}"\nwhy = "{why}"\n'


GOOD = entry("a")


HERE = Circumstances.of(iree="3.13.0rc20261016", device="cpu")


def load(folder: Path, text: str) -> dict[str, Expectation]:
    (folder / "cpu.toml").write_text(text, encoding="utf-8")
    known = expectations.load([str(folder)], HERE)
    return {entry.id: entry for layer in known.layers for entry in layer.entries}


def test_an_entry_is_read(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD + 'issue = "https://example.com/1"\n')["tiny/a"]
    assert (found.stage, found.kind, found.why) == (Stage.COMPILE, Kind.ERROR, "known")
    assert (found.issue, found.source) == ("https://example.com/1", str(tmp_path / "cpu.toml"))


def test_toml_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    found = load(tmp_path, GOOD.replace("known", r"a \"quoted\" \\ word \u2028"))["tiny/a"]
    assert load(tmp_path, found.toml())["tiny/a"] == found


def test_no_file_means_nothing_is_expected(tmp_path: Path) -> None:
    assert expectations.load([str(tmp_path)], HERE).layers == ()
    assert load(tmp_path, "") == {}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[case]\n", "not TOML"),
        ("[[cases]]\nid = 'x'\n", "unknown key 'cases'"),
        (GOOD.replace("[[case]]", "[case]"), "'case' must be [[case]] tables"),
        ("case = [1]\n", "'case' must be [[case]] tables"),
        (GOOD + "colour = 'red'\n", "'tiny/a': unknown key 'colour'"),
        (GOOD.replace('why = "known"\n', ""), "'why' is missing"),
        (GOOD.replace('"known"', '" "'), "'why' must be a text"),
        (GOOD.replace('"known"', "3"), "'why' must be a text"),
        (GOOD.replace('id = "tiny/a"\n', ""), "'id' is missing"),
        (GOOD.replace('stage = "compile"\n', ""), "'stage' is missing"),
        (GOOD.replace('kind = "error"\n', ""), "'kind' is missing"),
        (
            GOOD.replace('"compile"', '"link"'),
            "stage 'link': choose from pass, fetch, reference, import, compile",
        ),
        (GOOD.replace('"error"', '"bad"'), "kind 'bad': choose from error, "),
        (GOOD.replace('"compile"', '"fetch"'), "a failed fetch is the host's"),
        (GOOD + GOOD, "'tiny/a' is listed twice"),
    ],
)
def test_malformed_files_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=f"^{re.escape(str(tmp_path / 'cpu.toml'))}: .*{re.escape(message)}"):
        load(tmp_path, text)


def test_shipped_lists_name_devices_and_models_that_exist() -> None:
    files = {file.stem for file in expectations.EXPECTATIONS.glob("*.toml")}
    assert files <= {"all", *devices.names()}
    assert files >= {"all", *(name for name in devices.names() if devices.load(name).default)}
    for name in devices.names():
        here = Circumstances.of(iree="3.13.0", device=name)
        cases.combine((), [devices.load(name)], {name: expectations.load((), here)})


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """A run against a list of expectations."""

    sandbox: Sandbox
    ended: Ended
    record: Record


# Name: what the compiler or runner does, what is expected of it, the verdict.
TABLE = {
    "as-expected": (("compiler", "exit 1 x: error: no"), entry("as-expected"), "expected-failure"),
    "fixed": (("compiler", "ok"), entry("fixed"), "improved"),
    "other-kind": (("compiler", "signal 11"), entry("other-kind"), "changed"),
    "other-stage": (("importer", "exit 1 x: error: no"), entry("other-stage"), "regressed"),
    "further": (("runner", "exit 1 x: error: no"), entry("further"), "improved"),
    "unlisted": (("compiler", "exit 1 x: error: no"), "", "regressed"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Told:
    folder = tmp_path_factory.mktemp("expected")
    sandbox = Sandbox(folder)
    home = copy_of_package(
        folder,
        models={name: sandbox.save(f"{name}.onnx") for name in TABLE},
        expected="".join(expected for _, expected, _ in TABLE.values()),
    )
    sandbox = Sandbox(folder, home=home)
    sandbox.tools_by_model({name: behaviour for name, (behaviour, _, _) in TABLE.items()})
    ended = sandbox.run("--collection", "tiny", "-rx")
    return Told(sandbox=sandbox, ended=ended, record=sandbox.record())


@pytest.mark.parametrize("name", TABLE)
def test_verdict(told: Told, name: str) -> None:
    assert told.record.cases[f"cpu/tiny/{name}"]["verdict"] == TABLE[name][2]


def test_only_the_expected_one_xfails(told: Told) -> None:
    assert told.ended.code == 1
    assert "5 failed, 1 xfailed" in told.ended.output
    assert "expected to fail in compile (error): known" in told.ended.output


def test_the_record_says_what_was_expected(told: Told) -> None:
    assert told.record.cases["cpu/tiny/fixed"]["expected"] == {
        "stage": "compile",
        "kind": "error",
        "why": "known",
    }
    assert told.record.cases["cpu/tiny/unlisted"]["expected"] is None


@pytest.mark.parametrize(
    ("name", "action", "stage", "kind"),
    [
        ("other-kind", "replace in ", "compile", "crash"),
        ("other-stage", "replace in ", "import", "error"),
        ("further", "replace in ", "run", "error"),
        ("fixed", "remove from ", "compile", "error"),
        ("unlisted", "if this is known, add:", "compile", "error"),
    ],
)
def test_the_text_holds_toml_to_paste(told: Told, name: str, action: str, stage: str, kind: str) -> None:
    at = told.ended.output.index(f"cpu/tiny/{name}: {TABLE[name][2]}: ")
    head, _, rest = told.ended.output[at:].partition(action)[2].partition("\n")
    (row,) = tomllib.loads(rest.split("\n___")[0].split("\n===")[0])["case"]
    assert (row["id"], row["stage"], row["kind"]) == (f"tiny/{name}", stage, kind)
    if action != "if this is known, add:":
        assert head.endswith("cpu.toml:")


def test_pasting_the_advice_makes_the_run_green(told: Told) -> None:
    home = Path(told.sandbox.env["PYTHONPATH"])
    rows = []
    for name in TABLE:
        line = told.record.cases[f"cpu/tiny/{name}"]
        if line["kind"]:
            rows.append(entry(name, line["stage"], line["kind"]))
    (home / "onnx_models" / "expectations" / "cpu.toml").write_text("".join(rows), encoding="utf-8")
    ended = told.sandbox.run("--collection", "tiny", "--record", "green.jsonl")
    assert ended.code == 0, ended.output
    verdicts = told.sandbox.record("green.jsonl").foot["verdicts"]
    assert verdicts == {"expected-failure": 5, "passed": 1}
    again = told.sandbox.run("--collection", "tiny", "--record", "runxfail.jsonl", "--runxfail")
    assert again.code == 1, "--runxfail must run expected failures as if they were none"
    assert told.sandbox.record("runxfail.jsonl").foot["verdicts"] == {"passed": 1, "regressed": 5}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (entry("never-was"), "'tiny/never-was' names no model of the catalogue; remove it"),
        (GOOD.replace("tiny/a", "toys/a"), "'toys/a': no collection 'toys'; correct or remove it"),
        (
            GOOD.replace("tiny/a", "cpu/tiny/a"),
            "no collection 'cpu'; leave out the device, the file is named",
        ),
        (entry("unlistet"), "'tiny/unlistet' names no model of the catalogue; there is tiny/unlisted"),
        (entry("fixed").replace('why = "known"\n', ""), "'why' is missing"),
    ],
    ids=["stale", "no-collection", "device", "typo", "no-why"],
)
def test_a_wrong_list_is_exit_code_4(told: Told, text: str, message: str) -> None:
    home = Path(told.sandbox.env["PYTHONPATH"])
    file = home / "onnx_models" / "expectations" / "cpu.toml"
    kept = file.read_text(encoding="utf-8")
    file.write_text(text, encoding="utf-8")
    try:
        line = told.sandbox.refused("--collection", "tiny", "-k", "unlisted")
    finally:
        file.write_text(kept, encoding="utf-8")
    assert str(file) in line
    assert message in line


def test_a_list_named_after_no_device_is_exit_code_4(sandbox: Sandbox) -> None:
    lists = sandbox.folder / "lists"
    lists.mkdir()
    for name in ("all", "cpu", "vulcan"):
        (lists / f"{name}.toml").touch()
    line = sandbox.refused("--model", "tiny.onnx", "--expectations", "lists")
    assert f"{lists / 'vulcan.toml'}: named after no device" in line
    check = [sys.executable, "-m", "onnx_models", "expectations", "check", "--expectations", "lists"]
    ended = sandbox.execute(check)
    assert (ended.code, "vulcan.toml: named after no device" in ended.output) == (4, True)
    assert "vulkan" in line
    expectations.reject_strangers([str(lists)], ["vulcan"])
