"""Tests of properties that all operations share: the graph that they build, threads and memory."""

import contextlib

import numpy as np
import pytest
from training import Trained, numpys_processor, small_session, train

from tcbench.engine.accelerators.cpu.reference import operands
from tcbench.engine.backends.chainer import ops
from tcbench.engine.backends.chainer.compat import chainer

pytestmark = pytest.mark.usefixtures("on_the_processor")


def assert_identical(first: Trained, second: Trained) -> None:
    assert np.array_equal(first.losses, second.losses)
    assert np.array_equal(first.change, second.change)
    for name, statistic in first.running.items():
        assert np.array_equal(second.running[name], statistic), name


@pytest.mark.parametrize("config", ["fp32+fused", "fp16+batched+nhwc+fused"])
def test_results_do_not_depend_on_the_number_of_threads(config, monkeypatch):
    monkeypatch.setattr(operands, "CHUNK", 9_999)  # else one chunk would hold everything
    single_threaded, *multi_threaded = (train(config, 2, site=numpys_processor(n)) for n in (1, 2, 3))
    for other in multi_threaded:
        assert_identical(other, single_threaded)


def test_results_do_not_depend_on_what_memory_held(monkeypatch):
    """Outputs are filled with NaN instead of left as they are."""
    clean = train("fp32+nhwc+fused", 2, site=numpys_processor())
    empty, empty_like = np.empty, np.empty_like

    def poison(array):
        if array.dtype.kind == "f":
            array[...] = np.nan
        return array

    monkeypatch.setattr(np, "empty", lambda *args, **kwargs: poison(empty(*args, **kwargs)))
    monkeypatch.setattr(np, "empty_like", lambda *args, **kwargs: poison(empty_like(*args, **kwargs)))
    assert_identical(train("fp32+nhwc+fused", 2, site=numpys_processor()), clean)


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


@pytest.mark.parametrize("config", ["fp32", "fp32+nhwc+fused"])
def test_the_graph_is_the_one_that_chainer_builds(config):
    def trained(scope):
        with small_session(config, site=numpys_processor()) as session, scope:
            session.step.io()
            session.step.forward()
            graph = graph_of(session.step.loss)
            session.step.backward()
            return graph, {name: parameter.grad for name, parameter in session.step.model.namedparams()}

    class Listens(chainer.FunctionHook):
        """Whatever listens has Chainer's own `apply` run."""

        name = "listens"

    fast, original = trained(contextlib.nullcontext()), trained(Listens())
    assert len(fast[0]) > 10
    assert fast[0] == original[0]
    for name, gradient in original[1].items():
        assert np.array_equal(fast[1][name], gradient), name


def test_chainers_debug_mode_sees_what_an_operation_computes():
    with chainer.using_config("debug", True), pytest.raises(RuntimeError, match="NaN is detected on forward"):
        ops.relu(np.full((1, 1), np.nan, np.float32))


def test_nothing_is_recorded_without_backprop():
    x = chainer.Variable(np.ones((2, 3), np.float32))
    with chainer.no_backprop_mode():
        assert ops.relu(x).creator_node is None
