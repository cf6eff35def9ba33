"""A fake of CuPy 14.2 on host memory, with the parts that tcbench and Chainer use, to run the accelerator's own logic.

It is as strict as CuPy: what CuPy or CUDA refuses raises the same exception here. What tcbench must not do although
CuPy would (wait during a capture, compile one of CuPy's kernels) is an AssertionError.

- Arrays are no NumPy arrays: they do not turn into one, nor mix with one.
- Pools hand out memory as CuPy's do: the smallest free block that fits, cut to size and merged again, for each stream
  its own. Free memory is poisoned; what went back to CUDA cannot be reached any more.
- A stream that is stalled takes as many launches as CUDA's driver does before it blocks the host: more are an
  AssertionError, until somebody has waited for the stream.
- Streams run everything at once, or keep it for the graph while they capture. Copies from the host happen as late as
  they may: those on the legacy stream when somebody waits for the whole device, since our streams do not wait for it.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import gc
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import numpy as np
import pytest
from reference import REFERENCE
from scipy.linalg import lapack

from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.cuda import live
from tcbench.engine.accelerators.cuda.cudnn.autotune import PlanTime
from tcbench.engine.accelerators.cuda.cudnn.plans import PlanFacts
from tcbench.engine.accelerators.device import OpenDevice
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.clock import HostClock
from tcbench.engine.work import Operand, Work

POISON = 0xFF
"""NaN in every floating-point format, -1 in every integer."""
UNIT = 512
"""Every allocation's size and address is a multiple of it."""
FIRST_STREAM, CUDNN_HANDLE = 0x7F01_2345_6700, 0x7F02_2345_6700
"""Above 2^32, as on a GPU: what passes one through a C int is seen."""
WORKSPACE_BYTES = 1 << 16
QUEUED_LAUNCHES = 1024
"""Launches that wait in a stream before one more blocks the host. CUDA does not document it; this is what people
measure (NVIDIA's developer forum, 68937)."""

_ERRORS = {
    2: "cudaErrorMemoryAllocation: out of memory",
    600: "cudaErrorNotReady: device not ready",
    700: "cudaErrorIllegalAddress: an illegal memory access was encountered",
    401: "cudaErrorIllegalState: the operation cannot be performed in the present state",
    900: "cudaErrorStreamCaptureUnsupported: operation not permitted when stream is capturing",
}
OUT_OF_MEMORY, NOT_READY, ILLEGAL_ADDRESS, NOT_CAPTURING, CAPTURING = _ERRORS


class CUDARuntimeError(RuntimeError):
    def __init__(self, status: int) -> None:
        self.status = status
        super().__init__(_ERRORS[status])


class OutOfMemoryError(MemoryError):
    def __init__(self, size: int, total: int) -> None:
        super().__init__(f"Out of memory allocating {size:,} bytes (allocated so far: {total:,} bytes).")


# -- CUDA ----------------------------------------------------------------------------------------------------------


class Gpu:
    """Memory, streams and the stream stack of one GPU and one thread; `install` makes a fresh one."""

    limit_bytes: ClassVar[int] = 80 << 30

    def __init__(self) -> None:
        self.blocks: dict[int, np.ndarray] = {}
        self.begins: list[int] = []
        self.held = 0
        self.pinned: dict[int, int] = {}
        self.streams: dict[int, Stream] = {}
        self.current: list[Stream] = []
        self.allocators: list[Callable[[int], MemoryPointer]] = []
        self.transfers: list[str] = []
        self.elapsed_ms = 0

    def malloc(self, n_bytes: int) -> int:
        if self.held + n_bytes > self.limit_bytes:
            raise CUDARuntimeError(OUT_OF_MEMORY)
        self.held += n_bytes
        memory = np.full(n_bytes + UNIT, POISON, np.uint8)
        address = -(-memory.ctypes.data // UNIT) * UNIT
        self.blocks[address] = memory[address - memory.ctypes.data :][:n_bytes]
        bisect.insort(self.begins, address)
        return address

    def free(self, address: int) -> None:
        self.held -= self.blocks.pop(address).size
        self.begins.remove(address)

    def bytes(self, address: int, n_bytes: int) -> np.ndarray:
        """Memory that was allocated and not freed since."""
        place = bisect.bisect_right(self.begins, address) - 1
        if place >= 0:
            block, offset = self.blocks[self.begins[place]], address - self.begins[place]
            if offset + n_bytes <= block.size:
                return block[offset : offset + n_bytes]
        raise CUDARuntimeError(ILLEGAL_ADDRESS)

    def is_pinned(self, address: int, n_bytes: int) -> bool:
        return any(begin <= address and address + n_bytes <= begin + size for begin, size in self.pinned.items())


gpu = Gpu()


class Stream:
    """`pending`: copies from the host that nothing has waited for yet."""

    def __init__(self, null: bool = False, non_blocking: bool = False) -> None:
        assert null or non_blocking, "a stream that the legacy stream waits for"
        self.ptr = 0 if null else FIRST_STREAM + 16 * len(gpu.streams)
        self.capturing = False
        self.recorded: list[Callable[[], Any]] = []
        self.pending: list[Callable[[], Any]] = []
        self.passed_ms = 0
        self.waited = False
        self.stalled = False
        self.queued = 0
        gpu.streams[self.ptr] = self

    def __enter__(self) -> Stream:
        gpu.current.append(self)
        return self

    def __exit__(self, *error: object) -> None:
        gpu.current.pop()

    def wait_event(self, event: Event) -> None:
        assert event._stream is not None, "waits for an event that was never recorded"
        self.waited = True
        event._stream._deliver()

    def run(self, work: Callable[[], Any]) -> None:
        if self.capturing:
            self.recorded.append(work)
        else:
            self.queued += self.stalled
            assert self.queued <= QUEUED_LAUNCHES, "a launch behind a stall blocks the host until the stall is over"
            self._deliver()
            work()

    def synchronize(self) -> None:
        if self.capturing:
            raise CUDARuntimeError(CAPTURING)
        self.stalled, self.queued = False, 0
        self._deliver()
        self.passed_ms = gpu.elapsed_ms

    def _deliver(self) -> None:
        pending, self.pending = self.pending, []
        for copy in pending:
            copy()

    def begin_capture(self) -> None:
        if self.ptr == 0:
            raise RuntimeError("cannot capture on the default (legacy) stream")
        self.synchronize()
        self.capturing, self.recorded = True, []

    def end_capture(self) -> Graph:
        if not self.capturing:
            raise CUDARuntimeError(NOT_CAPTURING)
        self.capturing = False
        return Graph(self.recorded)


class Graph:
    def __init__(self, recorded: list[Callable[[], Any]]) -> None:
        self._recorded = recorded

    def upload(self, stream: Stream) -> None:
        assert not stream.capturing

    def launch(self, stream: Stream) -> None:
        stream.run(lambda: [work() for work in self._recorded])


class Event:
    def __init__(self, block: bool = False, disable_timing: bool = False) -> None:
        self._has_time = not disable_timing
        self._stream: Stream | None = None
        self._at_ms = 0

    def record(self, stream: Stream) -> None:
        assert not stream.capturing, "an event outside the graph while capturing"
        gpu.elapsed_ms += 1
        self._stream, self._at_ms = stream, gpu.elapsed_ms

    def synchronize(self) -> None:
        if self._stream is not None:
            assert not self._stream.capturing, "a wait while capturing"
            self._stream.synchronize()

    @property
    def done(self) -> bool:
        return self._stream is None or self._at_ms <= self._stream.passed_ms


def get_elapsed_time(start: Event, end: Event) -> float:
    """Return the milliseconds between two recorded events."""
    assert start._has_time and end._has_time
    if not (start.done and end.done):
        raise CUDARuntimeError(NOT_READY)
    return float(end._at_ms - start._at_ms)


HOST_TO_DEVICE, DEVICE_TO_HOST, DEFAULT = 1, 2, 4


def memcpy_async(target: int, source: int, n_bytes: int, kind: int, stream: int) -> None:
    if n_bytes == 0:
        return
    on = gpu.streams[stream]
    if kind != DEVICE_TO_HOST:
        gpu.bytes(target, n_bytes)
    if kind != HOST_TO_DEVICE:
        gpu.bytes(source, n_bytes)
        on.run(lambda: ctypes.memmove(target, gpu.bytes(source, n_bytes).ctypes.data, n_bytes))
        return
    if on.capturing and not gpu.is_pinned(source, n_bytes):
        raise CUDARuntimeError(CAPTURING)
    gpu.transfers.append("captured" if on.capturing else "sent")
    # As late as it may be: what the host writes there meanwhile, the device reads.
    (on.recorded if on.capturing else on.pending).append(
        lambda: ctypes.memmove(gpu.bytes(target, n_bytes).ctypes.data, source, n_bytes)
    )


def memset_async(target: int, value: int, n_bytes: int, stream: int) -> None:
    gpu.bytes(target, n_bytes)
    gpu.streams[stream].run(lambda: gpu.bytes(target, n_bytes).fill(value))


# -- CuPy's memory -------------------------------------------------------------------------------------------------


class Memory:
    """A block of CUDA's own."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.ptr = gpu.malloc(size) if size else 0
        self.bytes = gpu.blocks.get(self.ptr, np.empty(0, np.uint8))
        if size:
            weakref.finalize(self, gpu.free, self.ptr)


class MemoryPointer:
    """`array.data`."""

    def __init__(self, memory: Any, offset: int) -> None:
        self.mem = memory
        self.ptr = memory.ptr + offset

    def __add__(self, offset: int) -> MemoryPointer:
        return MemoryPointer(self.mem, self.ptr - self.mem.ptr + offset)

    def memset_async(self, value: int, size: int, stream: Stream) -> None:
        if size:
            # What a stream or a graph keeps is the address: it keeps no memory alive.
            memset_async(self.ptr, value, size, stream.ptr)

    def copy_from_device_async(self, source: MemoryPointer, size: int, stream: Stream) -> None:
        if not isinstance(source, MemoryPointer):
            raise TypeError(f"Argument 'src' has incorrect type (expected MemoryPointer, got {type(source)})")
        memcpy_async(self.ptr, source.ptr, size, DEFAULT, stream.ptr)

    def copy_from_host_async(self, memory: Any, size: int, stream: Stream) -> None:
        if stream.capturing:
            raise RuntimeError("the current stream is capturing, so H2D transfers are disallowed")
        memcpy_async(self.ptr, memory if isinstance(memory, int) else memory.value, size, HOST_TO_DEVICE, stream.ptr)

    def copy_to_host_async(self, memory: int, size: int, stream: Stream) -> None:
        if stream.capturing:
            raise RuntimeError("the current stream is capturing, so D2H transfers are disallowed")
        memcpy_async(memory, self.ptr, size, DEVICE_TO_HOST, stream.ptr)


class _Chunk:
    """A part of a block; neighbours in the same block are `prev` and `next`."""

    def __init__(self, memory: Memory, offset: int, size: int, arena: _Arena) -> None:
        self.memory, self.offset, self.size, self.arena = memory, offset, size, arena
        self.prev: _Chunk | None = None
        self.next: _Chunk | None = None


class _Arena:
    """The free chunks of one stream, ordered by size and then by the address of the Python object.

    So the same step gets other addresses the next time."""

    def __init__(self) -> None:
        self.free: list[tuple[int, int, _Chunk]] = []

    def insert(self, chunk: _Chunk) -> None:
        bisect.insort(self.free, (chunk.size, id(chunk), chunk))

    def _take(self, chunk: _Chunk | None) -> bool:
        place = next((i for i, (*_, free) in enumerate(self.free) if free is chunk), None)
        if place is not None:
            del self.free[place]
        return place is not None

    def give_back(self, chunk: _Chunk) -> None:
        while chunk.next is not None and self._take(chunk.next):
            _merge(chunk, chunk.next)
        while chunk.prev is not None and self._take(chunk.prev):
            chunk = chunk.prev
            _merge(chunk, chunk.next)  # type: ignore[arg-type]
        self.insert(chunk)

    def best(self, size: int) -> _Chunk | None:
        place = bisect.bisect_left(self.free, (size, 0))
        if place == len(self.free):
            return None
        chunk = self.free.pop(place)[2]
        if chunk.size > size:
            rest = _Chunk(chunk.memory, chunk.offset + size, chunk.size - size, self)
            chunk.size, rest.prev, rest.next, chunk.next = size, chunk, chunk.next, rest
            if rest.next is not None:
                rest.next.prev = rest
            self.insert(rest)
        return chunk


def _merge(chunk: _Chunk, after: _Chunk) -> None:
    chunk.size += after.size
    chunk.next = after.next
    if chunk.next is not None:
        chunk.next.prev = chunk


class _PooledMemory:
    """Goes back to its pool, poisoned, when nothing looks at it any more."""

    def __init__(self, chunk: _Chunk, pool: MemoryPool) -> None:
        self.ptr, self.size = chunk.memory.ptr + chunk.offset, chunk.size
        weakref.finalize(self, pool._give_back, chunk)


class MemoryPool:
    """CuPy's SingleDeviceMemoryPool: best fit, an arena for each stream."""

    def __init__(self, allocator: Callable[[int], MemoryPointer] | None = None) -> None:
        self._allocator = allocator or (lambda size: MemoryPointer(Memory(size), 0))
        self._arenas: dict[int, _Arena] = {}
        self._total = 0

    def malloc(self, size: int) -> MemoryPointer:
        size = -(-size // UNIT) * UNIT
        if size == 0:
            return MemoryPointer(Memory(0), 0)
        arena = self._arenas.setdefault(gpu.current[-1].ptr, _Arena())
        chunk = arena.best(size) or _Chunk(self._grow(size), 0, size, arena)
        return MemoryPointer(_PooledMemory(chunk, self), 0)

    def _grow(self, size: int) -> Memory:
        for make_room in (self.free_all_blocks, self._collect, None):
            try:
                memory: Memory = self._allocator(size).mem
            except CUDARuntimeError as error:
                if error.status != OUT_OF_MEMORY:
                    raise
                if make_room is None:
                    raise OutOfMemoryError(size, self._total) from error
                make_room()
            else:
                break
        self._total += size
        return memory

    def _collect(self) -> None:
        gc.collect()
        self.free_all_blocks()

    def _give_back(self, chunk: _Chunk) -> None:
        chunk.memory.bytes[chunk.offset : chunk.offset + chunk.size].fill(POISON)
        chunk.arena.give_back(chunk)

    def free_all_blocks(self) -> None:
        for arena in self._arenas.values():
            unsplit = [chunk for *_, chunk in arena.free if chunk.prev is None and chunk.next is None]
            arena.free = [entry for entry in arena.free if entry[2] not in unsplit]
            self._total -= sum(chunk.size for chunk in unsplit)

    def total_bytes(self) -> int:
        return self._total


class PinnedMemoryPointer(bytearray):
    @property
    def ptr(self) -> int:
        return np.frombuffer(self, np.uint8).ctypes.data


def alloc_pinned_memory(size: int) -> PinnedMemoryPointer:
    memory = PinnedMemoryPointer(-(-size // UNIT) * UNIT)
    gpu.pinned[memory.ptr] = len(memory)
    weakref.finalize(memory, gpu.pinned.pop, memory.ptr)
    return memory


@contextlib.contextmanager
def using_allocator(allocator: Any) -> Iterator[None]:
    gpu.allocators.append(allocator)
    try:
        yield
    finally:
        gpu.allocators.pop()


# -- CuPy's arrays -------------------------------------------------------------------------------------------------


class Device:
    def __init__(self, index: int = 0) -> None:
        self.id = index

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Device) and other.id == self.id

    def __hash__(self) -> int:
        return self.id

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *error: object) -> None: ...


def _kernel(name: str) -> Callable[..., Any]:
    def refuse(self: Any, *operands: Any) -> Any:
        if any(isinstance(other, np.ndarray) for other in operands):
            raise TypeError(f"Unsupported type {type(operands[0])}")
        raise AssertionError(f"{name}: CuPy would compile a kernel of its own")

    return refuse


class ndarray:  # noqa: N801  (CuPy's name, which Chainer's messages show)
    """C-contiguous device memory."""

    __array_priority__ = 100
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, shape: Any, dtype: Any = float, memptr: MemoryPointer | None = None) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(int(length) for length in shape)
        self.dtype = np.dtype(dtype)
        self.size = int(np.prod(self.shape))
        self.nbytes = self.size * self.dtype.itemsize
        self.ndim = len(self.shape)
        self.data = memptr or gpu.allocators[-1](self.nbytes)
        self.device = Device()
        self.flags = types.SimpleNamespace(c_contiguous=True)

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        return _kernel(ufunc.__name__)(self, *inputs)

    def reshape(self, *shape: Any) -> ndarray:
        shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
        return ndarray(np.empty(self.size, np.bool_).reshape(shape).shape, self.dtype, self.data)

    def __getitem__(self, part: slice) -> ndarray:
        if isinstance(part, np.ndarray) or not isinstance(part, slice) or part.step not in (None, 1) or self.ndim != 1:
            raise AssertionError(f"[{part}]: CuPy would compile a kernel of its own")
        begin, end, _ = part.indices(self.size)
        return ndarray((max(end - begin, 0),), self.dtype, self.data + begin * self.dtype.itemsize)

    def __len__(self) -> int:
        return self.shape[0]

    def set(self, host: Any, stream: Stream) -> None:
        if not isinstance(host, np.ndarray) or host.dtype != self.dtype:
            raise TypeError(f"{type(host)} cannot be set to {self.dtype} array")
        if host.shape != self.shape:
            raise ValueError(f"Shape mismatch. Old shape: {self.shape}, new shape: {host.shape}")
        host = np.ascontiguousarray(host)
        self.data.copy_from_host_async(host.ctypes.data, self.nbytes, stream)
        # The real copy has read pageable memory, or keeps the caller waiting.
        stream.pending.append(lambda: host)

    def get(self, stream: Stream | None = None, blocking: bool = True) -> np.ndarray:
        stream = stream or gpu.current[-1]
        host = np.empty(self.shape, self.dtype)
        if self.size:
            self.data.copy_to_host_async(host.ctypes.data, self.nbytes, stream)
            if blocking:
                stream.synchronize()
        return host

    def copy(self) -> ndarray:
        """Copy as CuPy does, by one of its kernels; this is the cost of Chainer's static_graph."""
        duplicate = ndarray(self.shape, self.dtype)
        duplicate.data.copy_from_device_async(self.data, self.nbytes, gpu.current[-1])
        return duplicate

    def __float__(self) -> float:
        return float(self.get())

    def __int__(self) -> int:
        return int(self.get())

    def __bool__(self) -> bool:
        if self.size > 1:
            raise ValueError("The truth value of an array with more than one element is ambiguous.")
        return bool(self.get())

    def __repr__(self) -> str:
        return f"array({self.shape}, {self.dtype})"


_OPERATORS = ("add", "sub", "mul", "truediv", "pow", "matmul")
_COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge", "neg", "abs", "setitem")
for _name in (*(kind + name for name in _OPERATORS for kind in ("", "r", "i")), *_COMPARISONS):
    setattr(ndarray, f"__{_name}__", _kernel(_name))
for _name in ("astype", "sum", "mean", "max", "min", "any", "all", "fill", "transpose", "ravel"):
    setattr(ndarray, _name, _kernel(_name))


# -- the module ----------------------------------------------------------------------------------------------------


class Cupy(types.ModuleType):
    """`cupy`. `prepared` lists the names of the work that was prepared; `cudnn_stream` is the cuDNN handle's;
    `properties` are the GPU's."""

    prepared: list[str]
    cudnn_stream: int | None = None
    properties: dict[str, Any]

    @staticmethod
    def transfers() -> list[str]:
        """Copies from the host, in order: "sent" or, into a graph, "captured"."""
        return gpu.transfers


# -- NCCL ------------------------------------------------------------------------------------------------------------

NCCL_UNIQUE_ID_BYTES = 128
_NCCL_DTYPES = {6: "float16", 7: "float32", 9: "bfloat16"}


class NcclCommunicator:
    """Every rank has this one's numbers, so that a sum is so many times them. On a stream other than the current one it
    happens as late as it may: when somebody waits."""

    def __init__(self, ndev: int, commId: bytes, rank: int) -> None:  # noqa: N803
        if type(commId) is not bytes:
            raise TypeError(f"Argument 'commId' has incorrect type (expected bytes, got {type(commId).__name__})")
        if len(commId) != NCCL_UNIQUE_ID_BYTES:
            raise ValueError(f"commId length {len(commId)} != {NCCL_UNIQUE_ID_BYTES}.")
        if not 0 <= rank < ndev:
            raise RuntimeError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        self._ranks = ndev

    def allReduce(self, source: int, target: int, count: int, dtype: int, op: int, stream: int) -> None:  # noqa: N802
        if dtype not in _NCCL_DTYPES or op != 0:
            raise RuntimeError("NCCL_ERROR_INVALID_ARGUMENT: invalid argument")
        on, item_bytes = gpu.streams[stream], np.dtype(_NCCL_DTYPES[dtype]).itemsize
        assert on.ptr != 0, "on the legacy stream, which waits for none of ours"

        def add() -> None:
            addends = gpu.bytes(source, count * item_bytes).view(_NCCL_DTYPES[dtype])
            total = (addends.astype(np.float32) * self._ranks).astype(addends.dtype)
            gpu.bytes(target, count * item_bytes)[:] = total.view(np.uint8)

        gpu.bytes(source, count * item_bytes)
        gpu.bytes(target, count * item_bytes)
        if on is gpu.current[-1]:
            on.run(add)
            return
        assert not gpu.current[-1].capturing, "a second stream while capturing: untried"
        assert on.waited, "NCCL's stream has not waited for what it sums"
        on.waited = False
        on.pending.append(add)


def _nccl() -> types.SimpleNamespace:
    return types.SimpleNamespace(
        available=True,
        NcclCommunicator=NcclCommunicator,
        NCCL_SUM=0,
        **{f"NCCL_{dtype.upper()}": number for number, dtype in _NCCL_DTYPES.items()},
        get_unique_id=lambda: bytes(range(NCCL_UNIQUE_ID_BYTES)),
        get_version=lambda: 22703,
    )


# -- cuBLAS and cuSOLVER ---------------------------------------------------------------------------------------------

CUBLAS_HANDLE, CUSOLVER_HANDLE = 0x7F03_2345_6700, 0x7F04_2345_6700
CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF, COMPUTE_32F, COMPUTE_16F = 0, 2, 14, 68, 64
OP_N, OP_T, LOWER, UPPER = 0, 1, 0, 1
_NARROW = {CUDA_R_16F: "float16", CUDA_R_16BF: "bfloat16"}


class CUBLASError(RuntimeError): ...


class CUSOLVERError(RuntimeError): ...


def _stream_of(library: str) -> Stream:
    """CuPy's `_setStream`, before every call."""
    stream = gpu.current[-1]
    assert stream.ptr != 0, "on the legacy stream, which waits for none of ours"
    if stream.capturing:
        raise NotImplementedError(f"calling {library} API during stream capture is currently unsupported")
    return stream


def _columns(address: int, rows: int, columns: int, leading: int, dtype: str = "float32") -> np.ndarray:
    """A matrix (rows, columns) that lies column by column."""
    item_bytes = np.dtype(dtype).itemsize
    n_bytes = item_bytes * (leading * (columns - 1) + rows) if rows * columns else 0
    flat = gpu.bytes(address, n_bytes).view(dtype)
    return np.lib.stride_tricks.as_strided(flat, (rows, columns), (item_bytes, leading * item_bytes))


def _number(address: int) -> float:
    """Return a float from host memory, which is read when the call is made."""
    return ctypes.c_float.from_address(address).value


class Cublas:
    """`cupy.cuda.cublas`: sizes that cuBLAS refuses are refused; a triangle that it does not write is not written."""

    CUBLAS_OP_N, CUBLAS_OP_T = OP_N, OP_T
    CUBLAS_FILL_MODE_LOWER, CUBLAS_FILL_MODE_UPPER = LOWER, UPPER
    CUBLAS_COMPUTE_32F, CUBLAS_COMPUTE_16F, CUBLAS_GEMM_DEFAULT = COMPUTE_32F, COMPUTE_16F, -1

    @staticmethod
    def ssyrk(
        handle: int, uplo: int, trans: int, n: int, k: int, alpha: int, a: int, lda: int, beta: int, c: int, ldc: int
    ) -> None:
        stream = _stream_of("cuBLAS")
        if handle != CUBLAS_HANDLE:
            raise CUBLASError("CUBLAS_STATUS_NOT_INITIALIZED")
        rows, columns = (n, k) if trans == OP_N else (k, n)
        if min(n, k) < 0 or lda < max(1, rows) or ldc < max(1, n):
            raise CUBLASError("CUBLAS_STATUS_INVALID_VALUE")
        scale, decay = _number(alpha), _number(beta)
        _columns(a, rows, columns, lda), _columns(c, n, n, ldc)

        def compute() -> None:
            x, result = _columns(a, rows, columns, lda).astype(np.float64), _columns(c, n, n, ldc)
            product = x @ x.T if trans == OP_N else x.T @ x
            value = scale * product + (decay * result if decay else 0)
            written = np.tri(n, dtype=bool)
            np.copyto(result, value.astype(np.float32), where=written if uplo == LOWER else written.T)

        stream.run(compute)

    @staticmethod
    def gemmEx(*arguments: int) -> None:  # noqa: N802
        stream = _stream_of("cuBLAS")
        handle, transa, transb, m, n, k, alpha, a, a_type, lda, b, b_type, ldb, beta, c, c_type, ldc, compute, algo = (
            arguments
        )
        if handle != CUBLAS_HANDLE:
            raise CUBLASError("CUBLAS_STATUS_NOT_INITIALIZED")
        a_shape, b_shape = (m, k) if transa == OP_N else (k, m), (k, n) if transb == OP_N else (n, k)
        if min(m, n, k) < 0 or lda < max(1, a_shape[0]) or ldb < max(1, b_shape[0]) or ldc < max(1, m):
            raise CUBLASError("CUBLAS_STATUS_INVALID_VALUE")
        if a_type != b_type or a_type not in _NARROW or (c_type, compute, algo) != (CUDA_R_32F, COMPUTE_32F, -1):
            raise CUBLASError("CUBLAS_STATUS_NOT_SUPPORTED")
        scale, decay, dtype = _number(alpha), _number(beta), _NARROW[a_type]

        def run() -> None:
            first = _columns(a, *a_shape, lda, dtype).astype(np.float64)
            second, result = _columns(b, *b_shape, ldb, dtype).astype(np.float64), _columns(c, m, n, ldc)
            product = (first if transa == OP_N else first.T) @ (second if transb == OP_N else second.T)
            result[...] = scale * product + (decay * result if decay else 0)

        stream.run(run)


class Cusolver:
    """`cupy.cuda.cusolver`: a decomposition uses all of its scratch, leaves the other triangle alone, and stops at the
    first minor that is not positive definite; each call writes its info."""

    SCRATCH = 32

    @classmethod
    def spotrf_bufferSize(cls, handle: int, uplo: int, n: int, a: int, lda: int) -> int:  # noqa: N802
        _stream_of("cuSOLVER")
        cls._check(handle, n, lda)
        return n * cls.SCRATCH

    @classmethod
    def spotrf(cls, handle: int, uplo: int, n: int, a: int, lda: int, work: int, lwork: int, info: int) -> None:
        stream = _stream_of("cuSOLVER")
        cls._check(handle, n, lda, lwork - n * cls.SCRATCH)
        _columns(a, n, n, lda), gpu.bytes(info, 4)

        def run() -> None:
            gpu.bytes(work, 4 * lwork).fill(POISON)
            factor, minor = lapack.spotrf(_columns(a, n, n, lda).copy(), lower=uplo == LOWER, clean=0)
            _columns(a, n, n, lda)[...] = factor
            gpu.bytes(info, 4).view(np.int32)[0] = minor

        stream.run(run)

    @classmethod
    def spotrs(cls, handle: int, uplo: int, n: int, nrhs: int, a: int, lda: int, b: int, ldb: int, info: int) -> None:
        stream = _stream_of("cuSOLVER")
        cls._check(handle, n, lda, nrhs, ldb - max(1, n))
        _columns(a, n, n, lda), _columns(b, n, nrhs, ldb), gpu.bytes(info, 4)

        def run() -> None:
            solution, minor = lapack.spotrs(_columns(a, n, n, lda), _columns(b, n, nrhs, ldb), lower=uplo == LOWER)
            _columns(b, n, nrhs, ldb)[...] = solution
            gpu.bytes(info, 4).view(np.int32)[0] = minor

        stream.run(run)

    @staticmethod
    def _check(handle: int, n: int, lda: int, *at_least_0: int) -> None:
        if handle != CUSOLVER_HANDLE:
            raise CUSOLVERError("CUSOLVER_STATUS_NOT_INITIALIZED")
        if n < 0 or lda < max(1, n) or min(at_least_0, default=0) < 0:
            raise CUSOLVERError("CUSOLVER_STATUS_INVALID_VALUE")


def _module() -> Cupy:
    module = Cupy("cupy")
    module.properties = {"name": b"Fake GPU", "major": 9, "minor": 0, "multiProcessorCount": 132}
    module.properties["totalGlobalMem"] = 80 << 30
    vars(module).update(
        prepared=[],
        ndarray=ndarray,
        empty=lambda shape, dtype=float: ndarray(shape, dtype),
        uint8=np.uint8,
        get_array_module=lambda *arrays: module if any(isinstance(array, ndarray) for array in arrays) else np,
        cuda=types.SimpleNamespace(
            **{exported.__name__: exported for exported in (Device, Stream, Event, Memory, MemoryPointer, MemoryPool)},
            **{exported.__name__: exported for exported in (using_allocator, alloc_pinned_memory, get_elapsed_time)},
            nccl=_nccl(),
            cublas=Cublas,
            cusolver=Cusolver,
            device=types.SimpleNamespace(
                get_cublas_handle=lambda: CUBLAS_HANDLE, get_cusolver_handle=lambda: CUSOLVER_HANDLE
            ),
            get_current_stream=lambda: gpu.current[-1],
            memory=types.SimpleNamespace(OutOfMemoryError=OutOfMemoryError),
            runtime=types.SimpleNamespace(
                CUDARuntimeError=CUDARuntimeError,
                memcpyAsync=memcpy_async,
                memcpyHostToDevice=HOST_TO_DEVICE,
                memsetAsync=memset_async,
                CUDA_R_32F=CUDA_R_32F,
                CUDA_R_16F=CUDA_R_16F,
                CUDA_R_16BF=CUDA_R_16BF,
                getDeviceProperties=lambda index: module.properties,
            ),
        ),
    )
    return module


def install_cupy(patch: pytest.MonkeyPatch) -> Cupy:
    """CuPy on a fresh GPU, for Chainer too."""
    global gpu
    gpu = Gpu()
    gpu.current.append(Stream(null=True))
    gpu.allocators.append(MemoryPool().malloc)
    module = _module()
    patch.setitem(sys.modules, "cupy", module)
    patch.setitem(sys.modules, "cupy.cuda", module.cuda)
    cuda = chainer.backends.cuda
    attributes = {"available": True, "cudnn_enabled": True, "cupy": module, "ndarray": ndarray, "Device": Device}
    for name, value in attributes.items():
        patch.setattr(cuda, name, value)
    patch.setattr(cuda.GpuDevice, "xp", module)
    patch.setattr(cuda.GpuDevice, "supported_array_types", (ndarray,))
    patch.setattr(chainer, "_array_types", (np.ndarray, ndarray))
    patch.setattr(chainer, "_cpu_array_types", (np.ndarray,))
    return module


def install(patch: pytest.MonkeyPatch) -> Cupy:
    """CuPy, cuDNN and the kernels on the host: whoever prepares work gets a function of addresses that computes it with
    the reference."""
    fake = install_cupy(patch)

    def prepare(work: Work) -> Callable[..., None]:
        fake.prepared.append(work.name)
        stream = gpu.streams[fake.cudnn_stream]

        def run(*addresses: int) -> None:
            assert len(addresses) == len(work.operands)
            assert work.kind == "kernel" or not any(address % 16 for address in addresses), "an operand is not aligned"
            stream.run(lambda: REFERENCE[work.name](work, *map(_array_at, addresses, work.operands)))

        return run

    class Plan:
        facts = PlanFacts(
            "engine 1",
            WORKSPACE_BYTES,
            1,
            2,
            timed=(PlanTime("engine 0", 0, 2.0), PlanTime("engine 1", WORKSPACE_BYTES, 1.0)),
            left_out=3,
            budget_s=9.0,
        )

        def __init__(self, work: Work) -> None:
            self._run = prepare(work)

        def __call__(self, addresses: tuple[int, ...], workspace: int) -> None:
            gpu.bytes(workspace, WORKSPACE_BYTES)
            assert fake.cudnn_stream == gpu.current[-1].ptr, "cuDNN is not on the accelerator's stream"
            self._run(*addresses)

    def on_handle(work: Work, handle: int) -> tuple[Plan, int]:
        assert handle == CUDNN_HANDLE
        return Plan(work), WORKSPACE_BYTES

    def plans(handle: int, properties: Any, **settings: Any) -> Any:
        assert handle == CUDNN_HANDLE
        return types.SimpleNamespace(prepare=Plan)

    def new_handle(stream: int) -> int:
        fake.cudnn_stream = stream
        return CUDNN_HANDLE

    patch.setattr(live.libraries, "frontend", lambda: None)
    patch.setattr(live.calls, "new_handle", new_handle)

    def stall(seconds: float) -> None:
        stream = gpu.streams[fake.cudnn_stream]
        stream.run(lambda: None)
        stream.stalled = seconds > 0

    patch.setattr(live, "Kernels", lambda sm, stream: types.SimpleNamespace(prepare=prepare, stall=stall))
    patch.setattr(live, "Plans", plans)
    patch.setattr(live.calls, "prepare_call", on_handle)
    return fake


def site() -> OpenDevice:
    """The first GPU, opened as `cuda:0` is."""
    accelerator = live.CudaAccelerator(0, CudnnSettings())
    return OpenDevice(
        accelerator,
        HostClock(),
        accelerator.peak_bytes,
        accelerator.enter,
        accelerator.plan_choices,
        reducer=accelerator.reducer,
    )


def _array_at(address: int, operand: Operand) -> np.ndarray:
    """The array at an address."""
    return gpu.bytes(address, operand.bytes).view(operand.dtype)
