"""When two latencies differ, and what google benchmark's file has to hold."""

from __future__ import annotations

import json
from typing import Any

import pytest

from onnx_models import difference, latency
from onnx_models.latency import Repetitions, UnreadableResult
from onnx_models.runs import RunFile


def measured(
    median_s: float, *, mad: float = 0.0, ort: float | None = 0.001, ort_mad: float = 0.0, **more: Any
) -> dict[str, Any]:
    row: dict[str, Any] = {"set": "seeded-0", "threads": 2, "iree": {"median_s": median_s, "mad_s": mad}}
    return row | ({"onnxruntime": {"median_s": ort, "mad_s": ort_mad}} if ort else {}) | more


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (measured(0.010), measured(0.010), ""),
        (measured(0.010), measured(0.0104), ""),  # below 5 %
        (measured(0.010), measured(0.0106), "slower"),
        (measured(0.010), measured(0.0094), "faster"),
        (measured(0.010, mad=0.0003), measured(0.0108), ""),  # within 3 MAD of the older
        (measured(0.010), measured(0.0108, mad=0.0003), ""),  # and of the newer one
        (measured(0.010, mad=0.0003), measured(0.0110), "slower"),
        (measured(0.010), measured(0.0110, ort_mad=0.00004), ""),  # and of onnxruntime
        (measured(0.010), measured(0.0210, ort=0.0020), ""),  # the machine was half as fast
        (measured(0.010), measured(0.0260, ort=0.0020), "slower"),  # and IREE slower still
        (measured(0.010), measured(0.0100, ort=0.0012), ""),  # only onnxruntime moved
        (measured(0.010), measured(0.0100, ort=0.0008), ""),
        (measured(0.020, ort=0.0020), measured(0.0097, ort=0.0010), ""),
        (measured(0.020, ort=0.0020), measured(0.0080, ort=0.0010), "faster"),
        (measured(0.010), measured(0.0110, ort=None), "slower"),
        (measured(5e-6), measured(6.5e-6), ""),  # what a scheduler does
        (measured(5e-6), measured(9e-6), "slower"),
        # Measured on a busy machine, twice the same module.
        (
            measured(0.122, mad=0.0014, ort=0.0147, ort_mad=0.0004),
            measured(0.260, mad=0.020, ort=0.0297, ort_mad=0.003),
            "",
        ),
    ],
)
def test_a_shift_exceeds_noise(before: dict[str, Any], after: dict[str, Any], kind: str) -> None:
    found = latency.shift(before, after)
    assert found is not None
    assert found.kind == kind


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, measured(1.0)),
        (measured(1.0), {}),
        ({"set": "seeded-0", "threads": 2, "note": "it failed"}, measured(1.0)),
        (measured(1.0), measured(2.0, threads=4)),
        (measured(1.0), measured(2.0, set="stored-0")),
        (measured(1.0), measured(float("nan"))),
        (measured(0.0), measured(1.0)),
        (measured(1.0), measured(1.0) | {"iree": {"median_s": "1"}}),
    ],
)
def test_what_is_not_of_one_kind_is_not_compared(before: dict[str, Any], after: dict[str, Any]) -> None:
    assert latency.shift(before, after) is None


def test_it_is_said_in_words() -> None:
    found = latency.shift(measured(0.010), measured(0.0125))
    assert str(found) == "one invocation took 10 ms, now 12.5 ms (+25.0 %, noise 5.0 %)"
    found = latency.shift(measured(0.010), measured(0.0125, ort=0.0011))
    assert str(found).endswith("now 12.5 ms (+25.0 %, onnxruntime +10.0 %, noise 5.0 %)")
    assert [latency.time_text(each) for each in (2.0, 0.0123456, 4.5e-5, 7e-8)] == [
        "2 s",
        "12.3 ms",
        "45 us",
        "70 ns",
    ]


def test_median_and_mad() -> None:
    found = (
        Repetitions(seconds=(1.0, 2.0, 9.0), invocations=6) + Repetitions(seconds=(2.5, 2.0), invocations=4)
    ).to_json()
    assert found == {"median_s": 2.0, "mad_s": 0.5, "repetitions": 5, "invocations": 10}


def google(*rows: dict[str, Any]) -> str:
    plain = {"name": "BM_f/process_time", "run_type": "iteration", "iterations": 2, "real_time": 3.0}
    return json.dumps({"benchmarks": [plain | {"time_unit": "us"} | row for row in rows]})


def test_googles_file() -> None:
    text = google({}, {"real_time": 5.0, "time_unit": "ns"}, {"run_type": "aggregate", "real_time": 99.0})
    found = latency.parse_google_benchmark(text, "f")
    assert found.seconds == pytest.approx((3e-6, 5e-9))
    assert found.invocations == 4


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"name": "BM_g/process_time"}, "its result is of 'BM_g/process_time', not of 'f'"),
        ({"error_occurred": True, "error_message": "out of luck"}, "out of luck"),
        ({"real_time": 0}, "its result says 0 'us' of 2 invocations"),
        ({"real_time": "3"}, "its result says '3' 'us' of 2 invocations"),
        ({"real_time": True}, "its result says True 'us' of 2 invocations"),
        ({"time_unit": "fortnights"}, "its result says 3.0 'fortnights' of 2 invocations"),
        ({"iterations": 0}, "its result says 3.0 'us' of 0 invocations"),
        ({"iterations": None}, "its result says 3.0 'us' of None invocations"),
    ],
)
def test_a_repetition_that_is_none(row: dict[str, Any], why: str) -> None:
    with pytest.raises(UnreadableResult) as raised:
        latency.parse_google_benchmark(google(row), "f")
    assert str(raised.value) == why


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "nan",
        '{"seconds": [], "invocations": 1}',
        '{"seconds": [1], "invocations": 0}',
        '{"seconds": ["1"], "invocations": 1}',
        '{"seconds": 3, "invocations": 1}',
        '{"error": "no"}',
    ],
)
def test_the_childs_answer_is_checked(text: str) -> None:
    with pytest.raises(UnreadableResult):
        latency.parse_child(text)


def run_of(benchmark: dict[str, Any], *, machine: str, fingerprint: str) -> RunFile:
    case = {"id": "cpu/c/m", "model": "m", "collection": "c", "device": "cpu", "verdict": "passed"}
    case |= dict.fromkeys(("title", "message", "reason", "signature", "vacuous"), "")
    found: dict[str, Any] = {**case, "kind": None, "stage": "compare", "attempts": [], "benchmark": benchmark}
    if machine:
        found["machine"] = machine
    header = {"run": "r", "host": {"fingerprint": fingerprint}, "devices": {"cpu": {"last_stage": "compare"}}}
    header |= dict.fromkeys(("release", "iree", "suite", "catalogue", "shard", "started"), "")
    header |= {"packages": {}, "arguments": []}
    return RunFile(header=header, cases=(found,), footer={"complete": True})


@pytest.mark.parametrize(
    ("old", "new", "kinds"),
    [
        (("a", ""), ("a", ""), ["slower"]),
        (("", "a"), ("", "a"), ["slower"]),
        (("a", "b"), ("", "a"), ["slower"]),  # of a merged run, and of a single one
        (("a", ""), ("b", ""), []),
        (("", "a"), ("", "b"), []),
        (("", ""), ("", ""), []),  # older records do not know their machine
    ],
)
def test_only_one_machine_is_compared(old: tuple[str, str], new: tuple[str, str], kinds: list[str]) -> None:
    base = run_of(measured(0.010), machine=old[0], fingerprint=old[1])
    head = run_of(measured(0.020), machine=new[0], fingerprint=new[1])
    found = difference.differ(base, head)
    assert [change.kind for change in found.changes] == kinds
    assert found.same == 1 - len(kinds)
    if kinds:
        (change,) = found.changes
        assert (change.before, change.after) == ("10 ms", "20 ms")
        assert "+100.0 %" in change.why
