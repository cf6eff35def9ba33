"""Whose commit a record tells."""

from __future__ import annotations

import subprocess
import sys
import types
from pathlib import Path

import pytest

from tcbench.hardware import machine


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=A", "-c", "user.email=a@example.com", "-c", "commit.gpgsign=false")
    command = ["git", "-C", str(folder), *identity, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A checkout with one commit."""
    git(tmp_path, "init", "-q")
    (tmp_path / "step.py").write_text("x = 1\n")
    git(tmp_path, "add", "step.py")
    git(tmp_path, "commit", "-q", "-m", "one")
    return tmp_path


def test_a_projects_commit_is_told_from_any_folder_in_it(project: Path) -> None:
    head = git(project, "rev-parse", "--short=12", "HEAD")
    (project / "deep" / "er").mkdir(parents=True)
    assert machine.project_commit(project) == head
    assert machine.project_commit(project / "deep" / "er") == head


def test_only_tracked_files_that_differ_are_marked(project: Path) -> None:
    (project / "new.py").write_text("")
    assert not str(machine.project_commit(project)).endswith("+")
    (project / "step.py").write_text("x = 2\n")
    (project / "deep").mkdir()
    assert str(machine.project_commit(project / "deep")).endswith("+")


def test_the_current_folder_is_meant_by_default(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    assert machine.environment("m", "d", (), "").project_commit == git(project, "rev-parse", "--short=12", "HEAD")


def test_there_is_none_outside_of_a_checkout_in_an_empty_one_and_in_tcbench_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "plain").mkdir()
    assert machine.project_commit(tmp_path / "plain") is None
    assert machine.project_commit(tmp_path / "nowhere") is None
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    assert machine.project_commit(tmp_path / "empty") is None
    assert machine.project_commit(Path(machine.__file__).parent) is None


def test_another_checkout_of_tcbench_is_no_project_either(project: Path) -> None:
    (project / "tcbench").mkdir()
    (project / "tcbench" / "__init__.py").write_text("")
    assert machine.project_commit(project) is None


def test_without_git_there_is_none(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert machine.project_commit(project) is None


def test_a_checkout_runs_no_program_of_its_own_when_it_is_asked_for_its_commit(tmp_path):
    (tmp_path / "watch.sh").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n", "utf-8")
    (tmp_path / "watch.sh").chmod(0o755)
    git(tmp_path, "init", "-q")
    git(tmp_path, "add", "watch.sh")
    git(tmp_path, "commit", "-qm", "first")
    git(tmp_path, "config", "core.fsmonitor", f"{tmp_path}/watch.sh")
    assert machine.project_commit(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_a_steps_code_is_what_is_loaded_of_the_working_folder_but_tcbench_and_environments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = ("my_step.py", "deep/er.py", "tcbench/step.py", ".venv/lib/python3.13/site-packages/a.py", "../b.py")
    for place in places:
        module = types.ModuleType(place)
        module.__file__ = str(tmp_path.joinpath(place).resolve())
        monkeypatch.setitem(sys.modules, place, module)
    assert machine.loaded_files() == ["deep/er.py", "my_step.py"]
