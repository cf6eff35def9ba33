import random

import pytest
from scipy.stats import ttest_ind

from tcbench.analysis import machine_check
from tcbench.analysis.machine_check import PairedRound


def gate(draw, sds, rounds, changes=(0.0, 0.0, 0.0)):
    """Cells in turn, round by round, whose ratios change in the second half."""
    return [
        [PairedRound(f"{n}{cell}", draw.gauss(0, sd) + changes[cell] * (n >= rounds / 2)) for n in range(rounds)]
        for cell, sd in enumerate(sds)
    ]


def test_the_rounds_of_one_cell_are_compared_by_students_t_test():
    cells = gate(random.Random(2), [0.02], 9)
    logs = [each.log_ratio for each in cells[0]]
    first, odd = machine_check.check(cells, threshold=0.0).splits
    assert (first.halves, odd.halves) == ("first and last", "odd and even")
    assert first.p == pytest.approx(ttest_ind(logs[:4], logs[4:]).pvalue)
    assert odd.p == pytest.approx(ttest_ind(logs[::2], logs[1::2]).pvalue)


@pytest.mark.parametrize("sds", [(0.02, 0.02, 0.02), (0.02, 0.02, 0.1)], ids=["alike", "one noisy"])
def test_unchanged_code_fails_in_one_gate_of_a_hundred_and_a_change_in_the_middle_is_found(sds):
    """`benchmarks/machine_check.py` has more of them, with the looks of a gate."""
    draw = random.Random(4)
    failed = {
        changes: sum(bool(machine_check.check(gate(draw, sds, 8, changes), 0.03).unstable) for _ in range(1500)) / 1500
        for changes in ((0.0, 0.0, 0.0), (0.1, 0.1, 0.1), (0.1, -0.1, 0.0))
    }
    unchanged, alike, mixed = failed.values()
    assert unchanged < 0.012
    assert min(alike, mixed) > 0.85


def test_too_few_rounds_are_not_checked_and_figures_without_noise_agree():
    assert machine_check.check([[PairedRound("", 0.1)] * 7], 0.03).unstable is None
    assert machine_check.check([[PairedRound("", 0.1)] * 8], 0.03).unstable is False
    assert machine_check.check([[PairedRound(str(n), 0.1 * (n > 3)) for n in range(8)]], 0.03).unstable
