"""Measure the matrix of a large site in headless Chromium: first paint, filters and sorting.

    python benchmarks/browser.py SITE [--rounds 7]

SITE is a site of many models, such as benchmarks/dashboard.py builds. Prints milliseconds, the median
of some rounds, each in a fresh page.
"""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from statistics import median

from playwright.sync_api import Page, sync_playwright

PAINT = "() => performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? NaN"

# The handler runs at once; reading the layout makes the browser do its part before the clock stops.
TIMED = """([selector, value, event]) => {
    const control = document.querySelector(selector), start = performance.now();
    if (event === 'click') control.click();
    else { control.value = value; control.dispatchEvent(new Event('input', {bubbles: true})); }
    document.body.offsetHeight;
    return performance.now() - start;
}"""

STEPS: dict[str, tuple[str, str, str]] = {
    "filter by text": ('form [name="text"]', "resnet", "input"),
    "filter by state": ('form [name="state"]', "failed", "input"),
    "clear the filters": ('form [name="state"]', "", "input"),
    "clear the text": ('form [name="text"]', "", "input"),
    "sort by model": ("#matrix th button", "", "click"),
}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("site", type=Path)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    times: dict[str, list[float]] = {"first paint": [], **{name: [] for name in STEPS}}
    with sync_playwright() as playwright:
        found = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        for _ in range(options.rounds):
            page = browser.new_page(viewport={"width": 1280, "height": 800})
            page.goto((options.site / "matrix.html").absolute().as_uri())
            times["first paint"].append(page.evaluate(PAINT))
            measure(page, lambda name, value: times[name].append(value))
            rows = page.locator("#matrix tbody tr").count()
            page.close()
        browser.close()
    print(f"matrix of {rows} models, median of {options.rounds}")
    for name, values in times.items():
        print(f"{name:<20} {median(values):7.0f} ms   ({min(values):.0f} to {max(values):.0f})")


def measure(page: Page, keep: Callable[[str, float], None]) -> None:
    """Time each step in one page."""
    for name, step in STEPS.items():
        keep(name, page.evaluate(TIMED, list(step)))


if __name__ == "__main__":
    main()
