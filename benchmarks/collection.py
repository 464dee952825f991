"""Measure what it costs to select from the whole model zoo on every device; nothing is run or fetched.

    python benchmarks/collection.py [--profile]

Prints CPU seconds, which other load on the machine changes less than the wall
time: of the imports, of making the cases, and of pytest's own collection.
"""

from __future__ import annotations

import contextlib
import cProfile
import io
import pstats
import sys
from collections.abc import Iterator, Sequence
from time import process_time

import pytest

COLLECTIONS = ("zoo", "zoo-turnkey")
DEVICES = ("cpu", "cpu-generic", "vulkan", "cuda", "hip", "metal", "vulkan-rdna3")


class Clock:
    """A pytest plugin that notes the CPU time at the ends of the phases."""

    def __init__(self) -> None:
        self.times = [process_time()]
        self.items = 0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_sessionstart(self) -> Iterator[None]:
        """The imports are over; the plugin makes the cases in this hook."""
        self.times.append(process_time())
        yield
        self.times.append(process_time())

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Every case is an item."""
        self.times.append(process_time())
        self.items = len(session.items)


def main(argv: Sequence[str]) -> int:
    """Collect once, print the figures."""
    words = [word for name in COLLECTIONS for word in ("--collection", name)]
    words += [word for name in DEVICES for word in ("--device", name)]
    clock, profile = Clock(), cProfile.Profile() if "--profile" in argv else None
    with contextlib.redirect_stdout(io.StringIO()), profile or contextlib.nullcontext():
        code = pytest.main(["--collect-only", "-qq", "-p", "no:cacheprovider", *words], plugins=[clock])
    if code:
        print(f"pytest ended with {code}; run it without this script to see why", file=sys.stderr)
        return int(code)
    start, imported, made, collected = clock.times
    print(
        f"{clock.items} items: {collected - imported:.2f} CPU-s "
        f"({made - imported:.2f} for the cases, {collected - made:.2f} for pytest's items), "
        f"after {imported - start:.2f} of imports"
    )
    if profile:
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
