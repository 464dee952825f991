"""The commands about releases: their toolchains, and a selection under several of them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from onnx_models import difference, difference_report, environments, releases, runs, states
from onnx_models.cli_options import CACHE, PATH
from onnx_models.merge import merge
from onnx_models.outcomes import SuiteError, UsageError
from onnx_models.runs import RunFile


@click.group("toolchains")
def toolchains_group() -> None:
    """The published releases whose tools are on this machine."""


@toolchains_group.command("ls")
@CACHE
def ls_command(cache: Path) -> None:
    """List them, the oldest release first."""
    found = environments.environments(cache)
    if not found:
        click.echo(f"none in {cache / 'toolchains'}: make one with onnx-models toolchains add 3.13.0")
        return
    table = Table("release", "compiler", "runtime", "onnx", "python", "size", "made")
    for each in found:
        names = ("iree-base-compiler", "iree-base-runtime", "onnx", "python")
        versions = [each.packages.get(name, "?") for name in names]
        table.add_row(each.name, *versions, f"{each.bytes / 1e6:.0f} MB", each.made)
    Console(width=200, markup=False).print(table)


@toolchains_group.command("add")
@click.argument("versions", nargs=-1, metavar="VERSION...")
@CACHE
def add_command(versions: tuple[str, ...], cache: Path) -> None:
    """Make the toolchains of VERSIONs, such as 3.9.0 or nightly, where they are not there yet."""
    if not versions:
        raise UsageError("no version named: give one such as 3.9.0, or nightly")
    failed = False
    for version in versions:
        try:
            click.echo(f"{version}: {environments.provide(version, cache).folder}")
        except SuiteError as error:
            failed = True
            click.echo(f"error: {error}", err=True)
    if failed:
        raise click.exceptions.Exit(1)


@toolchains_group.command("rm")
@click.argument("versions", nargs=-1, metavar="VERSION...")
@CACHE
def rm_command(versions: tuple[str, ...], cache: Path) -> None:
    """Remove the toolchains of VERSIONs; one that a run is using stays."""
    if not versions:
        raise UsageError("no version named: onnx-models toolchains ls lists them")
    for version in versions:
        environments.remove(version, cache)
        click.echo(f"removed {version}")


@click.command("releases", context_settings={"ignore_unknown_options": True})
@click.argument(
    "selection", nargs=-1, metavar="[SELECTION...] [-- PYTEST_OPTIONS...]", type=click.UNPROCESSED
)
@click.option("--iree", "versions", multiple=True, required=True, metavar="VERSION", help="repeatable")
@click.option("--collection", "collections", multiple=True, metavar="NAME", help="as for pytest")
@click.option("--device", "devices", multiple=True, metavar="NAME", help="as for pytest")
@click.option("--runs", "folder", type=PATH, metavar="RUNS_DIR", help="keep the runs in this history")
def releases_command(
    selection: tuple[str, ...],
    versions: tuple[str, ...],
    collections: tuple[str, ...],
    devices: tuple[str, ...],
    folder: Path | None,
) -> None:
    """Run the models whose names hold one of the WORDs under several releases.

    A release that cannot be had, or whose run breaks, does not stop the others.
    What is not as the lists expect is no failure: they are written for one release.
    """
    names = releases.distinct(versions)
    arguments = _arguments(selection, collections, devices)
    finished: list[RunFile] = []
    failures: list[str] = []
    with tempfile.TemporaryDirectory(prefix="onnx-models-") as scratch:
        for name in names:
            click.echo(f"\n--- IREE {name}")
            record = Path(scratch) / f"{name}.jsonl"
            code = releases.run_one(name, arguments, record)
            try:
                if code == releases.NOTHING:
                    raise SuiteError("no case was selected: onnx-models list shows the models")
                if code not in releases.RAN:
                    raise SuiteError(f"pytest ended with exit code {code}")
                run = merge([runs.read(record)]).run
                finished.append(run)
                if folder is not None:
                    click.echo(f"run: {runs.write(run, folder)}")
            except SuiteError as error:
                failures.append(f"IREE {name}: {error}")
    _print(finished)
    for line in failures:
        click.echo(f"error: {line}", err=True)
    if failures:
        raise click.exceptions.Exit(1)


def _arguments(
    selection: Sequence[str], collections: Sequence[str], devices: Sequence[str]
) -> tuple[str, ...]:
    """What pytest is told; words before the first option select, the rest is pytest's own."""
    first = next((k for k, word in enumerate(selection) if word.startswith("-")), len(selection))
    words, others = selection[:first], selection[first:]
    chosen = ("-k", " or ".join(words)) if words else ()
    flags = [f"--collection={name}" for name in collections] + [f"--device={name}" for name in devices]
    return ("--pyargs", "onnx_models", *flags, *chosen, *others)


def _print(finished: Sequence[RunFile]) -> None:
    """A table of the runs, then what changed from each to the next."""
    if not finished:
        return
    table = Table("release", "device", "passed", "vacuous", "failed", "other", "all")
    for run in finished:
        for device in sorted({case["device"] for case in run.cases}):
            counts = states.count(case for case in run.cases if case["device"] == device)
            other = counts["skipped"] + counts["error"]
            shown = (counts["passed"], counts["vacuous"], counts["failed"], other, counts["total"])
            table.add_row(run.header["release"], device, *map(str, shown))
    Console(width=160, markup=False).print(table)
    for base, head in pairwise(finished):
        click.echo("\n" + "\n".join(difference_report.as_text(difference.differ(base, head))))
