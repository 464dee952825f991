"""The hand-kept facts of the zoo, joined with what a checkout says: one catalogue record a model.

Pure: reads the facts' files once, then turns rows into records. Whatever does
not fit (a model without inputs, a fact without a model, an input without a
rule, a name or size that the zoo's manifest contradicts) is a line in
`Facts.problems`, so that a rebuild shows all of them at once.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Record = dict[str, Any]

ONNX_TYPES = {"float": "float32", "double": "float64"}
"""ONNX's words for element types where numpy's differ."""

CONTROL_FLOW = frozenset({"If", "Loop", "Scan", "SequenceMap"})

_PARTS = {
    "int8": r"-int8$",
    "qdq": r"-qdq$",
    "lm-head": r"lm-?head",
    "encoder": r"encoder",
    "decoder": r"decoder",
    "preproc": r"preproc",
}
"""Tags that a file's name carries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One model of the checkout: a `.onnx`, or an archive that stands alone.

    `ports` are the manifest's inputs, `dimensions` and `operators` those of an
    export's statistics. `repo` names the per-model repository of the hub where
    the stem is not unique.
    """

    path: str
    sha256: str
    bytes: int
    opset_label: int = 0
    test_data: Mapping[str, Any] = field(default_factory=dict)
    ports: Sequence[Mapping[str, Any]] = ()
    dimensions: Mapping[str, Sequence[int]] = field(default_factory=dict)
    operators: Mapping[str, int] = field(default_factory=dict)
    repo: str = ""

    @property
    def stem(self) -> str:
        """The file's name without its suffixes."""
        return re.sub(r"\.(onnx|tar\.gz|zip)$", "", self.path.rsplit("/", 1)[1])

    @property
    def collection(self) -> str:
        """Which catalogue file holds it."""
        if not self.path.endswith(".onnx"):
            return "zoo-archives"
        return "zoo" if self.path.startswith("validated/") else "zoo-turnkey"

    @property
    def record_path(self) -> str:
        """Path inside the collection: the zoo's own, less what the collection's name says already."""
        return self.path.removeprefix("validated/").rsplit("/", 1)[0] + "/" + self.stem


class Facts:
    """The facts' files, and the problems met while records were made with them."""

    def __init__(self, folder: Path) -> None:
        """Read `zoo_inputs`, `zoo_operators`, `zoo_treatments` and `turnkey_rules` `.toml` in `folder`."""
        self.problems: list[str] = []
        self._inputs = self._by_model(_read(folder / "zoo_inputs.toml").get("group", ()), "zoo_inputs.toml")
        self._operators = self._by_model(
            _read(folder / "zoo_operators.toml").get("group", ()), "zoo_operators.toml"
        )
        treatments = _read(folder / "zoo_treatments.toml")
        self._timeout = treatments.get("timeout", {})
        self._treatments = treatments.get("treatment", ())
        self._rules = _read(folder / "turnkey_rules.toml").get("rule", ())
        self._used: set[str] = set()

    def records(self, rows: Iterable[Row]) -> dict[str, list[Record]]:
        """Records by collection, sorted by path; check `problems` afterwards."""
        collections: dict[str, list[Record]] = {"zoo": [], "zoo-turnkey": [], "zoo-archives": []}
        for row in sorted(rows, key=lambda row: row.record_path):
            collections[row.collection].append(self._record(row))
        self._report_unused(collections)
        return collections

    def _by_model(self, groups: Iterable[Mapping[str, Any]], file: str) -> dict[str, Mapping[str, Any]]:
        found: dict[str, Mapping[str, Any]] = {}
        for group in groups:
            for model in group["models"]:
                if model in found:
                    self.problems.append(f"{file}: {model!r} is listed twice")
                found[model] = group
        return found

    def _record(self, row: Row) -> Record:
        record: Record = {"path": row.record_path, "source": _source(row)}
        if row.collection != "zoo-archives":
            record |= {"sha256": row.sha256, "bytes": row.bytes}
        record |= _from_path(row)
        record["opset_label"] = row.opset_label
        record["tags"] = [tag for tag, pattern in _PARTS.items() if re.search(pattern, row.stem)]
        record["notes"] = []
        if row.collection == "zoo":
            self._add_validated(record, row)
        else:
            self._add_exported(record, row)
        if any(isinstance(size, str) for fact in record["inputs"] for size in fact.get("shape", ())):
            record["tags"].append("dynamic")
        if CONTROL_FLOW & set(record["operators"]):
            record["tags"].append("control-flow")
        record["timeout_class"] = self._timeout_class(row.bytes)
        record["test_data"] = dict(row.test_data)
        self._treat(record, f"{row.collection}/{row.record_path}")
        record["tags"] = sorted(set(record["tags"]))
        return {key: value for key, value in record.items() if value not in ("", 0, [], {}, "normal")}

    def _add_validated(self, record: Record, row: Row) -> None:
        group = self._inputs.get(row.record_path)
        if group is None:
            self.problems.append(f"zoo_inputs.toml: {row.record_path!r} is missing: say what to feed it")
        record["inputs"] = list(group["inputs"]) if group else []
        record["dims"] = dict(group.get("dims", {})) if group else {}
        if group and group.get("note"):
            record["notes"].append(group["note"])
        named = self._operators.get(row.record_path, {}).get("operators", ())
        record["operators"] = dict.fromkeys(sorted(named), 0)
        if row.ports and group:
            self.problems += _contradictions(row, record["inputs"], record["dims"])

    def _add_exported(self, record: Record, row: Row) -> None:
        record["operators"] = dict(sorted(row.operators.items()))
        record["inputs"] = []
        for name, shape in row.dimensions.items():
            rule = self._rule(name, len(shape), record["family"])
            if rule is None:
                self.problems.append(
                    f"turnkey_rules.toml: no rule for input {name!r} {list(shape)} of {row.path}"
                )
                continue
            record["inputs"].append({"name": name, "shape": list(shape), **rule["fact"]})

    def _rule(self, name: str, rank: int, family: str) -> Mapping[str, Any] | None:
        for rule in self._rules:
            if (rule["input"], rule["rank"]) == (name, rank) and family in rule.get("families", [family]):
                found: Mapping[str, Any] = rule
                return found
        return None

    def _timeout_class(self, size: int) -> str:
        if size >= self._timeout.get("longest_from_bytes", sys.maxsize):
            return "longest"
        return "long" if size >= self._timeout.get("long_from_bytes", sys.maxsize) else "normal"

    def _treat(self, record: Record, model_id: str) -> None:
        for treatment in self._treatments:
            patterns = [p for p in treatment["models"] if fnmatchcase(model_id, p)]
            if not patterns:
                continue
            self._used |= {f"{treatment['id']}: {p}" for p in patterns}
            record["tags"] += treatment.get("tags", ())
            record["notes"] += treatment.get("notes", ())
            for key in ("session", "import_flags", "timeout_class", "opset_label"):
                if key in treatment:
                    record[key] = treatment[key]
            if "bad" in treatment and record["test_data"]:
                record["test_data"]["bad"] = record["test_data"].get("bad", []) + treatment["bad"]

    def _report_unused(self, collections: Mapping[str, Sequence[Record]]) -> None:
        known = {record["path"] for record in collections["zoo"]}
        for file, table in (("zoo_inputs.toml", self._inputs), ("zoo_operators.toml", self._operators)):
            self.problems += [f"{file}: no such model: {model!r}" for model in table if model not in known]
        for treatment in self._treatments:
            for pattern in treatment["models"]:
                if f"{treatment['id']}: {pattern}" not in self._used:
                    self.problems.append(f"zoo_treatments.toml: {treatment['id']}: {pattern!r} fits no model")


def _read(file: Path) -> dict[str, Any]:
    return tomllib.loads(file.read_text(encoding="utf-8"))


def _source(row: Row) -> Record:
    source: Record = {"type": "hub", "path": row.path}
    if row.collection == "zoo-archives":
        # What the model inside is called, and its own hash, nobody has recorded.
        source = {"type": "hub-archive", "path": row.path, "sha256": row.sha256, "bytes": row.bytes}
    elif row.repo:
        source["repo"] = row.repo
    return source


def _from_path(row: Row) -> Record:
    parts = row.path.split("/")
    if parts[0] == "validated":
        family = [part for part in parts[3:-1] if part not in ("model", "models", "preproc")]
        return {"task": parts[2], "family": "/".join(family), "origin": "validated"}
    match = re.fullmatch(r"(?P<family>.+)_Opset\d+_(?P<origin>.+)", parts[-2])
    found = match.groupdict() if match else {"family": row.stem, "origin": ""}
    return {"task": parts[0].lower(), **found}


def _contradictions(row: Row, facts: Sequence[Record], dims: Mapping[str, int]) -> list[str]:
    """Where the manifest's inputs and the hand-kept ones cannot both be right."""
    where = f"zoo_inputs.toml: {row.record_path!r}"
    by_name = {fact["name"]: fact for fact in facts}
    names = [port["name"] for port in row.ports]
    if sorted(by_name) != sorted(names):
        return [f"{where}: inputs {sorted(by_name)}, the manifest says {sorted(names)}"]
    found = []
    for port in row.ports:
        fact = by_name[port["name"]]
        element = re.sub(r"^tensor\((.*)\)$", r"\1", port["type"])
        if element.startswith("seq("):
            element = "sequence(uint8)"
        if fact["dtype"] != ONNX_TYPES.get(element, element):
            found.append(f"{where}: {port['name']!r} is {fact['dtype']}, the manifest says {port['type']}")
        if "shape" in fact and not _shapes_agree(fact["shape"], port["shape"], dims):
            found.append(f"{where}: {port['name']!r} {fact['shape']}, the manifest says {port['shape']}")
    return found


def _shapes_agree(ours: Sequence[Any], theirs: Sequence[Any], dims: Mapping[str, int]) -> bool:
    return len(ours) == len(theirs) and all(
        their is None or our == their or dims.get(str(our)) == their
        for our, their in zip(ours, theirs, strict=True)
    )
