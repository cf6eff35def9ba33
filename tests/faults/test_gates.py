"""Gates that are killed, that begin together, and that run in hostile or odd repositories: as a user meets them."""

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import projects
import pytest
from projects import commit, git

from tcbench.core import store

pytestmark = pytest.mark.faults

GATE = ("gate", "./my_step.toml", "--config", "deep", "--looks", "2", "--max-time", "0.2", "--threshold", "90%")
GATE += ("--lenient",)  # three gates at a time: two trials of each may settle nothing
KILLS = 20


@pytest.fixture
def project(tmp_path, monkeypatch):
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path / "cache"))
    return projects.make(tmp_path / "mine")


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tcbench", *GATE, *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def gate(folder: Path, *arguments: str) -> tuple[int, str]:
    process = start(folder, *arguments)
    output, errors = process.communicate(timeout=600)
    return process.returncode, output + errors


def left_runs(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "cache/gate").glob("run-*"))


def test_a_gate_that_is_killed_at_any_moment_leaves_nothing_that_the_next_does_not_remove(project, tmp_path):
    commit(project, pyproject__toml='[project]\nname = "mine"\nversion = "1"\n')
    setup = f"mkdir -p .venv/bin && cp {projects.interpreter(tmp_path / 'python')} .venv/bin"
    before = {path: path.read_bytes() for path in (project / ".git").rglob("*") if path.is_file()}
    moment = random.Random(14)
    for _ in range(KILLS):
        process = start(project, "--base", "HEAD", "--setup", setup)
        time.sleep(moment.uniform(0.1, 8))
        process.send_signal(signal.SIGKILL)
        process.communicate()
        assert len(left_runs(tmp_path)) <= 1
    assert {path: path.read_bytes() for path in (project / ".git").rglob("*") if path.is_file()} == before
    code, output = gate(project, "--base", "HEAD", "--setup", setup)
    assert (code, left_runs(tmp_path)) == (0, []), output


def test_gates_that_begin_together_keep_all_of_their_records(project, tmp_path):
    for _ in range(3):
        started = [start(project, "--base", "HEAD") for _ in range(3)]
        for process in started:
            output, errors = process.communicate(timeout=600)
            assert process.returncode == 0, output + errors
    files = list(project.glob("results/*/gate-*.jsonl"))
    assert len(files) == 18
    assert all(len(store.read([path]).records) == 2 for path in files)
    assert left_runs(tmp_path) == []


def test_a_gate_in_a_hostile_repository_runs_nothing_but_the_step_and_the_setup(project, tmp_path):
    (tmp_path / "ran").mkdir()
    commit(project, **{".gitattributes": "* filter=evil diff=evil\n"})
    for name in ("filter.evil.clean", "filter.evil.smudge", "core.fsmonitor", "diff.external", "core.pager"):
        git(project, "config", name, f"touch {tmp_path}/ran/{name}; cat")
    for hook in ("post-checkout", "post-index-change", "reference-transaction"):
        projects.interpreter(project / ".git/hooks" / hook, f"touch {tmp_path}/ran/{hook}", "true")
    for file in project.glob("*.*"):
        os.utime(file, (1, 1))
    code, output = gate(project, "--base", "HEAD")
    assert code == 0, output
    assert list((tmp_path / "ran").iterdir()) == []


def test_odd_repositories_are_gated_or_refused_in_one_line(project, tmp_path):
    git(tmp_path, "clone", "--quiet", "--bare", str(project), "bare.git")
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{project}", "shallow")
    git(project, "worktree", "add", "--quiet", "--detach", str(tmp_path / "second"))
    git(tmp_path, "init", "--quiet", "empty")
    odd = projects.make(tmp_path / "with space\nand newline" / os.fsdecode(b"\xff"))
    for folder in (tmp_path / "bare.git", tmp_path / "empty"):
        for name in ("my_step.py", "my_step.toml"):
            (folder / name).write_text((project / name).read_text())
    for folder, expected in (
        (tmp_path / "bare.git", "is in no working tree of git's"),
        (tmp_path / "empty", "no such commit in"),
        (tmp_path / "shallow", None),
        (tmp_path / "second", None),
        (odd, None),
    ):
        code, output = gate(folder, "--base", "HEAD")
        if expected is None:
            assert code == 0, output
        else:
            assert (code, output.count("\n")) == (2, 1), output
            assert expected in output
        assert "Traceback" not in output
