"""The two sides of a gate, ready to run: what each is called, and how its workers are started.

A side is an interpreter, or a revision of the user's project in a worktree with an environment of its own. Owns looking
whether tcbench runs there, the folder that a gate has as long as it runs, and in it a cache for each side, so that
neither takes plans or kernels that the other tuned.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from tcbench.backends.feeds import dataset
from tcbench.core import cache, files
from tcbench.core.errors import SideError
from tcbench.run import revisions
from tcbench.run.gate import BASE, CURRENT, SideName
from tcbench.run.runner import Launch

_LOOK_S = 120.0
"""How long a Python may take to import tcbench."""

_LOOK = "import os, tcbench.measure.worker; print(os.getppid())"


@dataclass(frozen=True)
class Ready:
    """One side. `says` is what it is called in words; `folder` is where its project is."""

    name: SideName
    says: str
    folder: Path
    launch: Launch


@dataclass(frozen=True)
class Wanted:
    """What the command line asks for: interpreters or revisions. `setup` is the command that makes a revision's
    environment; None: the default where the revision is a project."""

    base: str | None = None
    current: str | None = None
    base_python: str | None = None
    current_python: str | None = None
    setup: str | None = None

    def check(self) -> None:
        """Raises SideError for what does not go together."""
        if (self.base is None) == (self.base_python is None):
            raise SideError("expected one of --base REVISION and --base-python PYTHON: what current is judged against")
        if self.base_python is not None and self.current is not None:
            raise SideError("--current REVISION goes with --base REVISION; expected --current-python PYTHON")
        if self.base is not None and self.current_python is not None:
            raise SideError("--current-python goes with --base-python; a revision's environment is made by --setup")
        if self.base is None and self.setup is not None:
            raise SideError("--setup makes a revision's environment; expected --base REVISION with it")


def cache_folder() -> Path:
    """Where worktrees and caches of running gates lie: TCBENCH_CACHE or the user's cache folder, then `gate`."""
    return cache.folder("gate").absolute()


@contextlib.contextmanager
def ready(wanted: Wanted, say: Callable[[str], None]) -> Iterator[tuple[Ready, Ready]]:
    """Base and current, as long as the context lasts. Raises SideError."""
    wanted.check()
    here = Path.cwd()
    with contextlib.ExitStack() as stack:
        own = stack.enter_context(_own_folder())
        if wanted.base is not None:
            sides = _revisions(wanted, here, own, say)
        else:
            sides = (
                _interpreter(BASE, str(wanted.base_python), here),
                _interpreter(CURRENT, wanted.current_python or sys.executable, here),
            )
        for side, given in zip(sides, (wanted.base_python, wanted.current_python), strict=True):
            _check_runs(side, f"--{side.name}-python" if given else side.name)
        base, current = (_with_cache(side, own / f"cache-{side.name}") for side in sides)
        yield base, current


def _revisions(wanted: Wanted, here: Path, own: Path, say: Callable[[str], None]) -> tuple[Ready, Ready]:
    project = revisions.project(here)
    # Both are looked up before anything takes long.
    named: list[tuple[SideName, str, str]] = []
    for name, revision in ((BASE, wanted.base), (CURRENT, wanted.current)):
        if revision is not None:
            named.append((name, revision, revisions.commit(project, f"--{name}", revision)))
    found = []
    for name, revision, commit in named:
        tree = revisions.tree(project, commit, own / name, cache_folder(), wanted.setup, say)
        path = os.environ.get("PYTHONPATH")
        variables = {"PYTHONPATH": revisions.moved_path(project, tree.top, path)} if path else {}
        says = revision if commit.startswith(revision) else f"{revision} ({commit[:12]})"
        found.append(Ready(name, says, tree.folder, Launch(tree.python, tree.folder, variables)))
    if wanted.current is None:
        found.append(Ready(CURRENT, f"the working tree ({revisions.here(project)})", here, Launch(folder=here)))
    base, current = found
    return base, current


def _interpreter(name: SideName, python: str, here: Path) -> Ready:
    """A Python by path or name. The path is not resolved: a virtual environment is known by its link's place."""
    path = python if "/" in python else shutil.which(python)
    if path is None:
        raise SideError(
            f"--{name}-python {python}: no such command on PATH; expected a Python, such as .venv/bin/python"
        )
    return Ready(name, python, here, Launch(str(Path(path).absolute()), here))


def _check_runs(side: Ready, called: str) -> None:
    """Look whether tcbench starts there as a worker would. Raises SideError."""
    python = side.launch.python
    try:
        ended = subprocess.run(
            [python, "-P", "-c", _LOOK],
            cwd=side.launch.folder,
            env={**os.environ, **side.launch.variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_LOOK_S,
        )
    except OSError as error:
        raise SideError(f"{called}: {python} cannot be started in {side.folder} ({error.strerror})") from None
    except subprocess.TimeoutExpired:
        raise SideError(f"{called}: {python} did not import tcbench within {_LOOK_S:g} s") from None
    if ended.returncode:
        raise SideError(
            f"{called}: {python} cannot run tcbench in {side.folder}: {revisions.tail(ended.stderr, 1)}; "
            f"install it there: {python} -m pip install tcbench"
        )
    if ended.stdout.split()[-1:] != [str(os.getpid())]:
        raise SideError(f"{called}: {python} starts Python as a child; a script in its place must end in: exec python")


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder of this gate's for worktrees and caches, gone at its end: a plan that was tuned badly once must not stay
    one side's. What gates that were killed left is removed first."""
    parent = cache_folder()
    with contextlib.ExitStack() as stack:
        try:
            parent.mkdir(parents=True, exist_ok=True)
            folder = stack.enter_context(files.scratch(parent))
        except OSError as error:
            raise SideError(f"{parent}: cannot be written ({error.strerror}); TCBENCH_CACHE names another") from None
        yield folder


def _with_cache(side: Ready, place: Path) -> Ready:
    """The side with plans and kernels kept in a folder of its own; the generated images are everybody's."""
    images = dataset.generated_root()
    place.mkdir()
    (place / images.name).symlink_to(images.absolute(), target_is_directory=True)
    variables = {**side.launch.variables, cache.VARIABLE: str(place)}
    return replace(side, launch=replace(side.launch, variables=variables))
