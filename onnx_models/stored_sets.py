"""The form of a stored data set, for those who find and use it and for the child that converts it."""

from __future__ import annotations

import re

from onnx_models.outcomes import SuiteError

MANIFEST = "set.json"
MEMBER = re.compile(r"(input|output)_(\d+)\.pb")
PARTS = ("input", "output")


class DataSetError(SuiteError):
    """A stored data set is damaged or does not fit the model."""
