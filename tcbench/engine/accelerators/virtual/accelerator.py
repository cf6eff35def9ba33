"""The accelerator that simulates a GPU: CUDA's routes, CuPy's memory pools, and a stream with modelled times.

Owns the stream and the pools. Nothing is computed: arrays have no contents."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from tcbench.core.record import CudnnSettings
from tcbench.core.recording import ActivityKind
from tcbench.engine.accelerators import out_of_memory, routes
from tcbench.engine.accelerators.attained import timing_model
from tcbench.engine.accelerators.protocol import Accelerator, Array, BatchNormRoute
from tcbench.engine.accelerators.staging import Slot, Staging
from tcbench.engine.accelerators.tracing import check, check_copy
from tcbench.engine.accelerators.virtual import activities
from tcbench.engine.accelerators.virtual.pool import BestFitPool, DeviceMemory, VirtualArray
from tcbench.engine.accelerators.virtual.stream import Stream, StreamEvent, Task
from tcbench.engine.work import Norm, Work
from tcbench.hardware.gpus import ALLOWANCE_BYTES, GpuFile


class VirtualAccelerator(Accelerator):
    """An accelerator that waits as long as a GPU would work.

    `host_speed`: simulate a host that is this many times as fast. The host cannot be sped up, so the device's times are
    multiplied by it, and code that reads the records divides all times by it."""

    computes = False

    def __init__(self, card: GpuFile, settings: CudnnSettings, host_speed: float = 1.0) -> None:
        self.properties = card.properties()
        self.stream = Stream()
        activities.STREAMS.add(self.stream)
        self._card, self._settings, self._host_speed = card, settings, host_speed
        self._model = timing_model(card)
        self.device = DeviceMemory(
            card.memory_bytes - ALLOWANCE_BYTES,
            lambda requested, held: out_of_memory.device_memory_error(requested, held, card.memory_bytes),
        )
        self.pool = BestFitPool(self.device, self.stream.owe)
        self.pool.measure_call_ns()
        self._graph_pool = BestFitPool(self.device, self.stream.owe, keeps=lambda: self.stream.capturing)
        self._pool_in_use = self.pool
        self._staging = Staging(lambda n_bytes: Slot(np.empty(n_bytes, np.uint8), StreamEvent()))
        self._workspace: Array | None = None
        # Keyed by id(): equal shapes give the same work object. Holding the work keeps its id from being reused.
        self._runs: dict[int, tuple[Callable[[], None], Work]] = {}

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Wait for the stream at the end."""
        yield
        self.stream.synchronize()

    def batch_norm(self, norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
        return routes.batch_norm(norm, eps, momentum, self.properties.sm, self._settings.fast_batch_norm)

    # -- arrays

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        return self._pool_in_use.empty(shape, dtype)

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        array = self.empty(shape, dtype)
        seconds = self._model.in_memory_s(array.nbytes)
        self.stream.put(self._task("memset", "memset", "cudaMemsetAsync", "kernel", seconds, array.nbytes))
        return array

    def upload(self, host: Any) -> Array:
        array = self.empty(host.shape, host.dtype)
        self.copy(np.asarray(host, order="C"), array)
        self.stream.synchronize()
        return array

    def copy(self, source: Array, target: Array) -> None:
        """Put a copy on the stream. The contents of a host array are copied to a staging buffer, which takes real
        time."""
        check_copy(source, target)
        if isinstance(source, VirtualArray):
            self.stream.put(self._copy_task("memcpy DtoD", target.nbytes, self._model.in_memory_s(2 * target.nbytes)))
            return
        # The host copies into a buffer, as it does for a real GPU.
        capturing = self.stream.capturing
        slot = (self._staging.make if capturing else self._staging.next)(source.nbytes)
        slot.fill(source)
        self.stream.put(self._copy_task("memcpy HtoD", target.nbytes, self._model.over_link_s(target.nbytes)))
        if not capturing:
            slot.event.record(self.stream)

    def download(self, array: Array) -> Any:
        self.stream.put(self._copy_task("memcpy DtoH", array.nbytes, self._model.over_link_s(array.nbytes)))
        self.stream.synchronize()
        return np.zeros(array.shape, array.dtype)

    # -- work

    def prepare(self, work: Work, *arrays: Array) -> Callable[[], None]:
        prepared = self._runs.get(id(work))
        return prepared[0] if prepared is not None else self._make(work, arrays)

    def _make(self, work: Work, arrays: tuple[Array, ...]) -> Callable[[], None]:
        """Return a function that puts an operation on the stream.

        Raises ValueError for an operation on float64, and for arrays that do not match its operands."""
        check(work, arrays)
        routes.check_dtypes(work)
        # All work shares a workspace of the largest size allowed, since cuDNN's choice of plans is unknown.
        if work.kind == "graph" and self._workspace is None and self._settings.workspace_bytes:
            self._workspace = self.pool.empty((self._settings.workspace_bytes,), np.uint8)
        task = self._task("kernel", work.name, "cudaLaunchKernel", work.kind, self._model.expected_s(work))
        run = functools.partial(self.stream.put, task)
        self._runs[id(work)] = (run, work)
        return run

    # -- graphs

    @contextlib.contextmanager
    def graph_memory(self) -> Iterator[None]:
        self._pool_in_use = self._graph_pool
        try:
            yield
        finally:
            self._pool_in_use = self.pool

    def graph_bytes(self) -> int:
        return self._graph_pool.held_bytes

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture the tasks that `run` launches, and return a function that launches them as one task."""
        self.stream.begin_capture()
        try:
            run()
        finally:
            captured = self.stream.end_capture()
        graph = self._task("graph", "graph", "cudaGraphLaunch", "captured", 0.0)
        device_ns = sum(task.device_ns for task in captured)
        return functools.partial(self.stream.put, replace(graph, device_ns=device_ns, nodes=captured))

    # -- facts

    def note_decoding(self, begin_ns: int, end_ns: int) -> None:
        """Tell the stream's listener that threads of the modelled input decoded a batch between these times."""
        if self.stream.listener is not None:
            self.stream.listener.decoding(begin_ns, end_ns)

    def _copy_task(self, name: str, n_bytes: int, seconds: float) -> Task:
        """Return a task that copies `n_bytes` in `seconds`. `name` is the copy's name in timelines."""
        return self._task("copy", name, "cudaMemcpyAsync", "copy", seconds, n_bytes)

    def _task(
        self, kind: ActivityKind, name: str, api_call: str, request: str, seconds: float, n_bytes: int | None = None
    ) -> Task:
        """Return a task that occupies the GPU for `seconds`, scaled by the host's speed.

        `api_call` is the CUDA call that launches it in a timeline. `request` selects the driver's time: "copy",
        "captured" or the kind of a work."""
        driver_ns = round(self._model.driver_s[request] * 1e9)
        return Task(kind, name, api_call, driver_ns, round(seconds * self._host_speed * 1e9), n_bytes)
