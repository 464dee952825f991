"""JUnit XML of a run, and the properties that pytest's own gets per case."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from xml.etree import ElementTree

from onnx_models import states
from onnx_models.outcomes import Verdict
from onnx_models.runs import RunFile

Case = Mapping[str, Any]

MESSAGE_LIMIT = 1000
TEXT_LIMIT = 20_000
"""Characters: CI systems show them in a table, and keep them for years."""

_ILLEGAL = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def properties(case: Case) -> Iterator[tuple[str, str]]:
    """What a CI system may filter and chart by: names and values, both fit for XML."""
    stage, kind, signature = states.what(case)
    ratios = [row["ratio"] for row in case["outputs"] if isinstance(row.get("ratio"), (int, float))]
    yield from (
        ("device", legal(case["device"])),
        ("collection", legal(case["collection"])),
        ("model", legal(case["model"])),
        ("verdict", case["verdict"]),
        ("state", states.state(case).value),
    )
    if kind:
        yield from (("stage", stage), ("kind", kind), ("signature", legal(signature)))
    if case["vacuous"]:
        yield "vacuous", legal(case["vacuous"])
    if ratios:
        yield "noise-ratio", f"{max(ratios):.4g}"
    for each in case["stages"]:
        yield f"{each['stage']}-seconds", f"{each['seconds']:.3f}"
        if each["peak_bytes"]:
            yield f"{each['stage']}-peak-bytes", str(each["peak_bytes"])


def suite_properties(header: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The same of a whole run: what it tested, and on which machine."""
    for name in ("release", "iree", "run", "suite", "catalogue", "shard", "url"):
        if header[name]:
            yield name, legal(str(header[name]))
    yield "machine", legal(header["host"]["fingerprint"])


def of_run(run: RunFile) -> str:
    """The XML file that a pytest of that run would have written with `--junitxml`."""
    suite = ElementTree.Element("testsuite", name="onnx_models", timestamp=str(run.header["started"]))
    listed = ElementTree.SubElement(suite, "properties")
    for name, value in suite_properties(run.header):
        ElementTree.SubElement(listed, "property", name=name, value=value)
    tally = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    total = 0.0
    for case in run.cases:
        total += _case(suite, case, tally)
    suite.attrib |= {key: str(value) for key, value in tally.items()} | {"time": f"{total:.3f}"}
    whole = ElementTree.Element("testsuites")
    whole.append(suite)
    ElementTree.indent(whole)
    text = ElementTree.tostring(whole, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'


def _case(suite: ElementTree.Element, case: Case, tally: dict[str, int]) -> float:
    seconds = sum(stage["seconds"] for stage in case["stages"] if not stage["reused"])
    node = ElementTree.SubElement(
        suite,
        "testcase",
        classname="onnx_models.test_models",
        name=f"test_model[{legal(case['id'])}]",
        time=f"{seconds:.3f}",
    )
    listed = ElementTree.SubElement(node, "properties")
    for name, value in properties(case):
        ElementTree.SubElement(listed, "property", name=name, value=value)
    tally["tests"] += 1
    verdict = Verdict(case["verdict"])
    if verdict in (Verdict.SKIPPED, Verdict.EXPECTED_FAILURE):
        tally["skipped"] += 1
        child = ElementTree.SubElement(node, "skipped", message=_message(case))
        child.set("type", "pytest.xfail" if verdict is Verdict.EXPECTED_FAILURE else "pytest.skip")
    elif not verdict.green and not case.get("excused"):
        name = "error" if verdict is Verdict.ERROR else "failure"
        tally["errors" if verdict is Verdict.ERROR else "failures"] += 1
        child = ElementTree.SubElement(node, name, message=_message(case))
        child.text = legal((case["excerpt"] or case["message"])[:TEXT_LIMIT])
    return float(seconds)


def _message(case: Case) -> str:
    return legal(str(case["reason"] or case["message"])[:MESSAGE_LIMIT])


def legal(text: str) -> str:
    """Text without what XML 1.0 cannot hold."""
    return _ILLEGAL.sub("\ufffd", text)
