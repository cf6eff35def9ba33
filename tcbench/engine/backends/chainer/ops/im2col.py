"""Two-dimensional convolution without bias as im2col and a matrix product, for use without a convolution library.

The columns hold the whole batch, as in Chainer, so that each pass is one product. Caffe worked image by image to save
memory, which takes 256 small products and launches at batch size 256. Columns live only during a pass and are computed
again for the gradient of w; otherwise ResNet-50 would need 9 times the input of its 3x3 convolutions. In NCHW the
product yields one row per channel with the pixels of all images, which is then rearranged into y."""

import functools
from dataclasses import dataclass

from tcbench.engine import work
from tcbench.engine.accelerators.protocol import Accelerator, Array
from tcbench.engine.backends.chainer.ops.convolution import Convolution, ConvWorks, works_of
from tcbench.engine.backends.chainer.ops.node import Variable
from tcbench.engine.work import Conv2d, Layout, Math


@dataclass(frozen=True)
class Im2colWorks:
    """The operations of one convolution by im2col.

    `product` is the matrix product, as a 1x1 convolution of the columns. In NCHW, `gather` copies y from images to rows
    of one channel each, and `place` copies it back; in NHWC both are None."""

    im2col: work.Im2col
    col2im: work.Col2im
    product: ConvWorks
    gather: work.Im2col | None
    place: work.Col2im | None


@functools.cache
def im2col_works(conv: Conv2d) -> Im2colWorks:
    """Return the operations of a convolution by im2col. Cached."""
    im2col, product = work.Im2col(conv), work.product(conv)
    works = works_of(product.x_shape, product.w_shape, 1, 0, conv.layout, conv.dtype, conv.math)
    transpose = work.channel_transpose(conv) if conv.layout == "NCHW" else None
    gather, place = (work.Im2col(transpose), work.Col2im(transpose)) if transpose else (None, None)
    return Im2colWorks(im2col, work.Col2im(conv), works, gather, place)


class Im2colConvolution(Convolution):
    """The node of a convolution of x with w by im2col."""

    lowered: Im2colWorks

    def _choose_works(self) -> None:
        super()._choose_works()
        self.lowered = im2col_works(self.works.fprop.conv)

    def fprop(self, accelerator: Accelerator, y: Array) -> tuple[Array, ...]:
        """Multiply the columns of x by w, and rearrange the rows into `y` if they are not in place."""
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
        """Return the columns of x."""
        columns = self._empty_columns(accelerator)
        accelerator.launch(self.lowered.im2col, self.x, columns)
        return columns

    def _empty_columns(self, accelerator: Accelerator) -> Array:
        return accelerator.empty(self.lowered.product.fprop.conv.x_shape, self.x.dtype)

    def _rows(self, accelerator: Accelerator, gy: Array) -> Array:
        """Return gy as a matrix with one row per channel (NCHW), or unchanged (NHWC)."""
        if self.lowered.gather is None:
            return gy
        rows = accelerator.empty(self.lowered.product.fprop.conv.y_shape, gy.dtype)
        accelerator.launch(self.lowered.gather, gy, rows)
        return rows


def convolution_2d_im2col(
    x: Variable, w: Variable, *, stride: int, pad: int, layout: Layout, math: Math = "strict"
) -> Variable:
    """Return the same as `convolution_2d`, computed by im2col. A 1x1 convolution of stride 1 needs no columns."""
    axes = (2, 3) if layout == "NCHW" else (1, 2)
    plain = all(w.shape[axis] == 1 for axis in axes) and (stride, pad) == (1, 0)
    return (Convolution if plain else Im2colConvolution)(stride, pad, layout, math).apply((x, w))[0]
