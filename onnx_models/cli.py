"""`onnx-models`: questions about the catalogue, the machine and a run's record."""

from __future__ import annotations

import json
from pathlib import Path

import click

import onnx_models
from onnx_models import catalog, devices, records, sources, toolchain
from onnx_models.outcomes import SuiteError, UsageError


class _Group(click.Group):
    """Turns a fault of the suite into one line and an exit code: 4 for usage, 1 for the rest."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except SuiteError as error:
            click.echo(f"error: {error}", err=True)
            raise click.exceptions.Exit(4 if isinstance(error, UsageError) else 1) from None


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(onnx_models.__version__, prog_name="onnx-models")
def main() -> None:
    """How well IREE compiles ONNX, model by model and device by device."""


@main.command("list")
@click.option("--collection", "wanted", multiple=True, metavar="NAME", help="only these collections")
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
def list_models(wanted: tuple[str, ...], as_json: bool) -> None:
    """List the models of the catalogue."""
    models = [model for name in wanted or catalog.collections() for model in catalog.load(name)]
    if as_json:
        rows = [{"id": m.id, "bytes": m.bytes, "sha256": m.sha256, "tags": list(m.tags)} for m in models]
        click.echo(json.dumps(rows, indent=1, ensure_ascii=False))
        return
    width = max((len(m.id) for m in models), default=0)
    for model in models:
        click.echo(f"{model.id:<{width}}  {model.bytes / 1e6:>9.1f} MB  {' '.join(model.tags)}")
    click.echo(f"{len(models)} models, {sum(m.bytes for m in models) / 1e6:.1f} MB")


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
@click.argument("record", type=click.Path(path_type=Path))
def show_summary(record: Path) -> None:
    """Check a run's RECORD and print its table."""
    head, cases, foot = records.read(record)
    only = frozenset(n for n, d in head["devices"].items() if d["last_stage"] == "compile")
    click.echo(
        f"run {head['run']}, IREE {head['iree']}, {'complete' if foot['complete'] else 'NOT complete'}"
    )
    for line in records.summary(cases, compile_only=only):
        click.echo(line)
