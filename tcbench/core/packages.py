"""Packages that only some rungs, devices or commands need."""

import importlib.util
from dataclasses import dataclass


@dataclass(frozen=True)
class Package:
    """A package's import name, and the command that installs it."""

    module: str
    install: str

    def is_installed(self) -> bool:
        """Return whether the package can be found, without importing it."""
        try:
            return importlib.util.find_spec(self.module) is not None
        except ModuleNotFoundError:
            return False

    def misfit(self, compute_capability: tuple[int, int] | None) -> str | None:
        """Return why the installed package does not serve a GPU of this compute capability and what helps, or None."""
        return None
