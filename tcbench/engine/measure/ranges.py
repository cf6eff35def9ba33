"""NVTX ranges, by which Nsight Systems shows steps, phases, layers and the cell.

The domain `tcbench` has a range per step (payload: its number), per phase and, if the session reports them, per layer,
and marks that name the cell. Without a tool every call does nothing."""

import os
from collections.abc import Sequence
from typing import Any

import nvtx

DOMAIN = "tcbench"
STEP = "step"
CELL_MARK = "cell "
"""The prefix of the mark that names the cell; JSON follows."""


def attached() -> bool:
    """Return whether a tool is attached. NVTX loads it from the library that this variable names (documentation of
    NVTX, "Tools")."""
    return bool(os.environ.get("NVTX_INJECTION64_PATH"))


class Ranges:
    """The ranges of a session. Their attributes are built once, so that the hot loop only calls `push` and `pop`."""

    def __init__(self, phases: Sequence[str]) -> None:
        domain = _domain()
        self._domain = domain
        self._step: Any = domain.get_event_attributes(message=STEP, payload=0)
        self.phases: tuple[Any, ...] = tuple(domain.get_event_attributes(message=name) for name in phases)
        self.push = domain.push_range
        self.pop = domain.pop_range
        self._layers: dict[str, Any] = {}

    def step(self, number: int) -> Any:
        """Return the attributes of a step's range, with its number as payload."""
        if self._step is not None:  # None without a tool
            self._step.payload = number
        return self._step

    def layer(self, name: str) -> Any:
        """Return the attributes of a layer's range."""
        if name not in self._layers:
            self._layers[name] = self._domain.get_event_attributes(message=name)
        return self._layers[name]

    def mark(self, text: str) -> None:
        """Mark this point in time with a text."""
        self._domain.mark(self._domain.get_event_attributes(message=text))


def _domain() -> Any:
    """Return the NVTX domain, enabled for every attached tool.

    Since 0.2.12 nvtx calls nvtxDomainIsEnabled and returns a dummy domain if the answer is no. Older tools, such as
    Nsight Systems 2022.4, do not implement that function and would record nothing. With a tool attached, this function
    therefore makes a real domain."""
    domain = nvtx.get_domain(DOMAIN)
    library = getattr(nvtx, "_lib", None)
    if not attached() or library is None or not isinstance(domain, library.lib.DummyDomain) or not nvtx.enabled():
        return domain
    enabled = object.__new__(library.lib.Domain)
    enabled.handle = library.lib.DomainHandle(DOMAIN)
    enabled.__init__(DOMAIN)
    return enabled
