"""Worktrees of a real git repository: made once, taken again, never at the expense of the user's checkout."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from pathlib import Path

import projects
import pytest
from projects import commit, git

from tcbench import revisions
from tcbench.errors import SideError

PYPROJECT = '[project]\nname = "mine"\nversion = "1"\n'
MAKES_PYTHON = f"mkdir -p .venv/bin; echo x >> ran; ln -sf {sys.executable} .venv/bin/python"


@pytest.fixture
def repository(tmp_path):
    return projects.make(tmp_path / "mine")


@pytest.fixture
def project(repository, tmp_path):
    return revisions.project(repository, tmp_path / "cache")


@contextlib.contextmanager
def tree(project, revision="HEAD", setup=None, said=None):
    commit_id = revisions.commit(project, "--base", revision)
    with revisions.worktree(project, commit_id, setup, (said if said is not None else []).append) as found:
        yield found


def test_a_worktree_is_made_once_and_taken_again(project, repository):
    said = []
    with tree(project, said=said) as found:
        assert (found.folder / "my_step.py").read_text() == projects.STEP
        assert found.python == sys.executable
        assert found.top == project.worktrees / git(repository, "rev-parse", "HEAD")
        (found.top / "left.txt").touch()
    assert [line.split(" at ")[0] for line in said] == [f"checking out {found.top.name[:12]}"]
    with tree(project, said=said) as again:
        assert again == found
        assert (again.top / "left.txt").exists()
    assert len(said) == 1


def test_the_users_checkout_stays_as_it_is(project, repository):
    (repository / "my_step.py").write_text(projects.planted(2))
    (repository / "new.py").touch()
    before = git(repository, "status", "--porcelain"), git(repository, "rev-parse", "HEAD")
    hook = repository / ".git/hooks/post-checkout"
    projects.interpreter(hook, f"touch {repository}/hooked", "true")
    with tree(project) as found:
        assert "PLANTED_S = 0.0" in (found.folder / "my_step.py").read_text()
    assert (git(repository, "status", "--porcelain"), git(repository, "rev-parse", "HEAD")) == before
    assert project.here == git(repository, "rev-parse", "--short=12", "HEAD") + "+"


def test_it_works_from_within_a_hook(project, repository, monkeypatch, tmp_path):
    projects.make(tmp_path / "other")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "other/.git/index"))
    assert revisions.project(repository, tmp_path / "cache") == project
    with tree(project) as found:
        assert found.top.name == git(repository, "rev-parse", "HEAD")


def test_two_users_of_one_worktree_do_not_wait_for_each_other(project):
    with tree(project) as one, tree(project) as other:
        assert one == other


@pytest.mark.parametrize("revision", ["nope", "", "--help", "-x", "HEAD:my_step.py", "HEAD~7"])
def test_an_unknown_revision_is_one_line(project, revision):
    expected = r"^--current '.*': no such revision in .*/mine; expected a branch, a tag or a commit$"
    with pytest.raises(SideError, match=expected):
        revisions.commit(project, "--current", revision)


def test_a_shallow_clone_is_told_as_such(repository, tmp_path):
    commit(repository, other__txt="x")
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", "shallow")
    shallow = revisions.project(tmp_path / "shallow", tmp_path / "cache")
    with pytest.raises(SideError, match=r"this clone is shallow: `git fetch --unshallow` brings the rest"):
        revisions.commit(shallow, "--base", "HEAD~1")


def test_outside_of_a_repository_there_are_no_revisions(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(SideError, match=r"is in no git repository.*--base-python PYTHON$"):
        revisions.project(tmp_path, tmp_path / "cache")


def test_without_git_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SideError, match="git cannot be started"):
        revisions.project(tmp_path, tmp_path / "cache")


def test_a_worktree_that_somebody_changed_is_not_taken(project):
    with tree(project) as found:
        (found.folder / "my_step.py").write_text("changed")
    with pytest.raises(SideError, match=r"were changed since it was made; remove it.*worktree remove --force") as error:
        tree(project).__enter__()
    command = str(error.value).rpartition("anew: ")[2].split()
    git(Path(command[2]), *command[3:])
    with tree(project) as found:
        assert (found.folder / "my_step.py").read_text() == projects.STEP


@pytest.mark.parametrize("lost", ["whole", "marker", "git"])
def test_a_worktree_that_is_half_there_is_made_anew(project, lost):
    with tree(project) as found:
        pass
    {
        "whole": lambda: shutil.rmtree(found.top),
        "marker": lambda: found.top.with_suffix(".ready").unlink(),
        "git": lambda: (found.top / ".git").unlink(),
    }[lost]()
    (found.folder / "my_step.py").unlink(missing_ok=True)
    with tree(project) as again:
        assert (again.folder / "my_step.py").exists()


def test_a_cache_that_cannot_be_written_is_one_line(repository, tmp_path):
    (tmp_path / "file").touch()
    blocked = revisions.project(repository, tmp_path / "file/cache")
    with pytest.raises(SideError, match=r"cannot be written .*; TCBENCH_CACHE names another"):
        tree(blocked).__enter__()


# ------------------------------------------------------------------------------------------------------ environments


def test_a_project_gets_an_environment_once(project, repository):
    commit(repository, pyproject__toml=PYPROJECT)
    said = []
    for _ in range(2):
        with tree(project, setup=MAKES_PYTHON, said=said) as found:
            assert found.python == f"{found.top}/.venv/bin/python"
    assert (found.top / "ran").read_text() == "x\n"
    assert said[1:] == [f"{found.top.name[:12]}: {MAKES_PYTHON}"]
    with tree(project, setup=f"{MAKES_PYTHON}; true"):
        assert (found.top / "ran").read_text() == "x\nx\n"


def test_the_default_command_is_uvs_and_sees_nothing_of_the_users_environment(
    project, repository, tmp_path, monkeypatch
):
    commit(repository, pyproject__toml=PYPROJECT)
    body = f'env > env; echo "$@" > words; echo changed >> my_step.py; {MAKES_PYTHON}'
    projects.interpreter(tmp_path / "bin/uv", body, "true")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", "/mine")
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", "/mine")
    for _ in range(2):  # a lock file that the command brings up to date is no change of somebody's
        with tree(project) as found:
            assert (found.top / "words").read_text() == "sync --quiet\n"
    assert "/mine" not in [line.partition("=")[2] for line in (found.top / "env").read_text().splitlines()]


def test_a_command_that_fails_is_one_line_with_the_end_of_what_it_said(project, repository):
    commit(repository, pyproject__toml=PYPROJECT)
    fails = "echo much; echo more; echo; echo the reason >&2; exit 3"
    for _ in range(2):
        with pytest.raises(
            SideError, match=r"failed in .* with exit code 3: much \| more \| the reason \(all of it: /"
        ):
            tree(project, setup=fails).__enter__()
    with tree(project, setup=MAKES_PYTHON) as found:
        assert found.python.endswith(".venv/bin/python")


def test_what_a_failed_command_left_is_not_taken_for_an_earlier_ones_work(project, repository):
    commit(repository, pyproject__toml=PYPROJECT)
    with tree(project, setup=MAKES_PYTHON) as found:
        pass
    with pytest.raises(SideError, match="with exit code 1: no output"):
        tree(project, setup="touch half; false").__enter__()
    with tree(project, setup=MAKES_PYTHON):
        assert not (found.top / "half").exists()
        assert (found.top / "ran").read_text() == "x\n"


def test_a_command_that_makes_no_environment_is_one_line(project, repository):
    commit(repository, pyproject__toml=PYPROJECT)
    with pytest.raises(SideError, match=r"left no \.venv/bin/python in"):
        tree(project, setup="true").__enter__()


def test_no_environment_where_none_is_wanted_or_described(project, repository):
    commit(repository, pyproject__toml="[tool.ruff]\nline-length = 120\n")
    with tree(project) as found:
        assert found.python == sys.executable
    commit(repository, pyproject__toml=PYPROJECT)
    with tree(project, setup="") as found:
        assert found.python == sys.executable


def test_the_nearest_project_counts_and_the_folder_is_the_users(repository, tmp_path):
    (repository / "inner/deep").mkdir(parents=True)
    (repository / "inner/deep/file").touch()
    (repository / "inner/pyproject.toml").write_text(PYPROJECT)
    commit(repository)
    deep = revisions.project(repository / "inner/deep", tmp_path / "cache")
    with tree(deep, setup=MAKES_PYTHON) as found:
        assert found.folder == found.top / "inner/deep"
        assert found.python == f"{found.top}/inner/.venv/bin/python"
    with pytest.raises(SideError, match=r"has no folder inner/deep; start the gate where both revisions have one"):
        tree(deep, "HEAD~1").__enter__()


def test_python_path_follows_into_the_worktree(project, repository, tmp_path):
    value = f"{repository}/src:{tmp_path}/lib:relative:{repository}"
    assert revisions.moved_path(project, Path("/top"), value) == f"/top/src:{tmp_path}/lib:relative:/top"


# --------------------------------------------------------------------------------------------------------- cleaning up


def test_the_worktrees_used_last_stay(project, repository):
    mine = repository.parent / "mine too"
    git(repository, "worktree", "add", "--quiet", "--detach", str(mine))
    for number in range(revisions.KEPT + 3):
        commit(repository, number__txt=str(number))
        with tree(project) as found:
            os.utime(found.top.with_suffix(".ready"), (number, number))
    with tree(project, "HEAD~6") as oldest:
        os.utime(oldest.top.with_suffix(".ready"), (0, 0))
        revisions.clean_up(project)
        kept = [revisions.commit(project, "--base", f"HEAD~{n}") for n in (0, 1, 2, 3, 6)]
        assert sorted(path.name for path in project.worktrees.iterdir() if path.is_dir()) == sorted(kept)
        assert git(repository, "worktree", "list").count("\n") == 1 + len(kept)
    shutil.rmtree(oldest.top)
    shutil.rmtree(mine)
    revisions.clean_up(project)
    listed = git(repository, "worktree", "list")
    assert oldest.top.name not in listed
    assert "mine too" in listed  # the user's to prune
