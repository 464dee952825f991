"""Shards of one run become one run, or it is said why they are not of one."""

from __future__ import annotations

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from onnx_models.outcomes import SuiteError
from onnx_models.record_lines import brief
from onnx_models.runs import RunFile

SAME = ("release", "iree", "suite", "catalogue")
"""What the shards of one run must agree in, beside the packages of the reference."""

_PACKAGES = ("onnx", "onnxruntime", "numpy")

_DEVICE = ("driver", "last_stage", "compile_flags", "run_flags")
"""What makes a device the same one; its title and what a machine found of it may differ."""

WITHIN = timedelta(days=7)
"""How far apart the shards of one run may begin: failed jobs are run again days later."""


class MergeError(SuiteError):
    """Runs that are not parts of one; names from their files show as one printable line."""

    def __init__(self, text: str) -> None:
        super().__init__(brief(text, 600))


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """The whole, and a line for each part or case that it lacks."""

    run: RunFile
    missing: tuple[str, ...]


def merge(
    parts: Sequence[RunFile],
    *,
    allow_incomplete: bool = False,
    prefer_last: bool = False,
    within: timedelta = WITHIN,
) -> Merged:
    """Make one run of several; of a single one, itself.

    Args:
        parts: in any order; the result does not depend on it.
        allow_incomplete: take parts that were cut off or say nothing of IREE, and sets of shards with gaps.
        prefer_last: where a case is in two parts, take the one that started later; a part that a
            later one repeats in full, as when a failed job is run again, is left out.
        within: parts that began further apart are not of one run.

    Raises:
        MergeError: the parts are of different versions, a case is there twice, or something is absent.
    """
    if not parts:
        raise MergeError("nothing to merge: name the records of a run")
    ordered = sorted(parts, key=lambda part: (part.header["started"], part.id))
    _require_same(ordered, within)
    if prefer_last:
        ordered = [
            part for k, part in enumerate(ordered) if not any(_repeats(new, part) for new in ordered[k + 1 :])
        ]
    broken = [each for each in ordered if each.footer.get("host_broken")]
    all_broken = len(broken) == len(ordered)
    missing = [*_missing_shards(ordered), *_cut_off(ordered)]
    missing += [] if all_broken else [_says_nothing(each) for each in broken]
    if missing and not allow_incomplete:
        raise MergeError(
            f"{'; '.join(missing)}: add what is missing, or merge what is there with --allow-incomplete"
        )
    if len(ordered) == 1:
        return Merged(run=ordered[0], missing=_told(missing, ordered[0].cases))
    cases = _cases(ordered, prefer_last)
    verdicts = Counter(case["verdict"] for case in cases)
    footer: dict[str, Any] = {
        "type": "footer",
        "finished": max(part.footer["finished"] for part in ordered),
        "complete": not missing,
        "cases": len(cases),
        "verdicts": dict(sorted(verdicts.items())),
    }
    if all_broken:
        footer["host_broken"] = "; ".join(dict.fromkeys(each.footer["host_broken"] for each in broken))
    run = RunFile(header=_header(ordered), cases=cases, footer=footer)
    return Merged(run=run, missing=_told(missing, cases))


def _told(missing: Iterable[str], cases: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    return tuple(brief(line, 600) for line in (*missing, *_missing_cases(cases)))


def _require_same(parts: Sequence[RunFile], within: timedelta) -> None:
    first = parts[0]
    for part in parts[1:]:
        if first.id == part.id:
            raise MergeError(f"run {first.id} is there twice: name each record once")
        for key, one, other in _facts(first, part):
            if one != other:
                raise MergeError(
                    f"runs {first.id} and {part.id} are of different {key}: {one} and {other}; "
                    "merge the parts of one run only"
                )
    began = [datetime.fromisoformat(part.header["started"]) for part in (first, parts[-1])]
    if began[1] - began[0] > within:
        raise MergeError(
            f"runs {first.id} and {parts[-1].id} began {(began[1] - began[0]).days} days apart: "
            "merge the parts of one run only (--within DAYS allows more)"
        )


def _facts(first: RunFile, part: RunFile) -> Iterator[tuple[str, object, object]]:
    """What must be equal, by name, as one and as the other has it."""
    for key in SAME:
        yield key, first.header.get(key), part.header.get(key)
    if first.header.get("shard") and part.header.get("shard"):
        one, other = (" ".join(selecting(each.header["arguments"])) for each in (first, part))
        yield "selection", one or "everything", other or "everything"
    packages = (first.header["packages"], part.header["packages"])
    for name in _PACKAGES:
        yield name, packages[0].get(name), packages[1].get(name)
    tools = [_versions(each) for each in (first, part)]
    for name in sorted(tools[0].keys() & tools[1].keys()):
        yield name, tools[0][name], tools[1][name]
    devices = (first.header["devices"], part.header["devices"])
    for name in sorted(devices[0].keys() & devices[1].keys()):
        for key in _DEVICE:
            yield f"{key} of device {name}", devices[0][name][key], devices[1][name][key]


_SELECTING = ("-k", "-m", "--collection", "--model", "--max-bytes", "--deselect", "--lf", "--last-failed")


def selecting(arguments: Sequence[str]) -> list[str]:
    """The words of a call that choose cases: parts of one split must have the same."""
    found: list[str] = []
    words = iter(map(str, arguments))
    for word in words:
        name, equals, value = word.partition("=")
        if word[:2] in ("-k", "-m") and len(word) > 2:
            found.append(f"{word[:2]} {word[2:]}")
        elif name in _SELECTING:
            flag = name in ("--lf", "--last-failed")
            found.append(name if flag else f"{name} {value if equals else next(words, '')}")
    return sorted(found)


def _versions(part: RunFile) -> dict[str, str]:
    """The tools that know their version; of others it is a hash, which differs with the place."""
    tools = part.header["tools"]
    return {tool["name"]: tool["version"] for tool in tools if not tool["version"].startswith("unknown")}


def _repeats(new: RunFile, old: RunFile) -> bool:
    """Whether a part does again all that an older one was to do."""
    same = new.header["shard"] == old.header["shard"]
    covers = old.header["devices"].keys() <= new.header["devices"].keys()
    return same and covers and {case["id"] for case in old.cases} <= {case["id"] for case in new.cases}


def _says_nothing(part: RunFile) -> str:
    return f"run {part.id} says nothing of IREE: {part.footer['host_broken']}"


def _missing_shards(parts: Sequence[RunFile]) -> list[str]:
    """Which parts of a split are absent, per device."""
    found: dict[str, set[int]] = defaultdict(set)
    counts: dict[str, set[int]] = defaultdict(set)
    for part in parts:
        if part.header.get("shard"):
            number, _, total = part.header["shard"].partition("/")
            if int(number) > int(total):
                raise MergeError(f"run {part.id}: shard {number} of {total}; there is no such part")
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
            parts_absent = f"{', '.join(map(str, absent))} of {total}"
            missing.append(
                f"device {device}: shard {parts_absent} is missing"
                if len(absent) == 1
                else f"device {device}: shards {parts_absent} are missing"
            )
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
                    f"case {case['id']} is in the runs {origin[case['id']]} and {part.id}: merge two runs "
                    "one by one, or take the later of a repeated part with --prefer-last"
                )
            # Times are compared on one machine only, so each case keeps its own.
            by_id[case["id"]] = {"machine": machine} | dict(case)
            origin[case["id"]] = part.id
    return tuple(by_id[key] for key in sorted(by_id))


def _header(parts: Sequence[RunFile]) -> dict[str, Any]:
    ids = "\n".join(sorted(part.id for part in parts))
    devices: dict[str, Any] = {}
    for part in parts:
        for name, facts in part.header["devices"].items():
            found = [*devices.get(name, facts)["found"], *facts["found"]]
            devices[name] = devices.get(name, facts) | {"found": list(dict.fromkeys(found))}
    merged = [each for part in parts for each in part.header.get("merged") or [_origin(part)]]
    return dict(parts[0].header) | {
        "run": f"{parts[0].id}-{hashlib.sha256(ids.encode()).hexdigest()[:8]}",
        "devices": dict(sorted(devices.items())),
        "shard": "",
        "merged": merged,
    }


def _origin(part: RunFile) -> dict[str, Any]:
    return {
        "run": part.id,
        "shard": part.header.get("shard", ""),
        "url": part.header.get("url", ""),
        "fingerprint": part.header["host"].get("fingerprint", ""),
        "devices": sorted(part.header["devices"]),
    }
