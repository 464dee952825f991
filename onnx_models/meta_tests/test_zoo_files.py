"""Catalogue records become files: models, archive-only models, test data."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from onnx_models import upkeep, zoo
from onnx_models.cache import SourceError
from onnx_models.catalog import Model
from onnx_models.hub import AbsentFile
from onnx_models.meta_tests.hub_server import HubServer, served

PATH = "Computer_Vision/big_Opset17_timm/big_Opset17"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    with served(tmp_path / "served") as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("ONNX_MODELS_MEDIA_ENDPOINT", running.media)
        yield running


def packed(*names: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as out:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = len(name)
            out.addfile(info, io.BytesIO(name.encode()))
    return buffer.getvalue()


def archived(server: HubServer, content: bytes) -> Model:
    path = f"{PATH}.tar.gz"
    source = {"type": "hub-archive", "path": path, "sha256": server.add(path, content), "bytes": len(content)}
    return Model(collection="zoo-archives", path=PATH, source=source)


def test_a_hub_record_is_fetched(server: HubServer, tmp_path: Path) -> None:
    source = {"type": "hub", "path": f"{PATH}.onnx"}
    model = Model(
        collection="zoo", path=PATH, source=source, sha256=server.add(f"{PATH}.onnx", b"model"), bytes=5
    )
    with pytest.raises(AbsentFile, match=f"onnx-models fetch zoo/{PATH}'"):
        zoo.fetch(model, tmp_path / "cache", True)
    assert zoo.fetch(model, tmp_path / "cache", False).read_bytes() == b"model"


def test_an_archive_record_is_unpacked_with_its_external_data(server: HubServer, tmp_path: Path) -> None:
    model = archived(server, packed("big/model.onnx", "big/weights.bin"))
    for offline in (False, True):
        file = zoo.fetch_archive(model, tmp_path / "cache", offline)
        assert file.read_bytes() == b"big/model.onnx"
        assert file.with_name("weights.bin").read_bytes() == b"big/weights.bin"
    assert server.bodies(f"{PATH}.tar.gz") == 1
    cache = tmp_path / "cache"
    with zoo.lease(model, cache):
        assert len(upkeep.prune(cache, 0, grace=0).spared) == 2
    assert {entry.bytes for entry in upkeep.entries(cache)} == {model.source["bytes"], 29}
    assert len(upkeep.prune(cache, 0, grace=0).removed) == 2
    assert not file.exists()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        (("a/x.onnx", "b/y.onnx"), r"expected one \.onnx file in the archive, found a/x\.onnx, b/y\.onnx"),
        (("a/readme",), "found none"),
        (("/x.onnx",), "zoo-archives/.*: refused: member '/x.onnx' has an absolute path"),
    ],
)
def test_archives_without_one_good_model(
    server: HubServer, tmp_path: Path, names: tuple[str, ...], words: str
) -> None:
    with pytest.raises(SourceError, match=words):
        zoo.fetch_archive(archived(server, packed(*names)), tmp_path / "cache", False)


def test_the_files_of_a_selection() -> None:
    test_data = {"path": "v/x.tar.gz", "sha256": "b" * 64, "bytes": 7}
    source = {"type": "hub", "path": "v/x.onnx", "repo": "x_timm"}
    models = [
        Model(collection="zoo", path="x", source=source, sha256="a" * 64, bytes=5, test_data=test_data),
        Model(collection="wheels", path="y", source={"type": "wheel"}),
    ]
    assert [(f.path, f.bytes, f.stem) for f in zoo.files(models)] == [
        ("v/x.onnx", 5, "x_timm"),
        ("v/x.tar.gz", 7, "x.tar"),
    ]
    assert [f.path for f in zoo.files(models, test_data=False)] == ["v/x.onnx"]
