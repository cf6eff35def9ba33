"""NVTX ranges in the domain `tcbench`: one per step (payload: its number) and one per phase, so that Nsight Systems
shows what the measuring loop did; one per layer where a session tells its layers; and marks that name the cell. With no
tool attached the library's stand-in makes each call a no-op."""

import os
from collections.abc import Sequence
from typing import Any

import nvtx

DOMAIN = "tcbench"
STEP = "step"
CELL_MARK = "cell "
"""Prefix of the mark that says which cell is measured; JSON follows."""


def attached() -> bool:
    """Whether a tool listens: NVTX loads the library that this variable names (NVTX's documentation, "Tools")."""
    return bool(os.environ.get("NVTX_INJECTION64_PATH"))


class Ranges:
    """Attributes are built once; push and pop are the only calls in the loop."""

    def __init__(self, phases: Sequence[str]) -> None:
        domain = _domain()
        self._domain = domain
        self._step: Any = domain.get_event_attributes(message=STEP, payload=0)
        self.phases: tuple[Any, ...] = tuple(domain.get_event_attributes(message=name) for name in phases)
        self.push = domain.push_range
        self.pop = domain.pop_range
        self._layers: dict[str, Any] = {}

    def step(self, number: int) -> Any:
        """The step's attributes, with its number as payload."""
        if self._step is not None:
            self._step.payload = number
        return self._step

    def layer(self, name: str) -> Any:
        """A layer's attributes, built when it is first asked for."""
        if name not in self._layers:
            self._layers[name] = self._domain.get_event_attributes(message=name)
        return self._layers[name]

    def mark(self, text: str) -> None:
        """A point in time with a text."""
        self._domain.mark(self._domain.get_event_attributes(message=text))


def _domain() -> Any:
    """The domain, where a tool listens even if it does not say so. nvtx from 0.2.12 on asks the tool whether the domain
    is enabled (nvtxDomainIsEnabled) and hands out a stand-in when the answer is no; older tools, such as Nsight Systems
    2022.4, know no such question and record nothing. So where a tool is attached its answer is not waited for."""
    domain = nvtx.get_domain(DOMAIN)
    library = getattr(nvtx, "_lib", None)
    if not attached() or library is None or not isinstance(domain, library.lib.DummyDomain) or not nvtx.enabled():
        return domain
    asked = object.__new__(library.lib.Domain)
    asked.handle = library.lib.DomainHandle(DOMAIN)
    asked.__init__(DOMAIN)
    return asked
