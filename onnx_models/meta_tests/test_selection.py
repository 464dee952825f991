"""Filters, totals and printing of catalogue selections."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from onnx_models import catalog, selection
from onnx_models.catalog import InputFact, Model
from onnx_models.files import size_text
from onnx_models.outcomes import UsageError

MB = 1_000_000


def model(path: str, **values: Any) -> Model:
    return Model(**{"collection": "zoo", "path": path, "source": {"type": "hub", "path": path}} | values)


SMALL = model("vision/a-7", sha256="aa", bytes=5 * MB, task="classification", family="a", origin="timm")
SAME = replace(SMALL, path="vision/a-9")
INT8 = model(
    "vision/a-12-int8", sha256="bb", bytes=100 * MB, family="a", tags=("int8", "quantized"), opset_label=12
)
LOOP = model(
    "text/b-12",
    collection="zoo-turnkey",
    sha256="cc",
    bytes=1000 * MB,
    operators={"Loop": 1, "Resize": 3},
    tags=("control-flow", "dynamic"),
    dims={"N": 1},
    inputs=(InputFact(name="x", kind="uniform", dtype="float32", shape=("N", 3)),),
)
ARCHIVE = model(
    "vision/c", collection="zoo-archives", source={"type": "hub-archive", "sha256": "dd", "bytes": 2000 * MB}
)
LOCAL = model("d", collection="local", operators={"Resize": 0})
ALL = (SMALL, SAME, INT8, LOOP, ARCHIVE, LOCAL)


@pytest.mark.parametrize(
    ("filters", "expected"),
    [
        ({}, ALL),
        ({"collection": ["zoo"]}, (SMALL, SAME, INT8)),
        ({"collection": ["zoo-turnkey", "Local"]}, (LOOP, LOCAL)),
        ({"task": ["Classification"]}, (SMALL, SAME)),
        ({"family": ["a"], "tag": ["int8"]}, (INT8,)),
        ({"source": ["timm"]}, (SMALL, SAME)),
        ({"size": ["small"]}, (SMALL, SAME)),
        ({"size": ["medium"]}, (INT8,)),
        ({"size": ["large"]}, (LOOP, ARCHIVE)),
        ({"size": ["unknown"]}, (LOCAL,)),
        ({"tag": ["control-flow", "dynamic"]}, (LOOP,)),
        ({"op": ["resize"]}, (LOOP, LOCAL)),
        ({"op": ["Resize", "Loop"]}, (LOOP,)),
        ({"opset": [12, 12]}, (INT8,)),
        ({"quantized": True}, (INT8,)),
        ({"quantized": False}, (SMALL, SAME, LOOP, ARCHIVE, LOCAL)),
        ({"dynamic": True}, (LOOP,)),
        ({"control_flow": False}, (SMALL, SAME, INT8, ARCHIVE, LOCAL)),
        ({"max_bytes": 100 * MB}, (SMALL, SAME, INT8, LOCAL)),
        ({"text": "A-1"}, (INT8,)),
        ({"text": "zoo/*-[79]"}, (SMALL, SAME)),
        ({"text": "a-?"}, ()),
    ],
)
def test_a_filter_keeps_exactly_what_fits_in_order(
    filters: dict[str, Any], expected: tuple[Model, ...]
) -> None:
    assert selection.select(ALL, **filters) == expected


@pytest.mark.parametrize(
    ("filters", "message"),
    [
        ({"op": ["Resise"]}, "operator 'Resise': nearest: Resize"),
        ({"collection": ["zooo"]}, "collection 'zooo': nearest: zoo"),
        ({"size": ["huge"]}, "size class 'huge'"),
        ({"tag": ["int4"]}, "tag 'int4': nearest: int8"),
    ],
)
def test_a_word_that_no_model_carries_is_refused_with_its_neighbours(
    filters: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        selection.select(ALL, **filters)


def test_a_size_class_without_models_is_an_empty_answer_not_an_error() -> None:
    assert selection.select((SMALL,), size=["large"]) == ()


def test_models_of_one_hash_are_downloaded_once() -> None:
    total = selection.totals(ALL)
    assert (total.models, total.files, total.unsized) == (6, 5, 1)
    assert total.bytes == 3110 * MB
    assert total.download_bytes == 3105 * MB
    assert str(total) == (
        "6 models, 3.1 GB to download (5 distinct files; 3.1 GB without sharing), 1 of unknown size"
    )
    assert selection.aliases(ALL) == {"aa": ("zoo/vision/a-7", "zoo/vision/a-9")}


def test_stored_data_is_counted_apart_and_once() -> None:
    data = {"path": "a.tar.gz", "sha256": "ee", "bytes": 7}
    total = selection.totals([replace(SMALL, test_data=data), replace(SAME, test_data=data)])
    assert (total.download_bytes, total.test_data_bytes) == (5 * MB, 7)
    assert "stored data sets 7 B more" in str(total)


def test_models_whose_operators_may_be_missing_are_told_apart() -> None:
    assert selection.operators_unknown(ALL) == (SMALL, SAME, INT8, ARCHIVE, LOCAL)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (580_009_713_865, "580.0 GB")]
)
def test_sizes_are_decimal(size: int, text: str) -> None:
    assert size_text(size) == text


def test_the_table_prints_ids_and_shapes_whole() -> None:
    console = Console(width=120)
    with console.capture() as captured:
        console.print(selection.table(ALL))
    printed = captured.get()
    assert "zoo-turnkey/text/b-12" in printed
    assert "float32[N,3]" in printed
    assert "6 models, 3.1 GB to download" in printed


def test_json_has_the_same_keys_in_every_row() -> None:
    rows = json.loads(selection.as_json(ALL))
    assert len({tuple(row) for row in rows}) == 1
    assert [row["id"] for row in rows] == [m.id for m in ALL]
    assert rows[0]["aliases"] == ["zoo/vision/a-9"]
    assert rows[3]["inputs"] == [{"name": "x", "dtype": "float32", "shape": ["N", 3]}]
    assert rows[4]["bytes"] == 2000 * MB
    assert json.loads(selection.as_json(())) == []


def test_the_full_catalogue_answers_by_operator() -> None:
    zoo = catalog.load("zoo")
    names = {m.path.rsplit("/", 1)[1] for m in selection.select(zoo, op=["Resize"])}
    assert {"FasterRCNN-10", "fcn-resnet50-12-qdq", "yolov4", "ssd_mobilenet_v1_13-qdq"} <= names
    assert "mnist-8" not in names
    exported = selection.select(catalog.load("zoo-turnkey"), op=["Resize"])
    assert len(exported) == 73
    assert all(m.operators["Resize"] > 0 for m in exported)
