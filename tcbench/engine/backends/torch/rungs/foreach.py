"""foreach: the optimizer's arithmetic on lists of tensors: a few launches for all parameters. PyTorch's default on a
GPU, not on a CPU."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tcbench.engine.rung import ROUNDING, Rung


class Foreach(Rung):
    name = "foreach"
    says = "the optimizer works on lists of tensors (SGD's foreach=True)"
    conflicts = frozenset({"fused_optimizer"})
    parity = ROUNDING
    source = "PyTorch documentation, torch.optim: foreach"

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        return replace(optimizer, how=(("foreach", True),))


RUNG = Foreach()
