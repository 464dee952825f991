"""Signatures on real logs of two releases: one name for one fault, wherever it is met."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from onnx_models import signature as signatures
from onnx_models.outcomes import Kind, Stage, UsageError
from onnx_models.signature import Signature, normalise, signature, stack

LOGS = Path(__file__).with_name("logs")

# What each log is worth. The two crashes are real stack dumps of a compiler that was sent SIGSEGV.
VERDICTS = {
    "3.0.0/compile-crash": "compile-crash-37553c93",
    "3.0.0/compile-encoder.cpu": "illegal-op:onnx.GRU[direction=bidirectional,linear_before_reset=1]",
    "3.0.0/compile-modelA_paper.cpu": "negative-extent:linalg.fill",
    "3.0.0/compile-nudenet.cpu": "illegal-mlir-op:arith.sitofp",
    "3.0.0/compile-ppocr_cls.cpu": "unbounded-stack",
    "3.0.0/compile-ppocr_det.cpu": "illegal-op:onnx.Conv[auto_pad=SAME_UPPER]",
    "3.0.0/compile-silero_vad.cpu": "illegal-op:onnx.If",
    "3.0.0/compile-silero_vad_16k_sequence.cpu": "negative-extent:linalg.fill",
    "3.0.0/compile-silero_vad_half.cpu": "illegal-op:onnx.If",
    "3.0.0/compile-silero_vad_op18_ifless.cpu": "unresolved-materialization:!torch.vtensor:!torch.vtensor",
    "3.0.0/compile-silero_vad_openvino_16k.cpu": "unresolved-materialization:!torch.vtensor:!torch.vtensor",
    "3.0.0/compile-spindle-detector-eeg.cpu": "unbounded-stack",
    "3.13.0/compile-crash": "compile-crash-46ea3274",
    "3.13.0/compile-densenet121.vulkan": "illegal-op:onnx.BatchNormalization",
    "3.13.0/compile-encoder.cpu": "illegal-op:onnx.GRU[direction=bidirectional,linear_before_reset=1]",
    "3.13.0/compile-encoder.vulkan": "illegal-op:onnx.GRU[direction=bidirectional,linear_before_reset=1]",
    "3.13.0/compile-inception_v1-opset17.hip": "shared-memory-limit",
    "3.13.0/compile-inception_v1.hip": "illegal-op:onnx.MaxPool",
    "3.13.0/compile-nudenet.cpu": "workgroup-count-hint",
    "3.13.0/compile-resnet50.cuda": "illegal-op:onnx.BatchNormalization",
    "3.13.0/compile-shufflenet.cpu": "illegal-op:onnx.BatchNormalization",
    "3.13.0/compile-silero_vad.cpu": "illegal-op:onnx.If",
    "3.13.0/compile-silero_vad_16k_sequence.cpu": "operand-extent:linalg.generic",
    "3.13.0/compile-silero_vad_half.cpu": "illegal-op:onnx.If",
    "3.13.0/compile-silero_vad_op18_ifless.cpu": "operand-extent:linalg.generic",
    "3.13.0/compile-silero_vad_openvino_16k.cpu": "unresolved-materialization:!torch.vtensor:!torch.vtensor",
    "3.13.0/compile-squeezenet.cpu": "illegal-op:onnx.MaxPool",
    "3.13.0/import-ppocr_det": "return-type-mismatch",
    "3.13.0/run-ppocr_rec.cpu": "dim-size",
}


def of_log(name: str, text: str = "") -> Signature:
    file = LOGS / f"{name}.log"
    stage = Stage(file.name.partition("-")[0])
    kind = Kind.CRASH if "crash" in name else Kind.ERROR
    return signature(stage, kind, text or file.read_text(encoding="utf-8"))


def test_every_log_has_a_verdict() -> None:
    found = {str(file.relative_to(LOGS).with_suffix("")) for file in LOGS.rglob("*.log")}
    assert found == set(VERDICTS)


@pytest.mark.parametrize("name", VERDICTS)
def test_verdict(name: str) -> None:
    found = of_log(name)
    assert found.id == VERDICTS[name]
    assert not found.host
    assert 0 < len(found.title) <= signatures.TITLE_LIMIT


@pytest.mark.parametrize("name", VERDICTS)
def test_without_rules_the_name_is_as_stable(name: str, tmp_path: Path) -> None:
    """The fallback alone: other folders, value names, lines, shapes, processors, addresses."""
    rules = tmp_path / "none.toml"
    rules.write_text(
        'attributes = []\n[[rule]]\nname = "x"\npattern = "\\\\A\\\\Z"\ntitle = "x"\n', encoding="utf-8"
    )
    file = LOGS / f"{name}.log"
    text = file.read_text(encoding="utf-8")
    stage, kind = Stage(file.name.partition("-")[0]), Kind.CRASH if "crash" in name else Kind.ERROR
    elsewhere = disguised(text)
    first, second = (signature(stage, kind, each, rules=rules) for each in (text, elsewhere))
    assert first == second
    assert re.fullmatch(rf"{stage.value}-{kind.value}-[0-9a-f]{{8}}", first.id)
    assert signature(stage, kind, elsewhere) == signature(stage, kind, text), "and with the rules"


def disguised(text: str) -> str:
    """The log as another machine would print it for another model with the same fault."""
    text = re.sub(
        r"(?:/[\w.+-]+)+/(?=model\.mlir|libIREE|iree-compile)", "/somewhere/else/with-name_2/", text
    )
    text = re.sub(r"\.\./model\.mlir", "/elsewhere/other.mlir", text)
    text = re.sub(r"mlir:\d+:\d+", "mlir:9999:99", text)
    text = re.sub(r"%\d+", "%77", text)
    text = re.sub(r"0x00007f\w+", "0x00007e1234567890", text)
    text = re.sub(
        r'cpu = "\w+", cpu_features = "[^"]*"', 'cpu = "tigerlake", cpu_features = "+avx512f"', text
    )
    text = re.sub(r"(?<=vtensor<\[)[\d?,]+", "5,?,7", text)
    return re.sub(r"(?<=tensor<)(?:-?\d+x)+", "11x13x", text)


def test_two_faults_of_one_model_have_two_names() -> None:
    text = (LOGS / "3.13.0" / "compile-encoder.cpu.log").read_text(encoding="utf-8")
    one = of_log("3.13.0/compile-encoder.cpu", text)
    for other in (
        text.replace("bidirectional", "reverse"),
        text.replace("onnx.GRU", "onnx.LSTM"),
        "model.mlir:1:1: error: 'linalg.fill' op unexpected result less than 0 at expression #0",
    ):
        assert of_log("3.13.0/compile-encoder.cpu", other).id != one.id


def test_unknown_faults_are_told_apart_by_their_message() -> None:
    texts = ("x.mlir:1:1: error: 'a.b' op is odd", "x.mlir:1:1: error: 'a.c' op is odd", "segmentation", "")
    found = {signature(Stage.COMPILE, Kind.ERROR, text).id for text in texts}
    assert len(found) == len(texts)
    assert signature(Stage.IMPORT, Kind.ERROR, texts[0]).id not in found
    assert signature(Stage.COMPILE, Kind.UNSUPPORTED_INPUT, texts[0]).id not in found


def test_errors_of_parallel_dispatches_may_come_in_any_order() -> None:
    end = "x.mlir:1:1: error: failed to run translation of source executable to target executable for #x"
    errors = ["x.mlir:3:1: error: 'a.b' op is odd", end, "x.mlir:8:1: error: 'a.c' op is even", end]
    one = signature(Stage.COMPILE, Kind.ERROR, "\n".join(errors))
    two = signature(Stage.COMPILE, Kind.ERROR, "\n".join(errors[2:] + errors[:2]))
    assert one == two
    assert one.phase == "executable-targets"


def test_a_crash_is_named_by_the_frames_below_the_handler() -> None:
    text = (LOGS / "3.13.0" / "compile-crash.log").read_text(encoding="utf-8")
    frames = stack(text.splitlines())
    assert frames[:2] == (
        "llvm::StdThreadPool::wait",
        "mlir::iree_compiler::detail::OpPipelineAdaptorPass::runOnOperationAsync",
    )
    moved = text.replace("runOnOperationAsync", "runOnOtherThing")
    assert of_log("3.13.0/compile-crash", moved).id != of_log("3.13.0/compile-crash").id


def test_frames_without_symbols_are_library_and_offset() -> None:
    lines = ["Stack dump:", " #0 0x7f00 (/a/b/libIREECompiler.so+0x1234)", " #1 0x7f01 (/c/libx.so+0x5)"]
    assert stack(lines) == ("libIREECompiler.so+0x1234", "libx.so+0x5")


@pytest.mark.parametrize("kind", [Kind.TIMEOUT, Kind.OUT_OF_MEMORY])
def test_limits_are_named_by_their_stage_alone(kind: Kind) -> None:
    one = signature(Stage.COMPILE, kind, "error: half way", message="no end after 600 s: x")
    assert one.id == f"compile-{kind.value}"


@pytest.mark.parametrize(
    ("message", "name"),
    [
        ("number of outputs: expected 2, found 1", "mismatch-count"),
        ("output 0 'y': dtype: expected float32, found float64", "mismatch-dtype:float32:float64[output=0]"),
        ("output 1 'z': rank: expected 2 [2, 3], found 3 [2, 3, 1]", "mismatch-rank[output=1]"),
        ("output 1 'z': shape: expected [2, 3], found [3, 2]", "mismatch-shape[output=1]"),
        ("output 0 'y': NaN not at the same places, first at [0, 0]", "mismatch-non-finite[output=0]"),
        ("output 0 'y': 3 of 9 elements differ, first at [1]", "mismatch-exact[output=0]"),
        ("output 0 'y': rmse 0.25 exceeds 1e-05 (noise 1e-7)", "mismatch-values[output=0]"),
        ("output 7 'a b': largest error 3 exceeds 0.1", "mismatch-values[output=7]"),
        ("output 0 'y': 0.npy was not written", "mismatch-no-output[output=0]"),
        ("output 0 'y': 0.npy is not a whole .npy file (EOF)", "mismatch-no-output[output=0]"),
    ],
)
def test_mismatches_are_named_by_what_differs_where_and_not_by_how_much(message: str, name: str) -> None:
    assert signature(Stage.COMPARE, Kind.MISMATCH, "", message=message).id == name


@pytest.mark.parametrize(
    ("stage", "text", "name"),
    [
        (Stage.COMPILE, "LLVM ERROR: IO failure on output stream: No space left on device", "host-disk-full"),
        (Stage.RUN, "driver_registry.c:1: NOT_FOUND; no driver 'vulkan' registered", "host-no-driver"),
        (Stage.COMPILE, "iree-compile: error while loading shared libraries: libx.so", "host-broken-tool"),
        (Stage.COMPILE, "SIGKILL: Compiling", "host-killed"),
    ],
)
def test_the_machine_is_to_blame(stage: Stage, text: str, name: str) -> None:
    found = signature(stage, Kind.ERROR, "", message=text)
    assert (found.id, found.host) == (name, True)


@pytest.mark.parametrize(
    ("line", "normal"),
    [
        ("/a/b/m.mlir:3:4: error: %12:2 = x", "error: % = x"),
        ('loc("m.mlir":3:4): error: bad', "error: bad"),
        ("error: tensor<1x?x3xf32> vs memref<-1x4xi8>", "error: tensor<f32> vs memref<i8>"),
        ("error: took 12.5 ms at 0x7f12 in @main_graph", "error: took N at 0x in @"),
        ("error: @main_dispatch_12_matmul_4x5x6_f32 failed", "error: @ failed"),
        ("error: f32, i64 and conv_2d stay", "error: f32, i64 and conv_2d stay"),
        ("error: input/output stays, /tmp/x.so goes", "error: input/output stays, PATH goes"),
        ("error: dense_resource<w1> of <[1,2,?],f16>", "error: dense<> of <[],f16>"),
    ],
)
def test_normalise(line: str, normal: str) -> None:
    assert normalise(line) == normal


@pytest.mark.parametrize(
    "text",
    [
        "rule = 1\nattributes = []\n",
        "[[rule]]\nname = 'a'\n",
        "attributes = []\n[[rule]]\nname = 'a'\npattern = '('\ntitle = 't'\n",
        "attributes = []\n[[rule]]\nname = 'a'\npattern = 'x'\ntitle = '{op}'\n",
        "attributes = []\n[[rule]]\nname = 'a'\npattern = 'x'\ntitle = 't'\nstages = ['link']\n",
        "attributes = []\n[[rule]]\nname = 'a'\npattern = 'x'\ntitle = 't'\ncolour = 'red'\n",
        "attributes = []\n" + "[[rule]]\nname = 'a'\npattern = 'x'\ntitle = 't'\n" * 2,
    ],
)
def test_wrong_rule_files_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(UsageError, match=r"rules\.toml: "):
        signature(Stage.RUN, Kind.ERROR, "x", rules=file)
