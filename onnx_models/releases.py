"""One selection under several releases: a pytest, and a record, for each."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from onnx_models import environments, tools
from onnx_models.outcomes import UsageError

RAN = (0, 1)
"""pytest's exit codes of a run that came to its end: all as expected, or not."""


NOTHING = 5
"""pytest's exit code of a run for which nothing was selected."""


def run_each(
    versions: Sequence[str],
    arguments: Iterable[str | Path],
    record: str | None = None,
    junit: str | None = None,
) -> int:
    """Run pytest once per release with the other arguments unchanged.

    Args:
        versions: releases, in the order in which they run.
        arguments: what pytest was called with; its `--iree` and the files named below are taken out.
        record: `--record` of the call, given to each run with the release before its suffix.
        junit: `--junitxml` of the call, likewise: one file of several runs would be that of the last.

    Returns:
        The highest exit code.

    Raises:
        UsageError: a version is none, or is there twice.
    """
    names = distinct(versions)
    others = list(without(arguments, "--iree", "--record", "--junitxml", "--junit-xml"))
    codes = []
    for name in names:
        print(f"\n--- IREE {name}", flush=True)
        own = [f"--junitxml={record_of(Path(junit), name)}"] if junit else []
        codes.append(run_one(name, [*others, *own], record_of(Path(record), name) if record else None))
    return max(codes)


def distinct(versions: Sequence[str]) -> list[str]:
    """The releases by the names of their environments, in the order given.

    Raises:
        UsageError: one is no version, or is there twice.
    """
    names = [environments.name_of(version) for version in versions]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(f"--iree {twice} is given twice")
    return names


def run_one(name: str, arguments: Iterable[str], record: Path | None) -> int:
    """Run pytest under one release; its exit code."""
    home = str(Path(__file__).parents[1])
    command = [sys.executable, "-m", "pytest", "--iree", name, *arguments]
    if record is not None:
        command.append(f"--record={record}")
    return tools.run_attached(command, env=tools.importable(home))


def record_of(record: Path, name: str) -> Path:
    """`runs/a.jsonl` of release 3.9.0: `runs/a-3.9.0.jsonl`."""
    return record.with_name(f"{record.stem}-{name}{record.suffix}")


def without(arguments: Iterable[str | Path], *options: str) -> Iterator[str]:
    """Command-line words less some options that take a value."""
    words = iter(map(str, arguments))
    for word in words:
        if word in options:
            next(words, None)
        elif not word.startswith(tuple(f"{option}=" for option in options)):
            yield word
