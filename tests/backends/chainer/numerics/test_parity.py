"""`--rungs`: every config of the CPU scenario is where its rungs say, and an op that is broken on purpose is found."""

from __future__ import annotations

import numpy as np
import pytest

from tcbench.analysis.parity import SLOPE_AT_MOST, judge
from tcbench.backends import backend
from tcbench.backends.chainer.numerics.parity import compare, slope_error
from tcbench.backends.chainer.ops.cpu import batch_norm, conv_nhwc
from tcbench.backends.chainer.ops.linear import LinearWgrad
from tcbench.backends.chainer.sites import open_site
from tcbench.device import cpu
from tcbench.numerics import plan
from tcbench.scenario import load


def run(*names: str, steps: int = 2):
    scenario = load("cpu")
    configs = [config for config in scenario.configs if not names or config.name in names]
    job, skipped = plan.parity(scenario, cpu(), configs, steps, 1)
    assert not skipped
    judged = judge(compare(job, open_site, lambda done: None), lambda rung: backend("chainer").RUNGS[rung].parity)
    return job, {one.run.config: one.off for one in judged}


def test_all_configs_of_the_cpu_scenario_are_within_what_their_rungs_declare():
    job, off = run(steps=plan.PARITY_STEPS)
    assert {config.name for config in load("cpu").configs} <= set(off)
    assert set(off.values()) == {None}
    assert slope_error(job) < SLOPE_AT_MOST


TOP = "fp32+dali+batched+nhwc+fused"


def test_a_convolution_that_is_wrong_in_one_layout_is_off_where_that_layout_comes_in(monkeypatch):
    right = conv_nhwc.wgrad
    monkeypatch.setattr(conv_nhwc, "wgrad", lambda *a, **k: right(*a, **k) * np.float32(1.5))
    _, off = run(TOP)
    wrong = {config for config, why in off.items() if why}
    assert wrong == {"fp32+dali+batched+nhwc"}
    assert "gradient" in off["fp32+dali+batched+nhwc"]


def test_a_fused_operation_that_forgets_its_relu_is_off_where_it_is_fused(monkeypatch):
    right = batch_norm.normalise

    def forgets(*arguments, relu, **others):
        return right(*arguments, relu=False, **others)

    monkeypatch.setattr(batch_norm, "normalise", forgets)
    _, off = run(TOP)
    assert {config for config, why in off.items() if why} == {TOP}


def test_a_gradient_that_is_wrong_in_every_config_is_off_from_the_slope_of_the_loss(monkeypatch):
    right = LinearWgrad.forward_cpu
    monkeypatch.setattr(LinearWgrad, "forward_cpu", lambda self, inputs: (right(self, inputs)[0] * 1.1,))
    job, off = run("fp32")
    assert set(off.values()) == {None}
    assert slope_error(job) > SLOPE_AT_MOST


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_an_operation_that_gives_no_numbers_is_off_and_not_a_crash(monkeypatch):
    right = conv_nhwc.fprop
    monkeypatch.setattr(conv_nhwc, "fprop", lambda *a, **k: right(*a, **k) * np.float32(np.nan))
    _, off = run(TOP)
    assert off["fp32+dali+batched+nhwc"] == "its loss or its parameters are not finite"


def test_an_operation_that_raises_is_a_config_that_is_off(monkeypatch):
    def broken(*arguments, **others):
        raise ValueError("no such\nlayout")

    monkeypatch.setattr(conv_nhwc, "fprop", broken)
    _, off = run(TOP)
    assert off["fp32+dali+batched+nhwc"] == "ValueError: no such layout"
    assert off["fp32+dali+batched"] is None
