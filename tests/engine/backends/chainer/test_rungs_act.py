"""Rungs are seen to do what `numerics --rungs` does not observe of them, in a real session on a small model."""

import gc
import weakref

import numpy as np
import pytest
from training import run_step, small_session

from tcbench.engine.backends.chainer.compat import chainer


class Applied(chainer.FunctionHook):
    """The label of every FunctionNode that is applied."""

    name = "applied"

    def __init__(self) -> None:
        self.labels: list[str] = []

    def forward_preprocess(self, function, in_data) -> None:
        self.labels.append(function.label)


def applied(config: str, steps: int = 1) -> list[Applied]:
    """Run `steps` steps and return the functions that each applied."""
    hooks = []
    with small_session(config) as session:
        for _ in range(steps):
            with Applied() as hook:
                run_step(session)
            hooks.append(hook)
    return hooks


def count(hook: Applied, *names: str) -> int:
    return sum(label in names for label in hook.labels)


@pytest.mark.parametrize("config", ["fp32+im2col", "fp16+nhwc+fused+im2col"])
def test_im2col_replaces_every_convolution_that_is_no_matrix_product_as_it_stands(config):
    (hook,) = applied(config)
    # The stem, three 3x3, and the first convolution and the shortcut's of the block with a stride; 1x1 is left.
    assert (count(hook, "Im2colConvolution"), count(hook, "Convolution")) == (1 + 3 + 2, 12 - 6)


@pytest.mark.parametrize("config", ["fp32+static_graph", "fp16+batched+nhwc+fused+static_graph"])
def test_static_graph_builds_no_graph_from_the_second_step_on(config):
    first, _, third = applied(config, steps=3)
    assert count(first, "Convolution") == 12
    # What is left lies outside the recorded body: the replay itself, forward and backward, and the loss.
    outside = {"RecordedGraph", "SoftmaxCrossEntropy", "SoftmaxCrossEntropy.gradient"}
    assert set(third.labels) <= outside, third.labels
    assert len(third.labels) <= 4


def forward_and_seed(session):
    session.step.io()
    session.step.forward()
    session.step.loss.grad = np.ones((), np.float32)
    return session.step.loss


def test_static_graph_records_anew_until_a_pass_has_gone_backward():
    """Only that can be replayed; and what is replayed is of the batch of that step."""
    with small_session("fp32+static_graph") as static, small_session("fp32") as dynamic:
        for session in (static, dynamic):
            forward_and_seed(session)
            run_step(session)
            run_step(session)
        pairs = zip(static.step.model.params(), dynamic.step.model.params(), strict=True)
        assert all(np.array_equal(replayed.grad, plain.grad) for replayed, plain in pairs)


def test_static_graph_refuses_the_gradient_of_a_pass_whose_memory_is_used_again():
    with small_session("fp32+static_graph") as session:
        run_step(session)
        first, second = forward_and_seed(session), forward_and_seed(session)
        with pytest.raises(RuntimeError, match="a later forward pass has used the memory"):
            first.backward()
        second.backward()


def test_static_graph_evaluates_as_without_it():
    def logits(config):
        with small_session(config) as session, chainer.using_config("train", False), chainer.no_backprop_mode():
            session.step.io()
            return session.step.model(session.step.x).array

    assert np.array_equal(logits("fp32+static_graph"), logits("fp32"))


def test_activations_are_freed_before_the_next_forward_pass():
    """Nothing keeps the graph but the loss, and the loss goes at the end of backward: no garbage collection needed."""
    with small_session("fp32+batched+nhwc+fused") as session:
        run_step(session)
        gc.collect()
        gc.disable()
        try:
            session.step.io()
            session.step.forward()
            nodes, seen = [session.step.loss.creator_node], []
            while nodes:
                node = nodes.pop()
                seen += [weakref.ref(node), *(weakref.ref(v) for v in vars(node).values() if isinstance(v, np.ndarray))]
                nodes += [x.creator_node for x in node.inputs if x.creator_node is not None]
            del node
            assert len(seen) > 50
            session.step.backward()
            stays = [session.step.x, session.step.t, *(p.array for p in session.step.model.params())]
            permanent = {id(array) for array in stays}
            alive = [ref() for ref in seen if ref() is not None and id(ref()) not in permanent]
            assert [
                survivor for survivor in alive if not isinstance(survivor, np.ndarray) or survivor.base is None
            ] == []
        finally:
            gc.enable()
