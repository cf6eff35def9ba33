"""Curvature by Kronecker factors (K-FAC): second moments of a layer's inputs and output gradients, and their inverses.

A layer's gradient gw (K, D) is sums of products of output gradients g (K,) and inputs a (D,), so that its Fisher
information is taken for the Kronecker product of A = E[a a'] (D, D) and G = E[g g'] (K, K), whose inverse is that of
the inverses: G^-1 gw A^-1. Products with the inverses are convolutions of 1x1 (`tcbench.engine.work.convolution`).

Sources: J. Martens and R. Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate Curvature", 2015
(sections 3 and 6.3); R. Grosse and J. Martens, "A Kronecker-factored approximate Fisher matrix for convolution layers",
2016 (section 3.1); K. Osawa et al., "Large-Scale Distributed Second-Order Optimization Using Kronecker-Factored
Approximate Curvature for Deep Convolutional Neural Networks", 2019."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Layout, Work, reads, updates, wide, writes


@dataclass(frozen=True)
class KroneckerFactor(Work):
    """factor = decay * factor + scale * sum over samples of x x', in float32; its lower triangle: what stands above is
    nobody's. x is a matrix as Im2col leaves it: (size, samples) in NCHW, (samples, size) in NHWC."""

    kind = "solver"
    roles = reads("x") | updates("factor")
    size: int
    samples: int
    layout: Layout
    dtype: DType
    scale: float
    decay: float

    def array(self, name: str) -> Array:
        if name == "factor":
            return (self.size, self.size), wide(self.dtype)
        shape = (self.size, self.samples) if self.layout == "NCHW" else (self.samples, self.size)
        return shape, self.dtype

    @property
    def flops(self) -> int:
        return self.samples * self.size * (self.size + 1)


@dataclass(frozen=True)
class DampFactors(Work):
    """The factors of a layer with the damping on their diagonals, shared so that their norms are weighed:
    damped_a = A + pi sqrt(damping) I and damped_g = G + sqrt(damping) / pi I, where pi^2 is the mean of A's diagonal
    over the mean of G's (1 where one of them is not above 0). Lower triangles, as KroneckerFactor has them."""

    roles = reads("a", "g") | writes("damped_a", "damped_g")
    numbers = ("d", "k", "damping")
    d: int
    k: int
    damping: float
    dtype: DType = "float32"

    def array(self, name: str) -> Array:
        size = self.d if name.endswith("a") else self.k
        return (size, size), self.dtype


@dataclass(frozen=True)
class CholeskyInverse(Work):
    """x = the inverse of a symmetric positive definite x, of which the lower triangle is read and all is written. One
    that is not positive definite: NaN, or what its decomposition left, and info, int32 (1,), is set to the order of the
    minor that is not; else info stays as it was."""

    kind = "solver"
    roles = updates("x", "info")
    size: int
    dtype: DType = "float32"

    def array(self, name: str) -> Array:
        return ((1,), "int32") if name == "info" else ((self.size, self.size), self.dtype)

    @property
    def flops(self) -> int:
        return self.size**3


@dataclass(frozen=True)
class BeginInverse(Work):
    """Before a CholeskyInverse that is solved for: factor = x, and x = the identity."""

    roles = updates("x") | writes("factor")
    numbers = ("size",)
    size: int

    def array(self, name: str) -> Array:
        return (self.size, self.size), "float32"


@dataclass(frozen=True)
class EndInverse(Work):
    """After a CholeskyInverse that was solved for: where the decomposition's own info is not 0, x = NaN and the work's
    info is that."""

    roles = reads("minor") | updates("x", "info")
    numbers = ("size",)
    size: int

    def array(self, name: str) -> Array:
        return ((self.size, self.size), "float32") if name == "x" else ((1,), "int32")
