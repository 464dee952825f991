"""Reads TOML, and turns whatever can be wrong with a file into one line for its author."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from onnx_models.outcomes import UsageError

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


class TomlError(UsageError):
    """Text that is no TOML."""


def parse(text: str, where: object) -> dict[str, Any]:
    """The tables of a TOML text.

    Args:
        text: the TOML.
        where: the file, for the message.

    Raises:
        TomlError: it is not well-formed, is nested too deeply, or holds a number that no program can use.
    """
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise TomlError(f"{where}: not TOML ({error}); correct it there") from None
    except RecursionError:
        raise TomlError(f"{where}: not TOML (nested too deeply); correct it there") from None
    except (ValueError, OverflowError) as error:  # a number of more digits than Python converts
        raise TomlError(f"{where}: not TOML ({str(error).partition(';')[0]}); correct it there") from None


def read(file: Path) -> dict[str, Any]:
    """The tables of a TOML file.

    Raises:
        TomlError: it cannot be read, or as `parse`.
    """
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise TomlError(f"{file}: not TOML (byte {error.start}: {error.reason}); save it as UTF-8") from None
    except OSError as error:
        raise TomlError(f"{file}: not readable ({error.strerror}); name a TOML file") from None
    return parse(text, file)


def read_tables(file: Path, name: str) -> list[dict[str, Any]]:
    """The `[[name]]` tables of a file.

    Raises:
        TomlError: as `read`, or the file has something else under that name.
    """
    rows = read(file).get(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise TomlError(f"{file}: {name!r} must be [[{name}]] tables")
    return rows
