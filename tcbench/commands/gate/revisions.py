"""Revisions of the user's project, each checked out in a folder of the gate's with an environment of its own.

The user's own checkout is only read.
"""

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
"""Variables by which git (in a hook) and uv would act on the user's own checkout or environment."""

_POINTER = b"version https://git-lfs"
"""The beginning of a file whose content Git LFS keeps in another place."""


@dataclass(frozen=True)
class Project:
    """A git checkout, and where in it the user is."""

    repository: Repository
    inside: Path


def project(folder: Path) -> Project:
    """The checkout that a folder lies in. Raises BuildError outside of one."""
    try:
        repository = Repository.around(folder)
    except GitError as error:
        instead = "two interpreters do without: --base-python PYTHON"
        if "not a git repository" in str(error):
            raise BuildError(f"{folder} is in no git repository, so it has no revisions; {instead}") from None
        if "must be run in a work tree" in str(error):
            raise BuildError(f"{folder} is in no working tree of git's (a bare repository?); {instead}") from None
        raise BuildError(f"{error}; {instead}") from None
    return Project(repository, folder.resolve().relative_to(repository.top.resolve()))


def commit(of: Project, option: str, revision: str) -> str:
    """The whole id of the commit that a revision means. `option` is the one that named it. Raises BuildError."""
    if revision and not revision.startswith(("-", "^")):  # an option, or all but a commit
        with contextlib.suppress(GitError):
            return of.repository.ask("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    shown = revision if len(revision) < 60 else f"{revision[:57]}..."
    hint = "; this clone is shallow: `git fetch --unshallow` brings the rest" if of.repository.shallow else ""
    with contextlib.suppress(GitError):
        if not of.repository.ask("rev-list", "--max-count=1", "--all"):
            hint = "; it has no commit yet: `git commit` makes the first"
    raise BuildError(
        f"{option} {shown!a}: no such commit in {of.repository.top}; expected a branch, a tag or a commit{hint}"
    )


_MAIN = ("origin/HEAD", "origin/main", "origin/master", "main", "master")
"""Where a project's main branch may stand; the first that is there."""


def default_base(of: Project, current: str | None = None) -> tuple[str, str]:
    """The commit that a gate without a base compares the working tree (or the revision `current`) with, and which that
    is: where its branch left the main one; of a working tree without a commit of its own, the last commit. Raises
    BuildError where that is the same code."""
    head = commit(of, "--current" if current else "--base", current or "HEAD")
    for name in _MAIN:
        with contextlib.suppress(GitError):
            left = of.repository.ask("merge-base", head, name)
            if left != head:
                return left, f"where {current or 'this branch'} left {name}"
            break
    try:
        changed = current is None and of.repository.commit().endswith("+")
    except (OSError, GitError) as error:
        raise BuildError(str(error)) from None
    if not changed:
        has = f"{current} has no commits" if current else f"{of.repository.top} has neither changes nor commits"
        raise BuildError(
            f"nothing to compare: {has} beside the main branch; "
            "expected --base REVISION, --base-python PYTHON or --bisect GOOD..BAD"
        )
    return head, "the last commit, as the working tree has changes"


def between(of: Project, good: str, bad: str) -> dict[str, str]:
    """The commits after `good` up to `bad` (ids), oldest first, along first parents: a merge is one step. With each the
    first line of its message. Raises BuildError where `bad` does not come after `good`."""
    try:
        ahead = of.repository.ask("rev-list", "--count", f"{bad}..{good}")
        options = ("--first-parent", "--reverse", "--encoding=UTF-8", "--format=%H%x09%s")
        listed = of.repository.ask("rev-list", *options, f"{good}..{bad}")
    except GitError as error:
        raise BuildError(str(error)) from None
    if ahead != "0" or not listed:
        raise BuildError(
            f"{bad[:12]} does not come after {good[:12]}; expected GOOD..BAD, BAD a later commit of the same branch"
        )
    lines = (line.partition("\t") for line in listed.split("\n")[1::2])  # each after a line "commit ID"
    # git writes UTF-8 as asked, which was decoded as names of files are.
    return {commit_id: plain(os.fsencode(subject).decode("utf-8", "replace")) for commit_id, _, subject in lines}


def here(of: Project) -> str:
    """The commit that is checked out, with `+` when tracked files differ from it."""
    try:
        return of.repository.commit()
    except (GitError, OSError):
        return "at no commit that git tells"


def code_here(of: Project) -> str:
    """The code that is checked out: the commit's whole id, and where tracked files differ from it a digest of how."""
    try:
        head, changes = of.repository.ask("rev-parse", "--verify", "HEAD"), of.repository.changes()
    except (GitError, OSError):
        return "at no commit that git tells"
    return head + (f"+{hashlib.sha256(os.fsencode(changes)).hexdigest()[:12]}" if changes else "")


def tree(of: Project, commit_id: str, top: Path, logs: Path, setup: str | None, say: Say) -> tuple[Path, str]:
    """Check the commit out at `top`, which is made, with its environment; the folder that is the user's in it, and the
    Python to run there. `setup` as in `_environment`; what it printed stays in the folder `logs` where it failed.
    Raises BuildError."""
    short = commit_id[:12]
    say(f"checking out {short}")
    try:
        empty = of.repository.check_out(commit_id, top)
        pointers = _pointers(top)
    except (GitError, OSError) as error:
        raise BuildError(f"{short} cannot be checked out: {error}") from None
    if empty:
        say(f"note: {short}: not checked out here, so not there either: submodule {', '.join(empty)}")
    if pointers:
        more = f" and {len(pointers) - 1} more" if len(pointers) > 1 else ""
        say(f"note: {short}: contents are not here: {pointers[0]}{more}; `git lfs fetch origin {short}` brings them")
    folder = top / of.inside
    if not folder.is_dir():
        raise BuildError(f"{short} has no folder {of.inside}; start the gate where both revisions have one")
    command, at = _environment(top, folder, setup)
    if command:
        say(f"{short}: {command}")
        _set_up(command, at, logs / f"setup-{short}.log")
    return folder, _python(top, at, command)


def _pointers(top: Path) -> list[str]:
    """Files whose contents Git LFS keeps elsewhere and did not bring."""
    listed = Repository(top, top / ".git", top / ".git").ask("ls-files", "-z", ":(attr:filter=lfs)")
    return [name for name in filter(None, listed.split("\0")) if _begins(top / name, _POINTER)]


def _begins(path: Path, start: bytes) -> bool:
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(len(start)) == start


def _environment(top: Path, folder: Path, setup: str | None) -> tuple[str, Path]:
    """The command that makes an environment, and where it runs: beside the nearest pyproject.toml of a project. An
    empty command: there is no environment to make. `setup` is the user's own command, or None."""
    above = [folder, *(path for path in folder.parents if path.is_relative_to(top))]
    at = next((path for path in above if _is_project(path / "pyproject.toml")), None)
    if setup is not None:
        return setup.strip(), at or folder
    return (DEFAULT_SETUP, at) if at else ("", folder)


def _is_project(path: Path) -> bool:
    """Whether it describes a package or its dependencies, and is not only there for some tool's settings."""
    try:
        return "project" in tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return False
    except ValueError:  # its own tool says what is wrong
        return True


def _set_up(command: str, at: Path, log: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_CHECKOUT}
    with log.open("wb") as file:
        code = process.run(["/bin/sh", "-c", command], folder=at, environment=environment, output=file)
    if code:
        output = log.read_text(encoding="utf-8", errors="replace")
        raise BuildError(f"--setup {command!a} failed in {at} with exit code {code}: {tail(output)} (all of it: {log})")
    log.unlink(missing_ok=True)


def _python(top: Path, at: Path, command: str) -> str:
    """The environment's, if one was made; else the one that runs here."""
    if not command:
        return sys.executable
    above = [at, *(path for path in at.parents if path.is_relative_to(top))]
    python = next((path for folder in above if (path := folder / ".venv/bin/python").exists()), None)
    if python is not None:
        return str(python)
    if _is_project(at / "pyproject.toml"):
        raise BuildError(f"--setup {command!a} left no .venv/bin/python in {at}; expected it to make that environment")
    return sys.executable


def moved_path(of: Project, top: Path, value: str) -> str:
    """A PYTHONPATH with what lies in the user's checkout taken from the worktree instead."""
    root = of.repository.top.resolve()
    moved = []
    for entry in value.split(os.pathsep):
        path = Path(entry)
        inside = path.is_absolute() and path.resolve().is_relative_to(root)
        moved.append(str(top / path.resolve().relative_to(root)) if inside else entry)
    return os.pathsep.join(moved)


def tail(output: str) -> str:
    """The last three lines of a command's output, as one."""
    return " | ".join([" ".join(line.split()) for line in output.splitlines() if line.strip()][-3:]) or "no output"
