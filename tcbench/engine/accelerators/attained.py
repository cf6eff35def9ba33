"""A model of the time that a GPU needs for an operation, and of the host's time to launch it.

    expected = max(FLOPs * waves / (peak * fraction), bytes / (bandwidth * fraction)) + latency

The fractions of the peaks that GPUs attain are in attained.toml, each row with its source. No row comes from a training
rate. FLOPs and bytes are those of the work. The model adds what a GPU does beyond them: a normalisation reads its input
twice, the last wave of a matrix product leaves multiprocessors idle, and Tensor Cores need channels innermost and in
multiples of eight. docs/virtual.md compares predictions with published measurements."""

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
"""Sizes of a matrix product's output tiles. A multiprocessor computes one tile at a time.

Source: NVIDIA, "Matrix Multiplication Background", sections 2.3, 3.1 and 3.2 (tile and wave quantisation)."""

ON_CHIP_BYTES = 128 * 1024
"""Bytes of input per multiprocessor that a normalisation can hold between its two passes.

It is assumed to be half of the register file, which has 256 KiB from compute capability 7.0 on (CUDA C++ Programming
Guide). This matters for small batches only: at batch size 64, inputs are ten times as large."""

_READ_TWICE = {
    "batch_norm_forward": ("x",),
    "batch_norm_call_forward": ("x",),
    "batch_norm_backward": ("x", "gy"),
    "batch_norm_call_backward": ("x", "gy"),
}
"""Inputs that a normalisation reads twice: for its statistics (or its gradients' sums), and for its output."""


@functools.cache
def rows() -> Mapping[str, Any]:
    """Return the contents of attained.toml by key: a table, or for keys such as "bandwidth" a list of rows."""
    return tomllib.loads(importlib.resources.files(__package__).joinpath(_FILE).read_text(encoding="utf-8"))


_ByConvolution = dict[tuple[str, str, Precision], tuple[float, float]]


@dataclass(frozen=True)
class TimingModel:
    """A model of one GPU.

    Shares of the GPU's peaks:
    - `products`: of arithmetic that a large matrix product attains, by precision;
    - `bandwidth`: of memory bandwidth that a streaming kernel attains;
    - `convolutions`: of arithmetic and of bandwidth that a convolution attains, by (kind, filter, precision). The first
      is above 1 for Winograd's method, which does fewer operations than are counted;
    - `solver`: of arithmetic that the decomposition of a large matrix attains.

    Latencies on the device, in seconds: `kernel_s` of a kernel, `convolution_s` of a convolution, `solver_row_s` of a
    row of a decomposition. `driver_s` is the host's time in the driver and in cuDNN per request, by an operation's
    `kind`, "copy" or "captured". `link_bytes_s` is the rate between the host's pinned memory and the GPU. `name`
    identifies the model in records."""

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
        """The memory bandwidth of a streaming kernel, in bytes/s."""
        return self.bandwidth * self.card.memory_bandwidth_bytes_s

    def in_memory_s(self, n_bytes: int) -> float:
        """Return the seconds of a kernel that only reads and writes `n_bytes` in all."""
        return self.kernel_s + n_bytes / self.bandwidth_bytes_s

    def expected_s(self, work: w.Work) -> float:
        """Return the seconds that the GPU is busy with one launch of an operation."""
        return _work_s(work, self)

    def over_link_s(self, n_bytes: int) -> float:
        """Return the seconds of a copy of `n_bytes` between the host's pinned memory and the GPU."""
        return self.kernel_s + n_bytes / self.link_bytes_s


@functools.cache
def timing_model(card: GpuFile) -> TimingModel:
    """Return the model of a GPU, from the rows of attained.toml for the nearest compute capability.

    If `tcbench roofline` has measured such a GPU, the rates are scaled by its measurement. Raises SelectionError if the
    GPU's peak rates are not known."""
    model, measured = _from_table(card), ceilings.measured_on(card.device_name)
    if measured is not None:
        model = _scaled_by(model, measured)
    return replace(model, name=f"attained-{_identity(model)}{'+roofline' if measured else ''}")


def _from_table(card: GpuFile) -> TimingModel:
    """Return the model of a GPU from the nearest rows of the table, without measurements of such a GPU."""
    peaks = peak_rates(card)
    products = {precision: _product(card.sm, precision) for precision in get_args(Precision)}
    bandwidth = _nearest(rows()["bandwidth"], card.sm)["fraction"]
    latency_s = {row["of"]: row["us"] * 1e-6 for row in rows()["latency"]}
    return TimingModel(
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


def _scaled_by(model: TimingModel, measured: Ceilings) -> TimingModel:
    """Return the model with its rates scaled by the ratio of measured to expected rates.

    Both are rates of the same convolutions and the same copy, so the inefficiency of convolutions cancels out."""
    faster = {
        precision: measured.flops_s[precision] * _work_s(work, model) / work.flops
        for precision, work in ceilings.products(model.card.sm).items()
        if precision in measured.flops_s
    }
    copied = 2 * ceilings.COPY_BYTES
    wider = measured.bandwidth_bytes_s * model.in_memory_s(copied) / copied
    return replace(
        model,
        products={precision: share * faster.get(precision, 1.0) for precision, share in model.products.items()},
        bandwidth=model.bandwidth * wider,
        convolutions={
            key: (arithmetic * faster.get(key[2], 1.0), memory * wider)
            for key, (arithmetic, memory) in model.convolutions.items()
        },
    )


def sample_works() -> Iterator[w.Work]:
    """Yield operations that together use every branch of the model. Their times distinguish one model from another."""
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


def _identity(model: TimingModel) -> str:
    """Return a digest of the GPU, the model's figures and its times for sample operations, each to six digits."""
    card = model.card
    figures = [
        *(card.sm, card.multiprocessors, card.memory_bytes, card.memory_bandwidth_bytes_s, card.sm_clock_hz),
        *(model.bandwidth, model.kernel_s, model.convolution_s, model.solver_row_s, model.solver, model.link_bytes_s),
        *model.products.values(),
        *itertools.chain.from_iterable(shares for _, shares in sorted(model.convolutions.items())),
        *(seconds for _, seconds in sorted(model.driver_s.items())),
        *(_work_s(work, model) for work in sample_works()),
    ]
    text = " ".join([card.device_name, *(f"{figure:.6g}" for figure in figures)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _convolutions(products: Mapping[Precision, float], bandwidth: float) -> _ByConvolution:
    """Return the shares of the peaks that convolutions attain.

    The table has the shares of the GPU in `_FITTED_ON`. They are scaled by the ratio of this GPU's shares for matrix
    products and memory to that GPU's. TF32 has the shares of float16, which runs on the same Tensor Cores."""
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
    """Return the share of the peak that a matrix product attains on a GPU of a compute capability (70 for 7.0). For a
    precision that the GPU lacks, it is the share of float32."""
    row = _nearest([row for row in rows()["product"] if precision in row], capability)
    return float(row[precision] if row["capability"] <= capability else _product(capability, "fp32"))


def _nearest(candidates: Sequence[Mapping[str, Any]], capability: int) -> Mapping[str, Any]:
    """Return the row of a compute capability (70 for 7.0), else of the highest one below it, else the first row."""
    earlier = [row for row in candidates if row["capability"] <= capability]
    return max(earlier, key=lambda row: row["capability"]) if earlier else candidates[0]


# -- the model ---------------------------------------------------------------------------------------------------------


def _work_s(work: w.Work, model: TimingModel) -> float:
    """Return the seconds that the GPU of the model is busy with one launch of an operation."""
    if work.name.startswith("conv_"):
        _, kind, *_ = work.name.split("_")
        return _convolution_s(kind, work, model)
    if isinstance(work, w.CholeskyInverse):
        return _inverse_s(work, model)
    precision: Precision = "fp32"
    flops = work.flops
    if isinstance(work, w.KroneckerFactor) and work.dtype in w.HALVES:
        # On Tensor Cores cuBLAS computes the whole product; only in float32 it computes one triangle.
        flops, precision = 2 * work.flops, "fp16"
    arithmetic_s = flops / (model.peaks.peak_flops_s(precision) * model.products[precision])
    traffic = work.bytes + _read_again_bytes(work, model.card)
    return max(arithmetic_s, traffic / model.bandwidth_bytes_s) + model.kernel_s


def _inverse_s(work: w.CholeskyInverse, model: TimingModel) -> float:
    """Return the seconds of a Cholesky inverse, as tcbench/engine/accelerators/cuda/solver.py computes it.

    The decomposition takes size³ / 3 operations, the solution for every column of the identity 2 size³. Both go row by
    row. A kernel before and one after them read and write the matrix. All four steps add a kernel's latency."""
    flops_s = (7 / 3) * work.size**3 / (model.peaks.peak_flops_s("fp32") * model.solver)
    rows_s = 3 * work.size * model.solver_row_s  # once down to decompose, once up and once down to solve
    return flops_s + rows_s + 2 * work.bytes / model.bandwidth_bytes_s + 4 * model.kernel_s


def _convolution_s(kind: str, work: w.Work, model: TimingModel) -> float:
    """Return the seconds of a pass of a convolution. `kind` is "fprop", "dgrad" or "wgrad"."""
    conv: w.Conv2d = work.conv  # type: ignore[attr-defined]
    precision = model.peaks.precision(work)
    shares = model.convolutions[kind, filter_of(conv), precision]
    bounds_s = convolution_bounds_s(kind, work, model.card)
    bound_s = max(least_s / share for least_s, share in zip(bounds_s, shares, strict=True))
    return bound_s + model.convolution_s + _transposes_s(work, conv, precision, model)


def convolution_bounds_s(kind: str, work: w.Work, card: GpuFile) -> tuple[float, float]:
    """Return the least seconds of a convolution's arithmetic (with waves and padding) and of its memory traffic.

    Both are at the GPU's peak rates. `kind` is "fprop", "dgrad" or "wgrad"."""
    conv: w.Conv2d = work.conv  # type: ignore[attr-defined]
    peaks = peak_rates(card)
    precision = peaks.precision(work)
    flops = work.flops * _waves(kind, conv, precision, card) * _padding(kind, conv, precision)
    return flops / peaks.peak_flops_s(precision), work.bytes / card.memory_bandwidth_bytes_s


def filter_of(conv: w.Conv2d) -> str:
    """Return the name of a convolution's filter in attained.toml. Sizes other than 1x1 and 3x3 count as strided."""
    size = "pointwise" if conv.r == conv.s == 1 else "spatial"
    plain = conv.stride == 1 and (size == "pointwise" or conv.r == conv.s == 3)
    return size if plain else f"{size}-strided"


def _waves(kind: str, conv: w.Conv2d, precision: Precision, card: GpuFile) -> float:
    """Return the factor by which partly filled tiles and the last wave lengthen a convolution, with the best tile size.

    The factor is 1 for wgrad, which splits its long sum over multiprocessors, and for Winograd's method, which has
    tiles of its own."""
    if kind == "wgrad" or (precision == "fp32" and conv.r > 1):
        return 1.0
    rows, columns = (conv.n * conv.p * conv.q, conv.k) if kind == "fprop" else (conv.n * conv.h * conv.w, conv.c)

    def occupied(tile: tuple[int, int]) -> int:
        tiles = math.ceil(rows / tile[0]) * math.ceil(columns / tile[1])
        return math.ceil(tiles / card.multiprocessors) * card.multiprocessors * tile[0] * tile[1]

    return min(occupied(tile) for tile in TILES) / (rows * columns)


def _padding(kind: str, conv: w.Conv2d, precision: Precision) -> float:
    """Return the factor by which padding of channels adds operations.

    Tensor Cores need channels in multiples of 16 bytes, so cuDNN pads them with zeros. Source: NVIDIA, "Convolutional
    Layers User's Guide" (from cuDNN 7.6.3 on)."""
    if precision == "fp32":
        return 1.0
    step = 8 if precision == "fp16" else 4
    channels = conv.k if kind == "dgrad" else conv.c
    return math.ceil(channels / step) * step / channels


def _transposes_s(work: w.Work, conv: w.Conv2d, precision: Precision, model: TimingModel) -> float:
    """Return the seconds of the transposes of arrays in NCHW: Tensor Cores need channels innermost.

    Each transpose is a kernel that reads and writes the array. On a V100 only inputs take such a kernel: the product's
    own kernel transposes the output ("nhwc2nchw"; tensorflow/tensorflow#15897). On an A100 outputs take one too
    (pytorch/pytorch#81940). A single image or pixel is a matrix and needs no transpose."""
    if precision == "fp32" or conv.layout == "NHWC" or conv.n == 1 or conv.h * conv.w == 1:
        return 0.0
    arrays = [operand for operand in work.operands if len(operand.shape) == 4]
    moved = [operand for operand in arrays if model.card.sm >= 80 or operand.role == "in"]
    return 2 * sum(operand.bytes for operand in moved) / model.bandwidth_bytes_s + len(moved) * model.kernel_s


def _read_again_bytes(work: w.Work, card: GpuFile) -> int:
    """Return the bytes that a normalisation reads a second time from memory; 0 if its inputs fit on the chip."""
    names = _READ_TWICE.get(work.name, ())
    inputs = sum(operand.bytes for operand in work.operands if operand.name in names)
    return max(0, inputs - card.multiprocessors * ON_CHIP_BYTES)
