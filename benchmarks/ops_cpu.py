"""Times the ops on the CPU against stock Chainer's functions, for shapes of ResNet-50. Run it on an idle machine.

    uv run python benchmarks/ops_cpu.py [--image-size 64] [--batch-size 16] [--repeats 7] [--dtype float32]

Per op and shape: the median time of forward and backward together, in ms, of stock Chainer (NCHW, float32) and of ours
in both layouts, measured in turn so that drift hits all alike; and how many times faster than stock ours is.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.device import kind_of
from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.hardware import machine

F = chainer.functions
LAYOUTS = ("NCHW", "NHWC")
Run = Callable[[], Any]


def array(rng: np.random.Generator, shape: tuple[int, ...], layout: str, dtype: str) -> np.ndarray:
    """Normal numbers; `shape` in NCHW order."""
    values = rng.standard_normal(shape)
    if layout == "NHWC" and len(shape) == 4:
        values = values.transpose(0, 2, 3, 1)
    return np.ascontiguousarray(values, dtype=dtype)


def both_ways(function: Callable[..., Any], inputs: list[np.ndarray]) -> Run:
    """Forward, and backward to every input."""
    variables = [chainer.Variable(x) for x in inputs]
    gy = np.ones_like(function(*variables).array)

    def run() -> None:
        y = function(*variables)
        y.grad = gy
        for variable in variables:
            variable.cleargrad()
        y.backward()

    return run


def cases(n: int, size: int, dtype: str) -> Iterator[tuple[str, dict[str, Run]]]:
    rng = np.random.default_rng(0)
    for stage, width in enumerate((64, 128, 256, 512)):
        side = size // 4 >> stage
        for kernel, c, k in ((1, width, 4 * width), (3, width, width), (1, 4 * width, width)):
            shapes = [(n, c, side, side), (k, c, kernel, kernel)]
            pad = kernel // 2
            stock = [array(rng, shape, "NCHW", "float32") for shape in shapes]
            runs = {"stock": both_ways(lambda x, w, pad=pad: F.convolution_2d(x, w, pad=pad), stock)}
            for layout in LAYOUTS:
                runs[layout] = both_ways(
                    lambda x, w, pad=pad, layout=layout: ops.convolution_2d(x, w, stride=1, pad=pad, layout=layout),
                    [array(rng, shape, layout, dtype) for shape in shapes],
                )
            yield f"conv {kernel}x{kernel} {c:4}->{k:4} @{side}", runs
        yield f"bn+relu     {4 * width:10} @{side}", norm_runs(rng, (n, 4 * width, side, side), dtype, residual=False)
        yield f"bn+add+relu {4 * width:10} @{side}", norm_runs(rng, (n, 4 * width, side, side), dtype, residual=True)
    yield f"max pool 3x3 s2     64 @{size // 2}", pool_runs(rng, (n, 64, size // 2, size // 2), dtype)


def norm_runs(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, residual: bool) -> dict[str, Run]:
    c = shape[1]
    scalars = [np.ones(c, np.float32), np.zeros(c, np.float32)]
    running = ops.RunningStatistics(np.zeros(c, np.float32), np.ones(c, np.float32))

    def stock(x: Any, gamma: Any, beta: Any, *more: Any) -> Any:
        h = F.batch_normalization(x, gamma, beta, running_mean=running.mean, running_var=running.var)
        return F.relu(h + more[0] if more else h)

    def inputs(layout: str, dtype: str) -> list[np.ndarray]:
        more = [array(rng, shape, layout, dtype)] if residual else []
        return [array(rng, shape, layout, dtype), *scalars, *more]

    def fused(x: Any, gamma: Any, beta: Any, *more: Any, layout: Any) -> Any:
        return ops.batch_norm(x, gamma, beta, running, layout=layout, relu=True, residual=more[0] if more else None)

    runs = {"stock": both_ways(stock, inputs("NCHW", "float32"))}
    for layout in LAYOUTS:
        runs[layout] = both_ways(lambda *args, layout=layout: fused(*args, layout=layout), inputs(layout, dtype))
    return runs


def pool_runs(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> dict[str, Run]:
    stock = [array(rng, shape, "NCHW", "float32")]
    runs = {"stock": both_ways(lambda x: F.max_pooling_2d(x, 3, 2, 1, cover_all=False), stock)}
    for layout in LAYOUTS:
        runs[layout] = both_ways(
            lambda x, layout=layout: ops.max_pooling_2d(x, ksize=3, stride=2, pad=1, layout=layout),
            [array(rng, shape, layout, dtype)],
        )
    return runs


def medians_ms(runs: dict[str, Run], repeats: int) -> dict[str, float]:
    times: dict[str, list[float]] = {name: [] for name in runs}
    for repeat in range(repeats + 1):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            if repeat:  # the first is warm-up
                times[name].append(time.perf_counter() - start)
    return {name: 1e3 * statistics.median(values) for name, values in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--dtype", choices=["float32", "float16"], default="float32")
    args = parser.parse_args()
    threads = machine.usable_cpus()
    site = kind_of("cpu").open("cpu", CudnnSettings(), threads)
    print(f"batch size {args.batch_size}, images {args.image_size}^2, ours in {args.dtype}, {threads} threads")
    print(f"{'forward + backward, ms':28} {'stock':>8} {'NCHW':>8} {'':6} {'NHWC':>8}")
    with site.scope():
        measure(args)


def measure(args: argparse.Namespace) -> None:
    for name, runs in cases(args.batch_size, args.image_size, args.dtype):
        ms = medians_ms(runs, args.repeats)
        columns = "".join(f" {ms[layout]:8.2f} {ms['stock'] / ms[layout]:5.2f}x" for layout in LAYOUTS)
        print(f"{name:28} {ms['stock']:8.2f}{columns}", flush=True)


if __name__ == "__main__":
    main()
