"""Fixtures of the suite's own tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_models.meta_tests.sandbox import Sandbox


@pytest.fixture
def sandbox(tmp_path: Path) -> Iterator[Sandbox]:
    """A folder with working fake tools and `tiny.onnx`."""
    made = Sandbox(tmp_path)
    made.tools()
    made.save("tiny.onnx")
    yield made
    made.clear()
