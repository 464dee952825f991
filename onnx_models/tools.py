"""Runs programs, the only module that does: time, memory, log and exit status as one value.

Every program runs below a `supervisor`, a small process of its own that kills
the whole tree at the time or memory limit, at Ctrl-C, and when this process is
gone. No shell is ever involved, so any file name is safe.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from onnx_models.outcomes import Kind, SuiteError

_Item = TypeVar("_Item")

SUPERVISOR = Path(__file__).with_name("supervisor.py")

MESSAGE_LIMIT = 300
"""Characters of an error line that are kept."""

_CRASH_SIGNALS = frozenset(
    getattr(signal, f"SIG{name}").value
    for name in ("ABRT", "BUS", "FPE", "ILL", "KILL", "PIPE", "SEGV", "SYS", "TERM", "TRAP", "XCPU")
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A program that ended.

    Attributes:
        argv: the program and its arguments.
        exit_code: as the program gave it, None when a signal ended it or the supervisor did.
        signal: what ended it, also when a wrapper script turned its child's signal into an exit code.
        seconds: wall time.
        peak_bytes: most resident memory of the whole process tree at one moment.
        log: its stdout and stderr together, the first and the last MiB.
        ended: whether it ended by itself, or at a limit (the kernel's limit on memory counts too).
    """

    argv: tuple[str, ...]
    exit_code: int | None
    signal: int | None
    seconds: float
    peak_bytes: int
    log: Path
    ended: Literal["exited", "timeout", "out-of-memory"]

    @property
    def ok(self) -> bool:
        """Whether it ended by itself with exit code 0."""
        return self.ended == "exited" and self.exit_code == 0

    @property
    def kind(self) -> Kind | None:
        """The failure kind (error, crash, timeout or out-of-memory), None when it is ok."""
        if self.ended != "exited":
            return Kind(self.ended)
        if self.signal is not None:
            return Kind.CRASH
        return Kind.ERROR if self.exit_code else None

    def first_error(self) -> str:
        """The line that explains the failure, at most `MESSAGE_LIMIT` characters.

        When the log holds no line of a known form, it says how the program
        ended and, unless it was stopped, what it wrote last.
        """
        lines = _lines(self.log)
        found = explanation(lines)
        if found:
            return found
        if self.ended == "timeout":
            return f"still running after {round(self.seconds, 1):g} s"
        if self.ended == "out-of-memory":
            return f"stopped at {self.peak_bytes / 2**20:.0f} MiB of resident memory"
        last = next((line for line in reversed(lines) if line), "no output")
        return _bounded(f"{signal_name(self.signal)}: {last}" if self.signal is not None else last)


def run(
    argv: Sequence[str | Path],
    *,
    log: Path,
    timeout: float,
    memory_limit: int | None = None,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
) -> Finished:
    """Run a program to its end or to a limit; nothing it started is left when this returns.

    Args:
        argv: the program, by path (or by name, to be found on PATH), and its arguments.
        log: where its output goes; the folder is made.
        timeout: wall-clock seconds (`math.inf` for none).
        memory_limit: bytes of resident memory of the whole tree; `RLIMIT_AS` would
            keep iree-compile 3.13.0 from loading.
        cwd: where to run, here when None.
        env: variables to set on top of those of this process.

    Raises:
        SuiteError: the program cannot be started, or the supervisor was killed.
    """
    words = tuple(os.fspath(word) for word in argv)
    log.parent.mkdir(parents=True, exist_ok=True)
    job = {
        "argv": words,
        "timeout": timeout,
        "memory_limit": memory_limit,
        "cwd": None if cwd is None else os.fspath(cwd),
        "log": os.fspath(log),
    }
    answer = _supervised(job, None if env is None else {**os.environ, **env})
    if "error" in answer:
        where = f" ({answer['path']})" if answer.get("path") not in (None, words[0]) else ""
        raise SuiteError(f"{words[0]}: cannot be run: {answer['error']}{where}")
    code, number = decode(answer["returncode"]) if answer["ended"] == "exited" else (None, None)
    return Finished(
        argv=words,
        exit_code=code,
        signal=number,
        seconds=answer["seconds"],
        peak_bytes=answer["peak_bytes"],
        log=log,
        ended=answer["ended"],
    )


def importable(home: str) -> dict[str, str]:
    """The variable that lets a child import what lies in `home`, wherever this process found it."""
    return {"PYTHONPATH": os.pathsep.join([home, *filter(None, [os.environ.get("PYTHONPATH")])])}


def run_attached(argv: Sequence[str | Path], *, env: Mapping[str, str] | None = None) -> int:
    """Run a program on this terminal, as a shell would; Ctrl-C reaches it too. Its exit code."""
    words = [os.fspath(word) for word in argv]
    with subprocess.Popen(words, env=None if env is None else {**os.environ, **env}) as process:
        while True:
            try:
                return process.wait()
            except KeyboardInterrupt:
                continue  # it has got the same signal: it ends in its own way, with its own code


@contextlib.contextmanager
def forked(items: Callable[[], Iterator[_Item]], what: str) -> Iterator[Iterator[_Item]]:
    """Collect what an iterator yields in a fork of this process, while this one goes on (Linux only).

    For plain Python that shares much with what is here: handing it over to a new program would take
    longer than the work. What other threads hold at that moment must not matter to it. It ends with
    this process, however that ends.

    Args:
        items: makes the iterator, in the fork.
        what: names the work in messages.

    Yields:
        The items, waited for when the first is asked for; that raises what the iterator raised of the
        suite's own errors, or SuiteError where the fork was killed.
    """
    import multiprocessing

    parent = os.getpid()
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)

    def collect() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is this process's, which then ends the fork
        receiver.close()  # or sending would wait for ever, once this process was killed
        done: list[_Item] = []
        try:
            for item in itertools.takewhile(lambda _: os.getppid() == parent, items()):
                done.append(item)
            answer: list[_Item] | SuiteError = done
        except SuiteError as error:
            answer = error
        with contextlib.suppress(BrokenPipeError):
            sender.send(answer)

    child = fork.Process(target=collect, daemon=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads, from Python 3.12 on
        child.start()
    sender.close()

    def received() -> Iterator[_Item]:
        try:
            done: list[_Item] | SuiteError = receiver.recv()
        except EOFError:
            raise SuiteError(f"{what}: the process ended without an answer; try again") from None
        if isinstance(done, SuiteError):
            raise done
        yield from done

    try:
        yield received()
    finally:
        receiver.close()
        child.terminate()
        child.join()


def _supervised(job: Mapping[str, Any], env: Mapping[str, str] | None) -> dict[str, Any]:
    # -I -S: 60 ms instead of 100, and no module of the current folder can stand in for a standard one.
    command = [sys.executable, "-I", "-S", os.fspath(SUPERVISOR), "--json", _psutil_folder()]
    # A session of its own keeps the terminal's Ctrl-C from the supervisor: it reacts to the closed pipe.
    with subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        start_new_session=True,
    ) as supervisor:
        assert supervisor.stdin is not None
        assert supervisor.stdout is not None
        try:
            with contextlib.suppress(BrokenPipeError):
                supervisor.stdin.write(json.dumps(job).encode() + b"\n")
                supervisor.stdin.flush()
            output = supervisor.stdout.read()
        finally:
            with contextlib.suppress(BrokenPipeError):
                supervisor.stdin.close()
            # Also on KeyboardInterrupt: the tree is gone when the supervisor is.
            supervisor.wait()
    lines = output.splitlines() or [b"no answer"]
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        answer = {"group": None}
    if "ended" in answer or "error" in answer:
        return answer
    return {"error": _bury(lines, supervisor.returncode), "path": None}


def _bury(lines: Sequence[bytes], returncode: int) -> str:
    """What a supervisor that gave no result said last; its program's group is killed in its place."""
    with contextlib.suppress(ValueError, KeyError, TypeError, OSError):
        os.killpg(json.loads(lines[0])["group"], signal.SIGKILL)
    return f"its supervisor ended with {returncode}: {lines[-1].decode(errors='replace')}"


@functools.cache
def _psutil_folder() -> str:
    spec = importlib.util.find_spec("psutil")
    if spec is None or spec.origin is None:
        raise SuiteError("psutil is not installed: pip install psutil")
    return os.fspath(Path(spec.origin).parent.parent)


def decode(returncode: int) -> tuple[int | None, int | None]:
    """A process's return code (negative: signal) as exit code and signal.

    The Python wrappers of IREE 3.13.0 turn their child's signal N into exit
    code 256 - N (SIGSEGV: 245, SIGFPE: 248), shells into 128 + N.
    """
    if returncode < 0:
        return None, -returncode
    for number in (256 - returncode, returncode - 128):
        if number in _CRASH_SIGNALS:
            return returncode, number
    return returncode, None


def signal_name(number: int) -> str:
    """`SIGSEGV` for 11."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_FOLDER = re.compile(r'^(loc\("|"?)(?:(?!: )[^\n"])*/(?=[^/\n"]+"?:\d+)')
_TRACEBACK = "Traceback (most recent call last):"

# Forms of error lines, in the order of what they are worth; each takes its first line.
_FORMS = (
    re.compile(r"(?:^|[\s:])(?:fatal )?error: "),
    re.compile(r"Assertion [`'].*failed|LLVM ERROR|terminate called after"),
    re.compile(r"^(?:<vm>|\S*\.(?:c|cc|cpp|h)):\d+: [A-Z_]+; "),
    re.compile(r"FLAGS ERROR|^ERROR\b"),
)


def explanation(lines: Sequence[str]) -> str:
    """The line of a tool's output that explains why it failed, empty when none has a known form.

    In this order: an MLIR or clang diagnostic, the last line of a Python
    traceback, an assertion or LLVM error, a status of the IREE runtime. The
    folder of the file it points to is dropped, so that two machines agree.
    """
    diagnostic, *others = _FORMS
    found = _first(diagnostic, lines) or _exception(lines)
    for form in others:
        found = found or _first(form, lines)
    return _bounded(_FOLDER.sub(r"\1", found))


EXCERPT_LINES, EXCERPT_LIMIT = 40, 4000
"""Lines and characters of a log that a record keeps."""


def excerpt(log_text: str) -> str:
    """The part of a tool's output around the line that explains its failure; the end when none does."""
    lines = [line.rstrip()[:500] for line in re.split(r"\r?\n|\r", _ANSI.sub("", log_text))]
    while lines and not lines[-1]:
        lines.pop()
    said = next((k for form in _FORMS for k, line in enumerate(lines) if form.search(line)), None)
    start = max(0, len(lines) - EXCERPT_LINES) if said is None else max(0, said - 3)
    text = "\n".join(lines[start : start + EXCERPT_LINES])
    shown = "".join(c if c.isprintable() or c in "\n\t" else "\ufffd" for c in text)
    return shown if len(shown) <= EXCERPT_LIMIT else shown[: EXCERPT_LIMIT - 1] + "…"


def _first(form: re.Pattern[str], lines: Iterable[str]) -> str:
    return next((line for line in lines if form.search(line)), "")


def _exception(lines: Sequence[str]) -> str:
    """The first line of the message of the last traceback: a message can have many lines."""
    starts = [index for index, line in enumerate(lines) if line.startswith(_TRACEBACK)]
    after = lines[starts[-1] + 1 :] if starts else ()
    return next((line for line in after if line and not line.startswith((" ", "\t"))), "")


def _lines(log: Path) -> list[str]:
    try:
        text = log.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return []
    return [line.rstrip() for line in re.split(r"\r?\n|\r", _ANSI.sub("", text))]


def _bounded(line: str) -> str:
    text = " ".join("".join(c if c.isprintable() else " " for c in line).split())
    return text if len(text) <= MESSAGE_LIMIT else text[: MESSAGE_LIMIT - 1] + "…"
