"""`onnx-models`: lists, the machine's tools and devices, and a record's table."""

from __future__ import annotations

import json
import sys

import pytest
from click.testing import CliRunner

from onnx_models import catalog
from onnx_models.cli import main
from onnx_models.meta_tests.sandbox import Sandbox


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, list(words))
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


def test_list_as_json_holds_every_model() -> None:
    code, text = call("list", "--collection", "skeletons", "--json")
    assert code == 0
    assert {row["id"] for row in json.loads(text)} == {model.id for model in catalog.load("skeletons")}


def test_list_as_text_has_a_line_each() -> None:
    code, text = call("list", "--collection", "skeletons")
    assert code == 0
    assert all(model.id in text for model in catalog.load("skeletons"))
    assert "9 models" in text


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("list", "--collection", "zoos"), 4, "error: "),
        (("tools", "--iree-bin", "/nowhere/at/all"), 4, "not a folder"),
        (("summary", "/nowhere/at/all.jsonl"), 1, "not a record file"),
        (("dance",), 2, "No such command"),
    ],
)
def test_wrong_use_is_one_line_and_a_code(words: tuple[str, ...], code: int, message: str) -> None:
    found, text = call(*words)
    assert found == code
    assert message in text
    assert "Traceback" not in text


def test_tools_devices_and_summary_of_a_run(sandbox: Sandbox) -> None:
    tools = str(sandbox.folder / "bin")
    python = [sys.executable, "-m", "onnx_models"]
    shown = sandbox.execute([*python, "tools", "--iree-bin", tools])
    assert shown.code == 0
    assert f"iree-compile: 3.13.0rc20261016 from {tools}/iree-compile (--iree-bin)" in shown.output
    listed = sandbox.execute([*python, "devices", "--iree-bin", tools])
    states = {line.split()[0]: line.split()[-1] for line in listed.output.splitlines()}
    assert (states["cpu"], states["vulkan"], states["cuda"]) == ("local-task://", "absent", "only")
    assert sandbox.run("--model", "tiny.onnx").code == 0
    table = sandbox.execute([*python, "summary", "record.jsonl"])
    assert table.code == 0
    assert "complete" in table.output
    assert "NOT complete" not in table.output
    assert [line.split() for line in table.output.splitlines() if line.startswith("cpu ")] == [
        ["cpu", *8 * ["1"]]
    ]
