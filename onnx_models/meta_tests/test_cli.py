"""`onnx-models`: lists, the machine's tools and devices, and a record's table."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from onnx_models import catalog, file_facts
from onnx_models.cli import main
from onnx_models.inspection import ModelInfo
from onnx_models.meta_tests.sandbox import Sandbox
from onnx_models.meta_tests.test_store import put
from onnx_models.store import Store


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


PROGRAM = (sys.executable, "-m", "onnx_models")


def test_list_and_a_dry_run_fetch_nothing(sandbox: Sandbox) -> None:
    listed = sandbox.execute([*PROGRAM, "list", "--json", "--collection", "zoo", "--op", "Resize"])
    assert listed.code == 0, listed.output
    rows = json.loads(listed.output)
    assert rows
    assert all("Resize" in row["operators"] and row["bytes"] > 0 for row in rows)
    ended = sandbox.execute([*PROGRAM, "fetch", "--dry-run", "--no-test-data", "zoo/*mnist-12", "mnist"])
    assert ended.code == 0, ended.output
    assert "26.1 kB" in ended.output
    assert not (sandbox.folder / "cache").exists()
    wrong = sandbox.execute([*PROGRAM, "fetch", "--dry-run", "no-such-model"])
    assert wrong.code == 4
    assert wrong.output.splitlines() == ["error: no model fits: drop a word or a filter"]


def test_words_that_fit_nothing_meet_what_is_nearly_them() -> None:
    for command in ("list", "fetch"):
        ended = CliRunner().invoke(main, [command, "silerovad"])
        assert ended.exit_code == 4
        assert ended.output.startswith("error: no model fits: there is wheels/silero-vad/")
    assert json.loads(CliRunner().invoke(main, ["list", "--json", "silerovad"]).output) == []


def test_everything_is_fetched_only_when_asked_for() -> None:
    """A slip of the pen is not to begin 700 GB."""
    ended = CliRunner().invoke(main, ["fetch"])
    assert ended.exit_code == 4
    assert ended.output.startswith("error: name what to fetch")
    assert "GB" in CliRunner().invoke(main, ["fetch", "--dry-run"]).output


def test_the_cache_is_listed_verified_and_pruned(sandbox: Sandbox) -> None:
    cache = Store(root=sandbox.folder / "cache")
    old, new = (put(cache, text * 1000, name, age=age) for text, name, age in FILES)

    def call(*words: str) -> tuple[int, str]:
        ended = sandbox.execute([*PROGRAM, "cache", *words])
        return ended.code, ended.output

    code, text = call("ls")
    assert code == 0
    assert text.index("old.onnx") < text.index("new.onnx")
    assert "2 files" in text
    assert call("verify") == (0, "0 wrong files\n")
    assert call("prune", "--max-size", "much")[0] == 4
    assert call("prune", "--max-size", "4500B")[0] == 0
    assert [cache.file(digest).exists() for digest in (old, new)] == [False, True]
    cache.file(new).write_bytes(b"b" * 4000)
    code, text = call("verify", "--remove")
    assert (code, text.splitlines()[-1]) == (1, "1 wrong files")
    assert "removed" in text
    assert not cache.file(new).exists()


FILES = ((b"a" * 3, "old.onnx", 9000.0), (b"n" * 4, "new.onnx", 5000.0))


def test_a_case_without_a_record_is_told_by_the_catalogue_and_the_lists(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for case, devices in (("wheels/silero-vad/silero_vad", 7), ("cpu/wheels/silero-vad/silero_vad", 1)):
        ended = CliRunner().invoke(main, ["explain", case])
        assert ended.exit_code == 0, ended.output
        assert "run pytest -k 'silero-vad/silero_vad'" in ended.output
        assert ended.output.count("expected to fail in compile (error) as illegal-op:onnx.If") >= 1
        assert ended.output.count(" expected to ") == devices
    ended = CliRunner().invoke(main, ["explain", "cpu/wheels/none"])
    assert ended.exit_code == 1
    assert ended.output.endswith("in no catalogue; onnx-models list --all has the models\n")
    for slip in ("magika", "cpu/magika", "cpuu/wheels/magika/standard_v3_3", "wheels/magica/standard_v3_3"):
        ended = CliRunner().invoke(main, ["explain", slip])
        assert ended.exit_code == 1
        assert "in no catalogue; there is wheels/magika/standard_v3_3" in ended.output


def test_an_exact_name_selects_that_model_only() -> None:
    ended = CliRunner().invoke(main, ["list", "resnet50-v1-12", "--json"])
    assert [row["path"].rpartition("/")[2] for row in json.loads(ended.output)] == ["resnet50-v1-12"]
    assert len(json.loads(CliRunner().invoke(main, ["list", "resnet50-v1", "--json"]).output)) > 1


def test_listing_nothing_in_particular_is_a_summary() -> None:
    ended = CliRunner().invoke(main, ["list"])
    assert ended.exit_code == 0
    lines = ended.output.splitlines()
    assert len(lines) == 6
    assert lines[-1] == "name a --collection or a filter to see models, or give --all"


def test_what_a_file_said_of_itself_wins_over_its_label(tmp_path: Path) -> None:
    (sha256,) = [m.sha256 for m in catalog.load("wheels") if m.path == "magika/standard_v3_3"]
    info = ModelInfo(
        inputs=(),
        outputs=(),
        ir_version=8,
        opsets={"ai.onnx": 99},
        operators={"Mish": 3},
        bytes=1,
        external_files=(),
        sha256=sha256,
    )
    (model,) = [m for m in catalog.load("wheels") if m.sha256 == sha256]
    file_facts.remember(model, info, tmp_path)
    command = ["list", "--collection", "wheels", "--op", "Mish", "--json", "--cache-dir", str(tmp_path)]
    (row,) = json.loads(CliRunner().invoke(main, command).output)
    assert (row["path"], row["opset_label"], row["operators"]) == ("magika/standard_v3_3", 99, {"Mish": 3})
