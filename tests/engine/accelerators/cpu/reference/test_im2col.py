"""Columns of a batch are the same in however many parts they are laid out."""

from collections.abc import Iterator

import pytest
from gpu import check_against_reference

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.reference import im2col
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator


@pytest.fixture(params=[1, 2, 3])
def processor(request: pytest.FixtureRequest) -> Iterator[NumpyAccelerator]:
    accelerator = NumpyAccelerator(request.param)
    with accelerator.enter():
        yield accelerator


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize(("side", "stride", "pad"), [(3, 1, 1), (3, 2, 1), (1, 2, 0), (2, 3, 0), (7, 2, 3)])
@pytest.mark.parametrize("images", [1, 2, 5], ids="{} at a time".format)
def test_in_parts_they_are_what_the_reference_says(
    images: int,
    side: int,
    stride: int,
    pad: int,
    layout: w.Layout,
    dtype: w.DType,
    processor: NumpyAccelerator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    conv = w.Conv2d(5, 3, 9, 8, 4, side, side, stride, pad, layout, dtype)
    of_an_image = conv.c * conv.p * conv.q * side * side
    monkeypatch.setattr(im2col, "_COLUMNS", images * of_an_image)
    assert len(im2col._chunks(conv)) == -(-5 // images)
    for work in (w.Im2col(conv), w.Col2im(conv)):
        check_against_reference(processor, work)
