"""Runs that need files of the zoo: `--offline`, `--require-models`, `--max-bytes`, size marks, aliases."""

from __future__ import annotations

import json
import shutil
import sys

import pytest

from onnx_models import catalog
from onnx_models.meta_tests.sandbox import Sandbox, copy_of_package

MNIST = "cpu/zoo/vision/classification/mnist/model/mnist-12"
ONLY_MNIST = ("--collection", "zoo", "-k", "mnist-12 and not int8", "--offline")


@pytest.fixture
def empty(sandbox: Sandbox) -> Sandbox:
    """A sandbox whose hub cache, like its model cache, holds nothing."""
    sandbox.env["HF_HOME"] = str(sandbox.folder / "hub")
    return sandbox


def test_offline_is_a_skip_that_names_file_and_command(empty: Sandbox) -> None:
    ended = empty.run(*ONLY_MNIST, "-rs")
    assert ended.code == 0, ended.output
    row = empty.case(MNIST)
    assert row["verdict"] == "skipped"
    assert "validated/vision/classification/mnist/model/mnist-12.onnx (26.1 kB) is not in " in row["reason"]
    assert f"run 'onnx-models fetch {MNIST.partition('/')[2]}' with a network" in row["reason"]
    assert "onnx-models fetch zoo/vision" in ended.output
    assert list(empty.record().cases) == [MNIST]


def test_require_models_makes_it_an_error(empty: Sandbox) -> None:
    alone = [word for word in ONLY_MNIST if word != "--offline"]
    assert "give that too" in empty.refused(*alone, "--require-models")
    ended = empty.run(*ONLY_MNIST, "--require-models")
    assert ended.code == 1, ended.output
    row = empty.case(MNIST)
    assert (row["verdict"], row["stage"], row["kind"]) == ("error", "fetch", "infrastructure")
    assert "mnist-12.onnx (26.1 kB) is not in " in row["message"]


def collected(sandbox: Sandbox, *arguments: str) -> set[str]:
    """The models that a run would take."""
    ended = sandbox.run("--collect-only", "-q", *arguments)
    assert ended.code == 0, ended.output
    names = (line.partition("test_model[cpu/")[2] for line in ended.output.splitlines())
    return {name.removesuffix("]") for name in names if name}


def test_size_selects(sandbox: Sandbox) -> None:
    small = collected(sandbox, "--collection", "zoo", "--max-bytes", "26200B")
    assert small == {model.id for model in catalog.load("zoo") if model.bytes <= 26200}
    assert "zoo/vision/classification/mnist/model/mnist-12" in small
    turnkey = {model.id: model.bytes for model in catalog.load("zoo-turnkey")}
    found = {
        mark: collected(sandbox, "--collection", "zoo-turnkey", "-m", mark) for mark in ("large", "not large")
    }
    assert found["large"] == {name for name, size in turnkey.items() if size >= 10**9} != set()
    assert found["not large"] == set(turnkey) - found["large"]


def test_a_size_that_is_none(sandbox: Sandbox) -> None:
    assert "'much' is no size" in sandbox.refused("--model", "tiny.onnx", "--max-bytes", "much")


def test_two_paths_of_one_file_share_their_artifacts(sandbox: Sandbox) -> None:
    """The second name starts no tool and makes no reference; each still has a line of its own."""
    home = copy_of_package(sandbox.folder, models={})
    digest = sandbox.execute([sys.executable, "-c", HASH]).output.strip()
    source = {"type": "local", "path": str(sandbox.folder / "tiny.onnx")}
    rows = [{"path": name, "source": source, "sha256": digest} for name in ("a/first", "b/second")]
    rows.append({**rows[0], "path": "c/other", "timeout_class": "long"})
    catalogue = home / "onnx_models" / "catalogue"
    (catalogue / "tiny.toml").unlink()
    (catalogue / "tiny.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    sandbox.env["PYTHONPATH"] = str(home)
    ended = sandbox.run("--collection", "tiny")
    assert ended.code == 0, ended.output
    reused = {
        name: {
            stage["stage"]: stage["reused"]
            for stage in row["stages"]
            if stage["stage"] not in ("fetch", "compare")
        }
        for name, row in sandbox.record().cases.items()
    }
    stages = ("reference", "import", "compile", "run")
    assert reused == {
        "cpu/tiny/a/first": dict.fromkeys(stages, False),
        "cpu/tiny/b/second": dict.fromkeys(stages, True),
        "cpu/tiny/c/other": dict.fromkeys(stages, False),
    }
    assert sorted(path.name for path in (sandbox.artifacts / "tiny").iterdir()) == ["a", "c"]
    shutil.rmtree(home)


HASH = "import hashlib; print(hashlib.sha256(open('tiny.onnx', 'rb').read()).hexdigest())"
