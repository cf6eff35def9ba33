"""The commits that a record contains."""

import sys
import types
from pathlib import Path

import projects
import pytest
from projects import git

from tcbench.hardware import machine


@pytest.fixture
def project(tmp_path):
    return projects.make(tmp_path / "mine")


def test_a_projects_commit_is_told_from_any_folder_in_it_and_marked_where_tracked_files_differ(project, monkeypatch):
    head = git(project, "rev-parse", "--short=12", "HEAD")
    (project / "deep" / "er").mkdir(parents=True)
    (project / "new.py").write_text("")
    assert machine.project_commit(project) == machine.project_commit(project / "deep" / "er") == head
    monkeypatch.chdir(project)
    assert machine.environment((), machine="m", device_name="d", blas="").project_commit == head
    (project / "my_step.py").write_text("x = 2\n")
    assert machine.project_commit(project / "deep") == f"{head}+"


def test_there_is_none_outside_of_a_checkout_in_an_empty_one_in_tcbench_and_without_git(tmp_path, project, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path))
    (tmp_path / "plain").mkdir()
    (tmp_path / "empty").mkdir()
    git(tmp_path / "empty", "init", "-q")
    for folder in (tmp_path / "plain", tmp_path / "nowhere", tmp_path / "empty", Path(machine.__file__).parent):
        assert machine.project_commit(folder) is None
    (project / "tcbench").mkdir()
    (project / "tcbench" / "__init__.py").write_text("")
    assert machine.project_commit(project) is None  # another checkout of tcbench
    (project / "tcbench" / "__init__.py").unlink()
    assert machine.project_commit(project)
    monkeypatch.setenv("PATH", "")
    assert machine.project_commit(project) is None


def test_a_steps_code_is_what_is_loaded_of_the_working_folder_but_tcbench_and_environments(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    places = ("my_step.py", "deep/er.py", "tcbench/step.py", ".venv/lib/python3.13/site-packages/a.py", "../b.py")
    for place in places:
        module = types.ModuleType(place)
        module.__file__ = str(tmp_path.joinpath(place).resolve())
        monkeypatch.setitem(sys.modules, place, module)
    assert machine.loaded_files() == ["deep/er.py", "my_step.py"]
