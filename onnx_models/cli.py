"""`onnx-models`: questions about the catalogue, the machine and a run's record."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import click
from rich.console import Console

import onnx_models
from onnx_models import (
    catalog,
    cli_dashboard,
    cli_expectations,
    cli_releases,
    cli_reports,
    devices,
    file_facts,
    prefetch,
    records,
    runs,
    selection,
    sources,
    toolchain,
    upkeep,
    zoo,
)
from onnx_models.catalog import Model
from onnx_models.cli_options import CACHE
from onnx_models.outcomes import SuiteError, UsageError
from onnx_models.record_lines import printable


class _Group(click.Group):
    """Turns a fault of the suite into one line and an exit code: 4 for usage, 1 for the rest."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except SuiteError as error:
            click.echo(f"error: {error}", err=True)
            raise click.exceptions.Exit(4 if isinstance(error, UsageError) else 1) from None
        except OSError as error:
            if error.errno == errno.EPIPE:  # who reads has seen enough; click ends with 1
                raise
            where = error.filename or "the output"
            if not error.filename:
                with suppress(OSError, ValueError):  # or what is left in its buffer fails again at the exit
                    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            click.echo(f"error: {where}: {error.strerror or error}", err=True)
            raise click.exceptions.Exit(1) from None


def _console() -> Console:
    """Wide where the output is not read on a terminal, so that nothing is cut off."""
    return Console(width=None if sys.stdout.isatty() else 240)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(onnx_models.__version__, prog_name="onnx-models")
def main() -> None:
    """How well IREE compiles ONNX, model by model and device by device."""


main.add_command(cli_expectations.expectations_group)
main.add_command(cli_expectations.flakes_command)
main.add_command(cli_expectations.explain_command)
main.add_command(cli_dashboard.dashboard_command)
main.add_command(cli_dashboard.history_command)
main.add_command(cli_releases.toolchains_group)
main.add_command(cli_releases.releases_command)
main.add_command(cli_reports.merge_command)
main.add_command(cli_reports.report_command)
main.add_command(cli_reports.diff_command)


_Decorator = Callable[[Callable[..., None]], Callable[..., None]]


def _selecting(command: Callable[..., None]) -> Callable[..., None]:
    """The filters that `list` and `fetch` share."""
    for decorate in reversed(_FILTERS):
        command = decorate(command)
    return command


def _many(name: str, help_text: str) -> _Decorator:
    return click.option(name, multiple=True, metavar="NAME", help=help_text)


_FILTERS: tuple[_Decorator, ...] = (
    click.argument("text", nargs=-1),
    _many("--collection", f"only these collections: {', '.join(catalog.collections())} (default: all)"),
    _many("--task", "only models of this task, such as classification"),
    _many("--family", "only models of this family, such as resnet"),
    _many("--source", "only models that were exported from here, such as timm"),
    click.option("--size", multiple=True, type=click.Choice(["small", "medium", "large", "unknown"])),
    _many("--tag", "only models with this tag; several must all hold"),
    _many("--op", "only models with this operator; several must all hold"),
    click.option("--opset", multiple=True, type=int, metavar="N", help="only models of this opset label"),
    click.option("--quantized/--not-quantized", default=None, help="int8 and QDQ models, or all others"),
    click.option("--dynamic/--static", default=None, help="models with symbolic dims, or without"),
    click.option("--control-flow/--no-control-flow", default=None, help="models with If, Loop or Scan"),
    click.option("--max-bytes", metavar="SIZE", help="only files of at most this size, such as 100MB"),
    CACHE,
)


def _selected(text: tuple[str, ...], max_bytes: str | None, cache: Path, **filters: Any) -> tuple[Model, ...]:
    """The models that the filters choose; each word of `text` must occur in the id or match it as a glob."""
    names = filters["collection"] or catalog.collections()
    models = file_facts.complete((model for name in names for model in catalog.load(name)), cache)
    limit = upkeep.parse_size(max_bytes) if max_bytes else None
    models = selection.select(models, max_bytes=limit, **filters)
    for word in text:
        models = selection.select(models, text=word)
    return models


def _asked(filters: Mapping[str, Any]) -> bool:
    return any(value not in ((), None) for key, value in filters.items() if key != "cache")


def _nothing(text: Sequence[str]) -> str:
    """Why a selection is empty, with names that are nearly those that were given."""
    ids = [model.id for name in catalog.collections() for model in catalog.load(name)]
    strange = [word for word in text if not any(word in each for each in ids)]
    near = [each for word in strange for each in catalog.near(word, ids)][:3]
    hint = f"there is {', '.join(near)}" if near else "drop a word or a filter"
    return f"no model fits: {hint}"


@main.command("list")
@_selecting
@click.option("--all", "everything", is_flag=True, help="every model, where nothing is asked for")
@click.option(
    "--json", "as_json", is_flag=True, help="print JSON; an operator that is there but not counted has null"
)
def list_models(as_json: bool, everything: bool, **filters: Any) -> None:
    """List the models whose ids hold TEXT (words or globs) and that the filters choose."""
    models = _selected(**filters)
    if not (as_json or _asked(filters) or everything):
        for name in catalog.collections():
            click.echo(f"{name:<14} {selection.totals([m for m in models if m.collection == name])}")
        click.echo("name a --collection or a filter to see models, or give --all")
        return
    if as_json:
        click.echo(selection.as_json(models))
        return
    if not models:
        raise UsageError(_nothing(filters["text"]))
    _console().print(selection.table(models))
    unknown = selection.operators_unknown(models)
    if filters["op"] and unknown:
        click.echo(f"{len(unknown)} of them have operators that no record counts: the list may be in part")


@main.command("fetch")
@_selecting
@click.option("--all", "everything", is_flag=True, help="every model, where nothing is asked for")
@click.option("--dry-run", is_flag=True, help="say what would be downloaded, and how much")
@click.option("--no-test-data", is_flag=True, help="leave the stored data sets out")
@click.option("--jobs", type=click.IntRange(1, 32), default=4, show_default=True, help="downloads at a time")
def fetch_models(
    dry_run: bool, no_test_data: bool, jobs: int, everything: bool, cache: Path, **filters: Any
) -> None:
    """Fetch the models whose ids hold TEXT and that the filters choose, with their stored data sets."""
    if not (_asked(filters) or everything or dry_run):
        raise UsageError(
            "name what to fetch, give a --collection or a filter, or --all; --dry-run says its size"
        )
    models = _selected(cache=cache, **filters)
    if not models:
        raise UsageError(_nothing(filters["text"]))
    files = tuple(zoo.files(models, test_data=not no_test_data))
    others = [model for model in models if model.source["type"] not in zoo.TYPES]
    planned = prefetch.plan(files, cache)
    if dry_run:
        if planned.missing:
            _console().print(prefetch.plan_table(planned))
        click.echo(f"{planned}" + (f"; {len(others)} models come from packages" if others else ""))
        return
    if planned.missing:
        click.echo(str(planned), err=True)
    failed = [
        done.error
        for done in prefetch.fetch_all(files, cache=cache, workers=jobs, console=Console(stderr=True))
        if done.error
    ]
    for model in others:
        try:
            sources.fetch(model, cache=cache)
        except SuiteError as error:
            failed.append(str(error))
    for line in failed:
        click.echo(f"error: {line}", err=True)
    click.echo(f"{len(models)} models selected, {len(failed)} files failed")
    if failed:
        raise click.exceptions.Exit(1)


@main.group("cache")
def cache_group() -> None:
    """Look after the folder of fetched models."""


@cache_group.command("ls")
@CACHE
def cache_ls(cache: Path) -> None:
    """List the files, the longest unused first."""
    _console().print(upkeep.table(upkeep.entries(cache)))


@cache_group.command("verify")
@click.option("--remove", is_flag=True, help="remove the wrong ones")
@CACHE
def cache_verify(remove: bool, cache: Path) -> None:
    """Hash every file again; exits 1 when one is wrong."""
    wrong = upkeep.verify(cache, remove=remove)
    for entry, problem in wrong:
        click.echo(f"{entry.path}: {problem}{', removed' if remove else ''}", err=True)
    click.echo(f"{len(wrong)} wrong files")
    if wrong:
        raise click.exceptions.Exit(1)


@cache_group.command("prune")
@click.option("--max-size", required=True, metavar="SIZE", help="what may stay, such as 50GB")
@CACHE
def cache_prune(max_size: str, cache: Path) -> None:
    """Remove the least recently used downloads until the rest fits; never a file in use."""
    click.echo(str(upkeep.prune(cache, upkeep.parse_size(max_size))))


@main.command("devices")
@click.option("--iree-bin", type=click.Path(path_type=Path), help="folder of the IREE tools")
def list_devices(iree_bin: Path | None) -> None:
    """List the devices, and what of them this machine can run."""
    chain = toolchain.find_toolchain(iree_bin, cache=sources.default_cache())
    for name in devices.names():
        device = devices.load(name)
        found = toolchain.list_devices(chain, device.driver) if device.driver else ()
        state = ", ".join(found) if found else "compile only" if device.absent == "compile-only" else "absent"
        click.echo(f"{name:<14} {device.title:<40} {state}")


@main.command("tools")
@click.option("--iree-bin", type=click.Path(path_type=Path), help="folder of the IREE tools")
def show_tools(iree_bin: Path | None) -> None:
    """Say which IREE tools would be tested, from where, and which version."""
    for line in toolchain.find_toolchain(iree_bin, cache=sources.default_cache()).describe():
        click.echo(line)


@main.command("summary")
@click.argument("record", type=click.Path(path_type=Path), nargs=-1, required=True, metavar="RECORD...")
def show_summary(record: tuple[Path, ...]) -> None:
    """Check the RECORDs of runs and print the table of each."""
    for number, path in enumerate(record):
        head, cases, foot = runs.read(path).parts
        only = frozenset(n for n, d in head["devices"].items() if d["last_stage"] == "compile")
        whole = "complete" if foot["complete"] else "NOT complete"
        lines = [f"run {head['run']}, IREE {head['iree']}, {whole}"]
        lines += records.summary(cases, compile_only=only)
        for line in [""] * bool(number) + lines:
            click.echo(printable(line))
