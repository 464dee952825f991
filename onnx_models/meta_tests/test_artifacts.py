"""Paths that never collide, whole files or none, and a stage cache that believes nothing stale."""

from __future__ import annotations

import json
import os
from itertools import product
from pathlib import Path

import pytest

from onnx_models import artifacts
from onnx_models.artifacts import CaseFolder, StageCache
from onnx_models.files import write_atomic
from onnx_models.outcomes import Failure, Kind, Stage, StageResult, SuiteError


def test_no_two_cases_share_a_file(tmp_path: Path) -> None:
    seen: set[Path] = set()
    chosen = list(product(("c/a", "c/a/b", "d/a"), ("iree-1", "iree-2"), ("cpu", "cuda")))
    for model, toolchain, device in chosen:
        folder = CaseFolder.of(tmp_path, model_id=model, toolchain=toolchain, device=device)
        seen |= {folder.vmfb, folder.script, folder.outputs("s"), folder.log(Stage.RUN, "s")}
        seen.add(folder.log(Stage.COMPILE))
    assert len(seen) == 5 * len(chosen)


def test_devices_share_what_the_importer_makes(tmp_path: Path) -> None:
    one, other = (CaseFolder.of(tmp_path, model_id="c/a", toolchain="t", device=d) for d in ("cpu", "cuda"))
    assert (one.onnx, one.mlir, one.log(Stage.IMPORT)) == (other.onnx, other.mlir, other.log(Stage.IMPORT))
    assert one.relative(one.mlir) == "../model.mlir"


def test_a_link_is_replaced_and_never_missing(tmp_path: Path) -> None:
    first, second, link = tmp_path / "1.onnx", tmp_path / "2.onnx", tmp_path / "deep" / "model.onnx"
    for file in (first, second, second):
        file.write_bytes(b"x")
        artifacts.link_model(file, link)
        assert link.resolve() == file.resolve()
    assert [path.name for path in link.parent.iterdir()] == ["model.onnx"]


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    expected = r"cannot be written \(.+\); give --artifacts DIR"
    with pytest.raises(SuiteError, match=expected):
        artifacts.require_writable(tmp_path / "file" / "a")
    with pytest.raises(SuiteError, match=expected):
        artifacts.link_model(tmp_path / "file", tmp_path / "file" / "b")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "x.sh"
    write_atomic(file, "old", executable=True)
    assert os.access(file, os.X_OK)
    with pytest.raises(UnicodeEncodeError):
        write_atomic(file, "new \udcff")
    assert file.read_text(encoding="utf-8") == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["x.sh"]


@pytest.mark.parametrize("parts", [("a", "c"), ("a", "b", ""), (("a", "b"),), ("ab",), ("b", "a")])
def test_a_key_tells_its_parts_apart(parts: tuple[object, ...]) -> None:
    assert artifacts.stage_key(*parts) != artifacts.stage_key("a", "b")
    assert artifacts.stage_key(*parts) == artifacts.stage_key(*parts)


LIMITS = {Kind.TIMEOUT: 10.0, Kind.OUT_OF_MEMORY: 1000}


def put(folder: Path, kind: Kind | None = None) -> tuple[StageCache, Path]:
    """A cache with one stage, passed or failed, and its product."""
    made = folder / "module.vmfb"
    made.write_bytes(b"module")
    failure = Failure(stage=Stage.COMPILE, kind=kind, message="m", detail="d") if kind else None
    result = StageResult(
        stage=Stage.COMPILE,
        seconds=1.5,
        peak_bytes=7,
        commands=(("a", "b c"),),
        log=folder / "compile.log",
        failure=failure,
    )
    cache = StageCache(folder)
    cache.put(result, "key", limits=LIMITS, products=[made])
    return cache, made


@pytest.mark.parametrize("kind", [None, Kind.ERROR])
def test_a_result_is_read_back_as_it_was(tmp_path: Path, kind: Kind | None) -> None:
    cache, made = put(tmp_path, kind)
    found = cache.get(Stage.COMPILE, "key", limits=LIMITS, products=[made])
    assert found is not None
    assert (found.seconds, found.peak_bytes, found.commands) == (1.5, 7, (("a", "b c"),))
    assert (found.log, found.reused) == (tmp_path / "compile.log", True)
    assert (found.failure and found.failure.kind) == kind


def test_another_key_or_stage_is_not_it(tmp_path: Path) -> None:
    cache, made = put(tmp_path)
    assert cache.get(Stage.COMPILE, "other", limits=LIMITS, products=[made]) is None
    assert cache.get(Stage.RUN, "key", limits=LIMITS, products=[made]) is None


@pytest.mark.parametrize("change", ["gone", "longer", "touched"])
def test_a_changed_product_is_not_believed(tmp_path: Path, change: str) -> None:
    cache, made = put(tmp_path)
    if change == "gone":
        made.unlink()
    elif change == "longer":
        made.write_bytes(b"module+")
    else:
        os.utime(made, ns=(1, 1))
    assert cache.get(Stage.COMPILE, "key", limits=LIMITS, products=[made]) is None


@pytest.mark.parametrize("limit", [None, 1000])
def test_memory_that_the_machine_had_not_may_be_free_the_next_time(
    tmp_path: Path, limit: float | None
) -> None:
    failure = Failure(stage=Stage.COMPILE, kind=Kind.OUT_OF_MEMORY, message="SIGKILL")
    cache, unlimited = StageCache(tmp_path), {Kind.TIMEOUT: 10.0, Kind.OUT_OF_MEMORY: None}
    cache.put(
        StageResult(stage=Stage.COMPILE, seconds=1.0, failure=failure), "k", limits=unlimited, products=[]
    )
    limits = unlimited | {Kind.OUT_OF_MEMORY: limit}
    assert cache.get(Stage.COMPILE, "k", limits=limits, products=[]) is None


def test_one_run_may_take_only_what_it_made_itself(tmp_path: Path) -> None:
    cache = StageCache(tmp_path)
    cache.put(StageResult(stage=Stage.RUN, seconds=1.0), "k", limits=LIMITS, products=[], run="a")
    found = {run: cache.get(Stage.RUN, "k", limits=LIMITS, products=[], run=run) for run in ("a", "b", "")}
    assert [run for run, result in found.items() if result] == ["a"]
    cache.put(StageResult(stage=Stage.RUN, seconds=1.0), "k", limits=LIMITS, products=[])
    assert cache.get(Stage.RUN, "k", limits=LIMITS, products=[], run="") is None, "runs without a name"


@pytest.mark.parametrize(
    ("kind", "limits", "believed"),
    [
        (Kind.TIMEOUT, {Kind.TIMEOUT: 10.0, Kind.OUT_OF_MEMORY: None}, True),
        (Kind.TIMEOUT, {Kind.TIMEOUT: 5.0, Kind.OUT_OF_MEMORY: 1000}, True),
        (Kind.TIMEOUT, {Kind.TIMEOUT: 11.0, Kind.OUT_OF_MEMORY: 1000}, False),
        (Kind.OUT_OF_MEMORY, {Kind.TIMEOUT: 99.0, Kind.OUT_OF_MEMORY: 1000}, True),
        (Kind.OUT_OF_MEMORY, {Kind.TIMEOUT: 10.0, Kind.OUT_OF_MEMORY: 1001}, False),
        (Kind.OUT_OF_MEMORY, {Kind.TIMEOUT: 10.0, Kind.OUT_OF_MEMORY: None}, False),
        (Kind.ERROR, {Kind.TIMEOUT: 99.0, Kind.OUT_OF_MEMORY: None}, True),
        (Kind.CRASH, {Kind.TIMEOUT: 99.0, Kind.OUT_OF_MEMORY: None}, True),
    ],
)
def test_a_limit_is_believed_until_it_is_raised(
    tmp_path: Path, kind: Kind, limits: dict[Kind, float | None], believed: bool
) -> None:
    cache, made = put(tmp_path, kind)
    found = cache.get(Stage.COMPILE, "key", limits=limits, products=[made])
    assert (found is not None) == believed


@pytest.mark.parametrize("text", ["", "{", "[]", '{"compile": 3}', '{"compile": {"key": "key"}}'])
def test_a_damaged_cache_is_an_empty_one(tmp_path: Path, text: str) -> None:
    cache, made = put(tmp_path)
    cache.file.write_text(text, encoding="utf-8")
    assert cache.get(Stage.COMPILE, "key", limits=LIMITS, products=[made]) is None


def test_stages_are_kept_side_by_side(tmp_path: Path) -> None:
    cache, made = put(tmp_path)
    cache.put(StageResult(stage=Stage.RUN, seconds=1.0), "k2", limits=LIMITS, products=[])
    assert set(json.loads(cache.file.read_text(encoding="utf-8"))) == {"compile", "run"}
    assert cache.get(Stage.COMPILE, "key", limits=LIMITS, products=[made]) is not None
