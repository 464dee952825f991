"""Where an expectation holds: `when = "iree>=3.0,<3.5; os=linux; cpu=avx512f"`.

A condition is a list of clauses with ';' between them, and all must hold:
`iree` takes a version range, `device`, `os`, `cpu` and `driver` take `=` or `!=` and
one word. `cpu` asks for a feature of the host's processor as Linux names it, `driver`
for a part of what the device's driver calls itself (`driver=llvmpipe`).
"""

from __future__ import annotations

import platform
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.version import InvalidVersion, Version

from onnx_models.outcomes import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """What a run's cases have in common: IREE's version, the device, the system and the processor."""

    iree: str
    device: str
    os: str = ""
    cpu: frozenset[str] = frozenset()
    driver: str = ""

    @classmethod
    def of(
        cls, *, iree: str, device: str, system: str = "", cpu: str = "", found: Iterable[str] = ()
    ) -> Circumstances:
        """From the words of a record's header; this machine's system where none is given.

        Args:
            iree: the version that the compiler states.
            device: the device's name.
            system: `platform.platform()` or `platform.system()`.
            cpu: `name [features]`, as `devices.host_cpu` says it.
            found: what the device's driver lists, `Device.found`.
        """
        features = re.search(r"\[([^\]]*)\]$", cpu)
        name = (system or platform.system()).partition("-")[0].lower()
        known = frozenset(features[1].split()) if features else frozenset()
        system = {"darwin": "macos"}.get(name, name)
        return cls(iree=iree, device=device, os=system, cpu=known, driver=" ".join(found).lower())

    @property
    def minor(self) -> tuple[int, int]:
        """`(3, 13)` for 3.13.0rc20261016.

        Raises:
            UsageError: the compiler states no version.
        """
        try:
            version = Version(self.iree)
        except InvalidVersion:
            raise UsageError(
                f"IREE {self.iree!r}: not a version, so no expectation can be bound to it"
            ) from None
        return version.major, version.minor


Clause = Callable[[Circumstances], bool]


def parse(text: str) -> tuple[Clause, ...]:
    """The clauses of a condition; none for an empty one.

    Raises:
        UsageError: a clause is not well-formed; the message does not name the file.
    """
    return tuple(_clause(part.strip()) for part in text.split(";")) if text.strip() else ()


def holds(text: str, here: Circumstances) -> bool:
    """Whether every clause of a condition holds."""
    return all(clause(here) for clause in parse(text))


def of_release(version: tuple[int, int]) -> str:
    """The condition that holds for one minor release only."""
    major, minor = version
    return f"iree>={major}.{minor},<{major}.{minor + 1}"


def names_release(text: str) -> bool:
    """Whether a condition bounds IREE's version."""
    return any(part.strip().startswith("iree") for part in text.split(";"))


def _clause(text: str) -> Clause:
    if text.startswith("iree"):
        return _versions(text.removeprefix("iree").strip())
    found = re.fullmatch(r"(device|os|cpu|driver)\s*(!?=)=?\s*([\w.+-]+)", text)
    if not found:
        raise UsageError(
            f"'when' has {text!r}: expected iree>=3.0,<3.5 or device=, os=, cpu=, driver= and a word, "
            "with ';' between"
        )
    subject, operator, word = found.groups()
    wanted = operator == "="

    def check(here: Circumstances) -> bool:
        if subject == "cpu":
            return (word in here.cpu) is wanted
        if subject == "driver":
            return (word.lower() in here.driver) is wanted
        return ((here.device if subject == "device" else here.os) == word) is wanted

    return check


def _versions(text: str) -> Clause:
    try:
        specifiers = tuple(SpecifierSet(text))
    except InvalidSpecifier:
        specifiers = ()
    if not specifiers:
        raise UsageError(f"'when' has the version range {text!r}: expected the form iree>=3.0,<3.5")
    return lambda here: all(_within(specifier, here.iree) for specifier in specifiers)


def _within(specifier: Specifier, text: str) -> bool:
    """Whether a version is in a range; 3.13.0rc20261016 counts as 3.13.0 unless the range names dates.

    Published wheels of IREE 3.13.0 state themselves as release candidates.
    """
    try:
        version = Version(text)
    except InvalidVersion:
        return False
    if "rc" in specifier.version or "dev" in specifier.version:
        return specifier.contains(version, prereleases=True)
    return specifier.contains(version.base_version, prereleases=True)
