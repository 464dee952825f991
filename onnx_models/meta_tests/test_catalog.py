"""The catalogue: every shipped record is well-formed, every malformed one is refused by name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from onnx_models import catalog
from onnx_models.outcomes import UsageError

GOOD = {"path": "a/b", "source": {"type": "local", "path": "x.onnx"}}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty catalogue in the place of the shipped one."""
    monkeypatch.setattr(catalog, "CATALOGUE", tmp_path)
    return tmp_path


def write(folder: Path, *rows: object) -> None:
    (folder / "made.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


@pytest.mark.parametrize("collection", catalog.collections())
def test_shipped_collections_load(collection: str) -> None:
    models = catalog.load(collection)
    assert models
    assert [m.path for m in models] == sorted({m.path for m in models})
    for model in models:
        assert model.id == f"{collection}/{model.path}"
        assert not model.path.endswith(".onnx")
        assert ".." not in Path(model.path).parts


def test_embedded_models_have_hash_and_size() -> None:
    for model in (*catalog.load("skeletons"), *catalog.load("wheels")):
        assert len(model.sha256) == 64, model.id
        assert model.bytes > 0, model.id


def test_both_forms_give_the_same_model(folder: Path) -> None:
    write(folder, GOOD)
    (folder / "other.toml").write_text(
        '[[model]]\npath = "a/b"\nsource = { type = "local", path = "x.onnx" }\n', encoding="utf-8"
    )
    (one,), (other,) = catalog.load("made"), catalog.load("other")
    assert (one.path, one.source) == (other.path, other.source)
    assert catalog.collections() == ("made", "other")


def test_facts_are_read(folder: Path) -> None:
    fact = {"name": "ids", "kind": "ids", "dtype": "int64", "shape": [1, "n"], "below": 7}
    write(folder, {**GOOD, "inputs": [fact], "dims": {"n": 4}, "tags": ["x"], "import_flags": ["-a"]})
    (model,) = catalog.load("made")
    (read,) = model.inputs
    assert (read.name, read.kind, read.dtype, read.shape) == ("ids", "ids", "int64", (1, "n"))
    assert dict(read.params) == {"below": 7}
    assert (model.tags, model.import_flags, dict(model.dims)) == (("x",), ("-a",), {"n": 4})


def test_unknown_collection_names_those_that_exist(folder: Path) -> None:
    write(folder, GOOD)
    with pytest.raises(UsageError, match="unknown collection 'mode': choose from made"):
        catalog.load("mode")


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({**GOOD, "colour": 1}, "'a/b': unknown key 'colour'"),
        ({"path": "a"}, "a model needs 'path' and 'source'"),
        ({"source": {}}, "a model needs 'path' and 'source'"),
        ({**GOOD, "timeout_class": "slow"}, "'timeout_class' must be one of normal, long, longest"),
        ({**GOOD, "inputs": [{"kind": "ids"}]}, "an input needs 'name' and 'kind'"),
        ({**GOOD, "inputs": [{"name": "x", "kind": "magic"}]}, "an input needs 'name' and 'kind'"),
        ({**GOOD, "inputs": [{"name": "x", "kind": "mask", "below": 2}]}, "mask takes no 'below'"),
    ],
)
def test_malformed_records_are_refused(folder: Path, row: object, message: str) -> None:
    write(folder, row)
    with pytest.raises(UsageError) as error:
        catalog.load("made")
    assert message in str(error.value)
    assert "made.jsonl" in str(error.value)


def test_duplicates_are_refused(folder: Path) -> None:
    write(folder, GOOD, GOOD)
    with pytest.raises(UsageError, match="'a/b' is listed twice"):
        catalog.load("made")


def test_damaged_files_are_refused_with_the_line(folder: Path) -> None:
    (folder / "made.jsonl").write_text(json.dumps(GOOD) + "\n{broken\n", encoding="utf-8")
    (folder / "other.toml").write_text("[[model]\n", encoding="utf-8")
    (folder / "empty.toml").write_text("x = 1\n", encoding="utf-8")
    with pytest.raises(UsageError, match=r"made\.jsonl:2: not JSON"):
        catalog.load("made")
    for name in ("other", "empty"):
        with pytest.raises(UsageError, match=rf"{name}\.toml: not (a catalogue|TOML)"):
            catalog.load(name)


def test_digest_sees_every_change(folder: Path) -> None:
    write(folder, GOOD)
    before = catalog.digest()
    assert catalog.digest() == before
    write(folder, {**GOOD, "notes": ["x"]})
    assert catalog.digest() != before


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b"\xff\n", "a.jsonl:1: not JSON "),
        ("a.jsonl", b"[]\n", "a.jsonl:1: expected an object, found list"),
        ("a.jsonl", b'{"path": "p", "source": {}, "inputs": ["x"]}\n', "'p': 'inputs' must be tables"),
        ("a.toml", b"\xff", "a.toml: not TOML "),
        ("a.toml", b"model = 3", r"a.toml: 'model' must be \[\[model\]\] tables"),
        ("a.toml", b"model = ['x']", r"a.toml: 'model' must be \[\[model\]\] tables"),
    ],
)
def test_a_file_that_is_no_catalogue(folder: Path, name: str, content: bytes, message: str) -> None:
    (folder / name).write_bytes(content)
    with pytest.raises(UsageError, match=message):
        catalog.load("a")


def test_one_file_under_two_paths_is_one_model_where_the_facts_agree(folder: Path) -> None:
    same = {**GOOD, "sha256": "0" * 64}
    rows = [{**same, "path": name} for name in ("c", "a", "b")]
    write(folder, *rows, {**same, "path": "d", "dims": {"n": 2}}, {**same, "path": "e", "sha256": "1" * 64})
    shared = {model.path: model.shared_id for model in catalog.load("made")}
    assert shared == {"a": "made/a", "b": "made/a", "c": "made/a", "d": "made/d", "e": "made/e"}
    write(folder, {**GOOD, "path": "a"}, {**GOOD, "path": "b"})
    assert [model.twin for model in catalog.load("made")] == ["", ""], "without a hash nothing is known"
