"""Revisions of the user's project, checked out beside it: a git worktree each in the user's cache, and an environment.

The user's own checkout is never touched but for git's list of worktrees. A worktree that is there is taken as it is,
locked while it is in use, and the ones used longest ago are removed.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tcbench import process
from tcbench.errors import SideError

Say = Callable[[str], None]

DEFAULT_SETUP = "uv sync --quiet"

KEPT = 4
"""So many worktrees of a project stay for the next gate."""

_OF_ANOTHER_CHECKOUT = (
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR", "GIT_OBJECT_DIRECTORY"),
    *("VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_PROJECT"),
)
"""Variables by which git (in a hook) and uv would act on the user's own checkout or environment."""


@dataclass(frozen=True)
class Project:
    """A git checkout: its top folder, where in it the user is, and the folder of its worktrees."""

    root: Path
    inside: Path
    worktrees: Path

    @property
    def here(self) -> str:
        """The commit that is checked out, with `+` when tracked files differ from it."""
        head = _git(self.root, "rev-parse", "--short=12", "HEAD")
        return head + ("+" if _git(self.root, "status", "--porcelain", "--untracked-files=no") else "")


@dataclass(frozen=True)
class Tree:
    """A revision that is checked out and ready: the folder that is the user's in it, and the Python to run there."""

    top: Path
    folder: Path
    python: str


def project(folder: Path, cache: Path) -> Project:
    """The checkout that a folder lies in; its worktrees go under `cache`. Raises SideError outside of one."""
    try:
        root = Path(_git(folder, "rev-parse", "--show-toplevel"))
        common = (folder / _git(folder, "rev-parse", "--git-common-dir")).resolve()
    except SideError as error:
        if "not a git repository" in str(error):
            raise SideError(
                f"{folder} is in no git repository, so it has no revisions; expected one, or two interpreters: "
                "--base-python PYTHON"
            ) from None
        raise
    digest = hashlib.sha256(os.fsencode(common)).hexdigest()[:16]
    return Project(root, folder.resolve().relative_to(root.resolve()), cache / digest)


def commit(of: Project, option: str, revision: str) -> str:
    """The whole id of the commit that a revision means. `option` is the one that named it. Raises SideError."""
    if revision and not revision.startswith("-"):
        with contextlib.suppress(SideError):
            return _git(of.root, "rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    shallow = _git(of.root, "rev-parse", "--is-shallow-repository") == "true"
    hint = "; this clone is shallow: `git fetch --unshallow` brings the rest" if shallow else ""
    raise SideError(f"{option} {revision!a}: no such revision in {of.root}; expected a branch, a tag or a commit{hint}")


@contextlib.contextmanager
def worktree(of: Project, commit_id: str, setup: str | None, say: Say) -> Iterator[Tree]:
    """The commit checked out with its environment, kept from other gates' hands meanwhile. `setup` as in
    `_environment`. Raises SideError."""
    top = of.worktrees / commit_id
    try:
        of.worktrees.mkdir(parents=True, exist_ok=True)
        lock = os.open(top.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise SideError(f"{of.worktrees}: cannot be written ({error.strerror}); TCBENCH_CACHE names another") from None
    try:
        tree = _prepared(of, top, commit_id, setup, say, lock)
        os.utime(top.with_suffix(".ready"))
        yield tree
    finally:
        os.close(lock)


def _prepared(of: Project, top: Path, commit_id: str, setup: str | None, say: Say, lock: int) -> Tree:
    """The tree, made first where it is not there yet. The lock is shared from then on."""
    if not (_locked(lock, fcntl.LOCK_EX) or _locked(lock, fcntl.LOCK_SH)):
        say(f"waiting for another gate, which prepares {top}")
        fcntl.flock(lock, fcntl.LOCK_SH)
    ready = top.with_suffix(".ready")
    folder = top / of.inside
    was = _was_ready(ready)
    if was is None or not (top / ".git").exists():
        fcntl.flock(lock, fcntl.LOCK_EX)
        say(f"checking out {commit_id[:12]} at {top}")
        _remove(of, top)
        _git(of.root, "worktree", "add", "--force", "--detach", str(top), commit_id)
        was = {}
    elif _changes(top) != was.get("changes"):
        raise SideError(
            f"{top}: files of this kept worktree were changed since it was made; remove it, and the gate makes it "
            f"anew: git -C {of.root} worktree remove --force {top}"
        )
    if not folder.is_dir():
        _note_ready(ready, {"setup": None, "changes": _changes(top)})
        raise SideError(f"{commit_id[:12]} has no folder {of.inside}; start the gate where both revisions have one")
    command, at = _environment(top, folder, setup)
    if was.get("setup") != command or "changes" not in was:
        if command:
            fcntl.flock(lock, fcntl.LOCK_EX)
            _note_ready(ready, None)
            say(f"{commit_id[:12]}: {command}")
            _set_up(command, at, top.with_suffix(".log"))
        _note_ready(ready, {"setup": command, "changes": _changes(top)})
    python = _python(top, at, command)
    fcntl.flock(lock, fcntl.LOCK_SH)
    return Tree(top, folder, python)


def _locked(lock: int, how: int) -> bool:
    """Whether the lock could be had at once."""
    try:
        fcntl.flock(lock, how | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _was_ready(marker: Path) -> dict[str, str | None] | None:
    """What a tree was made with; None where it was not made to its end."""
    try:
        found = json.loads(marker.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _note_ready(marker: Path, made_with: Mapping[str, str | None] | None) -> None:
    if made_with is None:
        marker.unlink(missing_ok=True)
    else:
        marker.write_text(json.dumps(made_with), encoding="utf-8")


def _changes(top: Path) -> str:
    """A digest of how tracked files differ from their commit: a lock file that `uv sync` wrote may differ."""
    return hashlib.sha256(_git(top, "diff", "HEAD", "--no-ext-diff", "--binary").encode()).hexdigest()


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
    with log.open("wb") as file:
        code = process.run(["/bin/sh", "-c", command], folder=at, environment=own_environment(), output=file)
    if code:
        output = log.read_text(encoding="utf-8", errors="replace")
        raise SideError(f"--setup {command!a} failed in {at} with exit code {code}: {tail(output)} (all of it: {log})")


def _python(top: Path, at: Path, command: str) -> str:
    """The environment's, if one was made; else the one that runs here."""
    if not command:
        return sys.executable
    above = [at, *(path for path in at.parents if path.is_relative_to(top))]
    found = next((path for folder in above if (path := folder / ".venv/bin/python").exists()), None)
    if found is not None:
        return str(found)
    if _is_project(at / "pyproject.toml"):
        raise SideError(f"--setup {command!a} left no .venv/bin/python in {at}; expected it to make that environment")
    return sys.executable


def clean_up(of: Project) -> None:
    """Remove worktrees beyond the KEPT that were used last, unless a gate uses them now. Never an error."""
    with contextlib.suppress(OSError, SideError):
        _forget_lost(of)
        kept = [path for path in of.worktrees.iterdir() if re.fullmatch(r"[0-9a-f]{40,64}", path.name)]
        for top in sorted(kept, key=_last_used, reverse=True)[KEPT:]:
            lock = os.open(top.with_suffix(".lock"), os.O_RDWR | os.O_CREAT, 0o666)
            try:
                if _locked(lock, fcntl.LOCK_EX):
                    _remove(of, top)
            finally:
                os.close(lock)


def _last_used(top: Path) -> float:
    try:
        return top.with_suffix(".ready").stat().st_mtime
    except OSError:
        return 0.0


def _forget_lost(of: Project) -> None:
    """Take worktrees of ours whose folder someone deleted off git's list, and no others."""
    for line in _git(of.root, "worktree", "list", "--porcelain").splitlines():
        path = Path(line.removeprefix("worktree "))
        if line.startswith("worktree ") and path.is_relative_to(of.worktrees.resolve()) and not path.exists():
            _remove(of, path)


def _remove(of: Project, top: Path) -> None:
    _note_ready(top.with_suffix(".ready"), None)
    with contextlib.suppress(SideError):
        _git(of.root, "worktree", "remove", "--force", str(top))
    shutil.rmtree(top, ignore_errors=True)


def own_environment() -> dict[str, str]:
    """This process's environment without what points tools at another checkout."""
    return {name: value for name, value in os.environ.items() if name not in _OF_ANOTHER_CHECKOUT}


def moved_path(of: Project, top: Path, value: str) -> str:
    """A PYTHONPATH with what lies in the user's checkout taken from the worktree instead."""
    moved = []
    for entry in value.split(os.pathsep):
        path = Path(entry)
        inside = path.is_absolute() and path.resolve().is_relative_to(of.root.resolve())
        moved.append(str(top / path.resolve().relative_to(of.root.resolve())) if inside else entry)
    return os.pathsep.join(moved)


def tail(output: str, lines: int = 3) -> str:
    """The last lines of a command's output, as one."""
    return " | ".join([" ".join(line.split()) for line in output.splitlines() if line.strip()][-lines:]) or "no output"


def _git(folder: Path, *arguments: str) -> str:
    """What git prints. Hooks of the user's have no business in a folder that nobody works in, so none runs. Raises
    SideError with what git says."""
    try:
        ended = subprocess.run(
            ["git", "--no-optional-locks", "-c", "core.hooksPath=/dev/null", "-C", str(folder), *arguments],
            env={**own_environment(), "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise SideError(f"git cannot be started ({error.strerror}); --base-python does without it") from None
    if ended.returncode:
        raise SideError(f"git {arguments[0]} failed in {folder}: {tail(ended.stderr, 1)}")
    return ended.stdout.strip()
