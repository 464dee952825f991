"""The GitHub workflows: least rights, pinned actions, nothing of a stranger in a shell, real commands."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from onnx_models.cli import main
from onnx_models.meta_tests.sandbox import PACKAGE, Sandbox
from onnx_models.outcomes import Kind, Stage

ROOT = PACKAGE.parent
GITHUB = ROOT / ".github"

pytestmark = pytest.mark.skipif(
    not GITHUB.is_dir(), reason="needs a checkout: the package is installed without one"
)

FILES = sorted((GITHUB / "workflows").glob("*.yml")) if GITHUB.is_dir() else []
NAMES = [file.name for file in FILES]


def load(file: Path) -> dict[Any, Any]:
    table: dict[Any, Any] = yaml.safe_load(file.read_text(encoding="utf-8"))
    return table


def triggers(workflow: dict[Any, Any]) -> dict[str, Any]:
    """YAML 1.1 reads the key `on` as true."""
    found = workflow[True]
    return found if isinstance(found, dict) else {found: None}


def jobs() -> Iterator[tuple[str, dict[str, Any]]]:
    for file in FILES:
        for name, job in load(file)["jobs"].items():
            yield f"{file.name}/{name}", job


def steps() -> Iterator[tuple[str, dict[str, Any]]]:
    for name, job in jobs():
        for index, step in enumerate(job.get("steps", ())):
            yield f"{name}[{index}]", step


def test_they_are_there() -> None:
    assert {"ci.yml", "conformance.yml", "dashboard.yml", "pr-comment.yml"} <= set(NAMES)


def test_actions_are_pinned_by_commit_with_their_version_beside_it() -> None:
    for file in FILES:
        uses = re.findall(r"uses: *(.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
        assert uses
        for line in uses:
            assert re.fullmatch(r"[\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+", line), (
                f"{file.name}: {line}"
            )


def test_one_action_has_one_commit() -> None:
    found: dict[str, set[str]] = {}
    for file in FILES:
        for action, commit in re.findall(r"uses: *(\S+)@(\S+ # \S+)", file.read_text(encoding="utf-8")):
            found.setdefault(action, set()).add(commit)
    assert {action: commits for action, commits in found.items() if len(commits) > 1} == {}


def test_rights_are_named_and_small() -> None:
    allowed = {
        "dashboard.yml/append": {"contents": "write", "actions": "read"},
        "dashboard.yml/publish": {"pages": "write", "id-token": "write"},
        "pr-comment.yml/compare": {"actions": "read", "contents": "read"},
        "pr-comment.yml/comment": {"pull-requests": "write"},
    }
    for file in FILES:
        assert load(file)["permissions"] in ({}, {"contents": "read"}), file.name
    for name, job in jobs():
        rights = job.get("permissions", {})
        assert rights == allowed.get(name, rights if rights in ({}, {"contents": "read"}) else None), name


def test_every_job_has_a_limit_in_minutes() -> None:
    assert [name for name, job in jobs() if not 0 < job.get("timeout-minutes", 0) <= 350] == []


def test_no_workflow_runs_a_strangers_code_with_rights() -> None:
    for file in FILES:
        workflow = load(file)
        assert "pull_request_target" not in triggers(workflow), file.name
        if "pull_request" in triggers(workflow):
            assert all("permissions" not in job for job in workflow["jobs"].values()), file.name
            assert workflow["permissions"] == {"contents": "read"}
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"secrets\.", text), file.name
        for name, step in steps():
            if name.startswith(file.name) and "actions/checkout@" in step.get("uses", ""):
                assert step["with"]["persist-credentials"] is False, name
                if "workflow_run" in triggers(workflow):
                    ref = step["with"].get("ref", "")
                    assert "workflow_run" not in ref, name


def test_no_expression_of_a_stranger_in_a_shell() -> None:
    for name, step in steps():
        for expression in re.findall(r"\$\{\{(.*?)\}\}", str(step.get("run", "")), re.DOTALL):
            pytest.fail(f"{name}: {expression.strip()}: pass it by env")


def test_the_comment_does_not_take_data_for_code() -> None:
    """What came from the pull request reaches no shell but as a file, and no job with rights at all."""
    workflow = load(GITHUB / "workflows" / "pr-comment.yml")
    writer = workflow["jobs"]["comment"]
    assert [s for s in writer["steps"] if "checkout" in s.get("uses", "")] == []
    downloads = [s["with"] for s in writer["steps"] if "download-artifact" in s.get("uses", "")]
    assert downloads == [{"name": "comment", "path": "comment"}]
    assert "run-id" not in str(downloads)
    reader = workflow["jobs"]["compare"]
    assert "write" not in str(reader["permissions"])


def used_commands() -> Iterator[tuple[str, list[str]]]:
    """Each call of the suite's programs in a workflow, in `.ci/run` and in the Makefile."""
    scripts = [(name, str(step["run"])) for name, step in steps() if "run" in step]
    scripts += [(".ci/run", (ROOT / ".ci" / "run").read_text(encoding="utf-8"))]
    scripts += [("Makefile", (ROOT / "Makefile").read_text(encoding="utf-8"))]
    for name, script in scripts:
        joined = re.sub(r"\\\n\s*", " ", script)
        for line in joined.splitlines():
            called = re.search(r"(?:\.venv/bin|\$\(BIN\))/(onnx-models|python -m pytest)\s+([^|>&;]*)", line)
            if called:
                words = [w.strip("\"'") for w in called[2].split()]
                yield f"{name}: {line.strip()}", [called[1], *words]


def test_the_calls_are_found() -> None:
    assert {words[1] for _, words in used_commands() if words[0] == "onnx-models"} >= {
        "merge",
        "report",
        "diff",
        "dashboard",
    }


def test_commands_and_options_exist() -> None:
    for place, words in used_commands():
        if words[0] != "onnx-models":
            continue
        command = main.commands.get(words[1])
        assert command is not None, place
        known = {
            option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)
        }
        assert {w.partition("=")[0] for w in words if re.match(r"--?[a-z]", w)} <= known, place


def test_pytest_options_exist() -> None:
    text = "\n".join(file.read_text(encoding="utf-8") for file in (*FILES, ROOT / ".ci" / "run"))
    added = set(re.findall(r"arguments\+?=\(([^)]*)\)", text)) | set(
        re.findall(r"devices\+?=\(([^)]*)\)", text)
    )
    used = {word for group in added for word in re.findall(r"--[a-z-]+", group)}
    assert {"--device", "--shard", "--record", "--iree", "--iree-bin", "--benchmark"} <= used
    ours = (PACKAGE / "plugin" / "options.py").read_text(encoding="utf-8")
    assert [option for option in sorted(used) if f'"{option}"' not in ours] == []


@pytest.mark.skipif(sys.platform != "linux", reason="its wheel is for Linux")
def test_actionlint_and_zizmor_pass() -> None:
    folder = Path(sys.executable).parent
    env = {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}
    for command in ("actionlint", "zizmor --offline .github/workflows"):
        argv = shlex.split(command)
        done = subprocess.run(
            [folder / argv[0], *argv[1:]], cwd=ROOT, env=env, capture_output=True, text=True, timeout=120
        )
        assert done.returncode == 0, done.stdout + done.stderr


# The scripts themselves --------------------------------------------------------------------------


def script_of(file: str, job: str, name: str) -> str:
    (step,) = [
        s
        for s in load(GITHUB / "workflows" / file)["jobs"][job]["steps"]
        if s.get("name", s.get("id")) == name
    ]
    return str(step["run"])


def planned(tmp_path: Path, **env: str) -> tuple[int, str, dict[str, str]]:
    output = tmp_path / "output"
    output.write_text("", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-c", script_of("conformance.yml", "plan", "plan")],
        env={**os.environ, "GITHUB_OUTPUT": str(output), "RUNNERS": "{}", "SHARDS": "2"} | env,
        capture_output=True,
        text=True,
        timeout=60,
    )
    rows = [line.partition("=")[::2] for line in output.read_text(encoding="utf-8").splitlines()]
    return done.returncode, done.stdout, dict(rows)


def test_the_plan_has_each_part_of_each_device(tmp_path: Path) -> None:
    runners = '{"vulkan": ["self-hosted", "gpu"]}'
    code, _, found = planned(tmp_path, DEVICES='["cpu", "vulkan"]', RUNNERS=runners)
    rows = yaml.safe_load(found["matrix"])["include"]
    assert code == 0
    assert found["count"] == "4"
    assert [(r["device"], r["part"], r["shards"]) for r in rows] == [
        ("cpu", 1, 2),
        ("cpu", 2, 2),
        ("vulkan", 1, 2),
        ("vulkan", 2, 2),
    ]
    assert [r["runner"] for r in rows] == ["ubuntu-24.04"] * 2 + [["self-hosted", "gpu"]] * 2


@pytest.mark.parametrize(
    "env",
    [
        {"DEVICES": "cpu"},
        {"DEVICES": "[]"},
        {"DEVICES": '"cpu"'},
        {"DEVICES": '["cpu", "cpu"]'},
        {"DEVICES": '["$(id)"]'},
        {"DEVICES": '["cpu\\ncount=9"]'},
        {"DEVICES": '["cpu"]', "SHARDS": "0"},
        {"DEVICES": '["cpu"]', "SHARDS": "51"},
        {"DEVICES": '["cpu"]', "SHARDS": "many"},
        {"DEVICES": '["cpu"]', "RUNNERS": "[]"},
        {"DEVICES": '["cpu"]', "RUNNERS": '{"cuda": "gpu"}'},
    ],
)
def test_a_wrong_plan_is_refused_in_one_line(tmp_path: Path, env: dict[str, str]) -> None:
    code, said, found = planned(tmp_path, **env)
    assert code == 1
    assert said.startswith("::error::")
    assert said.count("\n") == 1
    assert found == {}


def shell(script: str, folder: Path, tools: dict[str, str], **env: str) -> subprocess.CompletedProcess[str]:
    """Run a step's script as a runner does, with stand-ins for the programs it calls."""
    for place, text in tools.items():
        file = folder / place
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"#!/bin/bash\n{text}\n", encoding="utf-8")
        file.chmod(0o755)
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    known = {"GITHUB_OUTPUT": str(folder / "output"), "GITHUB_STEP_SUMMARY": str(folder / "summary")}
    known |= {"GITHUB_REPOSITORY": "owner/name", "GITHUB_SERVER_URL": "https://example.invalid"}
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script],
        cwd=folder,
        env={**os.environ, "PATH": path, **known, **env},
        capture_output=True,
        text=True,
        timeout=60,
    )


RUN = {"DEVICE": "cpu", "PART": "1", "SHARDS": "2", "COLLECTIONS": "", "MEASURE": "false", "IREE": ""}
RUN |= {"IREE_ARTIFACT": "", "IREE_FOLDER": ""}


@pytest.mark.parametrize(
    ("env", "wanted"),
    [
        ({}, ["--device", "cpu", "--shard", "1/2"]),
        ({"IREE": "nightly"}, ["--iree", "nightly"]),
        ({"IREE": "3.9.0; id"}, ["--iree", "3.9.0; id"]),
        ({"IREE": "3.9.0", "IREE_FOLDER": "/opt/iree/bin"}, ["--iree-bin", "/opt/iree/bin"]),
        ({"COLLECTIONS": "zoo wheels"}, ["--collection", "zoo", "--collection", "wheels"]),
        ({"MEASURE": "true"}, ["--benchmark"]),
        ({"IREE_ARTIFACT": "build"}, ["--iree-bin", ".iree-build/bin"]),
    ],
)
def test_the_run_gets_its_inputs_as_words(tmp_path: Path, env: dict[str, str], wanted: list[str]) -> None:
    tools = {".venv/bin/python": 'printf "%s\\n" "$@"', ".iree-build/bin/iree-compile": ""}
    done = shell(script_of("conformance.yml", "run", "Run the models"), tmp_path, tools, **(RUN | env))
    assert done.returncode == 0, done.stderr
    words = done.stdout.splitlines()
    assert any(words[k : k + len(wanted)] == wanted for k in range(len(words))), words
    assert ("--iree" in words) == (wanted[0] == "--iree")


@pytest.mark.parametrize(("code", "ends"), [(0, 0), (1, 0), (2, 2), (3, 3), (4, 4), (5, 0), (70, 70)])
def test_only_a_result_ends_a_shard_in_green(tmp_path: Path, code: int, ends: int) -> None:
    tools = {".venv/bin/python": f"exit {code}"}
    done = shell(script_of("conformance.yml", "run", "Run the models"), tmp_path, tools, **RUN)
    assert done.returncode == ends


@pytest.mark.parametrize(
    ("count", "strict", "whole"), [("2", 0, "true"), ("3", 0, "false"), ("2", 1, "false")]
)
def test_a_lost_shard_is_no_whole_run(tmp_path: Path, count: str, strict: int, whole: str) -> None:
    (tmp_path / "record").mkdir()
    for name in ("cpu-1.jsonl", "cpu-2.jsonl"):
        (tmp_path / "record" / name).write_text("", encoding="utf-8")
    tool = f'echo "$@" >> calls; case "$*" in *--allow-incomplete*) exit 0;; *) exit {strict};; esac'
    script = script_of("conformance.yml", "merge", "Merge the records")
    done = shell(script, tmp_path, {".venv/bin/onnx-models": tool}, COUNT=count)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "output").read_text(encoding="utf-8") == f"whole={whole}\n"
    calls = (tmp_path / "calls").read_text(encoding="utf-8")
    assert ("--allow-incomplete" in calls) == (whole == "false")


@pytest.mark.parametrize(("whole", "code", "ends"), [("true", 0, 0), ("true", 1, 1), ("false", 0, 1)])
def test_the_report_decides(tmp_path: Path, whole: str, code: int, ends: int) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a.jsonl.gz").write_bytes(b"")
    tool = {".venv/bin/onnx-models": f"echo report; exit {code}"}
    done = shell(
        script_of("conformance.yml", "merge", "Report"), tmp_path, tool, WHOLE=whole, FAIL_ON="regressed"
    )
    assert done.returncode == ends
    assert (tmp_path / "summary").read_text(encoding="utf-8") == "report\n"


def test_a_run_is_appended_once(tmp_path: Path) -> None:
    """With a real git, and a repository that has no branch `runs` yet."""
    origin = tmp_path / "origin.git"
    subprocess.run(["git", "init", "--quiet", "--bare", str(origin)], check=True)
    (tmp_path / "fetched").mkdir()
    (tmp_path / "fetched" / "one.jsonl.gz").write_bytes(b"first")
    tools = {".venv/bin/onnx-models": "cp fetched/*.jsonl.gz history/runs/", "bin/gh": "exit 0"}
    env = {"GITHUB_SERVER_URL": f"file://{tmp_path}", "GITHUB_REPOSITORY": "origin.git"}
    script = script_of("dashboard.yml", "append", "Append it")
    for name in ("one", "one", "two"):
        (next((tmp_path / "fetched").iterdir())).rename(tmp_path / "fetched" / f"{name}.jsonl.gz")
        done = shell(script, tmp_path, tools, **env)
        assert done.returncode == 0, done.stdout + done.stderr
    archive = tmp_path / "runs.tar"
    subprocess.run(["git", "-C", str(origin), "archive", "-o", str(archive), "runs"], check=True)
    with tarfile.open(archive) as tar:
        assert sorted(tar.getnames()) == ["runs", "runs/one.jsonl.gz", "runs/two.jsonl.gz"]
    log = subprocess.run(
        ["git", "-C", str(origin), "log", "--format=%an", "runs"], check=True, capture_output=True, text=True
    )
    assert log.stdout.split() == ["github-actions[bot]"] * 2


@pytest.mark.parametrize(
    ("text", "sha", "mine", "code", "posted"),
    [
        (
            "good",
            "abc",
            "",
            0,
            "--method POST repos/owner/name/issues/7/comments -F body=@comment/comment.md",
        ),
        ("good", "abc", "31", 0, "--method PATCH repos/owner/name/issues/comments/31"),
        ("good", "def", "", 0, ""),
        ("bad", "abc", "", 1, ""),
        ("long", "abc", "", 1, ""),
    ],
)
def test_a_comment_is_checked_and_goes_to_its_own_pull_request(
    tmp_path: Path, text: str, sha: str, mine: str, code: int, posted: str
) -> None:
    mark = "<!-- onnx-models: what this pull request changes -->"
    texts = {"good": f"{mark}\nfine", "bad": f"hello\n{mark}", "long": f"{mark}\n" + "x" * 70000}
    (tmp_path / "comment").mkdir()
    (tmp_path / "comment" / "comment.md").write_text(texts[text], encoding="utf-8")
    env = {"HEAD_OWNER": "fork", "HEAD_BRANCH": "$(id) `id`", "HEAD_SHA": sha, "MINE": mine}
    script = script_of("pr-comment.yml", "comment", "Write the comment, or write it again")
    gh = (
        'echo "$@" >> gh-calls\ncase "$*" in\n'
        '  *owner/name/pulls*) if [ "$HEAD_SHA" = abc ]; then echo 7; fi;;\n'
        '  *--paginate*) if [ -n "$MINE" ]; then echo "$MINE"; fi;;\nesac'
    )
    done = shell(script, tmp_path, {"bin/gh": gh}, **env)
    assert done.returncode == code, done.stdout + done.stderr
    calls = tmp_path / "gh-calls"
    said = calls.read_text(encoding="utf-8") if calls.exists() else ""
    written = [line for line in said.splitlines() if "PATCH" in line or "POST" in line]
    assert len(written) == bool(posted), said
    if posted:
        assert posted in written[0]
    if code == 0:
        assert "head=fork:$(id) `id`" in said


@pytest.mark.parametrize(
    ("size", "base", "fetched"),
    [("1000", "5", True), ("0", "5", False), ("20000001", "5", False), ("1000", "", False)],
)
def test_a_record_is_fetched_only_when_it_is_small(
    tmp_path: Path, size: str, base: str, fetched: bool
) -> None:
    gh = f"""
echo "$@" >> gh-calls
case "$*" in
  *artifacts*) echo {size};;
  *"run list"*) echo "{base}";;
esac"""
    script = script_of(
        "pr-comment.yml", "compare", "Fetch the records of the pull request and of the default branch"
    )
    env = {"RUN_ID": "9", "DEFAULT_BRANCH": "main", "RECORD": "runs-python3.11"}
    done = shell(script, tmp_path, {"bin/gh": gh}, **env)
    assert done.returncode == 0, done.stderr
    assert ("run download 9" in (tmp_path / "gh-calls").read_text(encoding="utf-8")) == fetched
    output = tmp_path / "output"
    assert (output.exists() and output.read_text(encoding="utf-8") == "fetched=true\n") == fetched


def compared(tmp_path: Path, tool: str) -> tuple[int, str, str]:
    script = script_of("pr-comment.yml", "compare", "Compare them")
    done = shell(script, tmp_path, {".venv/bin/onnx-models": tool})
    comment = tmp_path / "comment" / "comment.md"
    output = tmp_path / "output"
    made = output.read_text(encoding="utf-8") if output.exists() else ""
    return done.returncode, made, comment.read_text(encoding="utf-8") if comment.exists() else ""


@pytest.mark.parametrize("hostile", ["link", "large", "none", "folder"])
def test_what_is_no_plain_record_is_not_compared(tmp_path: Path, hostile: str) -> None:
    for folder in ("base", "head"):
        (tmp_path / folder).mkdir()
    (tmp_path / "base" / "a.jsonl").write_text("{}", encoding="utf-8")
    place = tmp_path / "head" / "a.jsonl"
    if hostile == "link":
        place.symlink_to("/etc/hostname")
    elif hostile == "folder":
        place.mkdir()
    elif hostile == "large":
        with place.open("wb") as file:
            file.truncate(60_000_000)
    assert compared(tmp_path, "echo never") == (0, "", "")


def test_a_hostile_record_becomes_text_or_nothing(sandbox: Sandbox, tmp_path: Path) -> None:
    """With the real command: a stranger's words in a record are no markup, and garbage is refused."""
    work = tmp_path / "work"
    for name in ("base", "head"):
        (work / name).mkdir(parents=True)
    said = "error: <img src=x> @everyone [click](https://example.invalid) `$(id)`"
    sandbox.run("--model", "tiny.onnx", "--record", work / "base" / "a.jsonl")
    sandbox.tools(compiler=f"exit 1 {said}")
    sandbox.run("--model", "tiny.onnx", "--record", work / "head" / "a.jsonl")
    tool = f'exec {shlex.quote(sys.executable)} -m onnx_models "$@"'
    code, made, comment = compared(work, tool)
    assert (code, made) == (0, "made=true\n")
    assert comment.startswith("<!-- onnx-models: what this pull request changes -->\n")
    assert "img src=x" in comment
    assert not re.search(r"<img|@everyone|\]\(https|`\$", comment)
    shutil.rmtree(work / "comment")
    (work / "output").unlink()
    (work / "head" / "a.jsonl").write_text("garbage", encoding="utf-8")
    code, made, _ = compared(work, tool)
    assert code != 0
    assert made == ""


# The issue form ----------------------------------------------------------------------------------


def form() -> dict[str, dict[str, Any]]:
    table = load(GITHUB / "ISSUE_TEMPLATE" / "conformance-failure.yml")
    return {field["id"]: field for field in table["body"] if "id" in field}


def test_the_issue_form_asks_for_what_a_failing_case_prints(sandbox: Sandbox) -> None:
    sandbox.tools(compiler="exit 1 model.mlir:1:1: error: failed to legalize operation 'x'")
    ended = sandbox.run("--model", "tiny.onnx")
    printed = set(re.findall(r"^E? *(\w+) {2,}\S", ended.output, re.MULTILINE)) & {
        "stage", "kind", "error", "fault", "repeat", "log", "note"
    }  # fmt: skip
    assert {"stage", "kind", "error", "fault", "repeat", "log", "note"} == printed
    assert printed <= set(form())
    assert "[[case]]" in ended.output
    assert form()["list"]["attributes"]["render"] == "toml"


def test_its_choices_are_the_suites_words() -> None:
    assert form()["stage"]["attributes"]["options"] == [stage.value for stage in Stage]
    assert form()["kind"]["attributes"]["options"] == [kind.value for kind in Kind]
