"""The devices: how to compile for each, how to run on it, and what must be there to run.

A device is one TOML file in `devices/`, or anywhere else when it is named by
its path. Nothing else in the suite knows a device by name.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from onnx_models import toml_files
from onnx_models.outcomes import Stage, UsageError

DEVICES = Path(__file__).parent / "devices"

Drivers = Callable[[str], tuple[str, ...]]
"""Maps a HAL driver's name to the devices that it lists on this machine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One target to compile for and, where its driver is present, to run on.

    Attributes:
        name: the file's stem.
        title: what a reader of a report is told.
        compile_flags, run_flags: passed to `iree-compile` and `iree-run-module` as they are.
        driver: HAL driver that must list a device before anything is run; empty: never run.
        absent: what happens without one, `skip` or `compile-only`.
        default: whether a run that names no device includes this one.
        host_cpu: whether the compiled module depends on this machine's CPU.
        timeouts: seconds per stage that differ from the suite's defaults.
        found: the devices that the driver lists here, filled in by `probe`.
    """

    name: str
    title: str
    compile_flags: tuple[str, ...]
    run_flags: tuple[str, ...]
    driver: str = ""
    absent: str = "skip"
    default: bool = False
    host_cpu: bool = False
    timeouts: Mapping[Stage, float] = field(default_factory=dict)
    found: tuple[str, ...] = ()

    @property
    def last_stage(self) -> Stage:
        """`compare` where the device can run, `compile` where it can only be compiled for."""
        return Stage.COMPILE if self.absent == "compile-only" and not self.found else Stage.COMPARE

    @property
    def skip_reason(self) -> str:
        """Why its cases are skipped on this machine; empty when they are not."""
        if self.found or self.absent != "skip":
            return ""
        return f"no {self.driver} device here: `iree-run-module --list_devices={self.driver}` lists none"


def names() -> tuple[str, ...]:
    """The devices that ship with the suite, sorted."""
    return tuple(sorted(p.stem for p in DEVICES.glob("*.toml")))


def load(name: str) -> Device:
    """A shipped device by name, or any device by the path of its TOML file.

    Raises:
        UsageError: it does not exist, or its file is not well-formed.
    """
    file = Path(name) if name.endswith(".toml") else DEVICES / f"{name}.toml"
    if not file.is_file():
        raise UsageError(f"unknown device {name!r}: choose from {', '.join(names())}, or give a .toml file")
    return _device(file, toml_files.read(file))


def probe(wanted: tuple[str, ...], drivers: Drivers) -> tuple[Device, ...]:
    """The devices of a run and what of them is present.

    Args:
        wanted: names given by the user; empty takes the default set.
        drivers: lists the devices of a HAL driver.

    Raises:
        UsageError: a device named by the user must run and cannot here.
    """
    chosen = [load(name) for name in wanted] if wanted else [d for d in map(load, names()) if d.default]
    if len({d.name for d in chosen}) < len(chosen):
        raise UsageError("a device is named twice: give each once")
    return present(chosen, drivers, required=bool(wanted))


def present(chosen: Sequence[Device], drivers: Drivers, *, required: bool) -> tuple[Device, ...]:
    """The devices, each with what its driver lists here.

    Raises:
        UsageError: one is `required`, must run, and cannot here.
    """
    found = {driver: drivers(driver) for driver in {d.driver for d in chosen} if driver}
    probed = tuple(replace(d, found=found.get(d.driver, ())) for d in chosen)
    for device in probed:
        if required and device.skip_reason:
            raise UsageError(
                f"device {device.name!r}: {device.skip_reason}; install its driver or drop --device"
            )
    return probed


@cache
def host_cpu() -> str:
    """This machine's processor and its features: what a module compiled for the host depends on."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}".strip()
    fields = dict(re.findall(r"^([^\t:]+)\s*: (.*)$", text, re.MULTILINE))
    name = fields.get("model name", platform.machine())
    return f"{name} [{fields.get('flags', fields.get('Features', ''))}]"


LONGEST = 366 * 86400.0
"""Seconds of a limit; more is a mistake, and some system calls cannot take it."""

_STRINGS = ("title", "driver", "absent")
_BOOLS = ("default", "host_cpu")
_LISTS = ("compile_flags", "run_flags")


def _device(file: Path, row: Mapping[str, Any]) -> Device:
    known = {*_STRINGS, *_BOOLS, *_LISTS, "timeouts"}
    for key, value in row.items():
        if key not in known:
            raise UsageError(f"{file}: unknown key {key!r}: choose from {', '.join(sorted(known))}")
        wanted = str if key in _STRINGS else bool if key in _BOOLS else list if key in _LISTS else dict
        if not isinstance(value, wanted):
            raise UsageError(f"{file}: {key!r} must be a {wanted.__name__}, found {value!r}")
    for key in _LISTS:
        require_flags(row.get(key, []), f"{file}: {key!r}")
    missing = sorted({"title", *_LISTS} - set(row))
    if missing:
        raise UsageError(f"{file}: {missing[0]!r} is missing")
    if row.get("absent", "skip") not in ("skip", "compile-only"):
        raise UsageError(f'{file}: \'absent\' must be "skip" or "compile-only", found {row["absent"]!r}')
    if not row.get("driver") and row.get("absent") != "compile-only":
        raise UsageError(f"{file}: without a 'driver' it can only be absent = \"compile-only\"")
    values: dict[str, Any] = {key: tuple(row[key]) if key in _LISTS else row[key] for key in row}
    values["timeouts"] = {_stage(file, key): _seconds(file, s) for key, s in row.get("timeouts", {}).items()}
    return Device(name=file.stem, **values)


def require_flags(values: Sequence[object], where: str) -> None:
    """Refuse what no command line can hold.

    Raises:
        UsageError: a flag is no text, empty, or has control characters.
    """
    for value in values:
        if not isinstance(value, str) or not value.strip() or not value.isprintable():
            raise UsageError(f"{where} takes texts such as '--device=hip', found {value!r:.60}")


def _seconds(file: Path, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < LONGEST:
        raise UsageError(f"{file}: [timeouts] takes seconds above 0, at most a year, found {value!r:.40}")
    return float(value)


def _stage(file: Path, name: str) -> Stage:
    if name not in ("import", "compile", "run"):
        raise UsageError(f"{file}: [timeouts] takes import, compile and run, not {name!r}")
    return Stage(name)
