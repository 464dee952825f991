"""`--shard I/N`: the parts are the whole, whatever else is asked for."""

from __future__ import annotations

from collections import Counter

import pytest

from onnx_models import catalog, shards
from onnx_models.catalog import Model
from onnx_models.meta_tests.sandbox import Sandbox
from onnx_models.outcomes import UsageError
from onnx_models.shards import Shard

ALL = tuple(model for name in catalog.collections() for model in catalog.load(name))


def part(model: Model, of: int) -> int:
    (number,) = [k for k in range(1, of + 1) if Shard(number=k, of=of).holds(model)]
    return number


@pytest.mark.parametrize("of", [1, 2, 3, 8, 50])
def test_each_model_is_in_one_part_and_the_parts_are_of_like_size(of: int) -> None:
    sizes = Counter(part(model, of) for model in ALL)
    assert sum(sizes.values()) == len(ALL)
    fair = len(ALL) / of
    # Five standard deviations of a fair draw.
    assert all(abs(sizes[k] - fair) <= 5 * fair**0.5 for k in range(1, of + 1)), sizes


def test_the_split_is_the_same_tomorrow() -> None:
    """A changed split would compare runs whose shards do not fit together."""
    wanted = {"wheels/magika/standard_v3_3": 2, "skeletons/resnet50": 1, "skeletons/squeezenet": 3}
    wanted |= {"skeletons/vgg19": 2, "wheels/silero-vad/silero_vad": 4}
    by_id = {model.id: model for model in ALL}
    assert {key: part(by_id[key], 4) for key in wanted} == wanted


def test_twins_share_a_part() -> None:
    twins = [model for model in ALL if model.twin]
    by_id = {model.id: model for model in ALL}
    assert twins
    assert [t.id for t in twins if part(t, 7) != part(by_id[t.twin], 7)] == []


@pytest.mark.parametrize(
    "text", ["", "2", "0/4", "5/4", "1/0", "-1/4", "1/4/2", "a/b", "1 / 4", "01/4", "1/4\n", "1/99999"]
)
def test_what_is_no_part(text: str) -> None:
    with pytest.raises(UsageError):
        shards.parse(text)


def test_a_wrong_one_ends_with_exit_code_4(sandbox: Sandbox) -> None:
    line = sandbox.refused("--model", "tiny.onnx", "--shard", "3/2")
    assert "argument --shard: '3/2' is no part of a split: parts 1 to 2 there are" in line


FIRST, SECOND = ("m1", "m2", "m3"), ("m4", "m5")
"""Names of models by their part of two."""


@pytest.fixture
def many(sandbox: Sandbox) -> tuple[Sandbox, list[str]]:
    names = sorted(FIRST + SECOND)
    return sandbox, [word for name in names for word in ("--model", sandbox.save(f"{name}.onnx").name)]


def test_the_parts_are_the_whole_with_workers_and_k(many: tuple[Sandbox, list[str]]) -> None:
    sandbox, models = many
    devices = ("--device", "cpu", "--device", "cpu-generic")
    for shard, names in (("1/2", {"m1", "m3"}), ("2/2", set(SECOND))):
        ended = sandbox.run(*models, *devices, "--shard", shard, "-n", "2", "-k", "not m2")
        assert ended.code == 0, ended.output
        found = sandbox.record()
        assert found.head["shard"] == shard
        assert found.foot["complete"]
        assert set(found.cases) == {f"{d}/local/{m}" for d in ("cpu", "cpu-generic") for m in names}


def test_last_failed_stays_within_the_part(many: tuple[Sandbox, list[str]]) -> None:
    sandbox, models = many
    sandbox.tools(runner="scale 2")
    sandbox.run(*models, "--shard", "1/2")
    first = set(sandbox.record().cases)
    sandbox.tools()
    ended = sandbox.run(*models, "--lf")
    assert ended.code == 0, ended.output
    assert set(sandbox.record().cases) == first == {f"cpu/local/{name}" for name in FIRST}


def test_without_it_the_header_names_none(sandbox: Sandbox) -> None:
    sandbox.run("--model", "tiny.onnx")
    assert sandbox.record().head["shard"] == ""


def test_an_empty_part_is_a_whole_record(sandbox: Sandbox) -> None:
    codes = []
    for shard in ("1/2", "2/2"):
        codes.append(sandbox.run("--model", "tiny.onnx", "--shard", shard, "--record", shard[0]).code)
    assert codes == [0, 0]
    found = [sandbox.record(name) for name in "12"]
    assert sorted(len(each.cases) for each in found) == [0, 1]
    assert all(each.foot["complete"] for each in found)
