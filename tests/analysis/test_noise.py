"""The noise that cells have in common: who borrows from it, how much, and who does not."""

import numpy as np
import pytest
from scipy.special import chdtri, stdtr

from tcbench.analysis import noise
from tcbench.analysis.noise import LEAST_CELLS, Pooled
from tcbench.analysis.welch import Estimate, SampleStats


def cells(sds, trials=5, seed=0):
    """One cell for each standard deviation of its trials."""
    random = np.random.default_rng(seed)
    sides = [[SampleStats.from_values(sd * random.standard_normal(trials)) for _ in range(2)] for sd in sds]
    return [Estimate(*pair) for pair in sides]


def test_cells_that_vary_alike_come_nearer_to_their_common_error_and_gain_degrees_of_freedom():
    unpooled = cells([0.01] * 40)
    pooled = noise.pooled(unpooled)
    errors = [np.array([estimate.ratio.error for estimate in each]) for each in (unpooled, pooled)]
    assert errors[1].std() < 0.5 * errors[0].std()
    assert errors[1].mean() == pytest.approx(0.01 * np.sqrt(2 / 5), rel=0.1)
    assert min(estimate.ratio.degrees for estimate in pooled) > 16
    assert [estimate.ratio.log for estimate in pooled] == [estimate.ratio.log for estimate in unpooled]


def test_few_cells_are_judged_by_their_own_trials_and_so_is_one_that_varies_more_than_the_others():
    unpooled = cells([0.01] * (LEAST_CELLS - 1))
    assert noise.pooled(unpooled) == unpooled
    unpooled = cells([0.01] * 20 + [0.2])
    pooled = noise.pooled(unpooled)
    assert pooled[-1].ratio.error == pytest.approx(unpooled[-1].ratio.error, rel=0.2)
    assert pooled[0].ratio.error == pytest.approx(0.01 * np.sqrt(2 / 5), rel=0.2)


def test_where_some_cells_are_wild_a_few_trials_that_agree_make_none_steady():
    """A cell's noise is taken for the common one, but none of it is sure: far out the wild ones count."""
    variances = 1e-4 * chdtri(3, (np.arange(36) + 0.5) / 36) / 3
    machines = [np.concatenate([variances, factor * variances[[4, 13, 22, 31]]]) for factor in (1, 25)]
    pooled = [noise.pooled([Estimate(SampleStats(4, 0.0, v)) for v in variances]) for variances in machines]
    tame, wild = (each[18].ratio for each in pooled)
    assert wild.reach(0.95) == pytest.approx(tame.reach(0.95), rel=0.15)
    assert tame.reach(1 - 1e-5) < 5 * tame.reach(0.95)
    assert wild.reach(1 - 1e-5) > 7 * wild.reach(0.95)
    # More trials of the same tell that it is steady.
    more = pooled[1][18].with_more_trials(20)
    assert more.reach(1 - 1e-5) < 3 * more.reach(0.95)


def test_the_reach_of_a_ratio_whose_error_is_one_of_several():
    mixed = noise.Mixed(0.0, 1.0, 9.0, (0.5, 4.0), (0.9, 0.1))
    for tail in (0.4, 0.05, 1e-5):
        reach = mixed.reach(1 - tail)
        assert stdtr(9, -reach / np.array(mixed.errors)) @ mixed.probabilities == pytest.approx(tail, rel=1e-3)
        assert mixed.reach(tail) == pytest.approx(-reach)


def test_cells_that_vary_unlike_each_other_borrow_little():
    alike, unlike = (noise.pooled(cells(sds)) for sds in ([0.01] * 40, np.geomspace(0.001, 0.1, 40)))
    weights = [max(e.degrees for e in each if isinstance(e, Pooled)) for each in (alike, unlike)]
    assert weights[1] < 2 < 15 < weights[0]


def test_what_does_not_vary_at_all_stays_certain():
    still = Estimate(SampleStats(5, 0.1, 0.0), SampleStats(5, 0.0, 0.0))
    pooled = noise.pooled([*cells([0.01] * 20), still])
    assert pooled[-1] is still
    assert noise.pooled([still] * 20) == [still] * 20


def test_cells_with_unlike_numbers_of_trials_share_the_noise_of_one_trial():
    """An error shrinks with the number of trials; the noise does not, so that nobody seems noisier for having few."""
    pooled = noise.pooled([*cells([0.01] * 20, trials=3), *cells([0.01] * 20, trials=12, seed=1)])
    errors = [estimate.ratio.error for estimate in pooled]
    assert np.mean(errors[:20]) / np.mean(errors[20:]) == pytest.approx(2, rel=0.15)


def test_rounds_that_are_compared_stay_so():
    random = np.random.default_rng(2)
    unpooled = [Estimate(SampleStats.from_values(0.01 * random.standard_normal(5))) for _ in range(20)]
    pooled = noise.pooled(unpooled)
    assert all(estimate.by_round for estimate in pooled)
    inverse = pooled[0].inverse
    assert inverse.ratio.log == -pooled[0].ratio.log
    assert inverse.ratio.error == pooled[0].ratio.error


def test_more_trials_of_the_same_make_the_error_smaller():
    [first, *_] = noise.pooled(cells([0.01] * 20))
    assert first.with_more_trials(0) == first.ratio
    assert first.with_more_trials(15).error == pytest.approx(first.ratio.error / 2, rel=0.35)
    assert first.with_more_trials(15).degrees > first.ratio.degrees


@pytest.mark.parametrize("x", [0.01, 0.3, 2.0, 500.0])
def test_the_inverse_of_the_trigamma_function(x):
    from scipy.special import polygamma

    assert noise._trigamma_inverse(float(polygamma(1, x))) == pytest.approx(x, rel=1e-6)
