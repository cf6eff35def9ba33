"""`--rungs`: every config of the CPU scenario is where its rungs say; what is broken on purpose is found and named."""

import dataclasses
import functools

import msgspec
import numpy as np
import pytest
from training import numpys_processor

from tcbench.commands.numerics import plan
from tcbench.commands.numerics.parity_judgement import judge, optimizer_at_most
from tcbench.core.record import Cell
from tcbench.engine import work as w
from tcbench.engine.accelerators.cpu.reference import norm as operations
from tcbench.engine.accelerators.cpu.reference.operands import OPERATIONS
from tcbench.engine.accelerators.device import OpenDevice, host_device
from tcbench.engine.backends.chainer.ops import convolution
from tcbench.engine.backends.chainer.ops.batch_norm import EPS, BatchNorm
from tcbench.engine.backends.chainer.optimizers import BatchedSGD, PerParameterSGD
from tcbench.engine.backends.chainer.rungs import RUNGS
from tcbench.engine.backends.chainer.sites import open_site
from tcbench.engine.numerics import distances
from tcbench.engine.numerics.distances import compare
from tcbench.engine.rung import Rung, storage_of
from tcbench.engine.work import HALVES
from tcbench.run.scenario import Config, load


def planned(*names: str, steps: int = 1):
    scenario = load("cpu")
    configs = [config for config in scenario.configs if not names or config.name in names]
    configs += [Config("chainer", tuple(name.split("+"))) for name in names if name not in {c.name for c in configs}]
    job, skipped = plan.parity_job(scenario, host_device(), configs, steps, 1)
    assert not skipped
    return job


def by_numpy(cell: Cell) -> OpenDevice:
    return numpys_processor(cell.threads)


TRAIN = distances._train


@functools.cache
def in_float64() -> object:
    """Return the result of the reference, in which the bugs of single configs have no effect."""
    cell = planned("fp32").cell
    return TRAIN(cell, [distances._Float64()], by_numpy(cell), 1)


@pytest.fixture(autouse=True, scope="module")
def before_anything_is_broken() -> None:
    in_float64()


def run(*names: str) -> dict[str, str | None]:
    """Return why each config is off after one step on NumPy's kernels, in which faults are planted.

    All of `GRADIENT_BATCHES` are needed: a BLAS for one processor rounds a value across ReLU's kink in a batch in which
    that for another does not."""

    def train(cell: Cell, rungs: list[Rung], *rest: object) -> object:
        return in_float64() if [rung.name for rung in rungs] == ["fp64"] else TRAIN(cell, rungs, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(distances, "_train", train)
        compared = compare(planned(*names), by_numpy, lambda done: None)
    return {judged.run.config: judged.off for judged in judge(compared, lambda rung: RUNGS[rung])}


def wrong(off: dict[str, str | None]) -> set[str]:
    return {config for config, why in off.items() if why}


LADDER = ("bf16+batched+nhwc+fused+static_graph",)
"""The best config and those that lead to it. Single rungs are covered by the tests of the backend."""
OTHERS = ("fp16+batched+nhwc+fused+convstats", "fp16+batched+dynamic_scale")
"""Configs with rungs that no config of the scenario has."""


@pytest.mark.long
@pytest.mark.parametrize(
    ("opens", "names", "steps"),
    [
        (open_site, LADDER, 1),
        pytest.param(open_site, (), plan.PARITY_STEPS, marks=pytest.mark.slow),
        pytest.param(by_numpy, (), plan.PARITY_STEPS, marks=pytest.mark.slow),
        pytest.param(by_numpy, OTHERS, plan.PARITY_STEPS, marks=pytest.mark.slow),
    ],
)
def test_all_configs_are_within_what_their_rungs_declare(opens, names, steps):
    runs = compare(planned(*names, steps=steps), opens, lambda done: None)
    assert {*(names or (config.name for config in load("cpu").configs))} <= {run.config for run in runs}
    assert {run.off for run in judge(runs, lambda rung: RUNGS[rung])} == {None}
    for rung in RUNGS.rungs.values():
        assert set(rung.effects) <= set(runs[0].seen), rung.name


def test_every_rung_that_changes_the_arithmetic_says_how_far_a_first_gradient_may_be():
    for rung in RUNGS.rungs.values():
        for tolerance in filter(None, map(rung.parity.tolerance, ("float32", *HALVES))):
            assert tolerance.gradient is not None, rung.name
        for tolerance in filter(None, map(rung.parity.tolerance, HALVES)):
            assert tolerance.length is not None, rung.name


NHWC, FUSED = "fp32+nhwc", "fp32+nhwc+fused"


# -- wrong in some configs ---------------------------------------------------------------------------------------------


def wgrad_of(monkeypatch, change):
    """Every filter's gradient changed: `change(node)` is the factor."""
    right = convolution.Convolution.wgrad

    def changed(self, accelerator, gy):
        (gw,) = right(self, accelerator, gy)
        gw *= gw.dtype.type(change(self))
        return (gw,)

    monkeypatch.setattr(convolution.Convolution, "wgrad", changed)


def after(monkeypatch, kind, change):
    """Every work of a kind is done, and then something else to its operands."""
    right = OPERATIONS[kind]

    def changed(work, a):
        right(work, a)
        change(work, a)

    monkeypatch.setitem(OPERATIONS, kind, changed)


def scales_gradient_of(monkeypatch, change):
    """The gradient of every batch normalisation's scale changed: `change(dtype)` is the factor."""

    def scaled(work, a):
        a.write(ggamma=a.ggamma * change(work.norm.dtype))

    after(monkeypatch, w.BatchNormBackward, scaled)


@pytest.mark.slow
def test_filters_gradients_a_hundredth_too_long_in_one_layout_are_off_where_that_layout_comes_in(monkeypatch):
    wgrad_of(monkeypatch, lambda node: 1.01 if node.layout == "NHWC" else 1)
    off = run(FUSED)
    assert wrong(off) == {NHWC}
    assert "gradient (" in off[NHWC]


@pytest.mark.slow
@pytest.mark.parametrize(("config", "dtype", "factor"), [("fp16", "float16", 1.02), ("bf16", "bfloat16", 1.05)])
def test_filters_gradients_a_little_too_long_in_16_bits_alone_are_off_though_rounding_scatters_them_more(
    monkeypatch, config, dtype, factor
):
    wgrad_of(monkeypatch, lambda node: factor if node.x.dtype == dtype else 1)
    off = run(config)
    assert off[config].startswith("gradient's length (")


def test_batch_norms_scale_with_a_gradient_too_long_in_float32_is_off_from_float64(monkeypatch):
    scales_gradient_of(monkeypatch, lambda dtype: 1.03 if dtype == "float32" else 1)
    assert "gamma) 0.03 above" in run("fp32")["fp32"]


def test_a_fused_operation_that_forgets_its_relu_is_off_where_it_is_fused(monkeypatch):
    right, had_relu = operations._finish, set()

    def forgets(norm, *arrays):
        had_relu.add(norm.relu)
        right(dataclasses.replace(norm, after="none"), *arrays)

    monkeypatch.setattr(operations, "_finish", forgets)
    assert wrong(run(FUSED)) == {FUSED}
    assert had_relu == {True, False}


@pytest.mark.slow
def test_a_fused_operation_with_another_epsilon_is_off_where_it_is_fused(monkeypatch):
    right = BatchNorm.forward_on

    def changed(self, *arguments):
        with monkeypatch.context() as patched:
            patched.setitem(right.__globals__, "EPS", 3 * EPS if self.relu else EPS)
            return right(self, *arguments)

    monkeypatch.setattr(BatchNorm, "forward_on", changed)
    off = run(FUSED)
    assert wrong(off) == {FUSED}
    assert "gradient (" in off[FUSED]


def is_classifier(weights) -> bool:
    """The classifier is a 1x1 convolution in NHWC whatever the layout is, of as many outputs as there are classes."""
    return weights.shape[1:3] == (1, 1) and weights.shape[0] == planned("fp32").cell.n_classes


def gives_no_numbers(y: np.ndarray) -> None:
    y.fill(np.nan)


def raises(y: np.ndarray) -> None:
    raise ValueError("no such\nlayout")


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    ("ends", "says"),
    [(gives_no_numbers, "its loss or its parameters are not finite"), (raises, "ValueError: no such layout")],
)
def test_an_operation_that_gives_no_numbers_or_raises_is_off_and_not_a_crash(monkeypatch, ends, says):
    def broken(work, a):
        if work.conv.layout == "NHWC" and not is_classifier(a.w):
            ends(a.y)

    after(monkeypatch, w.ConvFprop, broken)
    assert run(NHWC) == {"fp32": None, NHWC: says}


# -- optimizers --------------------------------------------------------------------------------------------------------


def of_spec(changes):
    """The optimizer is made of another description than its rungs gave."""

    def breaks(monkeypatch, optimizer):
        right = optimizer.__init__
        monkeypatch.setattr(
            optimizer, "__init__", lambda self, spec, model: right(self, dataclasses.replace(spec, **changes), model)
        )

    return breaks


no_decay, no_masters, other_momentum = map(
    of_spec, ({"weight_decay": 0.0}, {"master_weights": False}, {"momentum": 0.89})
)


def rounded_masters(monkeypatch, optimizer):
    right = optimizer.update

    def rounds(self):
        right(self)
        for parameter in self._parameters:
            self.masters()[id(parameter)][...] = parameter.array

    monkeypatch.setattr(optimizer, "update", rounds)


@pytest.mark.parametrize(
    ("breaks", "optimizer", "config"),
    [
        pytest.param(no_decay, PerParameterSGD, "fp32", marks=pytest.mark.slow),
        (no_decay, BatchedSGD, "fp32+batched"),
        pytest.param(rounded_masters, BatchedSGD, "fp16+batched", marks=pytest.mark.slow),
        pytest.param(rounded_masters, BatchedSGD, "bf16+batched", marks=pytest.mark.slow),
        pytest.param(no_masters, PerParameterSGD, "fp16", marks=pytest.mark.slow),
        pytest.param(other_momentum, BatchedSGD, "fp32+batched", marks=pytest.mark.slow),
    ],
)
def test_an_optimizer_that_is_not_sgd_is_off(monkeypatch, breaks, optimizer, config):
    breaks(monkeypatch, optimizer)
    off = run(config)
    assert wrong(off) == {config}
    assert "optimizer (" in off[config]
    most = optimizer_at_most(storage_of(RUNGS[name] for name in config.split("+")))
    assert f"from the update of its rungs in float64, above {most:.2g}" in off[config]


def test_an_optimizer_is_held_against_what_its_rung_declares(monkeypatch):
    other_momentum(monkeypatch, BatchedSGD)

    def reference_update(rung, before):
        return lambda weights, gradient, state, train: before(
            weights, gradient, state, msgspec.structs.replace(train, momentum=0.89)
        )

    monkeypatch.setattr(type(RUNGS["batched"]), "reference_update", reference_update, raising=False)
    assert wrong(run("fp32+batched")) == set()


# -- rungs that do nothing, and rungs that do what they do not say -----------------------------------------------------


@pytest.mark.parametrize(
    ("rung", "stage", "config", "says"),
    [
        pytest.param("fp16", "parts", "fp16", "storage: float32, expected float16", marks=pytest.mark.slow),
        ("fp16", "optimizer", "fp16", "master weights: none, expected float32"),
        pytest.param("bf16", "optimizer", "bf16", "master weights: none, expected float32", marks=pytest.mark.slow),
        pytest.param("bf16", "parts", "bf16", "storage: float32, expected bfloat16", marks=pytest.mark.slow),
        pytest.param("nhwc", "parts", "fp32+nhwc", "layout: NCHW, expected NHWC", marks=pytest.mark.slow),
        pytest.param("fused", "parts", "fp32+fused", "ReLU: apart, expected fused", marks=pytest.mark.slow),
        pytest.param("static_graph", "parts", "fp32+static_graph", "graph: built", marks=pytest.mark.slow),
        pytest.param("batched", "optimizer", "fp32+batched", "update: parameter by param", marks=pytest.mark.slow),
        pytest.param(
            "convstats",
            "parts",
            "fp16+nhwc+fused+convstats",
            "batch statistics: from its output, expected from the convolution",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_rung_that_does_nothing_is_off(monkeypatch, rung, stage, config, says):
    monkeypatch.setattr(type(RUNGS[rung]), stage, getattr(Rung, stage))
    off = run(config)
    assert wrong(off) == {config}
    assert says in off[config]


@pytest.mark.slow
def test_a_rung_that_takes_another_ones_effect_back_is_off(monkeypatch):
    monkeypatch.setattr(type(RUNGS["static_graph"]), "parts", type(RUNGS["fp32"]).parts)
    off = run("fp16+batched+static_graph")
    assert "storage: float32, expected float16" in off["fp16+batched+static_graph"]
