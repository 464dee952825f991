"""Rebuild the zoo's catalogue from a checkout of onnx/models.

    GIT_LFS_SKIP_SMUDGE=1 git clone https://github.com/onnx/models
    python scripts/build_zoo_catalogue.py models

No model is needed: the Git LFS pointers give sha256 and size,
`ONNX_HUB_MANIFEST.json` the validated models' opsets and inputs, and
`turnkey_stats.yaml` the exports' input shapes and operators. The rest is kept
by hand in `onnx_models/catalogue_facts`. Every problem is listed, and then
nothing is written.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped,unused-ignore]
from zoo_facts import Facts, Record, Row

PACKAGE = Path(__file__).resolve().parent.parent / "onnx_models"
TREES = (
    "validated",
    "Computer_Vision",
    "Generative_AI",
    "Graph_Machine_Learning",
    "Natural_Language_Processing",
)
SUFFIXES = (".onnx", ".tar.gz", ".zip")

POINTER_BYTES = 1024
"""Git LFS keeps its pointers below this size."""

_POINTER = re.compile(
    r"version https://git-lfs\.github\.com/spec/v1\n(?:ext-.*\n)*oid sha256:([0-9a-f]{64})\nsize (\d+)\n?\Z"
)


class Checkout:
    """The models of a checkout, and what is wrong with it."""

    def __init__(self, root: Path) -> None:
        """Nothing is read before `rows`."""
        self.root = root
        self.problems: list[str] = []

    def rows(self) -> list[Row]:
        """Every model, in the order of the tree; check `problems` afterwards."""
        manifest = self._manifest()
        found = {file.relative_to(self.root).as_posix(): file for file in self._files()}
        rows = [row for path in found if (row := self._row(path, found, manifest)) is not None]
        for path in manifest.keys() - found.keys():
            self.problems.append(f"{path}: in ONNX_HUB_MANIFEST.json, but not in the checkout")
        have_models = {Path(row.path).parent.as_posix() for row in rows}
        for stats in self._stats_files():
            folder = stats.parent.relative_to(self.root).as_posix()
            if folder not in have_models:
                self.problems.append(f"{folder}: has turnkey_stats.yaml, but neither a model nor an archive")
        return _with_repositories(rows)

    def _files(self) -> Iterator[Path]:
        for tree in TREES:
            for folder, _, names in sorted(os.walk(self.root / tree)):
                yield from (Path(folder) / name for name in sorted(names) if name.endswith(SUFFIXES))

    def _stats_files(self) -> Iterator[Path]:
        for tree in TREES[1:]:
            yield from sorted((self.root / tree).rglob("turnkey_stats.yaml"))

    def _manifest(self) -> dict[str, Mapping[str, Any]]:
        file = self.root / "ONNX_HUB_MANIFEST.json"
        if not file.is_file():
            self.problems.append(f"{file.name}: missing: is this a checkout of onnx/models?")
            return {}
        entries = json.loads(file.read_text(encoding="utf-8"))
        # Older manifests leave the folder `validated` out of their paths.
        return {f"validated/{entry['model_path'].removeprefix('validated/')}": entry for entry in entries}

    def _row(
        self, path: str, found: Mapping[str, Path], manifest: Mapping[str, Mapping[str, Any]]
    ) -> Row | None:
        stem = re.sub(r"\.(onnx|tar\.gz|zip)$", "", path)
        if path.startswith("validated/"):
            if not path.endswith(".onnx"):
                if f"{stem}.onnx" not in found and path.endswith(".tar.gz"):
                    self.problems.append(f"{path}: test data of no model")
                return None
            return self._validated(path, found.get(f"{stem}.tar.gz"), manifest.get(path, {}))
        if not path.endswith(".onnx") and f"{stem}.onnx" in found:
            self.problems.append(f"{path}: an archive beside the model of the same name")
            return None
        return self._exported(path)

    def _validated(self, path: str, archive: Path | None, entry: Mapping[str, Any]) -> Row | None:
        pointer = self._pointer(self.root / path)
        data = self._pointer(archive) if archive else None
        if pointer is None:
            return None
        metadata = entry.get("metadata", {})
        recorded = metadata.get("model_sha", pointer[0])
        if recorded != pointer[0]:
            self.problems.append(f"{path}: sha256 {pointer[0]}, ONNX_HUB_MANIFEST.json says {recorded}")
        label = re.search(r"[-_](\d+)(-int8|-qdq)?\.onnx$", path)
        test_data: Record = {}
        if archive and data:
            name = archive.relative_to(self.root).as_posix()
            test_data = {"path": name, "sha256": data[0], "bytes": data[1]}
        return Row(
            path=path,
            sha256=pointer[0],
            bytes=pointer[1],
            opset_label=int(entry.get("opset_version") or (label[1] if label else 0)),
            test_data=test_data,
            ports=metadata.get("io_ports", {}).get("inputs", ()),
        )

    def _exported(self, path: str) -> Row | None:
        pointer = self._pointer(self.root / path)
        stats_file = (self.root / path).parent / "turnkey_stats.yaml"
        if not stats_file.is_file():
            self.problems.append(f"{path}: no turnkey_stats.yaml beside it")
            return None
        stats = yaml.load(
            stats_file.read_text(encoding="utf-8"), getattr(yaml, "CSafeLoader", yaml.SafeLoader)
        )
        label = re.search(r"_Opset(\d+)", path.rsplit("/", 1)[1])
        if pointer is None:
            return None
        return Row(
            path=path,
            sha256=pointer[0],
            bytes=pointer[1],
            opset_label=int(label[1]) if label else 0,
            dimensions=stats.get("onnx_input_dimensions") or {},
            operators=stats.get("onnx_ops_counter") or {},
        )

    def _pointer(self, file: Path) -> tuple[str, int] | None:
        """sha256 and size that a Git LFS pointer gives, or those of the file that took its place."""
        size = file.stat().st_size
        if size < POINTER_BYTES:
            text = file.read_bytes().decode("utf-8", "replace")
            if match := _POINTER.match(text):
                return match[1], int(match[2])
            first = (text.splitlines() or ["nothing"])[0][:60]
            name = file.relative_to(self.root).as_posix()
            self.problems.append(
                f"{name}: expected a Git LFS pointer or a model, found {size} bytes: {first!r}"
            )
            return None
        digest = hashlib.sha256()
        with file.open("rb") as content:
            while block := content.read(1 << 20):
                digest.update(block)
        return digest.hexdigest(), size


def _with_repositories(rows: Sequence[Row]) -> list[Row]:
    """Name the hub repository of each stem that two sources share: it carries the source as a suffix.

    Seen for three of these stems, inferred for the others.
    """
    stems = Counter(row.stem for row in rows)
    return [replace(row, repo=row.path.split("/")[-2]) if stems[row.stem] > 1 else row for row in rows]


def write(records: Mapping[str, Sequence[Record]], folder: Path) -> None:
    """One file a collection, one record a line, each replaced only when complete."""
    for collection, rows in records.items():
        target = folder / f"{collection}.jsonl"
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        partial.write_text("".join(line(row) for row in rows), encoding="utf-8")
        partial.replace(target)


def line(record: Record) -> str:
    """The record as it stands in the catalogue."""
    return json.dumps(record, separators=(",", ":"), ensure_ascii=False) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Rebuild, or with `--check` only compare; 1 when there is a problem or a difference."""
    parser = argparse.ArgumentParser(
        description="Rebuild the zoo's catalogue from a checkout of onnx/models."
    )
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--facts", type=Path, default=PACKAGE / "catalogue_facts")
    parser.add_argument("--output", type=Path, default=PACKAGE / "catalogue")
    parser.add_argument("--check", action="store_true", help="compare with --output, write nothing")
    options = parser.parse_args(argv)
    checkout = Checkout(options.checkout)
    facts = Facts(options.facts)
    records = facts.records(checkout.rows())
    problems = checkout.problems + facts.problems
    if options.check:
        problems += _differences(records, options.output)
    for problem in problems:
        print(problem, file=sys.stderr)
    for collection, rows in records.items():
        print(f"{collection}: {len(rows)} models")
    if problems:
        print(f"{len(problems)} problems: nothing was written", file=sys.stderr)
        return 1
    if not options.check:
        write(records, options.output)
    return 0


def _differences(records: Mapping[str, Sequence[Record]], folder: Path) -> list[str]:
    found = []
    for collection, rows in records.items():
        file = folder / f"{collection}.jsonl"
        ours = set(file.read_text(encoding="utf-8").splitlines(keepends=True)) if file.is_file() else set()
        for text in sorted(ours ^ {line(row) for row in rows}):
            found.append(f"{file.name}: differs in {json.loads(text)['path']}")
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    sys.exit(main())
