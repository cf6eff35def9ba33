"""A phase takes the same time in every table, and the phases that timed steps tell add up to the step."""

import itertools
import math
from collections.abc import Sequence

import pytest
from factories import make_measurement, make_phases, make_rank_part, make_record

from tcbench.analysis.bottleneck import explain_records
from tcbench.analysis.phases import critical_rank
from tcbench.analysis.summary import summarise
from tcbench.commands.diff.differences import diff_records
from tcbench.commands.roofline.roofline import cell_roofline
from tcbench.core.record import Record
from tcbench.engine.accelerators.ceilings import Ceilings

STEPS_S = (0.9, 0.1, 0.1, 0.1, 0.2, 0.4)
"""The first of a block does not count."""
PHASES_S = {
    "io": (0.01, 0.01, 0.01, 0.02, 0.16),
    "forward": (0.02, 0.02, 0.02, 0.04, 0.08),
    "backward": (0.06, 0.06, 0.06, 0.12, 0.12),
    "update": (0.01, 0.01, 0.01, 0.02, 0.04),
}


def trials(*factors: float) -> list[Record]:
    """So many times as long each: medians, means over trials and over steps all differ."""

    def scaled(factor: float, times_s: Sequence[float]) -> list[float]:
        return [factor * s for s in times_s]

    return [
        make_record(
            trial=trial,
            measurement=make_measurement(
                scaled(factor, STEPS_S), phases=make_phases({name: scaled(factor, s) for name, s in PHASES_S.items()})
            ),
        )
        for trial, factor in enumerate(factors)
    ]


def test_every_command_tells_the_same_time_of_a_phase_and_they_add_up_to_the_step() -> None:
    records, other_records = trials(1, 4), trials(1, 2, 3)
    step_s = math.sqrt(0.18 * 0.72)  # the geometric mean, as in every table
    expected = {name: pytest.approx(step_s * sum(times_s) / 0.9) for name, times_s in PHASES_S.items()}
    [summary] = summarise(records)
    assert summary.step_time_s.value == pytest.approx(step_s)
    assert dict(summary.phase_host_s) == expected
    assert {phase.name: phase.host_s for phase in explain_records(records).phases} == expected
    under = cell_roofline(summary, records, Ceilings("it", {"fp32": 1e11}, 2e10, "made up"))
    assert {part.name: part.time_s for part in under.phases} == {name: expected[name] for name in list(PHASES_S)[1:]}
    diff = diff_records(records, other_records)
    assert {part.name: part.base_s for part in diff.levels[0].parts} == expected
    assert (diff.step.base_s, diff.step.current_s) == pytest.approx((step_s, 0.18 * 6 ** (1 / 3)))
    assert (diff.levels[0].rest.base_s, diff.levels[0].rest.current_s) == pytest.approx((0, 0), abs=1e-12)
    for part in (diff.step, *diff.levels[0].parts):
        assert part.change.value == pytest.approx(part.change_s)


def test_the_critical_rank_is_the_one_that_the_others_wait_for() -> None:
    times_s = [(1.0, 4.5), (5.0, 0.6), (2.0, 3.6)]
    parts = [
        make_rank_part({"forward": (forward_s,), "allreduce": (allreduce_s,), "update": (9.0,)}, rank)
        for rank, (forward_s, allreduce_s) in enumerate(times_s)
    ]
    assert all(critical_rank(order).rank == 1 for order in itertools.permutations(parts))
