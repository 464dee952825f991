"""Collection `local`: any ONNX file of the user, with the facts given beside it."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from onnx_models import inputs
from onnx_models.catalog import InputFact, Model
from onnx_models.inspection import ModelInfo, inspect
from onnx_models.outcomes import UsageError

COLLECTION = "local"

LARGEST = 2**31 - 1
"""Elements along one axis; ONNX has 64 bits for them, no machine has the memory."""


def models(
    files: Sequence[Path],
    *,
    dims: Mapping[str, str],
    shapes: Mapping[str, str],
    files_in: Mapping[str, str],
) -> tuple[Model, ...]:
    """One model per file.

    Args:
        files: ONNX files; two of the same name get their folders' names in front.
        dims: symbol to size.
        shapes: input to sizes joined by 'x', or the word `scalar`.
        files_in: input to the .npy file that feeds it.

    Raises:
        UsageError: a file is not a usable ONNX model, or a fact fits no file given.
    """
    sizes = {name: _size("--dim", name, text) for name, text in dims.items()}
    facts = {name: _shape(name, text) for name, text in shapes.items()}
    arrays = {name: Path(text).absolute() for name, text in files_in.items()}
    infos = [inspect(file) for file in files]
    _reject_strangers(
        files, infos, sizes, {**dict.fromkeys(facts, "--shape"), **dict.fromkeys(arrays, "--input")}
    )
    return tuple(
        _model(file, path, info, sizes, facts, arrays)
        for file, path, info in zip(files, _paths(files), infos, strict=True)
    )


def _beside(file: Path, info: ModelInfo) -> Mapping[str, object]:
    """Size and time of each file of external data: too large to be hashed at every start."""
    found = {name: (file.parent / name).stat() for name in info.external_files}
    return {"external": {name: [s.st_size, s.st_mtime_ns] for name, s in found.items()}} if found else {}


def _paths(files: Sequence[Path]) -> list[str]:
    """The shortest tails of the files' paths that tell them apart, without the suffix."""
    # Not resolve(): a link's own name is the one that its user knows.
    whole = [Path(os.path.abspath(file)) for file in files]  # noqa: PTH100
    tails = [file.with_suffix("").parts if file.suffix == ".onnx" else file.parts for file in whole]
    if len(set(tails)) < len(tails):
        twice = next(path for path, count in Counter(tails).items() if count > 1)
        raise UsageError(f"--model {'/'.join(twice[1:])!r} is given twice")
    length = 1
    while len({tail[-length:] for tail in tails}) < len(tails):
        length += 1
    return ["/".join(part for part in tail[-length:] if part != "/") for tail in tails]


def _size(option: str, name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise UsageError(f"{option} {name}={text:.60}: {text[:60]!r} is no size; give a whole number")
    if len(text) > 19 or int(text) > LARGEST:
        raise UsageError(f"{option} {name}={text:.60}: too large for a dim; the most is {LARGEST}")
    return int(text)


def _shape(name: str, text: str) -> tuple[int, ...]:
    if text == "scalar":
        return ()
    shape = tuple(_size("--shape", name, part) for part in text.split("x"))
    if math.prod(shape) > 2**40:
        raise UsageError(f"--shape {name}={text:.60}: {math.prod(shape)} elements are more than fit anywhere")
    return shape


def _reject_strangers(
    files: Sequence[Path],
    infos: Sequence[ModelInfo],
    dims: Mapping[str, int],
    named: Mapping[str, str],
) -> None:
    symbols = {
        dim for info in infos for port in info.inputs for dim in port.shape or () if isinstance(dim, str)
    }
    ports = {port.name for info in infos for port in info.inputs}
    given = ", ".join(str(file) for file in files)
    for name in dims:
        if name not in symbols:
            known = ", ".join(sorted(symbols)) or "none; use --shape for dims without a name"
            raise UsageError(f"--dim {name!r}: {given} has no such dim; its dims are: {known}")
    for name, option in named.items():
        if name not in ports:
            known = ", ".join(sorted(ports)) or "none"
            raise UsageError(f"{option} {name!r}: {given} has no such input; its inputs are: {known}")


def _model(
    file: Path,
    path: str,
    info: ModelInfo,
    dims: Mapping[str, int],
    shapes: Mapping[str, tuple[int, ...]],
    arrays: Mapping[str, Path],
) -> Model:
    symbols = {dim for port in info.inputs for dim in port.shape or () if isinstance(dim, str)}
    facts: list[InputFact] = []
    for port in info.inputs:
        if port.name in arrays:
            params = {"path": str(arrays[port.name])}
            facts.append(InputFact(name=port.name, kind="file", shape=shapes.get(port.name), params=params))
        elif port.name in shapes:
            facts.append(InputFact(name=port.name, kind="default", shape=shapes[port.name]))
    model = Model(
        collection=COLLECTION,
        path=path,
        source={"type": "local", "path": str(file.absolute()), **_beside(file, info)},
        bytes=info.bytes,
        external_data=info.external,
        inputs=tuple(facts),
        dims={name: size for name, size in dims.items() if name in symbols},
    )
    if facts or model.dims:
        with suppress(inputs.UnsupportedInput):  # no wrong option: the case itself says so
            inputs.plan(model, info.inputs)
    return model
