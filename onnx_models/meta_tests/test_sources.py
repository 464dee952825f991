"""From a record to a verified file: local files, skeletons, the cache, and the records themselves."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

from onnx_models import catalog, sources
from onnx_models.cache import keep, locked, place
from onnx_models.catalog import Model
from onnx_models.cli import main
from onnx_models.files import sha256_of
from onnx_models.sources import SourceError, fetch

SKELETONS = {model.path: model for model in catalog.load("skeletons")}
WHEELS = {model.path: model for model in catalog.load("wheels")}

Made = tuple[Path, Path]
"""A cache and a model file in it."""


def local(path: str | Path, **facts: Any) -> Model:
    return Model(collection="local", path="m", source={"type": "local", "path": str(path)}, **facts)


def test_a_local_file_is_taken_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "my model's \u00fc.onnx"
    file.write_bytes(b"\x08\x07")
    assert fetch(local(file), cache=tmp_path / "cache") == file
    assert not (tmp_path / "cache").exists()


def test_a_relative_local_path_becomes_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "m.onnx").write_bytes(b"\x08\x07")
    monkeypatch.chdir(tmp_path)
    assert fetch(local("m.onnx"), cache=tmp_path) == tmp_path / "m.onnx"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file"),
        (b"", "found an empty file"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "found a Git LFS pointer"),
    ],
)
def test_a_local_file_that_is_no_model(tmp_path: Path, content: bytes | None, message: str) -> None:
    file = tmp_path / "m.onnx"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SourceError, match=message) as caught:
        fetch(local(file), cache=tmp_path)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="found a folder"):
        fetch(local(tmp_path), cache=tmp_path)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root reads every file")
def test_an_unreadable_file(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"\x08\x07")
    file.chmod(0)
    with pytest.raises(SourceError, match="cannot be read"):
        fetch(local(file), cache=tmp_path)


def test_a_local_file_with_a_recorded_hash_is_held_to_it(tmp_path: Path) -> None:
    file = tmp_path / "m.onnx"
    file.write_bytes(b"\x08\x07")
    with pytest.raises(SourceError, match="expected sha256 0000"):
        fetch(local(file, sha256="0" * 64), cache=tmp_path)


def test_an_unknown_route_lists_the_known_ones(tmp_path: Path) -> None:
    model = Model(collection="x", path="m", source={"type": "ftp"})
    with pytest.raises(SourceError, match=r"x/m: unknown source type 'ftp': choose from .*local.*skeleton"):
        fetch(model, cache=tmp_path)


def test_the_default_cache_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_MODELS_CACHE", str(tmp_path / "own"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert sources.default_cache() == tmp_path / "own"
    monkeypatch.delenv("ONNX_MODELS_CACHE")
    assert sources.default_cache() == tmp_path / "xdg" / "onnx_models"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert sources.default_cache() == tmp_path / "home" / ".cache" / "onnx_models"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """The cache with one real skeleton in it."""
    cache = tmp_path_factory.mktemp("cache")
    return cache, fetch(SKELETONS["squeezenet"], cache=cache, offline=True)


def test_a_skeleton_is_the_recorded_file(made: Made) -> None:
    _, path = made
    record = SKELETONS["squeezenet"]
    assert sha256_of(path) == record.sha256
    assert path.stat().st_size == record.bytes
    onnx.checker.check_model(str(path), full_check=True)
    beside = {file.name for file in path.parent.iterdir()}
    assert beside == {path.name, f"{path.name}.verified"}, "scratch files stay behind"


def test_a_second_fetch_makes_nothing(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    cache, path = made
    monkeypatch.setattr(sys, "executable", "/nonexistent")
    before = path.stat()
    assert fetch(SKELETONS["squeezenet"], cache=cache) == path
    assert path.stat() == before


def test_a_touched_file_is_hashed_again_and_kept(made: Made) -> None:
    cache, path = made
    os.utime(path, ns=(1, 1))
    assert fetch(SKELETONS["squeezenet"], cache=cache) == path
    assert path.stat().st_mtime_ns == 1


def test_a_damaged_skeleton_is_made_again(made: Made) -> None:
    cache, path = made
    path.write_bytes(b"x" * path.stat().st_size)
    fetch(SKELETONS["squeezenet"], cache=cache)
    assert sha256_of(path) == SKELETONS["squeezenet"].sha256


@pytest.mark.parametrize(
    ("changes", "source", "message"),
    [
        ({"sha256": "0" * 64}, {}, f"expected sha256 {'0' * 64}, found "),
        ({"bytes": 7}, {}, "expected 7 bytes, found "),
        ({}, {"member_sha256": "0" * 64}, "install the onnx package of the lock file"),
        ({}, {"member": "light_none.onnx"}, "is missing: install an onnx package"),
        ({}, {"logits": 1.0}, "expected sha256 "),
    ],
)
def test_a_skeleton_that_is_not_the_recorded_one(
    tmp_path: Path, changes: dict[str, Any], source: dict[str, Any], message: str
) -> None:
    record = SKELETONS["squeezenet"]
    wrong = replace(record, source={**record.source, **source}, **changes)
    with pytest.raises(SourceError, match=message) as caught:
        fetch(wrong, cache=tmp_path)
    assert "\n" not in str(caught.value)
    assert [file.name for file in tmp_path.rglob("*") if file.is_file()] == ["skeletons_squeezenet.lock"]


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    with pytest.raises(SourceError, match=r"cache .*cannot be written .*ONNX_MODELS_CACHE"):
        fetch(SKELETONS["squeezenet"], cache=tmp_path / "cache")


def test_a_file_is_never_seen_half_written(tmp_path: Path) -> None:
    record = SKELETONS["squeezenet"]

    def interrupted(target: Path) -> None:
        target.write_bytes(b"half")
        raise KeyboardInterrupt

    with contextlib.suppress(KeyboardInterrupt):
        keep(record, tmp_path, interrupted)
    assert not place(record, tmp_path).exists()
    assert [file.suffix for file in tmp_path.rglob("*") if file.is_file()] == [".lock"]


def test_a_second_worker_waits_for_the_first(tmp_path: Path) -> None:
    """The child tries the lock while this process holds it, and gets it once it is free."""
    script = (
        "import sys; from pathlib import Path; from onnx_models import cache\n"
        "print('trying', flush=True)\n"
        "with cache.locked(Path(sys.argv[1]), 'a/b'): print((Path(sys.argv[1]) / 'done').exists())"
    )
    with locked(tmp_path, "a/b"):
        child = subprocess.Popen(
            [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "trying\n"
        (tmp_path / "done").touch()
    assert child.communicate()[0] == "True\n"


def test_a_lock_held_too_long_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("onnx_models.cache.LOCK_SECONDS", 0.0)
    with (
        locked(tmp_path, "a/b"),
        pytest.raises(SourceError, match=r"another process has been at a/b .*remove .*a_b\.lock"),
        locked(tmp_path, "a/b"),
    ):
        pass


def test_the_command_fetches_by_id(made: Made) -> None:
    cache, path = made
    command = ["fetch", "skeletons/squeezenet", "--cache-dir", str(cache)]
    ended = CliRunner().invoke(main, command)
    assert (ended.exit_code, path.is_file()) == (0, True), ended.output
    assert ended.output.strip() == "1 models selected, 0 files failed"
    ended = CliRunner().invoke(main, ["fetch", "skeletons/none"])
    assert ended.exit_code == 4
    assert ended.output.startswith("error: no model fits")


def test_the_catalogue_has_all_of_both_collections() -> None:
    light = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    assert {f"light_{name}.onnx" for name in SKELETONS} == {file.name for file in light.glob("*.onnx")}
    assert len(WHEELS) == 16


@pytest.mark.parametrize("model", SKELETONS.values(), ids=list(SKELETONS))
def test_a_skeleton_record_fits_the_installed_package(model: Model) -> None:
    assert sources._light_model(model).name == model.source["member"]
    assert (len(model.sha256), model.bytes > 0, len(model.inputs)) == (64, True, 1)


@pytest.mark.parametrize("model", WHEELS.values(), ids=list(WHEELS))
def test_a_wheel_record_is_complete(model: Model) -> None:
    assert {"package", "version", "member"} <= set(model.source)
    assert (len(model.sha256), model.bytes > 0) == (64, True)
    assert "wheel_sha256" in model.source or model.source["package"] == "magika"
    symbols = {size for fact in model.inputs for size in fact.shape or () if isinstance(size, str)}
    assert symbols == set(model.dims)
    assert model.notes[0].startswith("Licence: ")


def test_a_wheel_is_kept_exactly_where_it_is_shared() -> None:
    packages = [model.source["package"] for model in WHEELS.values()]
    for model in WHEELS.values():
        assert model.source.get("shared", False) == (packages.count(model.source["package"]) > 1), model.id
