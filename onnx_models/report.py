"""What people read of one run: Markdown on GitHub."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from onnx_models import latency, markdown, records, states
from onnx_models.difference import Difference
from onnx_models.difference_report import changes_markdown, label, notes_markdown
from onnx_models.markdown import code, details, table, text
from onnx_models.outcomes import Verdict
from onnx_models.runs import RunFile
from onnx_models.states import State

Case = Mapping[str, Any]

SUMMARY_LIMIT = 200_000
"""Bytes of a job's summary; GitHub takes 1 MiB of all steps together."""

_UNEXPECTED = (
    (Verdict.REGRESSED, "Regressed"),
    (Verdict.CHANGED, "Failing in another way"),
    (Verdict.IMPROVED, "Improved: the lists can be shortened"),
    (Verdict.FLAKY, "Flaky"),
    (Verdict.ERROR, "Errors of the machine or the suite"),
    (Verdict.NEW, "New, not yet adopted"),
)

_ROWS = 50

INCOMPLETE = "incomplete"
"""The word of `report --fail-on` for a run that was cut off, is empty, or says nothing of IREE."""

_JUDGES_THE_WHOLE = frozenset((INCOMPLETE, Verdict.REGRESSED.value))
"""Of a run that is not whole nobody knows that nothing regressed."""


def run_markdown(run: RunFile, against: Difference | None = None) -> str:
    """A run for GITHUB_STEP_SUMMARY: what is known at a glance first, then what to act on."""
    head = run.header
    lines = [f"## ONNX models on IREE {text(head['release'])}", "", *_banners(run)]
    lines += _funnel(run)
    if against is not None:
        lines += [f"### Against {text(label(against.base))}", "", *notes_markdown(against)]
        lines += changes_markdown(against)
    lines += _unexpected(run.cases)
    lines += _signatures(run.cases)
    lines += _slowest(run.cases)
    lines += _latencies(run.cases)
    lines += [_provenance(head)]
    return markdown.bounded(lines, SUMMARY_LIMIT, "The rest is left out here; the record has all of it.")


def _banners(run: RunFile) -> list[str]:
    lines = []
    if run.footer.get("host_broken"):
        lines += [f"> **No verdicts.** {text(run.footer['host_broken'])}", ""]
    if not run.footer["complete"]:
        lines += ["> **Incomplete.** Not every selected case ran to its end; those count as not passed.", ""]
    if not run.cases:
        return [*lines, "No case was selected, so nothing is known of this IREE.", ""]
    silent = sorted(set(run.header["devices"]) - {case["device"] for case in run.cases})
    if silent:
        lines += [f"> **No case of {text(', '.join(silent))}**: nothing is known of IREE there.", ""]
    return lines


def _funnel(run: RunFile) -> list[str]:
    only = frozenset(n for n, d in run.header["devices"].items() if d["last_stage"] == "compile")
    found = records.funnel(run.cases)
    if not found:
        return []
    shown = records.columns(found)
    rows = []
    for device in (name for name in run.header["devices"] if name in found):
        row = found[device]
        absent = ("referenced", "ran", "matched") if device in only else ()
        rows.append([text(device), *("-" if column in absent else str(row[column]) for column in shown)])
    return table(["device", *shown], rows, right=range(1, len(shown) + 1))


def _unexpected(cases: Sequence[Case]) -> list[str]:
    lines: list[str] = []
    for verdict, words in _UNEXPECTED:
        rows = [
            [code(case["id"]), text(states.describe(case)), text(case["reason"])]
            for case in cases
            if case["verdict"] == verdict.value
        ]
        if rows:
            lines += [f"### {words} ({len(rows)})", "", *table(["case", "result", "reason"], rows[:_ROWS])]
            if len(rows) > _ROWS:
                lines += [f"… and {len(rows) - _ROWS} more.", ""]
    if lines or not cases:
        return lines
    reasons = Counter(case["reason"] for case in cases if case["verdict"] == Verdict.SKIPPED.value)
    skipped = reasons.total()
    if skipped < len(cases):
        lines += [f"Every case{' that ran' if skipped else ''} did what was expected of it.", ""]
    if skipped:
        why = "; ".join(f"{count} x {text(reason)}" for reason, count in reasons.most_common(5))
        lines += [f"{skipped} of {len(cases)} cases did not run: {why}.", ""]
    return lines


def _signatures(cases: Sequence[Case]) -> list[str]:
    models: dict[str, set[str]] = defaultdict(set)
    count: Counter[str] = Counter()
    titles: dict[str, str] = {}
    for case in cases:
        if states.state(case) is State.FAILED and case.get("signature"):
            models[case["signature"]].add(case["model"])
            count[case["signature"]] += 1
            titles[case["signature"]] = case.get("title", "")
    if not count:
        return []
    ranked = sorted(count, key=lambda name: (-len(models[name]), -count[name], name))
    rows = [
        [
            code(name),
            text(titles[name]),
            str(len(models[name])),
            str(count[name]),
            text(", ".join(sorted(models[name])), 120),
        ]
        for name in ranked[:15]
    ]
    more = f"… and {len(ranked) - 15} more faults." if len(ranked) > 15 else ""
    body = table(["fault", "title", "models", "cases", "which"], rows, right=(2, 3))
    return ["### Faults by the models they stop", "", *body, *([more, ""] if more else [])]


_NOTABLE = 0.05
"""Seconds; what takes less is not among the slowest of anything."""


def _slowest(cases: Sequence[Case]) -> list[str]:
    stages = [
        (float(stage["seconds"]), int(stage["peak_bytes"]), stage["stage"], case["id"], bool(stage["reused"]))
        for case in cases
        for stage in case["stages"]
    ]
    slow = sorted((each for each in stages if not each[4] and each[0] >= _NOTABLE), reverse=True)[:5]
    if not slow:
        return []
    rows = [
        [code(case), stage, f"{seconds:.1f} s", f"{peak / 2**30:.2f} GiB" if peak else "-"]
        for seconds, peak, stage, case, _ in slow
    ]
    largest = max(stages, key=lambda each: each[1])
    body = table(["case", "stage", "time", "memory"], rows, right=(2, 3))
    if largest[1]:
        body += [f"Most memory: {largest[1] / 2**30:.2f} GiB, {largest[2]} of {code(largest[3])}.", ""]
    return details("Slowest stages", ["", *body])


def _latencies(cases: Sequence[Case]) -> list[str]:
    """What `--benchmark` measured, the largest ratio to onnxruntime's first."""
    rows = [[code(case), *others] for case, *others in latency.listed(cases)]
    if not rows:
        return []
    more = [f"… and {len(rows) - _ROWS} more.", ""] if len(rows) > _ROWS else []
    body = table(["case", "latency", "onnxruntime", "ratio"], rows[:_ROWS], right=(1, 2, 3))
    return details("Latency", ["", *body, *more])


def _provenance(head: Mapping[str, Any]) -> str:
    host = head["host"]
    packages = ", ".join(f"{name} {version}" for name, version in head["packages"].items())
    words = (
        f"Run {head['run']}, begun {head['started']}; compiler {head['iree']}; suite {head['suite']}; "
        f"{packages}; {host['cores']} cores, {host['memory_bytes'] / 2**30:.0f} GiB."
    )
    return text(words, 600)


def fail_on(words: Iterable[str], run: RunFile) -> list[str]:
    """What of a run meets a word of `report --fail-on`: its cases of that verdict, or the run itself."""
    wanted = frozenset(words)
    met = [case["id"] for case in run.cases if case["verdict"] in wanted]
    return met if run.whole or not wanted & _JUDGES_THE_WHOLE else [f"run {run.id}", *met]


def as_json(run: RunFile) -> dict[str, Any]:
    """A run's numbers as data: its header's facts, the funnel and the states per device."""
    by_device: dict[str, list[Case]] = defaultdict(list)
    for case in run.cases:
        by_device[case["device"]].append(case)
    return {
        "run": run.id,
        "release": run.header["release"],
        "complete": run.footer["complete"],
        "funnel": records.funnel(run.cases),
        "states": {device: states.count(cases) for device, cases in by_device.items()},
    }
