"""16-bit operations on CPUs without vectorised conversions equal those in float32 between conversions."""

import numpy as np
import pytest
from engine.accelerators.cpu.reference.test_accelerator import CASES, convolutions, norms
from engine.accelerators.cuda.kernels.cases import Case, check_on
from gpu import check_against_reference

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.onednn import batch_norm, tuning, update, widened
from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
from tcbench.engine.accelerators.cpu.onednn.library import Engine

HALVES = ("float16", "bfloat16")
LARGER = [case for case in (*convolutions(), *norms()) if any(half in case.values[0].key for half in HALVES)]
SMALL = list({case.work.name: case for case in CASES if not case.special and "float16" in case.work.key}.values())


@pytest.fixture(autouse=True)
def vectors_of_float32_alone(fresh_engine: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Engine, "converts", lambda engine, dtype: dtype == "float32")


@pytest.mark.parametrize("work", LARGER)
def test_it_does_what_the_reference_does(work: w.Work, processor: OneDnnAccelerator) -> None:
    check_against_reference(processor, work)
    norm = getattr(work, "norm", None)
    in_c = norm is not None and norm.layout == "NHWC" and norm.c % 16 == 0 and batch_norm._compiled() is not None
    for plan in processor.plans():
        if in_c:
            assert plan.plan == "C, two passes"
        else:
            assert plan.plan == tuning.NUMPY or plan.plan.startswith("converted, ")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", SMALL, ids=[case.id for case in SMALL])
def test_so_does_what_goes_over_every_value(case: Case, processor: OneDnnAccelerator) -> None:
    check_on(processor, case)


@pytest.mark.parametrize("half", HALVES)
def test_convolutions_and_sums_are_onednns(half: w.DType, processor: OneDnnAccelerator) -> None:
    conv = w.Conv2d(2, 32, 4, 4, 32, 3, 3, 1, 1, "NHWC", half)
    for work in (w.ConvFprop(conv), w.ConvDgrad(conv), w.ConvWgrad(conv), w.AddRelu(64, half)):
        check_against_reference(processor, work)
    assert all(plan.plan.startswith("converted, ") for plan in processor.plans())


@pytest.mark.parametrize("half", HALVES)
def test_without_a_compiler_numpy_converts(
    half: w.DType, processor: OneDnnAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(update, "_compiled", lambda: None)
    check_against_reference(processor, w.ConvFprop(w.Conv2d(2, 32, 4, 4, 32, 3, 3, 1, 1, "NHWC", half)))
    check_against_reference(processor, w.BatchNormForward(w.Norm(2, 24, 4, 6, "NHWC", half, "relu"), 2e-5, 0.1))


@pytest.mark.parametrize("half", HALVES)
@pytest.mark.parametrize("size", [1, 7, 40_000, 3_000_001])
def test_converted_on_all_threads_is_what_numpy_makes(half: w.DType, size: int, processor: OneDnnAccelerator) -> None:
    singles = np.random.default_rng(0).standard_normal(size).astype(np.float32)
    halves, back = np.empty(size, half), np.empty_like(singles)
    for _ in range(2):  # the second launch is the first one's
        update.cast(processor.engine, singles, halves)
        update.cast(processor.engine, halves, back)
        assert halves.tobytes() == singles.astype(half).tobytes()
        assert back.tobytes() == halves.astype(np.float32).tobytes()


def test_a_work_in_float32_differs_in_nothing_else() -> None:
    conv = w.Conv2d(2, 32, 4, 4, 32, 3, 3, 1, 1, "NHWC", "float16")
    wide = widened.in_float32(w.ConvFprop(conv))
    assert wide == w.ConvFprop(w.Conv2d(2, 32, 4, 4, 32, 3, 3, 1, 1, "NHWC", "float32"))
    assert widened.in_float32(wide) == wide
