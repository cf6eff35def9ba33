"""The model of many ranks against five published results: the table and the picture of docs/forecast.md.

    uv run python benchmarks/scale_out.py [-o PICTURE]     # half a minute

Each result stands beside the model on its network (tcbench/hardware/networks.toml), from a step on few GPUs, by the
rule that `tcbench forecast --ranks` prints: from the slowest to the fastest way, each an all-reduce with overlap or
without. Inputs are the papers'; what a paper does not say is an assumption, and named so. No input comes from the
efficiency that it is compared with.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import virtual

from tcbench.analysis.scale_out import ALGORITHMS, IMAGES_TO_TRAIN, OVERLAP, Algorithm, all_reduce_s, waits_s
from tcbench.engine.models import MODELS
from tcbench.hardware import networks
from tcbench.present.charts.files import save
from tcbench.views.scale_out.chart import ScaleOutCurve, ScaleOutPoint, scale_out_chart

Way = tuple[Algorithm, float]
"""An all-reduce, and the share of it that hides behind the backward pass."""
WAYS: tuple[Way, ...] = tuple((algorithm, overlap) for algorithm in ALGORITHMS for overlap in (0.0, OVERLAP))
PARAMETERS = MODELS["resnet50"].parameters(1000)
SONY = "https://developer.nvidia.com/blog/sony-breaks-resnet-50-training-record-with-nvidia-v100-tensor-core-gpus/"
GOYAL_STEP_S = 0.120 * 3 / 2
"""Of 32 images on a P100 in fp32: the backward pass takes 120 ms (Goyal 2017, section 4.3); that the forward pass takes
half as long is an assumption."""


@dataclass(frozen=True)
class Result:
    """A published efficiency, of `ranks` GPUs against `base` of them.

    `step_s`: a rank's step without an all-reduce, among so many ranks, given the way of it: where it comes from another
    number of GPUs, their wait is taken off it. `images`: of each of so many ranks. `algorithm` and `overlaps`: what the
    published run did. `gradient`: bytes of a gradient. `time_to_train_s` is published too, or None. `assumed`: what the
    source does not say.
    """

    says: str
    efficiency: float
    base: int
    ranks: int
    network: str
    algorithm: Algorithm
    overlaps: bool
    gradient: int
    images: Callable[[int], int]
    step_s: Callable[[Result, int, Way], float]
    source: str
    inputs: str
    assumed: str
    time_to_train_s: float | None = None

    def waits_s(self, ranks: int, step_s: float, way: Way) -> float:
        algorithm, overlap = way
        reduce_s = all_reduce_s(self.gradient * PARAMETERS, ranks, networks.load(self.network), algorithm)
        return waits_s(reduce_s, step_s, overlap)

    def rate(self, ranks: int, way: Way) -> float:
        """Images/s of one rank among so many."""
        step_s = self.step_s(self, ranks, way)
        return self.images(ranks) / (step_s + self.waits_s(ranks, step_s, way))

    def model(self, way: Way, ranks: int | None = None) -> float:
        """The model's efficiency."""
        return self.rate(ranks or self.ranks, way) / self.rate(self.base, way)

    def range(self, ranks: int | None = None) -> tuple[float, float]:
        """The model's efficiency by the slowest way, and by the fastest."""
        efficiencies = [self.model(way, ranks) for way in WAYS]
        return min(efficiencies), max(efficiencies)

    def times_to_train_s(self, ranks: int) -> tuple[float, float]:
        """By the fastest way, and by the slowest."""
        rates = [self.rate(ranks, way) for way in WAYS]
        return IMAGES_TO_TRAIN / (ranks * max(rates)), IMAGES_TO_TRAIN / (ranks * min(rates))


def constant(step_s: float) -> Callable[[Result, int, Way], float]:
    return lambda _result, _ranks, _way: step_s


def from_time_to_train(result: Result, _ranks: int, way: Way) -> float:
    """The published run's step, less what its all-reduce made it wait: by bisection, since the wait hangs on it."""
    assert result.time_to_train_s is not None
    whole_s = result.time_to_train_s * result.ranks * result.images(result.ranks) / IMAGES_TO_TRAIN
    low, high = 0.0, whole_s
    for _ in range(60):
        middle = (low + high) / 2
        longer = middle + result.waits_s(result.ranks, middle, way) > whole_s
        low, high = (low, middle) if longer else (middle, high)
    return low


H100_RATE = 7161
"""Images/s of each of 8 GPUs at 400 images each: MLPerf Training v4.0, NVIDIA, eos_ngc24.04_mxnet."""


def mlperf_step_s(result: Result, ranks: int, way: Way) -> float:
    """The published step of 8 GPUs, of which the forecast says how much does not shrink with the batch."""
    images, few = result.images(ranks), result.images(result.base)
    expected_s = {n: n / device_rate("H100", virtual.CAPTURED, n) for n in (few, 50)}
    fixed_s = (50 * expected_s[few] - few * expected_s[50]) / (50 - few)
    whole_s = few / H100_RATE
    step_s = whole_s - result.waits_s(result.base, whole_s, way)
    return fixed_s + (step_s - fixed_s) * images / few


def mikami_step_s(_result: Result, _ranks: int, _way: Way) -> float:
    return 32 / device_rate("V100", virtual.FUSED, 32)


_RATES: dict[tuple[str, str, int], float] = {}


def device_rate(card: str, config: str, batch_size: int) -> float:
    """Images/s that the forecast expects of one card."""
    key = card, config, batch_size
    if key not in _RATES:
        row = replace(virtual.PUBLISHED[0], card=card, config=config, batch_size=batch_size)
        [_RATES[key]] = virtual.device_images_per_s([(row, virtual.cell(row))]).values()
    return _RATES[key]


RESULTS = (
    Result(
        *("Goyal 2017, 256 P100", 0.90, 8, 256, "big-basin", "hierarchical", True, 4, lambda _: 32),
        step_s=constant(GOYAL_STEP_S),
        source="https://arxiv.org/abs/1706.02677",
        inputs="8 P100 a server on NVLink, 50 Gbit Ethernet; 32 images and float32 gradients a GPU; backward 120 ms; "
        "reduced within the server, then by halving and doubling, while backward runs",
        assumed="the forward pass takes half of the backward pass; one buffer instead of one per gradient",
        time_to_train_s=3600,
    ),
    Result(
        *("Akiba 2017, 1024 P100", 0.80, 8, 1024, "mn-1", "ring", False, 2, lambda _: 32),
        step_s=constant(GOYAL_STEP_S),
        source="https://arxiv.org/abs/1908.00213",
        inputs="8 P100 a node, InfiniBand FDR twice; 32 images a GPU in float32, gradients sent in half precision; "
        "ring all-reduce of NCCL 2.0.5, after the backward pass and before the update (ChainerMN)",
        assumed="the step: Goyal's, on the same card; PCIe within the node",
        time_to_train_s=897.9,
    ),
    Result(
        *("Jia 2018, 2048 P40", 0.879, 1, 2048, "p40-100gbe", "hierarchical", True, 2, lambda _: 32),
        step_s=from_time_to_train,
        source="https://arxiv.org/abs/1807.11205",
        inputs="2048 P40, 64K images a step; 90 epochs in 6.6 minutes; 100 Gbit Ethernet; mixed precision",
        assumed="8 GPUs a node on PCIe, half-precision gradients, a hierarchical all-reduce that overlaps, efficiency "
        "against one GPU: the text of the paper was not reached, only its abstract and others' tables; all of the "
        "6.6 minutes are steps",
        time_to_train_s=396,
    ),
    Result(
        *("Mikami 2018, 1088 V100", 0.9162, 4, 1088, "abci", "hierarchical", True, 2, lambda _: 32),
        step_s=mikami_step_s,
        source="https://arxiv.org/abs/1811.05233",
        inputs="ABCI: 4 V100 a node on NVLink, InfiniBand EDR twice; 34K images on 1,088 GPUs: 32 each; 2D-torus "
        "all-reduce",
        assumed="the step: tcbench's forecast of a V100 (fp16+batched+nhwc+fused, 32 images), a bound; half-precision "
        "gradients; the torus is taken for a hierarchy, and to overlap; efficiency against one node",
    ),
    Result(
        *("MLPerf v4.0, 64 H100", 4908 / 7161, 8, 64, "dgx-h100", "ring", True, 2, lambda ranks: 3200 // ranks),
        step_s=mlperf_step_s,
        source="https://github.com/mlcommons/training_results_v4.0",
        inputs="Eos: 8 H100 a node on NVLink, InfiniBand NDR eight times; 3,200 images a step on 8 and on 64 GPUs: 400 "
        "and 50 each; 7,161 images/s a GPU on 8; NCCL 2.21.5",
        assumed="the part of a step that does not shrink with the batch: tcbench's forecast of an H100; a ring that "
        "overlaps, of half-precision gradients",
    ),
)

TRAINED = (
    ScaleOutPoint("He 2015, 8 P100", 8, None, 29 * 3600),
    ScaleOutPoint("Goyal 2017", 256, None, 3600, 0),
    ScaleOutPoint("Akiba 2017", 1024, None, 897.9, 1),
    ScaleOutPoint("Jia 2018", 2048, None, 396, 2),
    ScaleOutPoint("Mikami 2018", 2176, None, 224, 3),
)
"""Times to train that were published (SONY's table), whatever else they hold."""


def outside(result: Result) -> float:
    """By how much the published efficiency is below (negative) or above the model's range; 0 within."""
    low, high = result.range()
    return min(0.0, result.efficiency - low) + max(0.0, result.efficiency - high)


def mean_errors(results: Sequence[Result]) -> tuple[float, float]:
    """Of the model's fastest way, and of the best constant: for each result the median of the others."""
    others = [statistics.median(r.efficiency for r in results if r is not result) for result in results]
    model = statistics.mean(abs(result.range()[1] - result.efficiency) for result in results)
    return model, statistics.mean(abs(c - r.efficiency) for c, r in zip(others, results, strict=True))


def fitted() -> float:
    """The overlap of the least squares over the results that overlap, each by its own all-reduce, to a tenth."""

    def squares(overlap: float) -> float:
        return sum((r.model((r.algorithm, overlap)) - r.efficiency) ** 2 for r in RESULTS if r.overlaps)

    return min((n / 10 for n in range(11)), key=squares)


def picture() -> object:
    """Efficiency and time to train of every result's model, with what was published."""
    curves, points = [], []
    for place, result in enumerate(RESULTS):
        ranks = tuple(n for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096) if n >= result.base)
        ranks = tuple(n for n in ranks if result.images(n) >= 1 and n <= max(2 * result.ranks, 64))
        curves.append(
            ScaleOutCurve(
                f"{result.says}: {result.network}",
                ranks,
                *(tuple(result.range(n)[i] for n in ranks) for i in (1, 0)),
                *(tuple(result.times_to_train_s(n)[i] for n in ranks) for i in (0, 1)),
            )
        )
        points.append(ScaleOutPoint(f"{result.efficiency:.1%}", result.ranks, result.efficiency, None, place))
    return scale_out_chart(
        curves,
        "Lines: the model, against the number of GPUs that each source compares with. Marks: published",
        [*points, *TRAINED],
        ["Sources, inputs and assumptions: docs/forecast.md and benchmarks/scale_out.py."],
    )


def table() -> Iterator[str]:
    yield "| published | efficiency | its all-reduce | the model, slowest to fastest way | published is outside by |"
    yield "| --- | ---: | --- | ---: | ---: |"
    for result in RESULTS:
        low, high = result.range()
        overlap, points = "overlapped" if result.overlaps else "not overlapped", 100 * outside(result)
        yield (
            f"| {result.says}, against {result.base} | {result.efficiency:.1%} | {result.algorithm}, {overlap} | "
            f"{low:.1%} to {high:.1%} | {f'{points:+.1f} points' if points else 'inside'} |"
        )
    yield ""
    yield "| mean error, in points | the model's fastest way | a constant: the median of the others |"
    yield "| --- | ---: | ---: |"
    for says, results in (("all five", RESULTS), ("the four of 2017 and 2018", RESULTS[:4])):
        model, best_constant = mean_errors(results)
        yield f"| {says} | {100 * model:.1f} | {100 * best_constant:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-o", "--output", type=Path, help="draw the picture into this file")
    output = parser.parse_args().output
    print("\n".join(table()))
    print(f"\nOverlap {OVERLAP:g}: the least squares give {fitted():g}.")
    for result in RESULTS:
        print(f"\n{result.says} ({result.source}): {result.inputs}. Assumed: {result.assumed}.")
    for result in RESULTS:
        if result.time_to_train_s is not None:
            fast, slow = (seconds / 60 for seconds in result.times_to_train_s(result.ranks))
            print(f"{result.says}: {result.time_to_train_s / 60:.1f} min to train; model: {fast:.1f} to {slow:.1f}")
    if output is not None:
        save(picture(), output)
        print(f"wrote {output}")


if __name__ == "__main__":
    main()
