"""Pages written by a second process are those that one process writes, and its faults are the build's."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest

from onnx_models.dashboard import beside, feeds, model_pages
from onnx_models.dashboard.build import build
from onnx_models.dashboard.render import Draft, finish
from onnx_models.dashboard.site import Page
from onnx_models.meta_tests.histories import BEGIN, case, run, save
from onnx_models.outcomes import SuiteError, UsageError

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere one process writes all pages")

NOW = BEGIN + timedelta(days=1)

Make = Callable[[Path], None]


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Make]:
    """Builds a site of six models, with a second process from two models on; it is gone afterwards."""
    save(tmp_path / "runs", run([case(f"wheels/{name}") for name in "abcdef"]))
    monkeypatch.setattr(beside, "MANY", 2)

    def made(site: Path) -> None:
        build(tmp_path / "runs", site, now=NOW)

    yield made
    assert not multiprocessing.active_children()


def contents(site: Path) -> dict[str, bytes]:
    return {str(file.relative_to(site)): file.read_bytes() for file in site.rglob("*") if file.is_file()}


def test_two_processes_write_what_one_writes(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writers: list[int] = []

    def noted(draft: Draft, everywhere: Mapping[str, Any]) -> Page:
        """Only this process can append here."""
        writers.append(os.getpid())
        return finish(draft, everywhere)

    monkeypatch.setattr(beside, "finish", noted)
    make(tmp_path / "two")
    assert writers == []
    monkeypatch.setattr(beside, "MANY", 7)
    make(tmp_path / "one")
    assert len(writers) == 6
    assert contents(tmp_path / "two") == contents(tmp_path / "one")
    assert (tmp_path / "one" / "models" / "wheels" / "f.html").is_file()


def test_what_the_second_process_refuses_the_build_refuses(make: Make, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    make(tmp_path / "site")
    models = tmp_path / "site" / "models"
    models.rename(tmp_path / "moved")
    models.symlink_to(outside)
    with pytest.raises(UsageError, match="a link that leads out of the site"):
        make(tmp_path / "site")
    assert list(outside.iterdir()) == []


def test_a_process_that_is_killed_is_told(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(beside, "finish", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    with pytest.raises(SuiteError, match="writing pages: the process ended without an answer; try again"):
        make(tmp_path / "site")


@pytest.mark.parametrize("error", [SuiteError("full"), KeyboardInterrupt()])
def test_a_build_that_ends_early_leaves_no_process(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    def fail(site: object) -> list[Page]:
        raise error

    monkeypatch.setattr(feeds, "pages", fail)
    with pytest.raises(type(error)):
        make(tmp_path / "site")


def test_a_draft_that_cannot_be_filled_in_is_no_silent_gap(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    drafts = model_pages.drafts
    bad = Draft(template="no.html", path="x", values={})
    monkeypatch.setattr(model_pages, "drafts", lambda site: [*drafts(site), bad])
    with pytest.raises(SuiteError, match="try again"):
        make(tmp_path / "site")
    assert "no.html" in capfd.readouterr().err


def test_nothing_is_written_for_a_build_that_was_killed(tmp_path: Path) -> None:
    """The third page takes until a kill -9 of the build; no other may appear then, and no process stay."""
    save(tmp_path / "runs", run([case(f"wheels/{name}") for name in "abcdefgh"]))
    script = f"""
import os, signal, time
from pathlib import Path
from onnx_models.dashboard import beside, build, feeds
finish, build_process, made = beside.finish, os.getpid(), []
def slow(draft, everywhere):
    made.append(draft)
    print(os.getpid(), flush=True)
    while len(made) == 3 and os.getppid() == build_process:
        time.sleep(0.05)
    return finish(draft, everywhere)
def die(_):
    while len(list(Path({str(tmp_path / "site")!r}, "models").rglob("*.html"))) < 2:
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGKILL)
beside.finish, beside.MANY, feeds.pages = slow, 2, die
build.build(Path({str(tmp_path / "runs")!r}), Path({str(tmp_path / "site")!r}))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == -signal.SIGKILL
    second = int(done.stdout.split()[0])
    for _ in range(100):
        if not psutil.pid_exists(second):
            break
        time.sleep(0.1)
    assert not psutil.pid_exists(second)
    assert len(list((tmp_path / "site" / "models").rglob("*.html"))) == 3
