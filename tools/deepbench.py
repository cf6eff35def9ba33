"""Compare the convolution rows of tcbench/engine/accelerators/attained.toml with DeepBench's kernels.

    git clone https://github.com/baidu-research/DeepBench
    uv run python tools/deepbench.py DeepBench/results/train/DeepBench_NV_V100.xlsx V100

Prints for each row the number of kernels, the table's fractions with their error, and the fractions with the least
error. The error is the mean of |log(modelled / measured)|. Kernels below 25 us are left out: their times include host
overhead. The rows were fitted to the V100's sheet; the T4's shows how well they hold on another card.
"""

import argparse
import itertools
import math
import statistics
import zipfile
from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

from tcbench.engine.accelerators.attained import convolution_bounds_s, filter_of, timing_model
from tcbench.engine.work import Conv2d, ConvDgrad, ConvFprop, ConvWgrad, DType, Layout
from tcbench.hardware import gpus

LEAST_S = 25e-6
LEAST_CHANNELS = 16
"""The fewest channels compared. Today fewer are padded or get special kernels; cuDNN 7.6.2 did neither in fp16."""
WORKS = (("fprop", ConvFprop), ("dgrad", ConvDgrad), ("wgrad", ConvWgrad))
SHEETS: tuple[tuple[str, str, DType, Layout], ...] = (
    ("FP32", "fp32", "float32", "NCHW"),
    ("Mixed", "fp16", "float16", "NHWC"),
)
ARITHMETIC = [step / 100 for step in range(16, 200, 2)]
MEMORY = [step / 100 for step in range(40, 96, 5)]
SPATIAL_MEMORY = [0.9]
"""A fixed value, because hardly any kernel with a larger filter is memory-bound."""
NS = {"m": "http://schemas.openxmlformats.org/spreadsheetml/2006/main"}

Kernel = tuple[float, float, float]
"""Times in seconds: the bound by arithmetic, the bound by memory traffic, and the measured time."""


def sheets(path: Path) -> Iterator[tuple[str, list[list[str]]]]:
    """Yield the name and the rows of each sheet of a workbook, without empty cells."""
    book = zipfile.ZipFile(path)

    def tree(name: str) -> ElementTree.Element:
        return ElementTree.fromstring(book.read(f"xl/{name}.xml"))

    shared = ["".join(text.itertext()) for text in tree("sharedStrings").findall("m:si", NS)]
    for i, sheet in enumerate(tree("workbook").iterfind("m:sheets/m:sheet", NS), 1):
        rows = []
        for row in tree(f"worksheets/sheet{i}").iter(f"{{{NS['m']}}}row"):
            cells = [(cell.get("t"), cell.findtext("m:v", None, NS)) for cell in row]
            rows.append([shared[int(value)] if kind == "s" else value for kind, value in cells if value is not None])
        yield str(sheet.get("name")), rows


def convolutions(rows: list[list[str]], dtype: DType, layout: Layout) -> Iterator[tuple[Conv2d, list[float | None]]]:
    """Yield each convolution with its times in seconds of fprop, dgrad and wgrad; None if not measured."""
    begin = next(i for i, row in enumerate(rows) if "Forward (msec)" in row)
    for row in itertools.takewhile(lambda row: len(row) > 14, rows[begin + 1 :]):
        w, h, c, n, k, s, r, pad_w, pad_h, stride_w, stride_h = (int(float(value)) for value in row[1:12])
        if pad_w == pad_h and stride_w == stride_h:
            times_s = [None if value.startswith("N/A") else float(value) * 1e-3 for value in row[12:15]]
            yield Conv2d(n, c, h, w, k, r, s, stride_h, pad_h, layout, dtype), times_s


def kernels(path: Path, card: gpus.GpuFile) -> dict[tuple[str, str, str], list[Kernel]]:
    """Return DeepBench's kernels by kind, filter and precision, like the table's rows."""
    by_row: dict[tuple[str, str, str], list[Kernel]] = {}
    for (name, rows), (says, precision, dtype, layout) in itertools.product(sheets(path), SHEETS):
        if says not in name:
            continue
        for conv, times_s in convolutions(rows, dtype, layout):
            usual = (conv.r, conv.s) in ((1, 1), (3, 3)) and conv.pad == conv.r // 2
            strided = (conv.r, conv.s) == (5, 5) and conv.stride > 1
            if conv.c < LEAST_CHANNELS or not (usual or strided):
                continue
            for (kind, work), time_s in zip(WORKS, times_s, strict=True):
                if time_s is not None and time_s > LEAST_S:
                    bounds_s = convolution_bounds_s(kind, work(conv), card)
                    by_row.setdefault((kind, filter_of(conv), precision), []).append((*bounds_s, time_s))
    return by_row


def error(measured: list[Kernel], arithmetic: float, memory: float, latency_s: float) -> float:
    """Return the mean |log(modelled / measured)| for these fractions."""
    return statistics.mean(
        abs(math.log((max(a / arithmetic, m / memory) + latency_s) / time_s)) for a, m, time_s in measured
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sheet", type=Path, help="DeepBench_NV_V100.xlsx or another of its training sheets")
    parser.add_argument("card", help="the GPU that was measured, by its name in tcbench")
    arguments = parser.parse_args()
    card = gpus.load(arguments.card)
    fractions_of_card = timing_model(card)
    print(f"{'kind':6} {'filter':17} {'':4} kernels   table's fractions: error   best: error")
    for (kind, shape, precision), measured in sorted(kernels(arguments.sheet, card).items(), key=lambda item: item[0]):
        by_table = fractions_of_card.convolutions[kind, shape, "fp32" if precision == "fp32" else "fp16"]
        latency_s = fractions_of_card.convolution_s
        best = min(
            itertools.product(ARITHMETIC, SPATIAL_MEMORY if "spatial" in shape else MEMORY),
            key=lambda fractions: error(measured, *fractions, latency_s),
        )
        print(
            f"{kind:6} {shape:17} {precision} {len(measured):7}   {by_table[0]:.2f} {by_table[1]:.2f}: "
            f"{error(measured, *by_table, latency_s):.2f}"
            f"             {best[0]:.2f} {best[1]:.2f}: {error(measured, *best, latency_s):.2f}"
        )


if __name__ == "__main__":
    main()
