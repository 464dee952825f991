"""What a model is fed: planned from its ports and the catalogue's facts, drawn from a seed.

Planning and drawing are apart: `plan` is pure and says every choice it made,
`generate` makes the array. A seed depends on the model's id, the input's name
and the number of the set, never on an order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from onnx_models import tensors
from onnx_models.catalog import InputFact, Model
from onnx_models.outcomes import Failure, Kind, Stage, SuiteError, UsageError
from onnx_models.tensors import Array

DEFAULT_SIZE = 1
"""Size of a dim that nothing binds."""

FEEDABLE = frozenset(
    {"bool", "float16", "bfloat16", "float32", "float64"}
    | {f"{sign}int{width}" for sign in ("", "u") for width in (8, 16, 32, 64)}
)
"""The element types that onnxruntime and IREE both take as inputs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Port:
    """A graph input or output as the file declares it.

    `shape` is None when the rank is not declared; an axis is a size, the name
    of a symbol (`dim_param`), or None. `kind` is "tensor", or what it is instead.
    """

    name: str
    dtype: str
    shape: tuple[int | str | None, ...] | None
    kind: str = "tensor"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedInput:
    """One input with nothing left open; `generate` turns it into an array."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    kind: str
    seed: int
    params: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The inputs in the order of the graph, and what a reader must know of the choices made."""

    inputs: tuple[PlannedInput, ...]
    notes: tuple[str, ...] = ()


class UnsupportedInput(SuiteError):
    """A model that `iree-run-module` cannot be fed; `failure` goes into the record."""

    def __init__(self, message: str) -> None:
        """Keep the message as a failure of the import stage: it is found before any tool runs."""
        super().__init__(message)
        self.failure = Failure(stage=Stage.IMPORT, kind=Kind.UNSUPPORTED_INPUT, message=message)


def plan(model: Model, ports: Sequence[Port], *, set_index: int = 0) -> Plan:
    """Bind every shape and choose every value range.

    Args:
        model: its `inputs` and `dims` are the facts.
        ports: the graph inputs that are not initializers, in order.
        set_index: number of the seeded set.

    Raises:
        UnsupportedInput: an input is no tensor, or its element type cannot be fed.
        UsageError: the facts do not fit the ports.
    """
    facts = _facts_by_name(model, ports)
    _refuse_unsupported(model, ports, facts)
    shapes, notes = _bind_shapes(model, ports, facts)
    planned = []
    for port in ports:
        fact = facts.get(port.name)
        if fact is None or fact.kind == "default":
            kind, params = default_fact(port.dtype)
            notes.append(f"input {port.name!r} has no catalogue entry: {_describe(kind, params)}")
        else:
            kind, params = fact.kind, dict(fact.params)
        if kind == "sizes":
            kind, params = "values", {"values": _sizes(model, port.name, params, shapes)}
        planned.append(
            PlannedInput(
                name=port.name,
                dtype=port.dtype,
                shape=shapes[port.name],
                kind=kind,
                seed=_seed(model.shared_id, port.name, set_index),
                params=params,
            )
        )
    return Plan(inputs=tuple(planned), notes=tuple(notes))


def default_fact(dtype: str) -> tuple[str, Mapping[str, Any]]:
    """Kind and parameters where nothing is known: small values that are safe as ids and as sizes."""
    if dtype == "bool":
        return "uniform", {}
    if dtype.startswith(("int", "uint")):
        return "ids", {"low": 0, "below": 2}
    return "uniform", {"low": -1.0, "high": 1.0}


def generate(planned: PlannedInput) -> Array:
    """Draw the array of a planned input: C order, native bytes, exactly its dtype and shape.

    `uniform` fills [low, high] (integers: both ends included; bool: either);
    `normal` has mean and std; `ids` are integers from low (0) to below - 1;
    `mask` has ones in the first `keep` (a fraction, 1.0) of the last axis, then
    zeros; `constant` repeats `value`; `values` lays a list out, repeated to fit
    by broadcasting; `distances` is a symmetric matrix of integers below `below`
    with `low` on its diagonal; `file` reads `path`.

    Raises:
        UsageError: the parameters do not fit the dtype or shape.
    """
    rng = np.random.Generator(np.random.PCG64(planned.seed))
    with np.errstate(over="ignore", invalid="ignore"):
        array = _DRAW[planned.kind](planned, rng)
    if array.shape != planned.shape:
        raise UsageError(f"input {planned.name!r}: made {array.shape}, expected {planned.shape}")
    return np.ascontiguousarray(array, dtype=tensors.dtype_named(planned.dtype)).reshape(planned.shape)


def read_file(path: Path, port_name: str, dtype: str) -> Array:
    """Read a user's `.npy` for an input: byte order and layout are converted, anything else must fit.

    Raises:
        UsageError: it is no .npy, holds objects, or has another element type.
    """
    where = f"input {port_name!r}: {path}"
    try:
        array = tensors.load_npy(path)
    except FileNotFoundError:
        raise UsageError(f"{where}: no such file") from None
    except (OSError, ValueError, EOFError) as error:
        raise UsageError(
            f"{where}: not a plain .npy file ({_first_line(error)}): write it with numpy.save"
        ) from None
    expected = tensors.dtype_named(dtype)
    if array.dtype.newbyteorder("=") != expected:
        hint = f"convert it with .astype({dtype!r})"
        raise UsageError(f"{where}: expected {dtype}, found {array.dtype.name}: {hint}")
    return np.ascontiguousarray(array, dtype=expected).reshape(array.shape)


def _first_line(error: Exception) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _refuse_unsupported(model: Model, ports: Sequence[Port], facts: Mapping[str, InputFact]) -> None:
    for port in ports:
        fact = facts.get(port.name)
        if fact is not None and fact.kind == "unsupported":
            why = fact.params.get("why") or f"element type {port.dtype}"
            raise UnsupportedInput(f"{model.id}: input {port.name!r} cannot be fed: {why}")
        if port.kind != "tensor":
            raise UnsupportedInput(f"{model.id}: input {port.name!r} is of type {port.kind}, not a tensor")
        if port.dtype not in FEEDABLE:
            raise UnsupportedInput(f"{model.id}: input {port.name!r} has element type {port.dtype}")


def _facts_by_name(model: Model, ports: Sequence[Port]) -> dict[str, InputFact]:
    known = [port.name for port in ports]
    if duplicate := next((name for name in known if known.count(name) > 1), None):
        raise UsageError(f"{model.id}: the file declares input {duplicate!r} twice")
    positions = {f"#{index}": name for index, name in enumerate(known)}
    facts: dict[str, InputFact] = {}
    for fact in model.inputs:
        name = fact.name if fact.name in known else positions.get(fact.name, "")
        if not name:
            names = ", ".join(map(repr, known)) or "none"
            raise UsageError(f"{model.id}: no input {fact.name!r}: the file's inputs are {names}")
        if name in facts:
            raise UsageError(f"{model.id}: input {name!r} has two entries: keep one")
        facts[name] = fact
    return facts


def _bind_shapes(
    model: Model, ports: Sequence[Port], facts: Mapping[str, InputFact]
) -> tuple[dict[str, tuple[int, ...]], list[str]]:
    wanted = {port.name: _wanted_shape(model, port, facts.get(port.name)) for port in ports}
    symbols = _bind_symbols(model, ports, wanted)
    shapes: dict[str, tuple[int, ...]] = {}
    notes: list[str] = []
    for port in ports:
        if wanted[port.name] is None and port.shape is None:
            notes.append(f"input {port.name!r} has no shape in the file: a scalar is used; give --shape")
        sizes = []
        for axis, size in enumerate(wanted[port.name] or ()):
            if isinstance(size, str) and size in symbols:
                size = symbols[size]
            if not isinstance(size, int):
                notes.append(_unbound(port, axis, size))
                size = DEFAULT_SIZE
            sizes.append(size)
        shapes[port.name] = tuple(sizes)
    return shapes, list(dict.fromkeys(notes))


def _unbound(port: Port, axis: int, symbol: str | None) -> str:
    if symbol is None:
        return f"axis {axis} of input {port.name!r} has no size: {DEFAULT_SIZE} is used; give --shape"
    return (
        f"dim {symbol!r} of input {port.name!r} is not bound: {DEFAULT_SIZE} is used;"
        f" bind it with --dim {symbol}=N"
    )


def _wanted_shape(model: Model, port: Port, fact: InputFact | None) -> tuple[int | str | None, ...] | None:
    """The fact's shape, checked against the file's, or the file's own."""
    given: tuple[int | str, ...] | None = fact.shape if fact is not None else None
    if fact is not None and fact.kind == "file":
        given = read_file(Path(fact.params["path"]), port.name, port.dtype).shape
    if given is None:
        return port.shape
    where = f"{model.id}: input {port.name!r}"
    if any(isinstance(size, int) and size < 0 for size in given):
        raise UsageError(f"{where}: shape {_show(given)} has a negative size")
    if port.shape is None:
        return given
    fits = len(given) == len(port.shape) and all(
        not (isinstance(own, int) and isinstance(new, int)) or own == new
        for own, new in zip(port.shape, given, strict=True)
    )
    if not fits:
        raise UsageError(f"{where}: expected shape {_show(port.shape)}, found {_show(given)}")
    return given


def _show(shape: Sequence[int | str | None]) -> str:
    return "[" + ",".join("?" if size is None else str(size) for size in shape) + "]"


def _bind_symbols(
    model: Model, ports: Sequence[Port], wanted: Mapping[str, tuple[int | str | None, ...] | None]
) -> dict[str, int]:
    """Sizes by symbol: the bindings of the model, and what explicit shapes say of the file's symbols."""
    symbols: dict[str, int] = {}
    known: set[str] = set()
    for port in ports:
        for shape in (port.shape, wanted[port.name]):
            known |= {size for size in shape or () if isinstance(size, str)}
    for name, size in model.dims.items():
        if name not in known:
            names = ", ".join(map(repr, sorted(known))) or "none"
            raise UsageError(f"{model.id}: no dim {name!r}: the inputs' dims are {names}")
        if size < 0:
            raise UsageError(f"{model.id}: dim {name!r} is {size}: a size is 0 or more")
        symbols[name] = size
    for port in ports:
        for own, new in zip(port.shape or (), wanted[port.name] or (), strict=False):
            if isinstance(own, str) and isinstance(new, str):
                new = symbols.get(new)
            if not isinstance(own, str) or not isinstance(new, int):
                continue
            if symbols.setdefault(own, new) != new:
                clash = f"dim {own!r} is {symbols[own]} elsewhere and {new} in input {port.name!r}"
                raise UsageError(f"{model.id}: {clash}: one symbol has one size")
    return symbols


def _sizes(
    model: Model, name: str, params: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]
) -> list[int]:
    """Sizes of another input's axes, for inputs that repeat an image's or a sequence's size."""
    try:
        shape = shapes[params["of"]]
        return [shape[axis] for axis in params.get("axes", range(len(shape)))]
    except (KeyError, IndexError):
        wrong = f"input {name!r}: 'sizes' of {params.get('of')!r}, axes {params.get('axes')}"
        raise UsageError(f"{model.id}: {wrong}: there is no such input or axis") from None


def _seed(model_id: str, name: str, set_index: int) -> int:
    text = f"{model_id}\0{name}\0{set_index}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:16], "little")


def _describe(kind: str, params: Mapping[str, Any]) -> str:
    return f"{kind} {', '.join(f'{key} {value}' for key, value in params.items())} is used".replace("  ", " ")


def _is_integer(planned: PlannedInput) -> bool:
    return tensors.dtype_named(planned.dtype).kind in "iu"


def _uniform(planned: PlannedInput, rng: np.random.Generator) -> Array:
    if planned.dtype == "bool":
        return rng.random(planned.shape) < 0.5
    if _is_integer(planned):
        low, high = int(planned.params.get("low", 0)), int(planned.params.get("high", 1))
        return _integers(planned, rng, low, high + 1)
    bottom, top = float(planned.params.get("low", -1.0)), float(planned.params.get("high", 1.0))
    drawn: Array = rng.random(planned.shape)
    return bottom + (top - bottom) * drawn


def _normal(planned: PlannedInput, rng: np.random.Generator) -> Array:
    drawn: Array = rng.standard_normal(planned.shape)
    return float(planned.params.get("mean", 0.0)) + float(planned.params.get("std", 1.0)) * drawn


def _ids(planned: PlannedInput, rng: np.random.Generator) -> Array:
    return _integers(planned, rng, int(planned.params.get("low", 0)), int(planned.params["below"]))


def _integers(planned: PlannedInput, rng: np.random.Generator, low: int, below: int) -> Array:
    if _is_integer(planned):
        info = np.iinfo(planned.dtype)
        if low < info.min or below - 1 > info.max or below <= low:
            raise UsageError(f"input {planned.name!r}: [{low}, {below}) does not fit {planned.dtype}")
        return rng.integers(low, below, planned.shape, dtype=np.dtype(planned.dtype))
    return rng.integers(low, below, planned.shape)


def _mask(planned: PlannedInput, rng: np.random.Generator) -> Array:
    length = planned.shape[-1] if planned.shape else 1
    kept = round(length * float(planned.params.get("keep", 1.0)))
    return np.broadcast_to(np.arange(length) < kept, planned.shape or (1,)).reshape(planned.shape)


def _constant(planned: PlannedInput, rng: np.random.Generator) -> Array:
    return np.full(planned.shape, planned.params["value"], dtype=tensors.dtype_named(planned.dtype))


def _values(planned: PlannedInput, rng: np.random.Generator) -> Array:
    given = np.asarray(planned.params["values"])
    if given.size == int(np.prod(planned.shape, dtype=np.int64)):
        return given.reshape(planned.shape)
    try:
        return np.broadcast_to(given, planned.shape)
    except ValueError:
        raise UsageError(
            f"input {planned.name!r}: values {given.shape} do not fill {planned.shape}"
        ) from None


def _distances(planned: PlannedInput, rng: np.random.Generator) -> Array:
    low, below = int(planned.params.get("low", 0)), int(planned.params["below"])
    if len(planned.shape) < 2 or planned.shape[-1] != planned.shape[-2]:
        raise UsageError(f"input {planned.name!r}: distances need a square matrix, found {planned.shape}")
    half = np.triu(_integers(planned, rng, low, below), 1)
    matrix: Array = half + np.swapaxes(half, -1, -2) + low * np.eye(planned.shape[-1], dtype=half.dtype)
    return matrix


def _file(planned: PlannedInput, rng: np.random.Generator) -> Array:
    return read_file(Path(planned.params["path"]), planned.name, planned.dtype)


_DRAW = {
    "uniform": _uniform,
    "normal": _normal,
    "ids": _ids,
    "mask": _mask,
    "constant": _constant,
    "values": _values,
    "distances": _distances,
    "file": _file,
}
