"""K-FAC: second moments of a layer's inputs and output gradients (Kronecker factors), and their inverses.

A layer's gradient gw (K, D) is a sum of outer products of output gradients g (K,) and inputs a (D,). K-FAC approximates
the layer's Fisher information by the Kronecker product of A = E[a a'] (D, D) and G = E[g g'] (K, K). The preconditioned
gradient is then G^-1 gw A^-1; products with the inverses are 1x1 convolutions (`tcbench.engine.work.convolution`).

Sources: J. Martens and R. Grosse, "Optimizing Neural Networks with Kronecker-factored Approximate Curvature", 2015
(sections 3 and 6.3); R. Grosse and J. Martens, "A Kronecker-factored approximate Fisher matrix for convolution layers",
2016 (section 3.1); K. Osawa et al., "Large-Scale Distributed Second-Order Optimization Using Kronecker-Factored
Approximate Curvature for Deep Convolutional Neural Networks", 2019."""

from dataclasses import dataclass

from tcbench.engine.work.base import Array, DType, Layout, Work, reads, updates, wide, writes


@dataclass(frozen=True)
class KroneckerFactor(Work):
    """factor = decay * factor + scale * (sum of x x' over samples), in float32; only the lower triangle is defined. x
    is a matrix in the layout of `Im2col`: (size, samples) in NCHW, (samples, size) in NHWC."""

    kind = "solver"
    roles = reads("x") | updates("factor")
    size: int
    samples: int
    layout: Layout
    dtype: DType
    scale: float
    decay: float

    def array(self, name: str) -> Array:
        """Return an operand's shape and dtype."""
        if name == "factor":
            return (self.size, self.size), wide(self.dtype)
        shape = (self.size, self.samples) if self.layout == "NCHW" else (self.samples, self.size)
        return shape, self.dtype

    @property
    def flops(self) -> int:
        return self.samples * self.size * (self.size + 1)


@dataclass(frozen=True)
class DampFactors(Work):
    """damped_a = A + pi sqrt(damping) I, damped_g = G + sqrt(damping) / pi I: both factors of a layer with damping.

    pi^2 is the mean of A's diagonal over the mean of G's, or 1 if either is not positive. Only lower triangles are
    defined, as in KroneckerFactor."""

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
    """x = the inverse of x, a symmetric positive definite matrix; reads the lower triangle and writes both.

    If x is not positive definite, its values become NaN or undefined and info (1,), int32, is set to the order of the
    first leading minor that is not positive. Otherwise info does not change."""

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
    """factor = x and x = the identity: the first step of a CholeskyInverse that is computed by a linear solver."""

    roles = updates("x") | writes("factor")
    numbers = ("size",)
    size: int

    def array(self, name: str) -> Array:
        return (self.size, self.size), "float32"


@dataclass(frozen=True)
class EndInverse(Work):
    """x = NaN and info = minor if minor is not 0: the last step of a CholeskyInverse computed by a linear solver.
    `minor` is the status that the decomposition returned."""

    roles = reads("minor") | updates("x", "info")
    numbers = ("size",)
    size: int

    def array(self, name: str) -> Array:
        return ((self.size, self.size), "float32") if name == "x" else ((1,), "int32")
