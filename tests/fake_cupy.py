"""As much of CuPy as `CudaAccelerator` uses, on host memory: pools that hand freed blocks out again (poisoned), a
stream that runs everything at once or, while it captures, keeps it for the graph. So the accelerator's own logic runs
here: addresses, staging, workspace, pools, capture."""

from __future__ import annotations

import contextlib
import ctypes
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from reference import REFERENCE

from tcbench.backends.cuda import live
from tcbench.backends.cuda.cudnn.autotune import PlanTime
from tcbench.backends.cuda.cudnn.plans import PlanFacts
from tcbench.backends.cuda.work import Operand, Work

POISON = 0xFF
"""NaN in every floating-point format, -1 in every integer."""


class OutOfMemoryError(MemoryError):
    def __init__(self, size: int, total: int) -> None:
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")


class MemoryPool:
    """Freed blocks are poisoned and wait for the next allocation of their size."""

    limit_bytes = 80 << 30

    def __init__(self) -> None:
        self.free: dict[int, list[np.ndarray]] = {}
        self.held = 0

    def malloc(self, n_bytes: int) -> np.ndarray:
        n_bytes = -(-max(n_bytes, 1) // 512) * 512
        waiting = self.free.get(n_bytes)
        if waiting:
            return waiting.pop()
        if self.held + n_bytes > self.limit_bytes:
            raise OutOfMemoryError(n_bytes, self.held)
        self.held += n_bytes
        return np.full(n_bytes, POISON, np.uint8)

    def give_back(self, block: np.ndarray) -> None:
        block.fill(POISON)
        self.free.setdefault(block.size, []).append(block)

    def total_bytes(self) -> int:
        return self.held

    def free_all_blocks(self) -> None:
        self.held -= sum(size * len(blocks) for size, blocks in self.free.items())
        self.free.clear()


class Cupy(types.SimpleNamespace):
    """The module, fresh for each test."""

    def __init__(self) -> None:
        fake = self
        self.allocators: list[Any] = [MemoryPool().malloc]
        self.stream: Any = None
        self.transfers: list[str] = []
        self.cudnn_stream: int | None = None

        class Pointer:
            """`array.data`."""

            def __init__(self, array: Any) -> None:
                self.array = array
                self.ptr = array.ctypes.data

            def memset_async(self, value: int, size: int, stream: Any) -> None:
                stream.run(lambda: ctypes.memset(self.ptr, value, size))

            def copy_from_host_async(self, memory: ctypes.c_void_p, size: int, stream: Any) -> None:
                fake.transfers.append("captured" if stream.capturing else "sent")
                # As late as it may be: what the host writes there meanwhile, the device reads.
                (stream.recorded if stream.capturing else stream.pending).append(
                    lambda: ctypes.memmove(self.ptr, memory, size)
                )

            def copy_from_device_async(self, source: Any, size: int, stream: Any) -> None:
                stream.run(lambda: ctypes.memmove(self.ptr, source.ptr, size))

        class NDArray(np.ndarray):
            """Device memory. Its block goes back to its pool when nothing looks at it any more."""

            @property
            def data(self) -> Any:  # type: ignore[override]
                return Pointer(self)

            def set(self, host: Any, stream: Any) -> None:
                stream.synchronize()
                stream.pending.append(lambda: np.copyto(self, host))

            def get(self, stream: Any, blocking: bool) -> Any:
                assert blocking
                stream.synchronize()
                return np.array(self, subok=False)

        def ndarray(shape: tuple[int, ...], dtype: Any) -> Any:
            allocate = fake.allocators[-1]
            dtype = np.dtype(dtype)
            n_bytes = int(np.prod(shape)) * dtype.itemsize
            block = allocate(n_bytes)
            # Views share this owner, and so the block lives as long as the last of them.
            owner = np.frombuffer(memoryview(block), np.uint8)
            weakref.finalize(owner, allocate.__self__.give_back, block)
            return owner[:n_bytes].view(dtype).reshape(shape).view(NDArray)

        class Stream:
            def __init__(self, non_blocking: bool = False) -> None:
                self.ptr = 7
                self.capturing = False
                self.recorded: list[Callable[[], Any]] = []
                self.pending: list[Callable[[], Any]] = []

            def __enter__(self) -> Any:
                fake.stream = self
                return self

            def __exit__(self, *error: object) -> None:
                fake.stream = None

            def run(self, work: Callable[[], Any]) -> None:
                if self.capturing:
                    self.recorded.append(work)
                else:
                    self.synchronize()
                    work()

            def synchronize(self) -> None:
                assert not self.capturing, "a wait while capturing"
                pending, self.pending = self.pending, []
                for copy in pending:
                    copy()

            def begin_capture(self) -> None:
                self.synchronize()
                self.capturing, self.recorded = True, []

            def end_capture(self) -> Any:
                self.capturing = False
                recorded = self.recorded
                return types.SimpleNamespace(
                    upload=lambda stream: None,
                    launch=lambda stream: stream.run(lambda: [work() for work in recorded]),
                )

        class Event:
            def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
                self.recorded = False

            def record(self, stream: Any) -> None:
                assert not stream.capturing, "an event outside the graph while capturing"
                self.recorded = True

            def synchronize(self) -> None:
                assert not fake.stream.capturing, "a wait while capturing"
                if self.recorded:
                    fake.stream.synchronize()

        @contextlib.contextmanager
        def using_allocator(allocator: Any) -> Any:
            fake.allocators.append(allocator)
            try:
                yield
            finally:
                fake.allocators.pop()

        class Pinned(bytearray):
            @property
            def ptr(self) -> int:
                return np.frombuffer(self, np.uint8).ctypes.data

        def memset(address: int, value: int, size: int, stream: int) -> None:
            assert stream == fake.stream.ptr
            fake.stream.run(lambda: ctypes.memset(address, value, size))

        self.properties = {
            "name": b"Fake GPU",
            "major": 9,
            "minor": 0,
            "multiProcessorCount": 132,
            "totalGlobalMem": 80 << 30,
        }
        super().__init__(
            ndarray=ndarray,
            cuda=types.SimpleNamespace(
                Device=lambda index: contextlib.nullcontext(),
                Stream=Stream,
                MemoryPool=MemoryPool,
                Event=Event,
                using_allocator=using_allocator,
                alloc_pinned_memory=Pinned,
                memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
                runtime=types.SimpleNamespace(getDeviceProperties=lambda index: self.properties, memsetAsync=memset),
            ),
        )


WORKSPACE_BYTES = 1 << 16


def install(patch: pytest.MonkeyPatch) -> Cupy:
    """CuPy, cuDNN and the kernels on the host: whoever prepares work gets a function of addresses that computes it with
    the reference. `prepared` lists the names of the work that was."""
    fake = Cupy()
    fake.prepared = prepared = []

    def prepare(work: Work) -> Callable[..., None]:
        prepared.append(work.name)

        def run(*addresses: int) -> None:
            assert len(addresses) == len(work.operands)
            fake.stream.run(lambda: REFERENCE[work.name](work, *map(_at, addresses, work.operands)))

        return run

    class Plan:
        facts = PlanFacts(
            "engine 1",
            WORKSPACE_BYTES,
            1,
            2,
            timed=(PlanTime("engine 0", 0, 2.0), PlanTime("engine 1", WORKSPACE_BYTES, 1.0)),
        )
        workspace_bytes = WORKSPACE_BYTES

        def __init__(self, work: Work) -> None:
            self._run = prepare(work)

        def __call__(self, addresses: tuple[int, ...], workspace: int) -> None:
            assert workspace != 0
            assert fake.cudnn_stream == fake.stream.ptr, "cuDNN is not on the accelerator's stream"
            self._run(*addresses)

    def on_handle(work: Work, handle: int) -> Plan:
        assert handle == Handle.address
        return Plan(work)

    def plans(handle: int, properties: Any, **settings: Any) -> Any:
        assert handle == Handle.address
        return types.SimpleNamespace(prepare=Plan)

    class Handle:
        address = 5

        def set_stream(self, stream: int) -> None:
            fake.cudnn_stream = stream

    patch.setitem(sys.modules, "cupy", fake)  # type: ignore[arg-type]
    patch.setattr(live.libraries, "frontend", lambda: None)
    patch.setattr(live.calls, "Handle", Handle)
    patch.setattr(live, "Kernels", lambda sm, stream: types.SimpleNamespace(prepare=prepare))
    patch.setattr(live, "Plans", plans)
    patch.setattr(live.calls, "prepare_call", on_handle)
    patch.setattr(live, "CupyWorkbench", lambda stream: types.SimpleNamespace(release=lambda: None))
    return fake


def _at(address: int, operand: Operand) -> np.ndarray:
    """The array at an address."""
    return np.frombuffer((ctypes.c_char * operand.bytes).from_address(address), operand.dtype)
