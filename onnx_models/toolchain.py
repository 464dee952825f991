"""The user-facing tools: where they are, which build each is, which devices they see.

A user compares builds, so the report's header names for each tool the path, the
reason it was chosen and its version, and the stage cache holds each tool's `key`.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import re
import shutil
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from onnx_models import tools
from onnx_models.files import write_atomic
from onnx_models.outcomes import SuiteError, UsageError

IMPORTER, COMPILER, RUNNER = "iree-import-onnx", "iree-compile", "iree-run-module"
BENCHMARK = "iree-benchmark-module"

INSTALL = "pip install iree-base-compiler iree-base-runtime, or give --iree-bin DIR"

PROBE_TIMEOUT = 60.0
"""Seconds a tool may take to say its version or its devices: the first start after a boot is slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tool:
    """One tool.

    Attributes:
        name: its command, such as `iree-compile`.
        path: absolute; symbolic links are kept, for a wrapper may look beside itself.
        origin: why this one, in words for the report's header.
        version: of its package, or what it says of itself, or `unknown-` and its hash.
        key: differs between two builds, also between two of the same version.
        release: version of the package that it is from, empty for a build of one's own.
    """

    name: str
    path: Path
    origin: str
    version: str
    key: str
    release: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Toolchain:
    """The tools that one run of the suite uses; `benchmark` only where latency is measured."""

    importer: Tool
    compiler: Tool
    runner: Tool
    benchmark: Tool | None = None

    @property
    def tools(self) -> tuple[Tool, ...]:
        """All of them, in the order of their use."""
        found = (self.importer, self.compiler, self.runner)
        return (*found, self.benchmark) if self.benchmark else found

    @property
    def version(self) -> str:
        """The compiler's version, fit for a folder's name."""
        return re.sub(r"[^\w.+-]", "_", self.compiler.version)

    @property
    def release(self) -> str:
        """What a user asks a package index for; the compiler's own version where it is from none."""
        return self.compiler.release or self.version

    def describe(self) -> tuple[str, ...]:
        """A header line for each tool, and a warning when they are not of one release."""
        lines = [f"{tool.name}: {tool.version} from {tool.path} ({tool.origin})" for tool in self.tools]
        if not _agree([tool.version for tool in self.tools]):
            mix = ", ".join(f"{tool.name} {tool.version}" for tool in self.tools)
            lines.append(f"warning: the tools are of different releases: {mix}")
        return tuple(lines)


def find_toolchain(iree_bin: Path | None, *, cache: Path | None = None) -> Toolchain:
    """Find the tools and learn their versions.

    Each tool is looked for in `iree_bin`, in the folder IREE_BIN names, in what
    the user put on PATH ahead of the running Python (a local build), beside the
    running Python (the wheels) and on the rest of PATH.

    Args:
        iree_bin: the folder of `--iree-bin`, None when not given.
        cache: a folder in whose `tools` the versions are kept between runs: asking the tools
            takes about a second, an answer from there a few milliseconds.

    Raises:
        UsageError: a tool is nowhere, cannot be run, or a named folder holds none of them.
    """
    places = tuple(_places(iree_bin))
    return Toolchain(
        importer=_tool(IMPORTER, places, cache),
        compiler=_tool(COMPILER, places, cache),
        runner=_tool(RUNNER, places, cache),
    )


def of_release(name: str, folder: Path, *, cache: Path | None = None) -> Toolchain:
    """The tools of a release's own environment, called by the name it was asked for.

    The packages of 2.9.0 call themselves 2.9.0rc20241108.

    Raises:
        UsageError: as `find_toolchain`.
    """
    places = (_named(folder, f"--iree {name}"),)
    importer, compiler, runner = (
        replace(_tool(tool, places, cache), release=name) for tool in (IMPORTER, COMPILER, RUNNER)
    )
    return Toolchain(importer=importer, compiler=compiler, runner=runner)


def with_benchmark(toolchain: Toolchain, *, cache: Path | None = None) -> Toolchain:
    """The toolchain with `iree-benchmark-module`, which has to lie beside `iree-run-module`.

    A measurement of another build than the one whose outputs were compared would say nothing.

    Raises:
        UsageError: it is not there.
    """
    runner = toolchain.runner
    if not (runner.path.parent / BENCHMARK).exists():
        raise UsageError(f"--benchmark: {BENCHMARK} is not beside {runner.path}: build or install it there")
    place = _Place(folder=runner.path.parent, origin=f"beside {RUNNER}", strict=True)
    found = _tool(BENCHMARK, (place,), cache)
    return replace(toolchain, benchmark=replace(found, release=runner.release))


def list_devices(toolchain: Toolchain, driver: str) -> tuple[str, ...]:
    """The devices that a HAL driver sees, none when it is absent or fails.

    Each is its address and, where the driver says it, its name and version:
    `vulkan://GPU-6d65... llvmpipe (LLVM 15.0.6, 256 bits) (llvmpipe Mesa 22.3.6)`.
    """
    return _devices(toolchain.runner.path, driver)


@functools.cache
def _devices(runner: Path, driver: str) -> tuple[str, ...]:
    finished, output, _ = _ask((runner, f"--list_devices={driver}"))
    if not finished.ok:
        return ()
    listed = [line.strip() for line in output.splitlines() if line.startswith(f"{driver}://")]
    if not listed or driver.startswith("local-"):
        return tuple(listed)
    names = _device_names(runner, driver)
    return tuple(f"{address} {names.get(address, '')}".strip() for address in listed)


def _device_names(runner: Path, driver: str) -> dict[str, str]:
    _, output, _ = _ask((runner, f"--dump_devices={driver}"))
    return dict(re.findall(r"^# --device=(\S+)\n#[ \t]+(\S.*)$", output, re.MULTILINE))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """A folder to look in; `strict` when the user named it for this."""

    folder: Path
    origin: str
    strict: bool = False


def _places(iree_bin: Path | None) -> Iterator[_Place]:
    named = os.environ.get("IREE_BIN")
    for folder, option in ((iree_bin, "--iree-bin"), (Path(named) if named else None, "IREE_BIN")):
        if folder is not None:
            yield _named(folder.expanduser(), option)
    own = tuple(dict.fromkeys((Path(sys.executable).parent, Path(sysconfig.get_path("scripts")))))
    path = [Path(entry) for entry in os.get_exec_path() if entry]
    positions = [index for index, folder in enumerate(path) if any(_same(folder, mine) for mine in own)]
    ahead = positions[0] if positions else 1
    for folder in path[:ahead]:
        yield _Place(folder=folder, origin="on PATH, ahead of Python")
    for folder in own:
        yield _Place(folder=folder, origin="beside Python")
    for folder in path[ahead:]:
        yield _Place(folder=folder, origin="on PATH")


def _named(folder: Path, option: str) -> _Place:
    if not folder.is_dir():
        raise UsageError(f"{option} {folder}: not a folder: give the one that holds {COMPILER}")
    if not any((folder / name).exists() for name in (IMPORTER, COMPILER, RUNNER)):
        below = [folder / sub for sub in ("tools", "bin") if (folder / sub / COMPILER).exists()]
        hint = f": did you mean {below[0]}?" if below else ": give the folder that holds them"
        raise UsageError(f"{option} {folder}: has none of {IMPORTER}, {COMPILER}, {RUNNER}{hint}")
    return _Place(folder=folder, origin=option, strict=True)


def _same(one: Path, other: Path) -> bool:
    # Not the resolved Python: a virtual environment's is a link into another installation.
    return os.path.realpath(one) == os.path.realpath(other)


def _tool(name: str, places: tuple[_Place, ...], cache: Path | None) -> Tool:
    for place in places:
        path = Path(os.path.abspath(place.folder / name))  # noqa: PTH100 (resolve() follows links)
        if path.is_file() and os.access(path, os.X_OK):
            lacks = next((other for other in places if other.strict), None)
            missing = f"; {lacks.origin} has none" if lacks and not place.strict else ""
            found = _identify(name, path, cache)
            return Tool(
                name=name,
                path=path,
                origin=place.origin + missing,
                version=found.version,
                key=found.key,
                release=found.release,
            )
        if place.strict and path.exists():
            fault = "a folder" if path.is_dir() else "not executable (chmod +x it)"
            raise UsageError(f"{path}: {fault}, expected the program {name} of {place.origin}")
    raise UsageError(f"{name}: not found beside {sys.executable} nor on PATH: {INSTALL}")


def _agree(versions: list[str]) -> bool:
    """Whether versions are of one release: 3.13.0 and 3.13.0rc20261016 are, two candidates are not."""
    known = [version for version in versions if not version.startswith("unknown")]
    return all(a.startswith(b) or b.startswith(a) for a in known for b in known)


_PACKAGES = {
    IMPORTER: ("iree-base-compiler", "onnx"),
    COMPILER: ("iree-base-compiler",),
    RUNNER: ("iree-base-runtime",),
    BENCHMARK: ("iree-base-runtime",),
}

# Asked of a wrapper script's own interpreter: iree-run-module and iree-import-onnx 3.13.0 reject
# --version. The libraries count where a package was installed from a folder: they can be rebuilt
# without a new version.
_QUESTION = """
import glob, importlib.metadata, importlib.util, json, sys
LIBRARY = {"iree-base-compiler": ("iree.compiler", "/_mlir_libs/libIREECompiler*"),
           "iree-base-runtime": ("iree._runtime_libs", "/iree-run-module*")}
answer = []
for name in sys.argv[1:]:
    # 2.9.0 has an egg-info too, which says 2.9.0rc20241108: what pip installed is the dist-info.
    found = list(importlib.metadata.distributions(name=name))
    beside = [d for d in found if d.locate_file("") == found[0].locate_file("")]
    package = ([d for d in beside if d.read_text("WHEEL")] or beside)[0]
    info = name.replace("-", "_") + "-" + package.version + ".dist-info/METADATA"
    libraries = []
    if package.read_text("direct_url.json") and name in LIBRARY:
        module, pattern = LIBRARY[name]
        spec = importlib.util.find_spec(module)
        for folder in (spec and spec.submodule_search_locations) or ():
            libraries += sorted(glob.glob(glob.escape(folder) + pattern))
    answer.append([package.version, str(package.locate_file(info)), libraries])
print(json.dumps(answer))
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Identity:
    """What was learnt of a tool, good while each of `files` keeps its size and time."""

    version: str
    key: str
    files: tuple[tuple[str, int, int], ...]
    release: str = ""

    def holds(self, path: Path) -> bool:
        return self.files[0][0] == str(path) and all(_stamp(file[0]) == file for file in self.files)


_known: dict[Path, _Identity] = {}


def _identify(name: str, path: Path, cache: Path | None) -> _Identity:
    kept = cache / "tools" / f"{name}-{_digest(os.fsencode(path))}.json" if cache else None
    identity = _known.get(path) or (_read(kept) if kept else None)
    if identity is None or not identity.holds(path):
        identity = _examine(name, path)
        if kept:
            _write(kept, identity)
    _known[path] = identity
    return identity


def _examine(name: str, path: Path) -> _Identity:
    packages = _packages(name, path)
    if packages:
        version = packages[0][0]
        parts = [f"{package} {found[0]}" for package, found in zip(_PACKAGES[name], packages, strict=True)]
        files = [str(path), *(found[1] for found in packages)]
        libraries = [library for found in packages for library in found[2]]
    else:
        content = _digest(path.read_bytes())
        version, parts, files = f"unknown-{content[:8]}", [f"sha256 {content}"], [str(path)]
        # The program of a build folder is a thin start of a library, which is what changes.
        home = Path(os.path.realpath(path)).parent
        folders = (home, home.parent / "lib", home.parent / "lib64")
        libraries = sorted(str(file) for folder in folders for file in folder.glob("libIREECompiler*"))
    if name == COMPILER:
        version = _compiler_version(path) or version
    stamps = [_stamp(library) for library in libraries]
    key = "; ".join([version, *parts, *(f"{Path(file).name} {size} {time}" for file, size, time in stamps)])
    release = packages[0][0] if packages else ""
    return _Identity(version=version, key=key, files=(*map(_stamp, files), *stamps), release=release)


def _packages(name: str, path: Path) -> list[tuple[str, str, list[str]]]:
    """Version, metadata file and rebuildable libraries of the packages behind a wheel's wrapper script."""
    interpreter = _interpreter(path)
    if interpreter is None:
        return []
    finished, output, _ = _ask((interpreter, "-c", _QUESTION, *_PACKAGES[name]))
    if not finished.ok:
        return []
    answer: list[tuple[str, str, list[str]]] = json.loads(output)
    return answer


def _interpreter(path: Path) -> str | None:
    """The Python of a wheel's wrapper script, None for anything else."""
    with path.open("rb") as file:
        start = file.read(4096)
    if not start.startswith(b"#!") or not re.search(rb"^from iree\.", start, re.MULTILINE):
        return None
    first, second = [os.fsdecode(line) for line in start.split(b"\n")[:2]]
    # Installers write a path that is long or has spaces as: #!/bin/sh, then "'''exec' '/the path' "$0" "$@".
    long = re.match(r"""\'\'\'exec\' (["']?)(.+)\1 "\$0" "\$@\"""", second)
    if long:
        return long.group(2)
    words = first[2:].strip().split(maxsplit=1)
    if Path(words[0]).name == "env" and len(words) == 2:
        return shutil.which(words[1])
    return first[2:].strip()


def _compiler_version(path: Path) -> str | None:
    finished, output, error = _ask((path, "--version"))
    if not finished.ok:
        raise UsageError(f"{path} --version: failed ({error}): {INSTALL}")
    # "IREE compiler version 3.13.0rc20261016 @ 89ece87b"; a build from source may lack the line.
    found = re.search(r"IREE compiler version (?!@)(\S+)", output)
    return found.group(1) if found else None


def _ask(argv: tuple[str | Path, ...]) -> tuple[tools.Finished, str, str]:
    """Run a quick question: how it ended, all output, and the line that explains a failure."""
    with tempfile.TemporaryDirectory(prefix="onnx-models-") as folder:
        log = Path(folder) / "log"
        try:
            finished = tools.run(argv, log=log, timeout=PROBE_TIMEOUT)
        except SuiteError as error:
            raise UsageError(f"{error}: built for another machine, or not a program") from None
        return finished, log.read_text(encoding="utf-8", errors="replace"), finished.first_error()


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _stamp(file: str) -> tuple[str, int, int]:
    """A file's path, size and time of change in ns, -1 for both when it is not there."""
    with suppress(OSError):
        status = os.stat(file)  # noqa: PTH116 (follows links, also a dangling one)
        return file, status.st_size, status.st_mtime_ns
    return file, -1, -1


def _read(kept: Path) -> _Identity | None:
    with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
        row: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
        files = tuple((str(file), int(size), int(time)) for file, size, time in row["files"])
        return _Identity(
            version=str(row["version"]),
            key=str(row["key"]),
            files=(files[0], *files[1:]),
            release=str(row["release"]),
        )
    return None


def _write(kept: Path, identity: _Identity) -> None:
    with suppress(OSError):  # a cache that cannot be written costs a second, no more
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(kept, json.dumps(asdict(identity)))
