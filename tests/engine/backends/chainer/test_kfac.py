"""K-FAC against dense Fisher information in float64: every product of gradients written out, and solved as it is."""

import itertools

import numpy as np
import pytest
from training import numpys_processor, parameters, small_session

from tcbench.core.errors import TrainingError
from tcbench.core.record import KfacSettings, TrainSettings
from tcbench.engine.accelerators.device import OpenDevice
from tcbench.engine.backends.chainer import kfac
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.models.geometry import Conv
from tcbench.engine.models.resnet import ResNet
from tcbench.engine.numerics.flow import on_host

IMAGE = 8
DAMPING, DECAY = 0.03, 0.7
TINY = ResNet("tiny", stem=Conv(3, 4, 3), blocks_per_stage=(1, 1), width=2)
"""A stem of 3x3, two blocks of 1x1, 3x3 and 1x1, the second strided, with their shortcuts, and a classifier: no dense
matrix has more than 170 rows."""


def session(config: str, site: OpenDevice | None = None, **settings):
    train = TrainSettings(
        learning_rate=0.05, momentum=0.9, kfac=KfacSettings(**{"damping": DAMPING, "decay": DECAY, **settings})
    )
    return small_session(config, geometry=TINY, image_size=IMAGE, site=site or numpys_processor(), train=train)


class Seen(chainer.FunctionHook):
    """Input, filter and gradient of the output of each convolution and classifier, by the filter's identity."""

    name = "seen"

    def __init__(self) -> None:
        self.by_filter: dict[int, tuple[object, np.ndarray, np.ndarray]] = {}

    def forward_preprocess(self, function, in_data) -> None:
        if function.label.endswith(".wgrad"):
            node = function.launch.__self__
            self.by_filter[id(node.w)] = node, node.x.astype(np.float64), in_data[0].astype(np.float64)


def patches(node, x: np.ndarray) -> np.ndarray:
    """Return the filter's inputs at each output pixel, (image, pixel, filter element)."""
    if x.ndim == 2:
        return np.concatenate([x, np.ones((len(x), 1))], axis=1)[:, None, :]
    last = node.layout == "NHWC"
    images = x.transpose(0, 3, 1, 2) if last else x
    side = node.w.shape[1 if last else 2]
    padded = np.pad(images, [(0, 0), (0, 0), (node.pad,) * 2, (node.pad,) * 2])
    steps = range(0, padded.shape[2] - side + 1, node.stride)
    windows = [padded[:, :, i : i + side, j : j + side] for i, j in itertools.product(steps, steps)]
    axes = (0, 2, 3, 1) if last else (0, 1, 2, 3)
    return np.stack([window.transpose(axes).reshape(len(x), -1) for window in windows], axis=1)


def outputs(node, gy: np.ndarray) -> np.ndarray:
    """Each image's own gradient of the layer's output, (image, pixel, channel): that of the mean is over the batch."""
    if gy.ndim == 4:
        last = gy.transpose(0, 2, 3, 1) if node.layout == "NCHW" else gy
        return last.reshape(len(gy), -1, last.shape[3]) * len(gy)
    return gy[:, None, :] * len(gy)


def expected_factors(node, x, gy) -> tuple[np.ndarray, np.ndarray]:
    """The sum over pixels of the inputs' products, the mean of the gradients', both in the mean over images."""
    a, g = patches(node, x), outputs(node, gy)
    return np.einsum("itc,itd->cd", a, a) / len(a), np.einsum("itk,itl->kl", g, g) / len(g) / g.shape[1]


def solved(a: np.ndarray, g: np.ndarray, gradient: np.ndarray, damping: float) -> np.ndarray:
    """The gradient (K, D) by the inverse of the dense (KD, KD) matrix."""
    pi = np.sqrt((np.trace(a) / len(a)) / (np.trace(g) / len(g)))
    dense = np.kron(g + np.sqrt(damping) / pi * np.eye(len(g)), a + np.sqrt(damping) * pi * np.eye(len(a)))
    return np.linalg.solve(dense, gradient.ravel()).reshape(gradient.shape)


def matrices(step) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return each layer's gradient that the optimizer will read, as (K, D), and its filter."""
    gradients = [np.array(on_host(g), np.float64) for g in step.optimizer.gradients()]
    by_layer = {}
    for layer in step.preconditioner.layers:
        gw = gradients[layer.weight].reshape(layer.k, -1)
        if layer.bias is not None:
            gw = np.concatenate([gw, gradients[layer.bias][:, None]], axis=1)
        by_layer[layer.name] = gw, list(step.model.params())[layer.weight].array
    return by_layer


def run_up_to(session, last: str) -> None:
    for phase in session.phases:
        phase.run()
        if phase.name == last:
            return


CONFIGS = {
    "fp64+kfac": 1e-13,
    "fp32+kfac": 1e-5,
    "fp32+nhwc+kfac": 1e-5,
    "fp32+nhwc+fused+batched+kfac": 1e-5,
    "fp32+im2col+kfac": 1e-5,
}
"""And the most that a layer's gradient may be off, relative."""


def errors(config: str, steps: int = 3) -> dict[str, float]:
    """The largest distance of each layer's gradient from the dense one's, over a few steps of training."""
    worst: dict[str, float] = {}
    averages: dict[str, tuple[np.ndarray, np.ndarray]] = {}
    with session(config) as opened:
        step = opened.step
        for _ in range(steps):
            with Seen() as seen:
                run_up_to(opened, "backward")
            before = matrices(step)
            for phase in opened.phases[3:-1]:
                phase.run()
            for name, (after, w) in matrices(step).items():
                node, x, gy = seen.by_filter[id(w)]
                new = expected_factors(node, x, gy)
                old = averages.get(name, new)
                averages[name] = a, g = tuple(DECAY * o + (1 - DECAY) * n for o, n in zip(old, new, strict=True))
                right = solved(a, g, before[name][0], DAMPING)
                off = float(np.linalg.norm(after - right) / np.linalg.norm(right))
                worst[name] = max(worst.get(name, 0.0), off)
            opened.phases[-1].run()
    return worst


@pytest.mark.parametrize("config", CONFIGS)
def test_every_layers_gradient_is_divided_by_the_dense_kronecker_product(config):
    off = errors(config)
    blocks = [f"block{number}.{unit}" for number in (1, 2) for unit in ("a", "b", "c", "shortcut")]
    assert sorted(off) == [*blocks, "head", "stem"]
    assert max(off.values()) < CONFIGS[config], off


def test_where_inputs_and_gradients_are_independent_the_factors_are_the_fisher_information_itself():
    """Each of 4 inputs meets each of 2 gradients once: then the mean of the gradients' products over images, which is
    the Fisher information without any approximation, is the Kronecker product of both second moments."""
    rng = np.random.default_rng(0)
    a = np.concatenate([rng.standard_normal((4, 16)), np.ones((4, 1))], axis=1)
    g = rng.standard_normal((2, 10))
    pairs = [(x, y) for x in a for y in g]
    per_image = np.stack([np.outer(y, x).ravel() for x, y in pairs])
    fisher = per_image.T @ per_image / len(pairs)
    with session("fp64+kfac") as opened:
        divides = opened.step.preconditioner
        run_up_to(opened, "backward")
        head = next(layer for layer in divides.layers if layer.name == "head")
        ((node, _),) = divides._used[head]
        node.x = np.array([x[:-1] for x, _ in pairs])
        divides._used = {head: [(node, np.array([y for _, y in pairs]) / len(pairs))]}
        divides.factors()
        a, g = (np.tril(f) + np.tril(f, -1).T for f in divides._factors[head])
        np.testing.assert_allclose(np.kron(g, a), fisher, atol=1e-12)


def test_weights_move_by_the_divided_gradient_and_batch_norm_by_its_own():
    with session("fp64+kfac") as opened:
        before = parameters(opened)
        run_up_to(opened, "backward")
        plain = {id(p): p.grad.copy() for p in opened.step.model.params()}
        for phase in opened.phases[3:]:
            phase.run()
        after = parameters(opened)
        for name, p in opened.step.model.namedparams():
            sgd = -0.05 * (plain[id(p)] + 1e-4 * before[name])
            is_sgds = np.allclose(after[name] - before[name], sgd, rtol=1e-9, atol=0)
            assert is_sgds == name.endswith(("gamma", "beta")), name
    assert len(plain) == 29


def test_factors_and_inverses_are_made_anew_at_every_interval_and_gradients_divided_at_each_step():
    with session("fp64+kfac", interval=3) as opened:
        step = opened.step
        seen = []
        for _ in range(7):
            run_up_to(opened, "backward")
            assert bool(step.preconditioner._used) == (len(seen) % 3 == 0)
            for phase in opened.phases[3:]:
                phase.run()
            seen.append((step.preconditioner._moments.copy(), {n: g for n, (g, _) in matrices(step).items()}))
    changed = [not np.array_equal(before[0], after[0]) for before, after in itertools.pairwise(seen)]
    assert changed == [False, False, True, False, False, True]


def test_a_factor_that_cannot_be_inverted_is_named(monkeypatch):
    with session("fp32+kfac") as opened:
        run_up_to(opened, "factors")
        layer = next(candidate for candidate in opened.step.preconditioner.layers if candidate.name == "block1.b")
        opened.step.preconditioner._factors[layer][1][0, 0] = -1e6
        opened.phases[4].run()
        with pytest.raises(TrainingError, match=r"factor of block1\.b is not positive .* raise train.kfac.damping"):
            opened.facts()


def test_costly_layers_are_shared_over_ranks():
    layers = tuple(kfac.KfacLayer(str(size), 0, None, size, size) for size in (10, 100, 90, 30, 80))
    owners = kfac.assign_ranks(layers, 2)
    costs = [sum(layer.cost for layer, rank in owners.items() if rank == number) for number in (0, 1)]
    assert max(costs) / sum(costs) < 0.56
    assert kfac.assign_ranks(layers, 1) == dict.fromkeys(layers, 0)
