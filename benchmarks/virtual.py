"""The virtual GPU's model against published training rates: the table of docs/virtual.md.

    uv run python benchmarks/virtual.py            # the device's share alone, in half a minute
    uv run python benchmarks/virtual.py --run      # and whole steps in real time, under this host

Each published rate stands beside the config whose rungs are nearest to what that framework did. The device's share is
what the model expects of all launches of a step, one after another: what a host and an input that keep up would reach.
A run is the program itself on the virtual GPU, with a batch that lies in memory: the host's share is this host's.

No figure here is a source of the model (tests/accelerators/test_attained.py), and no row was adjusted to one.
Goal: rates that the device bounds within 25%, by one table; every miss has its reason in the table.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec

from tcbench.accelerators import device
from tcbench.accelerators.attained import attained, expected_s
from tcbench.backends import backend
from tcbench.core.record import Cell, Input
from tcbench.core.session import Session
from tcbench.hardware import gpus
from tcbench.run import plan, scenario
from tcbench.run.demand import Demand, trace_all

GOAL = 0.25
SETTLING_STEPS, STEPS = 4, 12

MXNET = "https://github.com/NVIDIA/DeepLearningExamples/tree/master/MxNet/Classification/RN50v1.5"
PYTORCH = "https://github.com/NVIDIA/DeepLearningExamples/tree/master/PyTorch/Classification/ConvNets/resnet50v1.5"
TALK = "A. Naruse, Chainer で Tensor コア (fp16) を使いこなす, 2018-12-15"
MLPERF = "https://mlcommons.org/benchmarks/training/"
PRODUCTS = "https://developer.nvidia.com/deep-learning-performance-training-inference/training"


@dataclass(frozen=True)
class Published:
    """A training rate of one GPU. `stands`: why this config stands for it. `bound_by`: what bounds the rate, by the
    evidence in `why`; the device where nothing says otherwise."""

    says: str
    images_per_s: float
    card: str
    config: str
    batch_size: int
    variant: str
    source: str
    stands: str
    bound_by: str = "device"
    why: str = ""


PLAIN = "fp32+batched"
FUSED = "fp16+batched+nhwc+fused"
PUBLISHED = (
    Published(
        *("MXNet 20.12, fp32", 384, "V100", PLAIN, 96, "v1.5", MXNET),
        stands="its runner keeps NCHW and fuses nothing in fp32; its update takes 60 parameters at once",
    ),
    Published(
        *("MXNet 20.12, AMP", 1376, "V100", FUSED, 192, "v1.5", MXNET),
        stands="its runner asks for NHWC, bn+ReLU and bn+add+ReLU fused",
    ),
    Published(
        *("PyTorch, fp32", 367, "V100", "fp32", 112, "v1.5", PYTORCH),
        stands="NCHW, nothing fused (configs.yml); one update per parameter",
    ),
    Published(
        *("PyTorch, AMP", 1200, "V100", "fp16+nhwc", 256, "v1.5", PYTORCH),
        stands="NHWC (configs.yml), nothing fused",
    ),
    Published(
        *("the talk, slide 27", 1200, "V100", "fp16+dali+batched+nhwc+fused", 256, "v1", TALK),
        stands="the rungs are the talk's",
    ),
    Published(
        *("the talk, slide 27: 1/3 of that", 400, "V100", "fp16+dali+batched+nhwc+fused", 32, "v1", TALK),
        stands="the rungs are the talk's",
        bound_by="host",
        why="slide 28's timeline shows gaps: the host of 2018, in Chainer's eager mode, could not keep up",
    ),
    Published(
        *("MXNet 22.10, TF32", 1056, "A100", "tf32+batched", 512, "v1.5", MXNET),
        stands="as in fp32: NCHW, nothing fused",
    ),
    Published(
        *("MXNet 22.10, AMP", 3411, "A100", FUSED, 512, "v1.5", MXNET),
        stands="NHWC, bn+ReLU and bn+add+ReLU fused",
    ),
    Published(
        *("PyTorch, TF32", 938, "A100", "tf32", 256, "v1.5", PYTORCH),
        stands="NCHW (configs.yml asks for NHWC with AMP only)",
    ),
    Published(
        *("PyTorch, AMP", 2470, "A100", "fp16+nhwc", 256, "v1.5", PYTORCH),
        stands="NHWC, nothing fused",
    ),
    Published(
        *("PyTorch, AMP", 2800, "H100", "fp16+nhwc", 256, "v1.5", PRODUCTS),
        stands="as on the A100",
        bound_by="input or host",
        why="13% more than on an A100, on a card of 1.6 times its bandwidth; the same card reached 7,161 in MLPerf",
    ),
    Published(
        *("MLPerf v4.0, 8 GPUs, per GPU", 7161, "H100", f"{FUSED}+cuda_graph+convstats", 400, "v1.5", MLPERF),
        stands="fusions with the convolutions and a captured step, in MXNet",
        why="its kernels fuse normalisation, ReLU and their gradients into convolutions, both ways; here their "
        "own passes and the addition's are 28% of the modelled step",
    ),
    Published(
        *("MLPerf v4.0, 8 GPUs, per GPU", 7950, "H200", f"{FUSED}+cuda_graph+convstats", 400, "v1.5", MLPERF),
        stands="fusions with the convolutions and a captured step, in MXNet",
    ),
)


def cell(published: Published) -> Cell:
    """The cell whose step is compared, on the virtual card."""
    chosen = scenario.load("beyond")
    selection = plan.Selection(
        batch_sizes=(published.batch_size,), configs=(published.config,), input=Input(kind="synthetic")
    )
    virtual = device.find(f"virtual:{published.card}", {"virtual": None})
    (planned,) = plan.make(chosen, selection, virtual).cells
    return msgspec.structs.replace(planned.cell, variant=published.variant)


def device_images_per_s(cells: Iterable[tuple[Published, Cell]]) -> dict[Published, float]:
    """Batch size over the time that the device is busy with a step."""
    rates = {}
    for published, asked in cells:
        gpu = gpus.load(published.card)
        demand = trace_all([asked], gpu.properties(), fresh=False, processes=1, progress=lambda *_: None)[asked]
        if not isinstance(demand, Demand):
            sys.exit(f"{published.says}: {demand.reason}")
        rates[published] = published.batch_size / sum(count * expected_s(work, gpu) for work, count in demand.works)
    return rates


def run_images_per_s(asked: Cell) -> float:
    """Whole steps in real time, one behind the other: by the median of what lies between their ends on the device."""
    session = backend("chainer").open_session(asked)
    try:
        for _ in range(SETTLING_STEPS):
            step(session)
        session.clock.mark()
        for _ in range(STEPS):
            step(session)
            session.clock.mark()
        return asked.batch_size / statistics.median(session.clock.read())
    finally:
        session.close()


def step(session: Session) -> None:
    for phase in session.phases:
        phase.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true", help="run whole steps under this host as well")
    run = parser.parse_args().run
    cells = {published: cell(published) for published in PUBLISHED}
    device_alone = device_images_per_s(cells.items())
    ran = {published: run_images_per_s(asked) for published, asked in cells.items()} if run else {}
    cards = dict.fromkeys(published.card for published in PUBLISHED)
    print(", ".join(f"{card}: {attained(gpus.load(card)).name}" for card in cards) + "\n")
    print("| card | published | images/s | config, batch size | device alone | off |" + (" run here |" if run else ""))
    print("| --- | --- | ---: | --- | ---: | ---: |" + (" ---: |" if run else ""))
    for published, rate in device_alone.items():
        off = rate / published.images_per_s - 1
        config = f"`{published.config}`, {published.batch_size}"
        more = f" {ran[published]:.0f} |" if run else ""
        print(
            f"| {published.card} | {published.says} | {published.images_per_s:.0f} | {config} | {rate:.0f} | "
            f"{off:+.0%} |{more}"
        )
    bound = {published: rate for published, rate in device_alone.items() if published.bound_by == "device"}
    within = [published for published, rate in bound.items() if abs(rate / published.images_per_s - 1) <= GOAL]
    print(f"\nBound by the device: {len(within)} of {len(bound)} within {GOAL:.0%}.")
    for published in PUBLISHED:
        if published.why:
            print(f"{published.card}, {published.says}: bound by the {published.bound_by}: {published.why}.")


if __name__ == "__main__":
    main()
