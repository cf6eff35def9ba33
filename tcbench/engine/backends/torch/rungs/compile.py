"""compile: torch.compile traces the model's forward and backward pass on the first step and generates kernels that fuse
what lies between convolutions. The first step takes minutes on a CPU; PyTorch keeps what it compiled."""

from __future__ import annotations

import shutil
import sysconfig
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tcbench.engine.rung import ROUNDING, Package, Requires, Rung


@dataclass(frozen=True)
class _Compiler(Package):
    """A program in place of a package."""

    def is_installed(self) -> bool:
        return shutil.which(self.module) is not None


@dataclass(frozen=True)
class _Header(Package):
    """A header of Python's own. What PyTorch generates for a processor includes it, and so does the launcher that
    Triton builds on a GPU (triton/runtime/build.py, which takes this scheme's folder on Debian too)."""

    def is_installed(self) -> bool:
        return (Path(sysconfig.get_paths("posix_prefix")["include"]) / self.module).is_file()


class Compile(Rung):
    name = "compile"
    says = "generated kernels for what lies between convolutions (torch.compile)"
    requires = Requires(
        packages=(
            _Compiler("g++", "apt-get install g++"),
            _Header("Python.h", "apt-get install python3-dev, or the headers of the Python in use"),
        )
    )
    parity = ROUNDING
    source = "PyTorch documentation, torch.compile"

    def parts(self, parts: Any, settings: Any) -> Any:
        import torch

        return replace(parts, body=torch.compile)


RUNG = Compile()
