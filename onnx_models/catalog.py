"""The models: which exist, where each comes from, and what it must be fed.

A catalogue is data in `catalogue/`: one `.toml` per hand-written collection or
one `.jsonl` (a record a line) per generated one. Nothing here opens a model.
"""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from onnx_models import toml_files
from onnx_models.outcomes import UsageError

CATALOGUE = Path(__file__).parent / "catalogue"

INPUT_KINDS: Mapping[str, frozenset[str]] = MappingProxyType(
    {
        "uniform": frozenset({"low", "high"}),
        "normal": frozenset({"mean", "std"}),
        "ids": frozenset({"low", "below"}),
        "mask": frozenset({"keep"}),
        "constant": frozenset({"value"}),
        "values": frozenset({"values"}),
        "sizes": frozenset({"of", "axes"}),
        "distances": frozenset({"low", "below"}),
        "default": frozenset(),
        "file": frozenset({"path"}),
        "unsupported": frozenset({"why"}),
    }
)
"""Each kind of input and its parameters (`inputs.generate` says what they mean).

`unsupported` marks what IREE has no type for (strings, sequences): nothing is generated.
"""

TIMEOUT_CLASSES: Mapping[str, float] = MappingProxyType({"normal": 1.0, "long": 3.0, "longest": 6.0})
"""Factor by which a model's timeout class stretches each stage's time limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InputFact:
    """What is known of one graph input beyond the model file.

    `name` is the graph input's name, or `#0`, `#1`, ... for its position among
    the inputs that are not initializers, where no record tells the name.
    `shape` has one entry per axis, a size or the name of a symbol bound in
    `Model.dims`; None takes the file's own shape. `dtype` (numpy's word, or
    `string`, `sequence(uint8)`) is what is known before the file is there;
    the file decides. `params` are those of `kind`.
    """

    name: str
    kind: str
    dtype: str = ""
    shape: tuple[int | str, ...] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One model of the catalogue.

    Attributes:
        collection: `skeletons`, `wheels`, `zoo`, `local` and so on.
        path: path inside the collection, without `.onnx`; unique there.
        source: how to get the file; `type` names the route, the rest is the route's own.
        sha256: of the model file, lower-case hex; empty for a local file.
        bytes: size of the model file, 0 when unknown.
        inputs: facts of the inputs that need them; others follow `inputs.default_fact`.
        dims: sizes of symbolic dims (`dim_param`), by name.
        import_flags, compile_flags, run_flags: extra flags of the tools, visible in the report.
        session: onnxruntime session configuration of the reference.
        compare: overrides of the comparison, by output name.
        task, family: what the model is for, and the architecture it is a version of.
        origin: who exported it: `timm`, `torch_hub`, `transformers`, `validated`, ...
        opset_label: opset that the file's name or manifest claims, 0 when none does;
            a hint only, for three zoo pairs are one file under two labels.
        operators: occurrences by operator type; 0 where only the presence is on record.
            Empty when nothing is on record, so absence proves nothing unless counts are given.
        test_data: archive of stored data sets: `path`, `sha256`, `bytes`, and `bad`, a list of
            `set` (number or `*`), `part` (`inputs` or `outputs`) and `why` not to trust it.
        twin: id of the collection's first model with the same file and facts, empty for that one
            itself; both share their inputs, reference and artifacts.
        external_data: whether weights lie in files beside the model's.
        timeout_class: a key of `TIMEOUT_CLASSES`.
        tags: lower-case words to filter by.
        notes: what a reader must know, one sentence each.
    """

    collection: str
    path: str
    source: Mapping[str, Any]
    sha256: str = ""
    bytes: int = 0
    inputs: tuple[InputFact, ...] = ()
    dims: Mapping[str, int] = field(default_factory=dict)
    import_flags: tuple[str, ...] = ()
    compile_flags: tuple[str, ...] = ()
    run_flags: tuple[str, ...] = ()
    session: Mapping[str, Any] = field(default_factory=dict)
    compare: Mapping[str, Any] = field(default_factory=dict)
    task: str = ""
    family: str = ""
    origin: str = ""
    opset_label: int = 0
    operators: Mapping[str, int] = field(default_factory=dict)
    test_data: Mapping[str, Any] = field(default_factory=dict)
    twin: str = ""
    external_data: bool = False
    timeout_class: str = "normal"
    tags: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def id(self) -> str:
        """`collection/path`: names the model everywhere."""
        return f"{self.collection}/{self.path}"

    @property
    def data_identity(self) -> object:
        """What tells the external data of a user's file from what lay there before; None without any."""
        return self.source.get("external")

    @property
    def shared_id(self) -> str:
        """The id under which inputs, reference and artifacts are kept."""
        return self.twin or self.id


def collections() -> tuple[str, ...]:
    """The names of the catalogued collections, sorted."""
    return tuple(sorted(p.stem for p in CATALOGUE.iterdir() if p.suffix in (".toml", ".jsonl")))


def load(collection: str) -> tuple[Model, ...]:
    """The models of a collection, sorted by path.

    Raises:
        UsageError: there is no such collection, or its file is not well-formed.
    """
    for suffix, parse in ((".toml", _toml_rows), (".jsonl", _jsonl_rows)):
        file = CATALOGUE / f"{collection}{suffix}"
        if file.is_file():
            models = tuple(_model(collection, row, file) for row in parse(file))
            return _with_twins(sorted(_unique(models, file), key=lambda m: m.path))
    raise UsageError(f"unknown collection {collection!r}: choose from {', '.join(collections())}")


def near(word: str, ids: Iterable[str], most: int = 3) -> list[str]:
    """Ids that hold a word, or one whose last part or whole is nearly it: what a slip of the pen meant."""
    known = sorted(set(ids))
    held = [each for each in known if word in each]
    if held:
        return held[:most]
    parts: dict[str, str] = {}
    for each in known:
        for part in (each, *each.split("/")[1:]):
            parts.setdefault(part, each)
    close = difflib.get_close_matches(word, parts, n=most, cutoff=0.75)
    return list(dict.fromkeys(parts[part] for part in close))


def _with_twins(models: Sequence[Model]) -> tuple[Model, ...]:
    """Point each model at the first with the same file, where the facts are the same too."""
    first: dict[str, Model] = {}
    found = []
    for model in models:
        other = first.setdefault(model.sha256 or model.path, model)
        same = other is not model and all(getattr(other, key) == getattr(model, key) for key in _SHARED)
        found.append(replace(model, twin=other.id) if same else model)
    return tuple(found)


_SHARED = (
    "inputs",
    "dims",
    "import_flags",
    "compile_flags",
    "run_flags",
    "session",
    "test_data",
    "compare",
    "timeout_class",
)
"""What must agree, beside the file, for two models to share their artifacts."""


def digest() -> str:
    """sha256 over every catalogue file, to tell runs of different catalogues apart."""
    total = hashlib.sha256()
    for file in sorted(CATALOGUE.iterdir()):
        if file.suffix in (".toml", ".jsonl"):
            total.update(file.name.encode() + b"\0" + file.read_bytes())
    return total.hexdigest()


def _toml_rows(file: Path) -> Iterable[Mapping[str, Any]]:
    rows = toml_files.read_tables(file, "model")
    if not rows:
        raise UsageError(f"{file}: not a catalogue: it needs [[model]] tables, one per model")
    return rows


def _jsonl_rows(file: Path) -> Iterable[Mapping[str, Any]]:
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                row = json.loads(line)
            except ValueError as error:  # of the JSON or of the UTF-8
                raise UsageError(f"{file}:{number}: not JSON ({error}): one record a line") from None
            if not isinstance(row, dict):
                raise UsageError(f"{file}:{number}: expected an object, found {type(row).__name__}")
            yield row


def _unique(models: tuple[Model, ...], file: Path) -> tuple[Model, ...]:
    seen: set[str] = set()
    for model in models:
        if model.path in seen:
            raise UsageError(f"{file}: {model.path!r} is listed twice")
        seen.add(model.path)
    return models


_TUPLES = ("import_flags", "compile_flags", "run_flags", "tags", "notes")
_FIELDS = frozenset(Model.__slots__) - {"collection", "twin"}


def _model(collection: str, row: Mapping[str, Any], file: Path) -> Model:
    where = f"{file}: {row.get('path', '?')!r}"
    unknown = sorted(set(row) - _FIELDS)
    if unknown:
        raise UsageError(f"{where}: unknown key {unknown[0]!r}: choose from {', '.join(sorted(_FIELDS))}")
    if not {"path", "source"} <= set(row):
        raise UsageError(f"{where}: a model needs 'path' and 'source'")
    if row.get("timeout_class", "normal") not in TIMEOUT_CLASSES:
        raise UsageError(f"{where}: 'timeout_class' must be one of {', '.join(TIMEOUT_CLASSES)}")
    values: dict[str, Any] = dict(row)
    values.update({key: tuple(row[key]) for key in _TUPLES if key in row})
    if "inputs" in row:
        facts = row["inputs"]
        if not isinstance(facts, list) or not all(isinstance(fact, dict) for fact in facts):
            raise UsageError(f"{where}: 'inputs' must be tables, one per input")
        values["inputs"] = tuple(_fact(fact, where) for fact in facts)
    return Model(collection=collection, **values)


def _fact(row: Mapping[str, Any], where: str) -> InputFact:
    params = {key: value for key, value in row.items() if key not in ("name", "kind", "dtype", "shape")}
    kind = str(row.get("kind"))
    if "name" not in row or kind not in INPUT_KINDS:
        raise UsageError(f"{where}: an input needs 'name' and 'kind', one of {', '.join(INPUT_KINDS)}")
    unknown = sorted(set(params) - INPUT_KINDS[kind])
    if unknown:
        raise UsageError(f"{where}: input {row['name']!r}: {kind} takes no {unknown[0]!r}")
    shape = tuple(row["shape"]) if "shape" in row else None
    return InputFact(name=row["name"], kind=kind, dtype=row.get("dtype", ""), shape=shape, params=params)
