"""Captures a step's work once its memory has settled, replays it after."""

from collections.abc import Callable, Sequence

from tcbench.engine.accelerators.protocol import current

LEAST_EAGER_STEPS = 2
"""Calls before the capture: the first makes plans and tunes them, the second sees what the first has left."""
MOST_EAGER_STEPS = 6
"""Memory that goes on growing is captured all the same: in CuPy's relaxed mode that is slow, not wrong."""


class Replay:
    """Calls `runs` in order until the graph's memory has not grown for a whole step, so that nothing is allocated from
    the driver in the next, which is captured; from then on replays that. Memory: what the captured step allocates
    belongs to the graph from then on. Whatever the runs read that was not made by them (the batch, weights) must stay
    at its address."""

    def __init__(self, runs: Sequence[Callable[[], None]]) -> None:
        self._runs = tuple(runs)
        self._calls = 0
        self._settled = False
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> None:
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
        # Capturing computed nothing, so the step it stands for is still to be done.
        self._replay()

    def captured(self) -> bool:
        return self._replay is not None

    def _run(self) -> None:
        for run in self._runs:
            run()
