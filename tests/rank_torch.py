"""One rank of a test: trains a small ResNet-50 by our PyTorch backend. See ranks.py.

Beside it, the same training in one process, which takes the ranks' batches one after another.
"""

import contextlib
import sys
from typing import Any

import numpy as np
import ranks
import torch
import torch_training
import training

from tcbench.engine import world

SMALL_MODEL = {"geometry": training.SMOOTH, "image_size": 32}


def parameters(session: Any) -> dict[str, np.ndarray]:
    return {name: p.detach().numpy().copy() for name, p in session.model.named_parameters()}


def train(config: str, steps: int) -> ranks.Trained:
    """Train as one of many ranks."""
    with torch_training.small_torch_session(config, ranks=world.current().size, **SMALL_MODEL) as session:
        losses = [training.run_step(session) for _ in range(steps)]
        return losses, parameters(session), ranks.facts_of(session)


def reference(config: str, steps: int, size: int) -> tuple[list[list[float]], dict[str, Any], dict[str, Any]]:
    """Train all shards in one process and return each shard's losses, and the parameters before and after."""
    with contextlib.ExitStack() as stack:
        sessions = []
        for shard in range(size):
            session = stack.enter_context(torch_training.small_torch_session(config, **SMALL_MODEL))
            feed = training.Batches(session.step.feed._feed.spec, SMALL_MODEL["image_size"], shard)
            session.step.feed._feed = feed
            sessions.append(session)
        before = parameters(sessions[0])
        losses: list[list[float]] = [[] for _ in sessions]
        for _ in range(steps):
            for session, session_losses in zip(sessions, losses, strict=True):
                torch_training.go_backward(session)
                session_losses.append(float(session.step.loss_value))
            for shared in zip(*(session.model.parameters() for session in sessions), strict=True):
                mean = sum(p.grad / size for p in shared)
                for p in shared:
                    p.grad = mean.clone()
            for session in sessions:
                session.step.update()
        return losses, before, parameters(sessions[0])


if __name__ == "__main__":
    torch.set_num_threads(1)
    ranks.main(train, *sys.argv[1:])
