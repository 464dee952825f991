"""Writes pages in a second process while the build makes the others: a large catalogue has thousands.

The process is a fork: handing the drafts over as pickles took as long as writing the pages. What other
threads hold at that moment does no harm, for the child fills in templates, writes files and ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from onnx_models.dashboard.render import Draft, finish
from onnx_models.dashboard.site import Page, Put, Writer
from onnx_models.outcomes import SuiteError

MANY = 300
"""Pages from which on a second process pays."""


@contextmanager
def written(
    drafts: Sequence[Draft], everywhere: Mapping[str, Any], folder: Path
) -> Iterator[Iterator[Page | Put]]:
    """Begin to write pages; what is yielded waits for them, or is the pages themselves where they are few.

    Args:
        drafts: the pages.
        everywhere: what each page says besides its own.
        folder: the site.

    Raises:
        SuiteError: a page cannot be written, or the process was killed; told when it is waited for.
    """
    if len(drafts) < MANY or sys.platform != "linux":
        yield (finish(draft, everywhere) for draft in drafts)
        return
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    ends = receiver, sender
    child = fork.Process(target=_work, args=(ends, drafts, everywhere, folder), daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the fork, from Python 3.12 on
        child.start()
    sender.close()
    try:
        yield _received(receiver, folder)
    finally:
        receiver.close()
        child.terminate()
        child.join()


def _received(receiver: Connection, folder: Path) -> Iterator[Put]:
    try:
        done = receiver.recv()
    except EOFError:
        raise SuiteError(f"{folder}: the process that wrote pages was killed; build again") from None
    if isinstance(done, SuiteError):
        raise done
    yield from done


def _work(
    ends: tuple[Connection, Connection],
    drafts: Sequence[Draft],
    everywhere: Mapping[str, Any],
    folder: Path,
) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the build's, which ends this process too
    receiver, sender = ends
    receiver.close()  # or sending would wait for ever, once the build was killed
    build = os.getppid()
    done = []
    try:
        writer = Writer(folder)
        for draft in drafts:
            if os.getppid() != build:  # killed; another build may be writing here by now
                return
            done.append(writer.put(finish(draft, everywhere)))
        sender.send(done)
    except SuiteError as error:
        sender.send(error)
