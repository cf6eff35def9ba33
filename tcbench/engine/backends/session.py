"""The framework-independent part of a training session.

It applies a config's rungs stage by stage, has the backend's subclass build the step, and runs the step's phases."""

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
from tcbench.engine.session import Clock, Facts, Phase, Probes
from tcbench.engine.world import World, current


class BaseStep:
    """One training step. Each phase is a method.

    The phases pass on the batch (`x` are images, `t` labels) and the `loss`. `loss_value` is the loss of the last step
    without its graph. `allreduce` is skipped without an `exchange`, and K-FAC's phases without a `preconditioner`."""

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
        """Finish the averaging of gradients over ranks."""
        assert self.exchange is not None
        self._reduced = self.exchange.allreduce()

    def update(self) -> None:
        """Update the parameters, unless the exchange has no averaged gradients yet."""
        if self._reduced:
            self.optimizer.update()

    def phases(self) -> tuple[Phase, ...]:
        """Return the phases in order, named after their methods."""
        allreduce = () if self.exchange is None else (self.allreduce,)
        precondition = () if self.preconditioner is None else self.preconditioner.phases
        runs = (self.io, self.forward, self.backward, *allreduce, *precondition, self.update)
        return tuple(Phase(run.__name__, run) for run in runs)


class BaseSession:
    """A session (`tcbench.engine.session.Session`) built from a cell.

    `geometry` replaces the cell's model where configs are compared rather than measured. `scopes` are the framework's
    contexts, held from build to close. `parameters` returns the model's parameters as NumPy arrays, and `loss` waits
    for the last step's loss."""

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
                    f"parameters, expected the {expected:,} of its stages: use all fields of the stages to build it"
                )
            self.phases: tuple[Phase, ...] = self.fold("step", self.step.phases())
            self._exit = stack.pop_all()

    def build(self, stack: contextlib.ExitStack) -> Any:
        """Build the step. Resources to close with the session are pushed on `stack`."""
        raise NotImplementedError

    def fold(self, stage: str, start: Any) -> Any:
        """Pass `start` through one stage of every rung, in the config's order, and return the last result. `stage` is
        the name of one of the methods of `Rung`, such as "parts"."""
        return functools.reduce(lambda part, rung: getattr(rung, stage)(part, self.cell), self.rungs, start)

    def feed_spec(self, tensor: TensorSpec) -> FeedSpec:
        """Return the description of the cell's batches, stored as `tensor`. Every rank gets its own seed."""
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
            # Modelled times are scaled by the host's speed (`tcbench.engine.measure.loop.at_host_speed`), including
            # that of decoding, which is independent of this host.
            images_per_s=cell.input.images_per_s / cell.host_speed if cell.input.images_per_s else None,
        )

    def images(self) -> ImageFolder | None:
        """Return the images that the cell reads, or None if its input does not read files."""
        if self.cell.input.kind in ("synthetic", "modelled", "own"):
            return None
        path = self.cell.input.path
        return ensure_generated() if path is None else scan(Path(path), checked=True)

    def facts(self) -> Facts:
        """Return the session's facts. Raises TrainingError if gradients overflowed, if K-FAC could not invert a factor,
        or if ranks differ in parameters."""
        step, exchange, preconditioner = self.step, self.step.exchange, self.step.preconditioner
        check_replicas(self._world, self.parameters())
        step.optimizer.check()
        if preconditioner is not None:
            preconditioner.check()
        peak_bytes, peak_memory_of = self.site.peak_memory()
        return Facts(
            loss=self.loss(),
            peak_memory_bytes=peak_bytes,
            peak_memory_of=peak_memory_of,
            prefetch_depth=step.feed.prefetch_depth,
            decoding=step.feed.decoding,
            parameters=self.n_parameters,
            macs_per_image=self._macs,
            reduced_bytes=exchange.reduced_bytes if exchange else 0,
            reduce_overlaps=exchange.overlaps if exchange else False,
            engine=exchange.engine if exchange else "",
            period=preconditioner.period if preconditioner else 1,
        )

    def probes(self) -> Probes:
        """Return the batch and the weights. The batch is left out if every step has the same one by design."""
        repeats = self.cell.input.kind in ("synthetic", "modelled")
        return Probes(None if repeats else lambda: (self.step.x, self.step.t), self.parameters)

    def close(self) -> None:
        self._exit.close()


def check_replicas(world: World, parameters: Iterable[Any]) -> None:
    """Check that all ranks hold bit-identical parameters (NumPy arrays, in the same order on every rank).

    All ranks wait for each other. Raises TrainingError on every rank if parameters differ, which means that gradients
    were not averaged correctly."""
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
