"""Training steps that users bring: `module:factory` in a scenario, or a package's entry point.

The factory takes a Cell and returns a Session; `tcbench.step.step` makes one of plain functions. Its configs are named
freely: what a rung's name means is the factory's business. A module is looked for among the installed packages, then in
the current folder. Nothing of the user's is imported before a worker builds the session: planning stays quick, and
nothing that only reads results ever comes here. Owns that, and the errors: each is one line that names the backend."""

import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from typing import Any

from tcbench.core.errors import ScenarioError
from tcbench.core.record import Cell
from tcbench.engine.accelerators.device import OpenDevice, kinds
from tcbench.engine.rung import Package, Rung, RungSet
from tcbench.engine.session import Phase, Session


class FreeRungs(RungSet):
    """Every name is a rung, which does nothing by itself and needs nothing."""

    def __getitem__(self, name: str) -> Rung:
        return Rung()

    def problem(self, names: Any) -> str | None:
        """A name may stand in a config once."""
        twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
        return f"'{twice}' is named twice" if twice else None


class _Own:
    """A backend of the user's, of either kind."""

    def __init__(self, name: str) -> None:
        self._name = name

    def open_on(self, cell: Cell, site: OpenDevice, make_feed: Any) -> Session:
        """Nobody but the user knows what the step does: ScenarioError."""
        raise ScenarioError(f"backend '{self._name}': a step of your own cannot be traced without its device")


class OwnStep(_Own):
    """A backend named `module:factory`. A module may say of which distributions it wants the versions in a record:
    `PACKAGES = ("torch",)`."""

    # Not those that compute nothing: a step of the user's own launches no work whose time could be told.
    DEVICES: Mapping[str, tuple[Package, ...]] = {name: () for name, kind in kinds().items() if kind.simulates is None}

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.RUNGS = FreeRungs(name)

    @property
    def PACKAGES(self) -> tuple[str, ...]:  # noqa: N802
        """Imports the module."""
        return tuple(getattr(self._module(), "PACKAGES", ()))

    def open_session(self, cell: Cell) -> Session:
        """Import the module and call the factory. Raises ScenarioError where there is none, or no session comes."""
        module, _, path = self._name.partition(":")
        factory: Any = self._module()
        for part in path.split("."):
            if not hasattr(factory, part):
                there = ", ".join(
                    name for name, it in vars(factory).items() if callable(it) and not name.startswith("_")
                )
                raise ScenarioError(f"backend '{self._name}': module '{module}' has no '{path}' (it has: {there})")
            factory = getattr(factory, part)
        if not callable(factory):
            raise ScenarioError(f"backend '{self._name}': '{path}' is no function; expected one from Cell to Session")
        return checked(factory(cell), self._name)

    def _module(self) -> Any:
        """Import the module. From here on the worker's search path ends with the current folder: the factory may
        import modules from there, none of which stands in for one that is installed. Raises ScenarioError."""
        here = str(Path.cwd())
        if here not in sys.path:
            sys.path.append(here)
        module = self._name.partition(":")[0]
        if (reason := _hidden(module)) is not None:
            raise ScenarioError(f"backend '{self._name}': {reason}")
        return importlib.import_module(module)


class Registered(_Own):
    """A backend that an installed package registers. What is registered is a factory, or a module or object with
    `open_session` and, if it likes, `RUNGS`, `DEVICES` and `PACKAGES`; importing it should import no framework."""

    def __init__(self, point: importlib.metadata.EntryPoint) -> None:
        super().__init__(point.name)
        try:
            registered = point.load()
        except Exception as error:
            reason = " ".join(f"{type(error).__name__}: {error}".split())
            raise ScenarioError(f"backend '{point.name}' ({point.value}) cannot be imported: {reason}") from error
        self._open = getattr(registered, "open_session", registered)
        if not callable(self._open):
            raise ScenarioError(f"backend '{point.name}' ({point.value}): expected a factory, or open_session in it")
        self.RUNGS = getattr(registered, "RUNGS", FreeRungs(point.name))
        self.DEVICES = getattr(registered, "DEVICES", OwnStep.DEVICES)
        self.PACKAGES = tuple(getattr(registered, "PACKAGES", ()))

    def open_session(self, cell: Cell) -> Session:
        """Call the factory. Raises ScenarioError where no session comes."""
        return checked(self._open(cell), self._name)


def problem(name: str) -> str | None:
    """Why `module:factory` cannot be, or None. Looks for the module and imports nothing, its parents neither."""
    module, _, path = name.partition(":")
    if not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
        return f"backend '{name}': expected module:factory, such as my_step:open_session"
    if module not in sys.modules and _spec(module) is None:
        where = f"in {Path.cwd()}, and none is installed"
        return f"backend '{name}': no module '{module}' {where}; run where {module.replace('.', '/')}.py is"
    reason = _hidden(module)
    return None if reason is None else f"backend '{name}': {reason}"


def _hidden(module: str) -> str | None:
    """Say which installed module hides the one of that name in the current folder, or return None."""
    top = module.partition(".")[0]
    here = PathFinder.find_spec(top, [str(Path.cwd())])
    spec = _spec(top)
    if here is None or here.origin is None or spec is None or spec.origin is None:
        return None
    if Path(spec.origin).resolve() == Path(here.origin).resolve():
        return None
    remedy = "rename it" if top in sys.stdlib_module_names else "PYTHONPATH=. puts this folder first"
    return f"{here.origin} is hidden by the installed module {spec.origin}: {remedy}"


def checked(session: Any, name: str) -> Session:
    """The session, if it has what the measuring loop asks for. Raises ScenarioError naming what it lacks."""
    for what in ("phases", "clock", "facts", "close"):
        if not hasattr(session, what):
            got = type(session).__name__
            raise ScenarioError(
                f"backend '{name}': expected a session (tcbench.engine.session), got {got} without '{what}'"
            )
    phases = tuple(session.phases)
    if not phases:
        raise ScenarioError(f"backend '{name}': its session has no phases; expected one at least")
    for phase in phases:
        if not isinstance(phase, Phase) or not callable(phase.run):
            raise ScenarioError(f"backend '{name}': expected phases to be tcbench.engine.session.Phase, got {phase!r}")
    names = [phase.name for phase in phases]
    twice = next((phase for place, phase in enumerate(names) if phase in names[:place]), None)
    if twice is not None:
        raise ScenarioError(f"backend '{name}': two phases are named '{twice}'; expected names that differ")
    for what in ("mark", "read", "of"):
        if not hasattr(session.clock, what):
            raise ScenarioError(f"backend '{name}': its clock has no '{what}'; expected a tcbench.engine.session.Clock")
    checked_session: Session = session
    return checked_session


def _spec(module: str) -> ModuleSpec | None:
    """The place that a module would be imported from. `find_spec` alone would import a dotted one's parents."""
    top, *inner = module.split(".")
    importlib.invalidate_caches()
    try:
        spec = importlib.util.find_spec(top)
        if spec is None or spec.origin is None:  # a folder without __init__.py gives way to a package further back
            spec = PathFinder.find_spec(top, [*sys.path, str(Path.cwd())]) or spec
    except ValueError:  # a parent that was made by hand
        return None
    for depth in range(len(inner)):
        if spec is None:
            return None
        name = ".".join((top, *inner[: depth + 1]))
        spec = PathFinder.find_spec(name, list(spec.submodule_search_locations or ()))
    return spec
