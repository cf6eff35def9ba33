"""Plans that other processes built by this GPU's properties, on the GPU itself."""

import pytest
from gpu import accelerator_scope, check_against_reference

from tcbench.core.cache import VARIABLE
from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.cuda.cudnn import plans
from tcbench.engine.accelerators.cuda.kind import KIND
from tcbench.engine.work import BatchNormForward, Norm

pytestmark = pytest.mark.gpu

WORK = BatchNormForward(Norm(8, 64, 14, 14, "NHWC", "float16", "relu"), 2e-5, 0.1)


def test_the_gpu_takes_them_and_they_compute_what_its_own_do(monkeypatch, tmp_path):
    pytest.importorskip("cudnn", exc_type=ImportError)
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    said = []
    KIND.build_ahead("cuda:0", lambda gpu: [(WORK, CudnnSettings())], lambda *progress: said.append(progress))
    assert said[-1][1:] == (1, 1)
    [entry] = plans.built_cache().root.glob("*.plan")
    built = entry.stat().st_size
    with accelerator_scope(CudnnSettings()) as accelerator:
        check_against_reference(accelerator, WORK)
        [choice] = accelerator.plan_choices()
    assert (choice.timed, choice.from_cache) == (plans.RUNTIME_COMPILED_TIMED, False)
    assert entry.stat().st_size < built / 10  # they served
