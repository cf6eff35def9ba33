"""Helpers of the GPU tests and tools/gpu_smoke.py: the accelerator, every different piece of work of every config, and
the comparison of a piece of work with its reference."""

import contextlib
import functools
import zlib
from collections.abc import Iterator

import factories
import numpy as np
from reference import REFERENCE

from tcbench.core.record import CudnnSettings, Input
from tcbench.engine import work as w
from tcbench.engine.accelerators import protocol as accelerators
from tcbench.engine.accelerators.cuda import driver
from tcbench.engine.backends import backend, trace_cell
from tcbench.engine.work import Work
from tcbench.hardware.gpus import GpuProperties

CONFIGS = (
    *("fp32", "fp32+fused", "fp32+im2col", "fp16+im2col", "fp16+nhwc+im2col", "tf32", "fp32+batched+nhwc+fused"),
    *("fp16", "fp16+fused", "fp16+nhwc", "fp16+batched+nhwc+fused", "fp16+batched+dynamic_scale+nhwc+fused+convstats"),
    *("bf16+fused", "bf16+batched+nhwc+fused"),
)
BATCH_SIZE, IMAGE_SIZE = 8, 64

SPIN = """extern "C" __global__ void spin(long long ns) {
    long long t0, t;
    asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t0));
    do asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t)); while (t - t0 < ns);
}"""
"""A kernel that takes so many nanoseconds."""

CURVATURE = (
    *(
        w.KroneckerFactor(size, samples, layout, dtype, 1 / samples, decay)
        for size, samples in ((147, 200), (64, 1000))
        for layout in ("NCHW", "NHWC")
        for dtype in ("float32", "float16", "bfloat16")
        for decay in (0.0, 0.95)
    ),
    w.DampFactors(576, 64, 0.01),
    *(w.CholeskyInverse(size) for size in (1, 64, 147, 577)),
)
"""K-FAC's, in smaller sizes than a config's."""


@functools.cache
def present_gpu() -> GpuProperties | None:
    """The first GPU of this machine."""
    present = driver.gpus().present
    if not present:
        return None
    gpu = present[0]
    return GpuProperties(gpu.name, 10 * gpu.compute_capability[0] + gpu.compute_capability[1], 1, gpu.memory_bytes)


def runs_here(config: str) -> bool:
    """Whether this machine's GPU has the compute capability that the config's rungs ask for."""
    gpu = present_gpu()
    needs = [backend("chainer").RUNGS[rung].requires.compute_capability for rung in config.split("+")]
    return gpu is not None and all(need is None or 10 * need[0] + need[1] <= gpu.sm for need in needs)


@functools.cache
def all_works() -> tuple[Work, ...]:
    """Every different piece of work that the configs launch on this machine's GPU; none without one."""
    gpu = present_gpu()
    if gpu is None:
        return ()
    works: dict[str, Work] = {}
    for config in filter(runs_here, CONFIGS):
        for fast in (True, False):
            cell = factories.make_cell(
                config,
                BATCH_SIZE,
                image_size=IMAGE_SIZE,
                input=Input(kind="synthetic"),
                cudnn=CudnnSettings(fast_batch_norm=fast),
            )
            works.update({work.key: work for work in trace_cell(cell, gpu).works})
    usable = (work for work in CURVATURE if gpu.sm >= 80 or "bfloat16" not in {o.dtype for o in work.operands})
    return (*works.values(), *usable)


@contextlib.contextmanager
def accelerator_scope(settings: CudnnSettings) -> Iterator[object]:
    """The first GPU, current for operations too."""
    from tcbench.engine.accelerators.cuda.live import CudaAccelerator

    accelerator = CudaAccelerator(0, settings)
    with accelerator.enter(), accelerators.use(accelerator):
        yield accelerator


# -- a piece of work against its reference -------------------------------------------------------------------------

THROUGH_TABLES = (w.BatchedUpdate, w.CheckFinite, w.PackGradients, w.AdjustScale)
"""Work on tables of addresses, which needs more than operands."""

AFTER_FORWARD = {"mask", "reserve"}
"""Operands whose form is cuDNN's own: only the forward work can make them."""

SHARE = {"float64": 1e-12, "float32": 3e-5, "tf32": 4e-3, "float16": 2e-3, "bfloat16": 1.6e-2}
"""Allowed error as a share of the largest value: rounding of the output, and of sums in float32."""


def check_against_reference(accelerator, work: w.Work) -> None:
    """Raises AssertionError where a work is not what its reference says, on random input and poisoned output. The
    input is the same every time: a sum that cancels has few digits, and one in some thousand inputs has such a sum."""
    if not (isinstance(work, w.BatchNormBackward | w.BatchNormCallBackward) and work.norm.relu):
        inputs, expected = _case(work)
        compare(accelerator, work, on_device(accelerator, work, inputs), expected)
        return
    rng = np.random.default_rng(zlib.crc32(work.key.encode()))
    # It needs the mask of a forward work.
    eps, momentum = 2e-5, 0.1
    if isinstance(work, w.BatchNormBackward):
        forward: w.Work = w.BatchNormForward(work.norm, eps, momentum)
    else:
        forward = w.BatchNormCallForward(work.norm, eps, momentum, work.persistent)
    inputs = random_inputs(forward, rng)
    host, device = on_host(forward, inputs), on_device(accelerator, forward, inputs)
    compare(accelerator, forward, device, host)

    # Where y is so near 0 that rounding decides its sign, both gradients are right: keep the gradient out of it.
    gy = rng.standard_normal(work.norm.shape).astype(work.norm.dtype)
    gy[np.abs(host["y"].reshape(gy.shape).astype(np.float64)) < 1e-2] = 0
    names = {operand.name for operand in work.operands if operand.role == "in"} - {"gy"}
    host_kept = {name: host[name] for name in names}
    device_kept = {name: device[name] for name in names}
    expected = on_host(work, {"gy": gy, **host_kept})
    compare(accelerator, work, on_device(accelerator, work, {"gy": gy}, device_kept.items()), expected)


@functools.lru_cache(maxsize=3)
def _case(work: w.Work) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Input and what the reference makes of it: kept, as a work that can be done in many ways is compared in each, and
    the reference in float64 takes longer than all of them. Three are a convolution's."""
    inputs = random_inputs(work, np.random.default_rng(zlib.crc32(work.key.encode())))
    return inputs, on_host(work, inputs)


def random_inputs(work: w.Work, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """Values that every operand can have: gradients and activations around 0, variances and scales above it."""
    inputs = {}
    for operand in work.operands:
        if operand.role == "out" or operand.name in AFTER_FORWARD:
            continue
        if operand.name == "t":
            values = rng.integers(0, work.k, operand.shape)
        elif operand.name == "place":
            values = rng.integers(0, work.pool.ksize**2, operand.shape)
        elif operand.name in ("running_var", "inv_std", "gamma", "gloss"):
            values = rng.uniform(0.5, 1.5, operand.shape)
        elif operand.name == "square_sum":
            values = rng.uniform(2.0, 3.0, operand.shape) * work.count
        elif operand.name == "state":
            values = np.array([128.0, 0, 0, 0])
        else:
            values = rng.standard_normal(operand.shape)
        inputs[operand.name] = np.asarray(values).astype(operand.dtype)
    for name in ("x", "a", "g") if isinstance(work, w.CholeskyInverse | w.DampFactors) else ():
        if name in inputs:
            x = inputs[name]
            inputs[name] = (x @ x.T / len(x) + np.eye(len(x))).astype(x.dtype)
    if "info" in inputs:
        inputs["info"][:] = 0
    if "place" in inputs:
        inputs["place"] = _valid_places(work.pool, inputs["place"])
    if "log_p" in inputs:
        logits = inputs["log_p"].astype(np.float64)
        inputs["log_p"] = (logits - np.log(np.exp(logits).sum(1, keepdims=True))).astype(inputs["log_p"].dtype)
    return inputs


def _valid_places(pool: w.Pool, places: np.ndarray) -> np.ndarray:
    """Places that point into the image: those that forward writes."""
    x = np.random.default_rng(3).standard_normal(pool.x_shape).astype(pool.dtype)
    y = np.empty(pool.y_shape, pool.dtype)
    REFERENCE["max_pool_forward"](w.MaxPoolForward(pool), x, y, places)
    return places


def on_host(work: w.Work, inputs: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    arrays = {o.name: inputs[o.name].copy() if o.name in inputs else np.empty(o.shape, o.dtype) for o in work.operands}
    REFERENCE[work.name](work, *arrays.values())
    return arrays


def on_device(accelerator, work: w.Work, inputs: dict[str, np.ndarray], earlier=()) -> dict[str, object]:
    """Device arrays; `kept` are those of an earlier work that this one goes on with."""
    arrays = {}
    for operand in work.operands:
        if operand.name in dict(earlier):
            arrays[operand.name] = dict(earlier)[operand.name]
        elif operand.name in inputs:
            arrays[operand.name] = accelerator.upload(inputs[operand.name])
        else:
            poison = np.full(operand.bytes, 0xFF, np.uint8).view(operand.dtype).reshape(operand.shape)
            arrays[operand.name] = accelerator.upload(poison)
    accelerator.launch(work, *arrays.values())
    return arrays


def compare(accelerator, work: w.Work, device, host) -> None:
    conv = getattr(work, "conv", None)
    kind = "tf32" if conv is not None and conv.math == "tf32" else work.operands[0].dtype
    for operand in work.operands:
        if operand.role == "in" or operand.name in AFTER_FORWARD:
            continue
        actual = accelerator.download(device[operand.name]).astype(np.float64)
        expected = host[operand.name].astype(np.float64).reshape(actual.shape)
        if isinstance(work, w.KroneckerFactor):
            actual, expected = np.tril(actual), np.tril(expected)  # what stands above is nobody's
        if operand.dtype in ("uint8", "int32"):
            assert np.array_equal(actual, expected), f"{work.label}: {operand.name} is another"
            continue
        assert np.isfinite(actual).all(), f"{work.label}: {operand.name} was not written everywhere"
        error = np.abs(actual - expected).max() / max(np.abs(expected).max(), 1e-30)
        share = SHARE.get(kind, SHARE["float32"])
        assert error <= share, (
            f"{work.label}: {operand.name} is off by {error:.1e} of its largest value, not {share:.0e}"
        )
