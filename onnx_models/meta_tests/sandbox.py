"""Whole runs of the suite as a user starts them: a folder, tools, tiny models, and pytest in a process."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import psutil
from onnx import TensorProto, helper

import onnx_models
from onnx_models import runs
from onnx_models.meta_tests.fake_iree import TOOLS, make_fake_iree, start

PACKAGE = Path(onnx_models.__file__).resolve().parent

MARK = "ONNX_MODELS_TEST_MARK"

LIMIT = 300.0
"""Seconds after which a run of pytest is hung; one takes 2 to 20 on two busy cores."""

FLOAT, INT64 = TensorProto.FLOAT, TensorProto.INT64


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A process that ended: its exit code and all it printed."""

    code: int
    output: str


class Sandbox:
    """A folder of its own for runs of the suite; everything started in it carries a mark."""

    def __init__(self, folder: Path, *, home: Path = PACKAGE.parent) -> None:
        self.folder, self.mark = folder, uuid.uuid4().hex
        self.artifacts = folder / "artifacts"
        # Without compiled files and with every plugin of the environment, a run starts half as fast.
        foreign = ("PYTEST", "IREE_", "PYTHONDONTWRITEBYTECODE")
        self.env = {
            **{key: value for key, value in os.environ.items() if not key.startswith(foreign)},
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": str(home),
            "ONNX_MODELS_CACHE": str(folder / "cache"),
            MARK: self.mark,
        }

    def save(self, name: str, model: onnx.ModelProto | None = None) -> Path:
        """A model file, by default the tiny one."""
        file = self.folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes((model or tiny_model()).SerializeToString())
        return file

    def tools(self, **behaviours: str) -> Path:
        """Fake tools that behave so for every model."""
        return make_fake_iree(self.folder / "bin", **behaviours)

    def tools_by_model(self, told: Mapping[str, tuple[str, str]]) -> Path:
        """Fake tools that behave by the model: name to the tool's role and its behaviour."""
        folder = make_fake_iree(self.folder / "bin")
        for role, name in TOOLS.items():
            mine = {model: behaviour for model, (whose, behaviour) in told.items() if whose == role}
            (folder / name).write_text(
                f"{start()}import pathlib\nmodel = pathlib.Path.cwd().parents[1].name\n"
                f"fake_iree.main({role!r}, {mine!r}.get(model, 'ok'))\n",
                encoding="utf-8",
            )
        return folder

    def argv(self, *arguments: str | Path) -> list[str]:
        """The command line of a run on the CPU with the sandbox's tools, unless told otherwise."""
        given = [str(argument) for argument in arguments]
        if not any(word.startswith("--device") for word in given):
            given += ["--device", "cpu"]
        if not any(word.startswith("--iree-bin") for word in given):
            given += ["--iree-bin", "bin"]
        if not any(word.startswith("--record") for word in given):
            given += ["--record", "record.jsonl"]
        # The same name as the installed entry point's, so that it is registered once either way.
        plugin = ["-p", "onnx_models.plugin", "-p", "xdist", "--pyargs", "onnx_models"]
        return [sys.executable, "-m", "pytest", *plugin, *given]

    def run(self, *arguments: str | Path) -> Ended:
        """Run the suite to its end."""
        return self.execute(self.argv(*arguments))

    def execute(self, argv: Sequence[str | Path], *, cwd: Path | None = None) -> Ended:
        """Run any program with the sandbox's environment."""
        done = subprocess.run(
            [str(word) for word in argv],
            cwd=cwd or self.folder,
            env=self.env,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=LIMIT,
            check=False,
        )
        return Ended(code=done.returncode, output=done.stdout.decode(errors="replace"))

    def start(self, *arguments: str | Path) -> subprocess.Popen[bytes]:
        """Start the suite in a session of its own and come back at once."""
        with (self.folder / "output.txt").open("wb") as output:
            return subprocess.Popen(
                self.argv(*arguments),
                cwd=self.folder,
                env=self.env,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                # A shell's background job, such as a CI runner, hands an ignored SIGINT down.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )

    def output(self) -> str:
        """What a started run has printed."""
        return (self.folder / "output.txt").read_text(encoding="utf-8", errors="replace")

    def record(self, name: str = "record.jsonl") -> Record:
        """A record file of the sandbox, checked by its schema."""
        head, rows, foot = runs.read(self.folder / name).parts
        ids = [row["id"] for row in rows]
        assert len(set(ids)) == len(ids), "a case has more than one line"
        return Record(head=head, cases={row["id"]: row for row in rows}, foot=foot)

    def case(self, case_id: str, name: str = "record.jsonl") -> dict[str, Any]:
        """The line of one case."""
        return self.record(name).cases[case_id]

    def script(self, model: str, *, device: str = "cpu") -> Path:
        """The `commands.sh` of a case."""
        (found,) = (self.artifacts / model).glob(f"iree-*/{device}/commands.sh")
        return found

    def survivors(self) -> list[psutil.Process]:
        """Living processes of the sandbox; there are none once a run has ended."""
        return marked(self.mark)

    def clear(self) -> None:
        """End what a failed test has left running."""
        for process in self.survivors():
            with contextlib.suppress(psutil.Error):
                process.kill()

    def refused(self, *arguments: str | Path) -> str:
        """Run with a wrong option; the one line that says so, after exit code 4 and nothing written."""
        before = sorted(self.folder.rglob("*"))
        ended = self.run(*arguments)
        assert ended.code == 4, ended.output
        assert "Traceback" not in ended.output
        assert not self.artifacts.exists() or self.artifacts in before
        assert [p for p in sorted(self.folder.rglob("*")) if p not in before and not self.ours(p)] == []
        lines = [line for line in ended.output.splitlines() if line.strip()]
        errors = [line for line in lines if line.startswith("ERROR: ") or ": error: " in line]
        errors = [line for line in errors if not line.startswith("ERROR: usage: ")]  # argparse's first
        assert len(errors) == 1, ended.output
        return errors[0]

    def ours(self, path: Path) -> bool:
        """Whether a path is part of the model cache, which any run may fill."""
        return (self.folder / "cache") in (path, *path.parents)


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """A whole record file: header, cases by id, footer."""

    head: Mapping[str, Any]
    cases: Mapping[str, dict[str, Any]]
    foot: Mapping[str, Any]

    @property
    def verdicts(self) -> dict[str, tuple[str, str | None, str | None]]:
        """Verdict, stage and kind by case id."""
        return {key: (row["verdict"], row["stage"], row["kind"]) for key, row in self.cases.items()}


def marked(mark: str) -> list[psutil.Process]:
    """The living processes with the mark in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 60.0) -> None:
    """Wait for another process; fail loudly when it does not come to pass."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"never came true: {what}"
        time.sleep(0.05)


def copy_of_package(folder: Path, *, models: Mapping[str, Path], expected: str = "") -> Path:
    """A copy of the package with a collection `tiny` of these files and these expectations on `cpu`."""
    target = folder / "home" / "onnx_models"
    leave = shutil.ignore_patterns("meta_tests", "__pycache__", ".*", "*.jsonl")
    shutil.copytree(PACKAGE, target, ignore=leave)
    rows = [
        f"[[model]]\npath = {json.dumps(name)}\nsource = {{ type = 'local', path = {json.dumps(str(file))} }}"
        for name, file in models.items()
    ]
    (target / "catalogue" / "tiny.toml").write_text("\n".join(rows) + "\n", encoding="utf-8")
    shutil.rmtree(target / "expectations", ignore_errors=True)
    (target / "expectations").mkdir()
    (target / "expectations" / "cpu.toml").write_text(expected, encoding="utf-8")
    return target.parent


def value(name: str, dtype: int = FLOAT, shape: Sequence[int | str | None] = (2, 3)) -> onnx.ValueInfoProto:
    """A tensor's declaration."""
    return helper.make_tensor_value_info(name, dtype, shape)


def model_of(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    initializers: Sequence[onnx.TensorProto] = (),
) -> onnx.ModelProto:
    """A model at opset 17, which every tool takes."""
    graph = helper.make_graph(list(nodes), "main_graph", list(inputs), list(outputs), list(initializers))
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def tiny_model(shape: Sequence[int | str | None] = (2, 3), *, factor: str = "Add") -> onnx.ModelProto:
    """y = x + x and z = -x: two outputs that only their values tell apart."""
    nodes = [helper.make_node(factor, ["x", "x"], ["y"]), helper.make_node("Neg", ["x"], ["z"])]
    return model_of(nodes, [value("x", shape=shape)], [value("y", shape=shape), value("z", shape=shape)])
