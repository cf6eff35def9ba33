"""The lines that say which results are simulated, to stand before their figures."""

from __future__ import annotations

from collections.abc import Iterable

from tcbench.core.record import Environment


def lines(environments: Iterable[Environment | None]) -> list[str]:
    """A line for each simulation among results; none where all were measured."""
    return list(dict.fromkeys(e.simulated.says for e in environments if e is not None and e.simulated is not None))


def is_simulated(environment: Environment | None) -> bool | None:
    """Whether a cell's device was simulated; None where nothing of its run told."""
    return None if environment is None else environment.simulated is not None
