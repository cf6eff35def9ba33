"""Replicas of a model: what training with many ranks promises of them."""

import zlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from tcbench.core.errors import TrainingError
from tcbench.engine.world import World


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
