"""Marks for results that are simulated, or computed in another precision than their config names."""

from collections.abc import Iterable

from tcbench.core.record import Cell, Environment
from tcbench.core.timeline import Timeline


def mark_simulated(title: str, results: Iterable[Environment | Timeline | None]) -> str:
    """Append to a title "(simulated)" or "(in part simulated)" if all or some of its results are."""
    word = measured_or_simulated(results)
    return title if word == "measured" else f"{title} ({word})"


def measured_or_simulated(results: Iterable[Environment | Timeline | None]) -> str:
    """Return "measured", "simulated" or "in part simulated" for results by their environments or timelines."""
    answers = {r.source == "simulated" if isinstance(r, Timeline) else is_simulated(r) for r in results}
    return "measured" if True not in answers else "in part simulated" if False in answers else "simulated"


def simulation_lines(environments: Iterable[Environment | None]) -> list[str]:
    """Return a line for each simulation among results; an empty list if all were measured."""
    return list(dict.fromkeys(e.simulated.says for e in environments if e is not None and e.simulated is not None))


def is_simulated(environment: Environment | None) -> bool | None:
    """Return whether a cell's device was simulated; None if its environment was not recorded."""
    return None if environment is None else environment.simulated is not None


def emulation_lines(cells: Iterable[Cell]) -> list[str]:
    """Return a line if a CPU computed fp16 in a higher precision; otherwise an empty list."""
    line = "on the CPU, fp16 stores 16 bits but computes in fp32: the rung runs, but its gain does not show"
    return [line] * any(cell.device == "cpu" and "fp16" in cell.rungs for cell in cells)
