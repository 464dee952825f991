"""A local server that answers like the model hub and the media endpoint, and misbehaves on demand.

Files lie below one folder: the zoo's tree at its root, per-model repositories
in `onnxmodelzoo/<repository>/`. As a process of its own:

    python -m onnx_models.meta_tests.hub_server --root DIR --port 0 --fault zoo/path.onnx=cut:1

It prints its address; `GET /_requests` returns what was asked so far as JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import re
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Literal, get_args
from urllib.parse import unquote

Kind = Literal[
    "404", "401", "403", "429", "500", "503",
    "cut", "late", "stall", "slow", "no-length", "no-length-cut", "too-long",
    "wrong-length", "wrong-content", "pointer", "html", "redirect-loop", "no-range", "bad-range",
]  # fmt: skip
STATUSES = frozenset({"404", "401", "403", "429", "500", "503", "redirect-loop"})
COMMIT = "0" * 39 + "1"
PAGE = b"<!DOCTYPE html><html><head><title>Proxy login</title></head><body>Please log in</body></html>"


@dataclass(slots=True)
class Fault:
    """One way to misbehave for one path; `times` counts down, None lasts for ever."""

    kind: Kind
    times: int | None = None
    retry_after: str | None = None
    route: str = ""


@dataclass(frozen=True, slots=True)
class Request:
    """One request as it came in; `route` is hub, model, media, mirror, lfs, raw or api."""

    method: str
    route: str
    path: str
    range: str
    token: str
    at: float


@dataclass
class HubServer:
    """The server. `url` is the HF_ENDPOINT, `media` the media endpoint, `mirror` a plain mirror.

    Large files are redirected to a second port, another origin, as the real hub
    does, so that a token sent along is seen.
    """

    root: Path
    port: int = 0
    faults: dict[str, list[Fault]] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    stopping: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._servers = [_Listener(self, self.port), _Listener(self, 0)]
        self.url, self.cdn = (f"http://127.0.0.1:{server.server_address[1]}" for server in self._servers)
        self.media = f"{self.url}/media/onnx/models"
        self.mirror = f"{self.url}/mirror"

    def __enter__(self) -> HubServer:
        for server in self._servers:
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for server in self._servers:
            server.shutdown()
            server.server_close()

    def add(self, path: str, content: bytes) -> str:
        """Put a file at its path below the root; returns its sha256."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
        return hashlib.sha256(content).hexdigest()

    def misbehave(
        self,
        path: str,
        kind: Kind,
        *,
        times: int | None = None,
        route: str = "",
        retry_after: str | None = None,
    ) -> None:
        """Queue a fault for a path, on one route or on all; the first that has times left is played."""
        if kind not in get_args(Kind):
            raise ValueError(f"unknown fault {kind!r}: choose from {', '.join(get_args(Kind))}")
        self.faults.setdefault(path, []).append(Fault(kind, times, retry_after, route))

    def count(self, path: str = "", *, method: str = "GET", route: str = "") -> int:
        """How many requests came for a path; redirected bodies are counted under their first route."""
        with self.lock:
            return sum(
                r.method == method and (not path or r.path == path) and (not route or r.route == route)
                for r in self.requests
            )

    def bodies(self, path: str) -> int:
        """How many times the body of a file was asked for, whatever the route."""
        return self.count(path, route="lfs") + sum(
            self.count(path, route=r) for r in ("media", "mirror", "raw")
        )

    def take(self, path: str, route: str, method: str) -> Fault | None:
        """The fault to play now, counted down; faults of the body are kept for GET."""
        with self.lock:
            for fault in self.faults.get(path, []):
                if fault.route not in ("", route) or fault.times == 0:
                    continue
                if fault.kind not in STATUSES and (method != "GET" or route in ("hub", "model")):
                    continue
                if fault.times is not None:
                    fault.times -= 1
                return fault
        return None


class _Listener(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, hub: HubServer, port: int) -> None:
        self.hub = hub
        super().__init__(("127.0.0.1", port), _Handler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is what many faults are about: no traceback."""
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)  # type: ignore[arg-type]


_ROUTES = (
    ("hub", re.compile(r"/onnxmodelzoo/legacy_models/resolve/[^/]+/(.+)")),
    ("model", re.compile(r"/(onnxmodelzoo/[^/]+)/resolve/[^/]+/(.+)")),
    ("media", re.compile(r"/media/onnx/models/[0-9a-f]{40}/(.+)")),
    ("mirror", re.compile(r"/mirror/(.+)")),
    ("lfs", re.compile(r"/lfs/[0-9a-f]{64}/(.+)")),
    ("raw", re.compile(r"/raw/onnx/models/[^/]+/(.+)")),
    ("api", re.compile(r"/api/models/(.+)")),
)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Listener

    def log_message(self, *_: object) -> None:
        """Quiet: requests are kept in `HubServer.requests`."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        hub = self.server.hub
        # A client that takes this server for its proxy asks with the whole URL.
        target = unquote(re.sub(r"^http://[^/]+", "", self.path).partition("?")[0])
        if target == "/_requests":
            with hub.lock:
                return self._send(200, json.dumps([asdict(r) for r in hub.requests]).encode())
        matches = ((name, pattern.fullmatch(target)) for name, pattern in _ROUTES)
        route, match = next(((name, found) for name, found in matches if found), ("", None))
        if match is None:
            return self._send(404, b"no such route")
        path = "/".join(match.groups())
        ranged, token = self.headers.get("Range") or "", self.headers.get("Authorization") or ""
        with hub.lock:
            hub.requests.append(Request(self.command, route, path, ranged, token, time.monotonic()))
        fault = hub.take(path, route, self.command)
        if fault and fault.kind in STATUSES:
            return self._refuse(fault)
        if route == "api":
            return self._send(200, json.dumps({"id": path, "sha": COMMIT, "siblings": []}).encode())
        file = hub.root / path
        if not file.is_file() or hub.root.resolve() not in file.resolve().parents:
            return self._send(404, b"Entry not found", {"X-Error-Code": "EntryNotFound"})
        if route in ("hub", "model"):
            return self._redirect(path, file)
        self._body(file, fault, pointer=route == "raw")
        return None

    def _refuse(self, fault: Fault) -> None:
        headers: dict[str, str] = {}
        if fault.kind == "redirect-loop":
            return self._send(302, b"", {"Location": self.path})
        if fault.retry_after is not None:
            headers["Retry-After"] = fault.retry_after
        if fault.kind in ("401", "403"):
            headers |= {"X-Error-Code": "GatedRepo", "X-Error-Message": "Access to model is restricted"}
        if fault.kind == "404":
            headers["X-Error-Code"] = "EntryNotFound"
        return self._send(int(fault.kind), b"no", headers)

    def _redirect(self, path: str, file: Path) -> None:
        content = file.read_bytes()
        sha256 = hashlib.sha256(content).hexdigest()
        headers = {
            "Location": f"{self.server.hub.cdn}/lfs/{sha256}/{path}",
            "X-Repo-Commit": COMMIT,
            "X-Linked-Etag": f'"{sha256}"',
            "X-Linked-Size": str(len(content)),
            "ETag": f'"{sha256[:32]}"',
        }
        self._send(302, b"", headers)

    def _body(self, file: Path, fault: Fault | None, *, pointer: bool) -> None:
        content, kind = file.read_bytes(), fault.kind if fault else ""
        if pointer or kind == "pointer":
            digest = hashlib.sha256(content).hexdigest()
            text = f"version https://git-lfs.github.com/spec/v1\noid sha256:{digest}\nsize {len(content)}\n"
            return self._send(200, text.encode())
        if kind == "late":
            self.server.hub.stopping.wait(0.5)
        if kind == "html":
            return self._send(200, PAGE, {"Content-Type": "text/html"})
        if kind == "wrong-length":
            return self._send(200, content[: len(content) // 2])
        if kind == "wrong-content":
            content = bytes(255 - byte for byte in content)
        if kind in ("slow", "stall", "no-length", "no-length-cut", "too-long"):
            return self._without_length(content, kind)
        start, status, headers = 0, 200, {"Accept-Ranges": "bytes", "ETag": f'"{len(content)}"'}
        wanted = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "")
        if wanted and kind != "no-range":
            start, status = int(wanted[1]), 206
            if start >= len(content) or kind == "bad-range":
                return self._send(416, b"", {"Content-Range": f"bytes */{len(content)}"})
            headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
        rest = content[start:]
        if kind == "cut":
            self._send(status, rest, headers, cut=len(rest) * 6 // 10)
            self.close_connection = True
            return None
        return self._send(status, rest, headers)

    def _without_length(self, content: bytes, kind: str) -> None:
        self.close_connection = True
        self.send_response(200)
        self.send_header("Connection", "close")
        self.end_headers()
        if self.command == "HEAD":
            return
        if kind == "no-length-cut":
            content = content[: len(content) * 6 // 10]
        if kind in ("no-length", "no-length-cut", "too-long"):
            self.wfile.write(content)
        if kind == "too-long":
            self.wfile.write(content)
        while kind in ("slow", "stall") and not self.server.hub.stopping.wait(0.05):
            if kind == "slow":
                self.wfile.write(b"x")

    def _send(
        self, status: int, body: bytes, headers: dict[str, str] | None = None, *, cut: int | None = None
    ) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body if cut is None else body[:cut])


@contextlib.contextmanager
def served(root: Path) -> Iterator[HubServer]:
    """A running server over `root`, stopped at the end."""
    with HubServer(root) as server:
        yield server


def main() -> None:
    """Serve until interrupted; the first line of stdout is the address."""
    parser = argparse.ArgumentParser(description="A local model hub that misbehaves on demand.")
    parser.add_argument("--root", type=Path, required=True, help="folder with the zoo's tree")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--fault", action="append", default=[], metavar="PATH=KIND[:TIMES]")
    options = parser.parse_args()
    with HubServer(options.root, options.port) as server:
        for text in options.fault:
            path, _, rest = text.rpartition("=")
            kind, _, times = rest.partition(":")
            server.misbehave(path, kind, times=int(times) if times else None)
        print(server.url, flush=True)
        with contextlib.suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
