"""Plans that other processes built by this GPU's properties, on the GPU itself."""

import pytest
from gpu import accelerator_scope, check_against_reference, present_gpu

from tcbench.core.cache import VARIABLE
from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.cuda.cudnn import plans
from tcbench.engine.accelerators.cuda.kind import KIND
from tcbench.engine.work import BatchNormForward, Norm

pytestmark = pytest.mark.gpu

WORKS = [BatchNormForward(Norm(8, 64, size, size, "NHWC", "float16", "relu"), 2e-5, 0.1) for size in (14, 28)]


def test_the_gpu_takes_them_compiles_nothing_and_computes_the_same(monkeypatch, tmp_path):
    pytest.importorskip("cudnn", exc_type=ImportError)
    gpu = present_gpu()
    if gpu is None or gpu.sm < 80:
        pytest.skip("cuDNN's graphs fuse batch normalisation from compute capability 8.0 on")
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    lines, compiled, build = [], [], plans.Search._build

    def watched(search, place, plan):
        if plan not in search.built:
            compiled.append(plan)
        return build(search, place, plan)

    monkeypatch.setattr(plans.Search, "_build", watched)
    works = [(work, CudnnSettings()) for work in WORKS]
    KIND.build_ahead("cuda:0", lambda gpu: works, lambda *progress: lines.append(progress))
    assert lines[-1][1:] == (2, 2)
    with accelerator_scope(CudnnSettings()) as accelerator:
        for work in WORKS:
            check_against_reference(accelerator, work)
        choices = accelerator.plan_choices()
    assert [(choice.timed, choice.from_cache) for choice in choices] == [(plans.RUNTIME_COMPILED_TIMED, False)] * 2
    assert compiled == []
