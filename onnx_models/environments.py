"""Toolchains of published releases: a virtual environment per release, made on demand and kept.

An environment holds the compiler and the runtime of one release with the onnx that pip
chooses for its importer, apart from the suite's own packages. It counts only once its
marker is written, so that what a killed pip left behind is made anew.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import IO

from packaging.version import InvalidVersion, Version

from onnx_models import toml_files, tools
from onnx_models.cache import locked
from onnx_models.outcomes import SuiteError, UsageError
from onnx_models.versions import release_name, version_key

RELEASES = Path(__file__).with_name("releases.toml")

INSTALL_SECONDS = 1800.0
"""Limit of one `pip install`; the wheels are 100 to 200 MB and take 15 s on a good line."""

NEEDED_BYTES = 1_500_000_000
"""Free bytes before an environment is begun: it takes 0.6 GB, and pip unpacks beside it."""

NIGHTLY = "nightly"

_QUESTION = """
import importlib.metadata as m, json, platform
names = ("iree-base-compiler", "iree-base-runtime", "onnx", "numpy", "protobuf")
print(json.dumps({"python": platform.python_version(), **{name: m.version(name) for name in names}}))
"""


class ToolchainError(SuiteError):
    """An environment cannot be made; the message is one line with the next step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """One whole environment.

    Attributes:
        name: the release, such as `3.9.0`, or `nightly-20261201`.
        folder: of the virtual environment.
        packages: versions by package, and of `python`.
        made: UTC time in ISO format.
    """

    name: str
    folder: Path
    packages: Mapping[str, str]
    made: str

    @property
    def release(self) -> str:
        """What its results are of: a nightly build by the version that it has, which sorts by age."""
        nightly = self.name.startswith(NIGHTLY)
        return self.packages["iree-base-compiler"] if nightly else self.name

    @property
    def bin(self) -> Path:
        """The folder with the tools."""
        return self.folder / "bin"

    @property
    def bytes(self) -> int:
        """What it takes on disk."""
        return sum(p.lstat().st_size for p in self.folder.rglob("*") if not p.is_dir())


def name_of(version: str) -> str:
    """The environment's name of what a user asked for.

    Raises:
        UsageError: it is no version.
    """
    if version == NIGHTLY:
        return f"{NIGHTLY}-{datetime.now(timezone.utc):%Y%m%d}"
    if re.fullmatch(rf"{NIGHTLY}-\d{{8}}", version):
        return version
    try:
        return release_name(version)
    except InvalidVersion:
        raise UsageError(f"--iree {version!r}: not a version: give one such as 3.9.0, or {NIGHTLY}") from None


def provide(version: str, cache: Path, *, offline: bool = False) -> Environment:
    """The environment of a release, made when there is none; others wait for the one that makes it.

    Args:
        version: such as `3.9.0`, `3.14.0rc20261120`, or `nightly`.
        cache: where environments are kept, in `toolchains`.
        offline: refuse instead of asking the package index.

    Raises:
        UsageError: there is no such release, or none for this Python.
        ToolchainError: the index cannot be reached, or the disk is full.
    """
    name = name_of(version)
    found = find(name, cache)
    if found is not None:
        return found
    if offline:
        raise ToolchainError(
            f"IREE {name}: not in {cache / 'toolchains'} and downloads are off: "
            f"run onnx-models toolchains add {name}"
        )
    with locked(cache, f"toolchain-{name}"):
        found = find(name, cache)
        return found or _make(name, cache)


def find(name: str, cache: Path) -> Environment | None:
    """The whole environment of that name, None when there is none."""
    folder = cache / "toolchains" / name
    try:
        row = json.loads(_marker(folder).read_text(encoding="utf-8"))
        found = Environment(
            name=row["name"], folder=folder, packages=dict(row["packages"]), made=str(row["made"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    # The Python that it was made with may have been removed since: its link then leads nowhere.
    return found if found.name == name and (folder / "bin" / "python").exists() else None


def environments(cache: Path) -> tuple[Environment, ...]:
    """All whole environments, the oldest release first."""
    folders = sorted(cache.joinpath("toolchains").glob("*"))
    found = [each for folder in folders if (each := find(folder.name, cache))]
    return tuple(sorted(found, key=lambda each: version_key(each.packages["iree-base-compiler"])))


@contextlib.contextmanager
def lease(environment: Environment, cache: Path) -> Iterator[None]:
    """Keep `remove` of any process away while the tools are in use."""
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(OSError):  # a cache that cannot be written is used without a lease
            fcntl.flock(stack.enter_context(_lease_file(environment.name, cache)), fcntl.LOCK_SH)
        yield


def remove(name: str, cache: Path) -> None:
    """Remove an environment.

    Raises:
        UsageError: there is none of that name.
        ToolchainError: a run is using it.
    """
    folder = cache / "toolchains" / name_of(name)
    if not folder.is_dir():
        known = ", ".join(each.name for each in environments(cache)) or "none"
        raise UsageError(f"no toolchain {name!r} in {cache / 'toolchains'}: there is {known}")
    with locked(cache, f"toolchain-{folder.name}"), _lease_file(folder.name, cache) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise ToolchainError(
                f"IREE {folder.name}: in use by a run: remove it when that has ended"
            ) from None
        _clear(folder)


def _lease_file(name: str, cache: Path) -> IO[bytes]:
    path = cache / "locks" / f"toolchain-{name}.lease"
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a+b")


def _marker(folder: Path) -> Path:
    return folder / "onnx-models.json"


def _clear(folder: Path) -> None:
    """Remove a folder; the marker goes first, so that half of it is never taken for whole."""
    _marker(folder).unlink(missing_ok=True)
    shutil.rmtree(folder, ignore_errors=True)


def _make(name: str, cache: Path) -> Environment:
    folder = cache / "toolchains" / name
    free = shutil.disk_usage(cache).free
    if free < NEEDED_BYTES:
        raise ToolchainError(
            f"IREE {name}: {cache} has {free / 1e9:.1f} GB free, an environment needs "
            f"{NEEDED_BYTES / 1e9:.1f}: remove some (onnx-models toolchains ls), or set ONNX_MODELS_CACHE"
        )
    _clear(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    python = str(folder / "bin" / "python")
    try:
        _step(name, (sys.executable, "-m", "venv", str(folder)))
        _step(name, (python, "-m", "pip", "install", *_OPTIONS, *requirements(name)))
        answer = _step(name, (python, "-c", _QUESTION))
        packages = {str(key): str(value) for key, value in json.loads(answer.splitlines()[-1]).items()}
        made = datetime.now(timezone.utc).isoformat(timespec="seconds")
        found = Environment(name=name, folder=folder, packages=packages, made=made)
        row = asdict(found) | {"folder": None}
        _marker(folder).write_text(json.dumps(row) + "\n", encoding="utf-8")
    except BaseException:
        _clear(folder)
        raise
    return found


_OPTIONS = ("--disable-pip-version-check", "--no-input", "--progress-bar=off", "--only-binary=:all:")


def requirements(name: str) -> tuple[str, ...]:
    """What pip is asked for; `releases.toml` has the releases of which a part is missing."""
    rows = toml_files.read(RELEASES)
    if name.startswith(NIGHTLY):
        return "--pre", "--find-links", rows["nightly"], "iree-base-compiler[onnx]", "iree-base-runtime"
    runtime = rows["runtime"].get(name, name)
    pre = ("--pre", "--find-links", rows["nightly"]) if Version(name).is_prerelease else ()
    return *pre, f"iree-base-compiler[onnx]=={name}", f"iree-base-runtime=={runtime}"


def _step(name: str, command: tuple[str, ...]) -> str:
    """Run one step of the making; what it printed.

    Raises:
        UsageError, ToolchainError: it failed, with the reason in one line.
    """
    with tempfile.TemporaryDirectory(prefix="onnx-models-") as scratch:
        log = Path(scratch) / "log"
        done = tools.run(command, log=log, timeout=INSTALL_SECONDS)
        said = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
    if not done.ok:
        raise _reason(name, command, said, done.ended)
    return said


_UNREACHABLE = re.compile(
    r"Connection(?:Error| refused| reset)|NewConnectionError|Temporary failure in name resolution"
    r"|Name or service not known|ReadTimeout|ConnectTimeout|ProxyError|SSLError"
)


def _reason(name: str, command: tuple[str, ...], said: str, ended: str) -> SuiteError:
    """One line on why a step failed, and the next step; `UsageError` where no try can help."""
    again = f"then run onnx-models toolchains add {name}"
    offered = re.search(r"requirement (\S+?)==\S+ \(from versions: ([^)]*)\)", said)
    if "ensurepip is not available" in said or "No module named venv" in said:
        why = f"{sys.executable} has no venv module: install it (Debian, Ubuntu: python3-venv)"
    elif ended == "timeout":
        why = f"pip took more than {INSTALL_SECONDS:.0f} s: check the network, {again}"
    elif _UNREACHABLE.search(said):
        why = f"the package index cannot be reached: check network and PIP_INDEX_URL, {again}"
    elif "No space left on device" in said:
        why = f"no space left on device: free some, {again}"
    elif offered and offered[2] == "none":
        return UsageError(f"IREE {name}: the index has no {offered[1]} for {_python()}, or is out of reach")
    elif offered:
        near = _nearest(name, offered[2])
        return UsageError(f"IREE {name}: no such release for {_python()}: there is {near}")
    else:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        errors = [line[6:].strip() for line in lines if line.startswith("ERROR:")]
        reason = next(iter(errors), lines[-1] if lines else "no reason given")
        why = f"{Path(command[0]).name} failed ({reason[:200]}): correct that, {again}"
    return ToolchainError(f"IREE {name}: {why}")


def _python() -> str:
    return f"Python {sys.version_info[0]}.{sys.version_info[1]}"


def _nearest(name: str, versions: str) -> str:
    """The published versions around a missing one."""
    known = sorted({v.strip() for v in versions.split(",")}, key=version_key)
    before = [v for v in known if version_key(v) < version_key(name)][-2:]
    after = [v for v in known if version_key(v) > version_key(name)][:2]
    return ", ".join([*before, *after])
