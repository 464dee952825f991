"""The cases of a run: models x devices, each with what is expected of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from onnx_models import catalog, expectations
from onnx_models.catalog import Model
from onnx_models.devices import Device
from onnx_models.expectations import Known
from onnx_models.lists import Flaky
from onnx_models.outcomes import Expectation, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model on one device.

    Attributes:
        model, device: what is tested, and where.
        expectation: where it is known to stop; None when it must pass.
        flaky: the word of the list of flakes on it.
        recording: whether its collection is only being recorded, so that no result of it is red.
        skip: why this run leaves it out; empty when it does not.
    """

    model: Model
    device: Device
    expectation: Expectation | None = None
    flaky: Flaky | None = None
    recording: bool = False
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
    models: Iterable[Model], devices: Iterable[Device], known: Mapping[str, Known]
) -> tuple[Case, ...]:
    """Every model on every device, grouped by model so that its import and reference are shared.

    Args:
        models: the selected models.
        devices: the probed devices.
        known: device name to what is known of its cases.

    Raises:
        UsageError: an entry names a model that no catalogue has, or two entries contradict each other.
    """
    devices = tuple(devices)
    _reject_stale(known.values())
    return tuple(_case(model, device, known.get(device.name)) for model in models for device in devices)


def _case(model: Model, device: Device, known: Known | None) -> Case:
    if known is None:
        return Case(model=model, device=device)
    expectation = known.expect(model.id)
    if expectation is not None and expectation.stage is not None:
        # Where a device can only be compiled for, a case that stops later gets as far as it can.
        beyond = expectation.stage.order > device.last_stage.order
        expectation = None if beyond else expectation
    return Case(
        model=model,
        device=device,
        expectation=expectation,
        flaky=known.flaky(model.id),
        recording=known.recording(model.id),
    )


def _reject_stale(known: Iterable[Known]) -> None:
    layers = [layer for each in known for layer in each.layers]
    entries: list[Expectation | Flaky] = [each for layer in layers for each in layer.entries]
    entries += [each for layer in layers for each in layer.flaky]
    mentioned = {entry.id.partition("/")[0] for entry in entries}
    wild = any(entry.glob and {"*", "?"} & set(entry.id.partition("/")[0]) for entry in entries)
    catalogued = {
        name: frozenset(model.id for model in catalog.load(name))
        if wild or name in mentioned
        else frozenset()
        for name in catalog.collections()
    }
    expectations.reject_stale(entries, catalogued)
