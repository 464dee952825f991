"""Zoo cases from a hub to a verdict: files under the zoo's own paths, with their stored data sets."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from onnx_models.meta_tests.hub_server import HubServer, served
from onnx_models.meta_tests.sandbox import Sandbox, copy_of_package, model_of, tiny_model, value

GOOD = "vision/classification/mnist/model/mnist-12"
STALE = "vision/classification/mnist/model/mnist-8"
PLAIN = "vision/classification/vgg/model/vgg16-12"


def archive(x: np.ndarray, outputs: list[np.ndarray]) -> bytes:
    """A tar.gz as the zoo has them, with one set whose tensors carry wrong names."""
    made = io.BytesIO()
    members = {"input_0.pb": x} | {f"output_{k}.pb": array for k, array in enumerate(outputs)}
    with tarfile.open(fileobj=made, mode="w:gz") as tar:
        for name, array in members.items():
            content = numpy_helper.from_array(array, "a wrong name").SerializeToString()
            info = tarfile.TarInfo(f"model/test_data_set_0/{name}")
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return made.getvalue()


def publish(hub: HubServer, path: str, data: bytes | None) -> dict[str, Any]:
    """Put a model, and its archive, on the hub; the catalogue's record of it."""
    content = tiny_model().SerializeToString() + b"\x32" + bytes([len(path)]) + path.encode()  # doc_string
    file = f"validated/{path}.onnx"
    row: dict[str, Any] = {
        "path": path,
        "source": {"type": "hub", "path": file},
        "sha256": hub.add(file, content),
        "bytes": len(content),
    }
    if data is not None:
        stored = f"validated/{path}.tar.gz"
        row["test_data"] = {"path": stored, "sha256": hub.add(stored, data), "bytes": len(data)}
    return row


@pytest.fixture
def zoo(tmp_path: Path) -> Iterator[tuple[Sandbox, HubServer]]:
    x = np.arange(6, dtype=np.float32).reshape(2, 3) + 1
    with served(tmp_path / "hub") as hub:
        rows = [
            publish(hub, GOOD, archive(x, [x + x, -x])),
            publish(hub, STALE, archive(x, [x + x, -x + 1])),
            publish(hub, PLAIN, None),
        ]
        home = copy_of_package(tmp_path, models={})
        lines = [json.dumps(row) + "\n" for row in rows]
        (home / "onnx_models" / "catalogue" / "tiny.toml").unlink()
        (home / "onnx_models" / "catalogue" / "zoo.jsonl").write_text("".join(lines), encoding="utf-8")
        sandbox = Sandbox(tmp_path, home=home)
        sandbox.tools()
        sandbox.env |= {"HF_ENDPOINT": hub.url, "ONNX_MODELS_MEDIA_ENDPOINT": hub.media}
        sandbox.env["HF_HOME"] = str(tmp_path / "hf")
        yield sandbox, hub
        sandbox.clear()


def test_stored_sets_are_the_inputs_and_their_outputs_only_health(zoo: tuple[Sandbox, HubServer]) -> None:
    sandbox, hub = zoo
    ended = sandbox.run("--collection", "zoo")
    assert ended.code == 0, ended.output
    good, stale, plain = (sandbox.case(f"cpu/zoo/{path}") for path in (GOOD, STALE, PLAIN))
    assert [row["set"] for row in good["outputs"]] == ["test_data_set_0"] * 2
    assert [row["set"] for row in plain["outputs"]] == ["seeded-0"] * 2
    fed = np.load(sandbox.artifacts / "zoo" / GOOD / "inputs" / "test_data_set_0" / "0.npy")
    assert fed.tolist() == [[1, 2, 3], [4, 5, 6]]
    # The archive's outputs are wrong: that is told, and not held against IREE.
    assert stale["verdict"] == "passed"
    assert [note for note in stale["notes"] if "'z' is not onnxruntime's today" in note]
    assert not [note for note in good["notes"] if "onnxruntime's today" in note]
    # A second run downloads nothing.
    asked = len(hub.requests)
    assert sandbox.run("--collection", "zoo", "--offline", "--require-models").code == 0
    assert len(hub.requests) == asked


def test_which_sets_are_fed_is_an_option(zoo: tuple[Sandbox, HubServer]) -> None:
    sandbox, _ = zoo
    for option, sets in (
        (["--inputs", "seeded", "--seeds", "2"], ["seeded-0", "seeded-1"]),
        (["--inputs", "all"], ["test_data_set_0", "seeded-0"]),
        (["--inputs", "stored"], ["test_data_set_0"]),
    ):
        ended = sandbox.run("--collection", "zoo", "-k", "mnist-12", *option)
        assert ended.code == 0, ended.output
        found = dict.fromkeys(row["set"] for row in sandbox.case(f"cpu/zoo/{GOOD}")["outputs"])
        assert list(found) == sets


def test_stored_sets_that_cannot_be_had_are_replaced_only_when_not_asked_for(
    zoo: tuple[Sandbox, HubServer],
) -> None:
    sandbox, hub = zoo
    (hub.root / "validated" / f"{GOOD}.tar.gz").unlink()
    ended = sandbox.run("--collection", "zoo", "-k", "mnist-12")
    assert ended.code == 0, ended.output
    case = sandbox.case(f"cpu/zoo/{GOOD}")
    assert {row["set"] for row in case["outputs"]} == {"seeded-0"}
    assert [note for note in case["notes"] if note.startswith("seeded inputs, because the stored ones")]
    asked = sandbox.run("--collection", "zoo", "-k", "mnist-12", "--inputs", "stored")
    assert asked.code == 1
    assert "mnist-12.tar.gz" in asked.output


def test_a_file_of_the_right_length_and_wrong_content_is_the_hosts_fault(
    zoo: tuple[Sandbox, HubServer],
) -> None:
    sandbox, hub = zoo
    file = hub.root / "validated" / f"{PLAIN}.onnx"
    content = file.read_bytes()
    file.write_bytes(bytes(len(content)))
    ended = sandbox.run("--collection", "zoo", "-k", "vgg16-12")
    assert ended.code != 0
    case = sandbox.case(f"cpu/zoo/{PLAIN}")
    assert (case["verdict"], case["stage"], case["kind"]) == ("error", "fetch", "infrastructure")
    digest = hashlib.sha256(content).hexdigest()
    assert not list((sandbox.folder / "cache").rglob(digest)), "a wrong file never gets its name"


def test_offline_names_the_file_and_the_command(zoo: tuple[Sandbox, HubServer]) -> None:
    sandbox, hub = zoo
    ended = sandbox.run("--collection", "zoo", "-k", "mnist-12", "--offline", "-rs")
    assert ended.code == 0
    assert "mnist-12.onnx" in ended.output
    assert "onnx-models fetch" in ended.output
    assert sandbox.case(f"cpu/zoo/{GOOD}")["verdict"] == "skipped"
    required = sandbox.run("--collection", "zoo", "-k", "mnist-12", "--offline", "--require-models")
    assert required.code != 0
    assert sandbox.case(f"cpu/zoo/{GOOD}")["verdict"] == "error"
    assert not hub.requests


def test_a_model_inside_an_archive_brings_its_weights_along(
    zoo: tuple[Sandbox, HubServer], tmp_path: Path
) -> None:
    sandbox, hub = zoo
    folder = tmp_path / "large"
    folder.mkdir()
    weight = numpy_helper.from_array(np.full((2, 3), 2, np.float32), "w")
    nodes = [helper.make_node("Mul", ["x", "w"], ["y"])]
    model = model_of(nodes, [value("x")], [value("y")], [weight])
    onnx.save(model, folder / "m.onnx", save_as_external_data=True, location="m.data", size_threshold=0)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for name in ("m.onnx", "m.data"):
            tar.add(folder / name, f"large/{name}")
    path = "Computer_Vision/large_Opset17_timm/large_Opset17"
    data = packed.getvalue()
    source = {"type": "hub-archive", "path": f"{path}.tar.gz", "bytes": len(data)}
    source["sha256"] = hub.add(f"{path}.tar.gz", data)
    home = Path(sandbox.env["PYTHONPATH"])
    catalogue = home / "onnx_models" / "catalogue" / "zoo-archives.jsonl"
    catalogue.write_text(json.dumps({"path": path, "source": source}) + "\n", encoding="utf-8")
    # The fake importer takes no options: what counts here is what it was asked to do.
    ended = sandbox.run("--collection", "zoo-archives")
    stages = {stage["stage"]: stage for stage in sandbox.case(f"cpu/zoo-archives/{path}")["stages"]}
    assert stages["reference"]["ok"], ended.output
    command = stages["import"]["commands"][0]
    assert Path(command[1]).with_name("m.data").is_file()
