"""The words that say which results are simulated, or computed otherwise than their config says."""

from collections.abc import Iterable

from tcbench.core.record import Cell, Environment
from tcbench.core.timeline import Timeline


def marked(title: str, results: Iterable[Environment | Timeline | None]) -> str:
    """A title of results or timelines, which says so where all or some of them are simulated."""
    word = heading(results)
    return title if word == "measured" else f"{title} ({word})"


def heading(results: Iterable[Environment | Timeline | None]) -> str:
    """The word to head what was run with: "measured", or "simulated"."""
    answers = {one.source == "simulated" if isinstance(one, Timeline) else is_simulated(one) for one in results}
    return "measured" if True not in answers else "in part simulated" if False in answers else "simulated"


def lines(environments: Iterable[Environment | None]) -> list[str]:
    """A line for each simulation among results; none where all were measured."""
    return list(dict.fromkeys(e.simulated.says for e in environments if e is not None and e.simulated is not None))


def is_simulated(environment: Environment | None) -> bool | None:
    """Whether a cell's device was simulated; None where nothing of its run told."""
    return None if environment is None else environment.simulated is not None


def emulated(cells: Iterable[Cell]) -> list[str]:
    """A line where a processor computed a low precision in a higher one."""
    says = "on the CPU fp16 computes in fp32 and only stores 16 bits: it runs the rung, but does not show its gain"
    return [says] * any(cell.device == "cpu" and "fp16" in cell.rungs for cell in cells)
