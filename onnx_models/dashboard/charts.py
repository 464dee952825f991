"""Charts as inline SVG, drawn when the site is built: Vega-Lite descriptions that vl-convert draws.

A meta-test holds each kind of chart against Altair's schema. Going through Altair in a build took
0.8 s for seven charts, the import included, and could only repeat the description.

No style is in them that a strict policy would block: colours that must follow the reader's
light or dark page become `currentColor`, those of series are readable on both.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import cache
from typing import Any

from onnx_models.junit import legal
from onnx_models.outcomes import UsageError

Row = Mapping[str, Any]

SCHEMA = "https://vega.github.io/schema/vega-lite/v5.json"

INK = "#010203"
"""Stands for the page's text colour until the SVG is written."""

GRID = "#040506"

SERIES = ("#2f7ed8", "#d9541a", "#1a9a6c", "#b048b5", "#b8860b", "#607d8b", "#e0457b", "#5d6ad3")
"""Mid-tones with 3:1 on white and on the dark page; each series has a point shape of its own too."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "cross", "triangle-down", "triangle-right", "stroke")

WIDTH = 620

MARKED = 40
"""Marks on a line; more of them would be a band."""


def trend(rows: Sequence[Row], *, x: str, ordinal: bool, title: str, description: str) -> str:
    """Rates of devices over runs or releases, on a scale from 0 to 100 %.

    Args:
        rows: `device`, `rate` (0 to 1) and `x`, a date or a release in order.
        x: the column of the horizontal axis.
        ordinal: whether `x` holds names in order rather than times.
        title: for people and for screen readers.
        description: the same, in a sentence.
    """
    devices = sorted({row["device"] for row in rows})
    axis: dict[str, Any] = {"title": None, "labelAngle": -40 if ordinal else 0, "labelOverlap": True}
    order = list(dict.fromkeys(row[x] for row in rows))
    across = (
        {"field": x, "type": "ordinal", "sort": order, "axis": axis}
        if ordinal
        else {"field": x, "type": "temporal", "axis": axis | {"format": _dates(order), "tickCount": 6}}
    )
    encoding = {
        "x": across,
        "y": {
            "field": "rate",
            "type": "quantitative",
            "scale": {"domain": [0, 1]},
            "axis": {"format": ".0%", "title": "passed with proof"},
        },
        "color": _scale("device", devices, SERIES),
    }
    shape = {"shape": _scale("device", devices, SHAPES)}
    spec = {
        "width": WIDTH,
        "height": 240,
        "layer": [
            {
                "data": {"values": list(rows)},
                "mark": {"type": "line", "strokeWidth": 2},
                "encoding": encoding,
            },
            {
                "data": {"values": _marked(rows, order, x)},
                "mark": {"type": "point", "size": 45, "filled": True, "opacity": 1},
                "encoding": encoding | shape,
            },
        ],
    }
    return draw(spec, title=title, description=description)


def _dates(times: Sequence[str]) -> str:
    """The form of an axis of times: ticks of one day must not all read the same."""
    span = datetime.fromisoformat(max(times)) - datetime.fromisoformat(min(times))
    return "%d %b, %H:%M" if span.days < 6 else "%d %b %y"


def _marked(rows: Sequence[Row], order: Sequence[Any], x: str) -> list[Row]:
    """The rows that get a mark: all, or of many a few that tell the lines apart, and the newest."""
    step = -(-len(order) // MARKED)
    places = {value for k, value in enumerate(reversed(order)) if k % step == 0}
    return [row for row in rows if row[x] in places]


def series(rows: Sequence[Row], marks: Sequence[Row], *, unit: str, title: str, description: str) -> str:
    """A measurement over runs, from zero, with its change points marked by a vertical rule.

    Args:
        rows: `run` (a name, in order), `value` and `device`.
        marks: `run` of each change.
        unit: of the values, for the axis.
        title: for people and for screen readers.
        description: the same, in a sentence.
    """
    order = [row["run"] for row in rows]
    x = {"field": "run", "type": "ordinal", "sort": order}
    axis = {"title": None, "labelAngle": -40, "labelOverlap": True}
    y = {"field": "value", "type": "quantitative", "scale": {"zero": True}, "axis": {"title": unit}}
    layers: list[dict[str, Any]] = [
        {
            "data": {"values": [dict(row) for row in rows]},
            "mark": {"type": "line", "point": {"size": 30, "filled": True}, "color": SERIES[0]},
            "encoding": {"x": x | {"axis": axis}, "y": y},
        }
    ]
    if marks:
        layers.append(
            {
                "data": {"values": [dict(mark) for mark in marks]},
                "mark": {"type": "rule", "color": SERIES[1], "strokeDash": [4, 3], "strokeWidth": 1.5},
                "encoding": {"x": x},
            }
        )
    return draw({"width": 420, "height": 150, "layer": layers}, title=title, description=description)


def bars(rows: Sequence[Row], *, value: str, unit: str, title: str, description: str) -> str:
    """Horizontal bars from zero, the longest first, with their numbers."""
    y = {"field": "name", "type": "nominal", "sort": None, "axis": {"title": None, "labelLimit": 260}}
    x = {
        "field": value,
        "type": "quantitative",
        "scale": {"zero": True},
        "axis": {"title": unit, "tickMinStep": 1},
    }
    spec = {
        "data": {"values": [dict(row) for row in rows]},
        "width": 360,
        "height": {"step": 22},
        "layer": [
            {"mark": {"type": "bar", "color": SERIES[0], "height": 14}, "encoding": {"x": x, "y": y}},
            {
                "mark": {"type": "text", "align": "left", "dx": 4, "color": INK},
                "encoding": {"x": x, "y": y, "text": {"field": value, "type": "quantitative"}},
            },
        ],
    }
    return draw(spec, title=title, description=description)


def _scale(field: str, domain: Sequence[str], values: Sequence[str]) -> dict[str, Any]:
    span = [values[k % len(values)] for k in range(len(domain))]
    legend = {"title": None, "orient": "bottom", "columns": 4, "symbolSize": 70, "labelLimit": 200}
    return {
        "field": field,
        "type": "nominal",
        "scale": {"domain": list(domain), "range": span},
        "legend": legend,
    }


_CONFIG: dict[str, Any] = {
    "background": "transparent",
    "font": "sans-serif",
    "view": {"stroke": "transparent"},
    "axis": {
        "labelColor": INK,
        "titleColor": INK,
        "domainColor": GRID,
        "tickColor": GRID,
        "gridColor": GRID,
        "gridOpacity": 0.35,
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
    },
    "legend": {"labelColor": INK, "labelFontSize": 12},
}


def draw(spec: Mapping[str, Any], *, title: str, description: str) -> str:
    """A Vega-Lite description as an SVG element to put into a page.

    Raises:
        UsageError: vl-convert is not installed.
    """
    whole = {"$schema": SCHEMA, "config": _CONFIG, **_harmless(spec)}
    return _for_page(_library().vegalite_to_svg(whole), title, description)


def _harmless(value: Any) -> Any:
    """The description with texts that an SVG can hold: a NUL ends the process in vl-convert 1.9."""
    if isinstance(value, str):
        return legal(value)
    if isinstance(value, Mapping):
        return {key: _harmless(inner) for key, inner in value.items()}
    return [_harmless(inner) for inner in value] if isinstance(value, (list, tuple)) else value


@cache
def warm_up() -> None:
    """Draw nothing: the first drawing starts a JavaScript engine, which takes half a second."""
    _library().vegalite_to_svg({"$schema": SCHEMA, "data": {"values": []}, "mark": "point"})


@cache
def _library() -> Any:
    try:
        import vl_convert
    except ImportError:
        raise UsageError("charts need vl-convert: pip install 'onnx-models[dashboard]'") from None
    return vl_convert


def _for_page(svg: str, title: str, description: str) -> str:
    """Fit to a page: scales to its width, takes its ink, has words for those who do not see it."""
    found = re.search(r"<svg[^>]*>", svg)
    assert found is not None
    size = re.search(r'viewBox="([^"]*)"', found[0])
    box = size[1] if size else "0 0 620 300"
    body = svg[found.end() :].rpartition("</svg>")[0]
    body = re.sub(r"<[a-z][^>]*>", _for_policy, body)
    width = box.split()[2]
    words = f"<title>{escaped(title)}</title><desc>{escaped(description)}</desc>"
    return f'<svg class="chart" role="img" viewBox="{box}" width="{width}">{words}{body}</svg>'


def _for_policy(tag: re.Match[str]) -> str:
    """A tag (never the text between two, which holds names) without what a strict policy blocks."""
    text = tag[0].replace(f'"{INK}"', '"currentColor"').replace(f'"{GRID}"', '"currentColor"')
    text = re.sub(r'\s(?:style|aria-[a-z]+|role)="[^"]*"', "", text)
    return re.sub(r' (?:d|transform)="[^"]*"', _shortened, text)


def _shortened(attribute: re.Match[str]) -> str:
    """A tenth of a pixel is enough, and half the bytes of a long line."""
    return re.sub(r"(\d\.\d)\d+", r"\1", attribute[0])


@cache
def escaped(words: str) -> str:
    """Text for the inside of an SVG element."""
    return legal(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
