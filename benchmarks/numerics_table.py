"""Measure the comparison on a finished run, and write the table of docs/numerics.md.

    python benchmarks/numerics_table.py ARTIFACTS RECORD.jsonl [RECORD.jsonl ...]

Each case of the records that reached the comparison is compared again from its
files. The script also plants faults in each reference and reports those that
the comparison does not see.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from onnx_models import compare, tensors, tolerance
from onnx_models.reference_data import Reference, ReferenceSet, load_reference
from onnx_models.tensors import Array

DOCUMENT = Path(__file__).parents[1] / "docs" / "numerics.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
DEVICES = ("cpu", "vulkan")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One output of one case."""

    model: str
    device: str
    name: str
    verdict: str
    numbers: Mapping[str, Any]
    passes_at_2: bool


def main() -> int:
    """Print what was found and rewrite the table; 1 when a planted fault goes unseen."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifacts", type=Path)
    parser.add_argument("records", type=Path, nargs="+", metavar="RECORD.jsonl")
    options = parser.parse_args()
    artifacts, records = options.artifacts, options.records
    cases = {row["id"]: row for file in records for row in _cases(file)}
    compared, stopped = [], []
    for case in sorted(cases.values(), key=lambda row: (row["collection"], row["model"], row["device"])):
        rows = list(_rows(case, artifacts))
        compared += rows
        stopped += [] if rows else [case]
    if not compared:
        parser.error(f"no case of these records was compared below {artifacts}: the table stays as it is")
    missed, planted = _planted(artifacts, {f"{row['collection']}/{row['model']}" for row in cases.values()})
    text = "\n".join([*_table(compared, stopped), "", *_summary(compared, missed, planted)])
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    after = rest.partition(END)[2]
    DOCUMENT.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
    print("\n".join([*missed, f"{planted} faults planted, {len(missed)} not seen"]))
    return 1 if missed else 0


def _cases(file: Path) -> Iterator[dict[str, Any]]:
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        if row.get("type") == "case" and row["device"] in DEVICES:
            yield row


def _rows(case: Mapping[str, Any], artifacts: Path) -> Iterator[Row]:
    folder = artifacts / case["collection"] / case["model"]
    reference = load_reference(folder)
    found = sorted(folder.glob(f"*/{case['device']}/outputs"))
    if reference is None or not found or case["stage"] != "compare":
        return
    for each in reference.sets:
        now = compare.compare_set(each, found[-1] / each.name)
        with mock.patch.object(tolerance, "NOISE_FACTOR", 2.0):
            at_2 = compare.compare_set(each, found[-1] / each.name)
        for row, other in zip(now.outputs, at_2.outputs, strict=True):
            yield Row(
                model=f"{case['collection']}/{case['model']}",
                device=case["device"],
                name=row["name"],
                verdict=("passes" if row["ok"] else "fails") + (" (vacuous)" if reference.vacuous else ""),
                numbers=row,
                passes_at_2=other["ok"],
            )


def _table(rows: Sequence[Row], stopped: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    heads = ("model", "device", "output", "basis", "noise / scale", "IREE / noise", "of its bound", "verdict")
    yield f"| {' | '.join(heads)} | at m = 2 |"
    yield "|" + "---|" * 9
    for row in rows:
        numbers = row.numbers
        scale = numbers.get("scale") or 0.0
        cells = [row.model, row.device, f"`{row.name}`", numbers.get("basis", numbers["mismatch"])]
        cells += [_number(numbers.get("noise"), scale), _number(numbers.get("ratio"))]
        cells += [
            _number(numbers.get("would_pass_at")),
            row.verdict,
            "passes" if row.passes_at_2 else "fails",
        ]
        yield f"| {' | '.join(map(str, cells))} |"
    yield ""
    yield "Cases that end before the comparison:"
    yield ""
    for stage, names in sorted(_by_stage(stopped).items()):
        yield f"- {stage}: {', '.join(names)}"


def _by_stage(stopped: Iterable[Mapping[str, Any]]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for case in stopped:
        found.setdefault(f"{case['stage']}, {case['kind']}", []).append(f"`{case['id']}`")
    return found


def _number(value: float | None, unit: float = 1.0) -> str:
    return "" if value is None or not unit else f"{value / unit:.2g}"


def _summary(rows: Sequence[Row], missed: Sequence[str], planted: int) -> Iterator[str]:
    floats = [row for row in rows if row.numbers.get("ratio") is not None]
    right = [row for row in floats if row.numbers["ok"]]
    wrongly_failed = [row for row in right if not row.passes_at_2]
    wrongly_passed = [row for row in floats if row.passes_at_2 and not row.numbers["ok"]]
    names = ", ".join(f"{row.model} on {row.device}" for row in wrongly_failed) or "none"
    yield f"Of {len(floats)} float outputs that were compared, {len(right)} pass."
    yield f"m = 2 would have failed {len(wrongly_failed)} of these ({names}),"
    yield f"and passed {len(wrongly_passed)} of the others."
    yield f"{planted} faults were planted in the references of these models; {len(missed)} were not seen."


def _planted(artifacts: Path, models: set[str]) -> tuple[list[str], int]:
    """Faults that the comparison misses on references that are not vacuous, and how many were tried."""
    missed, count = [], 0
    for model in sorted(models):
        reference = load_reference(artifacts / model)
        if reference is None or reference.failure or reference.vacuous:
            continue
        for fault, seen in _faults(reference):
            count += 1
            missed += [] if seen else [f"{model}: not seen: {fault}"]
    return missed, count


def _faults(reference: Reference) -> Iterator[tuple[str, bool]]:
    each = reference.sets[0]
    outputs = [tensors.read(output) for output in each.outputs]
    for index, output in enumerate(outputs):
        if not tolerance.is_float(output.dtype.name):
            continue
        for fault, wrong in _variants(output):
            found = [*outputs[:index], wrong, *outputs[index + 1 :]]
            yield f"output {index}, {fault}", not compare.compare(_expected(each, outputs), found).ok


def _variants(output: Array) -> Iterator[tuple[str, Array]]:
    """The output scaled by 1.01, with one channel dropped, with one row doubled."""
    yield "scaled by 1.01", (output * np.asarray(1.01, output.dtype)).astype(output.dtype)
    largest = np.unravel_index(int(np.argmax(np.abs(output))), output.shape) if output.ndim else ()
    long = [axis for axis in range(output.ndim) if output.shape[axis] > 1]
    if not long:
        return
    for name, axis in (("channel dropped", long[0]), ("row doubled", long[-1])):
        wrong = output.copy()
        place = [slice(None)] * output.ndim
        place[axis] = int(largest[axis])  # type: ignore[call-overload]
        beside = list(place)
        beside[axis] = int(largest[axis]) - 1  # type: ignore[call-overload]
        wrong[tuple(place)] = 0 if name == "channel dropped" else output[tuple(beside)]
        if not np.array_equal(wrong, output):
            yield f"{name} on axis {axis}", wrong


def _expected(each: ReferenceSet, outputs: Sequence[Array]) -> list[compare.Expected]:
    return [
        compare.Expected(
            name=file.name,
            array=array,
            policy=policy,
            precise=tensors.read(each.precise[index]) if index in each.precise else None,
            scores=tensors.read(each.scores[index]) if index in each.scores else None,
        )
        for index, (file, array, policy) in enumerate(zip(each.outputs, outputs, each.policies, strict=True))
    ]


if __name__ == "__main__":
    raise SystemExit(main())
