"""The processor computes in every dtype what it computes in float64, but for rounding: see `test_operations.py` for the
rest. Here are the works on which oneDNN is tried too."""

import itertools
from collections.abc import Iterable, Iterator

import numpy as np
import pytest
from engine.accelerators.cuda.kernels.cases import Case, all_cases, check_on, inputs, run_on
from gpu import check_against_reference

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
from tcbench.engine.accelerators.cpu.reference import operands
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator

KINDS = {
    kind for kind in vars(w).values() if isinstance(kind, type) and issubclass(kind, w.Work) and hasattr(kind, "roles")
}
LAYOUTS: tuple[w.Layout, ...] = ("NCHW", "NHWC")
DTYPES: tuple[w.DType, ...] = ("float16", "bfloat16", "float32")

OF_GPUS = {w.BeginInverse, w.EndInverse}
"""Kernels around a call of cuSOLVER's. LAPACK needs none."""
CASES = [case for case in all_cases() if case.grid is None and type(case.work) not in OF_GPUS]  # a grid is a GPU's


@pytest.fixture
def processor() -> Iterator[NumpyAccelerator]:
    accelerator = NumpyAccelerator(threads=2)
    with accelerator.enter():
        yield accelerator


def test_it_does_every_kind_of_work_but_calls_of_cudnns_and_kernels_around_them() -> None:
    assert set(operands.OPERATIONS) == {kind for kind in KINDS if kind.kind != "call"} - OF_GPUS


@pytest.mark.long
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_only_rounding_differs_from_float64_with_special_values(case: Case, processor: NumpyAccelerator) -> None:
    check_on(processor, case)


CONVOLUTIONS = {
    "1x1": (2, 24, 7, 9, 40, 1, 1, 0),
    "1x1-strided": (3, 16, 8, 6, 70, 1, 2, 0),
    "1x1-blocks": (2, 8, 40, 44, 8, 1, 1, 0),
    "3x3": (2, 16, 9, 8, 70, 3, 1, 1),
    "3x3-flipped": (2, 8, 30, 31, 16, 3, 1, 1),
    "3x3-strided": (3, 12, 9, 10, 33, 3, 2, 1),
    "3x3-no-pad": (1, 5, 6, 7, 3, 3, 1, 0),
    "3x3-pad-2": (2, 5, 6, 7, 9, 3, 1, 2),
    "2x2-gaps": (2, 5, 8, 10, 9, 2, 3, 0),
    "7x7-stem": (2, 3, 33, 32, 64, 7, 2, 3),
    "linear": (9, 64, 1, 1, 10, 1, 1, 0),
}
"""n, c, h, w, k, the filter's side, stride, padding."""


def by_pairs(names: Iterable[str]) -> Iterator[tuple[str, w.Layout, w.DType]]:
    """Each dtype, and each layout, with each of the names and with each other."""
    for (place, name), (number, dtype) in itertools.product(enumerate(names), enumerate(DTYPES)):
        yield name, LAYOUTS[(place + number) % 2], dtype


def convolutions() -> Iterator[object]:
    for name, layout, dtype in by_pairs(CONVOLUTIONS):
        n, c, h, width, k, side, stride, pad = CONVOLUTIONS[name]
        conv = w.Conv2d(n, c, h, width, k, side, side, stride, pad, layout, dtype)
        for kind in (w.ConvFprop, w.ConvFpropStats, w.ConvDgrad, w.ConvDgradAdd, w.ConvWgrad):
            yield pytest.param(kind(conv), id=f"{kind.name}-{name}-{layout}-{dtype}")


NORMS = {"planes": (3, 10, 9, 11), "short-planes": (2, 24, 4, 6), "rows": (4, 6, 16, 17), "one-channel": (5, 1, 3, 2)}


def norms() -> Iterator[object]:
    for name, layout, dtype in by_pairs(NORMS):
        for after in ("none", "relu", "add_relu"):
            norm = w.Norm(*NORMS[name], layout, dtype, after)  # type: ignore[arg-type]
            for work in (w.BatchNormForward(norm, 2e-5, 0.1), w.BatchNormBackward(norm)):
                yield pytest.param(work, id=f"{work.name}-{name}-{after}-{layout}-{dtype}")


SAMPLES = {"one": (1, 1), "a-block": (7, 300), "blocks": (530, 40)}
"""Size and samples of a factor; more than 256 rows are several blocks."""


def factors() -> Iterator[object]:
    for name, layout, dtype in by_pairs(SAMPLES):
        size, samples = SAMPLES[name]
        for decay in (0.0, 0.5):
            work = w.KroneckerFactor(size, samples, layout, dtype, 1 / samples, decay)
            yield pytest.param(work, id=f"{work.name}-{name}-{layout}-{dtype}-{decay}")


@pytest.mark.parametrize("work", [*convolutions(), *norms(), *factors()])
def test_only_rounding_differs_from_float64(work: w.Work, processor: NumpyAccelerator) -> None:
    check_against_reference(processor, work)


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_sum_that_is_no_number_stays_none_behind_relu(dtype: w.DType, processor: NumpyAccelerator) -> None:
    """The processor gives it the sign bit, as a negative number has."""
    a, b = np.array([np.inf, 1, -2], dtype), np.array([-np.inf, 2, 1], dtype)
    with np.errstate(invalid="ignore"):
        processor.launch(w.AddRelu(3, dtype), a, b, a)
    np.testing.assert_array_equal(a.astype(np.float64), [np.nan, 3, 0])


def test_it_captures_no_graphs(processor: NumpyAccelerator) -> None:
    with pytest.raises(NotImplementedError, match="needs a GPU"):
        processor.capture(lambda: None)


def test_a_prepared_launch_is_made_at_each_of_its_calls(processor: NumpyAccelerator) -> None:
    a, b = np.array([[1, 2]], np.float32), np.array([10, 20], np.float32)
    add = processor.prepare(w.Add(2, "float32"), a, b, a)
    assert a.tolist() == [[1, 2]]
    add()
    add()
    assert a.tolist() == [[21, 42]]


@pytest.mark.parametrize("dtype", ["longdouble", "int16"])
def test_a_dtype_that_no_operation_is_written_for_is_refused(dtype: str, processor: NumpyAccelerator) -> None:
    x = np.ones(3, dtype)
    with pytest.raises(ValueError, match=f"cannot compute in {x.dtype}: expected float16, bfloat16, float32 or"):
        processor.launch(w.Relu(3, dtype), x, x)  # type: ignore[arg-type]


SIZES = (3, operands.CHUNK + 5, 64, 2 * operands.CHUNK, 0, 1000)
PARAMETERS = w.Parameters(SIZES, tuple(i % 2 == 0 for i in range(len(SIZES))))
ONEDNN = pytest.param(
    OneDnnAccelerator, marks=pytest.mark.skipif(library.problem() is not None, reason=f"{library.problem()}")
)


@pytest.mark.parametrize("accelerator", [NumpyAccelerator, ONEDNN])
@pytest.mark.parametrize("special", [False, True])
@pytest.mark.parametrize(
    "work",
    [
        w.BatchedUpdate(PARAMETERS, 0.1, 0.9, 1e-4, False),
        w.CheckFinite(PARAMETERS),
        w.PackGradients(PARAMETERS, "float16", 0.5),
    ],
    ids=lambda work: work.name,
)
def test_threads_change_no_bit_of_an_update(work: w.Work, special: bool, accelerator: type[NumpyAccelerator]) -> None:
    case = Case(work, special=special, state=(8, 2, 0, 0))
    inputs_of_case, results = inputs(case), []
    for threads in (1, 2, 3, 4):
        processor = accelerator(threads)
        with processor.enter():
            results.append(run_on(processor, case, inputs_of_case))
    if "state" in inputs_of_case:
        assert (results[0]["state"][w.OVERFLOWS] > 2) == special
    for result in results[1:]:
        for name, array in result.items():
            np.testing.assert_array_equal(array.view("uint8"), results[0][name].view("uint8"), name)
