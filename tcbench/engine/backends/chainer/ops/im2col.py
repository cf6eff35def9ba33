"""Two-dimensional convolution without bias as im2col and a matrix product: what is done without a convolution library.

Columns are of the whole batch, so that each pass is one product, as in Chainer: image by image, as Caffe did to save
memory, is 256 small products and as many launches at batch size 256. They live for the length of a pass and are made
again for the gradient of w: kept, ResNet-50's would take 9 times its 3x3 convolutions' input. In NCHW the product gives
a row of all images' pixels per channel, from where y is copied into its place."""

import functools
from dataclasses import dataclass

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.convolution import Convolution, ConvWorks, works_of
from tcbench.engine.backends.chainer.ops.node import Variable
from tcbench.engine.work import Conv2d, Layout, Math


@dataclass(frozen=True)
class Im2colWorks:
    """The pieces of work of one convolution: `product` is the matrix product, a 1x1 convolution of the columns.
    `gather` and `place`: y's rows, a channel each, from the images and back; None where they are so already."""

    im2col: work.Im2col
    col2im: work.Col2im
    product: ConvWorks
    gather: work.Im2col | None
    place: work.Col2im | None


@functools.cache
def im2col_works(conv: Conv2d) -> Im2colWorks:
    """The same objects for the same convolution."""
    im2col, product = work.Im2col(conv), work.product(conv)
    works = works_of(product.x_shape, product.w_shape, 1, 0, conv.layout, conv.dtype, conv.math)
    copied = work.channel_transpose(conv) if conv.layout == "NCHW" else None
    gather, place = (work.Im2col(copied), work.Col2im(copied)) if copied else (None, None)
    return Im2colWorks(im2col, work.Col2im(conv), works, gather, place)


class Im2colConvolution(Convolution):
    """y of x and w."""

    lowered: Im2colWorks

    def _choose_works(self) -> None:
        super()._choose_works()
        self.lowered = im2col_works(self.works.fprop.conv)

    def fprop(self, accelerator: Accelerator, y: Array) -> tuple[Array, ...]:
        works = self.lowered
        rows = y if works.place is None else accelerator.empty(works.product.fprop.conv.y_shape, y.dtype)
        accelerator.launch(works.product.fprop, self._columns(accelerator), self.w, rows)
        if works.place is not None:
            accelerator.launch(works.place, rows, y)
        return ()

    def write_dgrad(self, accelerator: Accelerator, gy: Array, gx: Array) -> None:
        gcolumns = self._empty_columns(accelerator)
        accelerator.launch(self.lowered.product.dgrad, self._rows(accelerator, gy), self.w, gcolumns)
        accelerator.launch(self.lowered.col2im, gcolumns, gx)

    def write_wgrad(self, accelerator: Accelerator, gy: Array, gw: Array) -> None:
        rows = self._rows(accelerator, gy)
        accelerator.launch(self.lowered.product.wgrad, self._columns(accelerator), rows, gw)

    def adds_to_dgrad(self, accelerator: Accelerator) -> bool:
        return False

    def _columns(self, accelerator: Accelerator) -> Array:
        columns = self._empty_columns(accelerator)
        accelerator.launch(self.lowered.im2col, self.x, columns)
        return columns

    def _empty_columns(self, accelerator: Accelerator) -> Array:
        return accelerator.empty(self.lowered.product.fprop.conv.x_shape, self.x.dtype)

    def _rows(self, accelerator: Accelerator, gy: Array) -> Array:
        if self.lowered.gather is None:
            return gy
        rows = accelerator.empty(self.lowered.product.fprop.conv.y_shape, gy.dtype)
        accelerator.launch(self.lowered.gather, gy, rows)
        return rows


def convolution_2d_im2col(
    x: Variable, w: Variable, *, stride: int, pad: int, layout: Layout, math: Math = "strict"
) -> Variable:
    """As `convolution_2d`. One of 1x1, stride 1, is a matrix product as it stands."""
    axes = (2, 3) if layout == "NCHW" else (1, 2)
    plain = all(w.shape[axis] == 1 for axis in axes) and (stride, pad) == (1, 0)
    return (Convolution if plain else Im2colConvolution)(stride, pad, layout, math).apply((x, w))[0]
