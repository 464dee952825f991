"""Where a case's files lie, and the cache that makes an unchanged stage free.

Every path under `artifacts/` is made here, and no two cases share one: devices
and compiler versions have folders of their own below the model's.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from onnx_models.files import write_atomic
from onnx_models.outcomes import Failure, Kind, Stage, StageResult, SuiteError


@dataclass(frozen=True, slots=True, kw_only=True)
class CaseFolder:
    """The files of one model (`model`), one compiler (`toolchain`) and one device (`device`)."""

    model: Path
    toolchain: Path
    device: Path

    @classmethod
    def of(cls, root: Path, *, model_id: str, toolchain: str, device: str) -> CaseFolder:
        """The folders of a case below the artifacts folder `root`; nothing is made yet."""
        model = root / model_id
        return cls(model=model, toolchain=model / toolchain, device=model / toolchain / device)

    @property
    def onnx(self) -> Path:
        """Link to the cached model file: short, and free of the cache's own layout."""
        return self.model / "model.onnx"

    @property
    def mlir(self) -> Path:
        """What the importer wrote, shared by all devices."""
        return self.toolchain / "model.mlir"

    @property
    def parameters(self) -> Path:
        """The weights of a large model, kept out of its MLIR."""
        return self.toolchain / "model.irpa"

    @property
    def vmfb(self) -> Path:
        """The compiled module."""
        return self.device / "module.vmfb"

    @property
    def script(self) -> Path:
        """Runs the case's exact commands again, from anywhere."""
        return self.device / "commands.sh"

    def outputs(self, data_set: str) -> Path:
        """Folder of IREE's outputs for one input set."""
        return self.device / "outputs" / data_set

    def log(self, stage: Stage, data_set: str = "") -> Path:
        """What a tool printed; the import's is shared like its product."""
        folder = self.toolchain if stage is Stage.IMPORT else self.device
        return folder / f"{stage.value}{'-' if data_set else ''}{data_set}.log"

    def relative(self, path: Path) -> str:
        """`path` as the tools see it: they run in the device's folder.

        Relative paths make a command independent of the checkout and keep file
        names with '-', '=' or spaces out of the tools' own parsers.
        """
        return os.path.relpath(path, self.device)


def link_model(model_file: Path, link: Path) -> None:
    """Point `link` at the model file, replacing an older link atomically.

    Raises:
        SuiteError: the folder cannot be written.
    """
    try:
        link.parent.mkdir(parents=True, exist_ok=True)
        if link.is_symlink() and link.resolve() == model_file.resolve():
            return
        with tempfile.TemporaryDirectory(dir=link.parent, prefix=".link-") as folder:
            fresh = Path(folder) / link.name
            fresh.symlink_to(model_file.resolve())
            fresh.replace(link)
    except OSError as error:
        raise SuiteError(f"{link}: cannot be written ({error.strerror}); give --artifacts DIR") from None


@contextmanager
def held(folder: CaseFolder, *, whole: bool) -> Iterator[None]:
    """Keep other runs on the same artifacts away from a case until it is judged.

    Runs that are fed other inputs write other files of the same names. Of a user's file
    (`whole`) the model itself may differ from run to run, so all of its folder is held.

    Raises:
        SuiteError: the folder cannot be written.
    """
    place = folder.model if whole else folder.device
    try:
        place.mkdir(parents=True, exist_ok=True)
        lock = FileLock(place / ".case.lock")
        lock.acquire()
    except OSError as error:
        raise SuiteError(f"{place}: cannot be written ({error.strerror}); give --artifacts DIR") from None
    try:
        yield
    finally:
        lock.release()


TAKES_NOTHING = 'case "${1:-}" in "") ;; *) echo "usage: $0" >&2; exit 2;; esac'
"""The line of `commands.sh` that refuses arguments."""

TAKES_BENCHMARK = 'case "${1:-}" in ""|--benchmark) ;; *) echo "usage: $0 [--benchmark]" >&2; exit 2;; esac'


def require_writable(root: Path) -> None:
    """Make the artifacts folder and write to it once, before any work is done for it.

    Raises:
        SuiteError: it cannot be made or written.
    """
    try:
        root.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=root):
            pass
    except OSError as error:
        raise SuiteError(f"{root}: cannot be written ({error.strerror}); give --artifacts DIR") from None


def stage_key(*parts: object) -> str:
    """sha256 over everything that decides a stage's result."""
    return hashlib.sha256(json.dumps(parts, default=str, sort_keys=True).encode()).hexdigest()


def discard(products: Iterable[Path]) -> None:
    """Remove what an unfinished or failed stage may have left."""
    for path in products:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


Limits = Mapping[Kind, float | None]
"""Seconds for a timeout, bytes for out-of-memory; None for no limit."""


class StageCache:
    """Finished stages of one folder, in its `stages.json`.

    A result is reused when its key is unchanged and its products are the files
    it made (size and modification time). A stage that ran out of time or memory
    is reused only under a limit that is no larger. One that ran out of memory
    without a limit ran out of the machine's, which may be free the next time.
    """

    def __init__(self, folder: Path) -> None:
        self.file = folder / "stages.json"

    def get(
        self, stage: Stage, key: str, *, limits: Limits, products: Iterable[Path], run: str | None = None
    ) -> StageResult | None:
        """The stored result, or None when the stage must run; with `run`, only what that run made."""
        row = self._load().get(stage.value)
        if not isinstance(row, dict) or row.get("key") != key or "limits" not in row:
            return None
        if run is not None and (not run or row.get("run") != run):
            return None
        result = _result(stage, row["result"], self.file.parent)
        if result.failure is None:
            return result if row["products"] == _fingerprint(products, self.file.parent) else None
        kind = result.failure.kind
        if kind not in limits:
            return result
        before, now = row["limits"].get(kind.value), limits[kind]
        return None if before is None or now is None or now > before else result

    def put(
        self, result: StageResult, key: str, *, limits: Limits, products: Iterable[Path], run: str = ""
    ) -> None:
        """Store a result; the other stages of the file stay."""
        made = _fingerprint(products, self.file.parent) if result.failure is None else {}
        rows = self._load() | {
            result.stage.value: {
                "key": key,
                "run": run,
                "limits": {kind.value: limit for kind, limit in limits.items()},
                "products": made,
                "result": _row(result, self.file.parent),
            }
        }
        write_atomic(self.file, json.dumps(rows, indent=1, sort_keys=True) + "\n")

    def _load(self) -> dict[str, Any]:
        try:
            rows = json.loads(self.file.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return rows if isinstance(rows, dict) else {}


def _fingerprint(products: Iterable[Path], folder: Path) -> dict[str, list[int] | None]:
    found: dict[str, list[int] | None] = {}
    for path in products:
        files = sorted(path.iterdir()) if path.is_dir() else [path]
        for file in files:
            stat = file.stat() if file.exists() else None
            found[os.path.relpath(file, folder)] = [stat.st_size, stat.st_mtime_ns] if stat else None
    return found


def _row(result: StageResult, folder: Path) -> dict[str, Any]:
    failure = result.failure
    return {
        "seconds": result.seconds,
        "peak_bytes": result.peak_bytes,
        "confirmed": result.confirmed,
        "commands": [list(command) for command in result.commands],
        "log": os.path.relpath(result.log, folder) if result.log else None,
        "failure": failure
        and {
            "stage": failure.stage.value,
            "kind": failure.kind.value,
            "message": failure.message,
            "detail": failure.detail,
        },
    }


def _result(stage: Stage, row: Mapping[str, Any], folder: Path) -> StageResult:
    failure = row["failure"]
    return StageResult(
        stage=stage,
        seconds=row["seconds"],
        peak_bytes=row["peak_bytes"],
        commands=tuple(tuple(command) for command in row["commands"]),
        log=folder / row["log"] if row["log"] else None,
        reused=True,
        confirmed=row.get("confirmed", False),
        failure=failure
        and Failure(
            stage=Stage(failure["stage"]),
            kind=Kind(failure["kind"]),
            message=failure["message"],
            detail=failure["detail"],
        ),
    )
