"""An update is the same to the bit on any number of threads, and counts the same overflows."""

import numpy as np
import pytest
from engine.accelerators.cuda.kernels.cases import Case, inputs, run_on

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
from tcbench.engine.accelerators.cpu.reference import update
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator

SIZES = (3, update.BLOCK + 5, 64, 2 * update.BLOCK, update._SMALL, update._SMALL + 1, 0, 1000)
"""With a small rest, none, and on both sides of what is small."""
PARAMETERS = w.Parameters(SIZES, tuple(i % 2 == 0 for i in range(len(SIZES))))
ONEDNN = pytest.param(
    OneDnnAccelerator, marks=pytest.mark.skipif(library.problem() is not None, reason=f"{library.problem()}")
)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
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
def test_threads_change_no_bit(work: w.Work, special: bool, accelerator: type[NumpyAccelerator]) -> None:
    case = Case(work, special=special, state=(8, 2, 0, 0))
    given, results = inputs(case), []
    for threads in (1, 2, 3, 4):
        processor = accelerator(threads)
        with processor.enter():
            results.append(run_on(processor, case, given))
    if "state" in given:
        assert (results[0]["state"][w.OVERFLOWS] > 2) == special
    for result in results[1:]:
        for name, array in result.items():
            np.testing.assert_array_equal(array.view("uint8"), results[0][name].view("uint8"), name)


@pytest.mark.parametrize(
    "parameters", [PARAMETERS, w.Parameters((8, 9), (True, False)), w.Parameters((1 << 18,), (True,))]
)
def test_blocks_cover_every_parameter_once(parameters: w.Parameters) -> None:
    met = np.zeros(sum(parameters.sizes) + 64 * len(parameters.sizes), int)
    for chunk in update._blocks(parameters):
        for index, begin, end, place in chunk:
            assert place - begin == parameters.places[index]
            met[place : place + end - begin] += 1
    for size, place in zip(parameters.sizes, parameters.places, strict=True):
        assert (met[place : place + size] == 1).all()
    assert met.sum() == sum(parameters.sizes)


def test_values_whose_squares_overflow_are_looked_at_one_by_one_without_a_warning() -> None:
    assert not update._surely_finite(np.full(8, 1e30, np.float32))
