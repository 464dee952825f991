"""Loads the plugin in a checkout that is not installed; an installed one registers it itself."""

import os
from importlib.metadata import entry_points

if (
    "onnx_models.plugin" not in entry_points(group="pytest11").names
    or "PYTEST_DISABLE_PLUGIN_AUTOLOAD" in os.environ
):
    pytest_plugins = ["onnx_models.plugin"]
