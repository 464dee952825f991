"""Which models: filters over catalogue records, their totals, and how they are printed.

Pure: nothing is fetched or opened, so an answer costs milliseconds and says the
download size before anything is downloaded. What only the file knows (its real
opset, operators that no record lists) is not guessed here: `file_facts` completes
the records of those files that have been read.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from types import MappingProxyType
from typing import Any

from rich.table import Table
from rich.text import Text

from onnx_models.catalog import Model
from onnx_models.files import size_text
from onnx_models.outcomes import UsageError

SIZE_CLASSES: Mapping[str, int] = MappingProxyType({"small": 100_000_000, "medium": 1_000_000_000})
"""Upper bounds in bytes, exclusive; what is bigger is `large`, what has no recorded size is `unknown`."""

QUANTIZED = frozenset({"int8", "qdq", "quantized"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """What a selection amounts to.

    `bytes` adds up every model; `download_bytes` counts files with the same
    sha256 once, since they share one download; `unsized` models have no
    recorded size; `test_data_bytes` are the stored data sets' archives.
    """

    models: int
    bytes: int
    files: int
    download_bytes: int
    unsized: int = 0
    test_data_bytes: int = 0

    def __str__(self) -> str:
        text = f"{self.models} models, {size_text(self.download_bytes)} to download"
        if self.files < self.models:
            text += f" ({self.files} distinct files; {size_text(self.bytes)} without sharing)"
        if self.test_data_bytes:
            text += f", stored data sets {size_text(self.test_data_bytes)} more"
        return text + (f", {self.unsized} of unknown size" if self.unsized else "")


def download_bytes(model: Model) -> int:
    """Bytes to download for the model: of the archive where it only exists inside one, 0 when unknown."""
    return model.bytes or int(model.source.get("bytes", 0))


def digest_of(model: Model) -> str:
    """sha256 of what is downloaded: the model's, or its archive's; empty when unknown."""
    return model.sha256 or str(model.source.get("sha256", ""))


def size_class(model: Model) -> str:
    """`small` (below 100 MB), `medium` (below 1 GB), `large`, or `unknown`."""
    size = download_bytes(model)
    if not size:
        return "unknown"
    return next((name for name, bound in SIZE_CLASSES.items() if size < bound), "large")


def is_dynamic(model: Model) -> bool:
    """Whether an input is known to have a symbolic dim."""
    return "dynamic" in model.tags or bool(model.dims)


def aliases(models: Iterable[Model]) -> dict[str, tuple[str, ...]]:
    """Ids by sha256 of the files that stand under more than one path: one download, reference, import."""
    ids: dict[str, list[str]] = {}
    for model in models:
        if model.sha256:
            ids.setdefault(model.sha256, []).append(model.id)
    return {digest: tuple(sorted(same)) for digest, same in sorted(ids.items()) if len(same) > 1}


def select(
    models: Sequence[Model],
    *,
    collection: Sequence[str] = (),
    task: Sequence[str] = (),
    family: Sequence[str] = (),
    source: Sequence[str] = (),
    size: Sequence[str] = (),
    tag: Sequence[str] = (),
    op: Sequence[str] = (),
    opset: Sequence[int] = (),
    quantized: bool | None = None,
    dynamic: bool | None = None,
    control_flow: bool | None = None,
    max_bytes: int | None = None,
    text: str = "",
) -> tuple[Model, ...]:
    """The models that pass every filter, in their order; upper and lower case are the same.

    Args:
        models: what to choose from.
        collection: any of these collections.
        task: any of these tasks.
        family: any of these architectures.
        source: any of these exporters (`Model.origin`).
        size: any of these size classes.
        tag: all of these tags.
        op: all of these operators. A model without recorded operators never passes;
            `operators_unknown` finds those.
        opset: any of these, by the label: the file's own opset is known once it is there.
        quantized: True, False, or None for either; so the next two.
        dynamic: whether an input has a symbolic dim.
        control_flow: whether If, Loop, Scan or SequenceMap is on record.
        max_bytes: no model whose download is bigger; one of unknown size passes.
        text: part of the id, or a pattern with `*`, `?` or `[` for all of it; where it is the whole
            id, path or last name of models, only those.

    Raises:
        UsageError: a word that no model of `models` carries, with the nearest ones that exist.
    """
    tests: list[Callable[[Model], bool]] = [
        *_words("collection", collection, models, lambda m: m.collection),
        *_words("task", task, models, lambda m: m.task),
        *_words("family", family, models, lambda m: m.family),
        *_words("source", source, models, lambda m: m.origin),
        *_words("size class", size, models, size_class, (*SIZE_CLASSES, "large", "unknown")),
        *_words("opset", [str(n) for n in opset], models, lambda m: str(m.opset_label or "")),
        *_all_of("tag", tag, models, lambda m: m.tags),
        *_all_of("operator", op, models, lambda m: m.operators),
    ]
    if quantized is not None:
        tests.append(lambda m: bool(QUANTIZED & set(m.tags)) is quantized)
    if dynamic is not None:
        tests.append(lambda m: is_dynamic(m) is dynamic)
    if control_flow is not None:
        tests.append(lambda m: ("control-flow" in m.tags) is control_flow)
    if max_bytes is not None:
        tests.append(lambda m: download_bytes(m) <= max_bytes)
    if text:
        tests.append(_text(text.lower(), models))
    return tuple(model for model in models if all(test(model) for test in tests))


def operators_unknown(models: Iterable[Model]) -> tuple[Model, ...]:
    """Models whose operators are on no record, or listed without counts and so perhaps in part."""
    return tuple(m for m in models if not m.operators or not all(m.operators.values()))


def totals(models: Iterable[Model]) -> Totals:
    """Count the models and add up their bytes, once as they stand and once by distinct file."""
    everything = tuple(models)
    files = {digest_of(m) or m.id: download_bytes(m) for m in everything}
    data = {m.test_data["sha256"]: int(m.test_data["bytes"]) for m in everything if m.test_data}
    return Totals(
        models=len(everything),
        bytes=sum(map(download_bytes, everything)),
        files=len(files),
        download_bytes=sum(files.values()),
        unsized=sum(not size for size in files.values()),
        test_data_bytes=sum(data.values()),
    )


def table(models: Sequence[Model]) -> Table:
    """A rich table of the models with the totals below; ids are never cut."""
    shown = Table(box=None, pad_edge=False, caption=str(totals(models)), caption_justify="left")
    shown.add_column("model", overflow="fold", no_wrap=True)
    shown.add_column("size", justify="right", no_wrap=True)
    shown.add_column("opset", justify="right")
    shown.add_column("inputs", overflow="fold")
    shown.add_column("tags", overflow="fold")
    for model in models:
        size = download_bytes(model)
        shown.add_row(
            # Text: rich would take the brackets of shapes for markup.
            Text(model.id),
            size_text(size) if size else "?",
            str(model.opset_label or "?"),
            Text(", ".join(f"{fact.dtype or '?'}{_shape(fact.shape)}" for fact in model.inputs)),
            Text(" ".join(model.tags)),
        )
    return shown


def as_rows(models: Sequence[Model]) -> list[dict[str, Any]]:
    """One JSON-ready row a model, every row with the same keys."""
    twins = aliases(models)
    return [_row(model, twins.get(model.sha256, ())) for model in models]


def as_json(models: Sequence[Model]) -> str:
    """`as_rows` as a JSON array, one model a line."""
    rows = (json.dumps(row, ensure_ascii=False) for row in as_rows(models))
    return "[" + ",".join(f"\n {row}" for row in rows) + "\n]"


def _row(model: Model, same: Sequence[str]) -> dict[str, Any]:
    return {
        "id": model.id,
        "collection": model.collection,
        "path": model.path,
        "task": model.task,
        "family": model.family,
        "source": model.origin,
        "opset_label": model.opset_label,
        "bytes": download_bytes(model),
        "size_class": size_class(model),
        "sha256": digest_of(model),
        "tags": list(model.tags),
        "inputs": [
            {"name": f.name, "dtype": f.dtype, "shape": None if f.shape is None else list(f.shape)}
            for f in model.inputs
        ],
        "dims": dict(model.dims),
        "operators": {name: count or None for name, count in model.operators.items()},
        "test_data_bytes": int(model.test_data.get("bytes", 0)),
        "timeout_class": model.timeout_class,
        "aliases": [other for other in same if other != model.id],
        "notes": list(model.notes),
    }


def _shape(shape: Sequence[int | str] | None) -> str:
    return "" if shape is None else "[" + ",".join(map(str, shape)) + "]"


def _words(
    what: str,
    wanted: Sequence[str],
    models: Sequence[Model],
    word: Callable[[Model], str],
    known: Sequence[str] = (),
) -> list[Callable[[Model], bool]]:
    if not wanted:
        return []
    _check(what, wanted, [*known, *map(word, models)])
    lower = {name.lower() for name in wanted}
    return [lambda model: word(model).lower() in lower]


def _all_of(
    what: str, wanted: Sequence[str], models: Sequence[Model], words: Callable[[Model], Iterable[str]]
) -> list[Callable[[Model], bool]]:
    if not wanted:
        return []
    _check(what, wanted, [name for model in models for name in words(model)])
    lower = {name.lower() for name in wanted}
    return [lambda model: lower <= {name.lower() for name in words(model)}]


def _check(what: str, wanted: Sequence[str], known: Iterable[str]) -> None:
    spelled = {name.lower(): name for name in known if name}
    for name in wanted:
        if name.lower() not in spelled:
            near = difflib.get_close_matches(name.lower(), spelled, n=3, cutoff=0.6) or sorted(spelled)[:8]
            choices = ", ".join(spelled[word] for word in near) or "none is on record"
            raise UsageError(f"no model here has {what} {name!r}: nearest: {choices}")


def _text(pattern: str, models: Sequence[Model]) -> Callable[[Model], bool]:
    exact = {model.id for model in models if pattern in _names(model)}
    if exact:
        return lambda model: model.id in exact
    if any(sign in pattern for sign in "*?["):
        return lambda model: fnmatchcase(model.id.lower(), pattern)
    return lambda model: pattern in model.id.lower()


def _names(model: Model) -> tuple[str, str, str]:
    """What may stand for a model: its id, its path, the last part of that."""
    path = model.path.lower()
    return model.id.lower(), path, path.rpartition("/")[2]
