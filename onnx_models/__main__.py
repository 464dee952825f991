"""`python -m onnx_models`: the same as the `onnx-models` command."""

from onnx_models.cli import main

main(prog_name="onnx-models")
