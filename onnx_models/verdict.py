"""Compare outputs with a reference again: `python -m onnx_models.verdict REFERENCE_FOLDER OUTPUTS_FOLDER`.

The last command of every `commands.sh`. Exits 0 when all sets match, 1 on a
mismatch, 2 when there is nothing to compare.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from onnx_models.compare import compare_set
from onnx_models.outcomes import SuiteError
from onnx_models.reference import load_reference


def main(argv: Sequence[str]) -> int:
    """Print one line per set and one per mismatch; the exit code."""
    if len(argv) != 2:
        print("usage: python -m onnx_models.verdict REFERENCE_FOLDER OUTPUTS_FOLDER", file=sys.stderr)
        return 2
    folder, outputs = Path(argv[0]), Path(argv[1])
    reference = load_reference(folder)
    if reference is None or not reference.sets:
        print(f"{folder}: no whole reference here: run the case with pytest again", file=sys.stderr)
        return 2
    matched = True
    for each in reference.sets:
        try:
            comparison = compare_set(each, outputs / each.name)
        except SuiteError as error:
            print(error, file=sys.stderr)
            return 2
        matched &= comparison.ok
        print(f"{each.name}: {'matches' if comparison.ok else 'MISMATCH'}")
        for line in comparison.detail.splitlines():
            print(f"  {line}")
    return 0 if matched else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
