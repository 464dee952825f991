"""Brings the lines of older record files to today's schema, one version at a time.

A run from years ago is read by today's reports. Each step says what a version
added; nothing that is not known of an old run is made up: it becomes what the
schema calls unknown (an empty text, 0, an empty table).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

Row = dict[str, Any]


def _from_1(row: Row) -> Row:
    """Schema 2 named faults (`signature`, `title`), tries and leniency, and `vacuous` on passes."""
    if row.get("type") != "case":
        return row
    known = {"signature": "", "title": "", "attempts": [], "excused": False, "vacuous": ""}
    return known | row


def _from_2(row: Row) -> Row:
    """Schema 3 says which release and machine a run is from, and more of each case."""
    if row.get("type") == "header":
        host = {"fingerprint": ""} | row.get("host", {})
        return {"release": row.get("iree", ""), "shard": "", "url": ""} | row | {"host": host}
    if row.get("type") != "case":
        return row
    known: Row = {
        "excerpt": "",
        "health": {},
        "bytes": 0,
        "opset": 0,
        "operators": {},
        "benchmark": {},
    }
    stages = [{"product_bytes": 0} | stage for stage in row.get("stages", [])]
    return known | row | {"stages": stages}


STEPS: Mapping[int, Callable[[Row], Row]] = MappingProxyType({1: _from_1, 2: _from_2})
"""By schema version: what turns a line into one of the next version."""


def migrate(row: Row, schema: int) -> Row:
    """A line of a file of that schema version as today's; a header then states today's version."""
    for version in range(schema, max(STEPS) + 1):
        row = STEPS[version](row)
    if row.get("type") == "header":
        row = row | {"schema": max(STEPS) + 1}
    return row
