"""fused_optimizer: momentum, weight decay and update of many parameters in one kernel. It also takes the loss scale and
the overflow flag on the device, so that a GradScaler no longer waits for it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tcbench.engine.rung import ROUNDING, Rung


class FusedOptimizer(Rung):
    name = "fused_optimizer"
    says = "the whole update in one kernel (SGD's fused=True)"
    conflicts = frozenset({"foreach"})
    parity = ROUNDING
    source = "PyTorch documentation, torch.optim: fused"

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        return replace(optimizer, how=(("fused", True),))


RUNG = FusedOptimizer()
