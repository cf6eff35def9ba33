"""A training step on many ranks, from the step of one and the network between them: weak scaling by a model. Pure.

    all-reduce = bytes sent / bandwidth + messages * latency
    step = step of one rank + what the all-reduce makes it wait

The all-reduce's terms are NCCL's own model of itself (src/graph/tuning.cc). `OVERLAP` says how much of it hides behind
the backward pass, one number for every network. docs/forecast.md holds the model against five published results.
"""

import math
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis.roofline import precision_of
from tcbench.core.record import Cell
from tcbench.hardware.networks import RankNetwork

Algorithm = Literal["ring", "hierarchical"]
ALGORITHMS: tuple[Algorithm, ...] = ("ring", "hierarchical")
"""`ring`: one ring through all ranks, node after node. `hierarchical`: a reduce-scatter by a ring within each node, an
all-reduce of each part between the nodes by recursive halving and doubling, an all-gather within each node (P. Goyal
et al., 2017, section 4.1; R. Thakur, R. Rabenseifner, W. Gropp, "Optimization of Collective Communication Operations in
MPICH", 2005)."""

OVERLAP = 0.2
"""The share of an all-reduce that hides behind the backward pass, where buckets are reduced while that runs: the least
squares over the published results of benchmarks/scale_out.py that overlap, to a tenth."""

BACKWARD = 2 / 3
"""The backward pass's share of a step: its convolutions do twice the forward pass's arithmetic."""

WIRE = 12.8 / 15
"""The share of an adapter's nominal rate that carries gradients: P. Goyal et al., 2017, section 4.3, allow 15 Gbit/s
for 12.8 of them."""

PLATEAU, PLATEAU_BYTES = 1.9, 65536 / 16
"""NCCL's correction of a large ring's latency across nodes, from so many bytes a rank on ("plateau effect of ring")."""

IMAGES_TO_TRAIN = 90 * 1_280_000
"""90 epochs of ImageNet: what the talk's slide 34 compares by time."""


@dataclass(frozen=True)
class RankStep:
    """One rank's step without others: its time, images and bytes of gradients; its device's mean power, where known."""

    time_s: float
    images: int
    gradient_bytes: int
    power_w: float | None = None


def gradient_bytes(cell: Cell, parameters: int) -> int:
    """The bytes that one rank gives to the all-reduce in a step: gradients are stored like the activations."""
    return parameters * (2 if precision_of(cell.rungs) in ("fp16", "bf16") else 4)


@dataclass(frozen=True)
class Scaled:
    """The step of so many ranks. `waits_s`: what the all-reduce adds to it. `energy_j`: the devices' alone, for
    IMAGES_TO_TRAIN images."""

    algorithm: Algorithm
    overlap: float
    global_batch: int
    all_reduce_s: float
    waits_s: float
    step_s: float
    efficiency: float
    energy_j: float | None

    @property
    def images_per_s(self) -> float:
        """Of all ranks together."""
        return self.global_batch / self.step_s

    @property
    def time_to_train_s(self) -> float:
        return IMAGES_TO_TRAIN / self.images_per_s


def scaled(step: RankStep, ranks: int, network: RankNetwork, algorithm: Algorithm, overlap: float) -> Scaled:
    """The step at the same batch size per rank. `overlap`: the share of the all-reduce that hides behind the backward
    pass, as far as that lasts."""
    reduce_s = all_reduce_s(step.gradient_bytes, ranks, network, algorithm)
    wait_s = waits_s(reduce_s, step.time_s, overlap)
    step_s = step.time_s + wait_s
    steps = IMAGES_TO_TRAIN / (step.images * ranks)
    return Scaled(
        algorithm=algorithm,
        overlap=overlap,
        global_batch=step.images * ranks,
        all_reduce_s=reduce_s,
        waits_s=wait_s,
        step_s=step_s,
        efficiency=step.time_s / step_s,
        energy_j=None if step.power_w is None else step.power_w * ranks * steps * step_s,
    )


def waits_s(reduce_s: float, step_s: float, overlap: float) -> float:
    """The part of an all-reduce that a step of one rank's `step_s` cannot hide."""
    return max((1 - overlap) * reduce_s, reduce_s - BACKWARD * step_s if overlap else reduce_s)


def all_reduce_s(n_bytes: int, ranks: int, network: RankNetwork, algorithm: Algorithm) -> float:
    """The time of one all-reduce of so many bytes on each rank; 0 for one rank."""
    local = min(ranks, network.ranks_per_node)
    nodes = math.ceil(ranks / local)
    wire_bytes_s = network.between.bytes_s * WIRE
    if algorithm == "ring":
        slowest = min(network.inside.bytes_s, wire_bytes_s) if nodes > 1 else network.inside.bytes_s
        messages_s = 2 * (ranks - nodes) * network.inside.latency_s + 2 * (nodes - 1) * network.between.latency_s
        if nodes > 1 and n_bytes >= ranks * PLATEAU_BYTES:
            messages_s *= PLATEAU
        return _sent(n_bytes, ranks) / slowest + messages_s
    within_s = _sent(n_bytes, local) / network.inside.bytes_s + 2 * (local - 1) * network.inside.latency_s
    # The parts of a node's ranks share its adapters, so that all bytes of one rank's gradients pass them.
    between_s = _sent(n_bytes, nodes) / wire_bytes_s + 2 * math.ceil(math.log2(nodes)) * network.between.latency_s
    return within_s + between_s


def _sent(n_bytes: int, among: int) -> float:
    """The bytes that each of so many sends, and receives, in an all-reduce that is the best for its bandwidth."""
    return 2 * (among - 1) / among * n_bytes
