"""The commands about the history: build the site, list the runs, ask the tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from onnx_models.dashboard.build import build
from onnx_models.history import History
from onnx_models.outcomes import UsageError
from onnx_models.record_lines import printable

_RUNS = click.argument("runs", type=click.Path(path_type=Path), metavar="RUNS_DIR")


@click.command("dashboard")
@_RUNS
@click.option(
    "-o",
    "--output",
    "folder",
    type=click.Path(path_type=Path),
    required=True,
    metavar="SITE",
    help="the site",
)
@click.option("--base-url", default="", metavar="URL", help="where the site will be, for its feed")
@click.option("--skip-broken", is_flag=True, help="exit with 0 although a run cannot be read")
def dashboard_command(runs: Path, folder: Path, base_url: str, skip_broken: bool) -> None:
    """Build a static site of the runs in RUNS_DIR, or bring it up to date."""
    if base_url and not base_url.startswith(("https://", "http://")):
        raise UsageError(f"--base-url {base_url!r}: expected https://...")
    written, broken = build(runs, folder, base_url=base_url)
    for why in broken.values():
        click.echo(f"left out: {why}", err=True)
    click.echo(
        f"{folder}: {written.pages} files, {written.changed} written, {written.removed} removed; "
        f"the largest is {written.largest[0]} ({written.largest[1] / 1e3:.0f} kB)"
    )
    if broken and not skip_broken:
        raise click.exceptions.Exit(1)


@click.command("history")
@_RUNS
@click.option("--json", "as_json", is_flag=True, help="print JSON instead of a table")
@click.option("--sql", metavar="QUERY", help="answer a query over the tables (see docs/dashboard.md)")
def history_command(runs: Path, as_json: bool, sql: str | None) -> None:
    """List the runs in RUNS_DIR by age of the release, or answer a query over all of them."""
    history = History(runs)
    try:
        query = sql or (
            """SELECT id AS run, release, strftime(started, '%Y-%m-%d %H:%M') AS started, cases,
                  count(*) FILTER (state = 'passed') AS passed,
                  count(*) FILTER (state = 'vacuous') AS vacuous,
                  count(*) FILTER (state = 'failed') AS failed,
                  count(*) FILTER (state IN ('skipped', 'error')) AS other, complete
               FROM run LEFT JOIN result ON result.run = run.key GROUP BY ALL ORDER BY any_value(position)"""
        )
        rows = history.ask(query)
    finally:
        history.close()
    for why in history.broken.values():
        click.echo(f"left out: {why}", err=True)
    if as_json:
        click.echo(json.dumps([_plain(row) for row in rows], default=str, indent=1, allow_nan=False))
        return
    table = Table(*(rows[0] if rows else ("no runs",)))
    for row in rows:
        table.add_row(*(printable(str(value)) for value in row.values()))
    Console(width=200, markup=False, highlight=False).print(table)


def _plain(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row for JSON, which has no NaN and no infinity."""
    return {
        key: None if isinstance(value, float) and not math.isfinite(value) else value
        for key, value in row.items()
    }
