"""Which entry decides: files, ids, globs and conditions; and lists that are refused."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import pytest

from onnx_models import expectations
from onnx_models.conditions import Circumstances
from onnx_models.expectations import Known
from onnx_models.outcomes import Expectation, Failure, Kind, Stage, UsageError, Verdict, judge

HERE = Circumstances.of(iree="3.13.0", device="cpu", system="Linux")
TODAY = date(2026, 12, 1)


def case(name: str, stage: str = "compile", *, key: str = "id", **more: str) -> str:
    rows = {key: name, "stage": stage, "kind": "error", "why": "w"} | more
    if stage == "pass":
        del rows["kind"]
    return "[[case]]\n" + "".join(f'{k} = "{v}"\n' for k, v in rows.items()) + "\n"


def known(folder: Path, *texts: str, here: Circumstances = HERE) -> Known:
    words = []
    for number, text in enumerate(texts):
        (folder / str(number)).mkdir()
        (folder / str(number) / "cpu.toml").write_text(text, encoding="utf-8")
        words.append(str(folder / str(number)))
    return expectations.load(words, here, today=TODAY)


def stage(found: Expectation | None) -> Stage | None:
    return found.stage if found else None


def test_an_id_wins_over_a_glob_and_a_longer_glob_over_a_shorter(tmp_path: Path) -> None:
    lists = known(
        tmp_path,
        case("zoo/**/*-int8", "compile", key="glob")
        + case("zoo/**", "import", key="glob")
        + case("zoo/vision/a-int8", "run"),
    )
    assert stage(lists.expect("zoo/vision/a-int8")) is Stage.RUN
    assert stage(lists.expect("zoo/vision/b-int8")) is Stage.COMPILE
    assert stage(lists.expect("zoo/c-int8")) is Stage.COMPILE
    assert stage(lists.expect("zoo/c")) is Stage.IMPORT
    assert lists.expect("wheels/c") is None


def test_a_star_stays_within_a_folder(tmp_path: Path) -> None:
    lists = known(tmp_path, case("zoo/*-int8", key="glob"))
    assert lists.expect("zoo/a-int8") is not None
    assert lists.expect("zoo/b/a-int8") is None
    assert lists.expect("zoo/a-int8-x") is None


def test_the_later_file_wins_even_with_a_glob(tmp_path: Path) -> None:
    lists = known(tmp_path, case("zoo/a", "run"), case("zoo/*", "compile", key="glob"))
    assert stage(lists.expect("zoo/a")) is Stage.COMPILE


def test_more_conditions_win_and_what_does_not_hold_does_not_count(tmp_path: Path) -> None:
    text = case("zoo/a", "run") + case("zoo/a", "compile", when="iree>=3.13")
    text += case("zoo/a", "import", when="iree<3.13")
    lists = known(tmp_path, text)
    assert stage(lists.expect("zoo/a")) is Stage.COMPILE
    older = Circumstances.of(iree="3.0.0rc20241118", device="cpu")
    assert stage(expectations.load([str(tmp_path / "0")], older).expect("zoo/a")) is Stage.IMPORT


def test_contradicting_entries_of_one_rank_are_refused(tmp_path: Path) -> None:
    text = case("zoo/a", "run", when="os=linux") + case("zoo/a", "compile", when="iree>=3.0")
    with pytest.raises(UsageError, match="neither is more specific"):
        known(tmp_path, text).expect("zoo/a")


def test_an_entry_can_say_that_a_case_passes(tmp_path: Path) -> None:
    text = case("zoo/**", "compile", key="glob") + case("zoo/a", "pass")
    found = known(tmp_path, text).expect("zoo/a")
    failure = Failure(stage=Stage.RUN, kind=Kind.ERROR, message="m")
    assert judge(found, None, case_id="zoo/a").verdict is Verdict.PASSED
    assert judge(found, failure, case_id="zoo/a").verdict is Verdict.REGRESSED


def test_a_collection_that_is_recorded_turns_nothing_red(tmp_path: Path) -> None:
    text = '[collection.zoo]\ndefault = "record"\n' + case("zoo/b", "pass")
    lists = known(tmp_path, text)
    failure = Failure(stage=Stage.RUN, kind=Kind.ERROR, message="m")
    assert lists.recording("zoo/a")
    assert not lists.recording("wheels/a")
    for found in (failure, None):
        judgement = judge(lists.expect("zoo/a"), found, case_id="zoo/a", recording=True)
        assert judgement.verdict is Verdict.NEW
        assert judgement.green
    adopted = judge(lists.expect("zoo/b"), failure, case_id="zoo/b", recording=True)
    assert adopted.verdict is Verdict.REGRESSED


@pytest.mark.parametrize(
    ("signature", "verdict"),
    [("s", Verdict.EXPECTED_FAILURE), ("", Verdict.EXPECTED_FAILURE), ("t", Verdict.CHANGED)],
)
def test_a_signature_is_held_against_the_found_one(signature: str, verdict: Verdict) -> None:
    known = Expectation(id="zoo/a", stage=Stage.RUN, kind=Kind.ERROR, why="w", signature=signature)
    found = Failure(stage=Stage.RUN, kind=Kind.ERROR, message="m", signature="s", title="t")
    judgement = judge(known, found, case_id="zoo/a")
    assert judgement.verdict is verdict
    assert (judgement.advice == "") is judgement.green


def test_flakes_are_listed_with_a_reason(tmp_path: Path) -> None:
    lists = known(tmp_path, '[[flaky]]\nid = "zoo/a"\nwhy = "threads"\n')
    found = lists.flaky("zoo/a")
    assert found is not None
    assert found.why == "threads"
    assert lists.flaky("zoo/b") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (case("zoo/a", when="iree>three"), "version range"),
        (case("zoo/a", when="moon=full"), "'when' has 'moon=full'"),
        (case("zoo/a", expires="2026-11-30"), "expired on 2026-11-30"),
        (case("zoo/a", expires="soon"), "expected a date"),
        (case("zoo/a", glob="zoo/*"), "either 'id' or 'glob'"),
        (case("zoo/a", kind="infrastructure"), "cannot be expected of a model"),
        (case("zoo/a", "pass", signature="s"), "no kind and no signature"),
        ("[[flaky]]\nid = 'zoo/a'\n", "'why' is missing"),
        ("[[flaky]]\nid = 'zoo/a'\nwhy = 'w'\nstage = 'run'\n", "unknown key 'stage'"),
        ("iree = '3'\n", "expected a minor release"),
        ("[collection.zoo]\ndefault = 'skip'\n", 'takes default = "record"'),
    ],
)
def test_wrong_lists_are_refused(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        known(tmp_path, text)


def test_an_entry_may_expire_later(tmp_path: Path) -> None:
    text = case("zoo/a", expires="2026-12-01") + "[[case]]\nid='zoo/b'\nstage='run'\nkind='crash'\nwhy='w'\n"
    text += "expires = 2027-01-01\n"
    assert known(tmp_path, text).expect("zoo/a") is not None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        (case("zoo/never-was"), "names no model"),
        (case("toys/a"), "no collection 'toys'"),
        (case("skeletons/*-int3", key="glob"), "names no model"),
        (case("*/no/such/*", key="glob"), "names no model"),
    ],
)
def test_rules_that_match_nothing_are_refused(tmp_path: Path, entry: str, message: str) -> None:
    layer = known(tmp_path, entry).layers[0]
    catalogued = {"zoo": frozenset({"zoo/a"}), "skeletons": frozenset({"skeletons/b"})}
    with pytest.raises(UsageError, match=message):
        expectations.reject_stale(layer.entries, catalogued)


def test_which_files_hold_for_a_device(tmp_path: Path) -> None:
    for name in ("cpu", "vulkan", "all", "mine"):
        (tmp_path / f"{name}.toml").write_text("", encoding="utf-8")
    names = [file.stem for file in expectations.files([str(tmp_path)], "cpu")]
    assert names == ["all", "cpu"]
    single = [str(tmp_path / f"{name}.toml") for name in ("vulkan", "mine")]
    assert [file.stem for file in expectations.files(single, "cpu")] == ["mine"]
    with pytest.raises(UsageError, match="no such file or folder"):
        expectations.files([str(tmp_path / "absent")], "cpu")
    assert expectations.files([str(tmp_path / "absent")], "cpu", creating=True) == ()
