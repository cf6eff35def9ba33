"""compile: torch.compile traces the model's forward and backward pass on the first step and generates kernels that fuse
what lies between convolutions. The first step takes minutes on a CPU; PyTorch keeps what it compiled."""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from typing import Any

from tcbench.rung import ROUNDING, Package, Requires, Rung


@dataclass(frozen=True)
class _Compiler(Package):
    """A program in place of a package."""

    def is_installed(self) -> bool:
        return shutil.which(self.module) is not None


class Compile(Rung):
    name = "compile"
    says = "generated kernels for what lies between convolutions (torch.compile)"
    requires = Requires(packages=(_Compiler("g++", "apt-get install g++"),))
    parity = ROUNDING
    source = "PyTorch documentation, torch.compile"

    def parts(self, parts: Any, settings: Any) -> Any:
        import torch

        return replace(parts, body=torch.compile)


RUNG = Compile()
