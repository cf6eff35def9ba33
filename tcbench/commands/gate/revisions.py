"""Revisions of the user's project, each checked out in the gate's folder with its own environment. The user's own
checkout is only read."""

import contextlib
import hashlib
import os
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tcbench.core import process
from tcbench.core.errors import BuildError
from tcbench.core.git import GitError, Repository
from tcbench.core.text import plain

Say = Callable[[str], None]

DEFAULT_SETUP = "uv sync --quiet"

_OF_ANOTHER_CHECKOUT = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"),
    *("GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_SHALLOW_FILE"),
    *("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_PROJECT"),
)
"""Variables that would make git (in a hook) or uv use the user's own checkout or environment."""

_POINTER = b"version https://git-lfs"
"""First bytes of a Git LFS pointer, a file that stands for contents stored elsewhere."""


@dataclass(frozen=True)
class Project:
    """A git checkout, and the user's folder relative to its top."""

    repository: Repository
    inside: Path


def find_project(folder: Path) -> Project:
    """Return the git checkout that contains a folder. Raises BuildError if there is none."""
    try:
        repository = Repository.containing(folder)
    except GitError as error:
        instead = "compare two interpreters instead: --base-python PYTHON"
        if "not a git repository" in str(error):
            raise BuildError(f"{folder} is not in a git repository, so it has no revisions; {instead}") from None
        if "must be run in a work tree" in str(error):
            raise BuildError(f"{folder} is not in a git working tree (a bare repository?); {instead}") from None
        raise BuildError(f"{error}; {instead}") from None
    return Project(repository, folder.resolve().relative_to(repository.top.resolve()))


def resolve(project: Project, option: str, revision: str) -> str:
    """Return the full commit id of a revision.

    `option` names the revision's option in error messages. Raises BuildError."""
    if revision and not revision.startswith(("-", "^")):  # git would take "-" as an option, "^" as an exclusion
        with contextlib.suppress(GitError):
            return project.repository.ask("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    shown = revision if len(revision) < 60 else f"{revision[:57]}..."
    hint = "; this clone is shallow: `git fetch --unshallow` fetches the rest" if project.repository.shallow else ""
    with contextlib.suppress(GitError):
        if not project.repository.ask("rev-list", "--max-count=1", "--all"):
            hint = "; it has no commit yet: `git commit` creates the first"
    raise BuildError(
        f"{option} {shown!a}: no such commit in {project.repository.top}; expected a branch, a tag or a commit{hint}"
    )


_MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
"""Refs that may be a project's main branch; the first that exists counts."""


def default_base(project: Project, current: str | None = None) -> tuple[str, str]:
    """Return the commit to compare with when no base is given, and a description of it.

    It is the commit where the branch left the main branch. A working tree without commits of its own is compared with
    the last commit. `current` is the revision to compare; None: the working tree. Raises BuildError if both sides would
    be the same code."""
    head = resolve(project, "--current" if current else "--base", current or "HEAD")
    for name in _MAIN:
        with contextlib.suppress(GitError):
            fork_point = project.repository.ask("merge-base", head, name)
            if fork_point != head:
                return fork_point, f"where {current or 'this branch'} left {name}"
            break
    try:
        changed = current is None and project.repository.commit().endswith("+")
    except (OSError, GitError) as error:
        raise BuildError(str(error)) from None
    if not changed:
        has = f"{current} has no commits" if current else f"{project.repository.top} has neither changes nor commits"
        raise BuildError(
            f"nothing to compare: {has} that are not on the main branch; "
            "expected --base REVISION, --base-python PYTHON or --bisect GOOD..BAD"
        )
    return head, "the last commit, because the working tree has changes"


def commits_between(project: Project, good: str, bad: str) -> dict[str, str]:
    """Return the commits after `good` up to `bad`, oldest first, as {commit id: subject line}.

    Only first parents count, so a merge is one commit. Raises BuildError if `bad` is not a descendant of `good`."""
    try:
        ahead = project.repository.ask("rev-list", "--count", f"{bad}..{good}")
        options = ("--first-parent", "--reverse", "--encoding=UTF-8", "--format=%H%x09%s")
        listed = project.repository.ask("rev-list", *options, f"{good}..{bad}")
    except GitError as error:
        raise BuildError(str(error)) from None
    if ahead != "0" or not listed:
        raise BuildError(
            f"{bad[:12]} does not come after {good[:12]}; expected BAD to be a later commit of the same branch"
        )
    lines = (line.partition("\t") for line in listed.split("\n")[1::2])  # every other line is "commit ID"
    # git writes UTF-8 because of --encoding, but `ask` decodes its output like a file name.
    return {commit_id: plain(os.fsencode(subject).decode("utf-8", "replace")) for commit_id, _, subject in lines}


def checked_out(project: Project) -> str:
    """Return the checked-out commit, with `+` if tracked files have changed."""
    try:
        return project.repository.commit()
    except (GitError, OSError):
        return "at an unknown commit"


def checked_out_code(project: Project) -> str:
    """Return an id of the checked-out code: the commit id, with a digest of uncommitted changes."""
    try:
        head, changes = project.repository.ask("rev-parse", "--verify", "HEAD"), project.repository.changes()
    except (GitError, OSError):
        return "at an unknown commit"
    return head + (f"+{hashlib.sha256(os.fsencode(changes)).hexdigest()[:12]}" if changes else "")


def check_out(project: Project, commit_id: str, top: Path, logs: Path, setup: str | None, say: Say) -> tuple[Path, str]:
    """Check out a commit at `top`, which must not exist, and set up its environment.

    Returns the user's folder in that checkout and the Python to run there. `setup`: see `_environment`. If setup fails,
    its output stays in the folder `logs`. Raises BuildError."""
    short = commit_id[:12]
    say(f"checking out {short}")
    try:
        empty = project.repository.check_out(commit_id, top)
        pointers = _pointers(top)
    except (GitError, OSError) as error:
        raise BuildError(f"{short} cannot be checked out: {error}") from None
    if empty:
        say(f"note: {short} lacks submodules that are not checked out here: {', '.join(empty)}")
    if pointers:
        more = f" and {len(pointers) - 1} more" if len(pointers) > 1 else ""
        say(f"note: {short} lacks the contents of {pointers[0]}{more}; `git lfs fetch origin {short}` fetches them")
    folder = top / project.inside
    if not folder.is_dir():
        raise BuildError(f"{short} has no folder {project.inside}; start the gate in a folder that both revisions have")
    command, setup_folder = _environment(top, folder, setup)
    if command:
        say(f"{short}: {command}")
        _set_up(command, setup_folder, logs / f"setup-{short}.log")
    return folder, _python(top, setup_folder, command)


def _pointers(top: Path) -> list[str]:
    """Return the files that are still Git LFS pointers because their contents were not fetched."""
    listed = Repository(top, top / ".git", top / ".git").ask("ls-files", "-z", ":(attr:filter=lfs)")
    return [name for name in filter(None, listed.split("\0")) if _begins(top / name, _POINTER)]


def _begins(path: Path, start: bytes) -> bool:
    """Return whether `path` is a regular file that begins with `start`. A symbolic link is not."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(start)) == start


def _environment(top: Path, folder: Path, setup: str | None) -> tuple[str, Path]:
    """Return the setup command and the folder to run it in: the nearest one, from `folder` up to `top`, with a project.

    The command is empty if there is no environment to create. `setup` is the user's own command, or None."""
    above = [folder, *(path for path in folder.parents if path.is_relative_to(top))]
    project_folder = next((path for path in above if _is_project(path / "pyproject.toml")), None)
    if setup is not None:
        return setup.strip(), project_folder or folder
    return (DEFAULT_SETUP, project_folder) if project_folder else ("", folder)


def _is_project(path: Path) -> bool:
    """Return whether a pyproject.toml describes a package or its dependencies, not only settings of tools."""
    try:
        return "project" in tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return False
    except ValueError:  # an invalid file: the setup command reports what is wrong
        return True


def _set_up(command: str, folder: Path, log: Path) -> None:
    """Run the setup command. Raises BuildError with the end of its output if it fails."""
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_CHECKOUT}
    with log.open("wb") as file:
        code = process.run(["/bin/sh", "-c", command], folder=folder, environment=environment, output=file)
    if code:
        output = log.read_text(encoding="utf-8", errors="replace")
        raise BuildError(
            f"--setup {command!a} failed in {folder} with exit code {code}: {last_lines(output)} (full output: {log})"
        )
    log.unlink(missing_ok=True)


def _python(top: Path, setup_folder: Path, command: str) -> str:
    """Return the Python of the environment that `command` created, else the running one. Raises BuildError if a project
    has no environment after its setup."""
    if not command:
        return sys.executable
    above = [setup_folder, *(path for path in setup_folder.parents if path.is_relative_to(top))]
    python = next((path for folder in above if (path := folder / ".venv/bin/python").exists()), None)
    if python is not None:
        return str(python)
    if _is_project(setup_folder / "pyproject.toml"):
        raise BuildError(
            f"--setup {command!a} created no .venv/bin/python in {setup_folder}; expected it to create that environment"
        )
    return sys.executable


def python_path_in(worktree: Path, project: Project, python_path: str) -> str:
    """Return a PYTHONPATH whose entries inside the user's checkout point into `worktree` instead."""
    root = project.repository.top.resolve()
    moved = []
    for part in python_path.split(os.pathsep):
        path = Path(part)
        inside = path.is_absolute() and path.resolve().is_relative_to(root)
        moved.append(str(worktree / path.resolve().relative_to(root)) if inside else part)
    return os.pathsep.join(moved)


def last_lines(output: str) -> str:
    """Return the last three lines of a command's output, joined into one line."""
    return " | ".join([" ".join(line.split()) for line in output.splitlines() if line.strip()][-3:]) or "no output"
