"""Child process of `reference`, the only one that runs onnxruntime.

`python -m onnx_models.reference_child REQUEST.json ANSWER.json`

It plans and draws the inputs, runs the model, and measures what the reference
is worth: a second run, a run without graph optimisation, other inputs, and
weights rounded to bfloat16.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnx_models import inputs, metrics, ort, probes, semantics, tensors
from onnx_models.catalog import InputFact, Model
from onnx_models.inputs import Plan
from onnx_models.inspection import ModelInfo
from onnx_models.inspection_child import describe
from onnx_models.outcomes import Kind, SuiteError, UsageError
from onnx_models.semantics import OutputRule
from onnx_models.tensors import Array, TensorFile

PROBE_SET = 1_000_003
"""Number of the input set that only the vacuity check draws."""

STORED_AGREES = 1e-3
"""Stored outputs are noted as different beyond this share of the scale: the zoo's own rtol."""

DRAWN = frozenset({"uniform", "normal", "ids", "distances", "default"})
"""Kinds of input that another set index changes."""


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Make every set of a request, or say who refused: `usage`, `unsupported` or plain `error`."""
    file = Path(request["model"])
    described = describe(file)
    if "error" in described:
        return {"error": f"{file}: {described['error']}"}
    info = ModelInfo.from_json(described)
    try:
        made = _Maker(request, file, info).make()
    except (ort.Unsupported, inputs.UnsupportedInput) as error:
        made = {"error": str(error), "kind": Kind.UNSUPPORTED_INPUT.value}
    except ort.Refusal as error:
        made = {"error": error.first_line, "detail": str(error)}
    except UsageError as error:
        made = {"error": str(error), "usage": True}
    except SuiteError as error:
        made = {"error": str(error)}
    return {"info": described, **made}


class _Maker:
    """One request, from the plan to the measurements."""

    def __init__(self, request: Mapping[str, Any], file: Path, info: ModelInfo) -> None:
        self.folder, self.file, self.info = Path(request["folder"]), file, info
        self.model = _model(request["facts"])
        if not info.outputs:
            raise SuiteError(f"{self.model.id}: the model has no outputs: there is nothing to compare")
        self.sets = int(request["sets"])
        self.plans = [inputs.plan(self.model, info.inputs, set_index=index) for index in range(self.sets)]
        self.stored = request.get("stored", [])
        self.options, self.notes = ort.session_options(self.model.session, info.operators)
        self.rules = self._rules()

    def make(self) -> dict[str, Any]:
        runner = ort.Runner(self.file, self.options)
        made = [self._stored_run(runner, row, again=not k) for k, row in enumerate(self.stored)]
        for index, plan in enumerate(self.plans):
            made.append(self._first_run(runner, f"seeded-{index}", _generate(plan), again=not made))
        other_inputs = self._other_inputs(runner, made[0][1])
        del runner
        self._other_optimisation(made)
        weights = self._rounded_weights(*made[0])
        return {
            "sets": [row for _, _, row in made],
            "notes": [*(self.plans[0].notes if self.plans else ()), *self.notes],
            "options": self.options,
            "probes": {"inputs": other_inputs, "weights": weights},
        }

    def _rules(self) -> dict[str, OutputRule]:
        skeleton = onnx.load(self.file, load_external_data=False)
        return semantics.rules(skeleton, self.model.compare)

    def _first_run(
        self, runner: ort.Runner, name: str, feeds: dict[str, Array], *, again: bool
    ) -> tuple[dict[str, Array], list[Array], dict[str, Any]]:
        """Run a set, and the first one twice; write its tensors."""
        outputs = runner.run(feeds)
        repeated = runner.run(feeds) if again else outputs
        rows = _write(zip(runner.outputs, outputs, strict=True), self.folder, f"reference/{name}")
        for row, output, second in zip(rows, outputs, repeated, strict=True):
            row |= _health(output) | {"rule": self.rules[row["name"]].to_json()}
            row["repeat"] = metrics.difference(output, second)
        fed = _write(feeds.items(), self.folder, f"inputs/{name}")
        return feeds, outputs, {"name": name, "inputs": fed, "outputs": rows}

    def _stored_run(
        self, runner: ort.Runner, stored: Mapping[str, Any], *, again: bool
    ) -> tuple[dict[str, Array], list[Array], dict[str, Any]]:
        """Run a stored set; how far its stored outputs lie from these is the reference's health."""
        arrays = [_stored(row) for row in stored["inputs"]]
        feeds = {port.name: array for port, array in zip(self.info.inputs, arrays, strict=True)}
        fed, outputs, made = self._first_run(runner, stored["name"], feeds, again=again)
        for row, output, kept in zip(made["outputs"], outputs, stored["outputs"], strict=False):
            row["stored"] = metrics.difference(output, _stored(kept))
            if row["stored"]["structure"] or (row["stored"]["different"] and row["dtype"] != "string"):
                self._note_stored(stored["name"], row)
        return fed, outputs, made

    def _note_stored(self, name: str, row: Mapping[str, Any]) -> None:
        found = row["stored"]
        far = "another shape or other places of NaN" if found["structure"] else f"rmse {found['rmse']:.3g}"
        if found["structure"] or not row["scale"] or found["rmse"] > STORED_AGREES * row["scale"]:
            self.notes.append(f"{name}: output {row['name']!r} is not onnxruntime's today: {far}")

    def _other_inputs(self, runner: ort.Runner, outputs: Sequence[Array]) -> list[dict[str, Any]] | None:
        try:
            other = inputs.plan(self.model, self.info.inputs, set_index=PROBE_SET)
        except UsageError as error:
            self.notes.append(f"vacuity: no other input set can be drawn: {error}")
            return None
        if not any(planned.kind in DRAWN and 0 not in planned.shape for planned in other.inputs):
            return None
        try:
            return _differences(outputs, runner.run(_generate(other)))
        except ort.Refusal as error:
            self.notes.append(f"vacuity: another input set is refused: {error.first_line}")
            return None

    def _other_optimisation(
        self, made: Sequence[tuple[dict[str, Array], list[Array], dict[str, Any]]]
    ) -> None:
        """Measure each output against the opposite level of graph optimisation; fetch scores on the way."""
        level = "all" if self.options["graph_optimization_level"] == "disable" else "disable"
        fits = self.info.bytes <= probes.LIMIT
        wanted = sorted({rule.scores for rule in self.rules.values() if rule.scores}) if fits else []
        try:
            runner = self._runner_with(wanted, {**self.options, "graph_optimization_level": level})
        except ort.Refusal as error:
            self.notes.append(f"noise: not loaded with graph optimisation {level!r}: {error.first_line}")
            return
        for feeds, outputs, row in made:
            try:
                found = runner.run(feeds)
            except ort.Refusal as error:
                self.notes.append(f"noise: not run with graph optimisation {level!r}: {error.first_line}")
                return
            others, extra = found[: len(outputs)], dict(zip(wanted, found[len(outputs) :], strict=True))
            for each, difference in zip(row["outputs"], _differences(outputs, others), strict=True):
                each["optimisation"] = difference
            self._keep_scores(row, extra)

    def _runner_with(self, extra: Sequence[str], options: Mapping[str, str]) -> ort.Runner:
        """A session that also returns the tensors named in `extra`."""
        if not extra:
            return ort.Runner(self.file, options)
        model = onnx.load(self.file)
        own = {port.name for port in model.graph.output}
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in extra if name not in own)
        runner = ort.Runner(model.SerializeToString(), options)
        runner.outputs = (*(port.name for port in self.info.outputs), *extra)
        return runner

    def _keep_scores(self, row: dict[str, Any], scores: Mapping[str, Array]) -> None:
        row["scores"] = {}
        for index, each in enumerate(row["outputs"]):
            array = scores.get(self.rules[each["name"]].scores)
            if array is None:
                continue
            file = f"reference/{row['name']}/{index}.scores{tensors.suffix(array.dtype.name)}"
            tensors.write(array, self.folder / file)
            row["scores"][str(index)] = {
                "name": self.rules[each["name"]].scores,
                "dtype": array.dtype.name,
                "shape": list(array.shape),
                "file": file,
            }

    def _rounded_weights(
        self, feeds: Mapping[str, Array], outputs: Sequence[Array], row: Mapping[str, Any]
    ) -> list[dict[str, Any]] | None:
        if self.info.bytes > probes.LIMIT:
            self.notes.append("vacuity: weights are not varied: the model is too large to copy")
            return None
        model = onnx.load(self.file)
        if not probes.with_rounded_weights(model):
            return None
        try:
            content = model.SerializeToString()
            del model
            return _differences(outputs, ort.Runner(content, self.options).run(feeds))
        except (ort.Refusal, ValueError) as error:
            self.notes.append(f"vacuity: weights are not varied: {str(error).splitlines()[0]}")
            return None


def _stored(row: Mapping[str, Any]) -> Array:
    file = TensorFile(name=row["name"], dtype=row["dtype"], shape=tuple(row["shape"]), path=Path(row["path"]))
    return tensors.read(file)


def _model(row: Mapping[str, Any]) -> Model:
    facts = [
        InputFact(**{**fact, "shape": None if fact["shape"] is None else tuple(fact["shape"])})
        for fact in row["inputs"]
    ]
    return Model(**{**row, "inputs": tuple(facts)})


def _generate(plan: Plan) -> dict[str, Array]:
    return {planned.name: inputs.generate(planned) for planned in plan.inputs}


def _differences(outputs: Sequence[Array], others: Sequence[Array]) -> list[dict[str, Any]]:
    return [metrics.difference(a, b) for a, b in zip(outputs, others, strict=True)]


def _health(output: Array) -> dict[str, Any]:
    """What a reader must know of an output's values: scale, and how many are not ordinary numbers."""
    real = metrics.real(output)
    if output.dtype.kind in "biu":
        return {"scale": 0.0, "largest": 0.0}
    scale, largest = metrics.scale_of(real)
    wide = real.astype(np.float32) if real.dtype.itemsize < 4 else real
    subnormal = np.count_nonzero((np.abs(wide) < metrics.tiny(real.dtype.name)) & (wide != 0))
    return {
        "scale": scale,
        "largest": largest,
        "nan": int(np.count_nonzero(np.isnan(wide))),
        "inf": int(np.count_nonzero(np.isinf(wide))),
        "subnormal": int(subnormal),
    }


def _write(arrays: Iterable[tuple[str, Array]], folder: Path, place: str) -> list[dict[str, Any]]:
    rows = []
    for index, (name, array) in enumerate(arrays):
        file = f"{place}/{index}{tensors.suffix(array.dtype.name)}"
        tensors.write(array, folder / file)
        rows.append({"name": name, "dtype": array.dtype.name, "shape": list(array.shape), "file": file})
    return rows


if __name__ == "__main__":
    question = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    Path(sys.argv[2]).write_text(json.dumps(answer(question), allow_nan=False), encoding="utf-8")
