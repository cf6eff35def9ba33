"""Capture and replay of a step with PyTorch's CUDA graphs."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

EAGER_STEPS = 3
"""The number of warm-up calls before the capture, on a side stream. They finish cuDNN's benchmark, compilation and lazy
initialisation (PyTorch documentation, "Whole-network capture", uses three)."""


class TorchReplay:
    """A step that calls `runs` in order three times, then captures them as a CUDA graph, and replays that. Input that
    the runs read, such as the batch, must stay at the same address."""

    def __init__(self, runs: Sequence[Callable[[], None]]) -> None:
        self._runs = tuple(runs)
        self._calls = 0
        self._stream = torch.cuda.Stream()
        self._graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> None:
        """Run one step: eagerly at first, then with a capture, then by replay."""
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
        # Thread-local, so that CUDA calls of DALI's threads do not abort the capture.
        with torch.cuda.graph(graph, stream=self._stream, capture_error_mode="thread_local"):
            self._run()
        # A capture computes nothing, so this call's step is still to be done.
        graph.replay()
        self._graph = graph

    def captured(self) -> bool:
        """Return whether the graph has been captured."""
        return self._graph is not None

    def _run(self) -> None:
        for run in self._runs:
            run()
