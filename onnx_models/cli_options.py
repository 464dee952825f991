"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path

import click

from onnx_models import sources

PATH = click.Path(path_type=Path)


def _cache(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> Path:
    return value.expanduser().absolute() if value else sources.default_cache()


CACHE = click.option(
    "--cache-dir",
    "cache",
    type=PATH,
    callback=_cache,
    metavar="DIR",
    help="folder of fetched models and toolchains (default: ONNX_MODELS_CACHE)",
)
