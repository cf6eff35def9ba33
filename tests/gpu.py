"""What the GPU tests share: the accelerator, and every different piece of work of every config."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import factories

from tcbench.backends import backend
from tcbench.backends.cuda import accelerator as accelerators
from tcbench.backends.cuda import driver
from tcbench.backends.cuda.accelerator import GpuProperties
from tcbench.backends.cuda.work import Work
from tcbench.record import CudnnSettings, Input

CONFIGS = (
    "fp32",
    "fp32+fused",
    "tf32",
    "fp32+batched+nhwc+fused",
    "fp16",
    "fp16+fused",
    "fp16+nhwc",
    "fp16+batched+nhwc+fused",
    "fp16+batched+dynamic_scale+nhwc+fused+convstats",
)
BATCH_SIZE, IMAGE_SIZE = 8, 64


@functools.cache
def present_gpu() -> GpuProperties | None:
    """The first GPU of this machine."""
    found = driver.gpus().found
    if not found:
        return None
    gpu = found[0]
    return GpuProperties(gpu.name, 10 * gpu.compute_capability[0] + gpu.compute_capability[1], 1, gpu.memory_bytes)


@functools.cache
def all_works() -> tuple[Work, ...]:
    """Every different piece of work that the configs launch on this machine's GPU; none without one."""
    gpu = present_gpu()
    if gpu is None:
        return ()
    works: dict[str, Work] = {}
    for config in CONFIGS:
        if any(
            gpu.sm < 10 * need[0] + need[1]
            for need in (backend("chainer").RUNGS[rung].requires.compute_capability for rung in config.split("+"))
            if need
        ):
            continue
        for fast in (True, False):
            cell = factories.make_cell(
                config,
                BATCH_SIZE,
                image_size=IMAGE_SIZE,
                input=Input(kind="synthetic"),
                cudnn=CudnnSettings(fast_batch_norm=fast),
            )
            works.update({work.key: work for work in backend("chainer").trace(cell, gpu).works})
    return tuple(works.values())


@contextlib.contextmanager
def accelerator_scope(settings: CudnnSettings) -> Iterator[object]:
    """The first GPU, current for operations too."""
    from tcbench.backends.cuda.live import CudaAccelerator

    accelerator = CudaAccelerator(0, settings)
    with accelerator.enter(), accelerators.use(accelerator):
        yield accelerator
