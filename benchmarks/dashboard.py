"""Measure the dashboard on a year of nightly runs: 2,400 models x 8 devices x 365 runs unless told otherwise.

    python benchmarks/dashboard.py [--runs-dir DIR] [--models N] [--devices N] [--days N]

DIR keeps the synthetic history for the next time (1.2 GB; making it takes 15 CPU minutes). Prints wall and
CPU seconds and peak memory of each step, each a process of its own: converting all run files, building the
site from the converted, and bringing both up to date after one more run; then the sizes of the pages.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PAGES = ("index.html", "matrix.html", "failures.html", "operators.html", "compare.html", "performance.html")

GENERATOR = Path(__file__).parents[1] / "scripts" / "synthetic_history.py"


def measure(words: str, *command: str) -> float:
    """Run a command, print what it took, return the wall seconds."""
    start = time.perf_counter()
    process = subprocess.Popen([sys.executable, *command], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - start
    if process.returncode:
        raise SystemExit(f"{words}: ended with {process.returncode}")
    # Linux counts ru_maxrss in kB; pages of the run files that were read do not belong to it.
    cpu, peak = used.ru_utime + used.ru_stime, used.ru_maxrss / 1e6
    print(f"{words:<44} {seconds:7.1f} s  {cpu:7.1f} CPU-s  {peak:5.2f} GB", flush=True)
    return seconds


def main() -> None:
    """Make the history where it is not there, then measure."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--runs-dir", type=Path, help="where the synthetic history is, or will be kept")
    for name, default in (("models", 2400), ("devices", 8), ("days", 365)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        made = options.runs_dir or Path(temporary, "made")
        size = [f"--{name}={getattr(options, name)}" for name in ("models", "devices")]
        if not made.is_dir() or len(list(made.glob("*.gz"))) < options.days:
            measure("making the history", str(GENERATOR), str(made), *size, f"--runs={options.days}")
        compare(sorted(made.glob("*.gz"))[: options.days], Path(temporary))


def compare(files: list[Path], folder: Path) -> None:
    """All but the last run as a whole, then the last one as news."""
    runs, site = folder / "runs", folder / "site"
    runs.mkdir()
    for file in files[:-1]:
        (runs / file.name).symlink_to(file.resolve())
    suite = ("-m", "onnx_models")
    measure("importing alone", *suite, "--version")
    whole = measure(f"converting {len(files) - 1} runs", *suite, "history", str(runs), "--json")
    whole += measure("building the site from the converted", *suite, "dashboard", str(runs), "-o", str(site))
    print(f"{'both: a site from nothing but run files':<44} {whole:7.1f} s")
    measure("building again, nothing new", *suite, "dashboard", str(runs), "-o", str(site))
    (runs / files[-1].name).symlink_to(files[-1].resolve())
    measure("one more run: converting it and building", *suite, "dashboard", str(runs), "-o", str(site))
    pages = [page for page in site.rglob("*") if page.is_file()]
    total = sum(page.stat().st_size for page in pages)
    print(f"{len(pages)} files, {total / 1e6:.0f} MB; database {database(runs) / 1e6:.0f} MB")
    largest = max((page for page in pages if page.suffix == ".html"), key=lambda page: page.stat().st_size)
    for page in (*(site / name for name in PAGES), largest):
        print(f"  {page.relative_to(site)!s:<42} {page.stat().st_size / 1e3:7.0f} kB")


def database(runs: Path) -> int:
    """Bytes of what was derived."""
    return sum(file.stat().st_size for file in (runs / ".derived").rglob("*") if file.is_file())


if __name__ == "__main__":
    main()
