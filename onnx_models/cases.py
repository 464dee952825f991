"""The cases of a run: models x devices, each with what is expected of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx_models import catalog
from onnx_models.catalog import Model
from onnx_models.devices import Device
from onnx_models.outcomes import Expectation, Stage, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model on one device."""

    model: Model
    device: Device
    expectation: Expectation | None = None
    skip: str = ""

    @property
    def skip_reason(self) -> str:
        """Why it is not run on this machine or in this run; empty when it is."""
        return self.device.skip_reason or self.skip

    @property
    def id(self) -> str:
        """`device/collection/path`: the test's id, the same on every machine and in every order."""
        return f"{self.device.name}/{self.model.id}"

    @property
    def needs_reference(self) -> bool:
        """False where the device can only be compiled for."""
        return self.device.last_stage is Stage.COMPARE


def combine(
    models: Iterable[Model],
    devices: Iterable[Device],
    expectations: Mapping[str, Mapping[str, Expectation]],
) -> tuple[Case, ...]:
    """Every model on every device, grouped by model so that its import and reference are shared.

    Args:
        models: the selected models.
        devices: the probed devices.
        expectations: device name to model id to expectation.

    Raises:
        UsageError: an expectation names a model that no catalogue has.
    """
    devices = tuple(devices)
    for device in devices:
        _reject_stale(expectations.get(device.name, {}))
    return tuple(
        Case(model=model, device=device, expectation=expectations.get(device.name, {}).get(model.id))
        for model in models
        for device in devices
    )


def _reject_stale(entries: Mapping[str, Expectation]) -> None:
    by_collection: dict[str, list[Expectation]] = {}
    for entry in entries.values():
        by_collection.setdefault(entry.id.partition("/")[0], []).append(entry)
    for collection, members in by_collection.items():
        if collection not in catalog.collections():
            raise UsageError(
                f"{members[0].source}: {members[0].id!r}: no collection {collection!r}; remove it"
            )
        known = {model.id for model in catalog.load(collection)}
        stale = sorted(entry.id for entry in members if entry.id not in known)
        if stale:
            raise UsageError(f"{members[0].source}: {stale[0]!r} names no model of the catalogue; remove it")
