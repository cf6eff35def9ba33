"""Capturing a step as a graph once its memory use is stable, and replaying it from then on."""

from collections.abc import Callable, Sequence

from tcbench.engine.accelerators.protocol import current

LEAST_EAGER_STEPS = 2
"""The fewest calls before the capture: the first tunes plans, the second shows the memory use without tuning."""
MOST_EAGER_STEPS = 6
"""The most calls before the capture. Capturing while memory still grows is slow in CuPy's relaxed mode, but correct."""


class Replay:
    """A step that calls the functions `runs` at first, and replays a captured graph of them later.

    The capture follows the first step in which graph memory did not grow, so that it allocates nothing from the driver.
    Memory that the captured step allocates belongs to the graph. Arrays from outside (batch, weights) must keep their
    addresses."""

    def __init__(self, runs: Sequence[Callable[[], None]]) -> None:
        self._runs = tuple(runs)
        self._calls = 0
        self._settled = False
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        """Run the functions; once graph memory is stable, capture them instead; from then on, launch the graph."""
        if self._replay is not None:
            self._replay()
            return
        accelerator = current()
        with accelerator.graph_memory():
            if self._calls < MOST_EAGER_STEPS and not self._settled:
                before = accelerator.graph_bytes()
                self._run()
                self._calls += 1
                self._settled = self._calls >= LEAST_EAGER_STEPS and accelerator.graph_bytes() == before
                return
            self._replay = accelerator.capture(self._run)
        # The capture did not do the step's work.
        self._replay()

    def captured(self) -> bool:
        """Return whether the step has been captured."""
        return self._replay is not None

    def _run(self) -> None:
        for run in self._runs:
            run()
