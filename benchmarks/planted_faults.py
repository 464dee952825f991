"""Proof that the comparison catches a miscompilation, on every embedded model that passes on the CPU.

    python benchmarks/planted_faults.py ARTIFACTS RECORD.jsonl

RECORD is a run of the embedded collections that includes `cpu`, ARTIFACTS its folder: what is
compiled there is reused. For each fault the models that passed, and not vacuously, run again through
an `iree-run-module` that changes the first float output behind IREE's back. Prints a line per fault
and exits 1 when one is not caught.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from onnx_models import runs

FAULTS = {
    "scaled by 1.01": "array * array.dtype.type(1.01)",
    "one channel dropped": "without(array)",
    "one row duplicated": "doubled(array)",
}

WRAPPER = """#!{python}
import subprocess, sys
import numpy as np

def widest(array):
    axes = [axis for axis, size in enumerate(array.shape) if size > 1]
    return axes[0] if axes else None

def without(array):
    axis = widest(array)
    if axis is None:
        return array * 0
    array = array.copy()
    array[(slice(None),) * axis + (array.shape[axis] // 2,)] = 0
    return array

def doubled(array):
    axis = widest(array)
    if axis is None:
        return array + array
    array = array.copy()
    array[(slice(None),) * axis + (0,)] = array[(slice(None),) * axis + (array.shape[axis] - 1,)]
    return array

code = subprocess.call([{runner!r}, *sys.argv[1:]])
for argument in sys.argv[1:]:
    if code == 0 and argument.startswith("--output=@") and argument.endswith(".npy"):
        array = np.load(argument.removeprefix("--output=@"))
        if array.dtype.kind == "f" and array.size:
            np.save(argument.removeprefix("--output=@"), {change})
            break
sys.exit(code)
"""


def main() -> int:
    """Plant each fault; the number of models that did not notice, as the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("artifacts", type=Path)
    parser.add_argument("record", type=Path, metavar="RECORD.jsonl")
    options = parser.parse_args()
    artifacts, cases = options.artifacts.absolute(), runs.read(options.record).cases
    sound = sorted(
        case["id"]
        for case in cases
        if case["device"] == "cpu" and case["verdict"] == "passed" and not case.get("vacuous")
    )
    runner = shutil.which("iree-run-module", path=str(Path(sys.executable).parent))
    missed = 0
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "none").mkdir()
        for name, change in FAULTS.items():
            found = _run(
                Path(scratch), artifacts, WRAPPER.format(python=sys.executable, runner=runner, change=change)
            )
            blind = [each for each in sound if found.get(each) != ("compare", "mismatch")]
            print(f"{name}: {len(sound) - len(blind)} of {len(sound)} caught {' '.join(blind)}".rstrip())
            missed += len(blind)
    return min(missed, 1)


def _run(scratch: Path, artifacts: Path, wrapper: str) -> dict[str, tuple[str, str]]:
    tools = scratch / "bin"
    tools.mkdir(exist_ok=True)
    (tools / "iree-run-module").write_text(wrapper, encoding="utf-8")
    (tools / "iree-run-module").chmod(0o755)
    told = scratch / "record.jsonl"
    options = ["--device", "cpu", "--retries", "0", f"--iree-bin={tools}", f"--artifacts={artifacts}"]
    options += [f"--record={told}", f"--expectations={scratch / 'none'}"]
    command = [sys.executable, "-m", "pytest", "-q", "--pyargs", "onnx_models", *options]
    subprocess.run(command, stdout=subprocess.DEVNULL, check=False, cwd=scratch)
    return {case["id"]: (case["stage"], case["kind"]) for case in runs.read(told).cases}


if __name__ == "__main__":
    raise SystemExit(main())
