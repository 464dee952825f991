"""Reduces a failure to a name that stays the same wherever the same fault is met.

The ordered rules of `signatures.toml` come first. What none of them knows is
named by its first error line without everything that differs between models,
machines and folders, and, when the tool crashed, by the top of its stack.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from onnx_models import toml_files
from onnx_models.outcomes import Kind, Stage, UsageError
from onnx_models.tools import explanation

RULES = Path(__file__).with_name("signatures.toml")

TITLE_LIMIT = 160
"""Characters of a title."""

FRAMES = 4
"""Stack frames below the signal handler that tell one crash from another."""

_ID_LIMIT = 100
_LIMITS = {Kind.TIMEOUT: "does not end in time", Kind.OUT_OF_MEMORY: "takes more memory than it may"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Signature:
    """The name of a fault.

    Attributes:
        id: equal for equal faults; readable where a rule knows the fault, else `stage-kind-hash`.
        title: the fault in one line, for people.
        phase: the pass or phase of the tool that failed, empty when unknown.
        host: whether the machine is to blame and not the tool.
    """

    id: str
    title: str
    phase: str = ""
    host: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rule:
    name: str
    pattern: re.Pattern[str]
    title: str
    phase: str
    stages: frozenset[Stage]
    host: bool


def signature(
    stage: Stage, kind: Kind, log_text: str, *, message: str = "", rules: Path = RULES
) -> Signature:
    """Name a failure.

    Args:
        stage: where the case stopped.
        kind: how.
        log_text: what the tool printed, empty when there is no log.
        message: the line that the stage itself says about the failure.
        rules: the rule file.

    Raises:
        UsageError: the rule file is not well-formed.
    """
    if kind in _LIMITS:
        return Signature(id=f"{stage.value}-{kind.value}", title=f"{stage.value} {_LIMITS[kind]}")
    text = _plain(f"{message}\n{log_text}")
    known, attributes = _load(rules)
    for rule in known:
        found = rule.pattern.search(text) if not rule.stages or stage in rule.stages else None
        if found:
            return _at_output(_by_rule(rule, found, attributes), stage, message)
    lines = text.splitlines()
    phase, error = _error(lines, message)
    if kind is Kind.CRASH:
        frames = stack(lines)
        title = f"{stage.value} crashes in {frames[0]}" if frames else f"{stage.value} crashes: {error}"
        parts = [error if not frames else "", *frames]
    else:
        title, parts = error, [error]
    name = f"{stage.value}-{kind.value}"
    return Signature(id=f"{name}-{_hash(name, phase, *parts)}", title=_bounded(title), phase=phase)


def _by_rule(rule: _Rule, found: re.Match[str], attributes: frozenset[str]) -> Signature:
    """The rule's name and the groups that it captured; `attributes` is reduced to those that matter."""
    groups = {key: value or "" for key, value in found.groupdict().items()}
    if "attributes" in groups:
        groups["attributes"] = _attributes(groups["attributes"], attributes)
    fields = {key: value if key == "attributes" else normalise(value) for key, value in groups.items()}
    shown = [value for key, value in fields.items() if value and key != "attributes"]
    suffix = f"[{fields['attributes']}]" if fields.get("attributes") else ""
    name = ":".join([rule.name, *shown]) + suffix
    if len(name) > _ID_LIMIT:
        name = f"{name[: _ID_LIMIT - 9]}-{_hash(name)}"
    spoken = fields | {"attributes": f" ({fields['attributes']})" if fields.get("attributes") else ""}
    return Signature(id=name, title=_bounded(rule.title.format_map(spoken)), phase=rule.phase, host=rule.host)


def _at_output(named: Signature, stage: Stage, message: str) -> Signature:
    """A mismatch is named by its output too: two outputs of a model that are wrong are two faults."""
    output = re.match(r"output (\d+) ", message) if stage is Stage.COMPARE else None
    return replace(named, id=f"{named.id}[output={output[1]}]") if output else named


def _attributes(text: str, wanted: frozenset[str]) -> str:
    """`direction=bidirectional` of `torch.onnx.direction = "bidirectional", torch.onnx.hidden_size = ...`."""
    pairs = re.findall(r'torch\.onnx\.(\w+) = ("[^"]*"|\[[^\]]*\]|[^,}\s]+)', text)
    kept = {name: re.sub(r' : \w+|"', "", value) for name, value in pairs if name in wanted}
    # 0 is every one's default, which some exporters write and others leave out.
    return ",".join(f"{name}={value}" for name, value in sorted(kept.items()) if value != "0")


_TRANSLATION = "failed to run translation of source executable"


def _error(lines: Sequence[str], message: str) -> tuple[str, str]:
    """The phase and the normalised error.

    IREE compiles executables in parallel, so the order of their errors is
    chance: of those, the first by alphabet is taken.
    """
    errors = [line for line in lines if re.search(r"(?:^|[\s:])error: ", line)]
    own = [line for line in errors if _TRANSLATION not in line]
    if own and len(own) < len(errors):
        return "executable-targets", min(normalise(line) for line in own)
    found = _whole(explanation(lines), lines) or message
    return "", normalise(found or next(filter(None, reversed(lines)), "no output"))


def _whole(explained: str, lines: Sequence[str]) -> str:
    """The line that was cut at a length, in full: where it is cut depends on what stands before."""
    if not explained.endswith("…"):
        return explained
    part = explained[-60:-1]
    return next((line for line in map(_collapsed, lines) if part in line), explained)


def _collapsed(line: str) -> str:
    return " ".join(line.split())


_FRAME = re.compile(r"#\s*\d+\s+0x[0-9a-fA-F]+\s+(?P<what>\S.*)$")
_MODULE = re.compile(r"\s*\((?:[^\s()]*/)?(?P<module>[^\s()/]+)\+(?P<offset>0x[0-9a-fA-F]+)\)$")
_SOURCE = re.compile(r"\s+\S+:\d+(?::\d+)?$")
# The signal handler, and the C library's own ends of a stack.
_HANDLER = re.compile(
    r"PrintStackTrace|SignalHandler|__restore_rt|__assert|\b(?:g?raise|abort|gsignal|_start|call_init)\b|"
    r"pthread_|__futex|__libc_|std::condition_variable|\(\S*(?:libc|libpthread|linux-vdso|ld-linux)[.-]"
)


def stack(lines: Sequence[str]) -> tuple[str, ...]:
    """The top frames of a stack dump, below the signal handler; functions where there are symbols.

    Without symbols a frame is the library's name and the offset in it, which
    is the same on every machine that has the same build.
    """
    functions: list[str] = []
    places: list[str] = []
    for line in lines:
        found = _FRAME.search(line)
        if not found or _HANDLER.search(found["what"]):
            continue
        module = _MODULE.search(found["what"])
        function = _SOURCE.sub("", _MODULE.sub("", found["what"])).replace(
            "(anonymous namespace)", "anonymous"
        )
        name = re.sub(r"[(<].*", "", function).strip()
        if name:
            functions.append(name)
        elif module:
            places.append(f"{module['module']}+{module['offset']}")
    return tuple((functions or places)[:FRAMES])


_NOISE: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"#hal\.executable\.target<.*", "#target"),
        (r"#(?:iree_codegen|iree_cpu|iree_gpu|spirv|vulkan|llvm)\.[\w.]+<.*", "#attribute"),
        (r'(?:loc\()?"?[^\s"\']*\.(?:mlir|onnx|pyx?|cc?|cpp|h|td)"?:\d+(?::\d+)?\)?:?', ""),
        (r"(?<![\w<])(?:\.{1,2}|~)?/[^\s'\":,;)]+", "PATH"),
        (r"dense(?:_resource)?<[^>]*>", "dense<>"),
        (r"\b0x[0-9a-fA-F]+", "0x"),
        (r"%[\w.$#-]+(?::\d+)?", "%"),
        (r"\^bb\d+", "^bb"),
        (r'@(?:"[^"]*"|[\w$.-]+)', "@"),
        (r"\b\w+_dispatch_\d+\w*", "dispatch"),
        (r"(?<![A-Za-z_])(?:(?:-?\d+|\?)x)+(?=[a-z])", ""),
        (r"\[[-?\d,\s]*\]", "[]"),
        (r"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?: ?(?:ns|us|ms|s|min|[KMG]i?B|bytes))?(?!\w)", "N"),
        (r"\s+", " "),
    )
)


def normalise(line: str) -> str:
    """A line without locations, paths, value names, shapes, addresses, CPU features and numbers."""
    for pattern, replacement in _NOISE:
        line = pattern.sub(replacement, line)
    return line.strip(" :")


_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")


def _plain(text: str) -> str:
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").strip("\n")


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:8]


def _bounded(text: str) -> str:
    line = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return line if len(line) <= TITLE_LIMIT else line[: TITLE_LIMIT - 1] + "…"


@cache
def _load(file: Path) -> tuple[tuple[_Rule, ...], frozenset[str]]:
    try:
        rows = toml_files.read(file)
        rules = tuple(_rule(row) for row in rows["rule"])
        attributes = frozenset(rows["attributes"])
    except (KeyError, TypeError, ValueError, re.error) as error:
        raise UsageError(f"{file}: not a rule file ({error!r}): see the comment at its top") from None
    names = [rule.name for rule in rules]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice:
        raise UsageError(f"{file}: the rule {twice!r} is there twice: the first would hide the second")
    return rules, attributes


def _rule(row: Mapping[str, Any]) -> _Rule:
    unknown = sorted(set(row) - {"name", "pattern", "title", "phase", "stages", "host"})
    if unknown:
        raise ValueError(f"unknown key {unknown[0]!r} in {row.get('name', '?')!r}")
    pattern = re.compile(row["pattern"], re.MULTILINE)
    row["title"].format_map(dict.fromkeys(pattern.groupindex, ""))
    return _Rule(
        name=row["name"],
        pattern=pattern,
        title=row["title"],
        phase=row.get("phase", ""),
        stages=frozenset(Stage(name) for name in row.get("stages", ())),
        host=row.get("host", False),
    )
