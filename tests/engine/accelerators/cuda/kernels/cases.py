"""Test cases for every kernel: work, random input, alignment of its arrays, and the reference's results.

The same cases run on the CPU (test_kernels.py) and on a GPU (test_gpu_kernels.py).
"""

import dataclasses
import itertools
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from reference import REFERENCE

from tcbench.engine import work as w
from tcbench.engine.accelerators.cuda.kernels.launches import KernelLaunch, launch_of

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]

EXACT = {"relu", "relu_backward", "add", "add_relu", "to_single", "to_half", "max_pool_forward", "unscale"}
EXACT |= {"put_columns", "take_columns", "check_finite", "adjust_scale", "im2col", "pack_gradients"}
EXACT |= {"begin_inverse", "end_inverse"}


@dataclass(frozen=True)
class Case:
    """`odd`: arrays start one value past a multiple of 16 bytes. `special`: NaN and infinities among the values.
    `grid`: fewer blocks than the launch has. `state`: the loss scale's."""

    work: w.Work
    odd: bool = False
    special: bool = False
    grid: int | None = None
    state: tuple[float, ...] = (1024, 0, 0, 0)
    label: str = ""

    @property
    def id(self) -> str:
        fields = dataclasses.asdict(self.work)
        sizes = "-".join(str(value) for value in _leaves(fields))[:80]
        marks = [mark for mark, on in (("odd", self.odd), ("special", self.special), ("striding", self.grid)) if on]
        return "-".join([self.work.name, sizes, *marks, *filter(None, [self.label])])

    @property
    def launch(self) -> KernelLaunch:
        launch = launch_of(self.work)
        return dataclasses.replace(launch, grid=(self.grid, 1, 1)) if self.grid else launch


def _leaves(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        for inner in value.values():
            yield from _leaves(inner)
    elif isinstance(value, (tuple, list)):
        yield f"{len(value)}parameters" if value and isinstance(value[0], int) else "mixed"
    else:
        yield value


# -- the cases -------------------------------------------------------------------------------------------------------

DTYPES: tuple[w.DType, ...] = (*w.HALVES, "float32")
LAYOUTS: tuple[w.Layout, ...] = ("NCHW", "NHWC")


def all_cases() -> list[Case]:
    layers = [*elementwise(), *batch_norm(), *lowering(), *pooling(), *biases(), *remaining_layers(), *loss()]
    return [*layers, *update(), *curvature()]


def elementwise() -> Iterator[Case]:
    for kind, dtype in itertools.product((w.Relu, w.ReluBackward, w.Add, w.AddRelu), DTYPES):
        yield from (Case(kind(size, dtype)) for size in (1, 8, 4099))
        yield Case(kind(1000, dtype), odd=True)
        yield Case(kind(515, dtype), special=True)
        yield Case(kind(9001, dtype), grid=2)
    for dtype in DTYPES:
        yield Case(w.Unscale(5, dtype))
        yield Case(w.Unscale(2 * w.CHUNK + 13, dtype), odd=True, state=(8, 3, 0, 0))
        yield Case(w.Unscale(w.CHUNK + 8, dtype), special=True)
        yield Case(w.Unscale(3 * w.CHUNK, dtype), state=(0.25, 0, 0, 0), label="overflowing")
    for single, half in itertools.product((w.ToSingle, w.ToHalf), w.HALVES):
        yield from (Case(single(size, half)) for size in (3, 8, 5003))
        yield Case(single(777, half), odd=True)
        yield Case(single(600, half), special=True)
        yield Case(single(9001, half), grid=2)
    for update in (lambda size: w.WeightDecay(size, 1e-4), lambda size: w.MomentumUpdate(size, 0.1, 0.9)):
        yield from (Case(update(size)) for size in (3, 4, 2501))
        yield Case(update(777), odd=True)
        yield Case(update(600), special=True)
        yield Case(update(9001), grid=2)


def batch_norm() -> Iterator[Case]:
    for c, count in ((1, 1), (64, 3136), (130, 49)):
        yield Case(w.BatchNormFinalize(c, count, 2e-5, 0.1))
    yield Case(w.BatchNormFinalize(40, 6, 2e-5, 0.1), special=True)
    for layout, dtype, after in itertools.product(LAYOUTS, DTYPES, ("none", "relu", "add_relu")):
        yield Case(w.BatchNormApply(w.Norm(2, 16, 7, 8, layout, dtype, after)))
        yield Case(w.BatchNormApply(w.Norm(3, 5, 7, 3, layout, dtype, after)))
    for layout, dtype in itertools.product(LAYOUTS, DTYPES):
        norm = w.Norm(2, 24, 4, 6, layout, dtype, "add_relu")
        yield Case(w.BatchNormApply(norm), odd=True)
        yield Case(w.BatchNormApply(norm), special=True)
        yield Case(w.BatchNormApply(dataclasses.replace(norm, n=9)), grid=1)
    yield Case(w.BatchNormApply(w.Norm(1, 2056, 1, 3, "NHWC", "float16", "relu")), label="more-channels-than-threads")
    yield Case(w.BatchNormApply(w.Norm(1, 2, 51, 41, "NCHW", "float16", "relu")), label="more-pixels-than-threads")


def lowering() -> Iterator[Case]:
    for layout, dtype in itertools.product(LAYOUTS, DTYPES):
        convs = {
            "3x3": w.Conv2d(2, 16, 7, 6, 1, 3, 3, 1, 1, layout, dtype),
            "stem": w.Conv2d(2, 3, 17, 12, 1, 7, 7, 2, 3, layout, dtype),
            "strided": w.Conv2d(1, 8, 8, 9, 1, 3, 3, 2, 1, layout, dtype),
            "gaps": w.Conv2d(2, 5, 8, 7, 1, 1, 1, 2, 0, layout, dtype),
            "oblong": w.Conv2d(1, 24, 5, 40, 1, 2, 3, 1, 2, layout, dtype),
        }
        for kind in (w.Im2col, w.Col2im):
            yield from (Case(kind(conv), label=label) for label, conv in convs.items())
            yield Case(kind(convs["3x3"]), odd=True)
            yield Case(kind(convs["3x3"]), special=True)
            yield Case(kind(convs["3x3"]), grid=3)


def pooling() -> Iterator[Case]:
    for layout, dtype in itertools.product(LAYOUTS, DTYPES):
        resnet = w.Pool(2, 16, 12, 10, 3, 2, 1, layout, dtype)
        pools = {
            "resnet": resnet,
            "odd-channels": w.Pool(2, 5, 9, 7, 3, 2, 1, layout, dtype),
            "no-pad": w.Pool(1, 8, 8, 6, 2, 2, 0, layout, dtype),
            "overlapping": w.Pool(1, 8, 5, 7, 3, 1, 1, layout, dtype),
            "gaps": w.Pool(1, 8, 11, 9, 2, 3, 1, layout, dtype),
            "wide": w.Pool(1, 24, 3, 40, 5, 2, 2, layout, dtype),
            "ceil": w.Pool(1, 8, 8, 10, 3, 2, 0, layout, dtype, ceil=True),
        }
        for kind in (w.MaxPoolForward, w.MaxPoolBackward):
            yield from (Case(kind(pool), label=label) for label, pool in pools.items())
            yield Case(kind(resnet), odd=True)
            yield Case(kind(resnet), special=True)
            yield Case(kind(resnet), grid=3)
        for average in (w.GlobalAverageForward, w.GlobalAverageBackward):
            yield Case(average(3, 16, 7, 7, layout, dtype))
            yield Case(average(2, 5, 3, 2, layout, dtype))
            yield Case(average(2, 24, 5, 5, layout, dtype), odd=True)
            yield Case(average(2, 8, 3, 3, layout, dtype), special=True)
            yield Case(average(5, 40, 2, 3, layout, dtype), grid=2)


def biases() -> Iterator[Case]:
    for dtype in DTYPES:
        for kind in (w.AddBias, w.AddBiasRelu, w.BiasGradient):
            yield Case(kind(3, 10, dtype))
            yield Case(kind(5, 1000, dtype), odd=True)
            yield Case(kind(37, 33, dtype), special=True)
            yield Case(kind(2, 6, dtype, pixels=16))
            yield Case(kind(4, 5, dtype, pixels=9), special=True, odd=True)
        for kind in (w.AddBias, w.AddBiasRelu):
            yield Case(kind(7, 40, dtype), grid=2)
        yield Case(w.BiasGradient(12, 40, dtype, slices=3))
        yield Case(w.BiasGradient(6, 5, dtype, pixels=20, slices=2), special=True)
        yield Case(w.BiasGradient(4, 8, dtype, pixels=7, slices=4), grid=3)


def remaining_layers() -> Iterator[Case]:
    """Concatenation, normalisation across channels, dropout, averages over windows."""
    for dtype in DTYPES:
        for kind in (w.PutColumns, w.TakeColumns):
            yield Case(kind(5, 16, 48, 24, dtype))
            yield Case(kind(3, 7, 20, 13, dtype), special=True)
            yield Case(kind(4, 8, 24, 8, dtype), odd=True)
            yield Case(kind(9, 24, 40, 3, dtype), grid=2)
    for layout, dtype in itertools.product(LAYOUTS, DTYPES):
        for kind in (w.LrnForward, w.LrnBackward):
            yield Case(kind(2, 9, 6, layout, dtype, 5, 2e-1, 0.75, 1.0))
            yield Case(kind(1, 2, 5, layout, dtype, 5, 1e-4, 0.75, 2.0), label="fewer-channels")
            yield Case(kind(2, 8, 4, layout, dtype, 3, 0.5, 0.5, 1.0), odd=True, grid=1)
        for kind in (w.DropoutForward, w.DropoutBackward):
            yield Case(kind(3, 6, 7, layout, dtype, 0.5))
            yield Case(kind(2, 10, 1, layout, dtype, 0.4), odd=True, special=True)
            yield Case(kind(2, 5, 9, layout, dtype, 0.25), grid=1)
        for kind in (w.TiledAverageForward, w.TiledAverageBackward):
            yield Case(kind(2, 8, 6, 3, layout, dtype))
            yield Case(kind(1, 5, 14, 4, layout, dtype), label="overlapping")
            yield Case(kind(2, 16, 2, 7, layout, dtype), label="repeated")
            yield Case(kind(1, 8, 7, 2, layout, dtype), odd=True, special=True)
            yield Case(kind(3, 8, 5, 2, layout, dtype), grid=2)


def loss() -> Iterator[Case]:
    for dtype in DTYPES:
        for kind in (w.SoftmaxCrossEntropyForward, w.SoftmaxCrossEntropyBackward):
            yield Case(kind(3, 10, dtype))
            yield Case(kind(5, 1000, dtype), odd=True)
            yield Case(kind(37, 33, dtype), special=True)
            yield Case(kind(7, 40, dtype), grid=2)
        yield Case(w.SoftmaxCrossEntropyBackward(4, 9, dtype, weight=0.3))
        yield Case(w.SoftmaxCrossEntropyForward(6, 4, dtype), label="labels-out-of-range")
    for n in (1, 64, 1001):
        yield Case(w.MeanLoss(n))
    yield Case(w.MeanLoss(40), special=True)
    yield Case(w.MeanLoss(7, weight=0.3))


PARAMETERS = w.Parameters(
    sizes=(9408, 64, 3, w.CHUNK, 2 * w.CHUNK + 17, 1000, 7), halves=(True, False, True, False, True, False, False)
)
BFLOAT16_PARAMETERS = dataclasses.replace(PARAMETERS, half="bfloat16")


def update() -> Iterator[Case]:
    for parameters, dynamic in itertools.product((PARAMETERS, BFLOAT16_PARAMETERS), (False, True)):
        step = w.BatchedUpdate(parameters, 0.1, 0.9, 1e-4, dynamic)
        yield Case(step, label=f"dynamic-{dynamic}")
        yield Case(step, odd=True, label=f"dynamic-{dynamic}")
        yield Case(step, special=True, state=(8, 2, 0, 0), label=f"dynamic-{dynamic}")
        yield Case(step, special=True, odd=True, label=f"dynamic-{dynamic}-unchecked")
    yield Case(w.BatchedUpdate(PARAMETERS, 0.1, 0.9, 1e-4, True), state=(8, 3, 5, 1), label="overflowed-before")
    yield Case(w.BatchedUpdate(w.Parameters((64, 8), (True, False)), 0.1, 0.9, 0, False), state=(3, 0, 0, 0))
    for parameters in (PARAMETERS, BFLOAT16_PARAMETERS):
        yield Case(w.CheckFinite(parameters), state=(8, 2, 0, 0))
        yield Case(w.CheckFinite(parameters), special=True)
        yield Case(w.CheckFinite(parameters), special=True, odd=True)
    # Gradients that come from the all-reduce's buffer, in one dtype whatever the parameters have.
    for parameters, reduced in itertools.product((PARAMETERS, BFLOAT16_PARAMETERS), ("float32", "half")):
        reduced = parameters.half if reduced == "half" else reduced
        reduced_parameters = dataclasses.replace(parameters, gradients=reduced)
        yield Case(w.BatchedUpdate(reduced_parameters, 0.1, 0.9, 1e-4, False), special=True, label=f"of-{reduced}")
        yield Case(w.BatchedUpdate(reduced_parameters, 0.1, 0.9, 1e-4, False), odd=True, label=f"of-{reduced}")
        yield Case(w.CheckFinite(reduced_parameters), special=True, label=f"of-{reduced}")
        for special, odd in ((False, False), (True, True)):
            yield Case(w.PackGradients(parameters, reduced, 1 / 3), special=special, odd=odd)
    yield Case(w.PackGradients(w.Parameters((100, 64), (False, False)), "float16", 0.5))
    for state in ((1024, 0, 3, 2), (1024, 0, 4, 2), (2**24, 0, 9, 0), (1024, 7, 4, 2), (1, 1, 0, 0), (1.5, 1, 0, 0)):
        yield Case(w.AdjustScale(5), state=state, label="-".join(map(str, state)))


def curvature() -> Iterator[Case]:
    for d, k in ((1, 1), (9, 4)):
        yield Case(w.DampFactors(d, k, 0.01))
    yield Case(w.DampFactors(300, 10, 0.01), grid=8)  # more rows than a block has threads
    yield Case(w.DampFactors(9, 33, 0.01), odd=True)
    yield Case(w.DampFactors(40, 5, 0.01), grid=3)
    yield Case(w.DampFactors(6, 5, 0.01), label="not-positive")
    yield Case(w.DampFactors(40, 5, 0.01), special=True)
    for size in (1, 7, 70):
        yield Case(w.BeginInverse(size))
        yield Case(w.EndInverse(size))
        yield Case(w.EndInverse(size), label="not-positive")
    yield Case(w.BeginInverse(40), grid=1, odd=True)
    yield Case(w.EndInverse(40), grid=1, odd=True, label="not-positive")


# -- input -----------------------------------------------------------------------------------------------------------


def inputs(case: Case) -> Arrays:
    """Every operand by name, those that are written poisoned; of parameters also `gradient0`, `half0` and so on."""
    work, rng = case.work, np.random.default_rng(zlib.crc32(case.id.encode()))
    arrays = {operand.name: _poison(operand.size, operand.dtype) for operand in work.operands}
    for operand in work.operands:
        if operand.role != "out" and operand.dtype in (*w.HALVES, "float32", "float64"):
            arrays[operand.name] = _values(rng, operand.size, operand.dtype, case.special)
    if "t" in arrays:
        low, high = (-2, work.k + 2) if "out-of-range" in case.label else (0, work.k)
        arrays["t"] = rng.integers(low, high, arrays["t"].size).astype("int32")
    if "place" in arrays and isinstance(work, w.MaxPoolBackward):
        arrays["place"] = rng.integers(0, work.pool.ksize**2, arrays["place"].size).astype("uint8")
    if "log_p" in arrays and isinstance(work, w.SoftmaxCrossEntropyBackward):
        arrays["log_p"] = -np.abs(arrays["log_p"])
    if "gloss" in arrays:
        arrays["gloss"][:] = 1024
    if isinstance(work, w.BatchNormFinalize):
        mean, var = arrays["sum"].astype("float64"), rng.uniform(0, 2, work.c)
        arrays["sum"] = (work.count * mean).astype("float32")
        arrays["square_sum"] = (work.count * (var + mean**2)).astype("float32")
        arrays["square_sum"][::7] *= 0.5  # below the mean's square: a variance of 0
    if isinstance(work, w.DampFactors):
        for name, size in (("a", work.d), ("g", work.k)):
            sign = -1 if "not-positive" in case.label and name == "g" else 1
            arrays[name][:: size + 1] = sign * np.abs(arrays[name][:: size + 1])
    if isinstance(work, w.EndInverse):
        arrays["minor"], arrays["info"] = (np.array([value], "int32") for value in (7 * bool(case.label), 3))
    if "state" in arrays:
        arrays["state"] = np.array(case.state, "float32")
    if isinstance(work, (w.BatchedUpdate, w.CheckFinite, w.PackGradients)):
        arrays["chunks"] = np.array(list(work.parameters.chunks()), "int64").reshape(-1)
        for index, (size, half) in enumerate(zip(work.parameters.sizes, work.parameters.halves, strict=True)):
            # A parameter in three overflows, so that some chunks are clean.
            special = case.special and index % 3 == 1
            arrays[f"gradient{index}"] = _values(rng, size, work.parameters.gradient_dtype(half), special)
            if half:
                arrays[f"half{index}"] = _poison(size, work.parameters.half)
    if "counter" in arrays:
        arrays["counter"] = np.array([2**32 - 3, 5], "int64")
    if "kept" in arrays and isinstance(work, w.DropoutBackward):
        arrays["kept"] = rng.integers(0, 2, arrays["kept"].size).astype("uint8")
    if "sums" in arrays and isinstance(work, w.LrnBackward):
        arrays["sums"] = rng.uniform(work.k, 3 * work.k, arrays["sums"].size).astype("float32")
    if "overflowing" in case.label:
        arrays["g"] = np.where(rng.random(arrays["g"].size) < 1e-4, ml_dtypes.finfo(work.dtype).max, arrays["g"])
    return arrays


def _values(rng: np.random.Generator, size: int, dtype: str, special: bool) -> Array:
    values = rng.normal(size=size).astype(dtype)
    values[rng.random(size) < 0.1] = 0
    if special:
        chosen = rng.permutation(size)[: max(1, size // 40)]
        values[chosen] = rng.choice([np.nan, np.inf, -np.inf], chosen.size)
    return values


def _poison(size: int, dtype: str) -> Array:
    return np.full(size * w.ITEM_BYTES[dtype], 0xFD, "uint8").view(dtype)


# -- running ---------------------------------------------------------------------------------------------------------


GUARD_BYTES = 64
GUARD = 0xA7


class Guarded:
    """A copy of an array in memory of its own between two guards, 16-byte aligned or, if `odd`, one value past it."""

    def __init__(self, array: Array, odd: bool) -> None:
        self._memory = np.full(array.nbytes + 3 * GUARD_BYTES, GUARD, "uint8")
        aligned = -self._memory.ctypes.data % 16 + GUARD_BYTES
        begin = aligned + (array.itemsize if odd else 0)
        self._around = np.ones(self._memory.size, bool)
        self._around[begin : begin + array.nbytes] = False
        self.array = self._memory[begin : begin + array.nbytes].view(array.dtype)
        self.array[:] = array

    @property
    def address(self) -> int:
        return int(self.array.ctypes.data)

    def contents(self) -> Array:
        """Return the present contents; fail if anything around them was written."""
        assert (self._memory[self._around] == GUARD).all(), "written out of bounds"
        return self.array


def run(case: Case, arrays: Arrays, place: Callable[[Array, bool], Any], launch: Callable[..., None]) -> Arrays:
    """Return the contents of all arrays after `launch(*placed operands)`."""
    placed = {name: place(array, case.odd) for name, array in arrays.items() if name != "table"}
    if "table" in arrays:
        halves = enumerate(case.work.parameters.halves)  # type: ignore[attr-defined]
        rows = [
            (placed[f"gradient{index}"].address, placed[f"half{index}"].address if half else 0)
            for index, half in halves
        ]
        placed["table"] = place(np.array(rows, "int64").reshape(-1), case.odd)
    launch(*(placed[operand.name] for operand in case.work.operands))
    return {name: memory.contents() for name, memory in placed.items() if name != "table"}


def _on_host(launch: Callable[..., Any], case: Case, arrays: Arrays) -> Arrays:
    return run(case, arrays, Guarded, lambda *placed: launch(case.work, *(memory.array for memory in placed)))


def expected(case: Case, arrays: Arrays) -> Arrays:
    return _on_host(REFERENCE[case.work.name], case, arrays)


def run_on(accelerator: Any, case: Case, arrays: Arrays) -> Arrays:
    """The case on an accelerator whose arrays are NumPy's."""
    return _on_host(accelerator.launch, case, arrays)


def check_on(accelerator: Any, case: Case) -> None:
    arrays = inputs(case)
    check(case, arrays, run_on(accelerator, case, arrays))


def check(case: Case, arrays: Arrays, results: Arrays) -> None:
    """Every array holds what the reference says; those that are only read still hold what they held."""
    reference = expected(case, arrays)
    written = {operand.name for operand in case.work.operands if operand.role != "in"}
    assert results.keys() == reference.keys()
    for name, array in results.items():
        if not (name in written or name.startswith("half")):
            np.testing.assert_array_equal(array.view("uint8"), arrays[name].view("uint8"), f"{name} was written")
        elif case.work.name in EXACT or array.dtype in ("uint8", "int64") or name == "state":
            # In float64 every NaN of bfloat16 is known for one.
            np.testing.assert_array_equal(array.astype("float64"), reference[name].astype("float64"), name)
        else:
            rtol, atol = {"float16": (2e-3, 2e-7), "bfloat16": (1.6e-2, 2e-6)}.get(array.dtype.name, (1e-5, 2e-6))
            np.testing.assert_allclose(
                array.astype("float64"), reference[name].astype("float64"), rtol, atol, equal_nan=True, err_msg=name
            )
