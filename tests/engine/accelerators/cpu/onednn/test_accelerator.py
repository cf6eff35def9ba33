"""Every piece of work that oneDNN does is what the float64 reference says; what is not a number stays so; and where the
library is missing or another, one line says which command repairs that."""

import ctypes
import importlib.metadata
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest
from engine.accelerators.cpu.reference.test_accelerator import CASES, convolutions, norms
from engine.accelerators.cuda.kernels.cases import Case, check_on
from gpu import check_against_reference

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.kind import KIND
from tcbench.engine.accelerators.cpu.onednn import batch_norm, convolution, library, tuning
from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator

LOSES = ("relu", "relu_backward", "add_relu", "max_pool_forward", "max_pool_backward")
"""Works in which oneDNN makes 0 of NaN, or NaN of infinity: see Engine.met_nan."""
KEPT = [case for case in CASES if not (case.special and case.work.name in LOSES)]


@pytest.fixture
def forgets_nan(processor: OneDnnAccelerator) -> Iterator[None]:
    """The engine is the process's."""
    processor.engine.met_nan = False
    yield
    processor.engine.met_nan = False


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("case", KEPT, ids=[case.id for case in KEPT])
def test_it_does_what_the_reference_does(case: Case, processor: OneDnnAccelerator) -> None:
    check_on(processor, case)


LARGE = [
    pytest.param(kind(*sizes), id=kind(*sizes).key)
    for dtype in ("float32", "float16", "bfloat16")
    for kind, *sizes in (
        (w.AddBias, 4098, 17, dtype),
        (w.BiasGradient, 4098, 17, dtype, 1, 6),
        (w.AddBiasRelu, 6, 24, dtype, 500),
        (w.BiasGradient, 6, 24, dtype, 500, 6),
    )
]
"""Biases of so many values that two threads share them: N, K, pixels, slices."""


@pytest.mark.long
@pytest.mark.parametrize("work", [*convolutions(), *norms(), *LARGE])
def test_larger_work_does_what_the_reference_does(work: w.Work, processor: OneDnnAccelerator) -> None:
    check_against_reference(processor, work)


WIDE = {
    "many-filters": (8, 128, 2, 2, 512, 1, 1, 0),
    "many-pixels": (8, 64, 16, 16, 256, 1, 1, 0),
    "packed-filters": (4, 128, 4, 4, 128, 3, 1, 1),
    "odd-batch": (3, 32, 6, 6, 64, 3, 1, 1),
    "strided": (4, 64, 8, 8, 128, 1, 2, 0),
    "blocks-of-48": (4, 1024, 4, 4, 2048, 1, 2, 0),
}
"""n, c, h, w, k, the filter's side, stride, padding: each way of cutting into slices."""


# In pairs: each dtype, and each number of threads, on each of the sizes.
BY_PAIRS = [
    (name, dtype, (1, 2, 4)[(place + number) % 3])
    for place, name in enumerate(WIDE)
    for number, dtype in enumerate(("float32", "float16", "bfloat16"))
]


@pytest.mark.long
@pytest.mark.parametrize(("name", "dtype", "threads"), BY_PAIRS)
def test_slices_of_a_convolution_are_the_whole(name: str, dtype: w.DType, threads: int) -> None:
    n, c, h, width, k, side, stride, pad = WIDE[name]
    conv = w.Conv2d(n, c, h, width, k, side, side, stride, pad, "NHWC", dtype)
    accelerator = OneDnnAccelerator(threads)
    with accelerator.enter():
        for work in (w.ConvFprop(conv), w.ConvDgrad(conv), w.ConvWgrad(conv)):
            for way in convolution.alternatives(accelerator.engine, work):
                # Done in this way, whatever is the fastest.
                accelerator.engine.prepared[work.key] = tuning.Choice(way.bind, way.name)
                check_against_reference(OneDnnAccelerator(threads), work)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("width", "stride"), [(1, 2), (1, 3), (2, 3)])
def test_a_convolution_of_an_image_narrower_than_its_stride_does_what_the_reference_does(
    width: int, stride: int, dtype: w.DType, processor: OneDnnAccelerator
) -> None:
    """Gradients of bfloat16 filters are anything there, by any of oneDNN's convolutions on AMX."""
    conv = w.Conv2d(2, 16, 4, width, 33, 3, 3, stride, 1, "NHWC", dtype)
    for work in (w.ConvFprop(conv), w.ConvDgrad(conv), w.ConvWgrad(conv)):
        check_against_reference(processor, work)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("side", [16, 48], ids=["on one thread", "without barriers"])
def test_a_normalisation_of_any_size_does_what_the_reference_does(
    side: int, layout: w.Layout, processor: OneDnnAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """oneDNN's implementations are used if there is no C compiler."""
    monkeypatch.setattr(batch_norm, "_compiled", lambda: None)
    norm = w.Norm(8, 64, side, side, layout, "float32", "relu")
    for work in (w.BatchNormForward(norm, 2e-5, 0.1), w.BatchNormBackward(norm)):
        check_against_reference(processor, work)
    plan_name = next(plan.plan for plan in processor.plans() if plan.work == "batch_norm_backward float32")
    if layout == "NHWC" and not plan_name.endswith("avx2"):
        assert plan_name.startswith("bnorm_tbb_jit" if side == 48 else "bnorm_jit")


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_conversions_and_the_loss_scale_are_done_slice_by_slice_as_the_reference_does(half: w.DType) -> None:
    size = 3 << 16
    accelerator = OneDnnAccelerator(2)
    with accelerator.enter():
        for work in (w.ToSingle(size, half), w.ToHalf(size, half), w.Unscale(size, half)):  # type: ignore[arg-type]
            check_against_reference(accelerator, work)
    plans = {plan.plan for plan in accelerator.plans()}
    assert ("numpy" in plans) is not accelerator.engine.converts(half)


@pytest.mark.parametrize("half", ["float16", "bfloat16"])
def test_a_gradient_that_is_not_finite_is_counted_and_becomes_0(half: w.DType, processor: OneDnnAccelerator) -> None:
    g = np.ones(3 << 14, half)
    g[[5, 1 << 14, -1]] = np.inf, -np.inf, np.nan
    gx, state = np.empty_like(g), np.zeros(4, np.float32)
    state[w.SCALE] = 2
    processor.launch(w.Unscale(g.size, half), g, gx, state)
    finite = np.isfinite(g)
    assert (gx[finite] == np.asarray(0.5, half)).all() and (gx[~finite] == 0).all()
    assert state[w.OVERFLOWS] == 3  # of the table's chunks


def test_convolutions_are_done_by_onednn_and_the_record_says_by_which_of_its_implementations(
    processor: OneDnnAccelerator,
) -> None:
    conv = w.Conv2d(4, 32, 8, 8, 64, 3, 3, 1, 1, "NHWC", "float32")
    x, weights, y = (np.ones(shape, np.float32) for shape in (conv.x_shape, conv.w_shape, conv.y_shape))
    processor.launch(w.ConvFprop(conv), x, weights, y)
    across = w.LrnForward(1, 8, 1, "NHWC", "float32", 5, 1e-4, 0.75, 1.0)
    processor.launch(across, *(np.ones((1, 1, 8), np.float32) for _ in range(3)))
    plans = {plan.work: plan.plan for plan in processor.plans()}
    assert plans["conv_fprop float32"] not in ("numpy", "ref:any")
    assert plans["lrn_forward float32"] == "numpy"


def test_a_record_marks_what_was_chosen_beside_other_work(
    processor: OneDnnAccelerator, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(tuning, "_is_disturbed", lambda engine: True)
    work = w.ConvFprop(w.Conv2d(2, 16, 6, 6, 16, 3, 3, 1, 1, "NHWC", "float32"))
    processor.prepare(work, *(np.ones(operand.shape, operand.dtype) for operand in work.operands))
    processor.prepare(w.WeightDecay(8, 1e-4), *(np.ones(8, np.float32) for _ in range(2)))
    assert [plan.provisional for plan in processor.plans()] == [True, False]


def test_what_a_record_holds_of_implementations_does_not_grow_with_the_layers(processor: OneDnnAccelerator) -> None:
    for channels in (16, 32, 64):
        norm = w.Norm(2, channels, 4, 4, "NHWC", "float32", "none")
        work = w.BatchNormForward(norm, 2e-5, 0.1)
        processor.prepare(work, *(np.ones(operand.shape, operand.dtype) for operand in work.operands))
        processor.prepare(w.WeightDecay(channels, 1e-4), *(np.ones(channels, np.float32) for _ in range(2)))
    (norms, decays) = processor.plans()
    assert norms.work == "batch_norm_forward float32" and norms.plan.startswith(("jit", "bnorm_jit"))
    assert (decays.work, decays.plan) == ("weight_decay float32", "numpy")


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_no_pass_of_a_convolution_is_tried_by_onednns_reference(dtype: w.DType, processor: OneDnnAccelerator) -> None:
    """If oneDNN's reference were timed as well, the first step of ResNet-50 would take minutes."""
    conv = w.Conv2d(4, 32, 8, 8, 64, 1, 1, 1, 0, "NHWC", dtype)
    for work in (w.ConvFprop(conv), w.ConvDgrad(conv), w.ConvWgrad(conv)):
        names = [primitive.name for primitive in convolution.alternatives(processor.engine, work)]
        assert not any(name.startswith(tuning.REFERENCE) for name in names), names


def test_float64_is_numpys_to_the_bit(processor: OneDnnAccelerator) -> None:
    conv = w.Conv2d(4, 32, 8, 8, 64, 3, 3, 1, 1, "NHWC", "float64")
    rng = np.random.default_rng(0)
    x, weights = rng.standard_normal(conv.x_shape), rng.standard_normal(conv.w_shape)
    by_onednn, by_numpy = np.empty(conv.y_shape), np.empty(conv.y_shape)
    processor.launch(w.ConvFprop(conv), x, weights, by_onednn)
    NumpyAccelerator(2).launch(w.ConvFprop(conv), x, weights, by_numpy)
    np.testing.assert_array_equal(by_onednn, by_numpy)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.usefixtures("forgets_nan")
def test_what_is_not_a_number_comes_through_a_normalisation_an_addition_and_a_pooling(
    layout: w.Layout, processor: OneDnnAccelerator
) -> None:
    """Else a training that has diverged would go on with a finite loss."""
    norm = w.Norm(2, 16, 4, 4, layout, "float32", "relu")
    x = np.ones(norm.shape, np.float32)
    channel = (slice(None), 3) if layout == "NCHW" else (..., 3)
    x[(0, 3, 1, 1) if layout == "NCHW" else (0, 1, 1, 3)] = np.nan
    vectors = [np.ones(16, np.float32) for _ in range(4)]
    y, mask = np.zeros_like(x), np.zeros(norm.shape, bool)
    mean, inv_std = np.empty(16, np.float32), np.empty(16, np.float32)
    processor.launch(w.BatchNormForward(norm, 2e-5, 0.1), x, *vectors, y, mean, inv_std, mask)
    assert np.isnan(y[channel]).all()
    assert np.isfinite(y).sum() == y.size * 15 // 16
    total = np.empty_like(y)
    for work in (w.AddRelu(y.size, "float32"), w.Relu(y.size, "float32")):
        total.fill(0)
        processor.launch(work, *([y] * (len(work.operands) - 1)), total)
        assert np.isnan(total[channel]).all()
    pool = w.Pool(2, 16, 4, 4, 3, 2, 1, layout, "float32")
    pooled, places = np.empty(pool.y_shape, np.float32), np.empty(pool.y_shape, np.uint8)
    processor.launch(w.MaxPoolForward(pool), total, pooled, places)
    assert np.isnan(pooled[channel]).all()


@pytest.mark.parametrize("kind", [w.AddBias, w.AddBiasRelu])
@pytest.mark.parametrize("pixels", [1, 16])
@pytest.mark.usefixtures("forgets_nan")
def test_what_is_not_a_number_comes_through_a_bias_and_what_follows(
    kind: type[w.AddBias], pixels: int, processor: OneDnnAccelerator
) -> None:
    """Networks with biases have no batch normalisation that would meet it."""
    work = kind(8 * 16 // pixels, 4, "float32", pixels)
    y = np.ones(work.operands[0].shape, np.float32)
    y[1, 2] = np.nan
    processor.launch(work, y, np.ones(4, np.float32))
    assert np.isnan(y[1, 2]).all()
    assert np.isfinite(y).sum() == y.size - pixels
    pool = w.Pool(8, 4, 4, 4, 2, 2, 0, "NCHW" if pixels > 1 else "NHWC", "float32")
    pooled, places = np.empty(pool.y_shape, np.float32), np.empty(pool.y_shape, np.uint8)
    processor.launch(w.MaxPoolForward(pool), y, pooled, places)
    assert np.isnan(pooled).any()


# -- a library that is missing, or another one ------------------------------------------------------------------------


@pytest.fixture
def loads_anew() -> Iterator[None]:
    library._load.cache_clear()
    yield
    library._load.cache_clear()


def refuse(message: str):
    real = ctypes.CDLL

    def load(name: str | None, *rest: object) -> object:
        if name is not None and "dnnl" in name:
            raise OSError(message)
        return real(name, *rest)

    return load


@pytest.mark.usefixtures("loads_anew")
def test_without_libgomp_numpy_computes_and_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    missing = "libgomp.so.1: cannot open shared object file: No such file or directory"
    monkeypatch.setattr(ctypes, "CDLL", refuse(missing))
    assert library.problem() == "oneDNN needs libgomp.so.1: apt-get install libgomp1"
    assert library.version() is None
    assert KIND.library() == "NumPy"
    (finding,) = (finding for finding in KIND.findings() if finding.subject == "oneDNN")
    assert KIND.shortfall() == f"{finding.detail}: {finding.remedy}"
    assert finding.state == "missing"
    assert finding.detail == "oneDNN needs libgomp.so.1; steps take several times as long without it"
    assert finding.remedy == "apt-get install libgomp1"


@pytest.mark.usefixtures("loads_anew")
def test_without_onednn_numpy_computes_and_the_command_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    absent = importlib.metadata.PackageNotFoundError("onednn")
    monkeypatch.setattr(importlib.metadata, "files", Mock(side_effect=absent))
    monkeypatch.setattr(ctypes, "CDLL", refuse("libdnnl.so.3: cannot open shared object file"))
    problem = library.problem()
    assert problem is not None and problem.endswith("is not installed: uv pip install onednn-cpu-gomp")
    opened = KIND.open("cpu", None, 1)  # type: ignore[arg-type]
    assert type(opened.accelerator) is NumpyAccelerator


@pytest.mark.usefixtures("loads_anew")
@pytest.mark.parametrize(("major", "runtime", "message"), [(2, 2, "oneDNN is 2.7.1, expected 3.x"), (3, 1, "OpenMP")])
def test_another_version_or_threading_is_refused(
    major: int, runtime: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    described = library._Version(major, 7, 1, b"", runtime, 0)
    loaded = SimpleNamespace(dnnl_version=lambda: ctypes.pointer(described))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: loaded)
    problem = library.problem()
    assert problem is not None and message in problem
