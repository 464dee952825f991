"""What a model file declares, read in a child process so that no weights enter this one."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from onnx_models import tools
from onnx_models.catalog import Model
from onnx_models.files import LFS_POINTER, is_web_page
from onnx_models.inputs import Port
from onnx_models.outcomes import UsageError

TIMEOUT = 300.0
"""Seconds; a 2 GB file parses in a few."""


class ModelFileError(UsageError):
    """A file that is no usable ONNX model, with what it is instead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """The declarations of a model file.

    Attributes:
        inputs: graph inputs that are not initializers, in order.
        outputs: graph outputs, in order.
        opsets: version by domain, the ONNX domain being "ai.onnx".
        operators: how often each operator occurs, subgraphs and functions included;
            those of other domains as `domain::Name`.
        bytes: of the file and its external data together.
        external_files: the files with weights, relative to the model's folder; sorted.
        sha256: of the model file alone.
    """

    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    ir_version: int
    opsets: Mapping[str, int]
    operators: Mapping[str, int]
    bytes: int
    external_files: tuple[str, ...]
    sha256: str
    producer: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data for `reference.json`."""
        ports = {key: [_port_row(port) for port in getattr(self, key)] for key in ("inputs", "outputs")}
        plain = {key: getattr(self, key) for key in self.__slots__ if key not in ports}
        return (
            plain
            | {"opsets": dict(self.opsets), "operators": dict(self.operators)}
            | {"external_files": list(self.external_files)}
            | ports
        )

    @property
    def external(self) -> bool:
        """Whether weights lie outside the file."""
        return bool(self.external_files)

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> ModelInfo:
        """The inverse of `to_json`."""
        ports = {key: tuple(_port(port) for port in row[key]) for key in ("inputs", "outputs")}
        return cls(**{**row, **ports, "external_files": tuple(row["external_files"])})


_seen: dict[tuple[str, int, int], ModelInfo] = {}


def inspect(
    model_file: Path,
    *,
    scratch: Path | None = None,
    timeout: float = TIMEOUT,
    memory_limit: int | None = None,
) -> ModelInfo:
    """Read a model's declarations; the same unchanged file is read once per process.

    Args:
        model_file: the .onnx file, its external data beside it.
        scratch: folder for the child's short-lived files, the system's own when None.
        timeout: seconds.
        memory_limit: bytes of the child's resident memory.

    Raises:
        ModelFileError: the file is missing, a folder, unreadable, empty, a Git LFS
            pointer, a web page, truncated, no ONNX, or its external data lies outside its folder.
    """
    refuse_obvious(model_file)
    stat = model_file.stat()
    identity = (str(model_file.resolve()), stat.st_size, stat.st_mtime_ns)
    if identity not in _seen:
        _seen[identity] = _inspect(model_file, scratch, timeout, memory_limit)
    return _seen[identity]


def with_file_facts(model: Model, model_file: Path) -> Model:
    """The record of a model that only an archive holds, completed by what its file says.

    Its size and whether its weights lie beside it decide how it is imported, and
    no catalogue can know them. The archive's sha256 stands for the files in it.

    Raises:
        ModelFileError: as `inspect`.
    """
    if model.source.get("type") != "hub-archive":
        return model
    info = inspect(model_file)
    sha256 = str(model.source["sha256"])
    return replace(model, bytes=info.bytes, external_data=info.external, sha256=sha256)


def _inspect(model_file: Path, scratch: Path | None, timeout: float, memory_limit: int | None) -> ModelInfo:
    if scratch is not None:
        scratch.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="inspect-", dir=scratch) as folder:
        answer, log = Path(folder, "info.json"), Path(folder, "log")
        finished = run_child(
            "inspection_child", model_file, answer, log=log, timeout=timeout, memory=memory_limit
        )
        if not finished.ok or not answer.is_file():
            why = finished.kind.value if finished.kind else "no answer"
            raise ModelFileError(f"{model_file}: not readable as ONNX ({why}: {finished.first_error()})")
        row = json.loads(answer.read_text(encoding="utf-8"))
    if "error" in row:
        raise ModelFileError(f"{model_file}: {row['error']}")
    return ModelInfo.from_json(row)


def run_child(
    module: str, *argv: str | Path, log: Path, timeout: float, memory: int | None
) -> tools.Finished:
    """Run a child module of the suite with this Python, wherever the package was imported from."""
    # One thread everywhere: a sum's order, and so its last bits, must not depend on the machine's cores.
    threads = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    env = tools.importable(str(Path(__file__).parents[1])) | threads
    words = [sys.executable, "-m", f"onnx_models.{module}", *argv]
    return tools.run(words, log=log, timeout=timeout, memory_limit=memory, env=env)


def refuse_obvious(model_file: Path) -> None:
    """Say what a file is that is plainly no model, without reading it.

    Raises:
        ModelFileError: it is not a readable file, is empty, a Git LFS pointer or a web page.
    """
    if model_file.is_dir():
        raise ModelFileError(f"{model_file}: a folder: give the .onnx file in it")
    if model_file.exists() and not model_file.is_file():  # opening a pipe waits for its writer
        raise ModelFileError(f"{model_file}: a pipe, socket or device: give an .onnx file")
    try:
        with model_file.open("rb") as file:
            head = file.read(256)
    except FileNotFoundError:
        raise ModelFileError(f"{model_file}: no such file") from None
    except OSError as error:
        raise ModelFileError(f"{model_file}: not readable ({error.strerror})") from None
    if not head:
        raise ModelFileError(f"{model_file}: empty: fetch it again")
    if head.startswith(LFS_POINTER):
        raise ModelFileError(f"{model_file}: a Git LFS pointer, not the model: run git lfs pull")
    if is_web_page(head):
        raise ModelFileError(f"{model_file}: a web page, not a model: fetch it again")


def _port_row(port: Port) -> dict[str, Any]:
    shape = None if port.shape is None else list(port.shape)
    return {"name": port.name, "dtype": port.dtype, "shape": shape, "kind": port.kind}


def _port(row: Mapping[str, Any]) -> Port:
    shape = None if row["shape"] is None else tuple(row["shape"])
    return Port(name=row["name"], dtype=row["dtype"], shape=shape, kind=row["kind"])
