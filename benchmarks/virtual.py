"""The virtual GPU's model against published training rates: the table of docs/virtual.md.

    uv run python benchmarks/virtual.py            # the device's share alone, in half a minute
    uv run python benchmarks/virtual.py --run      # and whole steps in real time, under this host
    uv run python benchmarks/virtual.py --kernels results/h200 --card H200    # single kernels, as tuning timed them

Each published rate stands beside the config whose rungs are nearest to what that framework did. The device's share is
what the model expects of all launches of a step, one after another: what a host and an input that keep up would reach.
A run is the program itself on the virtual GPU, with a batch that lies in memory: the host's share is this host's.

No figure here is a source of the model (tests/engine/accelerators/test_attained.py), and no row was adjusted to one.
Rule, made before the model is asked: every rate of one GPU, or per GPU of one node, of these sources counts, whatever
the model makes of it, but where the source itself shows that the device waited. Goal: those that count within 25%.
"""

import argparse
import statistics
import sys
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tcbench.core import store
from tcbench.core.record import Cell, Input
from tcbench.engine.accelerators import device
from tcbench.engine.accelerators.attained import timing_model
from tcbench.engine.backends import backend, trace_cell
from tcbench.engine.session import Session
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
    """A published training rate of one GPU.

    `stands` says why the config corresponds to it, and `why` what may explain a miss. `out` is the evidence that the
    device waited; such a rate does not count."""

    says: str
    images_per_s: float
    card: str
    config: str
    batch_size: int
    variant: str
    source: str
    stands: str
    out: str = ""
    why: str = ""


PLAIN = "fp32+batched"
FUSED = "fp16+batched+nhwc+fused"
CAPTURED = f"{FUSED}+cuda_graph+convstats"
_MXNET_PLAIN = "its runner keeps NCHW and fuses nothing in fp32; its update takes 60 parameters at once"
_MXNET_FUSED = "its runner asks for NHWC, bn+ReLU and bn+add+ReLU fused"
_TORCH_PLAIN = "NCHW (configs.yml asks for NHWC with AMP only), nothing fused; one update per parameter"
_TORCH_NHWC = "NHWC (configs.yml), nothing fused"
TALKS = "fp16+dali+batched+nhwc+fused"
_DGX2 = "the card of a DGX-2 has other clocks and more power; it is modelled as a DGX-1's"
_MLPERF = "fusions with the convolutions and a captured step, in MXNet"
_FUSES_BOTH_WAYS = "its kernels fuse normalisation, ReLU and their gradients into convolutions, both ways"
OURS = "results/h200"
_OURS = "the same config: what the GPU needs for a step that waits for nobody (`busy_s` of its record)"
PUBLISHED = (
    Published("MXNet 20.12, fp32", 384, "V100", PLAIN, 96, "v1.5", MXNET, _MXNET_PLAIN),
    Published("MXNet 20.12, AMP", 1376, "V100", FUSED, 192, "v1.5", MXNET, _MXNET_FUSED),
    Published("MXNet 20.12, fp32, 32 GB", 417, "V100", PLAIN, 128, "v1.5", MXNET, _MXNET_PLAIN, why=_DGX2),
    Published("MXNet 20.12, AMP, 32 GB", 1492, "V100", FUSED, 256, "v1.5", MXNET, _MXNET_FUSED, why=_DGX2),
    Published("PyTorch 21.03, fp32", 367, "V100", "fp32", 112, "v1.5", PYTORCH, _TORCH_PLAIN),
    Published("PyTorch 21.03, AMP", 1200, "V100", "fp16+nhwc", 256, "v1.5", PYTORCH, _TORCH_NHWC),
    Published("PyTorch 21.03, fp32, 32 GB", 356, "V100", "fp32", 112, "v1.5", PYTORCH, _TORCH_PLAIN),
    Published("PyTorch 21.03, AMP, 32 GB", 1156, "V100", "fp16+nhwc", 256, "v1.5", PYTORCH, _TORCH_NHWC),
    Published("the talk, slide 27", 1200, "V100", TALKS, 256, "v1", TALK, "the rungs are the talk's"),
    Published(
        *("the talk, slide 27: 1/3 of that", 400, "V100", TALKS, 32, "v1", TALK, "the rungs are the talk's"),
        out="slide 28's timeline shows gaps: the host of 2018, in Chainer's eager mode, could not keep up",
    ),
    Published("MXNet 20.12, TF32", 1022, "A100", "tf32+batched", 256, "v1.5", MXNET, _MXNET_PLAIN),
    Published(
        *("MXNet 20.12, AMP", 2180, "A100", FUSED, 256, "v1.5", MXNET, _MXNET_FUSED),
        why="not known: the same program in the container 22.10 reached 3,411 at 512",
    ),
    Published("MXNet 22.10, TF32", 1056, "A100", "tf32+batched", 512, "v1.5", PRODUCTS, _MXNET_PLAIN),
    Published("MXNet 22.10, AMP", 3411, "A100", FUSED, 512, "v1.5", PRODUCTS, _MXNET_FUSED),
    Published("PyTorch 21.03, TF32", 938, "A100", "tf32", 256, "v1.5", PYTORCH, _TORCH_PLAIN),
    Published("PyTorch 21.03, AMP", 2470, "A100", "fp16+nhwc", 256, "v1.5", PYTORCH, _TORCH_NHWC),
    Published(
        *("PyTorch, AMP", 2800, "H100", "fp16+nhwc", 256, "v1.5", PRODUCTS, _TORCH_NHWC),
        why="input or host, perhaps: 13% more than on an A100, on a card of 1.6 times its bandwidth; the same card "
        "reached 7,161 in MLPerf",
    ),
    Published(
        *("MLPerf v4.0, 8 GPUs, per GPU", 7161, "H100", CAPTURED, 400, "v1.5", MLPERF, _MLPERF), why=_FUSES_BOTH_WAYS
    ),
    Published("MLPerf v4.0, 8 GPUs, per GPU", 7950, "H200", CAPTURED, 400, "v1.5", MLPERF, _MLPERF),
    Published("tcbench, GPU alone", 1090, "H200", PLAIN, 64, "v1", OURS, _OURS),
    Published("tcbench, GPU alone", 3450, "H200", "fp16", 64, "v1", OURS, _OURS),
    Published("tcbench, GPU alone", 6160, "H200", FUSED, 64, "v1", OURS, _OURS),
    Published("tcbench, GPU alone", 6540, "H200", CAPTURED, 64, "v1", OURS, _OURS),
)


def cell(published: Published) -> Cell:
    """Return the cell that corresponds to a published rate, on the virtual card."""
    chosen = scenario.load("beyond")
    selection = plan.Selection(
        batch_sizes=(published.batch_size,), configs=(published.config,), input=Input(kind="synthetic")
    )
    virtual = device.find_device(f"virtual:{published.card}", {"virtual": None})
    (planned,) = plan.make(chosen, selection, virtual).cells
    return msgspec.structs.replace(planned.cell, variant=published.variant)


def device_images_per_s(cells: Iterable[tuple[Published, Cell]]) -> dict[Published, float]:
    """Return the images per second of a device that never waits, for each published rate."""
    return {published: published.batch_size / sum(device_s(published, cell_).values()) for published, cell_ in cells}


def device_s(published: Published, requested: Cell) -> Counter[str]:
    """Return the device's busy seconds in a step, by name of the work."""
    gpu = gpus.load(published.card)
    demand = trace_all([requested], gpu.properties(), fresh=False, processes=1, progress=lambda *_: None)[requested]
    if not isinstance(demand, Demand):
        sys.exit(f"{published.says}: {demand}")
    seconds = Counter[str]()
    for work, count in demand.works:
        seconds[work.name] += count * timing_model(gpu).expected_s(work)
    return seconds


def run_images_per_s(requested: Cell) -> float:
    """Run whole steps in real time; return images per second by the median time between their ends."""
    session = backend("chainer").open_session(requested)
    try:
        for _ in range(SETTLING_STEPS):
            step(session)
        session.clock.mark()
        for _ in range(STEPS):
            step(session)
            session.clock.mark()
        return requested.batch_size / statistics.median(session.clock.read())
    finally:
        session.close()


def step(session: Session) -> None:
    for phase in session.phases:
        phase.run()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--run", action="store_true", help="run whole steps under this host as well")
    parser.add_argument("--kernels", type=Path, metavar="RESULTS", help="only the kernels that these records timed")
    parser.add_argument("--card", default="H200", help="the card of those records")
    options = parser.parse_args()
    if options.kernels:
        compare_kernels(options.kernels, gpus.load(options.card))
        return
    run = options.run
    cells = {published: cell(published) for published in PUBLISHED}
    device_alone = device_images_per_s(cells.items())
    ran = {published: run_images_per_s(requested) for published, requested in cells.items()} if run else {}
    cards = dict.fromkeys(published.card for published in PUBLISHED)
    print(", ".join(f"{card}: {timing_model(gpus.load(card)).name}" for card in cards) + "\n")
    ran_title, ran_rule = (" run here |", " ---: |") if run else ("", "")
    print("| card | published | images/s | config, batch size | device alone | off |" + ran_title)
    print("| --- | --- | ---: | --- | ---: | ---: |" + ran_rule)
    for published, rate in device_alone.items():
        config = f"`{published.config}`, {published.batch_size}"
        more = f" {ran[published]:.0f} |" if run else ""
        missed = off(published, rate)
        print(
            f"| {published.card} | {published.says} | {published.images_per_s:.0f} | {config} | {rate:.0f} | "
            f"{f'({missed:+.0%})' if published.out else f'{missed:+.0%}'} |{more}"
        )
    offs = [abs(off(published, rate)) for published, rate in device_alone.items() if not published.out]
    within = sum(share <= GOAL for share in offs)
    print(f"\nOf those that count {within} of {len(offs)} are within {GOAL:.0%}; mean {statistics.mean(offs):.0%}.")
    for published in PUBLISHED:
        if published.out or published.why:
            print(f"{published.card}, {published.says}: {published.out or published.why}.")
    mlperf = next(published for published in PUBLISHED if published.why == _FUSES_BOTH_WAYS)
    seconds = device_s(mlperf, cells[mlperf])
    separate_s = sum(
        s for name, s in seconds.items() if name.startswith("batch_norm") or name in ("relu_backward", "add")
    )
    share = separate_s / sum(seconds.values())
    print(
        f"Passes of their own for normalisation, ReLU's gradient and addition: {share:.0%} of MLPerf's step on an H100."
    )


def compare_kernels(results: Path, card: gpus.GpuFile) -> None:
    """Print how far the model is from the measured times of the chosen plans, by kind, dtype and layout."""
    kinds: dict[tuple[str, str, str], dict[str, float]] = {}
    for record in store.read(sorted(results.glob("*.jsonl"))).records:
        if record.measurement is None or record.cell.backend != "chainer":
            continue
        works = {work.label: work for work in trace_cell(record.cell, card.properties()).works}
        for plan_choice in record.measurement.plans:
            work = works.get(plan_choice.work)
            if work is not None and plan_choice.time_s:
                form = getattr(work, "conv", None) or getattr(work, "norm", None)
                kind = (work.name, work.operands[0].dtype, getattr(form, "layout", ""))
                kinds.setdefault(kind, {})[work.label] = timing_model(card).expected_s(work) / plan_choice.time_s
    print("| kernel | dtype, layout | kernels | expected / measured, median | off on average |")
    print("| --- | --- | ---: | ---: | ---: |")
    for (name, dtype, layout), ratios in sorted(kinds.items()):
        mean_off = statistics.mean(abs(ratio - 1) for ratio in ratios.values())
        middle = statistics.median(ratios.values())
        print(f"| `{name}` | {dtype}, {layout} | {len(ratios)} | {middle:.2f} | {mean_off:.0%} |")
    offs = [abs(ratio - 1) for ratios in kinds.values() for ratio in ratios.values()]
    print(f"\n{len(offs)} kernels are off by {statistics.mean(offs):.0%} on average.")


def off(published: Published, rate: float) -> float:
    return rate / published.images_per_s - 1


if __name__ == "__main__":
    main()
