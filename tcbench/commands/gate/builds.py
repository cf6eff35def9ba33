"""Base and current of a gate, prepared to run: their names, and how their workers are started.

A build is an interpreter, or a revision of the user's project in a worktree with its own environment. Each build has
its own cache in the gate's folder, so that neither uses what the other compiled. The two share the measured times of
candidate kernels (`messages.SIDE`), so that they choose the same kernels."""

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
from tcbench.engine.api import generated_images
from tcbench.run.gate import BASE, CURRENT, Role
from tcbench.run.worker_launch import Launch

_IMPORT_S = 120.0
"""Time limit in seconds for a Python to import tcbench."""

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
"""Script that prints what a build's tcbench can do.

It prints the parent's process id, the worker's module (`tcbench.measure.worker` in older revisions), whether the worker
can take turns with another worker, whether it shares kernel times with the other side, and, if known, the fields of a
cell that it reads."""


@dataclass(frozen=True)
class Build:
    """One side of a gate, ready to run.

    `label` is its name in messages. `code` identifies its code: a commit id, with a digest of uncommitted changes, or
    the path of an interpreter. `folder` holds its project. `cell_fields` are the fields of a cell that its worker
    reads; the set is empty if the worker does not report them."""

    name: Role
    label: str
    code: str
    folder: Path
    launch: Launch
    cell_fields: frozenset[str] = frozenset()

    def launch_as_side(self) -> Launch:
        """Return the launch of a worker that shares kernel times with the other side."""
        return replace(self.launch, variables={**self.launch.variables, messages.SIDE: self.name})

    def check_cells(self, cells: Iterable[Cell]) -> None:
        """Raise BuildError if a cell sets a field that the worker does not read. The worker would silently measure a
        different cell under the same name."""
        fields = self.cell_fields
        unread = [field for field in msgspec.structs.fields(Cell) if fields and field.name not in fields]
        for cell, field in itertools.product(cells, unread):
            if (setting := getattr(cell, field.name)) != field.default:
                raise BuildError(
                    f"{self.name} {self.label} does not support '{field.name}' of {cell.label} and would ignore "
                    f"{setting!r}: expected {field.default!r}"
                )


@dataclass(frozen=True)
class BuildRequest:
    """The builds that the command line asks for: two interpreters, or two revisions.

    `setup` is the command that creates a revision's environment. None: the default command, if the revision is a Python
    project."""

    base: str | None = None
    current: str | None = None
    base_python: str | None = None
    current_python: str | None = None
    setup: str | None = None

    def check(self) -> None:
        """Raise BuildError for options that exclude each other."""
        if self.base is not None and self.base_python is not None:
            raise BuildError("expected either --base REVISION or --base-python PYTHON, not both")
        if self.base_python is not None and self.current is not None:
            raise BuildError("--current REVISION needs --base REVISION; expected --current-python PYTHON")
        if self.base_python is None and self.current_python is not None:
            raise BuildError("--current-python needs --base-python; --setup creates a revision's environment")
        if self.base_python is not None and self.setup is not None:
            raise BuildError("--setup creates a revision's environment; it needs --base REVISION")


def cache_folder() -> Path:
    """Return the folder in which gates keep worktrees and caches.

    Raises BuildError if the folder is not writable by this user alone: the gate runs code from it."""
    folder = cache.private_folder("gate")
    if folder is None:
        raise BuildError(f"{cache.folder('gate')}: must be writable by you alone; set TCBENCH_CACHE to another folder")
    return folder.absolute()


@contextlib.contextmanager
def prepare_builds(request: BuildRequest, say: Callable[[str], None]) -> Iterator[tuple[Build, Build]]:
    """Yield base and current, ready to run. They are removed when the context ends. Raises BuildError."""
    request.check()
    folder = Path.cwd()
    with _scratch_folder() as scratch:
        if request.base_python is None:
            builds = _revisions(request, folder, scratch, say)
        else:
            builds = (
                _interpreter(BASE, str(request.base_python), folder),
                _interpreter(CURRENT, request.current_python or sys.executable, folder),
            )
        pythons = {BASE: request.base_python, CURRENT: request.current_python}
        probed = [_probed(build, f"--{build.name}-python" if pythons[build.name] else build.name) for build in builds]
        base, current = (with_cache(build, scratch, build.name) for build in probed)
        yield base, current


@contextlib.contextmanager
def revision_builder(setup: str | None, say: Callable[[str], None]) -> Iterator[Callable[[str, str], Build]]:
    """Yield a function that makes a build from a revision's name and commit id.

    Its builds are removed when the context ends. The function raises BuildError if a build cannot be made or does not
    run. `setup`: see BuildRequest."""
    project = revisions.find_project(Path.cwd())
    with _scratch_folder() as scratch:

        def make(revision: str, commit: str) -> Build:
            build = _revision(project, CURRENT, revision, commit, scratch / commit, setup, say)
            return with_cache(_probed(build, revision), scratch, commit)

        yield make


def _revisions(request: BuildRequest, folder: Path, scratch: Path, say: Callable[[str], None]) -> tuple[Build, Build]:
    """Return base and current of a gate on git revisions. Without --current, current is the working tree."""
    project = revisions.find_project(folder)
    if request.base is None:
        commit, description = revisions.default_base(project, request.current)
        request = replace(request, base=commit[:12])
        say(f"--base {request.base}: {description}")
    sides: tuple[tuple[Role, str | None], ...] = ((BASE, request.base), (CURRENT, request.current))
    revision_of = {side: revision for side, revision in sides if revision is not None}
    # Resolve both revisions before the first slow step, so that a typing mistake is reported at once.
    commits = {side: revisions.resolve(project, f"--{side}", revision) for side, revision in revision_of.items()}
    builds = [
        _revision(project, side, revision_of[side], commit, scratch / side, request.setup, say)
        for side, commit in commits.items()
    ]
    if request.current is None:
        label, code = f"the working tree ({revisions.checked_out(project)})", revisions.checked_out_code(project)
        builds.append(Build(CURRENT, label, code, folder, Launch(folder=folder)))
    base, current = builds
    return base, current


def _revision(
    project: revisions.Project,
    name: Role,
    revision: str,
    commit: str,
    worktree: Path,
    setup: str | None,
    say: Callable[[str], None],
) -> Build:
    """Check out a commit in `worktree`, set up its environment and return the build."""
    folder, python = revisions.check_out(project, commit, worktree, cache_folder(), setup, say)
    path = os.environ.get("PYTHONPATH")
    variables = {"PYTHONPATH": revisions.python_path_in(worktree, project, path)} if path else {}
    variables |= _first_on_path(python) if python != sys.executable else {}
    label = revision if commit.startswith(revision) else f"{revision} ({commit[:12]})"
    return Build(name, label, commit, folder, Launch(python, folder, variables))


def _interpreter(name: Role, python: str, folder: Path) -> Build:
    """Return the build whose interpreter is `python`, a path or the name of a command.

    Symbolic links are not followed, because Python finds its virtual environment by the path that started it."""
    path = python if "/" in python else shutil.which(python)
    if path is None:
        raise BuildError(
            f"--{name}-python {python}: no such command on PATH; expected a Python, such as .venv/bin/python"
        )
    absolute = str(Path(path).absolute())
    return Build(name, python, absolute, folder, Launch(absolute, folder, _first_on_path(absolute)))


def _first_on_path(python: str) -> dict[str, str]:
    """Return the variable that makes a scenario's command find this interpreter, and the programs next to it, first."""
    return {"PATH": os.pathsep.join([str(Path(python).parent), os.environ.get("PATH", os.defpath)])}


def _probed(build: Build, option: str) -> Build:
    """Return the build with its worker's module and abilities, which its own interpreter prints (`_PROBE`).

    `option` names the build in error messages. Raises BuildError."""
    python = build.launch.python
    try:
        answer = process.ask(
            [python, "-P", "-c", _PROBE],
            folder=build.launch.folder,
            environment={**os.environ, **build.launch.variables},
            limit_s=_IMPORT_S,
        )
    except TimeoutError:
        raise BuildError(f"{option}: {python} did not import tcbench within {_IMPORT_S:g} s") from None
    except OSError as error:
        raise BuildError(f"{option}: {python} cannot be started in {build.folder} ({error.strerror})") from None
    if answer.code:
        raise BuildError(
            f"{option}: {python} cannot run tcbench in {build.folder}: {answer.last_line}; "
            f"install it there, in a checkout of tcbench: {python} -m pip install ."
        )
    parent, *abilities = (answer.stdout.splitlines() or [""])[-1].split() or [""]
    if parent != str(os.getpid()):
        raise BuildError(f"{option}: {python} starts Python as a child; a wrapper script must end in: exec python")
    worker, takes_turns, shares_times, *fields = abilities
    variables = {**build.launch.variables}
    if shares_times != "True":  # this worker would keep the kernels that it chose in its first trials
        variables[messages.FRESH_AUTOTUNE] = "1"
    launch = replace(build.launch, worker=worker, takes_turns=takes_turns == "True", variables=variables)
    return replace(build, launch=launch, cell_fields=frozenset(fields))


@contextlib.contextmanager
def _scratch_folder() -> Iterator[Path]:
    """Yield a folder for this gate's worktrees and caches. Removes it at the end, and those of killed gates first."""
    parent = cache_folder()
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(files.scratch(parent))
        except OSError as error:
            raise BuildError(
                f"{parent}: cannot be written ({error.strerror}); set TCBENCH_CACHE to another folder"
            ) from None
        yield folder


def with_cache(build: Build, scratch: Path, name: str) -> Build:
    """Return the build with its own cache in `scratch`, which links to the shared images and kernel times."""
    own_cache, images = scratch / f"cache-{name}", generated_images().root
    own_cache.mkdir()
    (own_cache / images.name).symlink_to(images.absolute(), target_is_directory=True)
    for shared in messages.SHARED_FOLDERS:
        (scratch / shared).mkdir(mode=0o700, exist_ok=True)
        (own_cache / shared).symlink_to(scratch / shared, target_is_directory=True)
    variables = {**build.launch.variables, cache.VARIABLE: str(own_cache)}
    return replace(build, launch=replace(build.launch, variables=variables))
