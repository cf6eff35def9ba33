"""Captures a step's work on its first calls, replays it after, with PyTorch's own CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

EAGER_STEPS = 3
"""Calls before the capture, on a stream of their own: cuDNN's benchmark, the compiler and lazy states of the optimizer
must be done (PyTorch documentation, "Whole-network capture", warms up for three)."""


class Replay:
    """Calls `runs` in order; from the fourth call on through a captured graph. Whatever the runs read that was not made
    by them (the batch) must stay at its address."""

    def __init__(self, runs: Sequence[Callable[[], None]]) -> None:
        self._runs = tuple(runs)
        self._calls = 0
        self._stream = torch.cuda.Stream()
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        if self._graph is not None:
            self._graph.replay()
            return
        if self._calls < EAGER_STEPS:
            self._calls += 1
            self._stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self._stream):
                self._run()
            torch.cuda.current_stream().wait_stream(self._stream)
            return
        graph = torch.cuda.CUDAGraph()
        # DALI's threads call CUDA meanwhile: their calls are no reason to end the capture.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._run()
        # Capturing computed nothing, so the step it stands for is still to be done.
        graph.replay()
        self._graph = graph

    def captured(self) -> bool:
        return self._graph is not None

    def _run(self) -> None:
        for run in self._runs:
            run()
