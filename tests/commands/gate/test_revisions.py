"""Revisions of a real git repository, checked out with an environment, never at the expense of the user's checkout."""

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace

import projects
import pytest
from projects import commit, git

from tcbench.commands.gate import revisions
from tcbench.core.errors import BuildError

PYPROJECT = '[project]\nname = "mine"\nversion = "1"\n'
MAKES_PYTHON = f"mkdir -p .venv/bin; echo x >> ran; ln -sf {sys.executable} .venv/bin/python"


@pytest.fixture
def repository(tmp_path):
    return projects.make(tmp_path / "mine")


@pytest.fixture
def project(repository):
    return revisions.find_project(repository)


@pytest.fixture
def tree(tmp_path):
    """Check a revision of a project out in a new folder."""

    def make(project, revision="HEAD", setup=None, messages=None):
        commit_id = revisions.resolve(project, "--base", revision)
        top = Path(tempfile.mkdtemp(dir=tmp_path)) / "tree"
        say = (messages if messages is not None else []).append
        folder, python = revisions.check_out(project, commit_id, top, tmp_path, setup, say)
        return SimpleNamespace(top=top, folder=folder, python=python)

    return make


def test_a_revision_is_checked_out_with_its_tags_and_history(project, repository, tree):
    messages = []
    git(repository, "tag", "v1")
    head = commit(repository, my_step__py=projects.planted(2))
    checkout = tree(project, "HEAD~1", messages=messages)
    assert (checkout.folder / "my_step.py").read_text() == projects.STEP
    assert checkout.python == sys.executable
    assert messages == [f"checking out {git(repository, 'rev-parse', 'v1')[:12]}"]
    assert git(checkout.top, "status", "--porcelain") == ""
    assert git(tree(project).top, "describe", "--tags") == f"v1-1-g{head[:7]}"


def test_the_users_checkout_stays_as_it_is(project, repository, tree):
    def state():
        return {
            path: (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
            for path in repository.rglob("*")
        }

    (repository / "my_step.py").write_text(projects.planted(2))
    (repository / "new.py").touch()
    before = state()
    checkout = tree(project)
    assert "PLANTED_S = 0.0" in (checkout.folder / "my_step.py").read_text()
    assert revisions.checked_out(project) == git(repository, "rev-parse", "--short=12", "HEAD") + "+"
    assert state() == before
    assert git(repository, "worktree", "list").count("\n") == 0


@pytest.mark.parametrize(
    "revision",
    ["nope", "", "--exec=touch", "-x", "^HEAD", "HEAD..HEAD", "x" * 3000, "a\nb", "HEAD:my_step.py", "HEAD~7"],
)
def test_an_unknown_revision_is_one_line(project, revision):
    expected = r"^--current '.*': no such commit in .*/mine; expected a branch, a tag or a commit$"
    with pytest.raises(BuildError, match=expected):
        revisions.resolve(project, "--current", revision)


def test_a_shallow_clone_is_named_as_such(repository, tmp_path):
    commit(repository, other__txt="x")
    git(tmp_path, "clone", "--quiet", "--depth", "1", f"file://{repository}", "shallow")
    shallow = revisions.find_project(tmp_path / "shallow")
    with pytest.raises(BuildError, match=r"this clone is shallow: `git fetch --unshallow` fetches the rest"):
        revisions.resolve(shallow, "--base", "HEAD~1")


# ------------------------------------------------------------------------------------------------------ environments


def test_a_project_gets_an_environment(project, repository, tree, tmp_path):
    head = commit(repository, pyproject__toml=PYPROJECT)
    messages = []
    checkout = tree(project, setup=f"echo much; {MAKES_PYTHON}", messages=messages)
    assert checkout.python == f"{checkout.top}/.venv/bin/python"
    assert (checkout.top / "ran").read_text() == "x\n"
    assert messages[1:] == [f"{head[:12]}: echo much; {MAKES_PYTHON}"]
    assert not list(tmp_path.glob("*.log"))


def test_the_default_command_is_uvs_and_sees_nothing_of_the_users_environment(
    project, repository, tmp_path, monkeypatch, tree
):
    commit(repository, pyproject__toml=PYPROJECT)
    projects.interpreter(tmp_path / "bin/uv", f'env > env; echo "$@" > words; {MAKES_PYTHON}', "true")
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    monkeypatch.setenv("VIRTUAL_ENV", "/mine")
    monkeypatch.setenv("UV_PROJECT_ENVIRONMENT", "/mine")
    checkout = tree(project)
    assert (checkout.top / "words").read_text() == "sync --quiet\n"
    assert "/mine" not in [line.partition("=")[2] for line in (checkout.top / "env").read_text().splitlines()]


def test_a_command_that_fails_is_one_line_with_the_end_of_what_it_said(project, repository, tree):
    commit(repository, pyproject__toml=PYPROJECT)
    fails = "echo much; echo more; echo; echo the reason >&2; exit 3"
    pattern = r"failed in .* with exit code 3: much \| more \| the reason \(full output: (/.*)\)$"
    with pytest.raises(BuildError, match=pattern) as error:
        tree(project, setup=fails)
    log = re.search(pattern, str(error.value))
    assert Path(log[1]).read_text() == "much\nmore\n\nthe reason\n"


def test_a_command_that_makes_no_environment_is_one_line(project, repository, tree):
    commit(repository, pyproject__toml=PYPROJECT)
    with pytest.raises(BuildError, match=r"created no \.venv/bin/python in"):
        tree(project, setup="true")


def test_no_environment_where_none_is_wanted_or_described(project, repository, tree):
    commit(repository, pyproject__toml="[tool.ruff]\nline-length = 120\n")
    assert tree(project).python == sys.executable
    commit(repository, pyproject__toml=PYPROJECT)
    assert tree(project, setup="").python == sys.executable


def test_the_nearest_project_counts_and_the_folder_is_the_users(repository, tree):
    (repository / "inner/deep").mkdir(parents=True)
    (repository / "inner/deep/file").touch()
    (repository / "inner/pyproject.toml").write_text(PYPROJECT)
    commit(repository)
    deep = revisions.find_project(repository / "inner/deep")
    checkout = tree(deep, setup=MAKES_PYTHON)
    assert checkout.folder == checkout.top / "inner/deep"
    assert checkout.python == f"{checkout.top}/inner/.venv/bin/python"
    with pytest.raises(
        BuildError, match=r"has no folder inner/deep; start the gate in a folder that both revisions have"
    ):
        tree(deep, "HEAD~1")


def test_python_path_follows_into_the_worktree(project, repository, tmp_path):
    value = f"{repository}/src:{tmp_path}/lib:relative:{repository}"
    assert revisions.python_path_in(Path("/top"), project, value) == f"/top/src:{tmp_path}/lib:relative:/top"


# ---------------------------------------------------------------------------------------------------- what is not here


def test_a_submodule_that_is_not_checked_out_here_is_empty_there_and_a_note(project, repository, tree, tmp_path):
    projects.make(tmp_path / "library")
    projects.add_submodule(repository, tmp_path / "library", "lib")
    shutil.rmtree(repository / "lib")
    shutil.rmtree(repository / ".git/modules")
    messages = []
    checkout = tree(project, messages=messages)
    assert list((checkout.top / "lib").iterdir()) == []
    assert messages[1].endswith("lacks submodules that are not checked out here: lib")


def test_a_submodule_that_lacks_the_commit_is_one_line_and_nothing_is_fetched(project, repository, tree, tmp_path):
    library = projects.make(tmp_path / "library")
    projects.add_submodule(repository, library, "lib")
    newer = commit(library, more__txt="x")
    git(repository, "update-index", "--cacheinfo", f"160000,{newer},lib")
    git(repository, "commit", "--quiet", "--message", "newer")
    messages = f"cannot be checked out: submodule lib: {newer[:12]} is missing; run git -C {repository}/lib fetch"
    with pytest.raises(BuildError, match=re.escape(messages)):
        tree(project)
    git(repository / "lib", "-c", "protocol.file.allow=always", "fetch", "--quiet")
    assert (tree(project).top / "lib/more.txt").exists()


def test_what_git_lfs_did_not_bring_is_a_note(project, repository, tree, monkeypatch):
    monkeypatch.setenv("GIT_CONFIG_NOSYSTEM", "1")  # where Git LFS is installed
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'1' * 64}\nsize 1\n"
    commit(repository, **{"a.bin": pointer, "b.bin": "whole"})
    commit(repository, **{".gitattributes": "*.bin filter=lfs\n"})
    messages = []
    tree(project, messages=messages)
    head = git(repository, "rev-parse", "--short=12", "HEAD")
    assert messages[1:] == [f"note: {head} lacks the contents of a.bin; `git lfs fetch origin {head}` fetches them"]


def test_without_a_base_it_is_where_the_branch_left_the_main_one_or_the_last_commit(project, repository):
    git(repository, "branch", "-M", "main")
    first = git(repository, "rev-parse", "HEAD")
    with pytest.raises(
        BuildError, match=r"nothing to compare: .* has neither changes nor commits that are not on the main"
    ):
        revisions.default_base(project)
    (repository / "my_step.py").write_text("changed", "utf-8")
    assert revisions.default_base(project) == (first, "the last commit, because the working tree has changes")
    git(repository, "checkout", "-q", "-b", "mine")
    commit(repository, my_step__py="mine")
    git(repository, "branch", "-f", "unrelated")
    assert revisions.default_base(project) == (first, "where this branch left main")
    git(repository, "update-ref", "refs/remotes/origin/main", git(repository, "rev-parse", "HEAD"))
    (repository / "my_step.py").write_text("changed again", "utf-8")
    assert revisions.default_base(project)[1] == "the last commit, because the working tree has changes"


def test_without_a_base_a_named_revision_is_compared_with_where_that_left_the_main_one(project, repository):
    git(repository, "branch", "-M", "main")
    first = git(repository, "rev-parse", "HEAD")
    (repository / "my_step.py").write_text("changed", "utf-8")  # which is not what was asked for
    with pytest.raises(BuildError, match="nothing to compare: main has no commits that are not on the main branch"):
        revisions.default_base(project, "main")
    git(repository, "checkout", "-q", "-b", "mine")
    commit(repository, my_step__py="mine")
    git(repository, "checkout", "-q", "main")
    assert revisions.default_base(project, "mine") == (first, "where mine left main")
    with pytest.raises(BuildError, match="--current 'nothing': no such commit"):
        revisions.default_base(project, "nothing")


def test_the_commits_between_two_are_told_apart_under_any_configuration_and_no_program_runs(
    project, repository, tmp_path, monkeypatch
):
    good = git(repository, "rev-parse", "HEAD")
    signature = "cat >/dev/null; echo '[GNUPG:] SIG_CREATED ' >&2; echo signature"
    signs = projects.interpreter(tmp_path / "gpg", signature, "exit 0")
    for n in range(2):
        git(
            repository,
            "-c",
            f"gpg.program={signs}",
            "commit",
            "-S",
            "--allow-empty",
            "--quiet",
            "-m",
            os.fsdecode(f"c\u00e9 {n}".encode()),
        )
    verifies = projects.interpreter(tmp_path / "verify", f"touch {tmp_path}/ran", "exit 1")
    (tmp_path / "config").write_text(
        f"[log]\n\tshowSignature = true\n\tmailmap = true\n[gpg]\n\tprogram = {verifies}\n"
        "[i18n]\n\tlogOutputEncoding = latin1\n[format]\n\tpretty = fuller\n[alias]\n\trev-list = !false\n"
    )
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "config"))
    commits = revisions.commits_between(project, good, git(repository, "rev-parse", "HEAD"))
    assert list(commits.values()) == ["c\u00e9 0", "c\u00e9 1"]
    assert list(commits) == git(repository, "rev-list", "--reverse", f"{good}..HEAD").split()
    assert not (tmp_path / "ran").exists()
