"""The plan of a gate as JSON."""

from tcbench.commands.gate.builds import Build
from tcbench.run.eta import TimeLeft
from tcbench.run.gate_file import GateQuestion
from tcbench.run.plan import Plan
from tcbench.show.document import fields, versioned


def gate_plan_json(
    plan: Plan, sides: tuple[Build, Build], question: GateQuestion, budget_s: float | None, time_left: TimeLeft
) -> str:
    """Return a gate's plan as JSON. `round_expected_s` is the time of one trial of each cell on both sides."""
    cells = [
        {**fields(planned.cell, "config model batch_size ranks key"), "skip_reason": planned.skip_reason}
        for planned in plan.cells
    ]
    return versioned(
        base=sides[0].label,
        current=sides[1].label,
        scenario=plan.scenario.name,
        **fields(plan, "device=device.name device_title=device.title machine=device.machine"),
        **fields(question, "metrics threshold trials_a_side_at_looks=trials"),
        budget_s=budget_s,
        round_expected_s=2 * sum(time_left.trial_s(p.cell) for p in plan.cells if p.skip_reason is None),
        cells=cells,
    )
