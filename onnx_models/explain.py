"""Everything that is known of one case, as text."""

from __future__ import annotations

import importlib.metadata
import shlex
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx_models import catalog, devices, expectations, tools
from onnx_models.conditions import Circumstances
from onnx_models.outcomes import Expectation, SuiteError
from onnx_models.update import Run

TAIL = 20
"""Lines of a log that are shown."""


def explain(case: str, runs: Sequence[Run], wanted: Sequence[str] = ()) -> list[str]:
    """The lines that tell a case: its last record, what is expected and since when, its log, its kin.

    Args:
        case: `device/collection/path`; without the device, every device's case.
        runs: the runs to look in, in any order.
        wanted: the lists of expectations, as for `--expectations`.

    Raises:
        UsageError: a list is not well-formed.
        SuiteError: neither a run nor the catalogue has the case.
    """
    ordered = sorted(runs, key=lambda run: str(run[0]["started"]))
    known = {str(row["id"]) for _, rows, _ in ordered for row in rows}
    ids = [case] if case in known else sorted(each for each in known if each.partition("/")[2] == case)
    near = sorted({each.partition("/")[2] for each in known if case in each})
    if not ids and len(near) == 1:  # a word, as for -k
        ids = sorted(each for each in known if each.partition("/")[2] == near[0])
    if not ids:
        return _unrun(case, len(ordered), wanted, near)
    told = [_case(each, ordered, wanted) for each in ids]
    return [*told[0], *(line for lines in told[1:] for line in ("", *lines))]


def _unrun(case: str, records: int, wanted: Sequence[str], near: Sequence[str]) -> list[str]:
    """What the catalogue and the lists say of a case that no record has."""
    device, _, rest = case.partition("/")
    name = rest if device in devices.names() else case
    collection = name.partition("/")[0]
    models = catalog.load(collection) if collection in catalog.collections() else ()
    model = next((each for each in models if each.id == name), None)
    if model is None:
        ids = [each.id for part in catalog.collections() for each in catalog.load(part)]
        near = near or catalog.near(name, ids)
        hint = f"there is {', '.join(near[:3])}" if near else "onnx-models list --all has the models"
        raise SuiteError(f"{case}: in none of {records} records and in no catalogue; {hint}")
    lines = [name, f"record     in none of {records} records: run pytest -k '{model.path}'"]
    lines += [f"bytes      {model.bytes or 'unknown'}", f"source     {model.source['type']}"]
    for what in ("import", "compile", "run"):
        flags = getattr(model, f"{what}_flags")
        lines += [f"flags      {what}: {shlex.join(flags)}"] if flags else []
    lines += [f"note       {note}" for note in model.notes]
    for each in [device] if device in devices.names() else devices.names():
        entry = expectations.load(wanted, Circumstances.of(iree=_installed(), device=each)).expect(name)
        lines.append(
            f"{each:<12} expected to " + (f"fail in {entry.place}: {entry.why}" if entry else "pass")
        )
    return lines


def _installed() -> str:
    """The compiler of this Python, for entries that hold for some versions only."""
    try:
        return importlib.metadata.version("iree-base-compiler")
    except importlib.metadata.PackageNotFoundError:
        return "0"


def _case(case: str, ordered: Sequence[Run], wanted: Sequence[str]) -> list[str]:
    seen = [(head, row) for head, rows, _ in ordered for row in rows if row["id"] == case]
    head, row = seen[-1]
    return [
        *_record(head, row),
        *_expected(head, row, wanted),
        *_history(seen),
        *_commands(row),
        *_log(row),
        *_kin(row, ordered),
    ]


def _record(head: Mapping[str, Any], row: Mapping[str, Any]) -> Iterator[str]:
    yield row["id"]
    yield _verdict(row)
    yield f"run        {head['run']}, IREE {head['iree']}, on {head['host']['name']}"
    if row["kind"]:
        yield f"stopped    {row['stage']} ({row['kind']})"
        yield f"signature  {row.get('signature') or '(recorded before signatures)'}"
        if row.get("title"):
            yield f"title      {row['title']}"
        yield f"message    {row['message']}"
    for number, each in enumerate(row.get("attempts", ()), 1):
        yield f"attempt {number}  {_ended(each) if each else 'passes'}"
    for note in row["notes"]:
        yield f"note       {note}"
    for stage in row["stages"]:
        state = "ok" if stage["ok"] else "failed"
        megabytes, reused = stage["peak_bytes"] / 2**20, "  (reused)" if stage["reused"] else ""
        yield f"  {stage['stage']:<10} {state:<7} {stage['seconds']:>8.1f} s {megabytes:>8.0f} MiB{reused}"


def _verdict(row: Mapping[str, Any]) -> str:
    reason = f": {row['reason']}" if row["reason"] else ""
    return f"verdict    {row['verdict']}{reason}"


def _ended(row: Mapping[str, Any]) -> str:
    if not row["kind"]:
        return "passes" if row.get("verdict") not in ("skipped", "error") else str(row["verdict"])
    signature = row.get("signature")
    return f"{row['stage']} ({row['kind']}){f' as {signature}' if signature else ''}"


def _expected(head: Mapping[str, Any], row: Mapping[str, Any], wanted: Sequence[str]) -> Iterator[str]:
    here = Circumstances.of(
        iree=head["iree"],
        device=row["device"],
        system=head["host"]["system"],
        cpu=head["host"]["cpu"],
        found=head["devices"][row["device"]].get("found", ()),
    )
    model = row["id"].partition("/")[2]
    known = expectations.load(wanted, here)
    entry, flaky = known.expect(model), known.flaky(model)
    yield ""
    if entry is None:
        yield "expected   " + ("anything, for it is only recorded" if known.recording(model) else "to pass")
    else:
        yield f"expected   by {entry.source}:"
        yield from (f"  {line}" for line in entry.toml().splitlines())
        yield from (f"  {line}" for line in _edits(entry))
    if flaky is not None:
        yield f"flaky      {flaky.why} ({flaky.source})"


def _edits(entry: Expectation) -> Iterable[str]:
    """The commits that touched an entry, newest first, where its file is in a git checkout."""
    file = Path(entry.source)
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "git.log"
        command = ["git", "log", "--format=%h %as %s", f'-S"{entry.id}"', "--", file.name]
        try:
            done = tools.run(command, log=log, timeout=30.0, cwd=file.parent)
        except SuiteError:
            return ["(no history: git cannot be run)"]
        lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    if not done.ok:
        return ["(no history: the file is in no git checkout)"]
    return lines or ["(not committed yet)"]


def _history(seen: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> Iterator[str]:
    yield ""
    yield "history"
    for head, row in seen:
        yield f"  {head['started']}  IREE {head['iree']:<20} {row['verdict']:<17} {_ended(row)}"


def _commands(row: Mapping[str, Any]) -> Iterator[str]:
    commands = [command for stage in row["stages"] for command in stage["commands"]]
    if commands:
        yield ""
        yield "commands, run in the folder of the log"
    for command in commands:
        yield f"  {shlex.join(command)}"


def _log(row: Mapping[str, Any]) -> Iterator[str]:
    named = [stage["log"] for stage in row["stages"] if stage["log"]]
    if not named:
        return
    yield ""
    file = Path(named[-1])
    if not file.is_file():
        yield f"log        {file} (not on this machine)"
        return
    yield f"log        {file}, last {TAIL} lines"
    lines = file.read_text(encoding="utf-8", errors="replace").splitlines()[-TAIL:]
    yield from (f"  | {line[:300]}" for line in lines)


def _kin(row: Mapping[str, Any], runs: Sequence[Run]) -> Iterator[str]:
    """Other cases with the same fault, each as it was last seen."""
    signature = row.get("signature")
    if not signature:
        return
    last = {each["id"]: (head, each) for head, rows, _ in runs for each in rows}
    kin = sorted(
        f"{name} (IREE {head['iree']})"
        for name, (head, each) in last.items()
        if each.get("signature") == signature and name != row["id"]
    )
    yield ""
    yield f"same fault in {len(kin)} other cases"
    yield from (f"  {name}" for name in kin)
