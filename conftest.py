"""Loads the plugin, so that pytest runs from a checkout in which nothing was installed."""

pytest_plugins = ["onnx_models.plugin"]
