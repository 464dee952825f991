"""Runs one program, watches it, and leaves nothing behind; a process of its own, one per tool run.

It is separate from pytest so that even `kill -9` of pytest ends the tool: the
supervisor sees its control pipe close and kills the whole tree. It imports
nothing of the package and starts by file path, to be up within milliseconds.

A person runs it as `python -m onnx_models.supervisor --timeout S --memory BYTES -- PROGRAM ...`;
`onnx_models.tools` sends it a job as one JSON line on stdin, keeps that pipe
open, and reads from its stdout a JSON line with the program's group and one with the result.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import IO, Any

if __name__ == "__main__" and sys.argv[1:2] == ["--json"]:  # started with -S: psutil's folder is told
    sys.path.append(sys.argv[2])
import psutil

HEAD = TAIL = 1 << 20
"""Bytes kept of the start and of the end of a program's output."""

TICK = 0.05
"""Seconds between two looks at the tree's memory."""

GRACE = 10.0
"""Seconds to wait for killed processes to disappear (one in an uninterruptible read may take long)."""

TIMED_OUT, OVER_MEMORY = 124, 137
"""Exit codes of the command line form, as those of coreutils' `timeout` and of a shell after SIGKILL."""

_PR_SET_CHILD_SUBREAPER = 36


class BoundedLog:
    """Keeps the first and the last MiB of a stream on disk, so that no program can fill it."""

    def __init__(self, path: str) -> None:
        self._file: IO[bytes] = open(path, "wb", buffering=0)  # noqa: SIM115, PTH123 (closed by close)
        self._head_room = HEAD
        self._tail: deque[bytes] = deque()
        self._tail_bytes = 0
        self._left_out = 0

    def write(self, data: bytes) -> None:
        """Append; the head is on disk at once, for `tail -f`, the tail when the log is closed."""
        head, rest = data[: self._head_room], data[self._head_room :]
        self._file.write(head)
        self._head_room -= len(head)
        if rest:
            self._tail.append(rest)
            self._tail_bytes += len(rest)
        while self._tail and self._tail_bytes - len(self._tail[0]) >= TAIL:
            dropped = len(self._tail.popleft())
            self._tail_bytes -= dropped
            self._left_out += dropped

    def close(self) -> None:
        """Write the tail, after a line with the number of bytes left out, if any."""
        tail = b"".join(self._tail)
        self._left_out += max(0, len(tail) - TAIL)
        if self._left_out:
            self._file.write(b"\n[... %d bytes left out ...]\n" % self._left_out)
        self._file.write(tail[-TAIL:])
        self._file.close()


class Tree:
    """The program and everything it started, also what left its session or was orphaned.

    On Linux the supervisor is the child subreaper, so an orphan becomes its
    child. Elsewhere, what it saw at some tick or is in the program's group is
    known; a program that leaves the group within one tick escapes.
    """

    def __init__(self, argv: list[str], *, cwd: str | None, output: int | None) -> None:
        self._me = psutil.Process()
        self._seen: set[psutil.Process] = set()
        self._next_scan = 0.0
        self.peak = 0
        self.returncode: int | None = None
        self._program = subprocess.Popen(
            argv, cwd=cwd, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
        self.pid = self._program.pid
        # Were memory short, the kernel must choose the tool, not the test runner.
        with contextlib.suppress(OSError), open(f"/proc/{self.pid}/oom_score_adj", "w") as score:  # noqa: PTH123
            score.write("500")

    def reap(self) -> None:
        """Collect every child that ended; the program's own status goes to `returncode`."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status, usage = os.wait4(-1, os.WNOHANG)
                if pid == 0:
                    return
                # A child shorter than a tick was never looked at. Linux counts KiB (and what this
                # process held at the fork, some 20 MB), macOS bytes.
                unit = 1 if sys.platform == "darwin" else 1024
                self.peak = max(self.peak, usage.ru_maxrss * unit)
                if pid == self.pid:
                    self.returncode = self._program.returncode = os.waitstatus_to_exitcode(status)

    def measure(self) -> int:
        """Resident bytes of the tree now (shared pages count once per process)."""
        now = time.monotonic()
        if now >= self._next_scan:
            self._scan()
            # Listing the host's processes takes milliseconds: spend at most 1/40 of a core on it.
            self._next_scan = now + 40 * (time.monotonic() - now)
        total = 0
        for process in self._seen:
            with contextlib.suppress(psutil.Error):
                total += process.memory_info().rss
        self.peak = max(self.peak, total)
        return total

    def kill(self) -> None:
        """Kill everything, and return when it is gone (or after `GRACE` seconds)."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, signal.SIGKILL)
        deadline = time.monotonic() + GRACE
        while True:
            self.reap()
            self._scan()
            if not self._seen or time.monotonic() > deadline:
                return
            for process in self._seen:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.002)

    def _scan(self) -> None:
        found = set(self._me.children(recursive=True))
        for process in self._seen - found:
            with contextlib.suppress(psutil.Error):
                if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                    found.add(process)
                    found.update(process.children(recursive=True))
        self._seen = found


class Stopped(Exception):
    """The parent is gone, or a signal asked to stop; `number` is the signal, 0 for the parent."""

    def __init__(self, number: int) -> None:
        self.number = number


class Watch:
    """Wakes up for output, for the end of a child, for the parent's end and for signals."""

    def __init__(self, *, output: int | None, control: int | None) -> None:
        self._output, self._control = output, control
        self._wakeup, write_end = os.pipe()
        for end in (self._wakeup, write_end):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self._stop: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP: keep it so
                signal.signal(number, self._on_stop)
        self._parent = os.getppid()

    def _on_stop(self, number: int, _frame: object) -> None:
        self._stop = number

    def wait(self, seconds: float) -> Iterator[bytes]:
        """Sleep until something happens, at most `seconds`; yields output.

        Raises:
            Stopped: nobody wants the result any more.
        """
        fds = [fd for fd in (self._wakeup, self._control, self._output) if fd is not None]
        ready = select.select(fds, [], [], max(0.0, seconds))[0]
        if self._wakeup in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self._wakeup, 4096)
        if self._output in ready:
            yield from self._read()
        # The pipe's other end can live on in a process forked off the parent: look at the parent too.
        orphaned = self._control is not None and os.getppid() != self._parent
        if orphaned or (self._control in ready and not os.read(self._control or 0, 4096)):
            raise Stopped(0)
        if self._stop is not None:
            raise Stopped(self._stop)

    def _read(self) -> Iterator[bytes]:
        assert self._output is not None
        data = os.read(self._output, 1 << 18)
        if not data:  # all writers are gone
            os.close(self._output)
            self._output = None
        yield data

    def drain(self) -> Iterator[bytes]:
        """What is left in the output pipe, without waiting for more, not even from what escaped."""
        for _ in range(64):
            if self._output is None or not select.select([self._output], [], [], 0)[0]:
                return
            yield from self._read()


def supervise(
    job: dict[str, Any], control: int | None, started: Callable[[int], object] = lambda pid: None
) -> dict[str, Any]:
    """Run a job to its end.

    Args:
        job: `argv`, `timeout` in seconds, `memory_limit` in bytes or None, `cwd`
            or None, `log` as a path or None to leave the output alone.
        control: the pipe whose end means that nobody wants the result, or None.
        started: called with the program's process id, which is its group's too.

    Returns:
        `ended` (exited, timeout, out-of-memory), `returncode` (negative for a
        signal), `seconds`, `peak_bytes`.

    Raises:
        OSError: the program cannot be started, or the log cannot be written.
        Stopped: see `Watch.wait`; nothing is left running then either.
    """
    _become_subreaper()
    log = BoundedLog(job["log"]) if job["log"] is not None else None
    read_end, write_end = os.pipe() if log else (None, None)
    watch = Watch(output=read_end, control=control)
    oom_kills = _oom_kills()
    start = time.monotonic()
    try:
        tree = Tree(job["argv"], cwd=job["cwd"], output=write_end)
    except OSError:
        if log:
            os.unlink(job["log"])  # noqa: PTH108 (pathlib takes longer to import than all else here)
        raise
    try:
        started(tree.pid)
        if write_end is not None:
            os.close(write_end)
        ended = _follow(tree, watch, log, deadline=start + job["timeout"], limit=job["memory_limit"])
        seconds = time.monotonic() - start
    finally:
        tree.kill()
        if log:
            for data in watch.drain():
                log.write(data)
            log.close()
    if ended == "exited" and _killed(tree.returncode) and _oom_kills() > oom_kills:
        ended = "out-of-memory"
    return {"ended": ended, "returncode": tree.returncode, "seconds": seconds, "peak_bytes": tree.peak}


def _follow(tree: Tree, watch: Watch, log: BoundedLog | None, *, deadline: float, limit: int | None) -> str:
    next_look = 0.0
    while True:
        now = time.monotonic()
        if now >= next_look:
            next_look = now + TICK
            if tree.measure() > (limit or sys.maxsize):
                return "out-of-memory"
        tree.reap()
        if tree.returncode is not None:
            return "exited"
        if now >= deadline:
            return "timeout"
        for data in watch.wait(min(next_look, deadline) - now):
            if log:
                log.write(data)


def _become_subreaper() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _killed(returncode: int | None) -> bool:
    """Whether a program, or the child of a wrapper script, died of SIGKILL (247: see `tools`)."""
    return returncode in (-signal.SIGKILL, 256 - signal.SIGKILL, 128 + signal.SIGKILL)


def _oom_kills() -> int:
    """How many processes the kernel killed for memory, on the host and in this cgroup."""
    total = 0
    for path in ("/proc/vmstat", "/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as lines:  # noqa: PTH123
            total += sum(int(line.split()[1]) for line in lines if line.startswith("oom_kill "))
    return total


def _serve() -> int:
    """Take one job from stdin, answer on stdout. End of input before a job: the parent died."""
    line = bytearray()
    while not line.endswith(b"\n"):
        data = os.read(0, 1 << 16)
        if not data:
            return 1
        line += data
    try:
        answer = supervise(json.loads(line), control=0, started=lambda pid: _tell({"group": pid}))
    except OSError as error:
        answer = {"error": error.strerror or str(error), "path": error.filename}
    except Stopped as stop:
        answer = {"error": f"stopped by signal {stop.number}", "path": None}
    _tell(answer)
    return 0


def _tell(answer: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(answer).encode() + b"\n")


def main(arguments: list[str]) -> int:
    """The command line form: the program's output as it is, its exit code or 124, 137, 128 + signal."""
    import argparse

    parser = argparse.ArgumentParser(
        prog="onnx_models.supervisor", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument("--timeout", type=float, default=float("inf"), metavar="SECONDS")
    parser.add_argument(
        "--memory", type=int, metavar="BYTES", help="limit on the whole tree's resident memory"
    )
    parser.usage = "%(prog)s [--timeout SECONDS] [--memory BYTES] -- PROGRAM [ARGUMENT ...]"
    split = arguments.index("--") if "--" in arguments else len(arguments)
    options, argv = parser.parse_args(arguments[:split]), arguments[split + 1 :]
    if not argv:
        parser.error("no program: give it after --")
    job = {"argv": argv, "timeout": options.timeout, "memory_limit": options.memory}
    try:
        result = supervise({**job, "cwd": None, "log": None}, control=None)
    except OSError as error:
        print(f"{argv[0]}: cannot be started: {error.strerror}", file=sys.stderr)
        return 127 if isinstance(error, FileNotFoundError) else 126
    except Stopped as stop:
        return 128 + stop.number
    if result["ended"] == "timeout":
        print(f"{argv[0]}: stopped after {options.timeout:g} s", file=sys.stderr)
        return TIMED_OUT
    if result["ended"] == "out-of-memory":
        print(f"{argv[0]}: stopped at {result['peak_bytes']} bytes of memory", file=sys.stderr)
        return OVER_MEMORY
    code = int(result["returncode"])
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(_serve() if sys.argv[1:2] == ["--json"] else main(sys.argv[1:]))
