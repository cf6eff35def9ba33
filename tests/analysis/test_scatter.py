import math
import random

import pytest

from tcbench.analysis import scatter, welch


def cells(*levels_and_trials, drift=(0.0,) * 9, sigma=0.02, seed=0):
    draw = random.Random(seed)
    return [[(k, level + drift[k] + draw.gauss(0, sigma)) for k in range(n)] for level, n in levels_and_trials]


def ratio(of, one, other):
    return welch.log_ratio(of.group(one), of.group(other)).interval()


def test_noise_and_rounds_are_those_of_a_two_way_layout():
    """By hand: three cells, two rounds, the second 0.1 above the first but for noise of +-e in the differences."""
    there = [[(0, 1.0), (1, 1.1)], [(0, 2.0), (1, 2.13)], [(0, 3.0), (1, 3.07)]]
    of = scatter.scatter(there)
    assert (of.degrees, of.drift_degrees) == (2, 1)
    assert of.variance == pytest.approx((0.0**2 + 0.03**2 + 0.03**2) / 2 / 2)
    assert of.round_effects[1] - of.round_effects[0] == pytest.approx(0.1)
    # Of the squares about the cells' means 0.015 are the rounds', and noise alone would leave its variance of them.
    assert of.drift == pytest.approx((0.015 - of.variance) / 3)


def test_a_cell_with_one_trial_takes_the_runs_scatter_and_others_are_drawn_towards_it():
    there = cells((0.0, 3), (1.0, 3), (2.0, 3), (3.0, 3), (0.5, 1))
    of = scatter.scatter(there)
    alone, among = of.group(there[4]), of.group(there[0])
    assert (alone.n, alone.mean, alone.variance, alone.degrees) == (1, there[4][0][1], of.variance, scatter.WEIGHT)
    assert (among.n, among.degrees) == (3, scatter.WEIGHT + 2)
    left = [log - of.round_effects[k] for k, log in there[0]]
    own = sum((log - sum(left) / 3) ** 2 for log in left)
    assert among.variance == pytest.approx((scatter.WEIGHT * of.variance + own) / (scatter.WEIGHT + 2))


def test_a_large_factor_of_one_trial_is_decided_and_a_small_one_is_not():
    there = cells((0.0, 3), *[(0.1, 2)] * 9, (math.log(1.77), 1), (math.log(1.02), 1))
    of = scatter.scatter(there)
    assert ratio(of, there[-2], there[0]).low > 1.4
    assert ratio(of, there[-1], there[0]).holds(1.0)


def test_what_rounds_have_in_common_cancels_between_cells_of_the_same_rounds_alone():
    drift = (0.0, 0.3, -0.3)
    there = cells(*[(0.0, 3)] * 8, (0.0, 1), drift=drift)
    of = scatter.scatter(there)
    same, fewer = (ratio(of, one, there[0]) for one in (there[1], there[-1]))
    assert same.high - same.low < 0.1
    assert math.log(fewer.high / fewer.low) > 0.6
    lacking = [of.group(there[n][:n] + there[n][n + 1 :]) for n in range(2)]  # as many rounds each, and one of both
    differ = welch.log_ratio(*lacking).interval()
    assert math.log(differ.high / differ.low) > 0.6
    other_run = scatter.scatter(there, ("another",)).group(there[1])
    apart = welch.log_ratio(other_run, of.group(there[0])).interval()
    assert apart.high - apart.low > 3 * (same.high - same.low)
    level = of.group(there[0]).geometric_mean.interval()
    assert level.high - level.low > 0.3


def test_two_trials_of_one_cell_tell_as_much_as_two_trials_do():
    """No more than one degree of freedom, however many cells have one trial."""
    there = [[(0, 0.0), (1, 0.02)], [(0, 0.1)], [(0, 0.2)]]
    of = scatter.scatter(there)
    assert (of.variance, of.degrees, of.drift) == (pytest.approx(0.0002), 1, 0.0)
    assert welch.log_ratio(*(of.group(cell) for cell in there[:2])).degrees == 1


@pytest.mark.parametrize("there", [[], [[]], [[(0, 1.0)], [(0, 2.0)]]])
def test_where_no_cell_has_two_trials_nothing_is_known(there):
    assert scatter.scatter(there) is None


def test_a_simulated_run_that_does_not_vary_at_all_has_no_width():
    of = scatter.scatter([[(0, 1.0), (1, 1.0)], [(0, 2.0), (1, 2.0)], [(0, 3.0)]])
    interval = ratio(of, [(0, 3.0)], [(0, 1.0), (1, 1.0)])
    assert interval.low == interval.high == pytest.approx(math.exp(2.0))


@pytest.mark.parametrize("trials", [[3, *[2] * 10, *[1] * 9], [2] * 10 + [1] * 10], ids=str)
@pytest.mark.parametrize("machine", ["alike", "sigmas differ", "one in ten wild", "drift"])
def test_factors_over_the_base_cover_the_truth(machine, trials):
    """`benchmarks/scatter_truth.py` has more of them."""
    draw, covered = random.Random(3), []
    for _ in range(120):
        level, there = 0.0, [[] for _ in trials]
        sigmas = {
            "alike": [0.02] * 20,
            "sigmas differ": [0.02 * draw.lognormvariate(0, 0.8) for _ in trials],
            "one in ten wild": [0.02 * (5 if draw.random() < 0.1 else 1) for _ in trials],
            "drift": [0.05] * 20,
        }[machine]
        for k in range(max(trials)):
            for cell, n in enumerate(trials):
                if k < n:
                    level = 0.73 * level + 0.075 * draw.gauss(0, 1) if machine == "drift" else 0.0
                    there[cell].append((k, level + draw.gauss(0, sigmas[cell])))
        of = scatter.scatter(there)
        covered += [ratio(of, one, there[0]).holds(1.0) for one in there[1:]]
    assert sum(covered) / len(covered) >= 0.92
