"""A program that fails in any way gives its own kind, and nothing of it survives."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from onnx_models import supervisor, tools
from onnx_models.meta_tests.fake_iree import make_fake_iree
from onnx_models.outcomes import Kind, SuiteError

MARK = "ONNX_MODELS_TEST_MARK"
ROOT = Path(tools.__file__).parent.parent


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A word in the environment of everything this test starts; a failed test leaves nothing either."""
    word = uuid.uuid4().hex
    monkeypatch.setenv(MARK, word)
    yield word
    for process in marked(word):
        process.kill()


def marked(word: str) -> list[psutil.Process]:
    """The living processes with the word in their environment, but for this one."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get(MARK) == word and process.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            continue
        if ours and process.pid != os.getpid():
            found.append(process)
    return found


def wait_until(condition: Callable[[], bool], seconds: float = 20.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "did not come true"
        time.sleep(0.02)


def fake(tmp_path: Path, behaviour: str) -> tuple[Path, ...]:
    """An argv of a fake compiler with that behaviour."""
    source = tmp_path / "in.mlir"
    source.write_bytes(b'// fake MLIR "."\nbody')
    program = make_fake_iree(tmp_path / "bin", compiler=behaviour) / "iree-compile"
    return program, source, Path("-o"), tmp_path / "out.vmfb"


def python(code: str, *arguments: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


@pytest.mark.parametrize(
    ("behaviour", "kind", "exit_code", "number", "first_error"),
    [
        ("ok", None, 0, None, "no output"),
        ("nothing", None, 0, None, "no output"),
        ("exit 1 a.mlir:1:2: error: no", Kind.ERROR, 1, None, "a.mlir:1:2: error: no"),
        ("signal 11", Kind.CRASH, None, 11, "SIGSEGV: no output"),
        ("signal 9", Kind.CRASH, None, 9, "SIGKILL: no output"),
        ("exit 245 Stack dump:", Kind.CRASH, 245, 11, "SIGSEGV: Stack dump:"),
        ("exit 248 x", Kind.CRASH, 248, 8, "SIGFPE: x"),
    ],
)
def test_end(
    tmp_path: Path,
    behaviour: str,
    kind: Kind | None,
    exit_code: int | None,
    number: int | None,
    first_error: str,
) -> None:
    argv = fake(tmp_path, behaviour)
    finished = tools.run(argv, log=tmp_path / "new folder" / "log", timeout=60)
    assert (finished.kind, finished.exit_code, finished.signal) == (kind, exit_code, number)
    assert finished.ended == "exited"
    assert finished.ok == (kind is None)
    assert finished.first_error() == first_error
    assert finished.argv == tuple(map(str, argv))
    assert finished.peak_bytes > 1 << 20
    assert (tmp_path / "out.vmfb").exists() == (behaviour == "ok")


@pytest.mark.parametrize("behaviour", ["hang", "fork"])
def test_timeout_leaves_nothing(tmp_path: Path, mark: str, behaviour: str) -> None:
    finished = tools.run(fake(tmp_path, behaviour), log=tmp_path / "log", timeout=1.5)
    assert marked(mark) == []
    assert (finished.kind, finished.exit_code, finished.signal) == (Kind.TIMEOUT, None, None)
    assert finished.seconds >= 1.5
    assert finished.first_error().startswith("still running after 1.")
    assert not finished.ok


def test_grandchild_left_behind_neither_hangs_nor_survives(tmp_path: Path, mark: str) -> None:
    finished = tools.run(fake(tmp_path, "leave"), log=tmp_path / "log", timeout=60)
    assert marked(mark) == []
    assert finished.ok
    assert finished.seconds < 50


def test_long_output_is_bounded(tmp_path: Path) -> None:
    total = 100_000_000
    code = "import os\nfor i in range(1000): os.write(1, b'%09d' % i + b'x' * 99_990 + b'\\n')"
    log = tmp_path / "log"
    finished = tools.run(python(code), log=log, timeout=60)
    assert finished.ok
    data = log.read_bytes()
    head, tail = data[: supervisor.HEAD], data[-supervisor.TAIL :]
    assert head.startswith(b"000000000x")
    assert head.count(b"\n") == supervisor.HEAD // 100_000
    assert tail.endswith(b"x\n")
    assert b"\n000000999x" in tail
    notice = data[supervisor.HEAD : -supervisor.TAIL]
    assert notice == b"\n[... %d bytes left out ...]\n" % (total - supervisor.HEAD - supervisor.TAIL)


@pytest.mark.parametrize(
    "size", [0, 1, supervisor.HEAD, supervisor.HEAD + 1, supervisor.HEAD + supervisor.TAIL]
)
def test_log_that_fits_is_whole(tmp_path: Path, size: int) -> None:
    log = tmp_path / "log"
    tools.run(python(f"print('y' * {size}, end='')"), log=log, timeout=60)
    assert log.read_bytes() == b"y" * size


def test_memory_limit(tmp_path: Path, mark: str) -> None:
    limit = 200 << 20
    finished = tools.run(fake(tmp_path, "exhaust"), log=tmp_path / "log", timeout=60, memory_limit=limit)
    assert marked(mark) == []
    assert finished.kind is Kind.OUT_OF_MEMORY
    assert finished.exit_code is None
    assert finished.peak_bytes > limit
    assert "MiB of resident memory" in finished.first_error()


def test_memory_limit_counts_the_whole_tree(tmp_path: Path, mark: str) -> None:
    # Neither of the two processes is over the limit alone.
    code = "import os, time; os.fork(); x = b'x' * (200 << 20); time.sleep(600)"
    finished = tools.run(python(code), log=tmp_path / "log", timeout=60, memory_limit=350 << 20)
    assert finished.kind is Kind.OUT_OF_MEMORY
    assert marked(mark) == []


def test_short_peak_is_not_missed(tmp_path: Path) -> None:
    finished = tools.run(python("b'x' * (200 << 20)"), log=tmp_path / "log", timeout=60)
    assert finished.ok
    assert finished.peak_bytes > 200 << 20


NAMES = [
    "with space",
    'it\'s "quoted"',
    "-o",
    "--",
    "naïve-日本",
    "new\nline",
    "$(touch pwned); `id` * ~ & | > x",
    os.fsdecode(b"not-utf8-\xff"),
]


@pytest.mark.parametrize("name", NAMES, ids=range(len(NAMES)))
def test_any_name_arrives_as_it_is(tmp_path: Path, name: str) -> None:
    folder = tmp_path / name.replace("/", "_")
    folder.mkdir()
    program = folder / name
    code = "import os, sys; os.write(1, repr([*map(os.fsencode, sys.argv[1:]), os.getcwdb()]).encode())"
    program.write_text(f"#!{sys.executable}\n{code}\n")
    program.chmod(0o755)
    log = folder / f"{name}.log"
    finished = tools.run([program, name, "--", name], log=log, timeout=60, cwd=folder)
    assert finished.ok
    word = os.fsencode(name)
    assert log.read_text() == repr([word, b"--", word, os.fsencode(folder)])


def test_environment_adds_and_stdin_is_empty(tmp_path: Path, mark: str) -> None:
    code = f"import os, sys; print(os.environ[{MARK!r}], os.environ['EXTRA'], sys.stdin.read() == '')"
    tools.run(python(code), log=tmp_path / "log", timeout=60, env={"EXTRA": "1"})
    assert (tmp_path / "log").read_text() == f"{mark} 1 True\n"


@pytest.mark.parametrize("broken", ["missing", "folder", "not executable", "no format", "no cwd"])
def test_what_cannot_start_is_one_clear_error(tmp_path: Path, broken: str) -> None:
    program, cwd = tmp_path / "tool", None
    if broken == "folder":
        program.mkdir()
    elif broken != "missing":
        program.write_bytes(b"\0\1\2")
        program.chmod(0o644 if broken == "not executable" else 0o755)
    if broken == "no cwd":
        cwd = tmp_path / "nowhere"
    with pytest.raises(SuiteError, match=r"^[^\n]*tool: cannot be run: [^\n]+$"):
        tools.run([program], log=tmp_path / "log", timeout=60, cwd=cwd)
    assert not (tmp_path / "log").exists()


def test_threads_do_not_mix(tmp_path: Path) -> None:
    def one(number: int) -> tuple[int | None, str]:
        log = tmp_path / f"{number}.log"
        finished = tools.run(python(f"print({number}); raise SystemExit({number})"), log=log, timeout=60)
        return finished.exit_code, log.read_text()

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(one, range(8))) == [(number, f"{number}\n") for number in range(8)]


RUN = """
import sys; from pathlib import Path; from onnx_models import tools
tools.run(sys.argv[2:], log=Path(sys.argv[1]), timeout=600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_end_of_the_parent_ends_the_tree(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    argv = [*map(str, fake(tmp_path, "fork"))]
    command = [sys.executable, "-c", RUN, str(tmp_path / "log"), *argv]
    parent = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE)
    wait_until(lambda: len(marked(mark)) >= 4)  # parent, supervisor, tool and its grandchild
    parent.send_signal(number)
    _, trace = parent.communicate(timeout=20)
    if number == signal.SIGINT:
        assert marked(mark) == []
        assert b"KeyboardInterrupt" in trace
    wait_until(lambda: not marked(mark))


def test_killed_supervisor_is_an_error_and_leaves_nothing(tmp_path: Path, mark: str) -> None:
    def kill_supervisor() -> None:
        wait_until(lambda: len(marked(mark)) >= 2)
        for process in marked(mark):
            if "--json" in process.cmdline():
                process.kill()

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill_supervisor)
        with pytest.raises(SuiteError, match="its supervisor ended with -9"):
            tools.run(fake(tmp_path, "hang"), log=tmp_path / "log", timeout=30)
        killing.result()
    wait_until(lambda: not marked(mark))


@pytest.mark.parametrize(
    ("returncode", "expected"),
    [
        (0, (0, None)),
        (1, (1, None)),
        (-11, (None, 11)),
        (245, (245, 11)),
        (248, (248, 8)),
        (250, (250, 6)),
        (139, (139, 11)),
        (134, (134, 6)),
        (137, (137, 9)),
        (247, (247, 9)),
        (255, (255, None)),
        (127, (127, None)),
        (128, (128, None)),
        (2, (2, None)),
    ],
)
def test_decode(returncode: int, expected: tuple[int | None, int | None]) -> None:
    assert tools.decode(returncode) == expected


EXPLANATIONS = {
    "mlir": (
        "warning: x\n/a b/c/m.mlir:3:4: error: failed to legalize\n/m.mlir:3:4: note: see\nOther: error: no",
        "m.mlir:3:4: error: failed to legalize",
    ),
    "loc": ('loc("/a/m.mlir":3:4): error: no', 'loc("m.mlir":3:4): error: no'),
    "argparse": ("usage: x\niree-import-onnx: error: no such flag", "iree-import-onnx: error: no such flag"),
    "traceback": (
        "Traceback (most recent call last):\n  File x\nKeyError: 1\n\nDuring the handling:\n\n"
        "Traceback (most recent call last):\n  File x\n    raise\na.b.ShapeError: first\n  second\nthird",
        "a.b.ShapeError: first",
    ),
    "diagnostic before traceback": (
        "x.mlir:1:1: error: no\nTraceback (most recent call last):\n  File x\nKeyError: 1",
        "x.mlir:1:1: error: no",
    ),
    "assertion": (
        "start\niree-compile: /a/b.cpp:1: void f(): Assertion `x' failed.\nPLEASE submit a bug report",
        "iree-compile: /a/b.cpp:1: void f(): Assertion `x' failed.",
    ),
    "llvm": ("LLVM ERROR: Cannot select\nPLEASE submit", "LLVM ERROR: Cannot select"),
    "status": (
        "EXEC @main\nc/runtime/src/iree/vm/archive.c:122: INVALID_ARGUMENT; prefix\n[ 0] bytecode",
        "archive.c:122: INVALID_ARGUMENT; prefix",
    ),
    "colour": ("\x1b[0;1;31mm.mlir:1:1: \x1b[31merror: \x1b[0mno", "m.mlir:1:1: error: no"),
    "control characters": ("m.mlir:1:1: error: a\tb\x07\0c", "m.mlir:1:1: error: a b c"),
    "nothing known": ("EXEC @main\nresult[0]\n", ""),
    "not an error line": ("RuntimeErrors: 0\n0 errors", ""),
}


@pytest.mark.parametrize("text", EXPLANATIONS)
def test_explanation(tmp_path: Path, text: str) -> None:
    output, expected = EXPLANATIONS[text]
    log = tmp_path / "log"
    log.write_bytes(output.encode())
    finished = tools.Finished(
        argv=("x",), exit_code=1, signal=None, seconds=1, peak_bytes=1, log=log, ended="exited"
    )
    assert finished.first_error() == (expected or output.strip().splitlines()[-1])
    assert tools.explanation(tools._lines(log)) == expected


def test_explanation_is_bounded() -> None:
    line = tools.explanation(["m.mlir:1:1: error: " + "x" * 10_000])
    assert len(line) == tools.MESSAGE_LIMIT
    assert line.startswith("m.mlir:1:1: error: xx")


def test_no_log_is_no_output(tmp_path: Path) -> None:
    finished = tools.Finished(
        argv=("x",), exit_code=1, signal=None, seconds=1, peak_bytes=1, log=tmp_path / "none", ended="exited"
    )
    assert finished.first_error() == "no output"


# The command line form --------------------------------------------------------------------------


def supervised(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "onnx_models.supervisor", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("options", "code", "expected"),
    [
        ((), "print('out', flush=True)", 0),
        ((), "raise SystemExit(3)", 3),
        ((), "import os; os.kill(os.getpid(), 11)", 139),
        (("--timeout", "0.5"), "import time; time.sleep(60)", 124),
        (("--memory", str(100 << 20)), "x = []\nwhile 1: x.append(b'x' * (1 << 24))", 137),
    ],
)
def test_command_line(options: tuple[str, ...], code: str, expected: int) -> None:
    done = supervised(*options, "--", *python(code))
    assert done.returncode == expected
    assert done.stdout == ("out\n" if expected == 0 else "")
    assert ("stopped" in done.stderr) == (expected in (124, 137))


def test_command_line_passes_words_and_streams() -> None:
    code = "import json, sys; print(json.dumps(sys.argv[1:])); print('err', file=sys.stderr)"
    done = supervised("--timeout", "60", "--", *python(code, "--timeout", "1", "--", "a b"))
    assert json.loads(done.stdout) == ["--timeout", "1", "--", "a b"]
    assert done.stderr == "err\n"


def test_command_line_without_or_with_an_unknown_program() -> None:
    assert supervised("--timeout", "1").returncode == 2
    done = supervised("--", "/no/such tool")
    assert done.returncode == 127
    assert done.stderr == "/no/such tool: cannot be started: No such file or directory\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_command_line_stops_with_its_tree(tmp_path: Path, mark: str, number: signal.Signals) -> None:
    command = [sys.executable, "-m", "onnx_models.supervisor", "--", *map(str, fake(tmp_path, "fork"))]
    process = subprocess.Popen(command, cwd=ROOT)
    wait_until(lambda: len(marked(mark)) >= 3)
    process.send_signal(number)
    assert process.wait(20) == 128 + number
    assert marked(mark) == []
