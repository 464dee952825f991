"""The pytest options of the suite, and what a run makes of them."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from onnx_models import (
    artifacts,
    benchmark,
    catalog,
    compat,
    devices,
    environments,
    expectations,
    health,
    local,
    selection,
    shards,
    sources,
    toolchain,
    upkeep,
)
from onnx_models.cases import Case, combine
from onnx_models.catalog import Model
from onnx_models.conditions import Circumstances
from onnx_models.devices import Device
from onnx_models.environments import Environment
from onnx_models.outcomes import Stage, UsageError, Verdict
from onnx_models.reference import Draw
from onnx_models.shards import Shard
from onnx_models.stages import TIMEOUTS, Settings

EMBEDDED = ("skeletons", "wheels")
"""The collections of a run that names none: those that need no model hub."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What one pytest session tests, and how."""

    cases: tuple[Case, ...]
    devices: tuple[Device, ...]
    settings: Settings
    cache: Path
    offline: bool
    draw: Draw = field(default_factory=Draw)
    earlier: compat.Config | None = None
    environment: Environment | None = None


RUN = pytest.StashKey[Run]()


def add_options(parser: pytest.Parser) -> None:
    """Declare the options; `pytest --help` shows them under "ONNX models"."""
    group = parser.getgroup("onnx_models", "ONNX models")
    add = group.addoption
    add(
        "--device",
        action="append",
        default=[],
        metavar="NAME",
        help=f"device to test, repeatable: {', '.join(devices.names())}, or the path of a device's .toml "
        "(default: cpu, vulkan where a driver is present, cuda and hip compile-only)",
    )
    add(
        "--collection",
        action="append",
        default=[],
        metavar="NAME",
        help=f"collection of models, repeatable: {', '.join(catalog.collections())} "
        f"(default: {', '.join(EMBEDDED)})",
    )
    add("--model", action="append", default=[], metavar="FILE", help="test this ONNX file, repeatable")
    add("--dim", action="append", default=[], metavar="NAME=N", help="size of a symbolic dim of --model")
    add(
        "--shape",
        action="append",
        default=[],
        metavar="INPUT=1x3x48x192",
        help="shape of an input of --model, for dims that have no name; INPUT=scalar for no dims",
    )
    add("--input", action="append", default=[], metavar="INPUT=FILE.npy", help="an input of --model")
    add(
        "--test-config-file",
        metavar="FILE",
        help="configuration of iree-test-suites/onnx_models: its device, its models and what it expects of "
        "them (default: IREE_TEST_CONFIG_FILE)",
    )
    add(
        "--cache-dir",
        dest="model_cache",
        metavar="DIR",
        help="folder of fetched models (default: ONNX_MODELS_CACHE, then IREE_TEST_FILES, then onnx_models "
        "in the user's cache folder)",
    )
    add("--artifacts", metavar="DIR", help="where models, modules, outputs and logs go (default: artifacts)")
    add("--record", metavar="FILE", help="the run's record (default: artifacts/runs/<run id>.jsonl)")
    add(
        "--iree-bin",
        metavar="DIR",
        help="folder of the IREE tools to test (default: IREE_BIN, then as found)",
    )
    add(
        "--iree",
        action="append",
        default=[],
        metavar="VERSION",
        help="published release to test, such as 3.9.0, or nightly; its tools are fetched once and kept; "
        "with several, one run after the other",
    )
    for stage in TIMEOUTS:
        add(
            f"--{stage.value}-timeout",
            type=_seconds,
            metavar="SECONDS",
            help=f"limit of the {stage.value} stage (default: the device's own, else {TIMEOUTS[stage]:g})",
        )
    add(
        "--memory-limit",
        type=_gigabytes,
        metavar="GB",
        help="resident memory that one tool may take, 0 for no limit (default: 80 %% of the machine's)",
    )
    add("--no-reuse", action="store_true", help="run every stage again, whatever earlier runs made")
    _add_expectation_options(add)
    add(
        "--offline",
        action="store_true",
        help="fetch nothing: use what the model cache holds, and skip the cases of files that it has not",
    )
    add(
        "--require-models",
        action="store_true",
        help="with --offline, a file that is absent is an error instead of a skip (for CI)",
    )
    add(
        "--inputs",
        choices=("stored", "seeded", "all"),
        help="input sets to feed (default: the model's stored sets where it has any, else seeded)",
    )
    add("--seeds", type=_sets, default=1, metavar="N", help="how many seeded sets (default: 1)")
    add("--max-bytes", metavar="SIZE", help="only models of at most this file size, such as 100MB")
    add(
        "--shard",
        type=_shard,
        metavar="I/N",
        help="only part I of N of the models, split by name: the same on every machine",
    )
    add(
        "--benchmark",
        action="store_true",
        help="measure each case that passes with iree-benchmark-module, on a CPU in turn with onnxruntime",
    )
    add(
        "--benchmark-seconds",
        type=_seconds,
        metavar="SECONDS",
        help=f"what --benchmark aims at for one case (default: {benchmark.SECONDS:g})",
    )


def _add_expectation_options(add: Callable[..., None]) -> None:
    add(
        "--expectations",
        action="append",
        default=[],
        metavar="FILE_OR_DIR",
        help="lists of what is known to fail instead of the suite's own, repeatable, later ones win; "
        f"the word {expectations.SHIPPED!r} stands for the suite's own",
    )
    add(
        "--lenient",
        type=_verdicts,
        default=frozenset(),
        metavar="changed,improved",
        help="verdicts that give a warning only; a regression never does",
    )
    add(
        "--retries",
        type=_count,
        default=1,
        metavar="N",
        help="how often an unexpected result is run again before it counts (default: 1)",
    )
    add(
        "--mass-failure",
        type=_percent,
        default=health.SHARE,
        metavar="PERCENT",
        help="when more than this share of the cases (and at least "
        f"{health.LEAST}) fail in fetch or reference, or by one fault of the machine, the run gives no "
        f"verdicts and ends with exit code {health.HOST_BROKEN} (default: {health.SHARE:g})",
    )
    add(
        "--update-expectations",
        action="store_true",
        help="after the run, make the last of the lists say what the completed cases did",
    )
    add("--dry-run", action="store_true", help="with --update-expectations: write no list, print a diff")


def _verdicts(text: str) -> frozenset[Verdict]:
    lenient = (Verdict.CHANGED.value, Verdict.IMPROVED.value)
    words = [word.strip() for word in text.split(",")]
    wrong = next((word for word in words if word not in lenient), None)
    if wrong is not None:
        raise argparse.ArgumentTypeError(f"{wrong!r} cannot be lenient: choose from {', '.join(lenient)}")
    return frozenset(map(Verdict, words))


def _shard(text: str) -> Shard:
    try:
        return shards.parse(text)
    except UsageError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tries, 0 or more")
    return int(text)


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no share in per cent, above 0 and at most 100")
    return value


def _sets(text: str) -> int:
    if not text.isascii() or not text.isdigit() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 1000")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= devices.LONGEST:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds above 0, at most a year")
    return value


def _gigabytes(text: str) -> int:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if value != 0 and not 0.001 <= value <= 1e6:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no number of gigabytes: 0 for no limit, or 0.001 and more"
        )
    return int(value * 1e9)


def default_artifacts(config: pytest.Config) -> Path:
    """`artifacts/` of the checkout when pytest runs inside it, else of the current folder."""
    package = Path(__file__).resolve().parent.parent
    here = config.invocation_params.dir.resolve()
    checkout = package.parent
    inside = (checkout / "pytest.ini").is_file() and (here == checkout or checkout in here.parents)
    return (checkout if inside else here) / "artifacts"


def make_run(config: pytest.Config, artifacts_root: Path, run_id: str) -> Run:
    """Turn the options into cases and settings of the run that is called `run_id`.

    Raises:
        UsageError: an option names something that does not exist or cannot be here.
    """
    option = config.option
    cache = Path(option.model_cache).expanduser() if option.model_cache else sources.default_cache()
    earlier = _earlier(option)
    environment = _environment(option, cache)
    if environment:
        chain = toolchain.of_release(environment.release, environment.bin, cache=cache)
    else:
        chain = toolchain.find_toolchain(Path(option.iree_bin) if option.iree_bin else None, cache=cache)
    if option.benchmark:
        chain = toolchain.with_benchmark(chain, cache=cache)
    elif option.benchmark_seconds is not None:
        raise UsageError("--benchmark-seconds says how long to measure: give --benchmark too")
    if option.require_models and not option.offline:
        raise UsageError("--require-models says what an absent file is with --offline: give that too")
    probed = _devices(option, earlier, lambda driver: toolchain.list_devices(chain, driver))
    limit = option.memory_limit
    if limit is None:
        limit = int(psutil.virtual_memory().total * 0.8)
    settings = Settings(
        toolchain=chain,
        artifacts=artifacts_root,
        timeouts=_timeouts(option),
        memory_limit=limit or None,
        reuse=not option.no_reuse,
        run=run_id,
    )
    expectations.reject_strangers(option.expectations, [device.name for device in probed])
    known = {} if earlier else {device.name: _known(option, chain.version, device) for device in probed}
    most = upkeep.parse_size(option.max_bytes) if option.max_bytes else None
    models = selection.select(tuple(_models(option, earlier)), max_bytes=most)
    if option.shard:
        models = tuple(model for model in models if option.shard.holds(model))
    cases = combine(models, probed, known)
    if earlier:
        cases = tuple(earlier.apply(case) for case in cases)
    artifacts.require_writable(artifacts_root)
    return Run(
        cases=cases,
        devices=probed,
        settings=settings,
        cache=cache,
        offline=option.offline,
        draw=Draw(inputs=option.inputs or "default", seeds=option.seeds, cache=cache, offline=option.offline),
        earlier=earlier,
        environment=environment,
    )


def _environment(option: argparse.Namespace, cache: Path) -> Environment | None:
    """The release that `--iree` names, made when this machine has it not yet."""
    if not option.iree:
        return None
    if option.iree_bin:
        raise UsageError(f"--iree {option.iree[0]}: --iree-bin {option.iree_bin} names the tools: drop one")
    return environments.provide(option.iree[-1], cache, offline=option.offline)


def _known(option: argparse.Namespace, iree: str, device: Device) -> expectations.Known:
    here = Circumstances.of(iree=iree, device=device.name, cpu=devices.host_cpu(), found=device.found)
    return expectations.load(option.expectations, here, creating=option.update_expectations)


def _earlier(option: argparse.Namespace) -> compat.Config | None:
    """The earlier suite's configuration, by option or variable, which name a device by themselves."""
    named = option.test_config_file or os.environ.get("IREE_TEST_CONFIG_FILE")
    if option.dry_run and not option.update_expectations:
        raise UsageError("--dry-run says what --update-expectations would do: give both")
    if not named:
        return None
    origin = "--test-config-file" if option.test_config_file else "IREE_TEST_CONFIG_FILE"
    if option.expectations or option.update_expectations:
        raise UsageError(f"--expectations: {origin} ({named}) says what is expected: drop one of them")
    if option.device:
        raise UsageError(
            f"--device {option.device[0]}: {origin} ({named}) names the device: drop one of them"
        )
    return compat.load(Path(named).expanduser(), catalog.load(compat.COLLECTION))


def _devices(
    option: argparse.Namespace, earlier: compat.Config | None, drivers: devices.Drivers
) -> tuple[Device, ...]:
    if earlier:
        return devices.present((earlier.device,), drivers, required=True)
    return devices.probe(tuple(option.device), drivers)


def _timeouts(option: argparse.Namespace) -> Mapping[Stage, float]:
    asked = {stage: getattr(option, f"{stage.value}_timeout") for stage in TIMEOUTS}
    return {stage: seconds for stage, seconds in asked.items() if seconds is not None}


def _models(option: argparse.Namespace, earlier: compat.Config | None) -> Iterable[Model]:
    collections = option.collection or (() if option.model or earlier else EMBEDDED)
    if earlier and not option.collection and not option.model:
        yield from earlier.selected(catalog.load(compat.COLLECTION))
    for collection in dict.fromkeys(collections):
        yield from catalog.load(collection)
    if not option.model and (option.dim or option.shape or option.input):
        raise UsageError("--dim, --shape and --input describe a file: add --model FILE")
    yield from local.models(
        [Path(file) for file in option.model],
        dims=_pairs("--dim", "NAME=N", option.dim),
        shapes=_pairs("--shape", "INPUT=1x3x48x192 or INPUT=scalar", option.shape),
        files_in=_pairs("--input", "INPUT=FILE.npy", option.input),
    )


def _pairs(name: str, form: str, texts: Iterable[str]) -> dict[str, str]:
    """Split at the last '=', since names of inputs may hold one."""
    pairs: dict[str, str] = {}
    for text in texts:
        key, separator, value = text.rpartition("=")
        if not separator or not key or not value:
            raise UsageError(f"{name} {text!r}: expected {form}")
        if key in pairs:
            raise UsageError(f"{name} {key!r} is given twice")
        pairs[key] = value
    return pairs
