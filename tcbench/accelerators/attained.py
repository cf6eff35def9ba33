"""The time that a piece of work takes on a modelled GPU, and what asking for it costs the host, from one table of what
GPUs attain of their peaks.

    expected = max(FLOPs * waves / (peak * fraction), bytes / (bandwidth * fraction)) + latency

The table is attained.toml, beside this module: each row with its source. No row comes from a training rate.
FLOPs and bytes are the work's own; what a GPU must do beyond them is added here, from how it works: a normalisation
reads its input twice, a product's last wave of tiles fills no more multiprocessors than it has tiles, Tensor Cores want
channels innermost and in eights. docs/virtual.md says how well this predicts.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.resources
import math
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tcbench.accelerators.peaks import peak_rates
from tcbench.hardware.gpus import GpuFile
from tcbench.work import HALVES, Conv2d, Work

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

_CONVOLUTIONS = {
    "conv_fprop": "fprop",
    "conv_fprop_stats": "fprop",
    "conv_dgrad": "dgrad",
    "conv_dgrad_add": "dgrad",
    "conv_wgrad": "wgrad",
}
_READ_TWICE = {
    "batch_norm_forward": ("x",),
    "batch_norm_call_forward": ("x",),
    "batch_norm_backward": ("x", "gy"),
    "batch_norm_call_backward": ("x", "gy"),
}
"""Inputs of a normalisation's statistics (or of the sums of its gradients) that are needed again for its output."""


@dataclass(frozen=True)
class Fractions:
    """Shares of the peak rate and of the bandwidth that a kernel attains at best, and what it costs beyond. The first
    is above 1 where fewer operations are done than are counted (Winograd's method)."""

    arithmetic: float
    memory: float
    latency_s: float


class Table:
    """The rows of attained.toml. `name` identifies them in records."""

    def __init__(self, text: str) -> None:
        self.rows: Mapping[str, Any] = tomllib.loads(text)
        self.name = f"attained-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        self._latency_s: dict[str, float] = {row["of"]: float(row["us"]) * 1e-6 for row in self.rows["latency"]}
        self._driver_s: dict[str, float] = {row["of"]: float(row["us"]) * 1e-6 for row in self.rows["driver"]}
        self._product = {
            (row["capability"], precision): row[precision]
            for row in self.rows["product"]
            for precision in ("fp32", "tf32", "fp16")
            if precision in row
        }
        self._convolution = {
            (row["kind"], row["filter"], row["precision"]): (row["arithmetic"], row["memory"])
            for row in self.rows["convolution"]
        }
        self._bandwidth = {row["capability"]: row["fraction"] for row in self.rows["bandwidth"]}
        self._link = {row["capability"]: row["gb_s"] * 1e9 for row in self.rows["link"]}

    def product(self, card: GpuFile, precision: str) -> float:
        """The share of the peak in this precision that a large matrix product attains."""
        own = [capability for capability, known in self._product if known == precision]
        return float(self._product[_nearest(own, card.sm), precision])

    def bandwidth(self, card: GpuFile) -> float:
        """The share of the bandwidth that a streaming kernel attains."""
        return float(self._bandwidth[_nearest(self._bandwidth, card.sm)])

    def streaming(self, card: GpuFile) -> Fractions:
        """Those of all kernels but convolutions: they compute in float32 on what they read and write once."""
        return Fractions(self.product(card, "fp32"), self.bandwidth(card), self._latency_s["kernel"])

    def convolution(self, work: str, conv: Conv2d, card: GpuFile) -> Fractions:
        """Those of a convolution (`work`: "fprop", "dgrad" or "wgrad"), in proportion to the card's products."""
        precision = precision_of(conv, card)
        fitted = "fp32" if precision == "fp32" else "fp16"
        arithmetic, memory = self._convolution[work, _filter(conv), fitted]
        there = self._product[_FITTED_ON, fitted]
        return Fractions(
            arithmetic=arithmetic * self.product(card, precision) / there,
            memory=memory * self.bandwidth(card) / self._bandwidth[_FITTED_ON],
            latency_s=self._latency_s["convolution"],
        )

    def latency_s(self) -> float:
        """Of the device, for anything that is asked of it."""
        return self._latency_s["kernel"]

    def driver_s(self, of: str) -> float:
        """The host's time in the driver (and in cuDNN) to ask for something: a work's `kind`, "copy" or "captured"."""
        return self._driver_s[of]

    def link_bytes_s(self, card: GpuFile) -> float:
        """Bytes per second between pinned memory of the host and the card."""
        return float(self._link[_nearest(self._link, card.sm)])


@functools.cache
def table() -> Table:
    """The table that comes with tcbench."""
    return Table(importlib.resources.files("tcbench.accelerators").joinpath(_FILE).read_text(encoding="utf-8"))


def expected_s(work: Work, card: GpuFile) -> float:
    """Seconds that the device is busy with one launch. Raises SelectionError for a card whose peak rates are not
    known."""
    kind = _CONVOLUTIONS.get(work.name)
    if kind is not None:
        return _convolution_s(kind, work, card)
    fractions = table().streaming(card)
    arithmetic_s = work.flops / (peak_rates(card).fp32_flops_s * fractions.arithmetic)
    traffic = work.bytes + _read_again_bytes(work, card)
    return max(arithmetic_s, traffic / (card.memory_bandwidth_bytes_s * fractions.memory)) + fractions.latency_s


def precision_of(conv: Conv2d, card: GpuFile) -> str:
    """The arithmetic of a convolution on the card: "fp16" (bfloat16 too), "tf32" or "fp32"."""
    if conv.dtype in HALVES:
        return "fp16"
    rates = peak_rates(card)
    return "tf32" if conv.math == "tf32" and rates.tf32_flops_s > rates.fp32_flops_s else "fp32"


def _convolution_s(kind: str, work: Work, card: GpuFile) -> float:
    conv: Conv2d = work.conv  # type: ignore[attr-defined]
    fractions = table().convolution(kind, conv, card)
    precision = precision_of(conv, card)
    flops = work.flops * _waves(kind, conv, precision, card) * _padding(kind, conv, precision)
    arithmetic_s = flops / (peak_rates(card).of(work) * fractions.arithmetic)
    memory_s = work.bytes / (card.memory_bandwidth_bytes_s * fractions.memory)
    return max(arithmetic_s, memory_s) + fractions.latency_s + _transposes_s(work, conv, precision, card)


def _filter(conv: Conv2d) -> str:
    size = "pointwise" if conv.r == conv.s == 1 else "spatial"
    plain = conv.stride == 1 and (size == "pointwise" or conv.r == conv.s == 3)
    return size if plain else f"{size}-strided"


def _waves(kind: str, conv: Conv2d, precision: str, card: GpuFile) -> float:
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


def _padding(kind: str, conv: Conv2d, precision: str) -> float:
    """Tensor Cores take channels by 16 bytes; cuDNN pads to that, by zeros that are multiplied as well. Source: NVIDIA,
    "Convolutional Layers User's Guide" (from cuDNN 7.6.3 on)."""
    if precision == "fp32":
        return 1.0
    step = 8 if precision == "fp16" else 4
    channels = conv.k if kind == "dgrad" else conv.c
    return math.ceil(channels / step) * step / channels


def _transposes_s(work: Work, conv: Conv2d, precision: str, card: GpuFile) -> float:
    """Tensor Cores work on channels that are innermost: from NCHW each array is transposed first, by a kernel that
    reads and writes it. Sources, profiles of cuDNN: on a V100 only what is read is transposed apart ("nhwc2nchw" in the
    name of the product's kernel; tensorflow/tensorflow#15897), on an A100 also what is written
    (pytorch/pytorch#81940). One image, or one pixel, is a matrix: it is taken as it is."""
    if precision == "fp32" or conv.layout == "NHWC" or conv.n == 1 or conv.h * conv.w == 1:
        return 0.0
    fractions = table().streaming(card)
    arrays = [operand for operand in work.operands if len(operand.shape) == 4]
    moved = [operand for operand in arrays if card.sm >= 80 or operand.role == "in"]
    traffic = 2 * sum(operand.bytes for operand in moved)
    return traffic / (card.memory_bandwidth_bytes_s * fractions.memory) + len(moved) * fractions.latency_s


def _read_again_bytes(work: Work, card: GpuFile) -> int:
    names = _READ_TWICE.get(work.name)
    if names is None:
        return 0
    inputs = sum(operand.bytes for operand in work.operands if operand.name in names)
    return max(0, inputs - card.multiprocessors * ON_CHIP_BYTES)


def _nearest(known: Mapping[int, Any] | list[int], capability: int) -> int:
    """The row of a compute capability that has none: the last before it, else the first."""
    return max((c for c in known if c <= capability), default=min(known))
