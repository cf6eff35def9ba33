"""What holds for all ops together: the graph they build, static replay, threads, memory."""

import contextlib
import gc
import weakref

import numpy as np
import pytest

from tcbench.engine.accelerators.cpu import threads
from tcbench.engine.accelerators.cpu.reference import (
    batch_norm,
    convolution,
    elementwise,
    half,
    im2col,
    pooling,
)
from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer
from tcbench.engine.backends.chainer.static import static_body


class Net(chainer.Chain):
    """conv -> bn -> relu -> pool -> (bottleneck with shortcut) -> average -> linear."""

    def __init__(self, layout, dtype, fused):
        super().__init__()
        rng = np.random.default_rng(0)
        self.layout, self.fused = layout, fused
        with self.init_scope():
            for name, k, c, r in (("w0", 8, 3, 7), ("w1", 16, 8, 3), ("w2", 8, 16, 1)):
                shape = (k, c, r, r) if layout == "NCHW" else (k, r, r, c)
                filters = rng.standard_normal(shape) * np.sqrt(2 / (c * r * r))
                setattr(self, name, chainer.Parameter(filters.astype(dtype)))
                setattr(self, "g" + name, chainer.Parameter(np.ones(k, np.float32)))
                setattr(self, "b" + name, chainer.Parameter(np.zeros(k, np.float32)))
            self.w = chainer.Parameter(rng.standard_normal((5, 8)).astype(dtype))
            self.b = chainer.Parameter(np.zeros(5, np.float32))
        self.runnings = {
            name: ops.RunningStatistics(np.zeros(k, np.float32), np.ones(k, np.float32))
            for name, k in (("w0", 8), ("w1", 16), ("w2", 8))
        }

    def unit(self, x, name, stride, pad, residual=None):
        h = ops.convolution_2d(x, getattr(self, name), stride=stride, pad=pad, layout=self.layout)
        scalars = (getattr(self, "g" + name), getattr(self, "b" + name))
        running = self.runnings[name]
        if self.fused:
            return ops.batch_norm(h, *scalars, running, layout=self.layout, relu=True, residual=residual)
        h = ops.batch_norm(h, *scalars, running, layout=self.layout)
        return ops.relu(h if residual is None else ops.add(h, residual))

    def body(self, x):
        h = self.unit(x, "w0", 2, 3)
        h = ops.max_pooling_2d(h, ksize=3, stride=2, pad=1, layout=self.layout)
        h = self.unit(self.unit(h, "w1", 1, 1), "w2", 1, 0, residual=h)
        return ops.linear(ops.global_average_pooling_2d(h, layout=self.layout), self.w, self.b)

    def forward(self, x):
        return self.body(x)


class StaticNet(Net):
    def __init__(self, *kind):
        super().__init__(*kind)
        self.recorded = static_body(lambda net, x: (net.body(x),))

    def forward(self, x):
        return self.recorded(self, x)[0]


def train(net, dtype, layout, steps):
    """Losses and, at the end, every parameter and running statistic."""
    losses = []
    for step in range(steps):
        rng = np.random.default_rng(step)
        x = rng.standard_normal((4, 3, 33, 30) if layout == "NCHW" else (4, 33, 30, 3)).astype(dtype)
        loss = ops.softmax_cross_entropy(net(chainer.Variable(x)), rng.integers(0, 5, 4).astype(np.int32))
        net.cleargrads()
        loss.backward()
        losses.append(float(loss.array))
        for p in net.params():
            p.array -= (0.05 * p.grad.astype(np.float32)).astype(p.dtype)
    state = {name: p.array for name, p in net.namedparams()}
    state |= {f"{name}/{kind}": getattr(r, kind) for name, r in net.runnings.items() for kind in ("mean", "var")}
    return losses, state


def assert_identical(a, b):
    assert a[0] == b[0]
    assert a[1].keys() == b[1].keys()
    for name in a[1]:
        np.testing.assert_array_equal(a[1][name], b[1][name], err_msg=name)


@pytest.mark.parametrize(
    ("layout", "dtype", "fused"),
    [("NCHW", "float32", False), ("NCHW", "float16", True), ("NHWC", "float32", True), ("NHWC", "float16", False)],
)
def test_static_replay_is_bit_identical_to_the_dynamic_graph(layout, dtype, fused):
    dynamic = train(Net(layout, dtype, fused), dtype, layout, 6)
    assert dynamic[0][5] < dynamic[0][0] or dynamic[0][0] != dynamic[0][1]
    assert_identical(train(StaticNet(layout, dtype, fused), dtype, layout, 6), dynamic)


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_results_do_not_depend_on_the_number_of_threads(layout, dtype, monkeypatch):
    for module in (batch_norm, elementwise):
        monkeypatch.setattr(module, "CHUNK", 999)  # else one chunk would hold everything
    results = []
    with threads._one_blas_thread():
        for n in (1, 2, 3):
            with threads.use(n):
                results.append(train(Net(layout, dtype, True), dtype, layout, 2))
    assert_identical(results[1], results[0])
    assert_identical(results[2], results[0])


def test_results_do_not_depend_on_what_memory_held(monkeypatch):
    """Outputs and scratch are filled with NaN instead of left as they are."""
    clean = train(Net("NHWC", "float32", True), "float32", "NHWC", 2)
    empty, empty_like, scratch = np.empty, np.empty_like, threads.scratch

    def poison(array):
        if array.dtype.kind == "f":
            array[...] = np.nan
        return array

    monkeypatch.setattr(np, "empty", lambda *args, **kwargs: poison(empty(*args, **kwargs)))
    monkeypatch.setattr(np, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs)))
    for module in (batch_norm, elementwise, pooling, half, convolution, im2col):
        monkeypatch.setattr(module, "scratch", lambda *args: poison(scratch(*args)))
    assert_identical(train(Net("NHWC", "float32", True), "float32", "NHWC", 2), clean)


def test_memory_is_freed_by_reference_counts_alone():
    gc.collect()
    gc.disable()
    try:
        net = Net("NHWC", "float32", True)
        x = chainer.Variable(np.ones((4, 33, 30, 3), np.float32))
        loss = ops.softmax_cross_entropy(net(x), np.zeros(4, np.int32))
        loss.backward()
        nodes, seen = [loss.creator_node], []
        while nodes:
            node = nodes.pop()
            seen += [weakref.ref(node), *(weakref.ref(v) for v in vars(node).values() if isinstance(v, np.ndarray))]
            nodes += [v.creator_node for v in node.inputs if v.creator_node is not None]
            del node
        kept = {id(array) for p in net.params() for array in (p.array, p.grad)} | {id(x.array)}
        assert len(seen) > 20
        del loss
        alive = [ref() for ref in seen if ref() is not None and id(ref()) not in kept]
        assert [a for a in alive if not isinstance(a, np.ndarray) or a.base is None] == []
    finally:
        gc.enable()


def test_outputs_are_fresh_at_every_call():
    x = np.ones((2, 4, 4, 8), np.float32)
    a, b = (ops.relu(x).array for _ in range(2))
    assert not np.shares_memory(a, b)
    assert not np.shares_memory(a, x)


def test_a_second_derivative_is_refused_with_a_reason():
    x = chainer.Variable(np.ones((2, 3), np.float32))
    y = ops.relu(x)
    y.grad = np.ones_like(y.array)
    y.backward(enable_double_backprop=True)
    x.grad_var.grad = np.ones_like(y.array)
    with pytest.raises(NotImplementedError, match="first derivatives only"):
        x.grad_var.backward()


def graph_of(loss):
    """Every function of a graph as far as backward depends on it, from the loss on."""
    nodes, seen = [loss.creator_node], []
    while nodes:
        node = nodes.pop(0)
        outputs = [output() for output in node.outputs]
        seen.append(
            (
                type(node),
                node.rank,
                node.lazy_grad_sum,
                [(x.shape, x.dtype, x.rank, x.requires_grad) for x in node.inputs],
                [y and (y.shape, y.dtype, y.rank, y.requires_grad, y.creator_node is node) for y in outputs],
            )
        )
        nodes += [x.creator_node for x in node.inputs if x.creator_node is not None]
    return seen


@pytest.mark.parametrize("fused", [False, True])
def test_the_graph_is_the_one_that_chainer_builds(fused):
    def trained(scope):
        net = Net("NHWC", "float32", fused)
        with scope:
            loss = ops.softmax_cross_entropy(net(np.ones((4, 33, 30, 3), np.float32)), np.zeros(4, np.int32))
            graph = graph_of(loss)
            loss.backward()
        return graph, {name: parameter.grad for name, parameter in net.namedparams()}

    class Listens(chainer.FunctionHook):
        """Whatever listens has Chainer's own `apply` run."""

        name = "listens"

    ours, theirs = trained(contextlib.nullcontext()), trained(Listens())
    assert len(ours[0]) > 10
    assert ours[0] == theirs[0]
    for name, gradient in theirs[1].items():
        assert np.array_equal(ours[1][name], gradient), name


def test_chainers_debug_mode_sees_what_an_operation_computes():
    with chainer.using_config("debug", True), pytest.raises(RuntimeError, match="NaN is detected on forward"):
        ops.relu(np.full((1, 1), np.nan, np.float32))


def test_nothing_is_recorded_without_backprop():
    x = chainer.Variable(np.ones((2, 3), np.float32))
    with chainer.no_backprop_mode():
        assert ops.relu(x).creator_node is None
