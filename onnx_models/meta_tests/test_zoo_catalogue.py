"""The zoo's catalogue: its totals, what its models are fed, and the script that rebuilds it."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from onnx_models import catalog, inputs, selection, tensors
from onnx_models.catalog import InputFact, Model

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

FACTS = Path(catalog.__file__).parent / "catalogue_facts"
SCRIPT = Path(catalog.__file__).parent.parent / "scripts" / "build_zoo_catalogue.py"
COLLECTIONS = ("zoo", "zoo-turnkey", "zoo-archives")


@cache
def zoo() -> dict[str, tuple[Model, ...]]:
    return {name: catalog.load(name) for name in COLLECTIONS}


def facts(name: str) -> dict[str, Any]:
    return tomllib.loads((FACTS / name).read_text(encoding="utf-8"))


def test_the_totals_are_those_of_the_zoo() -> None:
    assert {name: len(models) for name, models in zoo().items()} == {
        "zoo": 190,
        "zoo-turnkey": 2135,
        "zoo-archives": 55,
    }
    files = zoo()["zoo"] + zoo()["zoo-turnkey"]
    assert sum(m.bytes for m in files) == 580_009_713_865
    same = selection.aliases(files)
    assert (len(same), sum(map(len, same.values()))) == (65, 136)
    data = [m.test_data for m in files if m.test_data]
    assert len(data) == 184
    assert all(len(d["sha256"]) == 64 and d["bytes"] > 0 and d["path"].endswith(".tar.gz") for d in data)


def test_three_pairs_are_one_file_under_two_labels() -> None:
    same = selection.aliases(zoo()["zoo"])
    names = sorted(tuple(path.rsplit("/", 1)[1] for path in ids) for ids in same.values())
    assert names == [
        ("densenet-6", "densenet-9"),
        ("googlenet-3", "googlenet-7"),
        ("googlenet-6", "googlenet-9"),
    ]


@pytest.mark.parametrize("name", COLLECTIONS)
def test_a_catalogue_file_is_sorted_one_compact_record_a_line(name: str) -> None:
    lines = (catalog.CATALOGUE / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    assert [row["path"] for row in rows] == sorted(row["path"] for row in rows)
    assert lines == [json.dumps(row, separators=(",", ":"), ensure_ascii=False) for row in rows]


def test_the_files_stay_compact() -> None:
    assert sum((catalog.CATALOGUE / f"{name}.jsonl").stat().st_size for name in COLLECTIONS) < 3_000_000


def test_every_record_says_where_its_file_is_and_what_it_hashes_to() -> None:
    for name, models in zoo().items():
        for model in models:
            path = model.source["path"]
            stem = path.removeprefix("validated/").removesuffix(".onnx").removesuffix(".tar.gz")
            assert model.path == stem.removesuffix(".zip"), model.id
            assert len(selection.digest_of(model)) == 64, model.id
            assert selection.download_bytes(model) > 0, model.id
            assert path.startswith("validated/") == (name == "zoo"), model.id
            assert model.source["type"] == ("hub-archive" if name == "zoo-archives" else "hub"), model.id


def test_only_stems_that_collide_name_their_repository() -> None:
    models = [m for models in zoo().values() for m in models]
    stems = Counter(m.path.rsplit("/", 1)[1] for m in models)
    assert sum("repo" in m.source for m in models) == 160
    for model in models:
        folder, stem = model.path.rsplit("/", 2)[-2:]
        assert model.source.get("repo") == (folder if stems[stem] > 1 else None), model.id
    repositories = [m.source.get("repo", m.path.rsplit("/", 1)[1]) for m in models]
    assert len(set(repositories)) == len(repositories)


def test_every_model_is_classified() -> None:
    for models in zoo().values():
        for model in models:
            assert all((model.task, model.family, model.origin)), model.id
            assert model.opset_label > 0, model.id
            assert list(model.tags) == sorted(set(model.tags)), model.id
            assert model.timeout_class in catalog.TIMEOUT_CLASSES, model.id
    exported = zoo()["zoo-turnkey"] + zoo()["zoo-archives"]
    assert all(m.operators and all(m.operators.values()) for m in exported)
    assert Counter(m.origin for m in exported) == {
        "timm": 1734,
        "transformers": 225,
        "torch_hub": 193,
        "graph_convolutions": 20,
        "torchvision": 18,
    }


def test_quantized_models_have_the_reference_they_need() -> None:
    by_tag = {tag: [m for m in zoo()["zoo"] if tag in m.tags] for tag in ("int8", "qdq")}
    assert {tag: len(models) for tag, models in by_tag.items()} == {"int8": 25, "qdq": 16}
    assert all(m.session == {"session.x64quantprecision": "1"} for m in by_tag["int8"])
    assert all(m.session == {"graph_optimization_level": "disable"} for m in by_tag["qdq"])
    for model in by_tag["int8"] + by_tag["qdq"]:
        assert [(b["set"], b["part"]) for b in model.test_data["bad"]][:1] == [("*", "outputs")], model.id


def test_stored_sets_known_to_be_bad_are_marked() -> None:
    bad = {m.path.rsplit("/", 1)[1]: m.test_data.get("bad", []) for m in zoo()["zoo"] if m.test_data}
    assert [(b["set"], b["part"]) for b in bad["ssd_mobilenet_v1_10"]] == [(1, "inputs")]
    assert [(b["set"], b["part"]) for b in bad["bertsquad-8"]] == [("*", "inputs")]
    assert bad["resnet50-v1-12"] == []
    for name, entries in bad.items():
        for entry in entries:
            assert entry["part"] in ("inputs", "outputs"), name
            assert entry["set"] == "*" or isinstance(entry["set"], int), name
            assert entry["why"], name


def test_an_upgrade_is_the_exception() -> None:
    flagged = {m.path.rsplit("/", 1)[1]: m.import_flags for models in zoo().values() for m in models}
    assert {name: flags for name, flags in flagged.items() if flags} == {
        "tinyyolov2-7": ("--opset-version", "17"),
        "tinyyolov2-8": ("--opset-version", "17"),
    }


def test_every_validated_model_has_an_explicit_entry_and_the_catalogue_holds_it() -> None:
    by_path = {m.path: m for m in zoo()["zoo"]}
    listed = [path for group in facts("zoo_inputs.toml")["group"] for path in group["models"]]
    assert len(listed) == 190
    assert sorted(listed) == sorted(by_path)
    for group in facts("zoo_inputs.toml")["group"]:
        for path in group["models"]:
            recorded = json.loads(json.dumps([_as_row(fact) for fact in by_path[path].inputs]))
            assert recorded == group["inputs"], f"{path}: rebuild with scripts/build_zoo_catalogue.py"
            assert by_path[path].dims == group.get("dims", {}), path


def _as_row(fact: InputFact) -> dict[str, Any]:
    shape = {} if fact.shape is None else {"shape": fact.shape}
    return {"name": fact.name, "dtype": fact.dtype, "kind": fact.kind, **shape, **fact.params}


def every_model() -> Iterator[Model]:
    for models in zoo().values():
        yield from models


def port(fact: InputFact) -> inputs.Port:
    """The graph input as the fact says it is declared; a file's own name takes the place of `#0`."""
    kind = "sequence" if fact.dtype.startswith("sequence(") else "tensor"
    return inputs.Port(name=fact.name, dtype=fact.dtype, shape=fact.shape, kind=kind)


def test_only_strings_and_sequences_cannot_be_fed() -> None:
    refused = set()
    for model in every_model():
        try:
            inputs.plan(model, [port(fact) for fact in model.inputs])
        except inputs.UnsupportedInput:
            refused.add(model.path.rsplit("/", 1)[1])
        assert (model.inputs[0].kind == "unsupported") == (model.path.rsplit("/", 1)[1] in refused), model.id
    assert refused == {"bidaf-11-int8", "bidaf-9", "resnet-preproc-v1-18"}


def test_plans_bind_every_dim_and_leave_nothing_to_chance() -> None:
    for model in every_model():
        if model.inputs[0].kind == "unsupported":
            continue
        plan = inputs.plan(model, [port(fact) for fact in model.inputs])
        assert plan.notes == (), model.id
        assert [p.name for p in plan.inputs] == [f.name for f in model.inputs], model.id
        used: set[str] = set()
        for fact, planned in zip(model.inputs, plan.inputs, strict=True):
            assert fact.shape is not None, model.id
            used |= {size for size in fact.shape if isinstance(size, str)}
            bound = tuple(model.dims[size] if isinstance(size, str) else size for size in fact.shape)
            assert planned.shape == bound, model.id
            assert all(size > 0 for size in bound), model.id
        assert used == set(model.dims), model.id


def distinct_inputs() -> Iterator[tuple[Model, InputFact, inputs.PlannedInput]]:
    """One example of each dtype, shape, kind and parameters: thousands of models share some hundred."""
    seen = set()
    for model in every_model():
        if model.inputs[0].kind == "unsupported":
            continue
        plan = inputs.plan(model, [port(fact) for fact in model.inputs])
        for fact, planned in zip(model.inputs, plan.inputs, strict=True):
            key = (planned.dtype, planned.shape, planned.kind, repr(sorted(planned.params.items())))
            if key not in seen:
                seen.add(key)
                yield model, fact, planned


def test_every_input_can_be_built_and_lies_in_its_range() -> None:
    count = 0
    for model, fact, planned in distinct_inputs():
        where = f"{model.id}: {fact.name}"
        array = inputs.generate(planned)
        assert array.dtype == tensors.dtype_named(fact.dtype), where
        assert array.shape == planned.shape, where
        assert array.flags.c_contiguous, where
        _check_range(array, planned, where)
        count += 1
    assert count > 60


def _check_range(array: np.ndarray[Any, Any], planned: inputs.PlannedInput, where: str) -> None:
    params = planned.params
    low, high = float(array.min()), float(array.max())
    if planned.kind == "ids":
        assert array.dtype.kind in "iu", where
        assert params["low"] <= low <= high < params["below"], where
    elif planned.kind == "uniform":
        margin = 1e-6 * (params["high"] - params["low"])
        assert params["low"] - margin <= low <= high <= params["high"] + margin, where
    elif planned.kind == "normal":
        assert abs(float(array.mean()) - params["mean"]) < 0.05 * params["std"], where
        assert 0.9 < float(array.std()) / params["std"] < 1.1, where
    elif planned.kind == "mask":
        assert set(np.unique(array).tolist()) <= {0, 1}, where
        assert array.reshape(-1)[0] == 1, where
    else:
        assert planned.kind == "values", where
        assert array.reshape(-1).tolist() == np.ravel(params["values"]).tolist(), where
    if array.size > 8 and planned.kind in ("ids", "uniform", "normal"):
        assert low < high, where


def test_shared_symbols_and_ids_are_as_the_models_need_them() -> None:
    by_name = {m.path.rsplit("/", 1)[1]: m for m in zoo()["zoo"]}
    bert = {f.name: f for f in by_name["bertsquad-12"].inputs}
    assert bert["segment_ids:0"].params == {"low": 0, "below": 2}
    decoder = {f.name: f for f in by_name["t5-decoder-with-lm-head-12"].inputs}
    assert decoder["input_ids"].shape == ("batch", "sequence")
    assert decoder["encoder_hidden_states"].shape == ("batch", "sequence", 768)
    assert by_name["tinyyolov2-8"].dims == {"None": 1}
    assert by_name["age_googlenet"].inputs[0].name == "#0"
    graph = [m for m in zoo()["zoo-turnkey"] if m.origin == "graph_convolutions"]
    assert {f.params["below"] for m in graph for f in m.inputs if f.name == "edge_index"} == {2708}
    shape = {f.name: f for f in by_name["yolov3-10"].inputs}["image_shape"]
    assert shape.params == {"of": "input_1", "axes": [2, 3]}


def test_what_an_earlier_suite_expects_is_carried_over() -> None:
    known = facts("peer_expectations.toml")
    ids = {m.id for m in zoo()["zoo"]}
    passing = Counter(device for case in known["passes"] for device in case["devices"])
    assert passing == {"cpu": 19, "hip": 17, "vulkan": 9}
    assert known["verified"] is False
    for case in known["passes"] + known["left_out"]:
        assert case["model"] in ids
    listed = [case["model"] for case in known["passes"] + known["left_out"]]
    assert len(listed) == len(set(listed)) == 37


needs_script = pytest.mark.skipif(not SCRIPT.is_file(), reason="scripts/ is not part of an installed package")

RESNET = "validated/vision/classification/resnet/model/resnet50-v1-12"
TIMM = "Computer_Vision/convnext_base_Opset17_timm/convnext_base_Opset17"
HUB = "Computer_Vision/convnext_base_Opset17_torch_hub/convnext_base_Opset17"
XLM = "Natural_Language_Processing/skip/xlm_Opset16_transformers/xlm_Opset16"


def pointer(letter: str, size: int) -> str:
    return f"version https://git-lfs.github.com/spec/v1\noid sha256:{letter * 64}\nsize {size}\n"


def statistics(dimensions: Mapping[str, list[int]], operators: Mapping[str, int]) -> str:
    # JSON is YAML.
    return json.dumps({"onnx_input_dimensions": dimensions, "onnx_ops_counter": operators})


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A zoo of four models, one of them only an archive, and facts to go with it."""
    manifest = [
        {
            "model_path": f"{RESNET.removeprefix('validated/')}.onnx",
            "opset_version": 12,
            "metadata": {
                "model_sha": "a" * 64,
                "io_ports": {
                    "inputs": [{"name": "data", "shape": ["N", 3, 8, 8], "type": "tensor(float)"}],
                },
            },
        }
    ]
    image, ids = {"x": [1, 3, 4, 4]}, {"input_ids": [1, 8], "attention_mask": [1, 8]}
    files = {
        "zoo/ONNX_HUB_MANIFEST.json": json.dumps(manifest),
        f"zoo/{RESNET}.onnx": pointer("a", 102),
        f"zoo/{RESNET}.tar.gz": pointer("b", 95),
        f"zoo/{TIMM}.onnx": pointer("c", 300),
        f"zoo/{TIMM.rsplit('/', 1)[0]}/turnkey_stats.yaml": statistics(image, {"Conv": 2}),
        f"zoo/{HUB}.onnx": pointer("c", 300),
        f"zoo/{HUB.rsplit('/', 1)[0]}/turnkey_stats.yaml": statistics(image, {"Conv": 2}),
        f"zoo/{XLM}.tar.gz": pointer("d", 1548),
        f"zoo/{XLM.rsplit('/', 1)[0]}/turnkey_stats.yaml": statistics(ids, {"If": 1}),
        "facts/zoo_inputs.toml": (
            "[[group]]\n"
            'models = ["vision/classification/resnet/model/resnet50-v1-12"]\n'
            'note = "Normalised."\n'
            "dims = { N = 1 }\n"
            'inputs = [{ name = "data", dtype = "float32", shape = ["N", 3, 8, 8], kind = "normal" }]\n'
        ),
        "facts/zoo_operators.toml": "",
        "facts/zoo_treatments.toml": (
            "[timeout]\nlong_from_bytes = 1000\n\n"
            '[[treatment]]\nid = "slow"\nmodels = ["zoo/*/resnet50-*"]\ntimeout_class = "longest"\n'
            'bad = [{ set = 0, part = "outputs", why = "wrong" }]\n'
        ),
        "facts/turnkey_rules.toml": (FACTS / "turnkey_rules.toml").read_text(encoding="utf-8"),
    }
    for name, text in files.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")
    (tmp_path / "out").mkdir()
    return tmp_path


def rebuild(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(root / "zoo"), f"--facts={root / 'facts'}"]
    return subprocess.run(
        [*command, f"--output={root / 'out'}", *options],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def build(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., int]:
    """The script in this process: a second of start-up less for each fault."""
    monkeypatch.syspath_prepend(SCRIPT.parent)
    main: Callable[[list[str]], int] = importlib.import_module(SCRIPT.stem).main
    places = [str(checkout / "zoo"), f"--facts={checkout / 'facts'}", f"--output={checkout / 'out'}"]
    return lambda *options: main([*places, *options])


@needs_script
def test_a_rebuild_gives_the_rows_of_the_checkout(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = rebuild(checkout)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["zoo: 1 models", "zoo-turnkey: 2 models", "zoo-archives: 1 models"]
    monkeypatch.setattr(catalog, "CATALOGUE", checkout / "out")

    (resnet,) = catalog.load("zoo")
    assert resnet.path == "vision/classification/resnet/model/resnet50-v1-12"
    assert resnet.source == {"type": "hub", "path": f"{RESNET}.onnx"}
    assert (resnet.sha256, resnet.bytes, resnet.opset_label) == ("a" * 64, 102, 12)
    assert (resnet.task, resnet.family, resnet.origin) == ("classification", "resnet", "validated")
    assert resnet.test_data == {
        "path": f"{RESNET}.tar.gz",
        "sha256": "b" * 64,
        "bytes": 95,
        "bad": [{"set": 0, "part": "outputs", "why": "wrong"}],
    }
    assert resnet.tags == ("dynamic",)
    assert resnet.timeout_class == "longest"
    assert resnet.notes == ("Normalised.",)

    timm, hub = catalog.load("zoo-turnkey")
    assert timm.source["repo"] == "convnext_base_Opset17_timm"
    assert hub.source["repo"] == "convnext_base_Opset17_torch_hub"
    assert (hub.family, hub.origin, hub.opset_label) == ("convnext_base", "torch_hub", 17)
    assert timm.operators == {"Conv": 2}
    assert [(f.name, f.dtype, f.shape, f.kind) for f in timm.inputs] == [
        ("x", "float32", (1, 3, 4, 4), "normal")
    ]

    (xlm,) = catalog.load("zoo-archives")
    assert (xlm.sha256, xlm.bytes) == ("", 0)
    assert xlm.source == {"type": "hub-archive", "path": f"{XLM}.tar.gz", "sha256": "d" * 64, "bytes": 1548}
    assert xlm.timeout_class == "long"
    assert xlm.tags == ("control-flow",)
    assert {f.name: (f.dtype, f.kind) for f in xlm.inputs} == {
        "input_ids": ("int64", "ids"),
        "attention_mask": ("int64", "mask"),
    }
    assert rebuild(checkout, "--check").returncode == 0


@needs_script
@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        (f"zoo/{RESNET}.onnx", None, f"{RESNET}.onnx: in ONNX_HUB_MANIFEST.json, but not in the checkout"),
        (
            f"zoo/{RESNET}.onnx",
            "<html>Not found</html>",
            "expected a Git LFS pointer or a model, found 22 bytes",
        ),
        (f"zoo/{RESNET}.onnx", pointer("a", 102) + "more", "expected a Git LFS pointer"),
        (f"zoo/{RESNET}.onnx", "", "expected a Git LFS pointer or a model, found 0 bytes: 'nothing'"),
        (f"zoo/{RESNET}.onnx", pointer("e", 102), "ONNX_HUB_MANIFEST.json says aaaa"),
        (f"zoo/{RESNET}.tar.gz", "oops", "resnet50-v1-12.tar.gz: expected a Git LFS pointer"),
        (f"zoo/{RESNET}-b.tar.gz", pointer("b", 95), "test data of no model"),
        (f"zoo/{TIMM.rsplit('/', 1)[0]}/turnkey_stats.yaml", None, "no turnkey_stats.yaml beside it"),
        (f"zoo/{XLM}.tar.gz", None, "but neither a model nor an archive"),
        (f"zoo/{TIMM}.zip", pointer("e", 9), "an archive beside the model of the same name"),
        ("zoo/ONNX_HUB_MANIFEST.json", None, "is this a checkout of onnx/models?"),
        ("facts/zoo_inputs.toml", "", "is missing: say what to feed it"),
        ("facts/turnkey_rules.toml", "", "no rule for input 'x' [1, 3, 4, 4]"),
        (
            "facts/zoo_operators.toml",
            '[[group]]\nmodels = ["vision/none"]\noperators = ["Add"]\n',
            "no such model: 'vision/none'",
        ),
        ("facts/zoo_treatments.toml", '[[treatment]]\nid = "t"\nmodels = ["zoo/x"]\n', "fits no model"),
    ],
)
def test_a_rebuild_reports_what_is_odd_and_writes_nothing(
    checkout: Path,
    build: Callable[..., int],
    capsys: pytest.CaptureFixture[str],
    file: str,
    content: str | None,
    message: str,
) -> None:
    if content is None:
        (checkout / file).unlink()
    else:
        (checkout / file).write_text(content, encoding="utf-8")
    assert build() == 1
    said = capsys.readouterr().err
    assert message in said
    assert "nothing was written" in said
    assert list((checkout / "out").iterdir()) == []


@needs_script
def test_a_rebuild_holds_the_facts_against_the_manifest(
    checkout: Path, build: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = checkout / "zoo" / "ONNX_HUB_MANIFEST.json"
    text = (
        manifest.read_text(encoding="utf-8").replace("tensor(float)", "tensor(uint8)").replace("3, 8", "4, 8")
    )
    manifest.write_text(text, encoding="utf-8")
    assert build() == 1
    said = capsys.readouterr().err
    assert "'data' is float32, the manifest says tensor(uint8)" in said
    assert "'data' ['N', 3, 8, 8], the manifest says ['N', 4, 8, 8]" in said


@needs_script
def test_a_downloaded_model_is_hashed_in_place_of_its_pointer(
    checkout: Path, build: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    (checkout / f"zoo/{TIMM}.onnx").write_bytes(b"\x08" * 5000)
    assert build() == 0
    monkeypatch.setattr(catalog, "CATALOGUE", checkout / "out")
    assert catalog.load("zoo-turnkey")[0].bytes == 5000


@needs_script
def test_check_names_the_records_that_differ(
    checkout: Path, build: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert build() == 0
    (checkout / f"zoo/{HUB}.onnx").write_text(pointer("e", 301), encoding="utf-8")
    before = (checkout / "out/zoo-turnkey.jsonl").read_bytes()
    assert build("--check") == 1
    assert f"zoo-turnkey.jsonl: differs in {HUB}" in capsys.readouterr().err
    assert (checkout / "out/zoo-turnkey.jsonl").read_bytes() == before
