"""Templates, and what every page has: the way to the others, words for states, numbers with units."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache, cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from onnx_models.catalog import Model
from onnx_models.dashboard.site import Page, file_name
from onnx_models.dashboard.snapshot import Result, Snapshot, Subject
from onnx_models.dashboard.timeline import Timeline
from onnx_models.history import History
from onnx_models.outcomes import UsageError

HERE = Path(__file__).parent

NAVIGATION = (
    ("index.html", "Overview"),
    ("matrix.html", "Matrix"),
    ("failures.html", "Failures"),
    ("operators.html", "Operators"),
    ("compare.html", "Compare"),
    ("performance.html", "Performance"),
    ("flakes.html", "Flakes"),
    ("about.html", "About"),
)

STATE_WORDS = {
    "passed": "passed, and could have failed",
    "vacuous": "passed, but could not have failed",
    "failed": "failed",
    "skipped": "skipped",
    "error": "error of the machine or the suite",
    "missing": "missing: known, but not run under this release",
}

_STAGE_MARKS = {"import": "I", "compile": "C", "run": "R", "compare": "M"}
_STATE_MARKS = {"passed": "✓", "vacuous": "○", "skipped": "-", "error": "!", "missing": "?"}


@dataclass(frozen=True, kw_only=True)
class Site:
    """What the pages are made of.

    Attributes:
        history: the tables.
        snapshot: the state of things now.
        lines: by case id, its newest record line, trimmed.
        timeline: what each case did in each run.
        models: the catalogue's records by id, of the models that are in it.
        base_url: where the site will be, for the feed and the badges; may be empty.
        notices: what to know before trusting any number.
    """

    history: History
    snapshot: Snapshot
    lines: Mapping[str, Mapping[str, Any]]
    timeline: Timeline
    models: Mapping[str, Model]
    base_url: str
    notices: Sequence[str]

    @cached_property
    def by_model(self) -> dict[str, list[Subject]]:
        """The cases of each model, `collection/path`, in order."""
        found: dict[str, list[Subject]] = {}
        for subject in self.snapshot.subjects:
            found.setdefault(subject.model_id, []).append(subject)
        return {name: sorted(cases, key=lambda case: case.device) for name, cases in sorted(found.items())}

    def operators(self, cases: Sequence[Subject]) -> Mapping[str, int]:
        """A model's operators and their counts, by the first record that has them, else by the catalogue."""
        for each in cases:
            found: Mapping[str, int] = self.lines.get(each.id, {}).get("operators") or {}
            if found:
                return found
        model = self.models.get(cases[0].model_id)
        return model.operators if model else {}

    @cached_property
    def everywhere(self) -> Mapping[str, Any]:
        """What each page says besides its own."""
        return {"newest": self.snapshot.newest, "notices": self.notices}

    def page(self, template: str, path: str, **values: Any) -> Page:
        """A page from a template."""
        return finish(Draft(template=template, path=path, values=values), self.everywhere)


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """A page before its template is filled in: its path, and the values."""

    template: str
    path: str
    values: Mapping[str, Any]


def finish(draft: Draft, everywhere: Mapping[str, Any]) -> Page:
    """Fill in the template."""
    template = environment().get_template(draft.template)
    root = "../" * draft.path.count("/")
    text = template.render(root=root, path=draft.path, navigation=NAVIGATION, **everywhere, **draft.values)
    return Page(path=draft.path, text=text)


def model_page(model_id: str) -> str:
    """Where a model's page lies."""
    return f"models/{file_name(model_id)}.html"


def badge_path(device: str) -> str:
    """Where a device's badge lies."""
    return f"badges/{file_name(device)}.json"


def mark(result: Result) -> str:
    """One character for a state: colour is never the only carrier."""
    return _STAGE_MARKS.get(result.stage, "F") if result.state == "failed" else _STATE_MARKS[result.state]


@cache
def environment() -> Any:
    """The templates; every value is escaped.

    Raises:
        UsageError: Jinja2 is not installed.
    """
    try:
        import jinja2
        import markupsafe
    except ImportError:
        raise UsageError("the dashboard needs Jinja2: pip install 'onnx-models[dashboard]'") from None
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "percent": percent,
        "seconds": seconds,
        "size": size,
        "number": number,
        "day": day,
        "signed_percent": signed_percent,
        "page_of": model_page,
        "anchor": file_name,
        "mark": mark,
        "urlencode": cache(quote),
        # The charts are this package's own SVG, with every text of the data escaped.
        "chart": markupsafe.Markup,
        "badge_of": badge_path,
    }
    made.globals |= {"STATE_WORDS": STATE_WORDS}
    return made


def percent(value: float | None) -> str:
    """`92.3 %`; never 100 % where something is missing."""
    if value is None:
        return "-"
    shown = math.floor(value * 1000) / 10 if value < 1 else 100.0
    return f"{shown:.1f} %"


def signed_percent(value: float | None) -> str:
    """A difference of rates in percentage points."""
    if value is None:
        return "-"
    return "±0" if abs(value) < 0.0005 else f"{value * 100:+.1f}"


def seconds(value: float | None) -> str:
    """`1.23 s`, `45.6 ms`."""
    if value is None:
        return "-"
    if value < 0.001 and value > 0:
        return f"{value * 1e6:.0f} µs"
    if value < 1:
        return f"{value * 1e3:.1f} ms"
    return f"{value:.2f} s" if value < 100 else f"{value:.0f} s"


def size(value: float | None) -> str:
    """Bytes in powers of 1,000, as disks and downloads are counted."""
    if not value:
        return "-"
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if value >= factor:
            return (
                f"{value / factor:.3g} {unit}" if value < 999.5 * factor else f"{value / factor:.0f} {unit}"
            )
    return f"{value:.0f} B"


def number(value: float | None, digits: int = 3) -> str:
    """A number of a few digits."""
    return "-" if value is None else f"{value:.{digits}g}"


def day(value: datetime | None) -> str:
    """A date."""
    return "-" if value is None else f"{value:%Y-%m-%d}"
