"""The accelerator for NVIDIA GPUs: CuPy's memory and streams, cuDNN's plans and calls, cuBLAS, cuSOLVER, own kernels.

Owns the stream, the memory pools, the cuDNN handle and the prepared launches. CuPy is imported when an accelerator is
created."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tcbench.core import messages
from tcbench.core.record import CudnnSettings, PlanChoice
from tcbench.engine.accelerators import out_of_memory, routes
from tcbench.engine.accelerators.cuda import solver
from tcbench.engine.accelerators.cuda.cudnn import calls, graphs, libraries
from tcbench.engine.accelerators.cuda.cudnn.autotune import CupyWorkbench
from tcbench.engine.accelerators.cuda.cudnn.plans import PlanFacts, Plans, plan_cache
from tcbench.engine.accelerators.cuda.kernels.load import Kernels
from tcbench.engine.accelerators.cuda.nccl import NcclReducer
from tcbench.engine.accelerators.event_clock import EventClock
from tcbench.engine.accelerators.protocol import Accelerator, Array, BatchNormRoute, Reducer
from tcbench.engine.accelerators.staging import Slot, Staging
from tcbench.engine.accelerators.tracing import check_copy
from tcbench.engine.work import Norm, Work
from tcbench.engine.world import World
from tcbench.hardware.gpus import GpuProperties

Run = Callable[..., None]


class CudaAccelerator(Accelerator):
    """An accelerator that works on a GPU, on its own non-blocking stream. Use it inside `enter()`."""

    def __init__(self, index: int, settings: CudnnSettings, fresh_autotune: bool = False) -> None:
        import cupy

        self._cupy = cupy
        self.index = index
        self._fast_batch_norm = settings.fast_batch_norm
        self._device = cupy.cuda.Device(index)
        with self._device:
            self.properties = _properties(cupy, index)
            self.stream = cupy.cuda.Stream(non_blocking=True)
            self._stream_address = self.stream.ptr
            self._pool = cupy.cuda.MemoryPool()
            self._graph_pool = cupy.cuda.MemoryPool(self._grow_graph_pool)
            # The frontend's compiled graphs do not accept the frontend's handle object. They accept a bare address,
            # which the older calls can share.
            libraries.frontend()
            self._handle = calls.new_handle(self._stream_address)
            self._kernels = Kernels(self.properties.sm, lambda: self._stream_address)
            stall = self._kernels.stall
            self.clock = EventClock(self.stream, cupy.cuda.Event, cupy.cuda.get_elapsed_time, stall)
            self.plan_cache = plan_cache(fresh_autotune)
            self._plans = Plans(
                self._handle,
                self.properties,
                workspace_bytes=settings.workspace_bytes,
                tuning_budget_s=messages.tuning_budget_s(),
                cache=self.plan_cache,
                workbench=CupyWorkbench(self.stream) if settings.autotune else None,
                end_capture=self._end_capture,
            )
        self._workspace: Any = None
        self._workspace_address = 0
        self._peak_bytes = 0
        # Keyed by id(): equal shapes give the same work object. Holding the work keeps its id from being reused.
        self._runs: dict[int, tuple[Run, Work]] = {}
        self._staging = Staging(functools.partial(_pinned_slot, cupy))
        self._capturing = False
        self._graph_buffers: list[Any] = []  # captured graphs have their addresses
        self._choices: list[PlanChoice] = []

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """Make the device, the stream and the memory pool current; wait for the stream at the end."""
        with self._device, self.stream, self._cupy.cuda.using_allocator(self._pool.malloc):
            try:
                yield
            except BaseException:
                # The first error says most. It may have broken the stream, which then raises an error too.
                with contextlib.suppress(Exception):
                    self.stream.synchronize()
                raise
            self.stream.synchronize()

    def batch_norm(self, norm: Norm, eps: float, momentum: float) -> BatchNormRoute:
        return routes.batch_norm(norm, eps, momentum, self.properties.sm, self._fast_batch_norm)

    # -- arrays

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        try:
            return self._cupy.ndarray(shape, dtype)
        except self._cupy.cuda.memory.OutOfMemoryError as error:
            raise self._memory_error(error) or error from error

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        array = self.empty(shape, dtype)
        array.data.memset_async(0, array.nbytes, self.stream)
        return array

    def upload(self, host: Any) -> Array:
        array = self.empty(host.shape, host.dtype)
        array.set(np.asarray(host, order="C"), stream=self.stream)
        # The copy reads pageable memory, which the caller may change as soon as this returns.
        self.stream.synchronize()
        return array

    def copy(self, source: Array, target: Array) -> None:
        """Copy an array to a device array in stream order; a host array goes through page-locked memory first."""
        check_copy(source, target)
        if not isinstance(source, np.ndarray):
            target.data.copy_from_device_async(source.data, target.nbytes, self.stream)
            return
        # A pinned buffer makes the copy asynchronous, and the caller may overwrite the source at once.
        if self._capturing:
            # Every replay of the graph reads this buffer, so it is not shared and is never freed.
            slot = self._staging.make(source.nbytes)
            self._graph_buffers.append(slot)
        else:
            slot = self._staging.next(source.nbytes)
        slot.fill(source)
        # Not CuPy's `copy_from_host_async`: it refuses to copy during a capture, although CUDA can capture this copy.
        runtime = self._cupy.cuda.runtime
        kind = runtime.memcpyHostToDevice
        runtime.memcpyAsync(target.data.ptr, slot.address, source.nbytes, kind, self._stream_address)
        if not self._capturing:
            slot.event.record(self.stream)

    def download(self, array: Array) -> Any:
        return array.get(stream=self.stream, blocking=True)

    def address(self, array: Array) -> int:
        return array.data.ptr  # type: ignore[no-any-return]

    # -- work

    def prepare(self, work: Work, *arrays: Array) -> Callable[[], None]:
        prepared = self._runs.get(id(work))
        run = prepared[0] if prepared is not None else self._make(work)
        return functools.partial(run, *[array.data.ptr for array in arrays])

    def _make(self, work: Work) -> Run:
        """Return a function of addresses that launches an operation. Finds and tunes its plan, if it needs one. Raises
        ValueError for an operation on float64."""
        routes.check_dtypes(work)
        try:
            run: Run = getattr(self, f"_make_{work.kind}")(work)
        except Exception as error:
            if (memory_error := self._memory_error(error)) is not None:
                raise memory_error from error
            raise
        self._runs[id(work)] = (run, work)
        return run

    def _make_graph(self, work: Work) -> Run:
        """Return a function that runs an operation by its cuDNN plan."""
        plan = self._plans.prepare(work)
        self._choices.append(_plan_choice(work, plan.facts))
        self._reserve(plan.facts.workspace_bytes)
        memset = self._cupy.cuda.runtime.memsetAsync
        accumulated = graphs.accumulated_operands(work, self.properties.sm)
        zeroed = tuple((index, work.operands[index].bytes) for index in accumulated)

        def run(*addresses: int) -> None:
            for index, n_bytes in zeroed:
                memset(addresses[index], 0, n_bytes, self._stream_address)
            plan(addresses, self._workspace_address)

        return run

    def _make_call(self, work: Work) -> Run:
        return self._with_workspace(*calls.prepare_call(work, self._handle))

    def _make_kernel(self, work: Work) -> Run:
        return self._kernels.prepare(work)

    def _make_solver(self, work: Work) -> Run:
        return self._with_workspace(*solver.prepare(work, self._kernels.prepare))

    def _with_workspace(self, run: Callable[[tuple[int, ...], int], None], n_bytes: int) -> Run:
        """Return `run`, a function of the operands' addresses and a workspace of `n_bytes`, with the workspace set."""
        self._reserve(n_bytes)
        return lambda *addresses: run(addresses, self._workspace_address)

    def _reserve(self, n_bytes: int) -> None:
        """Grow the workspace to at least `n_bytes`. Operations share it, since the stream runs them one at a time."""
        if self._workspace is not None and self._workspace.nbytes >= n_bytes:
            return
        if self._workspace is not None and self._graph_pool.total_bytes():
            self._graph_buffers.append(self._workspace)  # a captured graph may use it
        self._workspace = None
        with self._cupy.cuda.using_allocator(self._pool.malloc):
            self._workspace = self.empty((max(n_bytes, 1),), np.uint8)
        self._workspace_address = self._workspace.data.ptr

    def reducer(self, world: World) -> Reducer:
        """Return a reducer that uses NCCL on this stream. Raises SelectionError if NCCL is not installed."""
        return NcclReducer(world, self.stream)

    # -- graphs

    @contextlib.contextmanager
    def graph_memory(self) -> Iterator[None]:
        """Allocate from a pool that only captured graphs and the steps before their capture use."""
        with self._cupy.cuda.using_allocator(self._graph_pool.malloc):
            yield

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Capture the work that `run` launches as a CUDA graph, and return a function that launches the graph. If `run`
        raises an error, the capture is ended first."""
        self._capturing = True
        self.stream.begin_capture()
        try:
            run()
        except BaseException:
            self._capturing = False
            self._end_capture()
            raise
        self._capturing = False
        graph = self.stream.end_capture()
        graph.upload(self.stream)

        def replay() -> None:
            # The closure keeps the accelerator alive, and with it the plans: the graph holds no reference to them
            # (see `graphs.empty`).
            graph.launch(self.stream)

        return replay

    def _end_capture(self) -> None:
        """End a capture that an error interrupted, unless `capture` still runs. CUDA's error about it is dropped."""
        if not self._capturing:
            with contextlib.suppress(Exception):
                self.stream.end_capture()

    def _grow_graph_pool(self, n_bytes: int) -> Any:
        """Allocate a block from CUDA for the graph pool.

        When memory runs out, CuPy's pool returns its free blocks to CUDA and tries again. This must not happen during a
        capture, whose graph can use addresses in them. Then raise OutOfDeviceMemory, which CuPy does not catch."""
        cuda = self._cupy.cuda
        try:
            return cuda.MemoryPointer(cuda.Memory(n_bytes), 0)
        except cuda.runtime.CUDARuntimeError as error:
            if not self._capturing:
                raise
            raise out_of_memory.device_memory_error(n_bytes, self.peak_bytes(), self.properties.memory_bytes) from error

    # -- facts

    def peak_bytes(self) -> int:
        """Return the most bytes that the pools held at any call of this method. Few calls suffice, because pools only
        shrink when memory runs out."""
        self._peak_bytes = max(self._peak_bytes, int(self._pool.total_bytes() + self._graph_pool.total_bytes()))
        return self._peak_bytes

    def graph_bytes(self) -> int:
        return int(self._graph_pool.total_bytes())

    def plan_choices(self) -> tuple[PlanChoice, ...]:
        """Return the choice of plan for each different cuDNN graph so far, in the order of first use."""
        return tuple(self._choices)

    def _memory_error(self, error: BaseException) -> Exception | None:
        """Return an OutOfDeviceMemory if this error means that the GPU is out of memory, else None."""
        return out_of_memory.from_error(error, self.properties.memory_bytes, self.peak_bytes())


def _pinned_slot(cupy: Any, n_bytes: int) -> Slot:
    """Return a slot in new page-locked memory of the host."""
    memory = cupy.cuda.alloc_pinned_memory(max(n_bytes, 1))
    return Slot(np.frombuffer(memory, np.uint8, n_bytes), cupy.cuda.Event(block=True, disable_timing=True))


def _plan_choice(work: Work, facts: PlanFacts) -> PlanChoice:
    """Return a record's facts about the plan that was chosen for an operation."""
    times = {timed.plan: timed.time_s for timed in facts.timed}
    first, budget_s = (facts.timed[0].time_s, facts.budget_s) if facts.timed else (None, None)
    chosen = (facts.plan, facts.workspace_bytes, facts.from_cache, times.get(facts.plan), first)
    return PlanChoice(work.label, *chosen, len(times), facts.left_out, budget_s, ahead=facts.ahead)


def _properties(cupy: Any, index: int) -> GpuProperties:
    """Return the properties of the GPU that CUDA calls `index`."""
    values = cupy.cuda.runtime.getDeviceProperties(index)
    return GpuProperties(
        name=values["name"].decode(errors="replace"),
        sm=10 * values["major"] + values["minor"],
        multiprocessors=values["multiProcessorCount"],
        memory_bytes=values["totalGlobalMem"],
    )
