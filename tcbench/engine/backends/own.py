"""Users' own training steps: `module:factory` in a scenario, or an entry point of an installed package.

The factory takes a Cell and returns a Session; `tcbench.step.step` makes one from plain functions. The names of its
configs are free: only the factory interprets a rung's name. Modules are searched among the installed packages, then in
the current folder. User code is imported only when a worker builds the session, so that planning stays fast and
commands that only read results never run it. Each error is one line that names the backend."""

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any, cast

from tcbench.core.errors import ScenarioError
from tcbench.core.packages import Package
from tcbench.core.record import COMMAND_BACKEND, Cell
from tcbench.engine.accelerators.device import OpenDevice, device_kinds
from tcbench.engine.rung import Rung, RungSet
from tcbench.engine.session import Phase, Session


class FreeRungs(RungSet):
    """A rung set that accepts every name, as a rung without effect or requirements."""

    def __getitem__(self, name: str) -> Rung:
        return Rung()

    def problem(self, names: Any) -> str | None:
        """Return an error if a config has a name twice, else None."""
        duplicate = _first_duplicate(names)
        return f"'{duplicate}' is named twice" if duplicate else None


class _UserBackend:
    """The base class of users' backends."""

    def __init__(self, name: str) -> None:
        self._name = name

    def open_on(self, cell: Cell, site: OpenDevice, make_feed: Any) -> Session:
        """Raise ScenarioError: a user's step cannot be run on another device than its own."""
        raise ScenarioError(f"backend '{self._name}': a step of your own cannot be traced without its device")


class OwnStep(_UserBackend):
    """A backend named `module:factory`, or the one of configs that run a program.

    The module may list the distributions whose versions a record shows: `PACKAGES = ("torch",)`."""

    # Without simulated devices: tcbench does not know the work of a user's step, so it cannot model its time.
    DEVICES: Mapping[str, tuple[Package, ...]] = {
        name: () for name, kind in device_kinds().items() if kind.simulates is None
    }

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.RUNGS = FreeRungs(name)

    @property
    def PACKAGES(self) -> tuple[str, ...]:  # noqa: N802
        """The distributions whose versions a record shows. Imports the module, if the backend is one."""
        if self._name == COMMAND_BACKEND:
            return ()
        return tuple(getattr(self._module(), "PACKAGES", ()))

    def open_session(self, cell: Cell) -> Session:
        """Import the module and call the factory. Raises ScenarioError if it is missing or returns no session."""
        module, _, path = self._name.partition(":")
        factory: Any = self._module()
        for part in path.split("."):
            if not hasattr(factory, part):
                public = ", ".join(
                    name for name, member in vars(factory).items() if callable(member) and not name.startswith("_")
                )
                raise ScenarioError(f"backend '{self._name}': module '{module}' has no '{path}' (it has: {public})")
            factory = getattr(factory, part)
        if not callable(factory):
            raise ScenarioError(f"backend '{self._name}': '{path}' is not a function from Cell to Session")
        return checked_session(factory(cell), self._name)

    def _module(self) -> Any:
        """Import the module. Raises ScenarioError if an installed module hides it.

        Appends the current folder to the search path, so that the factory may import modules from there; installed
        modules come first."""
        folder = str(Path.cwd())
        if folder not in sys.path:
            sys.path.append(folder)
        module = self._name.partition(":")[0]
        if (reason := _hidden_module_error(module)) is not None:
            raise ScenarioError(f"backend '{self._name}': {reason}")
        return importlib.import_module(module)


class RegisteredBackend(_UserBackend):
    """A backend that an installed package registers as an entry point.

    The entry point is a factory, or a module or object with `open_session` and optionally `RUNGS`, `DEVICES` and
    `PACKAGES`. Importing it should not import a framework."""

    def __init__(self, point: importlib.metadata.EntryPoint) -> None:
        super().__init__(point.name)
        try:
            registered = point.load()
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ScenarioError(f"backend '{point.name}' ({point.value}) cannot be imported: {reason}") from error
        self._open = getattr(registered, "open_session", registered)
        if not callable(self._open):
            raise ScenarioError(
                f"backend '{point.name}' ({point.value}): expected a factory, or a module with open_session"
            )
        self.RUNGS = getattr(registered, "RUNGS", FreeRungs(point.name))
        self.DEVICES = getattr(registered, "DEVICES", OwnStep.DEVICES)
        self.PACKAGES = tuple(getattr(registered, "PACKAGES", ()))

    def open_session(self, cell: Cell) -> Session:
        """Call the factory. Raises ScenarioError if it does not return a session."""
        return checked_session(self._open(cell), self._name)


def problem(name: str) -> str | None:
    """Return why there is no backend `module:factory`, or None if its module is found and not hidden by another one.
    Imports neither the module nor its parents."""
    module, _, path = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        return f"backend '{name}': expected module:factory, such as my_step:open_session"
    if module not in sys.modules and _spec(module) is None:
        return (
            f"backend '{name}': no module '{module}' in {Path.cwd()}, and none is installed; "
            f"run in the folder of {module.replace('.', '/')}.py"
        )
    reason = _hidden_module_error(module)
    return None if reason is None else f"backend '{name}': {reason}"


def _hidden_module_error(module: str) -> str | None:
    """Return the error if an installed module hides the one of that name in the current folder, else None."""
    top = module.partition(".")[0]
    local = PathFinder.find_spec(top, [str(Path.cwd())])
    spec = _spec(top)
    if local is None or local.origin is None or spec is None or spec.origin is None:
        return None
    if Path(spec.origin).resolve() == Path(local.origin).resolve():
        return None
    remedy = "rename it" if top in sys.stdlib_module_names else "set PYTHONPATH=. to put this folder first"
    return f"{local.origin} is hidden by the installed module {spec.origin}: {remedy}"


def _first_duplicate(names: Sequence[str]) -> str | None:
    """Return the first name that occurs a second time, or None."""
    return next((name for place, name in enumerate(names) if name in names[:place]), None)


def checked_session(session: Any, name: str) -> Session:
    """Return the session if it has everything that the measuring loop uses, else raise ScenarioError."""
    for attribute in ("phases", "clock", "facts", "close"):
        if not hasattr(session, attribute):
            got = type(session).__name__
            raise ScenarioError(
                f"backend '{name}': expected a session (tcbench.engine.session), got {got} without '{attribute}'"
            )
    phases = tuple(session.phases)
    if not phases:
        raise ScenarioError(f"backend '{name}': its session has no phases; expected at least one")
    for phase in phases:
        if not isinstance(phase, Phase) or not callable(phase.run):
            raise ScenarioError(f"backend '{name}': expected phases to be tcbench.engine.session.Phase, got {phase!r}")
    duplicate = _first_duplicate([phase.name for phase in phases])
    if duplicate is not None:
        raise ScenarioError(f"backend '{name}': two phases are named '{duplicate}'; expected different names")
    for attribute in ("mark", "read", "of"):
        if not hasattr(session.clock, attribute):
            raise ScenarioError(
                f"backend '{name}': its clock has no '{attribute}'; expected a tcbench.engine.session.Clock"
            )
    return cast(Session, session)


def _spec(module: str) -> ModuleSpec | None:
    """Return the spec that a module would be imported by, or None if there is no such module. Unlike
    `importlib.util.find_spec`, this does not import the parents of a dotted name."""
    top, *inner = module.split(".")
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(top)
        if spec is None or spec.origin is None:  # a package later in the path takes precedence over a plain folder
            spec = PathFinder.find_spec(top, [*sys.path, str(Path.cwd())]) or spec
    except ValueError:  # a module in sys.modules without a spec
        return None
    for depth in range(len(inner)):
        if spec is None:
            return None
        name = ".".join((top, *inner[: depth + 1]))
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations or ()))
    return spec
