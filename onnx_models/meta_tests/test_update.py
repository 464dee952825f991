"""The update of expectations: what it writes, what it leaves alone, and that it settles."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from onnx_models import catalog, expectations, flakes, health, update
from onnx_models.conditions import Circumstances
from onnx_models.lists import parse
from onnx_models.outcomes import Stage, SuiteError

TODAY = date(2026, 12, 1)
A, B, C, D = sorted(model.id for model in catalog.load("skeletons"))[:4]

START = f"""# Known on the CPU.

iree = "3.13"

# All about GRU.

# the first
[[case]]
id = "{A}"  # an old friend
stage = "compile"
kind = "error"
signature = "old"
why = "by hand"
issue = "https://example.com/1"

[[case]]
id = "{C}"
stage = "run"
kind = "error"
why = "soon fixed"
"""


def head(iree: str = "3.13.0rc20261016", *, last: str = "compare", day: int = 1) -> dict[str, Any]:
    return {
        "run": f"r{day}",
        "iree": iree,
        "started": f"2026-12-0{day}T00:00:00+00:00",
        "host": {"name": "h", "system": "Linux-6", "cpu": "x [avx2]"},
        "devices": {"cpu": {"last_stage": last}},
    }


def row(model: str, *what: str, verdict: str = "") -> dict[str, Any]:
    stage, kind, signature = what or ("compare", None, "")
    return {
        "id": f"cpu/{model}",
        "device": "cpu",
        "collection": model.partition("/")[0],
        "verdict": verdict or ("regressed" if what else "passed"),
        "stage": stage,
        "kind": kind,
        "message": "it broke",
        "signature": signature,
        "title": f"title of {signature}" if signature else "",
    }


NOW = [row(A, "compile", "error", "new"), row(B, "compare", "mismatch", "wrong"), row(C), row(D)]


class Lists:
    """A folder of lists that is updated."""

    def __init__(self, folder: Path, text: str = START) -> None:
        self.folder, self.file = folder, folder / "cpu.toml"
        self.file.write_text(text, encoding="utf-8")

    def update(
        self,
        rows: Sequence[Mapping[str, Any]],
        header: Mapping[str, Any] | None = None,
        *,
        complete: bool = True,
        wanted: Sequence[str] = (),
    ) -> str:
        run = (header or head(), rows, complete)
        found = update.update([run], wanted or [str(self.folder)], today=TODAY)
        text = update.diff(found.changes)
        update.write(found.changes)
        return text

    @property
    def text(self) -> str:
        return self.file.read_text(encoding="utf-8")


@pytest.fixture
def lists(tmp_path: Path) -> Lists:
    return Lists(tmp_path)


def test_an_update_changes_adds_and_removes(lists: Lists) -> None:
    lists.update(NOW)
    assert (
        lists.text
        == f"""# Known on the CPU.

iree = "3.13"

# All about GRU.

# the first
[[case]]
id = "{A}"  # an old friend
stage = "compile"
kind = "error"
signature = "new"
why = "by hand"
issue = "https://example.com/1"
title = "title of new"

[[case]]
id = "{B}"
stage = "compare"
kind = "mismatch"
signature = "wrong"
title = "title of wrong"
why = "it broke"
since = "3.13.0rc20261016"
"""
    )


def test_comments_that_stand_apart_outlive_the_entries_beside_them(lists: Lists) -> None:
    entry = f'[[case]]\nid = "{D}"\nstage = "run"\nkind = "crash"\nsignature = "s"\nwhy = "w"\n'
    lists.file.write_text(f"{START}\n# Apart.\n\n# goes\n{entry}\n# At the end.\n", encoding="utf-8")
    lists.update([row(C), row(D)])
    assert "# Apart.\n" in lists.text
    assert lists.text.endswith("# At the end.\n")
    assert "# goes" not in lists.text
    assert "[[case]]" in lists.text


def test_a_second_update_changes_nothing(lists: Lists) -> None:
    lists.update(NOW)
    assert lists.update(NOW) == ""


def test_what_did_not_run_to_completion_changes_nothing(lists: Lists) -> None:
    rows = [
        row(A, verdict="skipped"),
        row(B, "reference", "timeout", "x", verdict="new"),
        row(B, "reference", "infrastructure", "x", verdict="error"),
        row(C, "run", "infrastructure", "host-disk-full", verdict="error"),
        row(D, "compile", "error", "x", verdict="flaky"),
        row("local/mine", "compile", "error", "x"),
    ]
    assert lists.update(rows) == ""


@pytest.mark.parametrize("kind", ["reference-unhealthy", "error", "unsupported-input"])
@pytest.mark.parametrize("verdict", ["error", "new"])
def test_a_model_without_a_reference_is_adopted(lists: Lists, kind: str, verdict: str) -> None:
    rows = [row(B, "reference", kind, "x", verdict=verdict)]
    lists.update(rows)
    assert f'kind = "{kind}"' in lists.text
    assert lists.update(rows) == ""


def test_a_partial_run_changes_only_what_it_completed(lists: Lists) -> None:
    lists.update([row(C)], complete=False)
    assert lists.text == START.replace(START[START.index(f'\n[[case]]\nid = "{C}"') :], "")


def test_a_device_that_only_compiles_says_nothing_of_later_stages(lists: Lists) -> None:
    assert lists.update([row(C, verdict="passed")], head(last="compile")) == ""


def test_an_older_release_gets_entries_of_its_own(lists: Lists) -> None:
    lists.update(NOW)
    before = lists.text
    old = [row(A, "import", "error", "older"), row(B), row(C), row(D, "compile", "error", "x")]
    diff = lists.update(old, head("3.0.0rc20241118"))
    assert not [line for line in diff.splitlines() if line.startswith("-") and not line.startswith("---")]
    assert lists.text.count('when = "iree>=3.0,<3.1"') == 3
    assert 'stage = "pass"' in lists.text
    assert lists.update(old, head("3.0.0rc20241118")) == ""
    assert lists.update(NOW) == "", "the newer release still finds its own"
    here = Circumstances.of(iree="3.13.0", device="cpu")
    kept = parse(lists.file, before, today=TODAY).entries
    now = expectations.load([str(lists.folder)], here, today=TODAY)
    assert [now.expect(entry.id) for entry in kept] == list(kept)


def test_an_older_release_can_have_a_folder_of_its_own(lists: Lists, tmp_path: Path) -> None:
    mine = tmp_path / "older"
    wanted = [str(lists.folder), str(mine)]
    old = [row(A, "import", "error", "older"), row(C, "run", "error", "any"), row(D)]
    lists.update(old, head("3.0.0"), wanted=wanted)
    assert lists.text == START
    text = (mine / "cpu.toml").read_text(encoding="utf-8")
    assert text.count("[[case]]") == 1, "what the first folder expects already is not said again"
    assert 'when = "iree>=3.0,<3.1"' in text
    assert lists.update(old, head("3.0.0"), wanted=wanted) == ""


def test_a_newer_release_is_stated_once_it_is_known_of_every_entry(lists: Lists) -> None:
    lists.update([row(A, "compile", "error", "newer")], head("3.14.0"), complete=True)
    assert 'iree = "3.13"' in lists.text
    lists.update([row(A, "compile", "error", "newer"), row(C)], head("3.14.0"))
    assert 'iree = "3.14"' in lists.text


def test_a_glob_is_never_rewritten(lists: Lists) -> None:
    glob = '[[case]]\nglob = "skeletons/**"\nstage = "compile"\nkind = "error"\nwhy = "w"\n'
    lists.file.write_text(glob, encoding="utf-8")
    rows = [row(A, "compile", "error", "any"), row(B, "run", "crash", "s"), row(C)]
    lists.update(rows)
    assert glob in lists.text
    named = expectations.load([str(lists.folder)], Circumstances.of(iree="3.13.0", device="cpu"))
    stages = [entry and entry.stage for entry in map(named.expect, (A, B, C))]
    assert stages == [Stage.COMPILE, Stage.RUN, None]
    assert lists.update(rows) == ""


def test_adopting_a_recorded_collection_names_what_passes(tmp_path: Path) -> None:
    lists = Lists(tmp_path, '[collection.skeletons]\ndefault = "record"\n')
    rows = [row(A, verdict="new"), row(B, "run", "crash", "s", verdict="new")]
    lists.update(rows)
    assert lists.text.count('stage = "pass"') == 1
    assert lists.text.count('stage = "run"') == 1
    assert lists.update(rows) == ""


def test_contradicting_records_are_reported_and_not_adopted(lists: Lists) -> None:
    runs = [(head(day=1), [row(D)], True), (head(day=2), [row(D, "run", "crash", "s")], True)]
    found = update.update(runs, [str(lists.folder)], today=TODAY)
    assert found.changes == ()
    assert len(found.contradictions) == 1
    assert f"cpu/{D}: IREE 3.13.0rc20261016 gives two results" in found.contradictions[0]


def test_git_applies_the_diff(lists: Lists) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t@example.com"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "c"]):
        subprocess.run([*git, *words], cwd=lists.folder, check=True)
    lists.file.write_text(START.rstrip("\n"), encoding="utf-8")
    subprocess.run([*git, "commit", "-qam", "no newline at the end"], cwd=lists.folder, check=True)
    run = (head(), NOW, True)
    wanted = [str(lists.folder)]
    text = update.diff(update.update([run], wanted, today=TODAY).changes)
    assert lists.text == START.rstrip("\n"), "a diff writes nothing"
    subprocess.run([*git, "apply", "-"], cwd=lists.folder, check=True, input=text.encode())
    applied = lists.text
    lists.file.write_text(START.rstrip("\n"), encoding="utf-8")
    lists.update(NOW)
    assert applied == lists.text


def test_a_form_that_cannot_be_edited_is_refused(lists: Lists) -> None:
    rows = f'case = [{{ id = "{A}", stage = "run", kind = "error", why = "w" }}]\n'
    lists.file.write_text(rows, encoding="utf-8")
    with pytest.raises(SuiteError, match=r"\[\[case\]\] table"):
        lists.update(NOW)
    assert lists.text == rows


def test_cases_that_flip_under_one_release_are_proposed_as_flaky() -> None:
    runs = [
        (head(day=1), [row(A), row(B, "run", "crash", "s"), row(C)], True),
        (head(day=2), [row(A, "run", "crash", "s"), row(B, "run", "crash", "s"), row(C)], True),
        (head("3.14.0", day=3), [row(A), row(B), row(C, "run", "crash", "s")], True),
    ]
    (flip,) = flakes.flips(runs)
    assert (flip.case, flip.runs) == (f"cpu/{A}", ("r1", "r2"))
    layer = parse(Path("x"), flip.toml(), today=TODAY)
    assert layer.flaky[0].id == A
    assert "1 x passes, 1 x run (crash) as s" in layer.flaky[0].why


def test_tries_within_one_run_count_as_flips() -> None:
    attempts = [{"stage": "run", "kind": "crash", "signature": "s", "message": "m"}, None]
    (flip,) = flakes.flips([(head(), [row(A, verdict="flaky") | {"attempts": attempts}], True)])
    assert dict(flip.seen) == {"passes": 1, "run (crash) as s": 1}


def broken(count: int, stage: str = "fetch", kind: str = "infrastructure", signature: str = "") -> list[Any]:
    return [row(A, stage, kind, signature, verdict="error") for _ in range(count)]


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (broken(4), "4 of 4 cases failed in fetch or reference"),
        (broken(5, "reference", "timeout") + [row(A)] * 4, "5 of 9 cases failed in fetch or reference"),
        (broken(4) + broken(4, "reference") + [row(A)], "8 of 9 cases failed in fetch or reference"),
        (broken(3, signature="full") + broken(3, "run", signature="full"), "6 of 6 cases failed as full"),
        (broken(9, "reference", "error"), ""),
        (broken(4, "run", signature="host-disk-full"), "failed as host-disk-full"),
        (broken(4) + [row(A, verdict="skipped")] * 9, "4 of 4"),
        (broken(3), ""),
        (broken(4) + [row(A)] * 4, ""),
        (broken(4, "run", signature="a") + broken(4, "run", signature="b"), ""),
        ([row(A, "reference", "error", "s", verdict="expected-failure")] * 9, ""),
        ([row(A, "compile", "error", "s")] * 9, ""),
        (broken(9, "reference", "reference-unhealthy"), ""),
        ([row(A, verdict="error") | {"stage": "reference"}] * 9, ""),
    ],
)
def test_when_the_host_is_to_blame(rows: list[Any], says: str) -> None:
    found = health.broken_host(rows)
    assert (says in found) if says else found == ""
