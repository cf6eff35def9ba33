"""A training step as a Session, whatever the framework: rungs folded over parts, then built, then run phase by phase.

Owns the order of both. Knows no framework: a backend's session builds the step."""

import contextlib
import functools
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tcbench.core.errors import TrainingError
from tcbench.core.record import Cell
from tcbench.engine.feeds.dataset import ImageFolder, scan
from tcbench.engine.feeds.generated import ensure_generated
from tcbench.engine.feeds.spec import FeedSpec, TensorSpec
from tcbench.engine.models import MODELS
from tcbench.engine.models.geometry import Network as Geometry
from tcbench.engine.rung import Rung
from tcbench.engine.session import Clock, Facts, Phase
from tcbench.engine.world import World, current


class BaseStep:
    """One training step and what its phases hand on: a batch, the loss, gradients."""

    forward: Callable[[], None]
    backward: Callable[[], None]

    def __init__(
        self, model: Any, optimizer: Any, feed: Any, exchange: Any | None = None, preconditioner: Any | None = None
    ) -> None:
        self.model = model
        self.optimizer = optimizer
        self.feed = feed
        self.exchange = exchange
        self.preconditioner = preconditioner
        self._reduced = True
        self.x: Any = None
        self.t: Any = None
        self.loss: Any = None
        self.loss_value: Any = None

    def io(self) -> None:
        self.x, self.t = self.feed.next()

    def allreduce(self) -> None:
        assert self.exchange is not None
        self._reduced = self.exchange.allreduce()

    def update(self) -> None:
        if self._reduced:
            self.optimizer.update()

    def phases(self) -> tuple[Phase, ...]:
        reduced = () if self.exchange is None else (self.allreduce,)
        divided = () if self.preconditioner is None else self.preconditioner.phases
        runs = (self.io, self.forward, self.backward, *reduced, *divided, self.update)
        return tuple(Phase(run.__name__, run) for run in runs)


class BaseSession:
    """See `tcbench.engine.session.Session`. Built from a cell; closed once. `geometry` stands in for the cell's model,
    where runs are compared with each other rather than measured. `scopes`: what the framework sets from build to end;
    `parameters`: the model's, as NumPy arrays; `loss`: of the last step, once it is there."""

    n_parameters: int
    parameters: Callable[[], Iterable[Any]]
    loss: Callable[[], float | None]

    def __init__(
        self,
        cell: Cell,
        site: Any,
        rungs: Sequence[Rung],
        scopes: Iterable[contextlib.AbstractContextManager[Any]],
        geometry: Geometry | None = None,
    ) -> None:
        self.cell, self.site, self.rungs = cell, site, rungs
        self.clock: Clock = site.clock
        self._world = current()
        facts = MODELS.get(cell.model)
        self._macs = facts.macs(cell.variant, cell.image_size, cell.n_classes) if facts else 0
        network = geometry or MODELS[cell.model]
        self._stages = network.stages(cell.variant, cell.n_classes)
        with contextlib.ExitStack() as stack:
            self._exit = stack
            for scope in (*scopes, site.scope(), *(rung.scope(cell) for rung in rungs)):
                stack.enter_context(scope)
            self.step = self.build(stack)
            if self.n_parameters != (expected := network.parameters(cell.n_classes)):
                raise TrainingError(
                    f"the backend '{cell.backend}' built {network.name or cell.model} with {self.n_parameters:,} "
                    f"parameters, expected the {expected:,} of its stages: what builds it must use all their fields"
                )
            self.phases: tuple[Phase, ...] = self.fold("step", self.step.phases())
            self._exit = stack.pop_all()

    def build(self, stack: contextlib.ExitStack) -> Any:
        """The step; what is to be closed with the session goes on the stack."""
        raise NotImplementedError

    def fold(self, stage: str, start: Any) -> Any:
        """Hand `start` through one stage of every rung, in the config's order."""
        return functools.reduce(lambda made, rung: getattr(rung, stage)(made, self.cell), self.rungs, start)

    def feed_spec(self, tensor: TensorSpec) -> FeedSpec:
        """The cell's batches, stored as `tensor` says; every rank has a seed of its own."""
        cell = self.cell
        return FeedSpec(
            images=self.images(),
            batch_size=cell.batch_size,
            image_size=cell.image_size,
            n_classes=cell.n_classes,
            tensor=tensor,
            seed=cell.seed + self._world.rank,
            threads=cell.threads,
            hw_decoder_load=cell.input.hw_decoder_load,
            # A device's time is stretched by the host's speed (`tcbench.engine.measure.loop.at_host_speed`), and so is
            # that of decoding, which is not this host's.
            images_per_s=cell.input.images_per_s / cell.host_speed if cell.input.images_per_s else None,
        )

    def images(self) -> ImageFolder | None:
        """The folder that the cell reads; None where its pixels come from elsewhere."""
        if self.cell.input.kind in ("synthetic", "modelled", "own"):
            return None
        path = self.cell.input.path
        return ensure_generated() if path is None else scan(Path(path), checked=True)

    def facts(self) -> Facts:
        """Raises TrainingError when gradients have overflowed, or ranks hold different parameters."""
        step, exchange, preconditioner = self.step, self.step.exchange, self.step.preconditioner
        check_replicas(self._world, self.parameters())
        step.optimizer.check()
        if preconditioner is not None:
            preconditioner.check()
        peak_bytes, of = self.site.peak_memory()
        return Facts(
            loss=self.loss(),
            peak_memory_bytes=peak_bytes,
            peak_memory_of=of,
            prefetch_depth=step.feed.prefetch_depth,
            decoding=step.feed.decoding,
            parameters=self.n_parameters,
            macs_per_image=self._macs,
            reduced_bytes=exchange.reduced_bytes if exchange else 0,
            reduce_overlaps=exchange.overlaps if exchange else False,
            engine=exchange.engine if exchange else "",
            period=preconditioner.period if preconditioner else 1,
        )

    def close(self) -> None:
        self._exit.close()


def check_replicas(world: World, parameters: Iterable[Any]) -> None:
    """Compare this rank's parameters (NumPy arrays, in the same order on every rank) with every other's, bit for bit;
    all ranks wait for each other. Raises TrainingError on all of them where they differ: gradients that were not
    averaged, or not on all ranks alike."""
    if world.mpi is None:
        return
    digest = 0
    for parameter in parameters:
        digest = zlib.crc32(np.ascontiguousarray(parameter).tobytes(), digest)
    digests = world.mpi.allgather(digest)
    different = [str(rank) for rank, other in enumerate(digests) if other != digests[0]]
    if different:
        raise TrainingError(
            f"parameters of rank {', '.join(different)} differ from those of rank 0: expected the same on all of "
            f"{world.size} ranks after an all-reduce of the gradients"
        )
