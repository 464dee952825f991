"""Files of the ONNX Model Zoo, from wherever they can be had, checked before they get a name.

The routes are tried in this order, or in that of `ONNX_MODELS_ROUTES`:

    hub      onnxmodelzoo/legacy_models on the model hub, the zoo's tree with its paths
    model    onnxmodelzoo/<stem>, one repository per model, the file at its root
    media    GitHub's media endpoint for Git LFS; the only one with test data archives
    mirror   folders or URLs that hold the zoo's tree: `ONNX_MODELS_MIRROR` (`routes` has the settings)

A file is pinned by its sha256, whatever route or revision brings it.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from urllib.parse import quote, urlsplit

import huggingface_hub

from onnx_models.cache import OfflineError, SourceError
from onnx_models.files import size_text
from onnx_models.routes import HUB_OWNER, HUB_REPOSITORY, Routes
from onnx_models.store import CorruptFile, Store, StoreError
from onnx_models.transfer import Address, Broken, Patience, Progress, Refused, download


class FetchError(SourceError):
    """A file could not be had; one line for each route that was tried."""


class NotThere(Exception):
    """The hub's own cache has not got the file, which is no failure to speak of."""


class AbsentFile(FetchError, OfflineError):
    """A file is not in the cache and the suite is offline: a skip, or an error in CI mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HubFile:
    """A file of the zoo. `path` is the zoo's own, `bytes` 0 when unknown.

    `repo` names the per-model repository where the file's stem does not: a stem
    that two sources share carries the source as a suffix there, in both names.
    `wanted_by` is the id of the model that needs the file, for messages.
    """

    path: str
    sha256: str
    bytes: int = 0
    repo: str = ""
    wanted_by: str = ""

    @property
    def stem(self) -> str:
        """Name of the per-model repository."""
        return self.repo or Path(self.path).stem


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One place to look for one file: a label for messages and a function that fills the partial file."""

    label: str
    local: bool
    fill: Callable[[Path, Patience, Progress], None] = field(repr=False)


def offline_by_environment() -> bool:
    """Whether `HF_HUB_OFFLINE` (or its older name) forbids all network, which here means every route."""
    words = (os.environ.get("HF_HUB_OFFLINE") or os.environ.get("TRANSFORMERS_OFFLINE") or "").upper()
    return words in ("1", "ON", "YES", "TRUE") or bool(huggingface_hub.is_offline_mode())


def fetch_file(
    spec: HubFile,
    *,
    cache: Path,
    offline: bool = False,
    mirrors: Sequence[str] = (),
    progress: Progress | None = None,
    patience: Patience | None = None,
    routes: Routes | None = None,
) -> Path:
    """The file in the cache, fetched when it is not there yet; its size and sha256 are right.

    Workers and machines that share the cache take turns: one fetches, the
    others find the file. Whoever needs it for longer takes a lease first (`Store.lease`).

    Args:
        spec: the file.
        cache: the cache folder.
        offline: look only at the cache, the hub's own cache and mirrors that are folders.
        mirrors: folders or URLs that hold the zoo's tree.
        progress: called with the bytes on disk so far.
        patience: limits of time; the defaults suit the open net.
        routes: all of the above and more; default `Routes.configured(mirrors)`.

    Raises:
        AbsentFile: offline, and the file is not here.
        FetchError: every route failed, one line for each.
        StoreError: the cache folder is full, not writable or blocked.
    """
    store = Store(root=cache)
    offline = offline or offline_by_environment()
    found = store.find(spec.sha256, spec.bytes)
    if found is None:
        try:
            with store.claim(spec.sha256):
                found = store.find(spec.sha256, spec.bytes) or _obtain(
                    spec,
                    store,
                    routes=routes or Routes.configured(mirrors),
                    offline=offline,
                    patience=patience or Patience(),
                    progress=progress or _silent,
                )
        except StoreError as error:
            if not offline:
                raise
            raise _failure(spec, store, [str(error)], offline=True) from None
    store.also(spec.sha256, spec.path)
    return found


def _silent(_: int) -> None:
    """No progress display."""


def _obtain(
    spec: HubFile, store: Store, *, routes: Routes, offline: bool, patience: Patience, progress: Progress
) -> Path:
    part = store.part(spec.sha256)
    failures: list[str] = []
    attempts = [a for a in _attempts(spec, routes) if a.local or not offline]
    resumed = part.stat().st_size if part.exists() else 0
    store.ensure_space(max(0, spec.bytes - resumed), spec.path)
    for attempt in attempts:
        # A wrong file can be the fault of what was resumed: then once more from the start.
        for again in (part.exists(), False):
            try:
                attempt.fill(part, patience, progress)
                return store.admit(spec.sha256, size=spec.bytes, name=spec.path, route=attempt.label)
            except NotThere:
                break
            except (Refused, Broken) as error:
                failures.append(f"{attempt.label}: {error}")
                break
            except CorruptFile as error:
                if not again:
                    failures.append(f"{attempt.label}: sent {error}")
                    break
    raise _failure(spec, store, failures, offline=offline)


def _failure(spec: HubFile, store: Store, failures: Sequence[str], *, offline: bool) -> FetchError:
    size = f" ({size_text(spec.bytes)})" if spec.bytes else ""
    if offline:
        why = "".join(f"\n  {line}" for line in failures)
        return AbsentFile(
            f"{spec.path}{size} is not in {store.root} and the suite is offline: "
            f"run 'onnx-models fetch {spec.wanted_by or spec.path}' with a network{why}"
        )
    lines = "".join(f"\n  {line}" for line in failures) or "\n  no route can hold it"
    return FetchError(
        f"{spec.path}{size}: no route gave the file; set ONNX_MODELS_MIRROR to a copy of the zoo, "
        f"or try again later:{lines}"
    )


def _attempts(spec: HubFile, routes: Routes) -> Iterator[Attempt]:
    if spec.path.endswith(".onnx"):
        for repo, filename in _repositories(spec):
            yield Attempt(
                label="hub cache", local=True, fill=_from_hub_cache(repo, filename, routes.revision)
            )
    for name in routes.order:
        yield from _ROUTES[name](spec, routes)


def _repositories(spec: HubFile) -> Iterator[tuple[str, str]]:
    yield HUB_REPOSITORY, spec.path
    yield f"{HUB_OWNER}/{spec.stem}", f"{spec.stem}.onnx"


def _hub(spec: HubFile, routes: Routes) -> Iterator[Attempt]:
    if spec.path.endswith(".onnx"):  # the hub has no archives
        repo, filename = HUB_REPOSITORY, spec.path
        yield Attempt(label=repo, local=False, fill=_from_hub(spec, repo, filename, routes))


def _model(spec: HubFile, routes: Routes) -> Iterator[Attempt]:
    if spec.path.endswith(".onnx"):
        repo, filename = f"{HUB_OWNER}/{spec.stem}", f"{spec.stem}.onnx"
        yield Attempt(label=repo, local=False, fill=_from_hub(spec, repo, filename, routes))


def _media(spec: HubFile, routes: Routes) -> Iterator[Attempt]:
    url = f"{routes.media}/{routes.media_commit}/{quote(spec.path)}"
    yield Attempt(label=urlsplit(url).netloc, local=False, fill=_from_url(spec, url))


def _mirror(spec: HubFile, routes: Routes) -> Iterator[Attempt]:
    for mirror in routes.mirrors:
        if urlsplit(mirror).scheme in ("http", "https"):
            url = f"{mirror.rstrip('/')}/{quote(spec.path)}"
            yield Attempt(label=mirror, local=False, fill=_from_url(spec, url))
        else:
            file = Path(mirror.removeprefix("file://")).expanduser() / spec.path
            yield Attempt(label=mirror, local=True, fill=_from_folder(file))


_ROUTES: Mapping[str, Callable[[HubFile, Routes], Iterator[Attempt]]] = MappingProxyType(
    {"hub": _hub, "model": _model, "media": _media, "mirror": _mirror}
)


def _from_hub(
    spec: HubFile, repo: str, filename: str, routes: Routes
) -> Callable[[Path, Patience, Progress], None]:
    """Ask the hub for the file's place and hash first: another hash is refused before its bytes flow."""
    url = huggingface_hub.hf_hub_url(repo, filename, revision=routes.revision, endpoint=routes.endpoint)

    def fill(part: Path, patience: Patience, progress: Progress) -> None:
        def locate() -> Address:
            found = huggingface_hub.get_hf_file_metadata(url, timeout=patience.read, endpoint=routes.endpoint)
            etag = (found.etag or "").lower()
            if len(etag) == 64 and etag != spec.sha256:
                raise Refused(f"holds another file there, sha256 {etag[:12]}…, expected {spec.sha256[:12]}…")
            same = urlsplit(found.location)[:2] == urlsplit(url)[:2]
            # A token must not reach the storage host: its URLs are signed.
            token = huggingface_hub.get_token() if same else None
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            return Address(url=found.location, headers=headers)

        download(locate, part, size=spec.bytes, patience=patience, progress=progress)

    return fill


def _from_url(spec: HubFile, url: str) -> Callable[[Path, Patience, Progress], None]:
    def fill(part: Path, patience: Patience, progress: Progress) -> None:
        address = Address(url=url, headers={})
        download(lambda: address, part, size=spec.bytes, patience=patience, progress=progress)

    return fill


def _from_folder(file: Path) -> Callable[[Path, Patience, Progress], None]:
    def fill(part: Path, _: Patience, progress: Progress) -> None:
        if not file.is_file():
            raise Refused(f"{file} is not there")
        try:
            shutil.copyfile(file, part)
        except OSError as error:
            part.unlink(missing_ok=True)
            raise Refused(f"cannot be copied ({error.strerror})") from None
        progress(part.stat().st_size)

    return fill


def _from_hub_cache(repo: str, filename: str, revision: str) -> Callable[[Path, Patience, Progress], None]:
    """What huggingface_hub downloaded earlier, below HF_HOME: linked where possible, else copied."""

    def fill(part: Path, _: Patience, progress: Progress) -> None:
        found = huggingface_hub.try_to_load_from_cache(repo, filename, revision=revision)
        if not isinstance(found, str):
            raise NotThere
        part.unlink(missing_ok=True)
        source = Path(found).resolve()
        try:
            os.link(source, part)
        except OSError:
            _from_folder(source)(part, _, progress)

    return fill
