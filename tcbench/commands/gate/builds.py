"""The two builds that a gate compares, base and current, each ready to run: its name, and how its workers are started.

A build is an interpreter, or a revision of the user's project in a worktree with an environment of its own. Each has a
cache of its own in the gate's folder, so that neither takes what the other compiled. What both timed of the same
candidates they share (`messages.SIDE`), so that they run the same kernels.
"""

import contextlib
import itertools
import os
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from tcbench.commands.gate import revisions
from tcbench.core import cache, files, messages, process
from tcbench.core.errors import BuildError
from tcbench.core.record import Cell
from tcbench.engine.feeds import generated
from tcbench.run.gate import BASE, CURRENT, Role
from tcbench.run.worker_launch import Launch

_IMPORT_S = 120.0
"""The longest that a Python may take to import tcbench."""

_PROBE = """
import importlib, importlib.util, os
worker = "tcbench.worker" if importlib.util.find_spec("tcbench.worker") else "tcbench.measure.worker"
importlib.import_module(worker)
try:
    from tcbench.core import messages
except ImportError:
    messages = None
try:
    from tcbench.core.record import Cell
    fields = Cell.__struct_fields__
except (ImportError, AttributeError):
    fields = ()
print(os.getppid(), worker, hasattr(messages, "TURNS"), hasattr(messages, "SIDE"), *fields)
"""
"""Prints the parent's process id, the module that is the worker there, `tcbench.measure.worker` in older revisions,
whether it can step in turns with another, whether it shares the times of kernels with another side, and the fields of a
cell that it reads, where that can be told."""


@dataclass(frozen=True)
class Build:
    """One of the two. `says` is its name in words, `code` what tells it from other code: a commit, with a digest of
    what differs from it, or an interpreter's path. `folder` is where its project is, `reads` has the fields of a cell
    that its worker reads, and is empty where that cannot be told."""

    name: Role
    says: str
    code: str
    folder: Path
    launch: Launch
    reads: frozenset[str] = frozenset()

    def launch_as_side(self) -> Launch:
        """Return the launch of a worker that shares the times of kernels with the other side."""
        return replace(self.launch, variables={**self.launch.variables, messages.SIDE: self.name})

    def check_reads(self, cells: Iterable[Cell]) -> None:
        """Raises BuildError where a cell sets what the worker does not read: it would measure another cell without a
        word, under this one's name."""
        unread = [field for field in msgspec.structs.fields(Cell) if self.reads and field.name not in self.reads]
        for cell, field in itertools.product(cells, unread):
            if (value := getattr(cell, field.name)) != field.default:
                raise BuildError(
                    f"{self.name} {self.says} does not know '{field.name}' of {cell.label}, and would measure it "
                    f"without {value!r}: expected {field.default!r}"
                )


@dataclass(frozen=True)
class Requested:
    """The command line's request: interpreters or revisions. `setup` is the command that makes a revision's
    environment; None: the default where the revision is a project."""

    base: str | None = None
    current: str | None = None
    base_python: str | None = None
    current_python: str | None = None
    setup: str | None = None

    def check(self) -> None:
        """Raises BuildError for what does not go together."""
        if self.base is not None and self.base_python is not None:
            raise BuildError("expected one of --base REVISION and --base-python PYTHON: what current is judged against")
        if self.base_python is not None and self.current is not None:
            raise BuildError("--current REVISION goes with --base REVISION; expected --current-python PYTHON")
        if self.base_python is None and self.current_python is not None:
            raise BuildError("--current-python goes with --base-python; a revision's environment is made by --setup")
        if self.base_python is not None and self.setup is not None:
            raise BuildError("--setup makes a revision's environment; expected --base REVISION with it")


def cache_folder() -> Path:
    """Return the folder of running gates' worktrees and caches, whose code runs. Raises BuildError."""
    place = cache.private_folder("gate")
    if place is None:
        raise BuildError(
            f"{cache.folder('gate')}: cannot be written by this user alone; TCBENCH_CACHE names another folder"
        )
    return place.absolute()


@contextlib.contextmanager
def prepared(requested: Requested, say: Callable[[str], None]) -> Iterator[tuple[Build, Build]]:
    """Base and current, as long as the context lasts. Raises BuildError."""
    requested.check()
    here = Path.cwd()
    with _own_folder() as own:
        if requested.base_python is None:
            builds = _revisions(requested, here, own, say)
        else:
            builds = (
                _interpreter(BASE, str(requested.base_python), here),
                _interpreter(CURRENT, requested.current_python or sys.executable, here),
            )
        named = {BASE: requested.base_python, CURRENT: requested.current_python}
        checked = [_checked(build, f"--{build.name}-python" if named[build.name] else build.name) for build in builds]
        base, current = (with_cache(build, own, build.name) for build in checked)
        yield base, current


@contextlib.contextmanager
def workshop(setup: str | None, say: Callable[[str], None]) -> Iterator[Callable[[str, str], Build]]:
    """A function that makes a build of a revision by its name and its commit's id, ready to run; what it made stays as
    long as the context lasts. That raises BuildError for one that cannot be made or does not run. `setup` as in
    Requested."""
    project = revisions.project(Path.cwd())
    with _own_folder() as own:

        def make(revision: str, commit: str) -> Build:
            build = _revision(project, CURRENT, revision, commit, own / commit, setup, say)
            return with_cache(_checked(build, revision), own, commit)

        yield make


def _revisions(requested: Requested, here: Path, own: Path, say: Callable[[str], None]) -> tuple[Build, Build]:
    project = revisions.project(here)
    if requested.base is None:
        commit, which = revisions.default_base(project, requested.current)
        requested = replace(requested, base=commit[:12])
        say(f"--base {requested.base}: {which}")
    # Both are looked up before anything takes long.
    asked: tuple[tuple[Role, str | None], ...] = ((BASE, requested.base), (CURRENT, requested.current))
    named = [(name, of, revisions.commit(project, f"--{name}", of)) for name, of in asked if of is not None]
    builds = [
        _revision(project, name, revision, commit, own / name, requested.setup, say) for name, revision, commit in named
    ]
    if requested.current is None:
        says, code = f"the working tree ({revisions.here(project)})", revisions.code_here(project)
        builds.append(Build(CURRENT, says, code, here, Launch(folder=here)))
    base, current = builds
    return base, current


def _revision(
    project: revisions.Project,
    name: Role,
    revision: str,
    commit: str,
    place: Path,
    setup: str | None,
    say: Callable[[str], None],
) -> Build:
    folder, python = revisions.tree(project, commit, place, cache_folder(), setup, say)
    path = os.environ.get("PYTHONPATH")
    variables = {"PYTHONPATH": revisions.moved_path(project, place, path)} if path else {}
    says = revision if commit.startswith(revision) else f"{revision} ({commit[:12]})"
    return Build(name, says, commit, folder, Launch(python, folder, variables))


def _interpreter(name: Role, python: str, here: Path) -> Build:
    """A Python by path or name. The path is not resolved: a virtual environment is known by its link's place."""
    path = python if "/" in python else shutil.which(python)
    if path is None:
        raise BuildError(
            f"--{name}-python {python}: no such command on PATH; expected a Python, such as .venv/bin/python"
        )
    absolute = str(Path(path).absolute())
    return Build(name, python, absolute, here, Launch(absolute, here))


def _checked(build: Build, called: str) -> Build:
    """The build, whose tcbench starts as a worker would, with the name of its worker. Raises BuildError."""
    python = build.launch.python
    try:
        answer = process.ask(
            [python, "-P", "-c", _PROBE],
            folder=build.launch.folder,
            environment={**os.environ, **build.launch.variables},
            limit_s=_IMPORT_S,
        )
    except TimeoutError:
        raise BuildError(f"{called}: {python} did not import tcbench within {_IMPORT_S:g} s") from None
    except OSError as error:
        raise BuildError(f"{called}: {python} cannot be started in {build.folder} ({error.strerror})") from None
    if answer.code:
        raise BuildError(
            f"{called}: {python} cannot run tcbench in {build.folder}: {answer.last_line}; "
            f"install it there: {python} -m pip install tcbench"
        )
    parent, *told = (answer.stdout.splitlines() or [""])[-1].split() or [""]
    if parent != str(os.getpid()):
        raise BuildError(f"{called}: {python} starts Python as a child; a script in its place must end in: exec python")
    worker, takes_turns, shares_times, *fields = told
    launch = replace(build.launch, worker=worker, takes_turns=takes_turns == "True")
    if shares_times != "True":  # it would keep what it chose in its first trials
        launch = replace(launch, variables={**launch.variables, messages.FRESH_AUTOTUNE: "1"})
    return replace(build, launch=launch, reads=frozenset(fields))


@contextlib.contextmanager
def _own_folder() -> Iterator[Path]:
    """A folder of this gate's for worktrees and caches, gone at its end. Folders left by gates that were killed are
    removed first."""
    parent = cache_folder()
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(files.scratch(parent))
        except OSError as error:
            raise BuildError(f"{parent}: cannot be written ({error.strerror}); TCBENCH_CACHE names another") from None
        yield folder


def with_cache(build: Build, own: Path, name: str) -> Build:
    """Return the build with a cache of its own. Both sides have the times of kernels in common, and all the images."""
    place, images = own / f"cache-{name}", generated.generated_root()
    place.mkdir()
    (place / images.name).symlink_to(images.absolute(), target_is_directory=True)
    for shared in messages.SHARED_FOLDERS:
        (own / shared).mkdir(mode=0o700, exist_ok=True)
        (place / shared).symlink_to(own / shared, target_is_directory=True)
    variables = {**build.launch.variables, cache.VARIABLE: str(place)}
    return replace(build, launch=replace(build.launch, variables=variables))
