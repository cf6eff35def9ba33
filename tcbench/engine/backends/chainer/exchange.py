"""Gradients averaged over ranks, between backward and update: by ChainerMN's own communicator, parameter by parameter;
or side by side in flat buffers, which the batched update reads.

Owns the order of calls, which is the same on every rank. The weights that ranks start with are equal by their seed, so
that nothing is broadcast (ChainerMN's optimizer does that in its first step)."""

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
"""As in PyTorch's DistributedDataParallel."""


class Exchange:
    """Averages gradients over ranks, as a step uses it. Every rank makes the same calls in the same order. `engine`:
    what reduces them, with its version. `reduced_bytes`: the size of what one rank gives to the all-reduce in a step.
    `overlaps`: it runs beside other phases, so that `allreduce` is the wait that is left of it."""

    engine: str
    reduced_bytes: int
    overlaps = False

    def allreduce(self) -> bool:
        """After backward: the optimizer reads means over all ranks. False: there are none yet, so update nothing."""
        raise NotImplementedError

    def close(self) -> None:
        """Give back what is held; may wait for what is under way."""


@dataclass(frozen=True)
class Replica:
    """One rank's model and optimizer, which an exchange stands between. `reducer` makes the engine of its device."""

    world: World
    model: Any
    optimizer: Any
    reducer: Callable[[World], Reducer]


@dataclass(frozen=True)
class ExchangeSpec:
    """The way in which gradients are averaged over ranks. `build` makes the exchange. `half`: 16 bits are sent and not
    float32, bfloat16 where the model stores that."""

    build: Callable[[ExchangeSpec, Replica], Exchange]
    half: bool = False


class PerParameter(Exchange):
    """ChainerMN's communicator, as its multi-node optimizer calls it: `naive` where arrays are the host's, which makes
    one MPI call for each parameter, `pure_nccl` on a GPU. Both send float32, also of 16-bit gradients. It stays
    open: its end waits for all ranks, of which some may be gone."""

    def __init__(self, spec: ExchangeSpec, replica: Replica) -> None:
        model, mpi = replica.model, replica.world.mpi
        self._average, self.engine = _naive(mpi) if current().shares_host_memory else _pure_nccl(mpi)
        self._model = _Widened(model) if any(half_of(p.array) == "bfloat16" for p in model.params()) else model
        self.reduced_bytes = sum(p.size * work.ITEM_BYTES[work.wide(dtype_of(p.array))] for p in model.params())

    def allreduce(self) -> bool:
        self._average(self._model)
        if isinstance(self._model, _Widened):
            self._model.narrow()
        return True


class _Packed(Exchange):
    """An exchange of packed gradients by the device's own engine. `listener` is told of every gradient once made."""

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
    """All gradients packed by one launch into one buffer, divided by the number of ranks on the way, and reduced by
    the device's own engine. The batched update reads the buffer."""

    overlaps = False

    def __init__(self, spec: ExchangeSpec, replica: Replica) -> None:
        parameters = tuple(replica.model.params())
        self._bucket = _Bucket(parameters, *_dtypes(spec, parameters), replica.world.size)
        replica.optimizer.read(self._bucket.views)
        super().__init__(replica, [self._bucket])

    def allreduce(self) -> bool:
        self._bucket.pack()
        self._reducer.reduce(self._bucket.buffer)
        return True


class DoubleBuffered(_Packed):
    """As Flat, but into two buffers in turn: while one is reduced, the next step computes its gradients, and what is
    applied are those of the step before. The first step applies nothing, as in ChainerMN's double buffering, which
    only its `pure_nccl` has."""

    def __init__(self, spec: ExchangeSpec, replica: Replica) -> None:
        parameters = tuple(replica.model.params())
        self._next, self._under_way = (
            _Bucket(parameters, *_dtypes(spec, parameters), replica.world.size) for _ in range(2)
        )
        self._optimizer = replica.optimizer
        self._wait: Callable[[], None] | None = None
        super().__init__(replica, [self._next], lambda *_: self._reducer.advance())

    def allreduce(self) -> bool:
        before, ready = self._wait, self._under_way
        if before is not None:
            before()
            self._optimizer.read(ready.views)
        self._next.pack()
        self._wait = self._reducer.begin(self._next.buffer)
        self._next, self._under_way = ready, self._next
        return before is not None


class Overlapped(_Packed):
    """Buckets of gradients, each packed and reduced as soon as backward has made them, from the last layer on; what is
    left to do after backward is to wait. The order of buckets is fixed, and so is the same on all ranks."""

    def __init__(self, spec: ExchangeSpec, replica: Replica) -> None:
        parameters = tuple(replica.model.params())
        dtypes = _dtypes(spec, parameters)
        values = BUCKET_BYTES // work.ITEM_BYTES[dtypes[0]]
        self._buckets = [_Bucket(group, *dtypes, replica.world.size) for group in _cut(parameters[::-1], values)]
        places = {
            id(parameter): (bucket, index)
            for bucket in self._buckets
            for index, parameter in enumerate(bucket.parameters)
        }
        in_order = [places[id(parameter)] for parameter in parameters]
        replica.optimizer.read(tuple(bucket.views[index] for bucket, index in in_order))
        self._places = {id(parameter.node): place for parameter, place in zip(parameters, in_order, strict=True)}
        self._waits: list[Callable[[], None]] = []
        super().__init__(replica, self._buckets, self._arrive)

    def _arrive(self, node: Any, gradient: Array) -> None:
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
        bucket = self._buckets[len(self._waits)]
        bucket.pack()
        self._waits.append(self._reducer.begin(bucket.buffer))

    def allreduce(self) -> bool:
        while len(self._waits) < len(self._buckets):
            self._begin()
        for wait in self._waits:
            wait()
        self._waits.clear()
        return True


class _Bucket:
    """Parameters whose gradients lie side by side in a buffer, in one dtype; `views` are their places in it."""

    def __init__(self, parameters: Sequence[Any], dtype: work.DType, half: work.Half, ranks: int) -> None:
        self._accelerator = accelerator = current()
        self.parameters = parameters
        halves = tuple(half_of(parameter.array) is not None for parameter in parameters)
        described = work.Parameters(tuple(parameter.size for parameter in parameters), halves, half)
        # What lies between parameters is summed with them, and stays 0.
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
        """Fill the buffer from `gradients`, or from where the parameters have them, divided by the number of ranks."""
        accelerator = self._accelerator
        for row, (index, parameter) in zip(self._rows, enumerate(self.parameters), strict=True):
            row[0] = accelerator.address(self.gradients.get(index, parameter.grad))
        accelerator.copy(self._rows, self._table)
        accelerator.launch(self._pack, self._table, self._chunks, self.buffer)
        self.gradients.clear()


def _dtypes(spec: ExchangeSpec, parameters: Sequence[Any]) -> tuple[work.DType, work.Half]:
    """The dtype that is sent, and the one of the model's parameters that have 16 bits."""
    halves = (half_of(parameter.array) for parameter in parameters)
    half: work.Half = next(filter(None, halves), "float16")
    return half if spec.half else "float32", half


def _cut(parameters: Sequence[Any], values: int) -> list[list[Any]]:
    """Parameters in order, in groups of at least so many values, but for the last."""
    groups: list[list[Any]] = [[]]
    for parameter in parameters:
        if sum(other.size for other in groups[-1]) >= values:
            groups.append([])
        groups[-1].append(parameter)
    return groups


_Average = Callable[[Any], None]
"""ChainerMN's averaging of a model's gradients."""


def _naive(mpi: Any) -> tuple[_Average, str]:
    """And the engine's name, here and in `_pure_nccl`."""
    from chainermn import create_communicator
    from mpi4py import MPI

    library = str(MPI.Get_library_version()).partition(",")[0].strip()
    return create_communicator("naive", mpi).multi_node_mean_grad, f"ChainerMN naive over {library}"


def _pure_nccl(mpi: Any) -> tuple[_Average, str]:
    """ChainerMN 7.8.1 on CuPy 14: its two kernels that copy all gradients at once name `half`, which CuPy's headers no
    longer bring in by themselves. Its other way, parameter by parameter, fails where dtypes are mixed: `unpack_params`
    asks for an array with `copy=False`, which now refuses to convert. Its public call works on the legacy stream, for
    which our stream does not wait; the one below takes a stream."""
    import cupy
    from chainermn import create_communicator, nccl

    _give_half_to_chainermn()
    stream, average = cupy.cuda.get_current_stream(), create_communicator("pure_nccl", mpi)._multi_node_mean_grad_async
    version = nccl.get_version()
    number = f"{version // 10000}.{version // 100 % 100}.{version % 100}"
    return lambda model: average(model, False, stream), f"ChainerMN pure_nccl over NCCL {number}"


@functools.cache
def _give_half_to_chainermn() -> None:
    import cupy
    from chainermn.communicators import _memory_utility as kernels

    for name in ("_cupy_batched_pack_params", "_cupy_batched_unpack_params"):
        made = getattr(kernels, name)()
        kernel = cupy.RawKernel(WITH_HALF + made.code, made.name)
        setattr(kernels, name, lambda kernel=kernel: kernel)


WITH_HALF = "#include <cupy/float16.cuh>\n"
"""Begins ChainerMN's kernels, so that CuPy 14 compiles them."""


class _Widened:
    """A model whose bfloat16 gradients, which ChainerMN does not know, are seen in float32."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._pairs: list[tuple[Any, SimpleNamespace]] = []  # parameters, and how ChainerMN reads each

    def namedparams(self) -> Iterator[tuple[str, Any]]:
        """ChainerMN's question, once a step."""
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
        """Write the means back into the parameters' own gradients."""
        for parameter, wide in self._pairs:
            current().launch(work.ToHalf.interned(parameter.size, "bfloat16"), wide.grad, parameter.grad)
