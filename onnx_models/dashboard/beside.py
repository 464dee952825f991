"""Writes pages in a second process while the build makes the others: a large catalogue has thousands.

The process is a fork: handing the drafts over as pickles took as long as writing the pages.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from onnx_models import tools
from onnx_models.dashboard.render import Draft, finish
from onnx_models.dashboard.site import Page, Put, Writer

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

    def put() -> Iterator[Put]:
        writer = Writer(folder)
        return (writer.put(finish(draft, everywhere)) for draft in drafts)

    with tools.forked(put, f"{folder}: writing pages") as pages:
        yield pages
