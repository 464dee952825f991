"""Fake IREE tools that work, crash, hang or lie as told.

`make_fake_iree(folder)` writes `iree-import-onnx`, `iree-compile`, `iree-run-module` and
`iree-benchmark-module`; `--iree-bin folder` uses them. The importer and the compiler wrap
the ONNX file, and the runner evaluates it with `onnx.reference`, so by default every small
model passes. The benchmark says that an invocation takes 2 ms, and the n-th repetition n us more.

A tool's behaviour is a line `WORD [ARGUMENT] [when TEXT]`; with `when` it holds
only where TEXT is in one of the tool's arguments, and other models work.

    ok                    works
    exit CODE [MESSAGE]   prints MESSAGE (default "fake: error: told to fail") and ends so
    signal N              dies of that signal (exit 245 is how a wheel's wrapper passes on SIGSEGV)
    hang                  never ends and ignores SIGTERM
    fork                  the same, with a grandchild in a session of its own
    leave                 works, and leaves such a grandchild behind, which holds the output pipe
    print [BYTES]         prints that much (default 100 MB), then works
    exhaust [BYTES]       takes memory without end, or that much, then works
    nothing               ends with 0 and writes no file
    truncate              works, but each file it writes lacks its second half

and for the runner, each of which works but for the outputs it writes:

    shape                 one more axis, of size 1
    dtype                 float32 as float64, anything else as float32
    order                 the outputs in reverse order
    fewer                 not the last output
    more                  ends with an error like the real one when flags and outputs differ in number
    scale FACTOR          values times FACTOR
    nan                   NaN in the first place of every float output

and for the benchmark:

    say TEXT              writes TEXT as its result
    takes SECONDS         says that an invocation takes so long
    repeats N             so many repetitions, whatever it is asked for
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

VERSION = "3.13.0rc20261016"

TOOLS = {
    "importer": "iree-import-onnx",
    "compiler": "iree-compile",
    "runner": "iree-run-module",
    "benchmark": "iree-benchmark-module",
}

MAGIC = b"// fake MLIR "


def make_fake_iree(
    folder: Path,
    *,
    python: str = sys.executable,
    importer: str = "ok",
    compiler: str = "ok",
    runner: str = "ok",
    benchmark: str = "ok",
) -> Path:
    """Write the programs into `folder`, and return it; see the module for the behaviours."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {"importer": importer, "compiler": compiler, "runner": runner, "benchmark": benchmark}
    for role, behaviour in told.items():
        program = folder / TOOLS[role]
        program.write_text(
            f"{start(python)}fake_iree.main({role!r}, {behaviour!r})\n",
            encoding="utf-8",
        )
        program.chmod(0o755)
    return folder


def start(python: str = sys.executable) -> str:
    """The first lines of a program that uses this module, compiled as it is since the first time."""
    here = str(Path(__file__).resolve().parent)
    return f"#!{python}\nimport sys\nsys.path.insert(0, {here!r})\nimport fake_iree\n"


def main(role: str, behaviour: str) -> None:
    """Be the tool: answer a question about itself, or misbehave as told, or work."""
    arguments = sys.argv[1:]
    if _answers(role, arguments):
        return
    told, _, text = behaviour.partition(" when ")
    word, _, argument = told.partition(" ")
    if text and not any(text in each for each in arguments):
        word = "ok"
    if word in _MISBEHAVE:
        _MISBEHAVE[word](argument)
    elif word not in ("ok", "nothing", "truncate", *_LIES, *_RESULTS):
        sys.exit(f"fake: no behaviour {behaviour!r}")
    if word == "nothing":
        return
    if role in ("importer", "compiler"):
        written = {"importer": _import, "compiler": _compile}[role](arguments)
    else:
        written = {"runner": _run, "benchmark": _measure}[role](arguments, word, argument)
    if word == "truncate":
        for file in written:
            os.truncate(file, file.stat().st_size // 2)


def _answers(role: str, arguments: Sequence[str]) -> bool:
    if role == "compiler" and "--version" in arguments:
        print(f"IREE (https://iree.dev):\n  IREE compiler version {VERSION} @ 0123456789abcdef")
        return True
    listed = [each for each in arguments if each.startswith("--list_devices")]
    if role == "runner" and listed:
        driver = listed[0].partition("=")[2]
        devices = ("local-sync://", "local-task://")
        if driver and f"{driver}://" not in devices:
            sys.exit(
                f"c/runtime/src/iree/hal/driver_registry.c:1: NOT_FOUND; no driver '{driver}' registered"
            )
        print("\n".join(each for each in devices if each.startswith(driver)))
        return True
    return False


# Misbehaviour ----------------------------------------------------------------------------------


def _exit(argument: str) -> None:
    code, _, message = argument.partition(" ")
    print(message or "fake: error: told to fail", file=sys.stderr)
    sys.exit(int(code or 1))


def _signal(argument: str) -> None:
    os.kill(os.getpid(), int(argument or signal.SIGSEGV))


def _hang(_argument: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        time.sleep(60)


def _leave(_argument: str) -> None:
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            _hang("")
        os._exit(0)
    os.wait()


def _fork(_argument: str) -> None:
    _leave("")
    _hang("")


def _print(argument: str) -> None:
    line = b"fake " * 13106 + b"\n"
    for _ in range(int(argument or 100_000_000) // len(line)):
        sys.stdout.buffer.write(line)
    sys.stdout.flush()


def _exhaust(argument: str) -> None:
    step = 1 << 24
    taken: list[bytes] = []
    while not argument or len(taken) * step < int(argument):
        taken.append(b"x" * step)


_MISBEHAVE: dict[str, Callable[[str], None]] = {
    "exit": _exit,
    "signal": _signal,
    "hang": _hang,
    "fork": _fork,
    "leave": _leave,
    "print": _print,
    "exhaust": _exhaust,
}


# Work --------------------------------------------------------------------------------------------


def _files(arguments: Sequence[str]) -> tuple[Path, Path]:
    """The input and the output file, of `INPUT -o OUTPUT` with flags anywhere."""
    rest, output = [], ""
    words = iter(arguments)
    for word in words:
        if word in ("-o", "--output-file"):
            output = next(words)
        elif word.startswith("-o="):
            output = word[3:]
        elif word in ("--opset-version", "--large-model"):
            next(words, "")
        elif not word.startswith("-"):
            rest.append(word)
    if len(rest) != 1 or not output:
        sys.exit(f"fake: error: expected INPUT -o OUTPUT, found {list(arguments)}")
    return Path(rest[0]), Path(output)


def _import(arguments: Sequence[str]) -> list[Path]:
    source, target = _files(arguments)
    folder = json.dumps(os.fspath(source.resolve().parent)).encode()
    target.write_bytes(MAGIC + folder + b"\n" + source.read_bytes())
    return [target]


def _compile(arguments: Sequence[str]) -> list[Path]:
    source, target = _files(arguments)
    data = source.read_bytes()
    if not data.startswith(MAGIC):
        sys.exit(f"{source}:1:1: error: expected operation name in quotes")
    target.write_bytes(data)
    return [target]


def _run(arguments: Sequence[str], lie: str, argument: str) -> list[Path]:
    values: dict[str, list[str]] = {}
    for each in arguments:
        flag, _, value = each.partition("=")
        values.setdefault(flag, []).append(value)
    head, _, body = Path(values["--module"][0]).read_bytes().partition(b"\n")
    if not head.startswith(MAGIC):
        sys.exit("c/runtime/src/iree/vm/bytecode/archive.c:122: INVALID_ARGUMENT; not a module")
    inputs = [_load(value) for value in values.get("--input", [])]
    print("EXEC @main_graph")
    outputs = _evaluate(body, Path(json.loads(head[len(MAGIC) :])), inputs)
    targets = [Path(value.lstrip("@")) for value in values.get("--output", [])]
    if lie == "more" or len(targets) != len(outputs):
        sys.exit(
            f"c/runtime/src/iree/tooling/function_io.c:1213: OUT_OF_RANGE; {len(targets)} outputs specified "
            f"but the provided variant list only has {len(outputs) + 1} elements; outputting results"
        )
    pairs = list(zip(targets, _LIES[lie](outputs, argument) if lie in _LIES else outputs, strict=False))
    for target, output in pairs:
        _save(target, output)
    return [target for target, _ in pairs]


_RESULTS = ("say", "takes", "repeats")


def _measure(arguments: Sequence[str], word: str, argument: str) -> list[Path]:
    values = dict(each.partition("=")[::2] for each in arguments if not each.startswith("--input"))
    if not Path(values["--module"]).read_bytes().startswith(MAGIC):
        sys.exit("c/runtime/src/iree/vm/bytecode/archive.c:122: INVALID_ARGUMENT; not a module")
    function, target = values["--function"], Path(values["--benchmark_out"])
    if function != "main_graph":  # as 3.13.0 says it
        sys.exit(f"module.c:333: NOT_FOUND; no function `{function}` exported by module")
    for flag in ("--benchmark_min_time", "--benchmark_min_warmup_time", "--benchmark_out_format"):
        assert values[flag], flag
    assert "--output" not in values, "an output is written by the run only"
    count = int(argument if word == "repeats" else values["--benchmark_repetitions"])
    took = float(argument if word == "takes" else 0.002) * 1e3
    row = {"name": f"BM_{function}/process_time/real_time", "run_type": "iteration", "iterations": 3}
    row |= {"time_unit": "ms"}
    rows = [row | {"repetition_index": k, "real_time": took + k * 1e-3} for k in range(count)]
    rows.append(row | {"run_type": "aggregate", "aggregate_name": "mean", "real_time": took})
    target.write_text(argument if word == "say" else json.dumps({"context": {}, "benchmarks": rows}))
    time.sleep(0.05)  # 15 times 2 ms, as it says
    return [target]


def _evaluate(data: bytes, folder: Path, inputs: Sequence[Any]) -> list[Any]:
    """The model's outputs; the usual models of the tests need numpy only, which starts faster."""
    model = _schema().ModelProto.FromString(data)
    graph = model.graph
    if all(node.op_type in _OPERATORS and not node.domain for node in graph.node) and not graph.initializer:
        known = dict(zip((each.name for each in graph.input), inputs, strict=True))
        for node in graph.node:
            known[node.output[0]] = _OPERATORS[node.op_type](*(known[name] for name in node.input))
        return [known[each.name] for each in graph.output]
    return _evaluate_any(data, folder, inputs)


def _schema() -> Any:
    """The module of ONNX's messages without the package round it, whose import takes longer than numpy's."""
    spec = importlib.util.find_spec("onnx")
    assert spec is not None
    sys.modules["onnx"] = importlib.util.module_from_spec(spec)
    return importlib.import_module("onnx.onnx_ml_pb2")


def _evaluate_any(data: bytes, folder: Path, inputs: Sequence[Any]) -> list[Any]:
    sys.modules.pop("onnx", None)
    import onnx
    from onnx.external_data_helper import load_external_data_for_model
    from onnx.reference import ReferenceEvaluator

    model = onnx.load_model_from_string(data)
    load_external_data_for_model(model, os.fspath(folder))
    weights = {each.name for each in model.graph.initializer}
    names = [each.name for each in model.graph.input if each.name not in weights]
    return list(ReferenceEvaluator(model).run(None, dict(zip(names, inputs, strict=True))))


_OPERATORS: dict[str, Callable[..., Any]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Neg": lambda a: -a,
    "Identity": lambda a: a,
}


def _load(value: str) -> Any:
    import numpy as np

    text, _, file = value.partition("@")
    if not text:
        return np.load(file)
    import ml_dtypes

    *dims, dtype = text.rstrip("=").split("x")
    names = {"bf16": "bfloat16", "f8E4M3FN": "float8_e4m3fn", "f8E5M2": "float8_e5m2"}
    kind = getattr(ml_dtypes, names[dtype])
    return np.frombuffer(Path(file).read_bytes(), dtype=kind).reshape([int(dim) for dim in dims])


def _save(target: Path, output: Any) -> None:
    import numpy as np

    array = np.ascontiguousarray(output).reshape(np.shape(output))
    if target.suffix == ".bin":
        target.write_bytes(array.tobytes())
        return
    if array.dtype.kind == "u":  # as iree-run-module 3.13.0, whose element types have no sign
        array = array.view(array.dtype.str.replace("u", "i"))
    with target.open("wb") as file:
        np.save(file, array)


def _wrong_dtype(array: Any) -> Any:
    return array.astype("f8" if array.dtype == "f4" else "f4")


def _with_nan(array: Any) -> Any:
    if array.dtype.kind != "f" or array.size == 0:
        return array
    array = array.copy()
    array.flat[0] = float("nan")
    return array


_LIES: dict[str, Callable[[list[Any], str], list[Any]]] = {
    "shape": lambda outputs, _: [array.reshape((*array.shape, 1)) for array in outputs],
    "dtype": lambda outputs, _: [_wrong_dtype(array) for array in outputs],
    "order": lambda outputs, _: outputs[::-1],
    "fewer": lambda outputs, _: outputs[:-1],
    "more": lambda outputs, _: outputs,
    "scale": lambda outputs, factor: [(array * float(factor)).astype(array.dtype) for array in outputs],
    "nan": lambda outputs, _: [_with_nan(array) for array in outputs],
}
