"""The commands about expectations: update them from records, list flakes, explain a case."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from onnx_models import catalog, devices, expectations, flakes, update
from onnx_models.cases import combine
from onnx_models.conditions import Circumstances
from onnx_models.explain import explain
from onnx_models.outcomes import UsageError
from onnx_models.records import RecordError
from onnx_models.runs import read as read_run
from onnx_models.update import Run

RECORDS = Path("artifacts") / "runs"
"""Where a run of pytest in the current folder puts its record."""

_RUNS = click.argument("runs", nargs=-1, type=click.Path(path_type=Path), metavar="[RUN.jsonl...]")
_LISTS = click.option(
    "--expectations",
    "lists",
    multiple=True,
    metavar="FILE_OR_DIR",
    help=f"lists instead of the suite's own, repeatable; {expectations.SHIPPED!r} stands for those",
)


@click.group("expectations")
def expectations_group() -> None:
    """The lists of what is known to fail."""


@expectations_group.command("update")
@_RUNS
@_LISTS
@click.option("--dry-run", is_flag=True, help="write nothing, print a diff that git apply takes")
def update_command(runs: tuple[Path, ...], lists: tuple[str, ...], dry_run: bool) -> None:
    """Make the last of the lists say what the completed cases of the RUNs did."""
    if not runs:
        raise UsageError("no record named: give the .jsonl files of the runs")
    found = update.update([_read(path) for path in runs], lists)
    if dry_run:
        click.echo(update.diff(found.changes), nl=False)
    else:
        update.write(found.changes)
        for change in found.changes:
            click.echo(f"updated {change.file}")
    for line in found.contradictions:
        click.echo(line, err=True)
    if not found.changes:
        click.echo("nothing to change", err=True)


@expectations_group.command("check")
@_LISTS
@click.option("--iree", default="3.13.0", show_default=True, help="the version to check for")
def check_command(lists: tuple[str, ...], iree: str) -> None:
    """Check every list: form, dates, version ranges, and that each entry names a model."""
    expectations.reject_strangers(lists, ())
    known = {
        name: expectations.load(lists, Circumstances.of(iree=iree, device=name)) for name in devices.names()
    }
    combine((), map(devices.load, known), known)
    models = [model for name in catalog.collections() for model in catalog.load(name)]
    for name, each in known.items():
        expected = [entry for entry in (each.expect(model.id) for model in models) if entry and entry.stage]
        click.echo(f"{name:<14} {len(expected)} models are expected to fail with IREE {iree}")


@click.command("flakes")
@_RUNS
def flakes_command(runs: tuple[Path, ...]) -> None:
    """List the cases of the RUNs whose result changed under one IREE, and propose entries."""
    if not runs:
        raise UsageError("no record named: give the .jsonl files of the runs, two or more")
    found = flakes.flips([_read(path) for path in runs])
    for flip in found:
        click.echo(f"# {flip.case}, on {flip.host}\n{flip.toml()}\n")
    click.echo(f"{len(found)} cases flipped in {len(runs)} runs", err=True)


@click.command("explain")
@click.argument("case", metavar="ID")
@_RUNS
@_LISTS
def explain_command(case: str, runs: tuple[Path, ...], lists: tuple[str, ...]) -> None:
    """Print everything known of the case ID (device/collection/path, or all devices' cases of a model).

    Looks in the RUNs, by default in those below artifacts/runs.
    """
    paths: Sequence[Path] = runs or sorted(RECORDS.glob("*.jsonl"))
    readable = []
    for path in paths:
        try:
            readable.append(_read(path, broken=True))
        except RecordError as error:
            if runs:
                raise
            click.echo(f"skipped: {error}", err=True)
    for line in explain(case, readable, lists):
        click.echo(line)


def _read(path: Path, *, broken: bool = False) -> Run:
    head, rows, foot = read_run(path).parts
    if foot.get("host_broken") and not broken:
        raise UsageError(f"{path}: has no verdicts: {foot['host_broken']}")
    return head, rows, bool(foot["complete"])
