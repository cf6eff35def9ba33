"""Captures a step's work on its first calls, replays it after."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tcbench.backends.cuda.accelerator import current

EAGER_STEPS = 2
"""Calls before the capture: the first makes plans and tunes them, the second sees the memory that the first left, so
that nothing is allocated from the driver while the third is captured."""


class Replay:
    """Calls `runs` in order; from the third call on through a captured graph.

    Memory: what the captured step allocates belongs to the graph from then on. Whatever the runs read that was not
    made by them (the batch, weights) must stay at its address.
    """

    def __init__(self, runs: Sequence[Callable[[], None]]) -> None:
        self._runs = tuple(runs)
        self._calls = 0
        self._replay: Callable[[], None] | None = None

    def __call__(self) -> None:
        if self._replay is not None:
            self._replay()
            return
        accelerator = current()
        if accelerator is None:
            raise RuntimeError("a graph is captured on an accelerator, and none is current")
        with accelerator.graph_memory():
            if self._calls < EAGER_STEPS:
                self._calls += 1
                self._run()
                return
            self._replay = accelerator.capture(self._run)
        # Capturing computed nothing, so the step it stands for is still to be done.
        self._replay()

    def _run(self) -> None:
        for run in self._runs:
            run()
