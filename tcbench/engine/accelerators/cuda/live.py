"""The accelerator that is a GPU: CuPy's memory and stream, cuDNN's plans and calls, cuBLAS, cuSOLVER, kernels of ours.

Owns the stream, the memory pools, the cuDNN handle and what was prepared for each piece of work. CuPy is imported when
an accelerator is made."""

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
    """See `tcbench.engine.accelerators.protocol.Accelerator`. Everything happens between `enter` and its end, on a
    non-blocking stream of its own."""

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
            # The frontend's own handle is an object that its compiled graphs do not take; this one is an address, which
            # graphs and calls share.
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
        # Keyed by id(), since the same shapes give the same work; holding the work keeps its id from being reused.
        self._runs: dict[int, tuple[Run, Work]] = {}
        self._staging = Staging(functools.partial(_pinned, cupy))
        self._capturing = False
        self._kept: list[Any] = []
        self._choices: list[PlanChoice] = []

    @contextlib.contextmanager
    def enter(self) -> Iterator[None]:
        """The device, the stream and the memory pool are current."""
        with self._device, self.stream, self._cupy.cuda.using_allocator(self._pool.malloc):
            try:
                yield
            except BaseException:
                # The error may have broken the stream too; the stream's own error would say less.
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
            raise self._spent(error) or error from error

    def zeros(self, shape: tuple[int, ...], dtype: Any) -> Array:
        array = self.empty(shape, dtype)
        array.data.memset_async(0, array.nbytes, self.stream)
        return array

    def upload(self, host: Any) -> Array:
        array = self.empty(host.shape, host.dtype)
        array.set(np.asarray(host, order="C"), stream=self.stream)
        # The copy reads pageable memory that the caller may change at once.
        self.stream.synchronize()
        return array

    def copy(self, source: Array, target: Array) -> None:
        check_copy(source, target)
        if not isinstance(source, np.ndarray):
            target.data.copy_from_device_async(source.data, target.nbytes, self.stream)
            return
        # Through pinned memory, so that the copy is asynchronous and the source is free at once.
        if self._capturing:
            # The graph reads this buffer at every replay: it is nobody else's, and stays.
            slot = self._staging.make(source.nbytes)
            self._kept.append(slot)
        else:
            slot = self._staging.next(source.nbytes)
        slot.fill(source)
        # CUDA captures this copy; CuPy's own `copy_from_host_async` refuses to ask it while the stream captures.
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
        """Find and tune what does this work. Raises ValueError for work on float64."""
        routes.check_dtypes(work)
        try:
            run: Run = getattr(self, f"_make_{work.kind}")(work)
        except Exception as error:
            if (spent := self._spent(error)) is not None:
                raise spent from error
            raise
        self._runs[id(work)] = (run, work)
        return run

    def _make_graph(self, work: Work) -> Run:
        plan = self._plans.prepare(work)
        self._choices.append(_choice(work, plan.facts))
        self._reserve(plan.facts.workspace_bytes)
        memset = self._cupy.cuda.runtime.memsetAsync
        added_to = tuple((index, work.operands[index].bytes) for index in graphs.added_to(work, self.properties.sm))

        def run(*addresses: int) -> None:
            for index, n_bytes in added_to:
                memset(addresses[index], 0, n_bytes, self._stream_address)
            plan(addresses, self._workspace_address)

        return run

    def _make_call(self, work: Work) -> Run:
        call = calls.prepare_call(work, self._handle)
        return self._with_workspace(call, call.workspace_bytes)

    def _make_kernel(self, work: Work) -> Run:
        return self._kernels.prepare(work)

    def _make_solver(self, work: Work) -> Run:
        return self._with_workspace(*solver.prepare(work, self._kernels.prepare))

    def _with_workspace(self, run: Callable[[tuple[int, ...], int], None], n_bytes: int) -> Run:
        self._reserve(n_bytes)
        return lambda *addresses: run(addresses, self._workspace_address)

    def _reserve(self, n_bytes: int) -> None:
        """One workspace for all, as large as the largest asks: work on one stream uses it in turn."""
        if self._workspace is not None and self._workspace.nbytes >= n_bytes:
            return
        if self._workspace is not None and self._graph_pool.total_bytes():
            self._kept.append(self._workspace)  # a captured graph may have its address
        self._workspace = None
        with self._cupy.cuda.using_allocator(self._pool.malloc):
            self._workspace = self.empty((max(n_bytes, 1),), np.uint8)
        self._workspace_address = self._workspace.data.ptr

    def reducer(self, world: World) -> Reducer:
        """NCCL on this stream. Raises SelectionError where it is not installed."""
        return NcclReducer(world, self.stream)

    # -- graphs

    @contextlib.contextmanager
    def graph_memory(self) -> Iterator[None]:
        """Allocations inside lie in a pool that only captured graphs and the steps before them use."""
        with self._cupy.cuda.using_allocator(self._graph_pool.malloc):
            yield

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
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
            # It holds the accelerator, whose plans the graph launches but does not keep alive (`graphs.empty`).
            graph.launch(self.stream)

        return replay

    def _end_capture(self) -> None:
        """After an error: what broke a capture says more than that it was broken, or was none."""
        if not self._capturing:
            with contextlib.suppress(Exception):
                self.stream.end_capture()

    def _grow_graph_pool(self, n_bytes: int) -> Any:
        """A new block from CUDA. When there is none CuPy's pool gives its free blocks back to CUDA and asks again: not
        while a graph is captured, whose addresses may lie in them."""
        cuda = self._cupy.cuda
        try:
            return cuda.MemoryPointer(cuda.Memory(n_bytes), 0)
        except cuda.runtime.CUDARuntimeError as error:
            if not self._capturing:
                raise
            raise out_of_memory.spent(n_bytes, self.peak_bytes(), self.properties.memory_bytes) from error

    # -- facts

    def peak_bytes(self) -> int:
        """The most that the pools were seen to hold. They shrink only when CuPy empties them, once memory runs out."""
        self._peak_bytes = max(self._peak_bytes, int(self._pool.total_bytes() + self._graph_pool.total_bytes()))
        return self._peak_bytes

    def graph_bytes(self) -> int:
        return int(self._graph_pool.total_bytes())

    def plan_choices(self) -> tuple[PlanChoice, ...]:
        """One for each different cuDNN graph so far, in the order of first use."""
        return tuple(self._choices)

    def _spent(self, error: BaseException) -> Exception | None:
        """The error that says that memory is spent, where this error means that."""
        return out_of_memory.from_error(error, self.properties.memory_bytes, self.peak_bytes())


def _pinned(cupy: Any, n_bytes: int) -> Slot:
    memory = cupy.cuda.alloc_pinned_memory(max(n_bytes, 1))
    return Slot(np.frombuffer(memory, np.uint8, n_bytes), cupy.cuda.Event(block=True, disable_timing=True))


def _choice(work: Work, facts: PlanFacts) -> PlanChoice:
    times = {timed.plan: timed.time_s for timed in facts.timed}
    first, budget_s = (facts.timed[0].time_s, facts.budget_s) if facts.timed else (None, None)
    chosen = (facts.plan, facts.workspace_bytes, facts.from_cache, times.get(facts.plan), first)
    return PlanChoice(work.label, *chosen, len(times), facts.left_out, budget_s, ahead=facts.ahead)


def _properties(cupy: Any, index: int) -> GpuProperties:
    values = cupy.cuda.runtime.getDeviceProperties(index)
    return GpuProperties(
        name=values["name"].decode(errors="replace"),
        sm=10 * values["major"] + values["minor"],
        multiprocessors=values["multiProcessorCount"],
        memory_bytes=values["totalGlobalMem"],
    )
