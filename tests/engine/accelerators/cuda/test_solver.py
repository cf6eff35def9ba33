"""Kronecker factors and their inverses by cuBLAS and cuSOLVER, on a stand-in for CuPy."""

import types

import numpy as np
import pytest
from engine.backends.chainer import test_kfac
from fake_cupy import site
from reference import REFERENCE
from training import numpys_processor, run_step

from tcbench.core.errors import SelectionError
from tcbench.engine.accelerators.cuda import solver
from tcbench.engine.work import CholeskyInverse, KroneckerFactor, Relu


def spd(size: int, dtype: str = "float32") -> np.ndarray:
    """A symmetric positive definite matrix; what stands above its diagonal is nobody's."""
    x = np.random.default_rng(size).standard_normal((size, size + 3))
    return np.where(np.tri(size, dtype=bool), x @ x.T / size + np.eye(size), np.nan).astype(dtype)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_a_factor_is_what_the_reference_says(accelerator, dtype, layout, decay):
    work = KroneckerFactor(5, 12, layout, dtype, 1 / 12, decay)
    rng = np.random.default_rng(0)
    x = rng.standard_normal(work.array("x")[0]).astype(dtype)
    before = np.tril(rng.standard_normal((5, 5)).astype(np.float32)) if decay else np.full((5, 5), np.nan, np.float32)
    on_device, expected = accelerator.upload(before), before.copy()
    accelerator.launch(work, accelerator.upload(x), on_device)
    REFERENCE[work.name](work, x, expected)
    np.testing.assert_allclose(np.tril(accelerator.download(on_device)), np.tril(expected), rtol=1e-6)


@pytest.mark.parametrize("size", [1, 4, 33])
def test_an_inverse_is_whole_and_reads_the_lower_triangle_alone(accelerator, size):
    matrix = spd(size)
    x, info = accelerator.upload(matrix), accelerator.zeros((4,), np.int32)
    accelerator.launch(CholeskyInverse(size), x, info[2:3])
    lower = np.tril(matrix).astype(np.float64)
    np.testing.assert_allclose(
        accelerator.download(x), np.linalg.inv(lower + np.tril(lower, -1).T), rtol=1e-4, atol=1e-5
    )
    assert accelerator.download(info).tolist() == [0, 0, 0, 0]


def test_what_cannot_be_inverted_is_nan_and_named_however_often_others_are_inverted_after_it(accelerator):
    broken = spd(6)
    broken[3, 3] = -1
    x, info = accelerator.upload(broken), accelerator.zeros((1,), np.int32)
    accelerator.launch(CholeskyInverse(6), x, info)
    assert np.isnan(accelerator.download(x)).all()
    accelerator.launch(CholeskyInverse(6), accelerator.upload(spd(6)), info)
    assert accelerator.download(info).tolist() == [4]


def test_no_call_waits_for_the_device(accelerator, cupy):
    x, info = accelerator.upload(spd(4)), accelerator.zeros((1,), np.int32)
    sent = len(cupy.transfers())
    accelerator.stream.synchronize = lambda: pytest.fail("waits")
    try:
        accelerator.launch(CholeskyInverse(4), x, info)
        accelerator.launch(KroneckerFactor(4, 1, "NHWC", "float32", 1, 0), accelerator.empty((1, 4), np.float32), x)
    finally:
        del accelerator.stream.synchronize
    assert len(cupy.transfers()) == sent


def test_a_capture_refuses_both(accelerator):
    x, info = accelerator.upload(spd(4)), accelerator.zeros((1,), np.int32)
    for launch in (
        lambda: accelerator.launch(CholeskyInverse(4), x, info),
        lambda: accelerator.launch(KroneckerFactor(4, 4, "NHWC", "float32", 1, 0), x, x),
    ):
        with pytest.raises(NotImplementedError, match="during stream capture"):
            accelerator.capture(launch)


def test_where_cusolver_is_not_installed_the_line_says_what_installs_it(accelerator, cupy, monkeypatch):
    class Cuda(types.SimpleNamespace):
        @property
        def cusolver(self):
            raise ImportError('Failure finding "libnvJitLink.so.12":\nNo such file')

    monkeypatch.setattr(cupy, "cuda", Cuda(cublas=cupy.cuda.cublas))
    with pytest.raises(
        SelectionError, match=r"cusolver does not load .*: uv sync --extra cuda1\d --extra cusolver1\d$"
    ):
        accelerator.launch(CholeskyInverse(4), *[accelerator.zeros((4, 4), np.float32)] * 2)


def test_other_works_are_not_its():
    with pytest.raises(ValueError, match="relu is neither"):
        solver.prepare(Relu(4, "float32"), None)


# -- whole steps -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("config", ["fp32+kfac", "fp32+nhwc+fused+batched+kfac"])
def test_training_on_it_is_training_by_numpy(cupy, config):
    losses = []
    for place in (site(), numpys_processor()):
        with test_kfac.session(config, place) as opened:
            losses.append([run_step(opened) for _ in range(4)])
    device, host = losses
    np.testing.assert_allclose(device, host, rtol=2e-4)
