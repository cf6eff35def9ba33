"""Both optimizers, on the processor, against the textbook's update."""

import numpy as np
import pytest

from tcbench.core.errors import TrainingError
from tcbench.engine.accelerators.cpu.reference.operands import CHUNK
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.optimizers import BatchedSGD, OptimizerSpec, PerParameterSGD

pytestmark = pytest.mark.usefixtures("on_the_processor")
SHAPES = {"a": (3, 5), "b": (7,), "c": (CHUNK + 11,), "d": (64, 64, 3, 3)}


def make(dtypes: str | dict[str, str] = "float32"):
    rng = np.random.RandomState(0)
    model = chainer.Chain()
    with model.init_scope():
        for name, shape in SHAPES.items():
            dtype = dtypes if isinstance(dtypes, str) else dtypes[name]
            setattr(model, name, chainer.Parameter(rng.standard_normal(shape).astype(dtype)))
    return model


def set_gradients(model, step: int, scale: float = 1.0) -> None:
    rng = np.random.RandomState(100 + step)
    for name in SHAPES:
        parameter = getattr(model, name)
        values = rng.standard_normal(parameter.shape) * scale
        parameter.grad = values.astype(parameter.dtype)


def spec(**changes) -> OptimizerSpec:
    settings = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 1e-2, "build": BatchedSGD}
    return OptimizerSpec(**(settings | changes))


def reference(model, steps: int, loss_scale: float) -> dict[str, np.ndarray]:
    """The textbook's update in float64."""
    weights = {name: getattr(model, name).array.astype(np.float64) for name in SHAPES}
    velocity = {name: np.zeros_like(w) for name, w in weights.items()}
    for step in range(steps):
        set_gradients(model, step, loss_scale)
        for name, w in weights.items():
            g = getattr(model, name).grad.astype(np.float64) / loss_scale + 1e-2 * w
            velocity[name] = 0.9 * velocity[name] - 0.1 * g
            weights[name] = w + velocity[name]
    return weights


MIXED = {"a": "float16", "b": "float32", "c": "float16", "d": "float16"}


@pytest.mark.parametrize(
    ("kind", "dtypes"),
    [
        (BatchedSGD, "float32"),
        (BatchedSGD, MIXED),
        (PerParameterSGD, "float32"),
        (PerParameterSGD, "float64"),
        (PerParameterSGD, MIXED),
    ],
)
def test_it_is_the_textbooks_update(kind, dtypes):
    expected = reference(make(dtypes), 4, 8.0)
    model = make(dtypes)
    optimizer = kind(spec(loss_scale=8.0, master_weights=True), model)
    for step in range(4):
        set_gradients(model, step, 8.0)
        optimizer.update()
    masters = optimizer.masters()
    tolerances = {"float64": 1e-12, "float32": 2e-6, "float16": 1e-3 if kind is PerParameterSGD else 2e-6}
    for name, weights in expected.items():
        parameter = getattr(model, name)
        master, tolerance = masters[id(parameter)], tolerances[parameter.dtype.name]
        np.testing.assert_allclose(master, weights, rtol=tolerance, atol=tolerance)
        assert np.array_equal(parameter.array, master.astype(parameter.dtype))


def test_small_updates_are_lost_without_a_master_copy_and_kept_with_one():
    results = {}
    for master in (True, False):
        model = make("float16")
        before = model.b.array.copy()
        changes = {"learning_rate": 4e-5, "momentum": 0.0, "weight_decay": 0.0, "master_weights": master}
        optimizer = PerParameterSGD(spec(**changes), model)
        for _ in range(50):
            for name in SHAPES:
                getattr(model, name).grad = np.ones(SHAPES[name], np.float16)
            optimizer.update()
        results[master] = before.astype(np.float64) - model.b.array
    # 50 updates of 4e-5 are 2e-3: above half a float16 spacing near 1, while one of them is far below.
    large = np.abs(make("float16").b.array) > 0.5
    assert np.all(results[False][large] == 0)
    assert np.all(results[True][large] > 0)


@pytest.mark.parametrize("kind", [BatchedSGD, PerParameterSGD])
def test_an_overflowed_gradient_is_not_hidden(kind):
    model = make("float16")
    optimizer = kind(spec(master_weights=True, loss_scale=8.0), model)
    set_gradients(model, 0)
    model.b.grad[0] = np.inf
    optimizer.update()
    assert np.isfinite(model.b.array).all()
    with pytest.raises(TrainingError, match="overflowed at a loss scale of 8"):
        optimizer.check()


def test_a_dynamic_scale_skips_the_step_as_a_whole_and_halves():
    model = make("float16")
    optimizer = BatchedSGD(spec(master_weights=True, loss_scale=8.0, dynamic_scale=True), model)
    set_gradients(model, 0)
    model.b.grad[0] = np.inf
    before = model.a.array.copy()
    optimizer.update()
    assert np.array_equal(model.a.array, before)
    assert optimizer.state.tolist() == [4.0, 0.0, 0.0, 1.0]


@pytest.mark.parametrize("kind", [BatchedSGD, PerParameterSGD])
def test_parameters_of_another_dtype_are_refused(kind):
    with pytest.raises(ValueError, match="got int16"):
        kind(spec(), make("int16"))


@pytest.mark.parametrize("build", [PerParameterSGD, BatchedSGD])
def test_a_rate_that_changes_leaves_the_momentum_of_gradients_as_it_was(build):
    # Goyal 2017, equation (9): u = momentum u + g, w = w - rate u. Ours has the rate within v.
    rates = (0.1, 0.1, 0.4, 0.04)
    model = make()
    weights = {name: getattr(model, name).array.astype(np.float64) for name in SHAPES}
    momentum = {name: np.zeros_like(w) for name, w in weights.items()}
    optimizer = build(spec(learning_rate=rates[0], build=build), model)
    for step, rate in enumerate(rates):
        set_gradients(model, step)
        for name, w in weights.items():
            momentum[name] = 0.9 * momentum[name] + getattr(model, name).grad.astype(np.float64) + 1e-2 * w
            weights[name] = w - rate * momentum[name]
        optimizer.set_learning_rate(rate)
        optimizer.update()
    for name, expected in weights.items():
        np.testing.assert_allclose(getattr(model, name).array, expected, rtol=1e-4, atol=1e-5)
