"""One file over HTTP into a partial file: resumed, bounded in time and size, tried again when that can help.

huggingface_hub 2.4.0 was measured against `meta_tests/hub_server.py`. Its
`hf_hub_download` repairs a cut connection within one call and refuses a wrong
length. It keeps nothing of a failed call to resume, asks again at once after the
first 429 whatever its Retry-After says and then waits as long as any says, gives
up on the first 5xx of a body, follows a body that trickles for ever, and accepts
wrong content of the right length. So the hub's addresses, metadata, tokens,
cache and session (proxies, certificates, a user's own client factory) are used
through it, and the transfer is this module's.
"""

from __future__ import annotations

import contextlib
import email.utils
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import huggingface_hub

from onnx_models.files import describe, size_text
from onnx_models.outcomes import SuiteError
from onnx_models.store import StoreError

if TYPE_CHECKING:
    import httpx2  # at run time only where something is downloaded: it is a tenth of the start of pytest

Progress = Callable[[int], None]
"""Called with the bytes that are on disk so far."""

STEADY = 1 << 20
"""Bytes of progress after which the count of failed attempts starts anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to put up with a server; times in seconds, `trickle` in bytes per `window`.

    `attempts` counts failures in a row, `knocks` those where nobody answers; the wait between them starts at
    `backoff` and doubles, unless the server names a time of at most `longest_wait`.
    """

    connect: float = 10.0
    read: float = 30.0
    window: float = 60.0
    trickle: int = 64 << 10
    attempts: int = 5
    knocks: int = 2
    backoff: float = 1.0
    longest_wait: float = 300.0


class Refused(SuiteError):
    """This address will not give the file, whatever the patience."""


class Broken(SuiteError):
    """The transfer broke off; another attempt can help."""

    wait: float | None = None
    """Seconds to wait before it, where the server named them."""

    def after(self, wait: float | None) -> Broken:
        """The same error with the server's wish."""
        self.wait = wait
        return self


class Unreachable(Broken):
    """No connection at all; tried again only as often as `Patience.knocks`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A URL and the headers that only its own host may see."""

    url: str
    headers: Mapping[str, str]


def download(
    locate: Callable[[], Address], part: Path, *, size: int, patience: Patience, progress: Progress
) -> None:
    """Fill `part` up to `size` bytes (0: to the end of the body), resuming what it holds already.

    `locate` is asked again before each attempt, because signed URLs expire.

    Raises:
        Refused: in one line, why this address does not give the file.
        StoreError: the disk cannot take it; nothing is left behind.
    """
    if part.exists() and part.stat().st_nlink > 1:
        part.unlink()  # a link into another cache, left by a killed process: never to be written to
    failures = 0
    while True:
        before = _size(part)
        try:
            with _translated():
                return _attempt(locate(), part, size=size, patience=patience, progress=progress)
        except Broken as error:
            failures = 1 if _size(part) - before >= STEADY else failures + 1
            wait = error.wait
            if wait is None:
                wait = patience.backoff * 2 ** (failures - 1) * random.uniform(1.0, 1.5)
            if wait > patience.longest_wait:
                raise Refused(f"{error}; it asks to wait {wait:.0f} s, too long to do so") from None
            if failures >= (patience.knocks if isinstance(error, Unreachable) else patience.attempts):
                raise Refused(f"{error}, {failures} times in a row") from None
        time.sleep(wait)


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Errors of the HTTP client as Refused or Broken."""
    import httpx2
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        yield
    except HfHubHTTPError as error:
        raise status_error(error.response) from None
    except httpx2.TooManyRedirects:
        raise Refused("redirects in a circle") from None
    except httpx2.TimeoutException as error:
        if isinstance(error, httpx2.ConnectTimeout):
            raise Unreachable("no connection in time") from None
        raise Broken("silent for too long") from None
    except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
        raise Refused(f"not an address ({error})") from None
    except OfflineModeIsEnabled:
        raise Refused("offline (HF_HUB_OFFLINE is set)") from None
    except (httpx2.ConnectError, httpx2.ProxyError) as error:
        raise Unreachable(f"no connection ({_short(error)})") from None
    except httpx2.TransportError as error:
        raise Broken(_short(error)) from None


def status_error(response: httpx2.Response) -> Refused | Broken:
    """What an HTTP status means for the download, with the next step where the user has one."""
    code = response.status_code
    if code in (408, 425, 429) or code >= 500:
        return Broken(f"HTTP {code} {response.reason_phrase}").after(_retry_after(response.headers))
    if code in (401, 403):
        return Refused(f"HTTP {code}: no access: set HF_TOKEN to a token that may read it")
    return Refused(f"HTTP {code} {response.reason_phrase}")


def _attempt(address: Address, part: Path, *, size: int, patience: Patience, progress: Progress) -> None:
    import httpx2

    offset = _size(part)
    if size and offset >= size:
        return  # complete: the check of its hash decides
    headers = {**address.headers, "Accept-Encoding": "identity"}
    if offset:
        headers["Range"] = f"bytes={offset}-"
    timeout = httpx2.Timeout(patience.read, connect=patience.connect)
    session = huggingface_hub.get_session()
    with session.stream(
        "GET", address.url, headers=headers, timeout=timeout, follow_redirects=True
    ) as response:
        if response.status_code == 416:
            part.unlink(missing_ok=True)  # a server may refuse also what asked for no range
            raise Broken("HTTP 416: the partial file does not fit what the server has").after(0.0)
        if response.status_code not in (200, 206):
            raise status_error(response)
        start = _start(response, offset)
        body = _watched(response, patience)
        head = b"" if start else next(body, b"")
        _check(response, head, start=start, size=size)
        with _disk(part, size), part.open("r+b" if start else "wb") as file:
            file.seek(start)
            file.truncate()
            end = _write(file, head, body, start=start, size=size, progress=progress)
    if end < size:
        raise Broken(f"closed the connection after {end:,} of {size:,} bytes")


def _start(response: httpx2.Response, offset: int) -> int:
    """Where the body belongs in the file: 0 when the server ignored the Range or gave another."""
    if response.status_code != 206:
        return 0
    given = response.headers.get("Content-Range", "").removeprefix("bytes ").partition("-")[0]
    if given != str(offset):
        raise Refused(f"asked for bytes from {offset}, sent Content-Range {given!r}")
    return offset


def _check(response: httpx2.Response, head: bytes, *, start: int, size: int) -> None:
    what = describe(head)
    if what:
        raise Refused(f"sent {what} in place of the file")
    encoding = response.headers.get("Content-Encoding", "identity")
    if encoding != "identity":
        raise Refused(f"sent Content-Encoding {encoding}, which was not asked for")
    length = response.headers.get("Content-Length", "")
    if size and length.isdigit() and start + int(length) != size:
        raise Refused(f"has {start + int(length):,} bytes, expected {size:,}")


def _watched(response: httpx2.Response, patience: Patience) -> Iterator[bytes]:
    """The body's chunks, as long as they come at a rate that ends some day."""
    since, received = time.monotonic(), 0
    for chunk in response.iter_raw():
        yield chunk
        received += len(chunk)
        now = time.monotonic()
        if now - since >= patience.window:
            if received < patience.trickle:
                rate = f"{received:,} bytes in {now - since:.0f} s"
                raise Broken(f"too slow: {rate}, at least {patience.trickle:,} expected")
            since, received = now, 0


def _write(
    file: BinaryIO, head: bytes, body: Iterator[bytes], *, start: int, size: int, progress: Progress
) -> int:
    end = start + _put(file, head, start, size)
    progress(end)
    for chunk in body:
        end += _put(file, chunk, end, size)
        progress(end)
    return end


def _put(file: BinaryIO, chunk: bytes, end: int, size: int) -> int:
    if size and end + len(chunk) > size:
        raise Refused(f"sends more than the expected {size:,} bytes")
    return file.write(chunk)


@contextlib.contextmanager
def _disk(part: Path, size: int) -> Iterator[None]:
    """A disk that fills up, or a quota, leaves no debris."""
    try:
        yield
    except OSError as error:
        part.unlink(missing_ok=True)
        raise StoreError(
            f"{part.parent.parent}: cannot write the file of {size_text(size) if size else 'unknown size'} "
            f"({error.strerror}): make room with 'onnx-models cache prune --max-size SIZE' "
            "or set ONNX_MODELS_CACHE"
        ) from None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds to wait as Retry-After says, given in seconds or as a date (RFC 9110, 10.2.3)."""
    text = headers.get("Retry-After", "").strip()
    if text.isdigit():
        return float(text)
    try:
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (TypeError, ValueError):
        return None


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _size(part: Path) -> int:
    return part.stat().st_size if part.exists() else 0
