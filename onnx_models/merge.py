"""Shards of one run become one run, or it is said why they are not of one."""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnx_models.outcomes import SuiteError
from onnx_models.runs import RunFile

SAME = ("release", "iree", "suite", "catalogue")
"""What the shards of one run must agree in, beside the packages of the reference."""

_PACKAGES = ("onnx", "onnxruntime", "numpy")


class MergeError(SuiteError):
    """Runs that are not parts of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The whole, and a line for each part or case that it lacks."""

    run: RunFile
    missing: tuple[str, ...]


def merge(parts: Sequence[RunFile], *, allow_incomplete: bool = False, prefer_last: bool = False) -> Merged:
    """Make one run of several; of a single one, itself.

    Args:
        parts: in any order; the result does not depend on it.
        allow_incomplete: take parts that were cut off, and sets of shards of which some are absent.
        prefer_last: where a case is in two parts, take the one that started later.

    Raises:
        MergeError: the parts are of different versions, a case is there twice, or something is absent.
    """
    if not parts:
        raise MergeError("nothing to merge: name the records of a run")
    ordered = sorted(parts, key=lambda part: (part.header["started"], part.id))
    _require_same(ordered)
    missing = [*_missing_shards(ordered), *_cut_off(ordered)]
    if missing and not allow_incomplete:
        raise MergeError(f"{missing[0]} (--allow-incomplete merges what is there)")
    if len(ordered) == 1:
        return Merged(run=ordered[0], missing=(*missing, *_missing_cases(ordered[0].cases)))
    cases = _cases(ordered, prefer_last)
    header = _header(ordered)
    verdicts: dict[str, int] = {}
    for case in cases:
        verdicts[case["verdict"]] = verdicts.get(case["verdict"], 0) + 1
    footer: dict[str, Any] = {
        "type": "footer",
        "finished": max(part.footer["finished"] for part in ordered),
        "complete": not missing,
        "cases": len(cases),
        "verdicts": dict(sorted(verdicts.items())),
    }
    broken = [part.footer["host_broken"] for part in ordered if part.footer.get("host_broken")]
    if broken:
        footer["host_broken"] = "; ".join(dict.fromkeys(broken))
    run = RunFile(header=header, cases=cases, footer=footer)
    return Merged(run=run, missing=(*missing, *_missing_cases(cases)))


def _require_same(parts: Sequence[RunFile]) -> None:
    first = parts[0]
    for part in parts[1:]:
        pairs = [(key, first.header.get(key), part.header.get(key)) for key in SAME]
        pairs += [
            (name, first.header["packages"].get(name), part.header["packages"].get(name))
            for name in _PACKAGES
        ]
        for key, one, other in pairs:
            if one != other:
                raise MergeError(
                    f"runs {first.id} and {part.id} are of different {key}: {one} and {other}; "
                    "merge the parts of one run only"
                )
        if first.id == part.id:
            raise MergeError(f"run {first.id} is there twice: name each record once")


def _missing_shards(parts: Sequence[RunFile]) -> list[str]:
    """Which parts of a split are absent, per device."""
    found: dict[str, set[int]] = defaultdict(set)
    counts: dict[str, set[int]] = defaultdict(set)
    for part in parts:
        if part.header.get("shard"):
            number, _, total = part.header["shard"].partition("/")
            for device in part.header["devices"]:
                found[device].add(int(number))
                counts[device].add(int(total))
    missing = []
    for device in sorted(found):
        if len(counts[device]) > 1:
            raise MergeError(
                f"device {device}: parts of {' and of '.join(map(str, sorted(counts[device])))} shards; "
                "merge the parts of one split only"
            )
        (total,) = counts[device]
        absent = sorted(set(range(1, total + 1)) - found[device])
        if absent:
            missing.append(f"device {device}: shards {', '.join(map(str, absent))} of {total} are missing")
    return missing


def _cut_off(parts: Iterable[RunFile]) -> list[str]:
    return [f"run {part.id} is incomplete" for part in parts if not part.footer["complete"]]


def _missing_cases(cases: Iterable[Mapping[str, Any]]) -> list[str]:
    """Models that some device of the run has and another one lacks."""
    by_device: dict[str, set[str]] = defaultdict(set)
    for case in cases:
        by_device[case["device"]].add(f"{case['collection']}/{case['model']}")
    every = set().union(*by_device.values()) if by_device else set()
    lines = []
    for device, models in sorted(by_device.items()):
        absent = sorted(every - models)
        if absent:
            more = f" and {len(absent) - 3} more" if len(absent) > 3 else ""
            lines.append(f"device {device}: {len(absent)} models missing: {', '.join(absent[:3])}{more}")
    return lines


def _cases(parts: Sequence[RunFile], prefer_last: bool) -> tuple[Mapping[str, Any], ...]:
    by_id: dict[str, Mapping[str, Any]] = {}
    origin: dict[str, str] = {}
    for part in parts:
        machine = part.header["host"].get("fingerprint", "")
        for case in part.cases:
            if case["id"] in by_id and not prefer_last:
                raise MergeError(
                    f"case {case['id']} is in the runs {origin[case['id']]} and {part.id}: "
                    "--prefer-last takes the later one"
                )
            # Times are compared on one machine only, so each case keeps its own.
            by_id[case["id"]] = {"machine": machine} | dict(case)
            origin[case["id"]] = part.id
    return tuple(by_id[key] for key in sorted(by_id))


def _header(parts: Sequence[RunFile]) -> dict[str, Any]:
    ids = "\n".join(sorted(part.id for part in parts))
    devices: dict[str, Any] = {}
    for part in parts:
        devices |= part.header["devices"]
    merged = [
        {
            "run": part.id,
            "shard": part.header.get("shard", ""),
            "url": part.header.get("url", ""),
            "fingerprint": part.header["host"].get("fingerprint", ""),
            "devices": sorted(part.header["devices"]),
        }
        for part in parts
    ]
    return dict(parts[0].header) | {
        "run": f"{parts[0].id}-{hashlib.sha256(ids.encode()).hexdigest()[:8]}",
        "devices": dict(sorted(devices.items())),
        "shard": "",
        "merged": merged,
    }
