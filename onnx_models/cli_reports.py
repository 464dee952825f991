"""The commands about finished runs: merge, report, diff."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import click
from packaging.version import InvalidVersion

from onnx_models import difference, difference_report, junit, report, runs
from onnx_models.files import write_atomic
from onnx_models.merge import WITHIN, merge
from onnx_models.outcomes import SuiteError, UsageError, Verdict
from onnx_models.record_lines import brief
from onnx_models.runs import RunFile
from onnx_models.versions import release_name, version_key

_PATH = click.Path(path_type=Path)
_INCOMPLETE = click.option(
    "--allow-incomplete", is_flag=True, help="take runs that were cut off, and sets of shards with gaps"
)


@click.command("merge")
@click.argument("parts", nargs=-1, type=_PATH, metavar="RECORD...")
@click.option(
    "-o", "--output", "folder", type=_PATH, required=True, metavar="RUNS_DIR", help="folder of runs"
)
@_INCOMPLETE
@click.option(
    "--prefer-last", is_flag=True, help="of a case in several records, take the one that began last"
)
@click.option(
    "--within",
    type=click.IntRange(0, 10_000),
    default=WITHIN.days,
    show_default=True,
    metavar="DAYS",
    help="refuse records that began further apart",
)
def merge_command(
    parts: tuple[Path, ...], folder: Path, allow_incomplete: bool, prefer_last: bool, within: int
) -> None:
    """Make one run of the RECORDs of its shards, and put it into RUNS_DIR for good."""
    if not parts:
        raise UsageError("no record named: give the .jsonl files of the run's shards")
    found = [runs.read(path, allow_incomplete=allow_incomplete) for path in parts]
    merged = merge(
        found,
        allow_incomplete=allow_incomplete,
        prefer_last=prefer_last,
        within=timedelta(days=within),
    )
    for line in merged.missing:
        click.echo(line, err=True)
    click.echo(runs.write(merged.run, folder))


@click.command("report")
@click.argument("record")
@click.option("--markdown", "form", flag_value="markdown", help="for a job's summary (the default)")
@click.option("--json", "form", flag_value="json", help="the funnel and the states per device")
@click.option("--base", metavar="RUN", help="an older run to compare with, as for diff")
@click.option("--junit", "xml", type=_PATH, metavar="FILE", help="also write JUnit XML")
@click.option("--fail-on", metavar="VERDICT,...", help="exit with 1 when a case has one of these verdicts")
@_INCOMPLETE
def report_command(
    record: str,
    form: str | None,
    base: str | None,
    xml: Path | None,
    fail_on: str | None,
    allow_incomplete: bool,
) -> None:
    """Print a RECORD for people: what passes, what does not, what changed."""
    policy = words(fail_on, [*(verdict.value for verdict in Verdict), report.INCOMPLETE])
    run = find(record, allow_incomplete=allow_incomplete)
    against = difference.differ(find(base), run) if base else None
    if xml is not None:
        _save(xml, junit.of_run(run))
    if form == "json":
        click.echo(json.dumps(report.as_json(run), indent=1))
    else:
        click.echo(report.run_markdown(run, against), nl=False)
    met = report.fail_on(policy, run)
    if met:
        click.echo(f"--fail-on {fail_on}: {len(met)}, the first is {brief(met[0])}", err=True)
        raise click.exceptions.Exit(1)


def _save(place: Path, content: str) -> None:
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(place, content)
    except OSError as error:
        raise SuiteError(f"{place}: cannot be written ({error.strerror}); name another file") from None


@click.command("diff")
@click.argument("base")
@click.argument("head")
@click.option("--markdown", "form", flag_value="markdown", help="a comment for a pull request")
@click.option("--json", "form", flag_value="json", help="every change as data")
@click.option(
    "--fail-on", metavar="KIND,...", help=f"exit with 1 on a change of one of {', '.join(difference.POLICY)}"
)
def diff_command(base: str, head: str, form: str | None, fail_on: str | None) -> None:
    """Say what changed from BASE to HEAD, and why.

    Each is a record, or RUNS_DIR@RELEASE or RUNS_DIR@RUN for the newest such run in a folder.
    """
    policy = words(fail_on, list(difference.POLICY))
    found = difference.differ(find(base), find(head))
    if form == "markdown":
        click.echo(difference_report.as_markdown(found), nl=False)
    elif form == "json":
        click.echo(json.dumps(difference_report.as_json(found), indent=1, ensure_ascii=False))
    else:
        click.echo("\n".join(difference_report.as_text(found)))
    if found.violates(policy):
        raise click.exceptions.Exit(1)


def words(given: str | None, known: Sequence[str]) -> tuple[str, ...]:
    """The words of a `--fail-on`.

    Raises:
        UsageError: one is not known.
    """
    found = tuple(word.strip() for word in (given or "").split(",") if word.strip())
    wrong = next((word for word in found if word not in known), None)
    if wrong is not None:
        raise UsageError(f"--fail-on {wrong!r}: choose from {', '.join(known)}")
    return found


def find(name: str, *, allow_incomplete: bool = False) -> RunFile:
    """A run by its file, or by FOLDER@RELEASE or FOLDER@RUN, the one that began last.

    Raises:
        UsageError: there is none, or it is no whole record. A gate must not take that for a regression.
    """
    try:
        return _find(name, allow_incomplete=allow_incomplete)
    except SuiteError as error:
        raise UsageError(str(error)) from None


def _find(name: str, *, allow_incomplete: bool) -> RunFile:
    path = Path(name)
    if path.is_file() or "@" not in name:
        return runs.read(path, allow_incomplete=allow_incomplete)
    folder, _, wanted = name.rpartition("@")
    with suppress(InvalidVersion):
        wanted = release_name(wanted)
    headers = {file: runs.header_of(file) for file in runs.files(Path(folder))}
    fits = [
        (header["started"], str(file), file)
        for file, header in headers.items()
        if wanted in (header["release"], header["iree"], header["run"])
    ]
    if not fits:
        there = sorted({str(header["release"]) for header in headers.values()}, key=version_key, reverse=True)
        some = f"the newest {len(there[:5])} of {len(there)} releases are {', '.join(there[:5])}"
        raise SuiteError(
            brief(f"{folder}: no run of {wanted!r}: {some if there else 'the folder has none'}", 600)
        )
    return runs.read(max(fits)[2], allow_incomplete=allow_incomplete)
