"""Every piece of work that any config launches, on a real GPU, against the float64 references: fresh random input,
poisoned output. The batched updates, which work through tables of addresses, are in kernels/test_gpu_kernels.py and
in the parity tests."""

import pytest
from gpu import THROUGH_TABLES, accelerator_scope, all_works, check_against_reference

from tcbench.core.record import CudnnSettings
from tcbench.engine import work as w

pytestmark = pytest.mark.gpu


@pytest.fixture(scope="module")
def accelerator():
    """The heuristic's first plan for each graph."""
    with accelerator_scope(CudnnSettings(autotune=False)) as accelerator:
        yield accelerator


@pytest.fixture(scope="module")
def tuned():
    """The fastest plan for each graph."""
    with accelerator_scope(CudnnSettings(autotune=True)) as accelerator:
        yield accelerator


WORKS = [work for work in all_works() if not isinstance(work, THROUGH_TABLES)]


@pytest.mark.parametrize("work", WORKS, ids=lambda work: work.label)
def test_work_equals_its_reference(accelerator, work):
    check_against_reference(accelerator, work)


def one_of_each_kind() -> list[w.Work]:
    """Tuning builds and times every plan there is, so a few graphs have to do."""
    kinds = {
        (type(x), x.operands[0].dtype, getattr(getattr(x, "conv", None), "r", None)): x
        for x in WORKS
        if x.kind == "graph" and not isinstance(x, w.BatchNormBackward)
    }
    return list(kinds.values())


@pytest.mark.parametrize("work", one_of_each_kind(), ids=lambda work: work.label)
def test_a_tuned_plan_equals_its_reference(tuned, work):
    check_against_reference(tuned, work)
    choice = tuned.plan_choices()[-1]
    assert choice.work == work.label
    assert choice.from_cache or choice.time_s <= choice.first_time_s
