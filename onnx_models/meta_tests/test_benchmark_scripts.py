"""The scripts that measure can be asked what they do, and write nothing over what was measured."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from onnx_models.meta_tests.sandbox import PACKAGE

FOLDER = PACKAGE.parent / "benchmarks"

pytestmark = pytest.mark.skipif(
    not FOLDER.is_dir(), reason="needs a checkout: the package is installed without one"
)

DOCUMENT = PACKAGE.parent / "docs" / "numerics.md"


def run(script: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    words = [sys.executable, FOLDER / script, *arguments]
    return subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)


@pytest.mark.parametrize("script", ["browser", "dashboard", "memory", "numerics_table", "planted_faults"])
def test_help_is_help(script: str) -> None:
    before = DOCUMENT.read_bytes()
    done = run(f"{script}.py", "--help")
    assert (done.returncode, done.stdout.startswith("usage: ")) == (0, True), done.stderr
    assert DOCUMENT.read_bytes() == before


def test_a_record_without_a_comparison_is_no_reason_to_empty_the_table(tmp_path: Path) -> None:
    before = DOCUMENT.read_bytes()
    assert b"| cpu |" in before
    (tmp_path / "record.jsonl").write_text('{"type": "header"}\n', encoding="utf-8")
    done = run("numerics_table.py", tmp_path, tmp_path / "record.jsonl")
    assert done.returncode == 2
    assert "no case of these records was compared" in done.stderr
    assert DOCUMENT.read_bytes() == before
