import math
import random

import pytest

from tcbench.analysis import scatter, welch


def cells(*levels_and_trials, drift=(0.0,) * 9, sigma=0.02, seed=0):
    draw = random.Random(seed)
    return [[(k, level + drift[k] + draw.gauss(0, sigma)) for k in range(n)] for level, n in levels_and_trials]


def ratio(fit, numerator, denominator):
    return welch.log_ratio(fit.group(numerator), fit.group(denominator)).interval()


def test_noise_and_rounds_are_those_of_a_two_way_layout():
    """Three cells and two rounds, computed by hand: the second round is 0.1 above the first, with noise of +-e in the
    differences."""
    cells_ = [[(0, 1.0), (1, 1.1)], [(0, 2.0), (1, 2.13)], [(0, 3.0), (1, 3.07)]]
    fit = scatter.scatter(cells_)
    assert (fit.degrees, fit.drift_degrees) == (2, 1)
    assert fit.variance == pytest.approx((0.0**2 + 0.03**2 + 0.03**2) / 2 / 2)
    assert fit.round_effects[1] - fit.round_effects[0] == pytest.approx(0.1)
    # Of the squares about the cells' means 0.015 are the rounds', and noise alone would leave its variance of them.
    assert fit.drift == pytest.approx((0.015 - fit.variance) / 3)


def test_a_cell_with_one_trial_takes_the_runs_scatter_and_others_are_drawn_towards_it():
    trials = cells((0.0, 3), (1.0, 3), (2.0, 3), (3.0, 3), (0.5, 1))
    fit = scatter.scatter(trials)
    alone, among = fit.group(trials[4]), fit.group(trials[0])
    assert (alone.n, alone.mean, alone.variance, alone.degrees) == (1, trials[4][0][1], fit.variance, scatter.WEIGHT)
    # The rounds, which four cells share, take a quarter of the degrees of freedom of each cell's residuals.
    own_degrees, left = 2 * 3 / 4, [log - fit.round_effects[k] for k, log in trials[0]]
    squares = sum((log - sum(left) / 3) ** 2 for log in left)
    weight = scatter.LEAST_WEIGHT
    assert among.variance == pytest.approx((weight * fit.variance + squares) / (weight + own_degrees))
    assert own_degrees < among.degrees < own_degrees + scatter.WEIGHT


def test_a_large_factor_of_one_trial_is_decided_and_a_small_one_is_not():
    trials = cells((0.0, 3), *[(0.1, 2)] * 9, (math.log(1.77), 1), (math.log(1.02), 1))
    fit = scatter.scatter(trials)
    assert ratio(fit, trials[-2], trials[0]).low > 1.4
    assert ratio(fit, trials[-1], trials[0]).holds(1.0)


def test_what_rounds_have_in_common_cancels_between_cells_of_the_same_rounds_alone():
    drift = (0.0, 0.3, -0.3)
    trials = cells(*[(0.0, 3)] * 8, (0.0, 1), drift=drift)
    fit = scatter.scatter(trials)
    same, fewer = (ratio(fit, cell, trials[0]) for cell in (trials[1], trials[-1]))
    assert same.high - same.low < 0.1
    assert math.log(fewer.high / fewer.low) > 0.6
    lacking = [fit.group(trials[n][:n] + trials[n][n + 1 :]) for n in range(2)]  # as many rounds each, and one of both
    differ = welch.log_ratio(*lacking).interval()
    assert math.log(differ.high / differ.low) > 0.6
    other_run = scatter.scatter(trials, ("another",)).group(trials[1])
    separate = welch.log_ratio(other_run, fit.group(trials[0])).interval()
    assert separate.high - separate.low > 3 * (same.high - same.low)
    level = fit.group(trials[0]).geometric_mean.interval()
    assert level.high - level.low > 0.3


def test_two_trials_of_one_cell_tell_as_much_as_two_trials_do():
    """No more than one degree of freedom, however many cells have one trial."""
    trials = [[(0, 0.0), (1, 0.02)], [(0, 0.1)], [(0, 0.2)]]
    fit = scatter.scatter(trials)
    assert (fit.variance, fit.degrees, fit.drift) == (pytest.approx(0.0002), 1, 0.0)
    assert welch.log_ratio(*(fit.group(cell) for cell in trials[:2])).degrees == 1


@pytest.mark.parametrize("cell_trials", [[], [[]], [[(0, 1.0)], [(0, 2.0)]]])
def test_where_no_cell_has_two_trials_nothing_is_known(cell_trials):
    assert scatter.scatter(cell_trials) is None


def test_a_simulated_run_that_does_not_vary_at_all_has_no_width():
    fit = scatter.scatter([[(0, 1.0), (1, 1.0)], [(0, 2.0), (1, 2.0)], [(0, 3.0)]])
    interval = ratio(fit, [(0, 3.0)], [(0, 1.0), (1, 1.0)])
    assert interval.low == interval.high == pytest.approx(math.exp(2.0))


@pytest.mark.parametrize("trials", [[3, *[2] * 10, *[1] * 9], [2] * 10 + [1] * 10], ids=str)
@pytest.mark.parametrize("machine", ["alike", "sigmas differ", "one in ten wild", "drift"])
def test_factors_over_the_base_cover_the_truth(machine, trials):
    """`benchmarks/scatter_truth.py` has more of them."""
    draw, covered = random.Random(3), []
    for _ in range(120):
        level, cell_trials = 0.0, [[] for _ in trials]
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
                    cell_trials[cell].append((k, level + draw.gauss(0, sigmas[cell])))
        fit = scatter.scatter(cell_trials)
        covered += [ratio(fit, cell, cell_trials[0]).holds(1.0) for cell in cell_trials[1:]]
    assert sum(covered) / len(covered) >= 0.92


def test_the_factor_of_two_cells_has_the_interval_of_the_paired_t_test():
    trials = cells((0.0, 5), (0.3, 5), drift=(0.0, 0.2, -0.1, 0.1, 0.0))
    paired = welch.SampleStats.from_values([b - a for (_, a), (_, b) in zip(*trials, strict=True)]).mean_interval
    interval = ratio(scatter.scatter(trials), trials[1], trials[0])
    assert (interval.low, interval.high) == pytest.approx((math.exp(paired.low), math.exp(paired.high)))


@pytest.mark.parametrize(("n_cells", "n"), [(3, 3), (5, 5)])
@pytest.mark.parametrize(("noise", "least"), [(1, 0.945), (5, 0.89)])
def test_factors_of_few_cells_cover_the_truth_if_one_cell_is_noisy(n_cells, n, noise, least):
    """`benchmarks/scatter_truth.py --few` has more of them."""
    draw, covered = random.Random(1), []
    for _ in range(1500):
        sigmas = [0.02, 0.02 * noise, *[0.02] * (n_cells - 2)]
        trials = [[(k, draw.gauss(0, sigma)) for k in range(n)] for sigma in sigmas]
        covered.append(ratio(scatter.scatter(trials), trials[1], trials[0]).holds(1.0))
    assert least <= sum(covered) / len(covered) <= 0.975
