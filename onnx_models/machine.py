"""Shares a machine between the workers of a run, so that one command can have it to itself.

A tool that ran out of time or memory beside others says little; it is run
again alone before it counts.
"""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def shared(root: Path, *, alone: bool = False) -> Iterator[None]:
    """Hold the machine with others, or alone: then nobody else of the run holds it.

    Args:
        root: the artifacts folder, which the workers of a run have in common.
        alone: wait until everybody has let go, and keep everybody out.
    """
    # Two locks: whoever waits to be alone holds the gate, so that newcomers cannot starve it.
    with _open(root / ".machine-gate.lock") as gate, _open(root / ".machine.lock") as machine:
        fcntl.flock(gate, fcntl.LOCK_EX)
        fcntl.flock(machine, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        fcntl.flock(gate, fcntl.LOCK_UN)
        yield


def _open(path: Path) -> IO[bytes]:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("ab")
