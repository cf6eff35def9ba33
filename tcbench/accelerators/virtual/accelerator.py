"""The accelerator that is a GPU which is not there: CUDA's routes, arrays without contents, a stream in real time."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np

from tcbench.accelerators.attained import attained, expected_s
from tcbench.accelerators.cuda import routes
from tcbench.accelerators.protocol import Array
from tcbench.accelerators.tracing import TracingAccelerator, check, check_copy
from tcbench.accelerators.virtual.stream import Stream, Task
from tcbench.core.record import CudnnSettings
from tcbench.hardware.gpus import GpuFile
from tcbench.work import Work


class VirtualAccelerator(TracingAccelerator):
    """See `tcbench.accelerators.protocol.Accelerator`. PROVISIONAL: memory is only counted, and a graph is launched
    piece by piece."""

    def __init__(self, card: GpuFile, settings: CudnnSettings) -> None:
        super().__init__(card.properties(), settings.fast_batch_norm)
        self.card = card
        self.stream = Stream()
        # By identity, which is what the same shapes give again; the work is held so that its identity stays its own.
        self._runs: dict[int, tuple[Callable[[], None], Work]] = {}

    def upload(self, host: Any) -> Array:
        array = self.empty(host.shape, host.dtype)
        self.copy(np.asarray(host), array)
        self.stream.synchronize()
        return array

    def copy(self, source: Array, target: Array) -> None:
        check_copy(source, target)
        self._copy(target.nbytes)

    def download(self, array: Array) -> Any:
        self._copy(array.nbytes)
        self.stream.synchronize()
        return np.zeros(array.shape, array.dtype)

    def launch(self, work: Work, *arrays: Array) -> None:
        self.prepare(work, *arrays)()

    def prepare(self, work: Work, *arrays: Array) -> Callable[[], None]:
        prepared = self._runs.get(id(work))
        return prepared[0] if prepared is not None else self._make(work, arrays)

    def _make(self, work: Work, arrays: tuple[Array, ...]) -> Callable[[], None]:
        check(work, arrays)
        routes.check_dtypes(work)
        run = functools.partial(self.stream.put, self._task(work.name, work.kind, expected_s(work, self.card)))
        self._runs[id(work)] = (run, work)
        return run

    def _copy(self, n_bytes: int) -> None:
        here = attained(self.card)
        self.stream.put(self._task("copy", "copy", here.kernel_s + n_bytes / here.link_bytes_s))

    def _task(self, name: str, kind: str, device_s: float) -> Task:
        return Task(name, round(attained(self.card).driver_s[kind] * 1e9), round(device_s * 1e9))

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        return run
