"""One rank of a test: trains a small ResNet-50 by our Chainer backend. See ranks.py.

Beside it, the same training in one process, which takes the ranks' batches one after another.
"""

import contextlib
import functools
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
import ranks
import training

from tcbench.core.errors import TrainingError
from tcbench.engine import world
from tcbench.engine.backends.chainer import exchange
from tcbench.engine.backends.chainer.session import ChainerSession
from tcbench.engine.models.geometry import Conv
from tcbench.engine.models.resnet import ResNet

GEOMETRY = ResNet("two narrow blocks", stem=Conv(3, 8, 3), blocks_per_stage=(1, 1), width=8)
IMAGE_SIZE = 16


@contextlib.contextmanager
def session_of(config: str, shard: int, **changes: Any) -> Iterator[ChainerSession]:
    """A session on the small model, with the batches of a shard."""
    site = training.numpys_processor()
    with training.small_session(config, geometry=GEOMETRY, image_size=IMAGE_SIZE, site=site, **changes) as session:
        session.step.feed = training.Batches(session.step.model.parts.spec, IMAGE_SIZE, shard)
        yield session


def train(config: str, steps: int, fault: str = "") -> ranks.Trained:
    """Train as one of many ranks. `fault` is planted into the all-reduce."""
    exchange.BUCKET_BYTES = 5_000  # so that the small model has several
    own_world = world.current()
    losses: list[float] = []
    with session_of(config, own_world.rank, ranks=own_world.size) as session:
        if fault:
            plant(fault, session)
        try:
            losses.extend(training.run_step(session) for _ in range(steps))
            facts = ranks.facts_of(session)
        except TrainingError as error:
            facts = {"error": str(error)}
        return losses, training.parameters(session), facts


def plant(fault: str, session: Any) -> None:
    """The all-reduce is missing; or one rank gets other means; or all get sums. Or curvature is not averaged, or the
    gradients that other ranks have divided are not fetched."""
    if fault in ("factors", "gather"):
        curvature = session.step.preconditioner
        empty = curvature._moments[:0]
        real_reduce = curvature._reducer.reduce

        def reduce(array: Any) -> None:
            real_reduce(empty if (array is curvature._moments) == (fault == "factors") else array)

        curvature._reducer.reduce = reduce
        return
    real, size = session.step.exchange.allreduce, world.current().size
    factor = {"missing": 1, "other": 1 + world.current().rank, "sum": size}[fault]

    def allreduce() -> bool:
        done = True if fault == "missing" else real()
        for gradient in session.step.optimizer._gradients or [p.grad for p in session.step.model.params()]:
            gradient *= factor
        return done

    session.step.exchange.allreduce = allreduce


def reference(
    config: str, steps: int, size: int, sent: str | None = None, late: int = 0
) -> tuple[list[list[float]], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Train all shards in one process and return each shard's losses, and the parameters before and after.

    Gradients are applied `late` steps late. `sent` is the dtype in which they are averaged for the batched update, or
    None to average as ChainerMN does."""
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(session_of(config, shard)) for shard in range(size)]
        before = training.parameters(sessions[0])
        waiting: deque[list[np.ndarray]] = deque()
        losses: list[list[float]] = [[] for _ in sessions]
        for _ in range(steps):
            divides = [s.step.preconditioner for s in sessions if s.step.preconditioner is not None]
            for session, session_losses in zip(sessions, losses, strict=True):
                for phase in session.phases[: 4 if divides else 3]:
                    phase.run()
                session_losses.append(float(session.step.loss_value))
            shards = [[p.grad for p in session.step.model.params()] for session in sessions]
            average = average_as_chainermn if sent is None else functools.partial(average_in, sent)
            waiting.append([average(gradients) for gradients in zip(*shards, strict=True)])
            if len(waiting) <= late:
                continue
            means = waiting.popleft()
            if divides:
                moments = sum(preconditioner._moments for preconditioner in divides) / len(divides)
                for preconditioner in divides:
                    preconditioner._moments[...] = moments
            for session in sessions:
                if sent is None:
                    for parameter, gradient in zip(session.step.model.params(), means, strict=True):
                        parameter.grad = gradient.copy()
                else:
                    session.step.optimizer.use_gradients(tuple(mean.copy() for mean in means))
                for phase in session.phases[4 if divides else 3 :]:
                    phase.run()
        return losses, before, training.parameters(sessions[0])


def average_as_chainermn(gradients: tuple[np.ndarray, ...]) -> np.ndarray:
    """Average as ChainerMN's naive communicator does: sum in float32, then divide in the gradients' dtype.

    It gets bfloat16 gradients as float32, and keeps float64."""
    dtype = gradients[0].dtype
    if dtype == np.float64:
        return sum(gradients) * (1 / len(gradients))
    total = functools.reduce(np.add, [gradient.astype(np.float32) for gradient in gradients])
    if dtype == np.float16:
        return total.astype(dtype) * dtype.type(1 / len(gradients))
    return (total * np.float32(1 / len(gradients))).astype(dtype)


def average_in(dtype: str, gradients: tuple[np.ndarray, ...]) -> np.ndarray:
    """Each rank divides and rounds, then they are added in float32 and rounded again."""
    parts = [(gradient.astype(np.float32) * np.float32(1 / len(gradients))).astype(dtype) for gradient in gradients]
    return functools.reduce(lambda a, b: (a.astype(np.float32) + b.astype(np.float32)).astype(dtype), parts)


if __name__ == "__main__":
    ranks.main(train, *sys.argv[1:])
