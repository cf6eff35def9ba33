"""Packages that only some backends, rungs, devices or commands need."""

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


INSTALL_LADDER = (
    "uv sync, or PIP_CONSTRAINT=build-constraints.txt PIP_BUILD_CONSTRAINT=build-constraints.txt pip install "
    "'.[ladder]', in a checkout of tcbench"
)
"""How to install the extra `ladder`. Chainer builds only with the older setuptools that the constraint names."""

CHAINER, ML_DTYPES = LADDER = (Package("chainer", INSTALL_LADDER), Package("ml_dtypes", INSTALL_LADDER))
"""The packages of the extra `ladder` that tcbench's own networks cannot do without."""
