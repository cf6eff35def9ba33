"""The all-reduce of ResNet-50's gradients alone: ChainerMN's for each parameter, in float32, against ours over flat
buffers. In turns, on the same gradients, after a barrier; the time is the slowest rank's.

    mpirun -np 2 .venv/bin/python benchmarks/allreduce.py [--rounds N]

Prints the median of each, the bandwidth of the algorithm (bytes of the gradients in float32 over the time), and the
ratio with a 95% interval: quantiles of the ratio of medians over rounds drawn again with replacement.
"""

from __future__ import annotations

import argparse
import time
from contextlib import ExitStack

import numpy as np
from mpi4py import MPI

from tcbench.core.record import Cell, CudnnSettings, Input, MeasureSettings, TrainSettings
from tcbench.engine.backends import backend
from tcbench.engine.world import World, entered

BASE = "fp32+batched"
CONFIGS = (BASE, f"{BASE}+flat_allreduce", f"{BASE}+flat_allreduce+fp16_allreduce")


def cell(config: str, ranks: int) -> Cell:
    """One image of 32x32 pixels for each rank: gradients are as large whatever they come from."""
    return Cell(
        scenario="scaling",
        backend="chainer",
        model="resnet50",
        variant="v1",
        config=config,
        rungs=tuple(config.split("+")),
        batch_size=1,
        image_size=32,
        n_classes=1000,
        device="cpu",
        input=Input(kind="synthetic"),
        seed=0,
        threads=1,
        train=TrainSettings(),
        cudnn=CudnnSettings(),
        measure=MeasureSettings(),
        ranks=ranks,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    comm = MPI.COMM_WORLD
    local = comm.Split_type(MPI.COMM_TYPE_SHARED)
    with ExitStack() as stack:
        stack.enter_context(entered(World(comm.rank, comm.size, local.rank, local.size, comm)))
        sessions, reduces = {}, {}
        for config in CONFIGS:
            session = backend("chainer").open_session(cell(config, comm.size))
            stack.callback(session.close)
            for phase in session.phases:
                phase.run()
            sessions[config] = session
            (reduces[config],) = (phase.run for phase in session.phases if phase.name == "allreduce")
        times: dict[str, list[float]] = {config: [] for config in CONFIGS}
        for number in range(rounds + 1):
            for config, reduce in reduces.items():
                comm.Barrier()
                begin = time.perf_counter()
                reduce()
                took = comm.allreduce(time.perf_counter() - begin, MPI.MAX)
                if number:  # the first warms up
                    times[config].append(took)
        n_bytes = 4 * sessions[BASE].facts().parameters  # asked of all ranks
    if comm.rank == 0:
        report(times, n_bytes)


def report(times: dict[str, list[float]], n_bytes: int) -> None:
    rng = np.random.default_rng(0)
    base = np.array(times[BASE])
    print(f"{MPI.COMM_WORLD.size} ranks, {n_bytes / 1e6:.0f} MB of gradients, {base.size} rounds")
    for config, values in times.items():
        took = np.array(values)
        drawn = rng.integers(0, base.size, (10_000, base.size))
        low, high = np.quantile(np.median(base[drawn], axis=1) / np.median(took[drawn], axis=1), (0.025, 0.975))
        median = np.median(took)
        ratio = f"{np.median(base) / median:.2f} [{low:.2f}, {high:.2f}] times as fast"
        print(f"{config:45} {1e3 * median:7.1f} ms {n_bytes / median / 1e9:6.2f} GB/s  {ratio}")


if __name__ == "__main__":
    main()
