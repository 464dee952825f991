"""The plan of a case: exact command lines, keys that follow every cause, and the script of it all."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from onnx_models import devices, stages
from onnx_models.cases import Case
from onnx_models.catalog import Model
from onnx_models.outcomes import Failure, Kind, Stage
from onnx_models.reference import Reference, ReferenceSet
from onnx_models.stages import Settings, Step
from onnx_models.tensors import TensorFile
from onnx_models.toolchain import Tool, Toolchain

CPU = replace(devices.load("cpu"), found=("local-task://",))


def tool(name: str, key: str = "k") -> Tool:
    return Tool(name=name, path=Path("/tools") / name, origin="o", version="3.13.0", key=key)


CHAIN = Toolchain(importer=tool("import"), compiler=tool("compile"), runner=tool("run"))


@pytest.fixture
def model_file(tmp_path: Path) -> Path:
    file = tmp_path / "a.onnx"
    file.write_bytes(b"model")
    return file


def case(device: devices.Device = CPU, **facts: object) -> Case:
    return Case(model=Model(collection="c", path="p/a", source={}, **facts), device=device)  # type: ignore[arg-type]


def reference(settings: Settings, each: Case, key: str = "r", dtype: str = "float32") -> Reference:
    folder = settings.folder(each).model
    suffix = ".bin" if dtype == "bfloat16" else ".npy"
    sets = []
    for name in ("s0", "s1"):
        x = TensorFile(name="x", dtype=dtype, shape=(2, 3), path=folder / "inputs" / name / f"0{suffix}")
        y = TensorFile(name="y", dtype=dtype, shape=(2, 3), path=folder / "reference" / name / f"0{suffix}")
        sets.append(ReferenceSet(name=name, inputs=(x,), outputs=(y, y)))
    return Reference(key=key, sets=tuple(sets))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(toolchain=CHAIN, artifacts=tmp_path / "art", memory_limit=5)


def test_the_commands_are_those_a_user_types(settings: Settings, model_file: Path) -> None:
    each = case(import_flags=("--opset-version", "17"), compile_flags=("-O3",), run_flags=("--r",))
    importing, compiling, running = stages.plan(each, model_file, reference(settings, each), settings)
    assert importing.commands == (
        ("/tools/import", "../../model.onnx", "-o", "../model.mlir", "--opset-version", "17"),
    )
    assert compiling.commands == (
        ("/tools/compile", "../model.mlir", "-o", "module.vmfb", *CPU.compile_flags, "-O3"),
    )
    assert running.commands == tuple(
        (
            "/tools/run",
            "--module=module.vmfb",
            *CPU.run_flags,
            "--r",
            f"--input=@../../inputs/{name}/0.npy",
            f"--output=@outputs/{name}/0.npy",
            f"--output=@outputs/{name}/1.npy",
        )
        for name in ("s0", "s1")
    )


def test_planning_writes_nothing(settings: Settings, model_file: Path) -> None:
    stages.plan(case(), model_file, reference(settings, case()), settings)
    assert not settings.artifacts.exists()


def test_bfloat16_goes_as_raw_bytes_with_its_shape(settings: Settings, model_file: Path) -> None:
    each = case()
    running = stages.plan(each, model_file, reference(settings, each, dtype="bfloat16"), settings)[-1]
    assert "--input=2x3xbf16=@../../inputs/s0/0.bin" in running.commands[0]
    assert "--output=@outputs/s0/0.bin" in running.commands[0]


def test_a_compile_only_device_stops_there(settings: Settings, model_file: Path) -> None:
    steps = stages.plan(case(devices.load("cuda")), model_file, None, settings)
    assert [step.stage for step in steps] == [Stage.IMPORT, Stage.COMPILE]


def changed(settings: Settings, model_file: Path, what: str) -> tuple[Step, ...]:
    """The plan after one change of what a case depends on."""
    facts: dict[str, object] = {}
    device, chain, key = CPU, CHAIN, "r"
    if what.endswith("_flags") and not what.startswith("device_"):
        facts[what] = ("--new",)
    elif what.startswith("device_"):
        device = replace(CPU, **{what.removeprefix("device_"): ("--new",)})  # type: ignore[arg-type]
    elif what in ("importer", "compiler", "runner"):
        chain = replace(CHAIN, **{what: tool("rebuilt", key="k2")})
    elif what == "reference":
        key = "r2"
    elif what == "model":
        model_file.write_bytes(b"other")
    settings = replace(settings, toolchain=chain)
    each = case(device, **facts)
    return stages.plan(each, model_file, reference(settings, each, key), settings)


@pytest.mark.parametrize(
    ("what", "again"),
    [
        ("nothing", []),
        ("model", ["import", "compile", "run"]),
        ("importer", ["import", "compile", "run"]),
        ("import_flags", ["import", "compile", "run"]),
        ("compiler", ["compile", "run"]),
        ("compile_flags", ["compile", "run"]),
        ("device_compile_flags", ["compile", "run"]),
        ("runner", ["run"]),
        ("run_flags", ["run"]),
        ("device_run_flags", ["run"]),
        ("reference", ["run"]),
    ],
)
def test_a_change_runs_its_stage_and_the_later_ones_again(
    settings: Settings, model_file: Path, what: str, again: list[str]
) -> None:
    before = changed(settings, model_file, "nothing")
    after = changed(settings, model_file, what)
    assert [b.stage.value for a, b in zip(before, after, strict=True) if a.key != b.key] == again


def test_the_host_cpu_counts_only_where_it_matters(
    settings: Settings, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generic = replace(devices.load("cpu-generic"), found=("local-task://",))
    keys = []
    for name in ("one", "other"):
        monkeypatch.setattr(stages, "host_cpu", lambda name=name: name)
        plans = [stages.plan(case(d), model_file, None, settings)[1] for d in (CPU, generic)]
        keys.append([step.key for step in plans])
    assert [a == b for a, b in zip(*keys, strict=True)] == [False, True]


def test_the_users_timeout_wins_over_the_devices(settings: Settings) -> None:
    slow = replace(CPU, timeouts={Stage.RUN: 7.0})
    assert settings.timeout(case(), Stage.RUN) == stages.TIMEOUTS[Stage.RUN]
    assert settings.timeout(case(slow), Stage.RUN) == 7.0
    asked = replace(settings, timeouts={Stage.RUN: 3.0})
    assert asked.timeout(case(slow), Stage.RUN) == 3.0
    assert asked.timeout(case(slow), Stage.COMPILE) == stages.TIMEOUTS[Stage.COMPILE]


def test_a_large_models_weights_go_apart(
    settings: Settings, model_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "PARAMETERS_APART", 1000)
    apart = ("--externalize-params", "--save-params-to", "../model.irpa")
    for size, flags, added in (
        (999, (), ()),
        (1000, (), ("--large-model", *apart)),
        # 3.13.0 refuses --large-model beside --opset-version.
        (1000, ("--opset-version", "17"), apart),
    ):
        each = case(bytes=size, import_flags=flags)
        importing, _, running = stages.plan(each, model_file, reference(settings, each), settings)
        assert importing.commands[0][4:] == (*flags, *added)
        assert (settings.folder(each).parameters in importing.products) == bool(added)
        assert all(("--parameters=model=../model.irpa" in words) == bool(added) for words in running.commands)


def test_external_data_is_looked_for_beside_the_file_itself(settings: Settings, model_file: Path) -> None:
    keys = []
    for stamp in (1, 2):
        source = {"external": {"w.bin": [7, stamp]}}
        model = Model(collection="local", path="a", source=source, external_data=True)
        importing = stages.plan(Case(model=model, device=CPU), model_file, None, settings)[0]
        assert importing.commands[0][1] == str(model_file.resolve())
        keys.append(importing.key)
    assert keys[0] != keys[1]


def test_a_refused_model_starts_no_tool(settings: Settings, model_file: Path) -> None:
    failure = Failure(stage=Stage.IMPORT, kind=Kind.UNSUPPORTED_INPUT, message="it's a string")
    outcome = stages.run_stages(case(), model_file, Reference(key="", failure=failure), settings)
    assert outcome.failure is not None
    assert replace(outcome.failure, signature="", title="") == failure
    script = settings.folder(case()).script
    done = subprocess.run([script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "it's a string\n")


def test_a_name_cannot_add_a_command_to_the_script(settings: Settings, model_file: Path) -> None:
    model = Model(collection="local", path="a\ntouch owned\n'$(touch owned)'", source={})
    each = Case(model=model, device=CPU)
    settings = replace(settings, python="/no python")
    text = stages.script(each, stages.plan(each, model_file, None, settings), None, settings)
    folder = model_file.parent / "run"
    folder.mkdir()
    (folder / "commands.sh").write_text(text, encoding="utf-8")
    done = subprocess.run(["sh", folder / "commands.sh"], capture_output=True, check=False)
    assert done.returncode != 0
    assert [path.name for path in folder.iterdir()] == ["commands.sh"]
