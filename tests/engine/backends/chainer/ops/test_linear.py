import numpy as np
import pytest

from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer

TOLERANCE = {"float64": 1e-13, "float32": 1e-5, "float16": 2e-3}


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16"])
@pytest.mark.parametrize(("features", "classes"), [(64, 10), (600, 301)], ids=["one-product", "several-products"])
def test_output_and_gradients_match_the_definition(dtype, features, classes):
    rng = np.random.default_rng(0)
    shapes = ((4, features), (classes, features), (4, classes))
    x, w, gy = (rng.standard_normal(shape).astype(dtype) for shape in shapes)
    scalars = "float64" if dtype == "float64" else "float32"
    b = rng.standard_normal(classes).astype(scalars)
    xv, wv, bv = (chainer.Variable(array) for array in (x, w, b))
    y = ops.linear(xv, wv, bv)
    y.grad = gy
    y.backward()
    assert [array.dtype for array in (y.array, xv.grad, wv.grad, bv.grad)] == [dtype, dtype, dtype, scalars]
    x, w, gy = (array.astype(np.float64) for array in (x, w, gy))
    expected = [
        np.einsum("nc,kc->nk", x, w) + b,
        np.einsum("nk,kc->nc", gy, w),
        np.einsum("nk,nc->kc", gy, x),
        gy.sum(0),
    ]
    for got, exact in zip((y.array, xv.grad, wv.grad, bv.grad), expected, strict=True):
        np.testing.assert_allclose(got, exact, rtol=0, atol=TOLERANCE[dtype] * np.abs(exact).max())


def test_gradients_match_finite_differences():
    rng = np.random.default_rng(0)
    arrays = [rng.standard_normal(shape) for shape in ((3, 6), (4, 6), (4,))]
    directions = [rng.standard_normal(array.shape) for array in arrays]
    variables = [chainer.Variable(array) for array in arrays]
    y = ops.linear(*variables)
    y.grad = gy = rng.standard_normal(y.shape)
    y.backward()
    for i, direction in enumerate(directions):
        ahead, behind = (
            ops.linear(*(a + eps * direction if i == j else a for j, a in enumerate(arrays))).array
            for eps in (0.5, -0.5)
        )
        np.testing.assert_allclose(((ahead - behind) * gy).sum(), (variables[i].grad * direction).sum(), rtol=1e-12)


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="do not fit"):
        ops.linear(np.ones((2, 3)), np.ones((4, 5)), np.ones(4))
