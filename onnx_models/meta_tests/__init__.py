"""The tests of the suite itself: `pytest onnx_models/meta_tests`."""
