"""Where an expectation holds: version ranges, devices, systems, processor features."""

from __future__ import annotations

import pytest

from onnx_models import conditions
from onnx_models.conditions import Circumstances
from onnx_models.outcomes import UsageError

HERE = Circumstances.of(
    iree="3.13.0rc20261016", device="cpu", system="Linux-6.1-x86_64", cpu="AMD EPYC [avx2 avx512f]"
)


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("", True),
        ("iree>=3.13", True),
        ("iree>=3.13,<3.14", True),
        ("iree==3.13.0", True),
        ("iree<3.13", False),
        ("iree>3.13", False),
        ("iree >= 3.0, < 3.5", False),
        ("iree>=3.13.0rc20261001", True),
        ("iree>=3.13.0rc20261101", False),
        ("device=cpu", True),
        ("device=vulkan", False),
        ("device!=vulkan", True),
        ("os=linux", True),
        ("os=macos", False),
        ("cpu=avx512f", True),
        ("cpu!=avx512f", False),
        ("cpu=avx512_vnni", False),
        ("iree>=3.13; os=linux; cpu=avx2", True),
        ("iree>=3.13; os=macos; cpu=avx2", False),
    ],
)
def test_conditions(text: str, holds: bool) -> None:
    assert conditions.holds(text, HERE) is holds


@pytest.mark.parametrize(
    "text", ["iree", "iree~3", "iree>=three", "iree 3.0", "gpu=7", "os=", "os linux", "os=linux cpu=avx", ";"]
)
def test_malformed_conditions_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="'when' has"):
        conditions.parse(text)


def test_a_release_is_bound_by_its_minor_version() -> None:
    assert HERE.minor == (3, 13)
    assert conditions.of_release(HERE.minor) == "iree>=3.13,<3.14"
    assert conditions.holds(conditions.of_release(HERE.minor), HERE)
    assert conditions.names_release("device=cpu; iree>=3")
    assert not conditions.names_release("device=cpu")


def test_an_unstated_version_satisfies_no_range() -> None:
    unknown = Circumstances.of(iree="unknown", device="cpu")
    assert not conditions.holds("iree>=0", unknown)
    with pytest.raises(UsageError, match="not a version"):
        _ = unknown.minor


def test_driver_is_part_of_what_the_driver_calls_itself() -> None:
    found = ("vulkan://GPU-6d65 llvmpipe (LLVM 15.0.6, 256 bits) (llvmpipe Mesa 22.3.6)",)
    software = Circumstances.of(iree="3.13.0", device="vulkan", found=found)
    graphics = Circumstances.of(iree="3.13.0", device="vulkan", found=("vulkan://GPU-1 NVIDIA H200",))
    assert conditions.holds("driver=llvmpipe", software)
    assert not conditions.holds("driver=llvmpipe", graphics)
    assert conditions.holds("driver!=LLVMpipe", graphics)
    assert not conditions.holds("driver=llvmpipe", Circumstances.of(iree="3.13.0", device="vulkan"))
