"""The store and its upkeep: sound files only, the longest unused go first, never one in use."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from onnx_models.cache import SourceError
from onnx_models.files import describe, size_text
from onnx_models.outcomes import UsageError
from onnx_models.store import CorruptFile, Store
from onnx_models.upkeep import Entry, entries, parse_size, prune, table, verify


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(root=tmp_path / "cache")


def put(store: Store, content: bytes, name: str, *, age: float = 1000.0) -> str:
    """Store a file as a download does, last used `age` seconds ago."""
    sha256 = hashlib.sha256(content).hexdigest()
    with store.claim(sha256):
        store.part(sha256).write_bytes(content)
        file = store.admit(sha256, size=len(content), name=name, route="test")
    stamp = time.time() - age
    os.utime(file.with_name(f"{sha256}.json"), (stamp, stamp))
    return sha256


def names(found: tuple[Entry, ...]) -> list[str]:
    return [entry.name for entry in found]


def test_ls_lists_the_longest_unused_first(store: Store) -> None:
    put(store, b"a" * 10, "old", age=300)
    put(store, b"b" * 20, "new", age=100)
    put(store, b"c" * 30, "older", age=500)
    found = entries(store.root)
    assert names(found) == ["older", "old", "new"]
    assert found[0].as_json()["bytes"] == 30
    store.find(found[0].sha256)
    assert names(entries(store.root)) == ["old", "new", "older"]
    console = Console(width=120)
    with console.capture() as capture:
        console.print(table(found))
    assert "3 files" in capture.get()
    assert "60 B" in capture.get()


def test_an_empty_or_absent_cache_has_no_entries(store: Store) -> None:
    assert entries(store.root) == ()
    assert prune(store.root, 0).removed == ()
    assert verify(store.root) == ()
    assert not store.root.exists()


def test_prune_removes_the_longest_unused_until_the_size_fits(store: Store) -> None:
    for age, name in ((300, "b"), (100, "c"), (500, "a")):
        put(store, name.encode() * 100, name, age=age)
    done = prune(store.root, 150)
    assert names(done.removed) == ["a", "b"]
    assert (done.bytes_before, done.bytes_after) == (300, 100)
    assert names(entries(store.root)) == ["c"]
    assert str(done) == "removed 2 files, 200 B; 100 B kept"
    assert prune(store.root, 150).removed == ()


def test_prune_spares_what_another_process_uses(store: Store) -> None:
    sha256 = put(store, b"x", "used")
    code = f"""
import pathlib, sys
from onnx_models.store import Store
with Store(root=pathlib.Path({str(store.root)!r})).lease({sha256!r}):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        done = prune(store.root, 0)
        assert (names(done.removed), names(done.spared)) == ([], ["used"])
        assert entries(store.root)[0].in_use
        process.kill()
        process.wait(10)
    assert names(prune(store.root, 0).removed) == ["used"]


def test_prune_spares_what_is_being_fetched_and_drops_what_is_not(store: Store) -> None:
    busy, idle = "1" * 64, "2" * 64
    with store.claim(busy), store.claim(idle):
        store.part(busy).write_bytes(b"half")
        store.part(idle).write_bytes(b"half")
    with store.claim(busy):
        prune(store.root, 0)
        assert store.part(busy).exists()
    assert not store.part(idle).exists()


def test_prune_spares_what_was_used_a_moment_ago(store: Store) -> None:
    put(store, b"x", "fresh", age=5)
    assert names(prune(store.root, 0).spared) == ["fresh"]
    assert names(prune(store.root, 0, grace=0).removed) == ["fresh"]


def test_two_leases_may_hold_one_file(store: Store) -> None:
    sha256 = put(store, b"x", "shared")
    with store.lease(sha256):
        with store.lease(sha256):
            assert store.in_use(sha256)
        assert store.in_use(sha256)
    assert not store.in_use(sha256)


def test_verify_finds_and_removes_what_has_rotted(store: Store) -> None:
    put(store, b"good", "good")
    rotten, short = put(store, b"rotten", "rotten"), put(store, b"short", "short")
    store.file(rotten).write_bytes(b"ROTTEN")
    store.file(short).write_bytes(b"s")
    found = {entry.name: problem for entry, problem in verify(store.root)}
    assert set(found) == {"rotten", "short"}
    assert found["short"] == "1 bytes instead of 5 bytes"
    assert found["rotten"].endswith(f"instead of sha256 {rotten[:12]}…")
    assert len(entries(store.root)) == 3
    verify(store.root, remove=True)
    assert names(entries(store.root)) == ["good"]


def test_a_wrong_file_gets_no_name(store: Store) -> None:
    sha256 = hashlib.sha256(b"right").hexdigest()
    for content, words in ((b"wrong", "sha256 .* instead of"), (b"longer", "6 bytes instead of 5")):
        with store.claim(sha256):
            store.part(sha256).write_bytes(content)
            with pytest.raises(CorruptFile, match=words):
                store.admit(sha256, size=5, name="x", route="test")
        assert store.find(sha256) is None
        assert not store.part(sha256).exists()


def test_files_made_by_the_suite_are_listed_and_verified_but_kept(store: Store) -> None:
    digest = hashlib.sha256(b"model").hexdigest()
    file = store.root / "wheels" / "magika" / f"model-{digest[:12]}.onnx"
    file.parent.mkdir(parents=True)
    file.write_bytes(b"model")
    file.with_name(f"{file.name}.verified").write_text("5 0")
    assert names(entries(store.root)) == ["wheels/magika/model"]
    assert verify(store.root) == ()
    assert prune(store.root, 0, grace=0).removed == ()
    file.write_bytes(b"MODEL")
    assert names(tuple(entry for entry, _ in verify(store.root))) == ["wheels/magika/model"]


def test_a_hash_is_never_a_path(store: Store) -> None:
    for wrong in ("../../x", "A" * 64, "", "a" * 63):
        with pytest.raises(SourceError, match="is no sha256"):
            store.file(wrong)


@pytest.mark.parametrize(
    ("text", "size"), [("50GB", 50 * 10**9), ("1.5 tb", 1.5e12), ("200M", 200 * 10**6), ("7", 7), ("7b", 7)]
)
def test_sizes_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", "1e3", "5XB", "1 000"])
def test_wrong_sizes_are_usage_errors(text: str) -> None:
    with pytest.raises(UsageError, match="is no size: write it like 50GB"):
        parse_size(text)


def test_sizes_are_written_for_people() -> None:
    assert [size_text(n) for n in (0, 999, 1500, 2 * 10**9)] == ["0 B", "999 B", "1.5 kB", "2.0 GB"]


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
        (b"\n <!DOCTYPE HTML><title>Blocked</title>", "an HTML page titled 'Blocked'"),
        (b"<?xml version='1.0'?><Error>", "an HTML page"),
        (b"\x08\x07\x12\x07pytorch", ""),
        (b"", ""),
    ],
)
def test_what_came_instead_is_named(head: bytes, words: str) -> None:
    assert describe(head).startswith(words)
    assert bool(describe(head)) == bool(words)
