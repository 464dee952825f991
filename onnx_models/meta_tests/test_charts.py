"""Charts are valid by Vega-Lite's schema, small, and harmless whatever the names in them are."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import altair
import pytest
from jsonschema import ValidationError

from onnx_models.dashboard import charts

TREND = [{"device": d, "rate": k / 400, "at": f"r{k}"} for d in ("cpu", "vulkan") for k in range(3)]


def year(devices: int = 8) -> list[dict[str, Any]]:
    """A point a day and device."""
    days = [f"2026-{1 + k // 28:02}-{1 + k % 28:02}T02:00:00" for k in range(336)]
    return [
        {"device": f"d{d}", "rate": (d + k % 5) / 15, "at": day}
        for d in range(devices)
        for k, day in enumerate(days)
    ]


def draw_all(name: str = "a") -> list[str]:
    """One of each kind, with a name in every place that data reaches."""
    words = {"title": name, "description": name}
    return [
        charts.trend([row | {"device": name} for row in TREND], x="at", ordinal=True, **words),
        charts.trend(year(2), x="at", ordinal=False, **words),
        charts.bars([{"name": name, "n": 3}, {"name": "b", "n": 1}], value="n", unit=name, **words),
        charts.series(
            [{"run": f"{name}{k}", "value": k, "device": ""} for k in range(9)],
            [{"run": f"{name}5", "label": name}],
            unit=name,
            **words,
        ),
    ]


def test_every_chart_is_what_the_schema_asks_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing does not check, which would take longer than to draw: so here it is."""
    drawn: list[Mapping[str, Any]] = []

    def draw(spec: Mapping[str, Any], **_: str) -> str:
        drawn.append(spec)
        return ""

    monkeypatch.setattr(charts, "draw", draw)
    draw_all()
    assert len(drawn) == 4
    for spec in drawn:
        kind = altair.LayerChart if "layer" in spec else altair.Chart
        kind.from_dict(dict(spec), validate=True).properties(config=charts._CONFIG).to_dict()
        with pytest.raises(ValidationError):
            kind.from_dict({**spec, "width": "wide"}, validate=True)


@pytest.mark.parametrize(
    "name", ["<script>x</script>", 'a" style="x', "a\x00b", "\ud800", "&amp;", "🤖", "x" * 5000]
)
def test_names_are_text(name: str) -> None:
    for svg in draw_all(name):
        root = ElementTree.fromstring(svg)
        tags = {element.tag for element in root.iter()}
        assert tags <= {"svg", "g", "path", "line", "text", "title", "desc", "rect", "defs", "clipPath"}
        assert not [
            key for element in root.iter() for key in element.attrib if key.startswith("on") or key == "style"
        ]


def test_labels_keep_their_digits() -> None:
    """Coordinates are shortened, releases are not."""
    rows = [{"device": "cpu", "rate": 0.5, "at": release} for release in ("3.13.0", "3.12.123")]
    svg = charts.trend(rows, x="at", ordinal=True, title="t", description="d")
    assert {"3.13.0", "3.12.123"} <= set(re.findall(r">([^<>]+)<", svg))


def points(svg: str) -> int:
    """Marks have a place of their own, lines have none."""
    return len(re.findall(r'<path[^>]* transform="translate', svg))


def test_a_year_is_a_line_and_not_a_band_of_marks() -> None:
    few = charts.trend(TREND, x="at", ordinal=True, title="t", description="d")
    many = charts.trend(year(), x="at", ordinal=False, title="t", description="d")
    marks: Sequence[int] = [points(few), points(many)]
    assert marks[0] >= len(TREND)
    assert marks[1] <= 8 * (charts.MARKED + 3)
    assert len(many) < 120_000
    assert many.count("L") >= 8 * 335, "every day is in the line"
