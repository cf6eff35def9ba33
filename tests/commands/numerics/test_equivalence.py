import numpy as np
import pytest

from tcbench.commands.numerics.equivalence import equivalence


@pytest.mark.parametrize(
    ("differences", "decision"),
    [
        ([0.001, -0.002, 0.0, 0.002, -0.001], "equivalent"),
        ([0.0, 0.0], "equivalent"),  # bit-identical
        ([0.05, -0.06, 0.04, -0.03], "undecided"),  # no significant difference is not enough
        ([0.0], "undecided"),
        ([0.10, 0.11, 0.09], "different"),
        ([-0.10, -0.11, -0.09], "different"),
    ],
)
def test_the_whole_interval_decides(differences, decision):
    answer = equivalence(differences, 0.02)
    assert answer.decision == decision
    if decision == "equivalent":
        assert -0.02 < answer.low <= 0 <= answer.high < 0.02


def test_what_is_read_off_a_coarse_scale_is_no_surer_than_the_scale():
    assert equivalence([0.0, 0.0, 0.0], 0.02, least_error=0.01).decision == "undecided"
    answer = equivalence([0.0, 0.0, 0.0], 0.02, least_error=0.001)
    assert answer.decision == "equivalent"
    assert answer.high == pytest.approx(2.92 * 0.001, rel=1e-3)


@pytest.mark.parametrize(("differences", "margin"), [([], 0.1), ([0.1], 0.0), ([float("nan")], 0.1)])
def test_what_cannot_be_asked_is_refused(differences, margin):
    with pytest.raises(ValueError, match="expected finite differences and a margin"):
        equivalence(differences, margin)


def test_at_the_margin_itself_equivalence_is_claimed_no_more_often_than_the_level():
    rng = np.random.default_rng(0)
    claimed = [equivalence(list(rng.normal(0.02, 0.005, 5)), 0.02).decision == "equivalent" for _ in range(2000)]
    assert 0.03 < np.mean(claimed) < 0.07  # 5% by design: the standard error of 2000 draws is 0.5%
