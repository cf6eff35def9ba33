"""Every kernel, compiled as C++, does what the reference does, and writes nothing else."""

from typing import Any

import numpy as np
import pytest
from engine.accelerators.cuda.kernels import cases
from engine.accelerators.cuda.kernels.cases import Case
from engine.accelerators.cuda.kernels.on_cpu import CpuKernels, compiler

from tcbench.engine import work as w
from tcbench.engine.accelerators.cuda.kernels.launches import launch_of

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++20 compiler (g++ or clang++) on this machine")

CASES = cases.all_cases()


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: Any) -> CpuKernels:
    modules = {(launch.source, launch.defines) for launch in (case.launch for case in CASES)}
    return CpuKernels(modules, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_kernel_equals_reference(case: Case, kernels: CpuKernels) -> None:
    arrays = cases.inputs(case)
    cases.check(case, arrays, run_on_cpu(case, arrays, kernels))


def run_on_cpu(case: Case, arrays: cases.Arrays, kernels: CpuKernels) -> cases.Arrays:
    def launch(*placed: cases.Guarded) -> None:
        kernels.launch(case.work, case.launch, *(memory.address for memory in placed))

    return cases.run(case, arrays, cases.Guarded, launch)


@pytest.mark.parametrize("half", [None, *w.HALVES])
def test_all_parameters_at_once_are_updated_as_one_at_a_time_bit_for_bit(
    half: w.Half | None, kernels: CpuKernels
) -> None:
    size = w.CHUNK + 99
    parameters = w.Parameters((size,), (half is not None,), half or "float16")
    case = Case(w.BatchedUpdate(parameters, 0.1, 0.9, 1e-4, dynamic=False), state=(1, 0, 0, 0))
    values = cases.inputs(case)
    at_once = run_on_cpu(case, values, kernels)

    def step(work: w.Work, *arrays: cases.Array) -> None:
        kernels.launch(work, launch_of(work), *(int(array.ctypes.data) for array in arrays))

    gradient, single = values["gradient0"].copy(), np.empty(size, "float32")
    master, velocity, weights = values["master"].copy(), values["velocity"].copy(), np.empty(size, parameters.half)
    step(w.Unscale(size, half or "float32"), gradient, gradient, values["state"].copy())
    if half:
        step(w.ToSingle(size, half), gradient, single)
    else:
        single = gradient
    step(w.WeightDecay(size, 1e-4), single, master)
    step(w.MomentumUpdate(size, 0.1, 0.9), single, velocity, master)
    step(w.ToHalf(size, parameters.half), master, weights)
    np.testing.assert_array_equal(at_once["master"], master)
    np.testing.assert_array_equal(at_once["velocity"], velocity)
    if half:
        np.testing.assert_array_equal(at_once["half0"], weights)


def test_every_kernel_is_tried() -> None:
    tried = {type(case.work) for case in CASES}
    assert tried == {kind for kind in _kinds(w.Work) if kind.kind == "kernel"}


def _kinds(kind: type[w.Work]) -> list[type[w.Work]]:
    works = [subclass for subclass in kind.__subclasses__() if subclass.__module__.startswith(w.__name__)]
    inner = [leaf for subclass in works for leaf in _kinds(subclass)]
    return [*([kind] if "roles" in vars(kind) else []), *inner]
