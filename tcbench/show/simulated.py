"""The words that say which results are simulated, or computed otherwise than their config says: in titles, and as lines
beside figures."""

from __future__ import annotations

from collections.abc import Iterable

from tcbench.core.record import Cell, Environment


def marked(title: str, environments: Iterable[Environment | None]) -> str:
    """A title of results, which says so where all or some of them are simulated."""
    answers = set(map(is_simulated, environments))
    if True not in answers:
        return title
    return f"{title} (in part simulated)" if False in answers else f"{title} (simulated)"


def lines(environments: Iterable[Environment | None]) -> list[str]:
    """A line for each simulation among results; none where all were measured."""
    return list(dict.fromkeys(e.simulated.says for e in environments if e is not None and e.simulated is not None))


def is_simulated(environment: Environment | None) -> bool | None:
    """Whether a cell's device was simulated; None where nothing of its run told."""
    return None if environment is None else environment.simulated is not None


def emulated(cells: Iterable[Cell]) -> list[str]:
    """A line where a processor computed a low precision in a higher one."""
    if any(cell.device == "cpu" and "fp16" in cell.rungs for cell in cells):
        return [
            "on the CPU fp16 computes in fp32 and only stores 16 bits: it runs the rung, but does not show its gain"
        ]
    return []
