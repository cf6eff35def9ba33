"""One rank of a test: trains a small ResNet-50 by our Chainer backend. See ranks.py.

Beside it, the same training in one process, which takes the ranks' batches one after another.
"""

from __future__ import annotations

import contextlib
import functools
import json
import sys
from collections import deque
from pathlib import Path
from typing import Any

import numpy as np
import ranks
import training

from tcbench.core import world

GEOMETRY = training.SMOOTH
IMAGE_SIZE = 32


def session_of(config: str, shard: int, **changes: Any) -> contextlib.AbstractContextManager[Any]:
    """A session on the small model, with the batches of a shard."""

    @contextlib.contextmanager
    def opened():
        site = training.numpys_processor()
        with training.small_session(config, geometry=GEOMETRY, image_size=IMAGE_SIZE, site=site, **changes) as session:
            session.step.feed = training.Batches(session.step.model.parts.spec, IMAGE_SIZE, shard)
            yield session

    return opened()


def train(config: str, steps: int, fault: str | None = None, **changes: Any) -> tuple[list[float], Any, Any]:
    """As one of many ranks."""
    here = world.current()
    with session_of(config, here.rank, ranks=here.size, **changes) as session:
        losses = [training.run_step(session) for _ in range(steps)]
        told = session.facts()
        facts = {
            "engine": told.engine,
            "reduced_bytes": told.reduced_bytes,
            "phases": [phase.name for phase in session.phases],
        }
        return losses, training.parameters(session), facts


def reference(
    config: str, steps: int, size: int, late: int = 0, exchanged: str | None = None
) -> tuple[list[list[float]], dict[str, np.ndarray], dict[str, np.ndarray]]:
    """In one process: each shard's losses, parameters before and after. Gradients are applied `late` steps late;
    `exchanged` is the dtype that they are averaged in, their own or float32 by default."""
    with contextlib.ExitStack() as stack:
        sessions = [stack.enter_context(session_of(config, shard)) for shard in range(size)]
        before = training.parameters(sessions[0])
        waiting: deque[list[np.ndarray]] = deque()
        losses: list[list[float]] = [[] for _ in sessions]
        for _ in range(steps):
            for session, of in zip(sessions, losses, strict=True):
                for phase in session.phases[:-1]:
                    phase.run()
                of.append(float(session.step.loss_value))
            shards = [[p.grad for p in session.step.model.params()] for session in sessions]
            waiting.append([mean(gradients, exchanged) for gradients in zip(*shards, strict=True)])
            if len(waiting) <= late:
                continue
            means = waiting.popleft()
            for session in sessions:
                for parameter, gradient in zip(session.step.model.params(), means, strict=True):
                    parameter.grad = gradient.copy()
                session.step.update()
        return losses, before, training.parameters(sessions[0])


def mean(gradients: tuple[np.ndarray, ...], exchanged: str | None) -> np.ndarray:
    parts = [gradient.astype(exchanged or "float32").astype(np.float64) for gradient in gradients]
    return functools.reduce(np.add, parts).astype(gradients[0].dtype) * gradients[0].dtype.type(1 / len(parts))


def main(folder: str, jobs: str) -> None:
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    here = world.World(comm.rank, comm.size, comm.rank, comm.size, comm)
    with world.entered(here):
        for name, job in json.loads(jobs).items():
            losses, parameters, facts = train(steps=ranks.STEPS, **job)
            ranks.save(Path(folder) / f"{name}.{here.rank}.npz", losses, parameters, facts)


if __name__ == "__main__":
    main(*sys.argv[1:])
