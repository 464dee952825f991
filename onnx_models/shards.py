"""Splits a run over machines: which models each of them takes.

The split goes by what a model is called, never by its place in a list: it is the
same whatever else is selected, on every machine and in every order.
"""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass

from onnx_models.catalog import Model
from onnx_models.outcomes import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """Part `number` of `of`, counted from 1."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    def holds(self, model: Model) -> bool:
        """Whether the model is of this part, and of no other one.

        All devices of a model are in one part, and so are the twins that share its file: their
        import and reference are made once.
        """
        digest = hashlib.sha256(model.shared_id.encode()).digest()
        return int.from_bytes(digest[:8], "big") % self.of == self.number - 1


def parse(text: str) -> Shard:
    """`2/4` as the second of four parts.

    Raises:
        UsageError: it is no such thing.
    """
    found = re.fullmatch(r"([1-9][0-9]{0,3})/([1-9][0-9]{0,3})", text)
    if found is None:
        raise UsageError(f"{text!r} is no part of a split: give I/N, such as 2/4")
    shard = Shard(number=int(found[1]), of=int(found[2]))
    if shard.number > shard.of:
        raise UsageError(f"{text!r} is no part of a split: parts 1 to {shard.of} there are")
    return shard
