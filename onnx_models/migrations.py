"""What a record's line must be by the schema of its version, and what it is in today's.

A run from years ago is read by today's reports: its lines are held against the
schema that was true then (`schema/record-1.schema.json`) and brought to today's,
one version at a time. Each step says what a version added; nothing that is not
known of an old run is made up: it becomes what the schema calls unknown (an empty
text, 0, an empty table).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from onnx_models.records import SCHEMA, SCHEMA_VERSION

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
    stages = [{"product_bytes": 0} | stage for stage in row.get("stages") or [] if isinstance(stage, dict)]
    # Schema 2 got its fields one by one: its first files lack `vacuous`.
    return known | _from_1(row) | {"stages": stages}


STEPS: Mapping[int, Callable[[Row], Row]] = MappingProxyType({1: _from_1, 2: _from_2})
"""By schema version: what turns a line into one of the next version."""


def migrate(row: Row, schema: int) -> Row:
    """A line of a file of that schema version as today's; a header then states today's version."""
    for version in range(schema, max(STEPS) + 1):
        row = STEPS[version](row)
    if row.get("type") == "header":
        row = row | {"schema": max(STEPS) + 1}
    return row


def fault(row: Row, schema: int) -> str:
    """What is wrong with a line of that schema version, empty when nothing is."""
    from fastjsonschema import JsonSchemaValueException

    try:
        _checker(schema)(row)
    except JsonSchemaValueException as error:
        return str(error.message).removeprefix("data").lstrip(". ")
    return ""


@cache
def _checker(schema: int) -> Callable[[Row], Row]:
    """A function made of the schema: 20 times as fast as `jsonschema`, which counts at 19,200 lines."""
    import fastjsonschema

    file = SCHEMA if schema == SCHEMA_VERSION else SCHEMA.with_name(f"record-{schema}.schema.json")
    # It knows drafts up to 7; of what came later the schemas only use the name `$defs`.
    text = json.loads(file.read_text(encoding="utf-8")) | {
        "$schema": "http://json-schema.org/draft-07/schema#"
    }
    checker: Callable[[Row], Row] = fastjsonschema.compile(text, use_default=False)
    return checker
