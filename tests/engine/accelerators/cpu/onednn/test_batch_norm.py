"""A batch normalisation that may be oneDNN's, NumPy's or our own in C is the same by each."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from gpu import check_against_reference

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu import compiled
from tcbench.engine.accelerators.cpu.onednn import batch_norm, tuning
from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
from tcbench.engine.accelerators.cpu.onednn.library import Engine


@pytest.fixture(params=[0, 1], ids=["oneDNN", "NumPy"])
def processor(
    request: pytest.FixtureRequest, fresh_engine: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[OneDnnAccelerator]:
    def first_or_last(engine: object, work: object, ways: Sequence[tuning.Choice]) -> tuning.Choice:
        assert len(ways) == 2
        assert ways[1].name == tuning.NUMPY
        return ways[request.param]

    monkeypatch.setattr(batch_norm, "fastest", first_or_last)
    accelerator = OneDnnAccelerator(threads=2)
    with accelerator.enter():
        yield accelerator
    assert {plan.plan == tuning.NUMPY for plan in accelerator.plans()} == {bool(request.param)}


@pytest.mark.parametrize("after", ["none", "relu"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sizes", [(2, 24, 4, 6), (3, 5, 7, 3), (4, 16, 16, 17), (1, 64, 2, 1)], ids=str)
def test_either_does_what_the_reference_does(
    sizes: tuple[int, int, int, int], dtype: w.DType, after: w.After, processor: OneDnnAccelerator
) -> None:
    norm = w.Norm(*sizes, "NCHW", dtype, after)
    for work in (w.BatchNormForward(norm, 2e-5, 0.1), w.BatchNormBackward(norm)):
        check_against_reference(processor, work)


def test_of_a_single_pixel_either_makes_its_shift(processor: OneDnnAccelerator) -> None:
    """The variance of a single value is 0, biased or not."""
    norm = w.Norm(1, 16, 1, 1, "NCHW", "float32", "none")
    x, gamma, beta = np.random.default_rng(0).standard_normal((3, 16)).astype(np.float32)
    running_mean, running_var, y, mean, inv_std = (np.ones(16, np.float32) for _ in range(5))
    processor.launch(w.BatchNormForward(norm, 2e-5, 0.1), x, gamma, beta, running_mean, running_var, y, mean, inv_std)
    np.testing.assert_allclose(y, beta, atol=1e-5)
    np.testing.assert_allclose(mean, x, rtol=1e-6)
    np.testing.assert_allclose(inv_std, 1 / np.sqrt(2e-5), rtol=1e-5)
    np.testing.assert_allclose(running_var, 0.9, rtol=1e-6)
    np.testing.assert_allclose(running_mean, 0.9 + 0.1 * x, rtol=1e-5)


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("after", ["none", "relu"])
def test_either_says_that_it_met_what_is_not_a_number(
    value: float, after: w.After, processor: OneDnnAccelerator
) -> None:
    """Else oneDNN's ReLU after it would make 0 of it."""
    norm = w.Norm(2, 16, 4, 4, "NCHW", "float32", after)
    work = w.BatchNormForward(norm, 2e-5, 0.1)
    x = np.random.default_rng(0).standard_normal(norm.shape).astype(np.float32)
    vectors, y = [np.ones(16, np.float32) for _ in range(6)], np.empty_like(x)
    mask = [np.empty(norm.shape, bool)] if norm.relu else []
    processor.launch(work, x, *vectors[:4], y, *vectors[4:], *mask)
    assert not processor.engine.met_nan
    x[0, 3, 1, 1] = value
    processor.launch(work, x, *vectors[:4], y, *vectors[4:], *mask)
    assert processor.engine.met_nan
    assert np.isnan(y[:, 3]).all()
    assert np.isfinite(y).sum() == y.size * 15 // 16


@pytest.mark.parametrize("numpys", ["forward", "backward"])
@pytest.mark.parametrize(("layout", "dtype"), [("NCHW", "float32"), ("NCHW", "bfloat16"), ("NHWC", "bfloat16")])
def test_relus_mask_is_of_one_kind_whoever_made_it(
    numpys: str, layout: w.Layout, dtype: w.DType, fresh_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fastest(engine: object, work: w.Work, ways: Sequence[tuning.Choice]) -> tuning.Choice:
        return ways[-1 if (work.operands[0].name == "gy") == (numpys == "backward") else 0]

    monkeypatch.setattr(batch_norm, "fastest", fastest)
    norm = w.Norm(2, 24, 4, 6, layout, dtype, "relu")
    accelerator = OneDnnAccelerator(threads=2)
    with accelerator.enter():
        check_against_reference(accelerator, w.BatchNormBackward(norm))


IN_C = "C, two passes"


@pytest.fixture
def in_c(fresh_engine: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[OneDnnAccelerator]:
    """Arrays of any size go through C, those of 16 bits also where oneDNN has no vectors of them."""
    if batch_norm._compiled() is None:
        pytest.skip("no C compiler, or no vectors of 256 bits")
    monkeypatch.setattr(batch_norm, "_LEAST_BYTES", 0)
    monkeypatch.setattr(batch_norm, "_LARGE_BYTES", 0)
    monkeypatch.setattr(Engine, "converts", lambda engine, dtype: True)
    accelerator = OneDnnAccelerator(threads=2)
    with accelerator.enter():
        yield accelerator
    assert {plan.plan for plan in accelerator.plans()} == {IN_C}


@pytest.mark.parametrize("after", ["none", "relu"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("sizes", [(3, 48, 7, 3), (1, 16, 1, 1), (2, 64, 64, 65), (5, 2048, 3, 3)], ids=str)
def test_in_c_it_does_what_the_reference_does(
    sizes: tuple[int, int, int, int], dtype: w.DType, after: w.After, in_c: OneDnnAccelerator
) -> None:
    norm = w.Norm(*sizes, "NHWC", dtype, after)
    for work in (w.BatchNormForward(norm, 2e-5, 0.1), w.BatchNormBackward(norm)):
        check_against_reference(in_c, work)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_in_c_what_is_not_a_number_goes_on(value: float, dtype: w.DType, in_c: OneDnnAccelerator) -> None:
    norm = w.Norm(2, 16, 4, 4, "NHWC", dtype, "relu")
    x = np.random.default_rng(0).standard_normal(norm.shape).astype(norm.dtype)
    x[1, 2, 1, 3] = value
    vectors, y = [np.ones(16, np.float32) for _ in range(6)], np.empty_like(x)
    in_c.launch(w.BatchNormForward(norm, 2e-5, 0.1), x, *vectors[:4], y, *vectors[4:], np.empty(norm.shape, bool))
    assert in_c.engine.met_nan
    assert np.isnan(y.astype(np.float32)[..., 3]).all()
    assert np.isfinite(y.astype(np.float32)).sum() == y.size * 15 // 16


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("offset", [0, 16], ids=["aligned", "not aligned"])
def test_in_c_what_is_written_past_the_caches_is_the_same(
    offset: int, dtype: w.DType, in_c: OneDnnAccelerator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Streaming needs addresses of whole vectors, and would end the process at others."""
    norm = w.Norm(3, 48, 7, 3, "NHWC", dtype, "relu")
    rng, streamed = np.random.default_rng(0), []
    gy, x = (rng.standard_normal(norm.shape).astype(norm.dtype) for _ in range(2))
    gamma, mean, inv_std = rng.standard_normal((3, norm.c)).astype(np.float32)
    mask = np.full(norm.shape, 0xFF, np.uint8).view(bool)
    room = np.zeros(gy.nbytes + 128, np.uint8)
    gx = room[-room.ctypes.data % 64 + offset :][: gy.nbytes].view(norm.dtype).reshape(norm.shape)
    for cache in (0, 1):
        monkeypatch.setattr(batch_norm.machine, "last_level_cache_bytes", lambda cache=cache: cache)
        accelerator = OneDnnAccelerator(threads=2)
        with accelerator.enter():
            ggamma, gbeta = np.zeros((2, norm.c), np.float32)
            accelerator.launch(w.BatchNormBackward(norm), gy, x, gamma, mean, inv_std, mask, gx, ggamma, gbeta)
        streamed.append([gx.copy(), ggamma, gbeta])
    for first, other in zip(*streamed, strict=True):
        assert first.tobytes() == other.tobytes() and np.abs(first.astype(np.float32)).max() > 0
    in_c.launch(w.BatchNormBackward(norm), gy, x, gamma, mean, inv_std, mask, gx, ggamma, gbeta)


@pytest.mark.parametrize("chosen", [0, 1], ids=["oneDNN", "C"])
def test_both_passes_of_a_middling_array_go_the_way_that_is_faster_forward(
    chosen: int, fresh_engine: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever backward's own time says: it reads forward's mask."""
    if batch_norm._compiled() is None:
        pytest.skip("no C compiler, or no vectors of 256 bits")
    timed: list[str] = []

    def fastest(engine: object, work: w.Work, ways: Sequence[tuning.Choice]) -> tuning.Choice:
        assert [way.name == IN_C for way in ways] == [False, True]
        timed.append(work.name)
        return replace(ways[chosen], from_cache=True, provisional=True)

    monkeypatch.setattr(batch_norm, "fastest", fastest)
    norm = w.Norm(8, 64, 16, 16, "NHWC", "float32", "relu")
    accelerator = OneDnnAccelerator(threads=2)
    with accelerator.enter():
        for work in (w.BatchNormForward(norm, 2e-5, 0.1), w.BatchNormBackward(norm)):
            check_against_reference(accelerator, work)
    assert [plan.plan == IN_C for plan in accelerator.plans()] == 2 * [bool(chosen)]
    assert timed == ["batch_norm_forward"]
    assert all(plan.from_cache and plan.provisional for plan in accelerator.plans())


def test_in_c_what_is_stored_as_0_lets_no_gradient_pass(in_c: OneDnnAccelerator) -> None:
    norm = w.Norm(2, 16, 4, 4, "NHWC", "float16", "relu")
    x, gy, y, gx = np.random.default_rng(0).standard_normal((4, *norm.shape)).astype(np.float16)
    gamma, beta, running, mean, inv_std, other = np.full((6, 16), 1e-8, np.float32) * np.array([[1], *5 * [[0]]], "f")
    mask, gbeta = np.empty(norm.shape, bool), np.ones(16, np.float32)
    in_c.launch(w.BatchNormForward(norm, 2e-5, 0.1), x, gamma, beta, running, other, y, mean, inv_std, mask)
    in_c.launch(w.BatchNormBackward(norm), gy, x, gamma, mean, inv_std, mask, gx, np.empty_like(gbeta), gbeta)
    assert not y.any()
    assert not gbeta.any()


@pytest.mark.long
@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("for (; row < end; row++) sum_rows(", "for (; row + 1 < end; row++) sum_rows("),
        ("_CMP_NLE_UQ", "_CMP_LE_OQ"),
        ("V(fnmadd_ps)(d,", "V(fmadd_ps)(d,"),
        ("other - mean * mean", "other"),
        ("V(cvtph_ps)(narrow)", "V(setzero_ps)()"),
        ("dtype == FLOAT16 ? V(cvtps_ph)", "dtype == FLOAT32 ? V(cvtps_ph)"),
        ("norm->rows / (norm->rows > 1 ? norm->rows - 1 : 1)", "1"),
    ],
)
@pytest.mark.usefixtures("quickly_compiled")
def test_functions_that_do_not_as_numpy_are_not_taken(right: str, wrong: str, tmp_path: Path) -> None:
    source = Path(batch_norm.__file__).with_suffix(".c")
    if compiled.load_library(source, batch_norm.matches_numpy) is None:
        pytest.skip("no C compiler, or no vectors of 256 bits")
    assert source.read_text().count(right) == 1
    broken = tmp_path / "batch_norm.c"
    broken.write_text(source.read_text().replace(right, wrong))
    assert compiled.load_library(broken, batch_norm.matches_numpy) is None
