"""Averaging of gradients over ranks, between backward and update.

Either ChainerMN's communicator averages each parameter, or gradients are packed into flat buffers, which the batched
update reads. The order of calls is the same on every rank. Ranks start with the same weights because they have the same
seed, so nothing is broadcast (ChainerMN's optimizer would do that in its first step)."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Array, Reducer, current
from tcbench.engine.backends.chainer.ops.node import OnGradient, dtype_of, half_of, on_gradient
from tcbench.engine.world import World

BUCKET_BYTES = 25 << 20
"""The size of a bucket, as in PyTorch's DistributedDataParallel."""


class Exchange:
    """The base class of exchanges, which average gradients over ranks. Every rank makes the same calls in order.

    - `engine`: the library that reduces, with its version.
    - `reduced_bytes`: the bytes that a rank contributes to the all-reduce in one step.
    - `overlaps`: whether the all-reduce runs during other phases; then `allreduce` only waits for the rest."""

    engine: str
    reduced_bytes: int
    overlaps = False

    def allreduce(self) -> bool:
        """Finish averaging after backward. Returns False if there are no averaged gradients yet to update with."""
        raise NotImplementedError

    def close(self) -> None:
        """Release resources. May wait for a pending all-reduce."""


@dataclass(frozen=True)
class Replica:
    """One rank's model and optimizer. `reducer` makes the device's all-reduce engine."""

    world: World
    model: Any
    optimizer: Any
    reducer: Callable[[World], Reducer]


@dataclass(frozen=True)
class ExchangeSpec:
    """A description of an exchange.

    - `build`: makes the exchange from this description and a replica.
    - `half`: whether gradients are sent in 16 bits: as bfloat16 if the model stores that, else as float16."""

    build: Callable[[ExchangeSpec, Replica], Exchange]
    half: bool = False


class PerParameter(Exchange):
    """An exchange by ChainerMN's communicator, called as its multi-node optimizer does.

    The communicator is `naive` for arrays on the host, with one MPI call per parameter, and `pure_nccl` on a GPU. Both
    send float32 even for 16-bit gradients. The communicator is never closed: that would wait for all ranks, and some
    may have died."""

    def __init__(self, spec: ExchangeSpec, replica: Replica) -> None:
        model, mpi = replica.model, replica.world.mpi
        self._average, self.engine = _naive(mpi) if current().shares_host_memory else _pure_nccl(mpi)
        self._model = _Widened(model) if any(half_of(p.array) == "bfloat16" for p in model.params()) else model
        self.reduced_bytes = sum(p.size * work.ITEM_BYTES[work.wide(dtype_of(p.array))] for p in model.params())

    def allreduce(self) -> bool:
        """Average the gradients in place. bfloat16 gradients are averaged as float32 copies, and converted back."""
        self._average(self._model)
        if isinstance(self._model, _Widened):
            self._model.narrow()
        return True


class _Packed(Exchange):
    """The base class of exchanges that pack gradients into buckets, which the device's own engine reduces. `listener`
    is called with every new gradient during backward, if it is given."""

    overlaps = True

    def __init__(self, replica: Replica, buckets: Sequence[_Bucket], listener: OnGradient | None = None) -> None:
        self._reducer = replica.reducer(replica.world)
        self.engine = self._reducer.engine
        self.reduced_bytes = sum(int(bucket.buffer.nbytes) for bucket in buckets)
        self._exit = contextlib.ExitStack()
        self._exit.callback(self._reducer.close)
        if listener is not None:
            self._exit.enter_context(on_gradient(listener))

    def close(self) -> None:
        self._exit.close()


class Flat(_Packed):
    """An exchange of all gradients in one buffer, which one launch packs and divides by the number of ranks. The
    device's own engine reduces the buffer, and the batched update reads it."""

    overlaps = False

    def __init__(self, spec: ExchangeSpec, replica: Replica) -> None:
        parameters = tuple(replica.model.params())
        self._bucket = _Bucket(parameters, *_dtypes(spec, parameters), replica.world.size)
        replica.optimizer.use_gradients(self._bucket.views)
        super().__init__(replica, [self._bucket])

    def allreduce(self) -> bool:
        """Pack all gradients, and reduce the buffer."""
        self._bucket.pack()
        self._reducer.reduce(self._bucket.buffer)
        return True


class DoubleBuffered(_Packed):
    """An exchange that alternates two flat buffers: one is reduced while the next step computes its gradients.

    Each update therefore applies the gradients of the previous step, and the first step updates nothing. ChainerMN
    offers the same, but only with `pure_nccl`."""

    def __init__(self, spec: ExchangeSpec, replica: Replica) -> None:
        parameters = tuple(replica.model.params())
        self._next, self._pending = (
            _Bucket(parameters, *_dtypes(spec, parameters), replica.world.size) for _ in range(2)
        )
        self._optimizer = replica.optimizer
        self._wait: Callable[[], None] | None = None
        # During backward, each new gradient lets the all-reduce of the previous step progress.
        super().__init__(replica, [self._next], lambda *_: self._reducer.advance())

    def allreduce(self) -> bool:
        """Wait for the previous step's gradients, hand them to the optimizer, and start reducing this step's. Returns
        False in the first step, which has no previous gradients."""
        wait, ready = self._wait, self._pending
        if wait is not None:
            wait()
            self._optimizer.use_gradients(ready.views)
        self._next.pack()
        self._wait = self._reducer.begin(self._next.buffer)
        self._next, self._pending = ready, self._next
        return wait is not None


class Overlapped(_Packed):
    """An exchange in buckets, each packed and reduced as soon as backward has computed all of its gradients.

    Backward starts with the last layer, and so do the buckets. After backward only waiting is left. The order of
    buckets is fixed, and therefore the same on all ranks."""

    def __init__(self, spec: ExchangeSpec, replica: Replica) -> None:
        parameters = tuple(replica.model.params())
        dtypes = _dtypes(spec, parameters)
        min_size = BUCKET_BYTES // work.ITEM_BYTES[dtypes[0]]
        self._buckets = [_Bucket(group, *dtypes, replica.world.size) for group in _groups(parameters[::-1], min_size)]
        places = {
            id(parameter): (bucket, index)
            for bucket in self._buckets
            for index, parameter in enumerate(bucket.parameters)
        }
        in_order = [places[id(parameter)] for parameter in parameters]
        replica.optimizer.use_gradients(tuple(bucket.views[index] for bucket, index in in_order))
        self._places = {id(parameter.node): place for parameter, place in zip(parameters, in_order, strict=True)}
        self._waits: list[Callable[[], None]] = []
        super().__init__(replica, self._buckets, self._add)

    def _add(self, node: Any, gradient: Array) -> None:
        """Add a new gradient to its bucket, and start the all-reduce of each bucket that is complete, in order. `node`
        is the variable's node; gradients of variables that are not parameters are ignored."""
        self._reducer.advance()
        place = self._places.get(id(node))
        if place is None:
            return
        bucket, index = place
        bucket.gradients[index] = gradient
        for bucket in self._buckets[len(self._waits) :]:
            if len(bucket.gradients) < len(bucket.parameters):
                break
            self._begin()

    def _begin(self) -> None:
        """Start the all-reduce of the next bucket."""
        bucket = self._buckets[len(self._waits)]
        bucket.pack()
        self._waits.append(self._reducer.begin(bucket.buffer))

    def allreduce(self) -> bool:
        """Start the buckets that backward has not completed, and wait for all of them."""
        while len(self._waits) < len(self._buckets):
            self._begin()
        for wait in self._waits:
            wait()
        self._waits.clear()
        return True


class _Bucket:
    """A group of parameters whose gradients are packed into one buffer.

    `dtype` is that of the buffer, and `half` that of the 16-bit parameters. `views` has each parameter's part of the
    buffer. `gradients` has gradients to pack, by the index of the parameter."""

    def __init__(self, parameters: Sequence[Any], dtype: work.DType, half: work.Half, ranks: int) -> None:
        self._accelerator = accelerator = current()
        self.parameters = parameters
        halves = tuple(half_of(parameter.array) is not None for parameter in parameters)
        described = work.Parameters(tuple(parameter.size for parameter in parameters), halves, half)
        # The padding between parameters is summed too, and stays 0.
        self.buffer = accelerator.zeros((described.total,), dtype)
        self.views = tuple(
            self.buffer[place : place + size] for place, size in zip(described.places, described.sizes, strict=True)
        )
        self.gradients: dict[int, Array] = {}
        self._pack = work.PackGradients(described, dtype, 1 / ranks)
        self._chunks = accelerator.upload(np.array(list(described.chunks()), np.int64).reshape(-1, 4))
        self._rows = np.zeros((len(halves), 2), np.int64)
        self._rows[:, 1] = halves
        self._table = accelerator.upload(self._rows)

    def pack(self) -> None:
        """Fill the buffer with the parameters' gradients, divided by the number of ranks, and clear `gradients`. A
        parameter without an entry in `gradients` is packed from its attribute `grad`."""
        accelerator = self._accelerator
        for row, (index, parameter) in zip(self._rows, enumerate(self.parameters), strict=True):
            row[0] = accelerator.address(self.gradients.get(index, parameter.grad))
        accelerator.copy(self._rows, self._table)
        accelerator.launch(self._pack, self._table, self._chunks, self.buffer)
        self.gradients.clear()


def _dtypes(spec: ExchangeSpec, parameters: Sequence[Any]) -> tuple[work.DType, work.Half]:
    """Return the dtype that gradients are sent in, and the 16-bit dtype of the parameters (float16 if they have
    none)."""
    halves = (half_of(parameter.array) for parameter in parameters)
    half: work.Half = next(filter(None, halves), "float16")
    return half if spec.half else "float32", half


def _groups(parameters: Sequence[Any], min_size: int) -> list[list[Any]]:
    """Split the parameters in order into groups of at least `min_size` values; the last group may be smaller."""
    groups: list[list[Any]] = [[]]
    for parameter in parameters:
        if sum(other.size for other in groups[-1]) >= min_size:
            groups.append([])
        groups[-1].append(parameter)
    return groups


_Average = Callable[[Any], None]
"""A function of ChainerMN that averages a model's gradients over ranks."""


def _naive(mpi: Any) -> tuple[_Average, str]:
    """Return the averaging function of ChainerMN's `naive` communicator, and the engine's name."""
    from chainermn import create_communicator
    from mpi4py import MPI

    library = str(MPI.Get_library_version()).partition(",")[0].strip()
    return create_communicator("naive", mpi).multi_node_mean_grad, f"ChainerMN naive over {library}"


def _pure_nccl(mpi: Any) -> tuple[_Average, str]:
    """Return the averaging function of ChainerMN's `pure_nccl` communicator, and the engine's name.

    ChainerMN 7.8.1 needs some care with CuPy 14:

    - Its two kernels that copy all gradients at once use `half`, which CuPy's headers no longer define by default.
    - Its copies of single parameters fail for mixed dtypes, because `array(copy=False)` no longer converts.
    - Its public call runs on the legacy stream, for which our stream does not wait. The private one takes a stream."""
    import cupy
    from chainermn import create_communicator, nccl

    _give_half_to_chainermn()
    stream, average = cupy.cuda.get_current_stream(), create_communicator("pure_nccl", mpi)._multi_node_mean_grad_async
    version = nccl.get_version()
    number = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return lambda model: average(model, False, stream), f"ChainerMN pure_nccl over NCCL {number}"


@functools.cache
def _give_half_to_chainermn() -> None:
    """Replace ChainerMN's two kernels by ones that include the definition of `half`."""
    import cupy
    from chainermn.communicators import _memory_utility as kernels

    for name in ("_cupy_batched_pack_params", "_cupy_batched_unpack_params"):
        original = getattr(kernels, name)()
        kernel = cupy.RawKernel(WITH_HALF + original.code, original.name)
        setattr(kernels, name, lambda kernel=kernel: kernel)


WITH_HALF = "#include <cupy/float16.cuh>\n"
"""The include that CuPy 14 needs to compile ChainerMN's kernels."""


class _Widened:
    """A model as ChainerMN sees it: bfloat16 gradients are float32 copies, because ChainerMN does not support
    bfloat16."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._pairs: list[tuple[Any, SimpleNamespace]] = []  # each parameter, and its float32 stand-in for ChainerMN

    def namedparams(self) -> Iterator[tuple[str, Any]]:
        """Yield each parameter with its name, or a stand-in with a float32 gradient if the parameter is bfloat16.
        ChainerMN calls this once per step."""
        accelerator = current()
        self._pairs = []
        for name, parameter in self._model.namedparams():
            if half_of(parameter.array) != "bfloat16":
                yield name, parameter
                continue
            wide = accelerator.empty(parameter.shape, np.float32)
            accelerator.launch(work.ToSingle.interned(parameter.size, "bfloat16"), parameter.grad, wide)
            self._pairs.append((parameter, SimpleNamespace(data=parameter.array, grad=wide)))
            yield name, self._pairs[-1][1]

    def narrow(self) -> None:
        """Write the averages back into the parameters' own bfloat16 gradients."""
        for parameter, wide in self._pairs:
            current().launch(work.ToHalf.interned(parameter.size, "bfloat16"), wide.grad, parameter.grad)
