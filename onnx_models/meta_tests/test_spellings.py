"""Flags in the words of an older release, and a note for what had to be left out."""

from __future__ import annotations

import pytest

from onnx_models.spellings import spell, spellings

HIP = ("--iree-hal-target-device=hip", "--iree-rocm-target=gfx942")


@pytest.mark.parametrize(
    ("version", "target"),
    [
        ("2.9.0rc20241108", "--iree-hip-target=gfx942"),
        ("3.10.0", "--iree-hip-target=gfx942"),
        ("3.11.0rc20260101", "--iree-rocm-target=gfx942"),
        ("3.13.0", "--iree-rocm-target=gfx942"),
        ("unknown-1234abcd", "--iree-rocm-target=gfx942"),
    ],
)
def test_a_flag_is_translated(version: str, target: str) -> None:
    spelled = spell("iree-compile", version, HIP)
    assert spelled.flags == ("--iree-hal-target-device=hip", target)
    assert spelled.notes == ()


@pytest.mark.parametrize(
    "flags", [("--opset-version", "17", "--no-verify"), ("--opset-version=17", "--no-verify")]
)
def test_what_a_release_does_not_know_is_left_out_and_said(flags: tuple[str, ...]) -> None:
    spelled = spell("iree-import-onnx", "2.9.0", flags)
    assert spelled.flags == ("--no-verify",)
    (note,) = spelled.notes
    assert note == "iree-import-onnx 2.9.0 does not know --opset-version yet: left out " + " ".join(
        flags[:-1]
    )
    assert spell("iree-import-onnx", "3.0.0", flags).flags == flags
    assert spell("iree-compile", "2.9.0", flags).flags == flags


def test_a_value_that_is_missing_is_no_crash() -> None:
    assert spell("iree-import-onnx", "2.9.0", ("--opset-version",)).flags == ()


def test_the_data_is_sorted_and_unique() -> None:
    names = [(each.tool, each.flag) for each in spellings()]
    assert names == sorted(set(names))
