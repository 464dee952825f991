"""Writes a run's record and prints its summary; lives in the controlling pytest process only."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from _pytest.junitxml import xml_key

from onnx_models import catalog, health, junit, latency, prefetch, records, report, runs, update, zoo
from onnx_models.cases import Case
from onnx_models.files import write_atomic
from onnx_models.outcomes import SuiteError, Verdict
from onnx_models.plugin.options import Run

LATENCIES = 30
"""Lines of `--benchmark` that the terminal shows; the record has all of them."""


class Recorder:
    """A pytest plugin: every selected case gets exactly one line, whatever happens to it."""

    def __init__(self, config: pytest.Config, run: Run) -> None:
        self.config, self.run = config, run
        self.id = run.settings.run
        asked = config.option.record
        path = Path(asked).absolute() if asked else run.settings.artifacts / "runs" / f"{self.id}.jsonl"
        arguments = config.invocation_params.args
        words, shard = [str(a) for a in arguments], str(config.option.shard or "")
        head = records.header(self.id, run.settings.toolchain, run.devices, words, shard=shard)
        self.head, self.broken = head, ""
        self.report: list[str] = []
        self.empty = False
        self.writer = records.Writer(path, head)
        self.by_name = {_test_name(case): case for case in run.cases}
        self.waiting: dict[str, Case] = {}
        self.rows: list[dict[str, Any]] = []
        # pytest's fixture for what --junitxml says of a whole run does nothing under xdist.
        xml = config.stash.get(xml_key, None)
        if xml is not None:
            for name, value in junit.suite_properties(head):
                xml.add_global_property(name, value)

    def pytest_report_header(self) -> list[str]:
        """Which tools, from where, which version; which devices; where the results go."""
        lines = [*self.run.settings.toolchain.describe()]
        for device in self.run.devices:
            state = device.skip_reason or (
                f"{device.title}: {', '.join(device.found)}"
                if device.found
                else f"{device.title}: compile only"
            )
            lines.append(f"device {device.name}: {state}")
        wanted = prefetch.plan(
            zoo.files({c.model.id: c.model for c in self.run.cases}.values()), self.run.cache
        )
        if wanted.missing and not self.run.offline:
            lines.append(f"models: {wanted}")
        return [*lines, f"artifacts: {self.run.settings.artifacts}"]

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Note the selected cases; each must be answered for."""
        self._select(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: list[str]) -> None:
        """The same under xdist, where only workers collect."""
        self._select(ids)

    def _select(self, node_ids: Any) -> None:
        done = {row["id"] for row in self.rows}
        for node_id in node_ids:
            case = self.by_name.get(_name_in(node_id))
            if case is not None and case.id not in done:
                self.waiting[case.id] = case

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the line of a case that ended, also of one whose worker died."""
        row = getattr(report, "onnx_models", None)
        if row is None and str(report.when) == "???":
            case = self.by_name.get(_name_in(report.nodeid))
            if case is not None:
                row = records.unfinished(case, Verdict.ERROR, "the pytest worker died; run it again alone")
        if row is None or self.waiting.pop(row["id"], None) is None:
            return
        self.rows.append(row)
        self.writer.add(row)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Write down what did not run, then the footer."""
        complete = not self.waiting
        for case in self.waiting.values():
            row = records.unfinished(case, Verdict.SKIPPED, "not run: the session ended before")
            self.rows.append(row)
            self.writer.add(row)
        self.waiting.clear()
        self.broken = health.broken_host(self.rows, share=self.config.option.mass_failure)
        if self.broken:
            self.rows = self.writer.retract(self.rows, self.broken)
            session.exitstatus = health.HOST_BROKEN
        self.writer.close(complete=complete, broken=self.broken)
        self._summarise()
        self.empty = not self.rows and not self.config.option.record and not self.config.option.shard
        if self.empty:  # a selection that nothing fits; only a part of a split is worth a record then
            self.writer.path.unlink(missing_ok=True)
        asked = self.config.option.update_expectations and not self.broken
        ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
        if asked and not self._update(complete) and ended:
            session.exitstatus = pytest.ExitCode.USAGE_ERROR

    def _summarise(self) -> None:
        """Add the run to the summary of the GitHub job that it is part of."""
        place = os.environ.get("GITHUB_STEP_SUMMARY")
        if not place:
            return
        try:
            text = report.run_markdown(runs.read(self.writer.path))
            with Path(place).open("a", encoding="utf-8") as file:
                file.write(f"\n{text}")
        except (SuiteError, OSError) as error:
            self.report.append(f"no summary in GITHUB_STEP_SUMMARY: {error}")

    def _update(self, complete: bool) -> bool:
        """Bring the expectations in line with the cases that ran, or say what would be written.

        Returns:
            Whether it could be done.
        """
        option = self.config.option
        try:
            found = update.update([(self.head, self.rows, complete)], option.expectations)
            self.report += found.contradictions
            if not found.changes:
                self.report.append("expectations: nothing to change")
            elif option.dry_run:
                text = update.diff(found.changes)
                place = self.writer.path.with_suffix(".diff")
                write_atomic(place, text)
                self.report += [*text.splitlines(), f"diff: {place} (nothing written)"]
            else:
                update.write(found.changes)
                self.report += [f"updated {change.file}" for change in found.changes]
        except (SuiteError, OSError) as error:
            self.report.append(f"expectations not updated: {error}")
            return False
        return True

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the funnel of each device, the verdicts, and where the record lies."""
        if self.rows:
            terminalreporter.section("ONNX models")
            for line in records.summary(self.rows, compile_only=self._compile_only()):
                terminalreporter.write_line(line)
        measured = latency.listed(self.rows)
        for case, iree, peer, ratio in measured[:LATENCIES]:
            terminalreporter.write_line(f"latency {case}: {iree}, onnxruntime {peer} (ratio {ratio})")
        if len(measured) > LATENCIES:
            terminalreporter.write_line(f"latency: {len(measured) - LATENCIES} more in the record")
        if self.broken:
            terminalreporter.write_line(self.broken, red=True, bold=True)
        for line in self.report:
            terminalreporter.write_line(line)
        if not self.empty:
            terminalreporter.write_line(f"record: {self.writer.path}")
        elif word := self.config.option.keyword:
            near = catalog.near(word, (case.model.id for case in self.run.cases))
            hint = f": there is {', '.join(near)}" if near else "; onnx-models list shows the models"
            terminalreporter.write_line(f"no case fits -k {word!r}{hint}")

    def _compile_only(self) -> frozenset[str]:
        return frozenset(d.name for d in self.run.devices if d.last_stage.value == "compile")


def _test_name(case: Case) -> str:
    """The test's name as pytest writes it: it escapes what is not printable ASCII."""
    escaped = case.id.encode("unicode_escape").decode("ascii")
    return f"test_model[{escaped}]"


def _name_in(node_id: str) -> str:
    """The test's name in a node id; a file name may hold '::' itself."""
    return node_id[node_id.find("::test_model[") + 2 :]
