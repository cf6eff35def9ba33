"""The gains from changes to a config, and the one to try next."""

from collections.abc import Sequence

import pytest
from factories import make_measurement, make_phases, make_record, remeasured
from timelines import talk

from tcbench.analysis.advice import Tried, candidates, next_rung
from tcbench.analysis.bottleneck import Bottleneck, explain_records, explain_timeline
from tcbench.analysis.explanation import explain
from tcbench.analysis.stats import Interval
from tcbench.engine.backends import backend
from tcbench.show.bottlenecks import limit_words


def of_phases(**host_s: float) -> Bottleneck:
    """Return the bottleneck of a step that takes as long as its phases together."""
    measurement = make_measurement([sum(host_s.values())] * 12, phases=make_phases(host_s), prefetch_depth=0)
    return explain_records([make_record(batch_size=8, measurement=measurement)])


EVEN = of_phases(io=0.1, forward=0.4, backward=0.4, update=0.1)
LONG_BACKWARD = of_phases(io=0.05, forward=0.2, backward=0.7, update=0.05)


@pytest.mark.parametrize(
    ("slide", "config", "next_config"),
    [
        ("15", "fp32", "fp16"),
        ("17", "fp16", "fp16+batched"),
        ("22", "fp16+dali", "fp16+dali+batched"),
        ("28", "fp16+dali+batched+nhwc+fused", "fp16+dali+batched+nhwc+fused+static_graph"),
        ("32", "fp16+dali+batched+nhwc+fused+static_graph", "fp16+dali+batched+nhwc+fused+static_graph+convstats"),
    ],
)
def test_the_talks_next_step_is_the_one_that_is_advised(slide: str, config: str, next_config: str) -> None:
    problem = backend("chainer").RUNGS.problem
    gain = next_rung(candidates(explain_timeline(talk()[slide]), tuple(config.split("+")), problem))
    assert "+".join(gain.rungs) == next_config


def test_a_measured_rung_is_preferred_and_stands_beside_what_was_expected_of_it() -> None:
    tried = {("fp32", "static_graph"): measured(11.0, 8), ("fp32", "dali"): measured(8.5, 8)}
    gains = candidates(EVEN, ("fp32",), tried=tried, expected=lambda _: Interval(20, 19, 21))
    gain = next_rung(gains)
    assert (gain.added, gain.measured_images_per_s) == (("static_graph",), 11.0)
    assert gain.expected == Interval(20, 19, 21)


def test_of_what_was_not_measured_the_rung_that_is_expected_to_bring_most_is_next() -> None:
    rates = {("fp32", "dali"): 8.1, ("fp32", "batched"): 9.0, ("fp32", "nhwc", "fused"): 12.0}

    def expected(rungs: Sequence[str]) -> Interval | None:
        rate = rates.get(tuple(rungs))
        return rate and Interval(rate, 0.9 * rate, 1.1 * rate)

    input_bound = of_phases(io=0.6, forward=0.2, backward=0.1, update=0.1)  # 8 images/s
    gains = candidates(input_bound, ("fp32",), expected=expected)
    helps = {gain.added: gain.helps for gain in gains if gain.expected}
    assert helps == {("dali",): False, ("batched",): True, ("nhwc", "fused"): True}
    assert next_rung(gains).added == ("nhwc", "fused")


def test_what_is_expected_to_be_slower_than_what_was_measured_is_never_advised() -> None:
    rate = EVEN.images_per_s

    def expected(rungs: Sequence[str]) -> Interval:
        return Interval(1.2 * rate, 1.1 * rate, 1.3 * rate)

    assert next_rung(candidates(EVEN, ("fp32",), expected=expected, fastest=1.1 * rate)) is not None
    assert next_rung(candidates(EVEN, ("fp32",), expected=expected, fastest=2 * rate)) is None


def measured(images_per_s: float, over: float, half_width: float = 0.02) -> Tried:
    factor = images_per_s / over
    return images_per_s, Interval(factor, factor * (1 - half_width), factor * (1 + half_width))


def test_low_precision_is_advised_on_a_cpu_that_has_it_and_says_what_it_has_to_show() -> None:
    gain = next_rung(candidates(LONG_BACKWARD, ("fp32", "nhwc", "fused")), LONG_BACKWARD.dominant)
    assert gain.added == ("fp16",)
    assert "tcbench numerics" in gain.evidence


def test_rungs_that_slow_a_step_on_purpose_are_left_out_and_not_called_slower() -> None:
    [without] = [gain for gain in candidates(LONG_BACKWARD, ("fp32", "im2col")) if gain.removed == ("im2col",)]
    assert (without.rungs, without.helps, without.added) == (("fp32",), True, ())
    assert not [gain for gain in candidates(LONG_BACKWARD, ("im2col",)) if gain.removed]
    for rung in ("im2col", "kfac"):
        tried = {("fp32", rung): measured(3.0, 8)}
        [added] = [gain for gain in candidates(EVEN, ("fp32",), tried=tried) if gain.added == (rung,)]
        assert (added.slower, added.helps) == (False, False)


def test_kfac_is_left_out_where_its_factors_and_inverses_are_what_takes_long() -> None:
    bottleneck = of_phases(io=0.05, forward=0.1, backward=0.15, factors=0.3, inverse=0.4, update=0.02)
    assert limit_words(bottleneck) == "inverse 39%"
    gain = next_rung(candidates(bottleneck, ("fp32", "kfac")), bottleneck.dominant)
    assert gain.removed == ("kfac",)
    assert "a loss in fewer steps" in gain.evidence
    # Where nothing of it is in the step, there is nothing to save.
    assert not [gain for gain in candidates(EVEN, ("fp32", "kfac")) if gain.removed]


@pytest.mark.parametrize("missing", [{"io", "forward"}, {"io"}])
def test_a_cell_whose_phases_have_no_times_is_not_explained(missing: set[str]) -> None:
    phases = make_phases({name: () if name in missing else (0.5,) for name in ("io", "forward")})
    empty = remeasured(make_record(), phases=phases)
    assert [explanation.bottleneck for explanation in explain([empty])] == [None]
    with pytest.raises(ValueError, match="nothing was measured"):
        explain_records([empty])
