"""The stages that happen in the test: import, compile, run and compare.

`plan` decides, as a pure function, which command lines a case takes;
`run_stages` runs them, reusing what is unchanged, and stops at the first
failure. The script `commands.sh` is the same plan written for a person.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import monotonic

from filelock import FileLock

from onnx_models import artifacts, compare, machine, tools
from onnx_models.artifacts import CaseFolder, StageCache
from onnx_models.cases import Case
from onnx_models.catalog import TIMEOUT_CLASSES, Model
from onnx_models.devices import host_cpu
from onnx_models.files import write_atomic
from onnx_models.inspection import with_file_facts
from onnx_models.outcomes import Failure, Kind, Outcome, Stage, StageResult
from onnx_models.reference import Reference, file_sha256
from onnx_models.signature import signature
from onnx_models.spellings import spell
from onnx_models.tensors import iree_flag, suffix
from onnx_models.toolchain import Tool, Toolchain

TIMEOUTS: Mapping[Stage, float] = {Stage.IMPORT: 300.0, Stage.COMPILE: 600.0, Stage.RUN: 120.0}
"""Seconds per command. On two cores the largest embedded model takes 25 s to import and 45 s to compile."""

PARAMETERS_APART = 10**9
"""Bytes from which a model's weights go to an .irpa file; protobuf, and so the checker, ends at 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What holds for every case of a run.

    Attributes:
        toolchain: the tools under test.
        artifacts: root of the generated files.
        timeouts: seconds per stage that the user asked for; they win over a device's own.
        memory_limit: bytes of resident memory that one tool's process tree may take, None for no limit.
        reuse: whether unchanged stages are taken from the cache, whoever made them.
        run: names the run; without `reuse`, only what this run made is taken from the cache, since
            devices share an import, and one may be reading it while the next one asks for it.
        again: the first stage to run anew whatever the cache holds, when a result is to be confirmed.
        alone: whether a tool waits until it has the machine to itself.
        python: interpreter for the comparison in `commands.sh`.
    """

    toolchain: Toolchain
    artifacts: Path
    timeouts: Mapping[Stage, float] = field(default_factory=dict)
    memory_limit: int | None = None
    reuse: bool = True
    run: str = ""
    again: Stage | None = None
    alone: bool = False
    python: str = sys.executable

    def timeout(self, case: Case, stage: Stage) -> float:
        """Seconds that one command of this stage may take."""
        usual = case.device.timeouts.get(stage, TIMEOUTS[stage]) * TIMEOUT_CLASSES[case.model.timeout_class]
        return self.timeouts.get(stage, usual)

    def reuses(self, stage: Stage) -> bool:
        """Whether an unchanged stage may be taken from the cache."""
        return self.again is None or stage.order < self.again.order

    def folder(self, case: Case) -> CaseFolder:
        """Where the case's files lie."""
        toolchain = f"iree-{self.toolchain.version}"
        return CaseFolder.of(
            self.artifacts, model_id=case.model.shared_id, toolchain=toolchain, device=case.device.name
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One stage as it will be run: its command lines with their logs, its products and its key."""

    stage: Stage
    commands: tuple[tuple[str, ...], ...]
    logs: tuple[Path, ...]
    products: tuple[Path, ...]
    cache: Path
    key: str
    timeout: float


def run_stages(case: Case, model_file: Path, reference: Reference | None, settings: Settings) -> Outcome:
    """Take a case as far as it goes.

    Args:
        case: the model and the device.
        model_file: the verified model file.
        reference: inputs and expected outputs; None for a device that is only compiled for.
        settings: tools, limits and the artifacts folder.
    """
    case = replace(case, model=with_file_facts(case.model, model_file))
    notes = case.model.notes + (reference.notes if reference else ())
    notes += spelled_notes(case, settings.toolchain)
    folder = settings.folder(case)
    folder.device.mkdir(parents=True, exist_ok=True)
    artifacts.link_model(model_file, folder.onnx)
    if reference is not None and reference.failure is not None:
        write_atomic(folder.script, _refusal(reference.failure), executable=True)
        refused = StageResult(stage=reference.failure.stage, seconds=0.0, failure=signed(reference.failure))
        return Outcome(stages=(refused,), notes=notes)
    steps = plan(case, model_file, reference, settings)
    write_atomic(folder.script, script(case, steps, reference, settings), executable=True)
    results: list[StageResult] = []
    for step in steps:
        results.append(_execute(step, folder, settings))
        if results[-1].failure:
            return Outcome(stages=tuple(results), notes=notes)
    if reference is None:
        return Outcome(stages=tuple(results), notes=notes)
    compared, outputs = _compare(reference, folder)
    return Outcome(stages=(*results, compared), outputs=outputs, notes=notes, vacuous=reference.vacuous)


def plan(case: Case, model_file: Path, reference: Reference | None, settings: Settings) -> tuple[Step, ...]:
    """The stages up to run as command lines; starts nothing and writes nothing."""
    folder, chain, device, model = settings.folder(case), settings.toolchain, case.device, case.model
    importing = _importing(case, model_file, settings)
    flags = _spell(chain.compiler, (*device.compile_flags, *model.compile_flags))
    compiling = Step(
        stage=Stage.COMPILE,
        commands=(
            (
                str(chain.compiler.path),
                folder.relative(folder.mlir),
                "-o",
                folder.relative(folder.vmfb),
                *flags,
            ),
        ),
        logs=(folder.log(Stage.COMPILE),),
        products=(folder.vmfb,),
        cache=folder.device,
        key=artifacts.stage_key(
            importing.key, chain.compiler.key, flags, host_cpu() if device.host_cpu else ""
        ),
        timeout=settings.timeout(case, Stage.COMPILE),
    )
    if reference is None:
        return importing, compiling
    return importing, compiling, _running(case, reference, settings, compiling.key)


def _importing(case: Case, model_file: Path, settings: Settings) -> Step:
    folder, importer, model = settings.folder(case), settings.toolchain.importer, case.model
    flags = [*model.import_flags]
    if keeps_parameters_apart(model):
        # Bypasses the checker, which holds all weights; refused beside --opset-version (3.13.0).
        flags += [] if "--opset-version" in flags else ["--large-model"]
        flags += ["--externalize-params", "--save-params-to", folder.relative(folder.parameters)]
    # The importer looks beside the link it is given, and takes no link for external data; with
    # --data-dir it crashes under --large-model (3.13.0 with onnx 1.23.2). So it gets the file itself.
    source = str(model_file.resolve()) if model.external_data else folder.relative(folder.onnx)
    flags = [*_spell(importer, flags)]
    command = (str(importer.path), source, "-o", folder.relative(folder.mlir))
    return Step(
        stage=Stage.IMPORT,
        commands=((*command, *flags),),
        logs=(folder.log(Stage.IMPORT),),
        products=(folder.mlir, folder.parameters) if keeps_parameters_apart(model) else (folder.mlir,),
        cache=folder.toolchain,
        key=artifacts.stage_key(
            model.sha256 or file_sha256(model_file), model.data_identity, importer.key, flags
        ),
        timeout=settings.timeout(case, Stage.IMPORT),
    )


def _spell(tool: Tool, flags: Sequence[str]) -> tuple[str, ...]:
    return spell(tool.name, tool.version, flags).flags


def spelled_notes(case: Case, chain: Toolchain) -> tuple[str, ...]:
    """What the flags of a case lose under an older release."""
    asked = (
        (chain.importer, case.model.import_flags),
        (chain.compiler, (*case.device.compile_flags, *case.model.compile_flags)),
        (chain.runner, (*case.device.run_flags, *case.model.run_flags)),
    )
    return tuple(note for tool, flags in asked for note in spell(tool.name, tool.version, flags).notes)


def keeps_parameters_apart(model: Model) -> bool:
    """Whether the weights go to a parameter file: as text in MLIR they take three times the file's size."""
    return model.bytes >= PARAMETERS_APART


def _running(case: Case, reference: Reference, settings: Settings, compiled: str) -> Step:
    folder, runner = settings.folder(case), settings.toolchain.runner
    flags = [*_spell(runner, (*case.device.run_flags, *case.model.run_flags))]
    if keeps_parameters_apart(case.model):
        flags.append(f"--parameters=model={folder.relative(folder.parameters)}")
    commands = []
    for data_set in reference.sets:
        inputs = [iree_flag(t, folder.relative(t.path)) for t in data_set.inputs]
        outputs = [
            f"--output=@{folder.relative(folder.outputs(data_set.name))}/{k}{suffix(t.dtype)}"
            for k, t in enumerate(data_set.outputs)
        ]
        module = f"--module={folder.relative(folder.vmfb)}"
        commands.append((str(runner.path), module, *flags, *inputs, *outputs))
    return Step(
        stage=Stage.RUN,
        commands=tuple(commands),
        logs=tuple(folder.log(Stage.RUN, data_set.name) for data_set in reference.sets),
        products=tuple(folder.outputs(data_set.name) for data_set in reference.sets),
        cache=folder.device,
        # A driver that was replaced is another device: its name and version are part of `found`.
        key=artifacts.stage_key(compiled, reference.key, runner.key, flags, case.device.found),
        timeout=settings.timeout(case, Stage.RUN),
    )


def _execute(step: Step, folder: CaseFolder, settings: Settings) -> StageResult:
    """Run a step, or take it from the cache; nothing of a failed step stays but its logs."""
    cache = StageCache(step.cache)
    limits = {Kind.TIMEOUT: step.timeout, Kind.OUT_OF_MEMORY: settings.memory_limit}
    with FileLock(step.cache / ".lock"):
        if settings.reuses(step.stage):
            mine = None if settings.reuse else settings.run
            known = cache.get(step.stage, step.key, limits=limits, products=step.products, run=mine)
            if known is not None:
                return _signed(_sized(known, step))
        artifacts.discard(step.products)
        if step.stage is Stage.RUN:
            for product in step.products:
                product.mkdir(parents=True, exist_ok=True)
        try:
            with machine.shared(settings.artifacts, alone=settings.alone):
                result = _signed(_sized(_start(step, folder, settings), step))
            result = replace(result, confirmed=settings.again is not None)
        except BaseException:
            artifacts.discard(step.products)
            raise
        if result.failure:
            artifacts.discard(step.products)
        # A fault of the machine may be gone the next time, so it is not kept.
        if result.failure is None or result.failure.kind is not Kind.INFRASTRUCTURE:
            cache.put(result, step.key, limits=limits, products=step.products, run=settings.run)
        return result


def _sized(result: StageResult, step: Step) -> StageResult:
    """The result with the size of what the stage is for; a run's outputs are only for the comparison."""
    if result.failure is not None or step.stage is Stage.RUN:
        return result
    return replace(result, product_bytes=sum(product.stat().st_size for product in step.products))


def _signed(result: StageResult) -> StageResult:
    """The result with its failure named by the rules of today, also where the failure is an old one."""
    if result.failure is None:
        return result
    try:
        log = result.log.read_text(encoding="utf-8", errors="replace") if result.log else ""
    except FileNotFoundError:
        log = ""
    return replace(result, failure=signed(result.failure, log))


def signed(failure: Failure, log: str = "") -> Failure:
    """A failure with its signature; what the machine is to blame for becomes an infrastructure failure."""
    found = signature(failure.stage, failure.kind, log, message=failure.message)
    kind = Kind.INFRASTRUCTURE if found.host else failure.kind
    return replace(
        failure, kind=kind, signature=found.id, title=found.title, excerpt=tools.excerpt(log) if log else ""
    )


def _start(step: Step, folder: CaseFolder, settings: Settings) -> StageResult:
    seconds, peak = 0.0, 0
    for command, log in zip(step.commands, step.logs, strict=True):
        finished = tools.run(
            command, log=log, timeout=step.timeout, memory_limit=settings.memory_limit, cwd=folder.device
        )
        seconds, peak = seconds + finished.seconds, max(peak, finished.peak_bytes)
        failure = _failure(step, finished)
        if failure:
            break
    return StageResult(
        stage=step.stage, seconds=seconds, peak_bytes=peak, commands=step.commands, log=log, failure=failure
    )


def _failure(step: Step, finished: tools.Finished) -> Failure | None:
    if finished.kind is Kind.TIMEOUT:
        said = finished.first_error()
        # Of a tool that printed nothing of note, it only says again that time ran out.
        said = "" if said.startswith("still running after") else f": {said}"
        message = f"no end after {step.timeout:g} s{said}"
        return Failure(stage=step.stage, kind=Kind.TIMEOUT, message=message)
    if finished.kind is not None:
        return Failure(stage=step.stage, kind=finished.kind, message=finished.first_error())
    if step.stage is not Stage.RUN:
        absent = [p.name for p in step.products if not p.is_file() or p.stat().st_size == 0]
        if absent:
            message = f"{Path(finished.argv[0]).name} exits 0 and writes no {absent[0]}"
            return Failure(stage=step.stage, kind=Kind.ERROR, message=message)
    return None


def _compare(
    reference: Reference, folder: CaseFolder
) -> tuple[StageResult, tuple[Mapping[str, object], ...]]:
    began = monotonic()
    failure = None
    outputs: list[Mapping[str, object]] = []
    for data_set in reference.sets:
        found = compare.compare_set(data_set, folder.outputs(data_set.name))
        outputs += [{"set": data_set.name, **row} for row in found.outputs]
        if not found.ok and failure is None:
            failure = _mismatch(found)
    result = StageResult(stage=Stage.COMPARE, seconds=monotonic() - began, failure=failure)
    return result, tuple(outputs)


def _mismatch(found: compare.Comparison) -> Failure:
    """The first mismatch as the message; all of them as the detail where there are several."""
    detail = found.detail if found.detail != found.message else ""
    return signed(Failure(stage=Stage.COMPARE, kind=Kind.MISMATCH, message=found.message, detail=detail))


def _refusal(failure: Failure) -> str:
    return f"#!/bin/sh\necho {shlex.quote(failure.message)} >&2\nexit 1\n"


def script(case: Case, steps: tuple[Step, ...], reference: Reference | None, settings: Settings) -> str:
    """`commands.sh`: the exact command lines, under the same limits; fails if and only if the case does."""
    folder = settings.folder(case)
    lines = [
        "#!/bin/sh",
        f"# {case.id!a}: the commands of the suite, from import to comparison.",
        "set -eu",
        artifacts.TAKES_NOTHING,
        'cd "$(dirname "$0")"',
        f"python={shlex.quote(settings.python)}",
        "# The tools run under the suite's own limits: seconds, and bytes of memory (0: none).",
        "within() { t=$1 m=$2; shift 2",
        f'  "$python" -I {shlex.quote(str(tools.SUPERVISOR))} --timeout "$t" --memory "$m" -- "$@"; }}',
    ]
    for step in steps:
        lines.append(f"\n# {step.stage.value}")
        places = [shlex.quote(folder.relative(p)) for p in step.products]
        lines.append(f"rm -rf {' '.join(places)}")
        if step.stage is Stage.RUN:
            lines.append(f"mkdir -p {' '.join(places)}")
        for command in step.commands:
            lines.append(f"within {step.timeout:g} {settings.memory_limit or 0} \\\n  {shlex.join(command)}")
        if step.stage is not Stage.RUN:
            lines += [f"test -s {place}" for place in places]
    if reference is not None:
        # Only here: the tools above may belong to another Python, which must not see this one's packages.
        home = shlex.quote(str(tools.SUPERVISOR.parents[1]))
        verdict = f'"$python" -m onnx_models.verdict {folder.relative(folder.model)} outputs'
        lines.append(f"\n# compare\nPYTHONPATH={home} {verdict}")
    return "\n".join(lines) + "\n"
