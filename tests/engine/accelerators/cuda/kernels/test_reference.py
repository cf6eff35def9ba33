"""The references that works are checked against: complete, and right where no operation is held against Chainer's own
function on the processor, whose works are the references' (test_ops.py)."""

import numpy as np
import pytest
from reference import REFERENCE

from tcbench.engine import work as w
from tcbench.engine.backends.chainer.compat import chainer

F = chainer.functions
LAYOUTS = pytest.mark.parametrize("layout", ["NCHW", "NHWC"])


def kinds_of_work(kind=w.Work):
    for subclass in kind.__subclasses__():
        if not subclass.__module__.startswith(w.__name__):  # one that a test has made
            continue
        if "name" in vars(subclass):
            yield subclass
        yield from kinds_of_work(subclass)


def compute(work, **given):
    """The operands' arrays by name after the work: those given, the rest poisoned with NaN or ones."""
    arrays = {o.name: given.get(o.name, np.full(o.shape, -1).astype(o.dtype)) for o in work.operands}
    REFERENCE[work.name](work, *arrays.values())
    return arrays


def random(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype("float32")


def nchw(array, layout):
    return np.ascontiguousarray(array.transpose(0, 3, 1, 2)) if layout == "NHWC" else array


def gradients(function, inputs, gy):
    variables = [chainer.Variable(array) for array in inputs]
    y = function(*variables)
    return y.array, [variable.array for variable in chainer.grad([y], variables, [chainer.Variable(gy)])]


def assert_close(mine, theirs):
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4)


def test_every_kind_of_work_has_one():
    assert REFERENCE.keys() == {kind.name for kind in kinds_of_work()}


@LAYOUTS
@pytest.mark.parametrize("after", ["none", "relu", "add_relu"])
def test_batch_normalisation_by_cudnns_older_calls(layout, after):
    norm = w.Norm(4, 3, 5, 6, layout, "float32", after)
    eps, momentum = 2e-5, 0.1
    given = {"x": random(*norm.shape), "residual": random(*norm.shape, seed=1), "gy": random(*norm.shape, seed=2)}
    given |= {"gamma": random(3, seed=3), "beta": random(3, seed=4)}
    given |= {"running_mean": random(3, seed=5), "running_var": random(3, seed=6) ** 2}
    x, gy = nchw(given["x"], layout), nchw(given["gy"], layout)
    running_mean, running_var = given["running_mean"].copy(), given["running_var"].copy()

    def theirs(x, residual, gamma, beta):
        y = F.batch_normalization(
            x, gamma, beta, eps=eps, running_mean=running_mean, running_var=running_var, decay=1 - momentum
        )
        y = y + residual if norm.add else y + 0 * residual
        return F.relu(y) if norm.relu else y

    inputs = [x, nchw(given["residual"], layout), given["gamma"], given["beta"]]
    their_y, (gx, gresidual, ggamma, gbeta) = gradients(theirs, inputs, gy)

    after_forward = compute(w.BatchNormCallForward(norm, eps, momentum, True), **given)
    backward = compute(w.BatchNormCallBackward(norm, eps, True), **(given | after_forward))
    assert_close(nchw(after_forward["y"], layout), their_y)
    assert_close(after_forward["running_mean"], running_mean)
    assert_close(after_forward["running_var"], running_var)
    assert_close(nchw(backward["gx"], layout), gx)
    assert_close(backward["ggamma"], ggamma)
    assert_close(backward["gbeta"], gbeta)
    if "gresidual" in backward:
        assert_close(nchw(backward["gresidual"], layout), gresidual)


def test_the_first_of_equal_maxima_is_taken_and_nan_wins():
    x = np.array([1, 5, 5, 2, np.nan, 9, -np.inf, -np.inf], "float32")
    forward = compute(w.MaxPoolForward(w.Pool(1, 1, 1, 8, 2, 2, 1, "NCHW", "float32")), x=x)
    np.testing.assert_array_equal(forward["y"].ravel(), [1, 5, np.nan, 9, -np.inf])
    np.testing.assert_array_equal(forward["place"].ravel(), [3, 2, 3, 2, 2])


def test_updates_of_one_parameter_and_of_all_are_the_same():
    sizes, halves = (5, w.CHUNK + 3), (False, True)
    parameters = w.Parameters(sizes, halves)
    master, velocity = random(parameters.total), random(parameters.total, seed=1)
    grads = [random(sizes[0], seed=2), random(sizes[1], seed=3).astype("float16")]
    state = np.array([8, 0, 0, 0], "float32")
    half = np.empty(sizes[1], "float16")

    expected = []
    where = [slice(place, place + size) for place, size in zip(parameters.places, sizes, strict=True)]
    for gradient, weights, v in zip(grads, (master[w_] for w_ in where), (velocity[w_] for w_ in where), strict=True):
        g = compute(w.Unscale(gradient.size, gradient.dtype.name), g=gradient, state=state)["gx"].astype("float32")
        g = compute(w.WeightDecay(g.size, 1e-4), g=g, w=weights.copy())["g"]
        expected.append(compute(w.MomentumUpdate(g.size, 0.1, 0.9), g=g, v=v.copy(), w=weights.copy())["w"])

    table = np.array([[grads[0].ctypes.data, 0], [grads[1].ctypes.data, half.ctypes.data]])
    chunks = np.array(list(parameters.chunks()))
    update = w.BatchedUpdate(parameters, 0.1, 0.9, 1e-4, dynamic=False)
    compute(update, table=table, chunks=chunks, master=master, velocity=velocity, state=state)
    for place, weights in zip(where, expected, strict=True):
        np.testing.assert_allclose(master[place], weights, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(half, master[where[1]].astype("float16"))
    assert parameters.places == (0, w.ALIGNMENT)
