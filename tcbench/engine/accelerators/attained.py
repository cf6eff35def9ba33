"""The time that a piece of work takes on a modelled GPU, and what asking for it costs the host, from one table of what
GPUs attain of their peaks.

    expected = max(FLOPs * waves / (peak * fraction), bytes / (bandwidth * fraction)) + latency

The table is attained.toml, beside this module: each row with its source. No row comes from a training rate.
FLOPs and bytes are the work's own; what a GPU must do beyond them is added here, from how it works: a normalisation
reads its input twice, a product's last wave of tiles fills no more multiprocessors than it has tiles, Tensor Cores want
channels innermost and in eights. docs/virtual.md says how well this predicts."""

import functools
import hashlib
import importlib.resources
import itertools
import math
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, get_args

from tcbench.engine import work as w
from tcbench.engine.accelerators import ceilings
from tcbench.engine.accelerators.ceilings import Ceilings, Precision
from tcbench.engine.accelerators.peaks import peak_rates
from tcbench.hardware.gpus import GpuFile

_FILE = "attained.toml"
_FITTED_ON = 70
"""The compute capability on which convolutions were measured."""

TILES = ((256, 128), (128, 128), (128, 64), (64, 64))
"""Output tiles of a matrix product, one per multiprocessor at a time. Source: NVIDIA, "Matrix Multiplication
Background", sections 2.3, 3.1 and 3.2 (tile and wave quantisation)."""

ON_CHIP_BYTES = 128 * 1024
"""Per multiprocessor, what a normalisation can keep of its input between its two passes: half of the register file of
256 KiB that all compute capabilities from 7.0 have (CUDA C++ Programming Guide). An assumption, and one that matters
only to small batches: at batch size 64 the inputs are ten times as large."""

_READ_TWICE = {
    "batch_norm_forward": ("x",),
    "batch_norm_call_forward": ("x",),
    "batch_norm_backward": ("x", "gy"),
    "batch_norm_call_backward": ("x", "gy"),
}
"""Inputs of a normalisation's statistics (or of the sums of its gradients) that are needed again for its output."""


@functools.cache
def rows() -> Mapping[str, Any]:
    """The table: its sources by name, and its rows by kind."""
    return tomllib.loads(importlib.resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))


_ByConvolution = dict[tuple[str, str, Precision], tuple[float, float]]


@dataclass(frozen=True)
class Attained:
    """The table's figures for one card.

    `products`: the share of the peak that a large matrix product attains, by precision; `bandwidth`: the share that a
    streaming kernel does; `convolutions`: the shares of both that a convolution does, by its kind, filter and
    precision. The first is above 1 where fewer operations are done than are counted (Winograd's method). `kernel_s` and
    `convolution_s`: latencies of the device, for every kernel, for a convolution, and for a row of a decomposition
    (`solver_row_s`), which where it is large reaches the share `solver` of the peak. `driver_s`: the host's time in the
    driver (and in cuDNN) to ask for something, by a work's `kind`, "copy" or "captured". `link_bytes_s`: between pinned
    memory of the host and the card. `name` identifies the model of this card in records.
    """

    card: GpuFile
    peaks: Ceilings
    products: Mapping[Precision, float]
    bandwidth: float
    convolutions: _ByConvolution
    kernel_s: float
    convolution_s: float
    solver_row_s: float
    solver: float
    driver_s: Mapping[str, float]
    link_bytes_s: float
    name: str = ""

    @property
    def bandwidth_bytes_s(self) -> float:
        return self.bandwidth * self.card.memory_bandwidth_bytes_s

    def in_memory_s(self, n_bytes: int) -> float:
        """Of a kernel that reads and writes so much, and does nothing else."""
        return self.kernel_s + n_bytes / self.bandwidth_bytes_s

    def expected_s(self, work: w.Work) -> float:
        """Return the seconds that the device is busy with one launch."""
        return _work_s(work, self)

    def over_link_s(self, n_bytes: int) -> float:
        """Of a copy between the host's pinned memory and the card."""
        return self.kernel_s + n_bytes / self.link_bytes_s


@functools.cache
def attained(card: GpuFile) -> Attained:
    """By the nearest rows of the table, but in proportion to what `tcbench roofline` measured on such a card. Raises
    SelectionError for one whose peak rates are not known."""
    here, measured = _by_table(card), ceilings.of_device(card.device_name)
    if measured is not None:
        here = _in_proportion(here, measured)
    return replace(here, name=f"attained-{_identity(here)}{'+roofline' if measured else ''}")


def _by_table(card: GpuFile) -> Attained:
    peaks = peak_rates(card)
    products = {precision: _product(card.sm, precision) for precision in get_args(Precision)}
    bandwidth = _nearest(rows()["bandwidth"], card.sm)["fraction"]
    latency_s = {row["of"]: row["us"] * 1e-6 for row in rows()["latency"]}
    return Attained(
        card=card,
        peaks=peaks,
        products=products,
        bandwidth=bandwidth,
        convolutions=_convolutions(products, bandwidth),
        kernel_s=latency_s["kernel"],
        convolution_s=latency_s["convolution"],
        solver_row_s=latency_s["solver_row"],
        solver=rows()["solver"]["fraction"],
        driver_s={row["of"]: row["us"] * 1e-6 for row in rows()["driver"]},
        link_bytes_s=_nearest(rows()["link"], card.sm)["gb_s"] * 1e9,
    )


def _in_proportion(here: Attained, measured: Ceilings) -> Attained:
    """By how many times as fast as expected the same convolutions and the same copy ran: what was measured is no bare
    product, and holds a convolution's inefficiency already."""
    faster = {
        precision: measured.flops_s[precision] * _work_s(work, here) / work.flops
        for precision, work in ceilings.products(here.card.sm).items()
        if precision in measured.flops_s
    }
    copied = 2 * ceilings.COPY_BYTES
    wider = measured.bandwidth_bytes_s * here.in_memory_s(copied) / copied
    return replace(
        here,
        products={precision: share * faster.get(precision, 1.0) for precision, share in here.products.items()},
        bandwidth=here.bandwidth * wider,
        convolutions={
            key: (arithmetic * faster.get(key[2], 1.0), memory * wider)
            for key, (arithmetic, memory) in here.convolutions.items()
        },
    )


def sample_works() -> Iterator[w.Work]:
    """Works that the model times in each of its ways. Their times tell one model from another."""
    for work, r, stride in itertools.product((w.ConvFprop, w.ConvDgrad, w.ConvWgrad), (1, 3), (1, 2)):
        for layout, dtype, computed in _SAMPLE_FORMATS:
            yield work(w.Conv2d(32, 68, 28, 28, 136, r, r, stride, r // 2, layout, dtype, computed))
    norm = w.Norm(32, 64, 56, 56, "NHWC", "float16")
    yield from (w.BatchNormForward(norm, 1e-5, 0.1), w.BatchNormBackward(norm), w.Relu(norm.size, "float16"))
    yield from (w.BatchNormCallForward(norm, 1e-5, 0.1, True), w.BatchNormCallBackward(norm, 1e-5, True))
    yield from (w.KroneckerFactor(512, 6272, "NHWC", dtype, 1.0, 0.5) for dtype in ("float32", "float16"))
    yield w.CholeskyInverse(512)


_SAMPLE_FORMATS: tuple[tuple[w.Layout, w.DType, w.Math], ...] = (
    ("NCHW", "float32", "strict"),
    ("NCHW", "float32", "tf32"),
    ("NCHW", "float16", "strict"),
    ("NHWC", "float16", "strict"),
)


def _identity(here: Attained) -> str:
    """A digest of the card, of its figures, and of the times that the model gives for sample works, to six digits."""
    card = here.card
    figures = [
        *(card.sm, card.multiprocessors, card.memory_bytes, card.memory_bandwidth_bytes_s, card.sm_clock_hz),
        *(here.bandwidth, here.kernel_s, here.convolution_s, here.solver_row_s, here.solver, here.link_bytes_s),
        *here.products.values(),
        *itertools.chain.from_iterable(shares for _, shares in sorted(here.convolutions.items())),
        *(seconds for _, seconds in sorted(here.driver_s.items())),
        *(_work_s(work, here) for work in sample_works()),
    ]
    text = " ".join([card.device_name, *(f"{figure:.6g}" for figure in figures)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _convolutions(products: Mapping[Precision, float], bandwidth: float) -> _ByConvolution:
    """In proportion to the card's products and bandwidth over those of the card that they were measured on. TF32's are
    float16's, on the same Tensor Cores."""
    fitted: dict[Precision, Precision] = {"fp32": "fp32", "tf32": "fp16", "fp16": "fp16"}
    wider = bandwidth / _nearest(rows()["bandwidth"], _FITTED_ON)["fraction"]
    return {
        (kind, shape, precision): (
            shares["arithmetic"] * products[precision] / _product(_FITTED_ON, like),
            shares["memory"] * wider,
        )
        for kind, by_precision in rows()["convolution"].items()
        for precision, like in fitted.items()
        for shape, shares in by_precision[like].items()
        if shape != "source"
    }


def _product(capability: int, precision: Precision) -> float:
    """The row of the compute capability; of a precision that it lacks, that of float32."""
    row = _nearest([row for row in rows()["product"] if precision in row], capability)
    return float(row[precision] if row["capability"] <= capability else _product(capability, "fp32"))


def _nearest(known: Sequence[Mapping[str, Any]], capability: int) -> Mapping[str, Any]:
    """The row of a compute capability, else of the last one before it, else the first."""
    before = [row for row in known if row["capability"] <= capability]
    return max(before, key=lambda row: row["capability"]) if before else known[0]


# -- the model ---------------------------------------------------------------------------------------------------------


def _work_s(work: w.Work, here: Attained) -> float:
    if work.name.startswith("conv_"):
        _, kind, *_ = work.name.split("_")
        return _convolution_s(kind, work, here)
    if isinstance(work, w.CholeskyInverse):
        return _inverse_s(work, here)
    precision: Precision = "fp32"
    flops = work.flops
    if isinstance(work, w.KroneckerFactor) and work.dtype in w.HALVES:
        # A whole product on Tensor Cores: cuBLAS makes one triangle of float32 alone.
        flops, precision = 2 * work.flops, "fp16"
    arithmetic_s = flops / (here.peaks.at(precision) * here.products[precision])
    traffic = work.bytes + _read_again_bytes(work, here.card)
    return max(arithmetic_s, traffic / here.bandwidth_bytes_s) + here.kernel_s


def _inverse_s(work: w.CholeskyInverse, here: Attained) -> float:
    """A decomposition (1/3 of size³) and a solution for every column of the identity (2 size³), row after row, between
    two kernels that read and write the matrix: what tcbench/engine/accelerators/cuda/solver.py asks for."""
    flops_s = (7 / 3) * work.size**3 / (here.peaks.at("fp32") * here.solver)
    rows_s = 3 * work.size * here.solver_row_s  # once down to decompose, once up and once down to solve
    return flops_s + rows_s + 2 * work.bytes / here.bandwidth_bytes_s + 4 * here.kernel_s


def _convolution_s(kind: str, work: w.Work, here: Attained) -> float:
    conv: w.Conv2d = work.conv  # type: ignore[attr-defined]
    precision = here.peaks.precision(work)
    shares = here.convolutions[kind, filter_of(conv), precision]
    bounds_s = convolution_bounds_s(kind, work, here.card)
    bound_s = max(least_s / share for least_s, share in zip(bounds_s, shares, strict=True))
    return bound_s + here.convolution_s + _transposes_s(work, conv, precision, here)


def convolution_bounds_s(kind: str, work: w.Work, card: GpuFile) -> tuple[float, float]:
    """The least time of a convolution's arithmetic, waves and padding with it, and of its traffic, at the card's full
    rates. `kind`: "fprop", "dgrad" or "wgrad"."""
    conv: w.Conv2d = work.conv  # type: ignore[attr-defined]
    peaks = peak_rates(card)
    precision = peaks.precision(work)
    flops = work.flops * _waves(kind, conv, precision, card) * _padding(kind, conv, precision)
    return flops / peaks.at(precision), work.bytes / card.memory_bandwidth_bytes_s


def filter_of(conv: w.Conv2d) -> str:
    """The table's word for a filter: by its size, and whether it has a row for its stride."""
    size = "pointwise" if conv.r == conv.s == 1 else "spatial"
    plain = conv.stride == 1 and (size == "pointwise" or conv.r == conv.s == 3)
    return size if plain else f"{size}-strided"


def _waves(kind: str, conv: w.Conv2d, precision: Precision, card: GpuFile) -> float:
    """The time that the multiprocessors are held over the time of the work itself, by the best tile: the last wave, and
    tiles at the edge, are done as if they were full. A wgrad splits its long sum over multiprocessors instead, and
    Winograd's method has tiles of its own."""
    if kind == "wgrad" or (precision == "fp32" and conv.r > 1):
        return 1.0
    rows, columns = (conv.n * conv.p * conv.q, conv.k) if kind == "fprop" else (conv.n * conv.h * conv.w, conv.c)

    def held(tile: tuple[int, int]) -> int:
        tiles = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
        return math.ceil(tiles / card.multiprocessors) * card.multiprocessors * tile[0] * tile[1]

    return min(held(tile) for tile in TILES) / (rows * columns)


def _padding(kind: str, conv: w.Conv2d, precision: Precision) -> float:
    """Tensor Cores take channels by 16 bytes; cuDNN pads to that, by zeros that are multiplied as well. Source: NVIDIA,
    "Convolutional Layers User's Guide" (from cuDNN 7.6.3 on)."""
    if precision == "fp32":
        return 1.0
    step = 8 if precision == "fp16" else 4
    channels = conv.k if kind == "dgrad" else conv.c
    return math.ceil(channels / step) * step / channels


def _transposes_s(work: w.Work, conv: w.Conv2d, precision: Precision, here: Attained) -> float:
    """Tensor Cores work on channels that are innermost: from NCHW each array is transposed first, by a kernel that
    reads and writes it. Sources, profiles of cuDNN: on a V100 only what is read is transposed apart ("nhwc2nchw" in the
    name of the product's kernel; tensorflow/tensorflow#15897), on an A100 also what is written
    (pytorch/pytorch#81940). One image, or one pixel, is a matrix: it is taken as it is."""
    if precision == "fp32" or conv.layout == "NHWC" or conv.n == 1 or conv.h * conv.w == 1:
        return 0.0
    arrays = [operand for operand in work.operands if len(operand.shape) == 4]
    moved = [operand for operand in arrays if here.card.sm >= 80 or operand.role == "in"]
    return 2 * sum(operand.bytes for operand in moved) / here.bandwidth_bytes_s + len(moved) * here.kernel_s


def _read_again_bytes(work: w.Work, card: GpuFile) -> int:
    names = _READ_TWICE.get(work.name, ())
    inputs = sum(operand.bytes for operand in work.operands if operand.name in names)
    return max(0, inputs - card.multiprocessors * ON_CHIP_BYTES)
