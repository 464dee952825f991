"""Downloads from a real local server that misbehaves: every fault is survived or refused with a reason."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from onnx_models import prefetch, store
from onnx_models.cache import SourceError
from onnx_models.hub import AbsentFile, FetchError, HubFile, fetch_file
from onnx_models.meta_tests.hub_server import HubServer, Kind, served
from onnx_models.outcomes import UsageError
from onnx_models.routes import Routes
from onnx_models.store import Store, StoreError
from onnx_models.transfer import Patience

ZOO = "validated/vision/classification/mnist/model/mnist-12.onnx"
DATA = bytes(range(256)) * 800
QUICK = Patience(connect=2, read=2, window=0.3, attempts=3, backoff=0.01, longest_wait=5)

Fetch = Callable[..., Path]


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    for name in [name for name in os.environ if name.startswith(("HF_", "ONNX_MODELS_"))]:
        monkeypatch.delenv(name)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with served(tmp_path / "served") as running:
        monkeypatch.setenv("HF_ENDPOINT", running.url)
        monkeypatch.setenv("ONNX_MODELS_MEDIA_ENDPOINT", running.media)
        monkeypatch.setenv("ONNX_MODELS_CONFIG", str(tmp_path / "none.toml"))
        yield running


@pytest.fixture
def spec(server: HubServer) -> HubFile:
    return HubFile(path=ZOO, sha256=server.add(ZOO, DATA), bytes=len(DATA))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def only(route: str) -> Routes:
    return replace(Routes.configured(), order=(route,))


def debris(cache: Path) -> list[str]:
    return sorted(p.name for p in cache.rglob("*") if p.suffix in (".part", ".tmp"))


def test_the_hub_gives_the_file_once(server: HubServer, spec: HubFile, cache: Path) -> None:
    seen: list[int] = []
    file = fetch_file(spec, cache=cache, progress=seen.append)
    assert file.read_bytes() == DATA
    assert seen[-1] == len(DATA)
    assert fetch_file(spec, cache=cache) == file
    assert server.bodies(ZOO) == 1
    assert server.count(route="media") == 0
    assert not debris(cache)


def test_paths_with_the_same_content_share_a_download(server: HubServer, spec: HubFile, cache: Path) -> None:
    alias = replace(spec, path="validated/other/mnist-13.onnx")
    assert fetch_file(spec, cache=cache) == fetch_file(alias, cache=cache)
    assert server.bodies(alias.path) == 0
    record = store.read_record(Store(root=cache).file(spec.sha256))
    assert record["names"] == sorted([spec.path, alias.path])


def test_the_routes_are_tried_in_order(server: HubServer, spec: HubFile, cache: Path) -> None:
    server.misbehave(ZOO, "404")
    with pytest.raises(FetchError) as caught:
        fetch_file(spec, cache=cache, mirrors=[server.mirror], patience=QUICK)
    lines = str(caught.value).splitlines()[1:]
    assert [line.split(":")[0].strip() for line in lines[:2]] == [
        "onnxmodelzoo/legacy_models",
        "onnxmodelzoo/mnist-12",
    ]
    assert [r.route for r in server.requests] == ["hub", "model", "media", "mirror"]
    assert all("HTTP 404" in line for line in lines)


def test_the_per_model_repository_can_have_another_name(
    server: HubServer, spec: HubFile, cache: Path
) -> None:
    server.add("onnxmodelzoo/mnist-12_timm/mnist-12_timm.onnx", DATA)
    server.misbehave(ZOO, "404", route="hub")
    fetch_file(replace(spec, repo="mnist-12_timm"), cache=cache, patience=QUICK)
    assert server.count(route="model", method="HEAD") == 1
    assert server.count(route="media") == 0


def test_archives_come_from_the_media_endpoint_at_the_pinned_commit(server: HubServer, cache: Path) -> None:
    path = ZOO.replace(".onnx", ".tar.gz")
    spec = HubFile(path=path, sha256=server.add(path, DATA), bytes=len(DATA))
    assert fetch_file(spec, cache=cache).read_bytes() == DATA
    assert {r.route for r in server.requests} == {"media"}


@pytest.mark.parametrize("route", ["hub", "media"])
@pytest.mark.parametrize(
    ("kind", "times", "attempts"),
    [("500", 2, 3), ("503", 1, 2), ("cut", 1, 2), ("no-length", 1, 1), ("no-length-cut", 1, 2)],
)
def test_passing_faults_are_survived(
    server: HubServer, spec: HubFile, cache: Path, route: str, kind: Kind, times: int, attempts: int
) -> None:
    server.misbehave(ZOO, kind, times=times, route="lfs" if route == "hub" else route)
    assert fetch_file(spec, cache=cache, patience=QUICK, routes=only(route)).read_bytes() == DATA
    assert server.bodies(ZOO) == attempts


def test_a_cut_download_is_resumed_where_it_broke(server: HubServer, spec: HubFile, cache: Path) -> None:
    server.misbehave(ZOO, "cut", times=1)
    fetch_file(spec, cache=cache, patience=QUICK)
    ranges = [r.range for r in server.requests if r.route == "lfs"]
    assert ranges == ["", f"bytes={len(DATA) * 6 // 10}-"]


def test_a_later_call_resumes_what_an_earlier_one_left(server: HubServer, spec: HubFile, cache: Path) -> None:
    server.misbehave(ZOO, "cut", times=1)
    once = replace(QUICK, attempts=1)
    with pytest.raises(FetchError, match="1 times in a row"):
        fetch_file(spec, cache=cache, patience=once, routes=only("media"))
    assert debris(cache) == [f"{spec.sha256}.part"]
    assert fetch_file(spec, cache=cache, patience=once, routes=only("media")).read_bytes() == DATA
    assert server.requests[-1].range == f"bytes={len(DATA) * 6 // 10}-"


def test_a_server_that_ignores_the_range_gives_the_whole_file(
    server: HubServer, spec: HubFile, cache: Path
) -> None:
    server.misbehave(ZOO, "cut", times=1)
    server.misbehave(ZOO, "no-range")
    assert fetch_file(spec, cache=cache, patience=QUICK).read_bytes() == DATA


def test_a_range_that_cannot_be_satisfied_starts_over(server: HubServer, spec: HubFile, cache: Path) -> None:
    server.misbehave(ZOO, "cut", times=1)
    server.misbehave(ZOO, "bad-range", times=1)
    assert fetch_file(spec, cache=cache, patience=QUICK).read_bytes() == DATA
    assert server.requests[-1].range == ""


def test_a_partial_file_with_wrong_bytes_is_dropped_and_fetched_anew(
    server: HubServer, spec: HubFile, cache: Path
) -> None:
    part = Store(root=cache).part(spec.sha256)
    part.parent.mkdir(parents=True)
    part.write_bytes(b"x" * 1000)
    file = fetch_file(spec, cache=cache, patience=QUICK, routes=only("media"))
    assert file.read_bytes() == DATA
    assert [r.range for r in server.requests] == ["bytes=1000-", ""]


def test_a_partial_file_linked_elsewhere_is_not_written_to(
    server: HubServer, spec: HubFile, cache: Path, tmp_path: Path
) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"x" * 1000)
    part = Store(root=cache).part(spec.sha256)
    part.parent.mkdir(parents=True)
    part.hardlink_to(foreign)
    assert fetch_file(spec, cache=cache, patience=QUICK).read_bytes() == DATA
    assert foreign.read_bytes() == b"x" * 1000


@pytest.mark.parametrize("route", ["hub", "media"])
def test_retry_after_is_waited_for(server: HubServer, spec: HubFile, cache: Path, route: str) -> None:
    server.misbehave(ZOO, "429", times=1, retry_after="1")
    fetch_file(spec, cache=cache, patience=QUICK, routes=only(route))
    first, second = (r.at for r in server.requests if r.route == route)
    assert second - first >= 1.0


def test_a_retry_after_beyond_patience_ends_the_route(server: HubServer, spec: HubFile, cache: Path) -> None:
    server.misbehave(ZOO, "429", retry_after="3600", route="hub")
    fetch_file(spec, cache=cache, patience=QUICK)
    assert server.count(ZOO, method="HEAD", route="hub") == 1
    server.misbehave(ZOO, "429", retry_after="Fri, 01 Jan 2100 00:00:00 GMT")
    with pytest.raises(FetchError, match=r"HTTP 429.*asks to wait"):
        fetch_file(spec, cache=cache / "other", patience=QUICK)


@pytest.mark.parametrize("route", ["hub", "media"])
@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("500", "HTTP 500.*3 times"),
        ("cut", "3 times in a row"),
        ("no-length-cut", "3 times in a row"),
        ("wrong-length", f"has {len(DATA) // 2:,} bytes, expected {len(DATA):,}"),
        ("too-long", f"more than the expected {len(DATA):,} bytes"),
        ("wrong-content", "sent sha256 .* instead of sha256"),
        ("pointer", "sent a Git LFS pointer"),
        ("html", "sent an HTML page titled 'Proxy login'"),
        ("slow", "too slow: .* bytes in"),
        ("redirect-loop", "redirects in a circle"),
        ("401", "HTTP 401: no access: set HF_TOKEN"),
        ("403", "HTTP 403: no access: set HF_TOKEN"),
    ],
)
def test_lasting_faults_are_named(
    server: HubServer, spec: HubFile, cache: Path, route: str, kind: Kind, words: str
) -> None:
    of_the_body = route == "hub" and kind not in ("401", "403", "redirect-loop")
    server.misbehave(ZOO, kind, route="lfs" if of_the_body else route)
    with pytest.raises(FetchError, match=words):
        fetch_file(spec, cache=cache, patience=QUICK, routes=only(route))
    assert Store(root=cache).find(spec.sha256) is None


def test_a_silent_server_is_left(server: HubServer, spec: HubFile, cache: Path) -> None:
    server.misbehave(ZOO, "stall")
    quick = replace(QUICK, read=0.3, attempts=2)
    with pytest.raises(FetchError, match="silent for too long, 2 times"):
        fetch_file(spec, cache=cache, patience=quick, routes=only("media"))


def test_nobody_listening_is_a_short_story(spec: HubFile, cache: Path, server: HubServer) -> None:
    dead = replace(only("media"), media="http://127.0.0.1:9")
    with pytest.raises(FetchError, match=r"no connection .*2 times"):
        fetch_file(spec, cache=cache, patience=QUICK, routes=dead)


def test_another_file_at_the_hub_is_refused_before_its_bytes_flow(
    server: HubServer, spec: HubFile, cache: Path
) -> None:
    server.add(ZOO, DATA[::-1])
    with pytest.raises(FetchError, match="holds another file there"):
        fetch_file(spec, cache=cache, patience=QUICK, routes=only("hub"))
    assert server.bodies(ZOO) == 0


def test_a_token_goes_to_the_hub_and_nowhere_else(
    server: HubServer, spec: HubFile, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.misbehave(ZOO, "wrong-content", route="lfs")
    fetch_file(spec, cache=cache, patience=QUICK)
    tokens = {
        route: {r.token for r in server.requests if r.route == route} for route in ("hub", "lfs", "media")
    }
    assert tokens == {"hub": {"Bearer hf_secret"}, "lfs": {""}, "media": {""}}


def test_mirrors_are_urls_or_folders(
    server: HubServer, spec: HubFile, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ONNX_MODELS_ROUTES", "mirror")
    monkeypatch.setenv("ONNX_MODELS_MIRROR", server.mirror)
    fetch_file(spec, cache=cache)
    assert server.bodies(ZOO) == server.count(ZOO, route="mirror") == 1
    fetch_file(spec, cache=cache / "b", mirrors=[str(server.root)])
    fetch_file(spec, cache=cache / "c", mirrors=[server.root.as_uri()], offline=True)
    assert server.bodies(ZOO) == 1


def test_a_wrong_route_name_is_a_usage_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ONNX_MODELS_ROUTES", "hub,ftp")
    with pytest.raises(UsageError, match="no route 'ftp': choose from hub, model, media, mirror"):
        Routes.configured()


@pytest.mark.parametrize("how", ["option", "variable"])
def test_offline_asks_nobody_and_names_the_command(
    server: HubServer, spec: HubFile, cache: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    if how == "variable":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(AbsentFile, match=f"{ZOO} .*offline: run 'onnx-models fetch zoo/mnist-12'"):
        fetch_file(replace(spec, wanted_by="zoo/mnist-12"), cache=cache, offline=how == "option")
    assert not server.requests


def test_a_file_of_the_hubs_own_cache_is_used(
    server: HubServer, spec: HubFile, cache: Path, tmp_path: Path
) -> None:
    code = f"""
import huggingface_hub, pathlib
from onnx_models.hub import HubFile, fetch_file
huggingface_hub.hf_hub_download("onnxmodelzoo/legacy_models", {ZOO!r})
print(fetch_file(HubFile(path={ZOO!r}, sha256={spec.sha256!r}), cache=pathlib.Path({str(cache)!r})))
"""
    env = {**os.environ, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == DATA
    assert server.bodies(ZOO) == 1


def test_two_processes_make_one_download(server: HubServer, spec: HubFile, cache: Path) -> None:
    code = f"""
import pathlib, sys
from onnx_models.hub import HubFile, fetch_file
print("ready", flush=True)
sys.stdin.readline()
print(fetch_file(HubFile(path={ZOO!r}, sha256={spec.sha256!r}), cache=pathlib.Path({str(cache)!r})))
"""
    server.misbehave(ZOO, "late")  # both are at it before one is done
    pair = [
        subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, stderr=-1, text=True)
        for _ in range(2)
    ]
    try:
        for process in pair:
            assert process.stdout
            assert process.stdout.readline() == "ready\n"
        for process in pair:
            assert process.stdin
            process.stdin.write("go\n")
            process.stdin.flush()
        ends = [process.communicate(timeout=60) for process in pair]
    finally:
        for process in pair:
            process.kill()
    assert [process.returncode for process in pair] == [0, 0], ends
    assert ends[0][0] == ends[1][0]
    assert server.bodies(ZOO) == 1


def test_waiting_for_a_dead_end_is_given_up(
    server: HubServer, spec: HubFile, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "STALL", 0.1)
    held, free = threading.Event(), threading.Event()

    def holder() -> None:
        with Store(root=cache).claim(spec.sha256):
            held.set()
            free.wait(10)

    thread = threading.Thread(target=holder)
    thread.start()
    assert held.wait(10)
    try:
        with pytest.raises(StoreError, match="another process holds it and made no progress"):
            fetch_file(spec, cache=cache)
    finally:
        free.set()
        thread.join()


def test_a_file_larger_than_the_disk_is_refused_before_it_starts(server: HubServer, cache: Path) -> None:
    spec = HubFile(path=ZOO, sha256="0" * 64, bytes=1 << 60)
    with pytest.raises(StoreError, match=r"needs 1152921.5 TB .* are free: make room"):
        fetch_file(spec, cache=cache)
    with pytest.raises(StoreError, match="1 files: needs"):
        prefetch.fetch_all([spec], cache=cache)
    assert not server.requests


def test_a_full_disk_leaves_no_debris(server: HubServer, spec: HubFile, cache: Path) -> None:
    code = f"""
import pathlib, resource, signal
from onnx_models.hub import HubFile, fetch_file
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
spec = HubFile(path={ZOO!r}, sha256={spec.sha256!r}, bytes={spec.bytes})
fetch_file(spec, cache=pathlib.Path({str(cache)!r}))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert "StoreError" in done.stderr
    assert "cannot write the file of 204.8 kB (File too large): make room" in done.stderr
    assert not debris(cache)
    assert Store(root=cache).find(spec.sha256) is None
    assert server.bodies(ZOO) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a small disk")
def test_a_really_full_disk_leaves_no_debris(server: HubServer, spec: HubFile, cache: Path) -> None:
    cache.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=100k", "tmpfs", cache], capture_output=True)
    if mounted.returncode:
        pytest.skip("mounting is not allowed here")
    try:
        with pytest.raises(StoreError, match="No space left on device"):
            fetch_file(replace(spec, bytes=0), cache=cache)
        assert not debris(cache)
    finally:
        subprocess.run(["umount", cache], check=True)


def test_an_unwritable_cache_is_one_clear_line(spec: HubFile, cache: Path) -> None:
    cache.write_text("not a folder")
    with pytest.raises(StoreError, match=f"{cache}: the cache cannot be written .Not a directory"):
        fetch_file(spec, cache=cache)


def test_offline_an_unwritable_cache_just_has_not_got_the_file(spec: HubFile, cache: Path) -> None:
    cache.write_text("not a folder")
    with pytest.raises(AbsentFile, match="the suite is offline"):
        fetch_file(spec, cache=cache, offline=True)


def test_a_damaged_file_is_fetched_again(server: HubServer, spec: HubFile, cache: Path) -> None:
    fetch_file(spec, cache=cache).write_bytes(b"short")
    assert fetch_file(spec, cache=cache).read_bytes() == DATA
    assert server.bodies(ZOO) == 2


def test_a_hash_that_is_a_path_is_refused(server: HubServer, cache: Path) -> None:
    with pytest.raises(SourceError, match="is no sha256"):
        fetch_file(HubFile(path=ZOO, sha256="../../evil"), cache=cache)
    assert not cache.exists()


def test_a_configuration_file_names_mirrors(
    spec: HubFile, server: HubServer, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "config.toml"
    monkeypatch.setenv("ONNX_MODELS_CONFIG", str(config))
    config.write_text(f'mirrors = ["{server.root}"]\nroutes = "mirror"\nhub_revision = "abc"\n')
    assert Routes.configured().revision == "abc"
    assert fetch_file(spec, cache=cache).read_bytes() == DATA
    assert not server.requests
    monkeypatch.setenv("ONNX_MODELS_ROUTES", "media")
    assert Routes.configured(["first"]).order == ("media",)
    assert Routes.configured(["first"]).mirrors == ("first", str(server.root))


@pytest.mark.parametrize(
    ("text", "words"),
    [("mirror = 'x'", "unknown key 'mirror'"), ("mirrors = 3", "expected a text"), ("mirrors", "not TOML")],
)
def test_wrong_configuration_files_are_usage_errors(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "config.toml").write_text(text)
    with pytest.raises(UsageError, match=words) as caught:
        Routes.configured(environ={"ONNX_MODELS_CONFIG": str(tmp_path / "config.toml")})
    assert str(tmp_path / "config.toml") in str(caught.value)


def test_a_proxy_is_used(server: HubServer, spec: HubFile, cache: Path) -> None:
    code = f"""
import pathlib
from onnx_models.hub import HubFile, fetch_file
print(fetch_file(HubFile(path={ZOO!r}, sha256={spec.sha256!r}), cache=pathlib.Path({str(cache)!r})))
"""
    env = {
        **os.environ,
        "http_proxy": server.url,
        "no_proxy": "",
        "NO_PROXY": "",
        "ONNX_MODELS_ROUTES": "media",
    }
    env["ONNX_MODELS_MEDIA_ENDPOINT"] = "http://zoo.invalid/media/onnx/models"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert server.bodies(ZOO) == 1


def test_many_files_are_planned_and_fetched(server: HubServer, spec: HubFile, cache: Path) -> None:
    paths = [f"validated/x/model-{k}.onnx" for k in range(5)]
    files = [
        HubFile(path=p, sha256=server.add(p, DATA + p.encode()), bytes=len(DATA) + len(p)) for p in paths
    ]
    alias = replace(files[0], path="validated/x/alias.onnx")
    fetch_file(spec, cache=cache)
    missing = HubFile(path="validated/x/none.onnx", sha256="1" * 64, bytes=10)
    chosen = [spec, *files, alias, missing]
    planned = prefetch.plan(chosen, cache)
    assert (len(planned.present), len(planned.missing), planned.aliases) == (1, 6, 1)
    assert planned.missing_bytes == sum(file.bytes for file in files) + 10
    assert "6 files to download, 1.0 MB; 1 in the cache, 204.8 kB; 1 are copies" in str(planned)
    assert prefetch.plan_table(planned).row_count == 6
    done = prefetch.fetch_all(chosen, cache=cache)
    assert [bool(result.path) for result in done] == [True] * 6 + [False]
    assert "no route gave the file" in done[-1].error
    assert sum(server.bodies(p) for p in paths) == 5


def test_the_server_runs_as_a_process(spec: HubFile, server: HubServer) -> None:
    command = [sys.executable, "-m", "onnx_models.meta_tests.hub_server", "--root", str(server.root)]
    command += ["--fault", f"{ZOO}=404:1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            url = process.stdout.readline().strip()
            routes = replace(only("media"), media=f"{url}/media/onnx/models")
            cache = server.root.parent / "process"
            with pytest.raises(FetchError, match="404"):
                fetch_file(spec, cache=cache, routes=routes)
            fetch_file(spec, cache=cache, routes=routes)
            log = server.root.parent / "log.json"
            log.write_bytes(urllib.request.urlopen(f"{url}/_requests", timeout=10).read())
            assert [r["route"] for r in json.loads(log.read_text())] == ["media", "media"]
        finally:
            process.terminate()
