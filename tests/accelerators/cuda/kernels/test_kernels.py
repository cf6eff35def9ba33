"""Every kernel, compiled as C++, does what the reference does, and writes nothing else."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from accelerators.cuda.kernels.cases import PARAMETERS, Array, Arrays, Case, Guarded, all_cases, check, inputs, run
from accelerators.cuda.kernels.on_cpu import CpuKernels, compiler

from tcbench import work as w
from tcbench.accelerators.cuda.kernels.launches import launch_of

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++20 compiler (g++ or clang++) on this machine")

CASES = all_cases()


@pytest.fixture(scope="module")
def kernels(tmp_path_factory: Any) -> CpuKernels:
    modules = {(launch.source, launch.defines) for launch in (case.launch for case in CASES)}
    return CpuKernels(modules, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("case", CASES, ids=[case.id for case in CASES])
def test_kernel_equals_reference(case: Case, kernels: CpuKernels) -> None:
    given = inputs(case)
    check(case, given, run_on_cpu(case, given, kernels))


def run_on_cpu(case: Case, given: Arrays, kernels: CpuKernels) -> Arrays:
    def launch(*placed: Guarded) -> None:
        kernels.launch(case.work, case.launch, *(memory.address for memory in placed))

    return run(case, given, Guarded, launch)


def test_float16_weights_are_the_rounded_master_weights(kernels: CpuKernels) -> None:
    case = Case(w.BatchedUpdate(PARAMETERS, 0.1, 0.9, 1e-4, dynamic=False), special=True)
    found = run_on_cpu(case, inputs(case), kernels)
    places = zip(PARAMETERS.sizes, PARAMETERS.places, strict=True)
    masters = [found["master"][place : place + size] for size, place in places]
    for index, (master, half) in enumerate(zip(masters, PARAMETERS.halves, strict=True)):
        if half:
            np.testing.assert_array_equal(found[f"half{index}"], master.astype("float16"))


@pytest.mark.parametrize("half", [False, True])
def test_all_parameters_at_once_are_updated_as_one_at_a_time_bit_for_bit(half: bool, kernels: CpuKernels) -> None:
    size = w.CHUNK + 99
    case = Case(w.BatchedUpdate(w.Parameters((size,), (half,)), 0.1, 0.9, 1e-4, dynamic=False), state=(1, 0, 0, 0))
    given = inputs(case)
    at_once = run_on_cpu(case, given, kernels)

    def step(work: w.Work, *arrays: Array) -> None:
        kernels.launch(work, launch_of(work), *(int(array.ctypes.data) for array in arrays))

    gradient, single = given["gradient0"].copy(), np.empty(size, "float32")
    master, velocity, weights = given["master"].copy(), given["velocity"].copy(), np.empty(size, "float16")
    step(w.Unscale(size, "float16" if half else "float32"), gradient, gradient, given["state"].copy())
    if half:
        step(w.ToSingle(size), gradient, single)
    else:
        single = gradient
    step(w.WeightDecay(size, 1e-4), single, master)
    step(w.MomentumUpdate(size, 0.1, 0.9), single, velocity, master)
    step(w.ToHalf(size), master, weights)
    np.testing.assert_array_equal(at_once["master"], master)
    np.testing.assert_array_equal(at_once["velocity"], velocity)
    if half:
        np.testing.assert_array_equal(at_once["half0"], weights)


def test_float16_of_the_stand_in_is_ieee(kernels: CpuKernels) -> None:
    every_half = np.arange(1 << 16, dtype="uint16")
    values = np.empty(every_half.size, "float32")
    kernels.library.halves_to_floats(*_pointers(every_half, values), ctypes.c_longlong(values.size))
    np.testing.assert_array_equal(values, every_half.view("float16").astype("float32"))

    finite = np.sort(values[np.isfinite(values)])
    between = (finite[:-1] + finite[1:]) / 2
    near = [np.nextafter(between, side, dtype="float32") for side in (-np.inf, np.inf)]
    random = np.random.default_rng(0).normal(size=10000).astype("float32") * np.float32(100)
    edges = np.array([65504, 65519.996, 65520, 1e9, -1e9, np.inf, -np.inf, np.nan, 1e-45, 2**-25, -0.0], "float32")
    singles = np.concatenate([values, between, *near, random, edges])
    halves = np.empty(singles.size, "float16")
    kernels.library.floats_to_halves(*_pointers(singles, halves), ctypes.c_longlong(halves.size))
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(halves, singles.astype("float16"))


def _pointers(*arrays: Array) -> list[ctypes.c_void_p]:
    return [ctypes.c_void_p(array.ctypes.data) for array in arrays]


def test_every_kernel_is_tried() -> None:
    tried = {type(case.work) for case in CASES}
    assert tried == {kind for kind in _kinds(w.Work) if kind.kind == "kernel"}


def _kinds(kind: type[w.Work]) -> list[type[w.Work]]:
    ours = [subclass for subclass in kind.__subclasses__() if subclass.__module__.startswith(w.__name__)]
    inner = [leaf for subclass in ours for leaf in _kinds(subclass)]
    return [*([kind] if "name" in vars(kind) else []), *inner]
