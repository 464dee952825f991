"""The whole loop with real runs: unexpected, adopted, green; edited, red; flaky, limited, broken host."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from onnx import helper

from onnx_models.meta_tests.fake_iree import TOOLS
from onnx_models.meta_tests.sandbox import Sandbox, copy_of_package, model_of, value

GRU = (
    "exit 1 ../model.mlir:28:13: error: failed to legalize operation 'torch.operator' that was explicitly "
    'marked illegal: %109:2 = "torch.operator"(%85) <{name = "onnx.GRU"}> '
    '{torch.onnx.direction = "bidirectional", torch.onnx.hidden_size = 128 : si64}'
)


class Loop:
    """A package of its own with a collection `tiny`, and tools that can be told to behave otherwise."""

    def __init__(self, folder: Path, models: tuple[str, ...]) -> None:
        files = {name: Sandbox(folder).save(f"{name}.onnx") for name in models}
        home = copy_of_package(folder, models=files)
        self.sandbox = Sandbox(folder, home=home)
        self.list = home / "onnx_models" / "expectations" / "cpu.toml"
        self.tell({})

    def tell(self, told: Mapping[str, tuple[str, str]]) -> None:
        """Say how the tools behave, by model."""
        self.sandbox.tools_by_model(told)

    def falter(self, model: str, behaviour: str) -> None:
        """Let the compiler misbehave on the first try of a model only."""
        program = self.sandbox.folder / "bin" / TOOLS["compiler"]
        fake = Path(__file__).with_name("fake_iree.py")
        program.write_text(
            f"#!{sys.executable}\nimport pathlib, runpy, sys\nfake = runpy.run_path({str(fake)!r})\n"
            f"first = pathlib.Path.cwd() / 'tried'\n"
            f"mine = pathlib.Path.cwd().parents[1].name == {model!r} and '--version' not in sys.argv\n"
            f"told = {behaviour!r} if mine and not first.exists() else 'ok'\n"
            f"if mine: first.touch()\n"
            f"fake['main']('compiler', told)\n",
            encoding="utf-8",
        )

    def run(self, *arguments: str, code: int) -> str:
        """Run pytest on the collection; its output, after it ended as it should."""
        ended = self.sandbox.run("--collection", "tiny", "-rxX", *arguments)
        assert ended.code == code, ended.output
        return ended.output

    def command(self, *arguments: str) -> str:
        """Run `onnx-models`."""
        ended = self.sandbox.execute([sys.executable, "-m", "onnx_models", *arguments])
        assert ended.code == 0, ended.output
        return ended.output

    def verdicts(self) -> dict[str, str]:
        """Model to verdict, of the last run."""
        cases = self.sandbox.record().cases
        return {key.rpartition("/")[2]: str(row["verdict"]) for key, row in cases.items()}


def edited(text: str, name: str, key: str, value: str) -> str:
    """The list with one key of one entry changed."""
    blocks = text.split("[[case]]")
    lines = [
        "\n".join(
            f'{key} = "{value}"' if line.startswith(f"{key} = ") else line for line in block.split("\n")
        )
        if f'"tiny/{name}"' in block
        else block
        for block in blocks
    ]
    return "[[case]]".join(lines)


def test_adopt_hold_edit_and_fix(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ("good", "gru", "crash", "wrong"))
    told = {"gru": ("compiler", GRU), "crash": ("compiler", "signal 11"), "wrong": ("runner", "nan")}
    loop.tell(told)

    # What would be written is shown, and git can apply it.
    output = loop.run("--update-expectations", "--dry-run", "--retries", "0", code=1)
    assert loop.list.read_text(encoding="utf-8") == ""
    assert "nothing written" in output
    assert "fault   illegal-op:onnx.GRU[direction=bidirectional]: onnx.GRU" in output
    subprocess.run(["git", "init", "-q"], cwd=tmp_path / "home", check=True)
    diff = loop.command("expectations", "update", "--dry-run", "record.jsonl")
    subprocess.run(["git", "apply", "-"], cwd=tmp_path / "home", check=True, input=diff.encode())
    adopted = loop.list.read_text(encoding="utf-8")
    assert adopted.count("[[case]]") == 3
    assert 'signature = "illegal-op:onnx.GRU[direction=bidirectional]"' in adopted
    assert 'signature = "mismatch-non-finite[output=0]"' in adopted

    # With that list the run is green, and there is nothing left to update.
    output = loop.run("--update-expectations", code=0)
    assert "expectations: nothing to change" in output
    assert loop.list.read_text(encoding="utf-8") == adopted

    # An entry that is wrong in any way turns the run red.
    wrong = edited(adopted, "gru", "signature", "illegal-op:onnx.LSTM")
    wrong = edited(wrong, "crash", "kind", "error")
    wrong = edited(wrong, "wrong", "stage", "run")
    loop.list.write_text(wrong, encoding="utf-8")
    loop.run("--retries", "0", code=1)
    assert loop.verdicts() == {"good": "passed", "gru": "changed", "crash": "changed", "wrong": "improved"}

    # Chosen verdicts can be warnings for once, but a regression cannot.
    loop.tell(told | {"good": ("importer", "exit 1 x: error: no")})
    output = loop.run("--retries", "0", "--lenient", "changed,improved", code=1)
    assert "1 failed, 3 xfailed, 3 warnings" in output
    assert loop.sandbox.case("cpu/tiny/good")["verdict"] == "regressed"
    assert "'regressed' cannot be lenient" in loop.sandbox.refused("--lenient", "regressed")

    # A fix is red until its entry is gone; the rest of the file stays as it is.
    loop.tell({name: told[name] for name in ("gru", "wrong")})
    loop.list.write_text(f"# by hand\n\n{adopted}", encoding="utf-8")
    output = loop.run("--update-expectations", "--retries", "0", code=1)
    assert "1 failed, 1 passed, 2 xfailed" in output
    text = loop.list.read_text(encoding="utf-8")
    assert "tiny/crash" not in text
    assert text.startswith("# by hand\n")
    loop.run(code=0)

    story = loop.command("explain", "cpu/tiny/gru", "record.jsonl")
    assert loop.command("explain", "gru", "record.jsonl") == story
    for words in ("expected-failure", "signature  illegal-op:onnx.GRU", "why = ", "iree-compile", "log  "):
        assert words in story, story


def test_a_result_that_differs_is_flaky_until_it_is_listed(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ("unsteady",))
    loop.falter("unsteady", "exit 1 x: error: now and then")
    output = loop.run(code=1)
    assert loop.verdicts() == {"unsteady": "flaky"}
    assert "results differ: compile (error) as " in output
    assert ", then passes" in output
    assert '[[flaky]]\nid = "tiny/unsteady"' in output
    first, second = loop.sandbox.case("cpu/tiny/unsteady")["attempts"]
    assert (first["stage"], second) == ("compile", None)
    entry = loop.command("flakes", "record.jsonl")
    assert 'id = "tiny/unsteady"' in entry

    loop.list.write_text(entry.rpartition("\n\n")[0] + "\n", encoding="utf-8")
    loop.falter("unsteady", "exit 2 x: error: now and then")
    tried = next(loop.sandbox.artifacts.rglob("tried"))
    tried.unlink()
    output = loop.run(code=0)
    assert "flaky, as listed" in output
    assert loop.verdicts() == {"unsteady": "flaky"}

    # Without a second try it is a plain regression.
    tried.unlink()
    loop.falter("unsteady", "exit 3 x: error: now and then")
    loop.run("--retries", "0", code=1)
    assert loop.verdicts() == {"unsteady": "regressed"}


def test_a_timeout_counts_only_when_it_comes_alone(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ("slow",))
    loop.falter("slow", "hang")
    loop.run("--compile-timeout", "8", code=0)
    row = loop.sandbox.case("cpu/tiny/slow")
    assert row["verdict"] == "passed"
    assert [each and each["kind"] for each in row["attempts"]] == ["timeout", None]


def test_a_broken_host_gives_no_verdicts(tmp_path: Path) -> None:
    names = ("a", "b", "c", "d", "fine")
    loop = Loop(tmp_path, names)
    for name in names[:4]:
        (tmp_path / f"{name}.onnx").unlink()
    output = loop.run("--update-expectations", code=10)
    assert "the host is broken, not IREE: 4 of 5 cases failed in fetch or reference" in output
    assert set(loop.verdicts().values()) == {"error"}
    assert "failed in fetch" in str(loop.sandbox.record().foot["host_broken"])
    assert loop.list.read_text(encoding="utf-8") == ""
    refused = loop.sandbox.execute(
        [sys.executable, "-m", "onnx_models", "expectations", "update", "record.jsonl"]
    )
    assert refused.code == 4
    assert "has no verdicts" in refused.output
    loop.run("--mass-failure", "90", code=1)


def test_what_the_harness_cannot_write_is_a_fault_of_the_machine(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ("a", "b", "c", "d"))
    (tmp_path / "artifacts" / "tiny").mkdir(parents=True)
    for name in "abcd":
        (tmp_path / "artifacts" / "tiny" / name).write_bytes(b"no folder")
    assert "4 of 4 cases failed in fetch or reference" in loop.run(code=10)
    row = loop.sandbox.case("cpu/tiny/a")
    assert (row["stage"], row["kind"]) == ("reference", "infrastructure")
    assert row["message"].endswith("cannot be written (Not a directory); give --artifacts DIR")


def test_a_list_that_cannot_be_updated_ends_the_run_with_an_error(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ("gru",))
    loop.tell({"gru": ("compiler", GRU)})
    loop.list.write_text(
        'case = [{ id = "tiny/gru", stage = "run", kind = "crash", why = "x" }]\n', encoding="utf-8"
    )
    before = loop.list.read_text(encoding="utf-8")
    output = loop.run("--update-expectations", "--retries", "0", code=4)
    assert "expectations not updated: " in output
    assert loop.list.read_text(encoding="utf-8") == before


def test_a_model_that_onnxruntime_refuses_can_be_adopted(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ("good", "refused"))
    node = helper.make_node("NoSuchOperator", ["x"], ["y"])
    loop.sandbox.save("refused.onnx", model_of([node], [value("x")], [value("y")]))
    loop.run(code=1)
    row = loop.sandbox.case("cpu/tiny/refused")
    assert (row["verdict"], row["stage"], row["kind"]) == ("error", "reference", "error")
    loop.list.write_text('[collection.tiny]\ndefault = "record"\n', encoding="utf-8")
    loop.run(code=0)
    assert loop.verdicts() == {"good": "new", "refused": "new"}
    loop.run("--update-expectations", code=0)
    loop.run(code=0)
    assert loop.verdicts() == {"good": "passed", "refused": "expected-failure"}
    adopted = loop.list.read_text(encoding="utf-8")
    assert "Load model from refused.onnx failed" in adopted
    assert str(tmp_path) not in adopted


def test_a_recorded_collection_is_green_until_it_is_adopted(tmp_path: Path) -> None:
    loop = Loop(tmp_path, ("good", "bad"))
    loop.tell({"bad": ("compiler", GRU)})
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "cpu.toml").write_text('[collection.tiny]\ndefault = "record"\n', encoding="utf-8")
    lists = ("--expectations", "shipped", "--expectations", str(mine))
    loop.run(*lists, "--update-expectations", code=0)
    assert loop.verdicts() == {"good": "new", "bad": "new"}
    loop.run(*lists, code=0)
    assert loop.verdicts() == {"good": "passed", "bad": "expected-failure"}
    loop.tell({"bad": ("compiler", GRU), "good": ("compiler", GRU)})
    loop.run(*lists, code=1)
    assert loop.verdicts() == {"good": "regressed", "bad": "expected-failure"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--dry-run",), "give both"),
        (("--retries", "-1"), "no number of tries"),
        (("--mass-failure", "0"), "no share in per cent"),
        (("--expectations", "absent.toml"), "no such file or folder"),
    ],
)
def test_wrong_options_are_refused(sandbox: Sandbox, arguments: tuple[str, ...], message: str) -> None:
    assert message in sandbox.refused("--model", "tiny.onnx", *arguments)
