"""A launch is on the arrays that it was bound to, wherever these and oneDNN's own memory lie."""

import os
from dataclasses import replace

import numpy as np
import pytest
from gpu import on_host, random_inputs

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.onednn import convolution, library, tuning
from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
from tcbench.hardware import machine

CONV = w.Conv2d(4, 64, 8, 8, 64, 3, 3, 1, 1, "NHWC", "float32")
PASSES = [w.ConvFprop(CONV), w.ConvDgrad(CONV), w.ConvWgrad(CONV)]

pytestmark = pytest.mark.usefixtures("fresh_engine")


@pytest.mark.parametrize(("half", "feature"), [("float16", "avx512_fp16"), ("bfloat16", "avx512bw")])
def test_16_bits_are_converted_by_vectors_where_the_processor_has_them(
    half: w.DType, feature: str, processor: OneDnnAccelerator
) -> None:
    assert processor.engine.converts("float32")
    told_to_take_less = "ONEDNN_MAX_CPU_ISA" in os.environ
    assert processor.engine.converts(half) or feature not in machine.cpu_flags() or told_to_take_less


@pytest.mark.parametrize(
    "array",
    [
        np.zeros(3, np.uint8)[1:],
        np.arange(24.0).reshape(4, 6)[::-1, ::2],
        np.asfortranarray(np.ones((3, 4)))[1:],
        np.array(3.0),
        np.frombuffer(b"abcdefgh", np.uint8)[3:],
        np.zeros((2, 2)).view(np.recarray),
    ],
    ids=["sliced", "backwards", "fortran", "scalar", "of others", "subclass"],
)
def test_the_address_of_an_array_is_numpys(array: np.ndarray) -> None:
    assert library.address(array) == array.ctypes.data


class Bound:
    """A launch on arrays of its own, and what is to be in the last of them, which is written."""

    def __init__(self, work: w.Work, way: object, seed: int) -> None:
        inputs = random_inputs(work, np.random.default_rng(seed))
        self._expected = list(on_host(work, inputs).values())[-1]
        self._arrays = [inputs.get(operand.name, np.zeros(operand.shape, operand.dtype)) for operand in work.operands]
        self.launch = way.bind(*self._arrays)  # type: ignore[attr-defined]

    def check(self) -> None:
        """Launch it, and see what it has written."""
        self._arrays[-1].fill(np.nan)
        self.launch()
        written = self._arrays[-1].reshape(self._expected.shape)
        np.testing.assert_allclose(written, self._expected, atol=1e-4 * np.abs(self._expected).max())


@pytest.mark.parametrize("work", PASSES, ids=[work.name for work in PASSES])
def test_a_launch_is_on_its_own_arrays_whichever_was_made_before(work: w.Work, processor: OneDnnAccelerator) -> None:
    for way in convolution.alternatives(processor.engine, work):  # type: ignore[arg-type]
        first, second = Bound(work, way, 1), Bound(work, way, 2)
        for bound in (first, second, first, first, second):
            bound.check()


@pytest.mark.parametrize("work", PASSES, ids=[work.name for work in PASSES])
def test_a_launch_finds_memory_that_has_grown_or_was_given_back(work: w.Work, processor: OneDnnAccelerator) -> None:
    engine = processor.engine
    for way in convolution.alternatives(engine, work):  # type: ignore[arg-type]
        bound = Bound(work, way, 1)
        bound.check()
        for name, room in list(engine.shared.items()):
            engine.scratch(name, 2 * room.nbytes)[:] = 0xFF
        bound.check()
        engine.shared.clear()
        bound.check()


PATTERN = 0xA5


def enclosed(n_bytes: int) -> np.ndarray:
    """Return aligned memory with PATTERN in at least `n_bytes` bytes before it and after it."""
    buffer = np.full(3 * n_bytes + 64, PATTERN, np.uint8)
    start = n_bytes - library.address(buffer[n_bytes:]) % -64
    return buffer[start : start + n_bytes]


def is_enclosed(memory: np.ndarray) -> bool:
    """Return whether nothing was written before or after memory made by `enclosed`."""
    buffer = memory.base
    start = library.address(memory) - library.address(buffer)
    return bool((buffer[:start] == PATTERN).all() and (buffer[start + memory.nbytes :] == PATTERN).all())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize(("h", "width", "side", "stride"), [(6, 6, 1, 1), (3, 9, 1, 1), (3, 3, 1, 2), (6, 3, 3, 2)])
def test_no_way_writes_outside_of_its_memory(
    h: int,
    width: int,
    side: int,
    stride: int,
    dtype: w.DType,
    processor: OneDnnAccelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """oneDNN 3.2 has a forward pass for AMX that writes 12 pixels too many on 6x6 pixels."""

    def scratch(engine: library.Engine, name: str, n_bytes: int) -> np.ndarray:
        if engine.shared.get(name, np.empty(0)).nbytes < n_bytes:
            engine.shared[name] = enclosed(n_bytes)
            engine.changes += 1
        return engine.shared[name]

    monkeypatch.setattr(library.Engine, "scratch", scratch)
    engine = processor.engine
    conv = w.Conv2d(2, 128, h, width, 64, side, side, stride, side // 2, "NHWC", dtype)
    for work in (w.ConvFprop(conv), w.ConvDgrad(conv), w.ConvWgrad(conv)):
        for way in convolution.alternatives(engine, work):  # type: ignore[arg-type]
            engine.shared.clear()  # of another way's, which may be larger
            engine.changes += 1
            arrays = [enclosed(o.bytes).view(o.dtype).reshape(o.shape) for o in work.operands]
            for array in arrays:
                array.fill(0)
            way.bind(*arrays)()
            assert all(map(is_enclosed, [*arrays, *engine.shared.values()])), f"{way.name}: {work.label}"


def test_ways_that_were_not_taken_leave_no_memory(processor: OneDnnAccelerator) -> None:
    """It would count as the training's."""
    engine = processor.engine
    for work in PASSES:
        convolution.choose(engine, work)
    assert not engine.shared
    work = PASSES[0]
    bound = Bound(work, convolution.alternatives(engine, work)[0], 1)  # type: ignore[arg-type]
    bound.check()
    assert engine.shared


def test_products_and_filters_of_each_threads_own_are_among_the_ways(processor: OneDnnAccelerator) -> None:
    """The planted faults of slices would be seen in these too: see test_accelerator.py."""
    single, small = w.Conv2d(4, 64, 8, 8, 64, 1, 1, 1, 0, "NHWC", "float32"), replace(CONV, n=1, h=4, w=4)
    for kind in (w.ConvFprop, w.ConvDgrad, w.ConvWgrad):
        of_single, of_small, remaining = (
            [way.name for way in convolution.alternatives(processor.engine, kind(conv))]
            for conv in (single, small, CONV)
        )
        assert len(of_single) > tuning.MOST
        assert len(remaining) == len(convolution._by_images(processor.engine, kind(CONV))) + len(
            convolution._by_filters(processor.engine, kind(CONV))
        )
        assert not set(convolution._by_filters(processor.engine, kind(single)))
        assert any(name.startswith("im2col, ") for name in of_small)
