"""Columns of a batch are the same in however many parts they are laid out."""

import pytest
from engine.accelerators.cpu.reference.test_accelerator import by_pairs
from gpu import check_against_reference

from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.reference import im2col
from tcbench.engine.accelerators.cpu.reference.accelerator import NumpyAccelerator

FILTERS = {"3x3": (3, 1, 1), "strided": (3, 2, 1), "1x1": (1, 2, 0), "gaps": (2, 3, 0), "stem": (7, 2, 3)}
"""Side, stride, padding."""


@pytest.mark.parametrize(("name", "layout", "dtype"), [*by_pairs(FILTERS)])
@pytest.mark.parametrize(("images", "threads"), [(1, 2), (2, 3), (5, 1)])
def test_in_parts_they_are_what_the_reference_says(
    images: int, threads: int, name: str, layout: w.Layout, dtype: w.DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    side, stride, pad = FILTERS[name]
    conv = w.Conv2d(5, 3, 9, 8, 4, side, side, stride, pad, layout, dtype)
    of_an_image = conv.c * conv.p * conv.q * side * side
    monkeypatch.setattr(im2col, "_COLUMNS", images * of_an_image)
    assert len(im2col._chunks(conv)) == -(-5 // images)
    accelerator = NumpyAccelerator(threads)
    with accelerator.enter():
        for work in (w.Im2col(conv), w.Col2im(conv)):
            check_against_reference(accelerator, work)
