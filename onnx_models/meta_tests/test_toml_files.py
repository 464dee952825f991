"""Whatever is wrong with a TOML file is one line for its author, whichever part of the suite reads it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from onnx_models import devices, lists, routes, signature, toml_files
from onnx_models.outcomes import Kind, Stage, UsageError

HOSTILE = {
    "nested": "a = " + "[" * 5000 + "]" * 5000,
    "long-number": "a = " + "9" * 5000,
    "unfinished": "a = [",
    "not-utf8": b"a = '\xff'",
}

READERS: dict[str, Callable[[Path], object]] = {
    "list": lambda file: lists.read(file, today=date(2026, 1, 1)),
    "device": lambda file: devices.load(str(file)),
    "routes": lambda file: routes._read(file),
    "signatures": lambda file: signature.signature(Stage.RUN, Kind.ERROR, "", rules=file),
    "tables": lambda file: toml_files.read_tables(file, "a"),
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
@pytest.mark.parametrize("read", READERS.values(), ids=READERS)
def test_every_reader_refuses_it_in_one_line(
    tmp_path: Path, read: Callable[[Path], object], text: str | bytes
) -> None:
    file = tmp_path / "it.toml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=r"it\.toml.*not TOML") as caught:
        read(file)
    assert "\n" not in str(caught.value)


def test_tables_must_be_tables(tmp_path: Path) -> None:
    file = tmp_path / "it.toml"
    file.write_text("a = 3")
    with pytest.raises(UsageError, match=r"'a' must be \[\[a\]\] tables"):
        toml_files.read_tables(file, "a")
