"""NVTX ranges in the domain `tcbench`: one per step (payload: its number) and one per phase, so that Nsight Systems
shows what the measuring loop did. With no tool attached the library's stand-in makes each call a no-op."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nvtx

DOMAIN = "tcbench"
STEP = "step"


class Ranges:
    """Attributes are built once; push and pop are the only calls in the loop."""

    def __init__(self, phases: Sequence[str]) -> None:
        domain = nvtx.get_domain(DOMAIN)
        self._domain = domain
        self._step: Any = domain.get_event_attributes(message=STEP, payload=0)
        self.phases: tuple[Any, ...] = tuple(domain.get_event_attributes(message=name) for name in phases)
        self.push = domain.push_range
        self.pop = domain.pop_range

    def step(self, number: int) -> Any:
        """The step's attributes, with its number as payload."""
        if self._step is not None:
            self._step.payload = number
        return self._step
