"""`--model`, `--dim`, `--shape`, `--input` and `--collection`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from onnx_models import local
from onnx_models.meta_tests.sandbox import INT64, Sandbox, model_of, tiny_model, value


@pytest.fixture
def dynamic(sandbox: Sandbox) -> Sandbox:
    """`dynamic.onnx`: x is float32 [n, ?, 3]."""
    sandbox.save("dynamic.onnx", tiny_model(("n", None, 3)))
    return sandbox


def test_same_stem_and_same_name_have_places_of_their_own(sandbox: Sandbox) -> None:
    sandbox.save("a/tiny.onnx")
    sandbox.save("b/tiny.onnx", tiny_model((4,)))
    ended = sandbox.run("--model", "a/../b/tiny.onnx", "--model", "a/tiny.onnx", "--model", "tiny.onnx")
    assert ended.code == 0, ended.output
    here = sandbox.folder.name
    assert set(sandbox.record().cases) == {
        "cpu/local/b/tiny",
        "cpu/local/a/tiny",
        f"cpu/local/{here}/tiny",
    }
    shapes = {
        name: np.load(sandbox.artifacts / "local" / name / "inputs" / "seeded-0" / "0.npy").shape
        for name in ("a/tiny", "b/tiny")
    }
    assert shapes == {"a/tiny": (2, 3), "b/tiny": (4,)}


def test_dim_shape_and_input_reach_the_tools(dynamic: Sandbox) -> None:
    given = np.arange(2 * 4 * 3, dtype=np.float32).reshape(2, 4, 3)
    np.save(dynamic.folder / "x=y.npy", given)
    made = dynamic.artifacts / "local" / "dynamic" / "inputs" / "seeded-0" / "0.npy"
    for arguments, shape in (
        ((), (1, 1, 3)),
        (("--dim", "n=5"), (5, 1, 3)),
        (("--shape", "x=4x2x3"), (4, 2, 3)),
    ):
        assert dynamic.run("--model", "dynamic.onnx", *arguments).code == 0
        assert np.load(made).shape == shape
        notes = " ".join(dynamic.case("cpu/local/dynamic")["notes"])
        assert ("'n' of input 'x' is not bound" in notes) == (arguments == ())
        assert ("axis 1 of input 'x' has no size" in notes) == (shape[1] == 1)
    # The name of an input may hold '=', a file's may not; a file's folder may.
    (dynamic.folder / "x=y.npy").rename(dynamic.folder / "given.npy")
    assert dynamic.run("--model", "dynamic.onnx", "--input", "x=given.npy").code == 0
    assert np.array_equal(np.load(made), given)


def test_the_shape_of_a_scalar_is_a_word(sandbox: Sandbox) -> None:
    file = sandbox.save("scalar.onnx", tiny_model(()))
    (model,) = local.models([file], dims={}, shapes={"x": "scalar"}, files_in={})
    assert [(fact.name, fact.shape) for fact in model.inputs] == [("x", ())]


def test_a_changed_input_file_is_seen(dynamic: Sandbox) -> None:
    for factor in (1, 2):
        np.save(dynamic.folder / "x.npy", np.full((1, 1, 3), factor, np.float32))
        dynamic.run("--model", "dynamic.onnx", "--input", "x=x.npy")
        made = dynamic.artifacts / "local" / "dynamic" / "reference" / "seeded-0" / "0.npy"
        assert np.all(np.load(made) == 2 * factor)


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "no-file": (("--model", "lost.onnx"), "lost.onnx: no such file"),
    "twice": (("--model", "tiny.onnx", "--model", "./tiny.onnx"), "tiny' is given twice"),
    "dim-unknown": (
        ("--model", "dynamic.onnx", "--dim", "m=2"),
        "--dim 'm': dynamic.onnx has no such dim; its dims are: n",
    ),
    "dim-of-none": (
        ("--model", "tiny.onnx", "--dim", "m=2"),
        "--dim 'm': tiny.onnx has no such dim; its dims are: none; use --shape",
    ),
    "dim-text": (("--model", "dynamic.onnx", "--dim", "n=two"), "--dim n=two: 'two' is no size"),
    "dim-negative": (("--model", "dynamic.onnx", "--dim", "n=-1"), "--dim n=-1: '-1' is no size"),
    "dim-alone": (("--model", "dynamic.onnx", "--dim", "n"), "--dim 'n': expected NAME=N"),
    "dim-twice": (("--model", "dynamic.onnx", "--dim", "n=1", "--dim", "n=2"), "--dim 'n' is given twice"),
    "dim-no-model": (("--dim", "n=1"), "--dim, --shape and --input describe a file: add --model FILE"),
    "shape-unknown": (
        ("--model", "dynamic.onnx", "--shape", "q=1x2x3"),
        "--shape 'q': dynamic.onnx has no such input; its inputs are: x",
    ),
    "shape-text": (("--model", "dynamic.onnx", "--shape", "x=1xbx3"), "--shape x=b: 'b' is no size"),
    "shape-rank": (("--model", "dynamic.onnx", "--shape", "x=1x3"), "expected shape [n,?,3], found [1,3]"),
    "shape-size": (
        ("--model", "dynamic.onnx", "--shape", "x=1x1x4"),
        "expected shape [n,?,3], found [1,1,4]",
    ),
    "shape-dim": (
        ("--model", "dynamic.onnx", "--shape", "x=1x1x3", "--dim", "n=2"),
        "dim 'n' is 2 elsewhere and 1 in input 'x'",
    ),
    "shape-empty": (
        ("--model", "dynamic.onnx", "--shape", "x="),
        "--shape 'x=': expected INPUT=1x3x48x192 or INPUT=scalar",
    ),
    "input-unknown": (
        ("--model", "dynamic.onnx", "--input", "q=good.npy"),
        "--input 'q': dynamic.onnx has no such input; its inputs are: x",
    ),
    "input-no-file": (("--model", "dynamic.onnx", "--input", "x=lost.npy"), "lost.npy: no such file"),
    "input-dtype": (
        ("--model", "dynamic.onnx", "--input", "x=double.npy"),
        "double.npy: expected float32, found float64: convert it with .astype('float32')",
    ),
    "input-shape": (
        ("--model", "dynamic.onnx", "--input", "x=wrong.npy"),
        "expected shape [n,?,3], found [2,2]",
    ),
    "input-truncated": (("--model", "dynamic.onnx", "--input", "x=cut.npy"), "cut.npy: not a plain .npy"),
    "input-text": (("--model", "dynamic.onnx", "--input", "x=text.npy"), "text.npy: not a plain .npy"),
    "input-objects": (("--model", "dynamic.onnx", "--input", "x=any.npy"), "any.npy: not a plain .npy"),
    "collection": (("--collection", "zoos"), "unknown collection 'zoos': choose from "),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_use(dynamic: Sandbox, name: str) -> None:
    folder = dynamic.folder
    np.save(folder / "good.npy", np.zeros((1, 1, 3), np.float32))
    np.save(folder / "double.npy", np.zeros((1, 1, 3)))
    np.save(folder / "wrong.npy", np.zeros((2, 2), np.float32))
    np.save(folder / "any.npy", np.array([{}]))
    (folder / "cut.npy").write_bytes((folder / "good.npy").read_bytes()[:-5])
    (folder / "text.npy").write_text("1 2 3", encoding="utf-8")
    arguments, message = WRONG[name]
    assert message in dynamic.refused(*arguments)


def test_dim_and_shape_apply_where_they_fit(dynamic: Sandbox) -> None:
    """With several models, a fact must fit one of them, and touches no other."""
    dynamic.save("ids.onnx", model_of_ids())
    ended = dynamic.run("--model", "dynamic.onnx", "--model", "ids.onnx", "--dim", "n=2", "--dim", "k=3")
    assert ended.code == 0, ended.output
    sizes = {}
    for name in ("dynamic", "ids"):
        sizes[name] = np.load(dynamic.artifacts / "local" / name / "inputs" / "seeded-0" / "0.npy").shape
    assert sizes == {"dynamic": (2, 1, 3), "ids": (3,)}


def model_of_ids() -> onnx.ModelProto:
    return model_of(
        [helper.make_node("Neg", ["i"], ["o"])], [value("i", INT64, ("k",))], [value("o", INT64, ("k",))]
    )


def test_a_collection_and_a_file_together(sandbox: Sandbox) -> None:
    ended = sandbox.run("--model", "tiny.onnx", "--collection", "skeletons", "--collect-only", "-q")
    assert ended.code == 0
    names = [line for line in ended.output.splitlines() if "test_model[" in line]
    assert any("test_model[cpu/local/tiny]" in line for line in names)
    assert sum("test_model[cpu/skeletons/" in line for line in names) == 9
    assert not Path(sandbox.folder / "record.jsonl").exists(), "--collect-only runs nothing"
