"""Memory of the harness itself, whatever the model's size: pytest never holds a model's weights.

    python benchmarks/memory.py [--gigabytes 2.2]

Makes a model whose weights lie beside it, takes it through every stage with the real tools on the CPU,
and prints the highest resident memory of each process that is Python with pytest, and of the tools.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import numpy as np
import onnx
import psutil
from onnx import TensorProto, helper

LIMIT = 300e6
"""Bytes that the harness may take."""


def write_model(folder: Path, gigabytes: float) -> Path:
    """Y = x W0 W1 ..., each W a square of 8,192 float32, written piece by piece."""
    width = 8192
    layers = max(1, round(gigabytes * 1e9 / (4 * width * width)))
    rng = np.random.default_rng(1)
    nodes, weights = [], []
    with (folder / "weights.bin").open("wb") as file:
        for k in range(layers):
            tensor = onnx.TensorProto(name=f"w{k}", data_type=TensorProto.FLOAT, dims=[width, width])
            tensor.data_location = TensorProto.EXTERNAL
            facts = {"location": "weights.bin", "offset": file.tell(), "length": 4 * width * width}
            for key, value in facts.items():
                tensor.external_data.add(key=key, value=str(value))
            for _ in range(0, width, 512):
                file.write((rng.standard_normal((512, width)) / width**0.5).astype(np.float32).tobytes())
            weights.append(tensor)
            target = "y" if k == layers - 1 else f"h{k}"
            nodes.append(helper.make_node("MatMul", [f"h{k - 1}" if k else "x", f"w{k}"], [target]))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, width]) for name in "xy"]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    (folder / "large.onnx").write_bytes(model.SerializeToString())
    return folder / "large.onnx"


def watch(command: list[str]) -> tuple[int, dict[str, int]]:
    """Run a command; its exit code, and the highest resident bytes of each kind of process below it."""
    peaks: dict[str, int] = defaultdict(int)
    process = subprocess.Popen(command)
    parent = psutil.Process(process.pid)
    while process.poll() is None:
        for each in [parent, *_children(parent)]:
            try:
                name = _kind(each.cmdline())
                peaks[name] = max(peaks[name], each.memory_info().rss)
            except psutil.Error:
                continue
        time.sleep(0.05)
    return process.returncode, dict(peaks)


def _children(parent: psutil.Process) -> list[psutil.Process]:
    try:
        return parent.children(recursive=True)
    except psutil.Error:
        return []


def _kind(words: list[str]) -> str:
    line = " ".join(words)
    for name in ("iree-import-onnx", "iree-compile", "iree-run-module", "supervisor", "onnx_models."):
        if name in line and "pytest" not in line:
            return next((word for word in words if word.startswith("onnx_models.")), name)
    return "harness: pytest" if "pytest" in line else "harness: xdist worker"


def main() -> int:
    """Print the table; 1 when the harness takes too much."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gigabytes", type=float, default=2.2)
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onnx-models-memory-") as name:
        folder = Path(name)
        model = write_model(folder, options.gigabytes)
        size = sum(file.stat().st_size for file in folder.iterdir())
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--pyargs",
            "onnx_models",
            f"--model={model}",
            "--device=cpu",
        ]
        command += [f"--artifacts={folder / 'artifacts'}", "-n", str(options.workers), "-q", "-rA"]
        code, peaks = watch(command)
    print(f"\nmodel of {size / 1e9:.2f} GB, pytest ended with {code}")
    for kind, peak in sorted(peaks.items(), key=lambda item: -item[1]):
        print(f"{kind:<36} {peak / 1e6:8.0f} MB")
    worst = max(peak for kind, peak in peaks.items() if kind.startswith("harness"))
    print(f"harness: {worst / 1e6:.0f} MB of {LIMIT / 1e6:.0f}")
    return int(worst > LIMIT or code not in (0, 1))


if __name__ == "__main__":
    sys.exit(main())
