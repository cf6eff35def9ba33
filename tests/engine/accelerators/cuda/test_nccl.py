"""Sums over ranks through NCCL, on a stand-in for CuPy where every rank has the same numbers as this one."""

import re
import types
from pathlib import Path

import numpy as np
import pytest
import rank_chainer
import training
from fake_cupy import site

from tcbench.core.errors import SelectionError
from tcbench.core.record import CudnnSettings
from tcbench.engine import world
from tcbench.engine.accelerators.cuda import live
from tcbench.engine.accelerators.cuda.cudnn import libraries
from tcbench.engine.backends.chainer import exchange
from tcbench.engine.backends.chainer.compat import chainer

FLAT = "+batched+flat_allreduce"
STEPS = 4


EVERYONE = types.SimpleNamespace(bcast=lambda value: value, allgather=lambda value: [value, value])
"""MPI's communicator of ranks that all do and say what this one does."""
WORLD = world.World(rank=0, size=2, local_rank=0, local_size=2, mpi=EVERYONE)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("config", "sent", "late"),
    [
        (f"fp32{FLAT}", "float32", 0),
        (f"fp32{FLAT}+double_buffering", "float32", 1),
        (f"fp32{FLAT}+overlap", "float32", 0),
        (f"fp16{FLAT}+fp16_allreduce", "float16", 0),
        (f"bf16{FLAT}+fp16_allreduce+overlap", "bfloat16", 0),
        (f"fp16{FLAT}+static_graph", "float32", 0),
        (f"fp16{FLAT}+cuda_graph", "float32", 0),
    ],
)
def test_two_ranks_of_the_same_batches_train_as_one(cupy, monkeypatch, config, sent, late):
    monkeypatch.setattr(exchange, "BUCKET_BYTES", 5_000)
    small = {"geometry": rank_chainer.GEOMETRY, "image_size": rank_chainer.IMAGE_SIZE}
    with world.entered(WORLD), training.small_session(config, site=site(), ranks=2, **small) as session:
        assert session.facts().engine == "ncclAllReduce, NCCL 2.27.3"
        losses = [training.run_step(session) for _ in range(STEPS)]
        after = training.parameters(session)
    alone = config.split("+")[0] + "+batched"
    (expected,), before, reference = rank_chainer.reference(alone, STEPS, 1, sent, late)
    assert losses == pytest.approx(expected, rel=2e-2 if "16" in config else 2e-6)
    assert rank_chainer.ranks.distance(after, reference, before) < (0.3 if "16" in config else 2e-4)


def test_what_has_begun_is_not_seen_before_it_is_waited_for(cupy):
    accelerator = live.CudaAccelerator(0, CudnnSettings())
    with accelerator.enter():
        reducer = accelerator.reducer(WORLD)
        array = accelerator.upload(np.ones(3, np.float32))
        wait = reducer.begin(array)
        assert accelerator.download(array).tolist() == [1, 1, 1]
        wait()
        assert accelerator.download(array).tolist() == [2, 2, 2]
        reducer.reduce(array)
        assert accelerator.download(array).tolist() == [4, 4, 4]


def test_without_nccl_ranks_are_told_what_installs_it(cupy):
    cupy.cuda.nccl.available = False
    with pytest.raises(SelectionError, match=r"2 ranks on GPUs: NCCL is not installed: uv sync --extra cuda1\d .*nccl"):
        live.CudaAccelerator(0, CudnnSettings()).reducer(WORLD)


def test_chainermn_averages_on_our_stream_and_its_kernels_know_half(cupy, monkeypatch):
    pytest.importorskip("mpi4py", reason="needs mpi4py (uv run --extra mpi)")
    seen = []

    def create(name, mpi):
        return types.SimpleNamespace(_multi_node_mean_grad_async=lambda *arguments: seen.append((name, *arguments)))

    class RawKernel:
        def __init__(self, code, name):
            self.code, self.name = code, name

    import chainermn
    from chainermn.communicators import _memory_utility as kernels

    monkeypatch.setattr(chainermn, "create_communicator", create)
    monkeypatch.setattr(chainermn.nccl, "get_version", lambda: 22703, raising=False)
    monkeypatch.setattr(cupy, "RawKernel", RawKernel, raising=False)
    for name in ("_cupy_batched_pack_params", "_cupy_batched_unpack_params"):
        monkeypatch.setattr(kernels, name, getattr(kernels, name))
    monkeypatch.setattr("chainer.cuda.raw", RawKernel)
    exchange._give_half_to_chainermn.cache_clear()
    accelerator = live.CudaAccelerator(0, CudnnSettings())
    model = object()
    with accelerator.enter():
        average, engine = exchange._pure_nccl(WORLD.mpi)
        average(model)
    assert engine == "ChainerMN pure_nccl over NCCL 2.27.3"
    assert seen == [("pure_nccl", model, False, accelerator.stream)]
    for make in (kernels._cupy_batched_pack_params, kernels._cupy_batched_unpack_params):
        assert make().code.startswith(exchange.WITH_HALF)
        assert make() is make()
    exchange._give_half_to_chainermn.cache_clear()


@pytest.mark.plans
@pytest.mark.parametrize("name", ["_cupy_batched_pack_params", "_cupy_batched_unpack_params"])
def test_chainermns_kernels_compile_for_every_architecture(name):
    """They need the line that we put before them."""
    cupy = pytest.importorskip("cupy", reason="the CUDA extras are not installed")
    from cupy_backends.cuda.libs import nvrtc

    # Read, since importing it takes an MPI.
    source = Path(chainer.__file__).parents[1] / "chainermn/communicators/_memory_utility.py"
    code = re.search(rf"def {name}\(\):.*?'''(.*?)'''", source.read_text(), re.DOTALL)[1]
    # CUDA 12's wheels have a folder each, CUDA 13's share one.
    folders = [Path(cupy.__file__).parent / "_core/include", *(lib.parent / "include" for lib in libraries.folders())]

    def compiles(code: str, arch: str) -> bool:
        program = nvrtc.createProgram(code, f"{name}.cu", [], [])
        try:
            nvrtc.compileProgram(program, [f"-arch={arch}", "-std=c++17", *(f"-I{folder}" for folder in folders)])
        except nvrtc.NVRTCError:
            assert 'identifier "half" is undefined' in nvrtc.getProgramLog(program)
            return False
        finally:
            nvrtc.destroyProgram(program)
        return True

    for arch in ("sm_75", "sm_80", "sm_90", "sm_100"):
        assert compiles(exchange.WITH_HALF + code, arch)
    assert not compiles(code, "sm_90")
