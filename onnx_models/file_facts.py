"""What model files said of themselves, kept in the cache by content: opset and operators.

The catalogue's labels are claims. Once a file is there it is read, in a child process and
once; the record of a case, `onnx-models list` and its filters then go by what it says.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from onnx_models.catalog import Model
from onnx_models.files import write_atomic
from onnx_models.inspection import ModelFileError, ModelInfo, inspect

ONNX_DOMAIN = "ai.onnx"


def of_file(model: Model, model_file: Path, cache: Path) -> ModelInfo | None:
    """The declarations of a model's file; None where it cannot be read as ONNX."""
    kept = _place(model.sha256, cache)
    found = _read(kept) if kept else None
    if found is None:
        try:
            found = inspect(model_file)
        except ModelFileError:
            return None
        remember(model, found, cache)
    return found


def remember(model: Model, info: ModelInfo, cache: Path) -> None:
    """Keep what a file said; a user's own file has no lasting content to keep it under."""
    kept = _place(model.sha256, cache)
    if kept is None or kept.exists():
        return
    with suppress(OSError):  # a cache that cannot be written costs a child process, no more
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, json.dumps(info.to_json()) + "\n")


def complete(models: Iterable[Model], cache: Path) -> tuple[Model, ...]:
    """The models with the opset and the operators of those files that have been read."""
    folder = cache / "facts"
    try:
        known = {entry.name.removesuffix(".json") for entry in os.scandir(folder)}
    except OSError:
        known = set()
    return tuple(_completed(model, folder) if model.sha256 in known else model for model in models)


def opset_of(opsets: Mapping[str, int]) -> int:
    """The version of the ONNX domain, 0 where a model imports none."""
    return opsets.get(ONNX_DOMAIN, 0)


def _completed(model: Model, folder: Path) -> Model:
    info = _read(folder / f"{model.sha256}.json")
    if info is None:
        return model
    return replace(model, opset_label=opset_of(info.opsets), operators=dict(info.operators))


def _place(sha256: str, cache: Path) -> Path | None:
    return cache / "facts" / f"{sha256}.json" if re.fullmatch(r"[0-9a-f]{64}", sha256) else None


def _read(kept: Path) -> ModelInfo | None:
    with suppress(OSError, ValueError, KeyError, TypeError):
        return ModelInfo.from_json(json.loads(kept.read_text(encoding="utf-8")))
    return None
