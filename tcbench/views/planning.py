"""A plan before it runs: its cells, its rounds, and its JSON."""

from __future__ import annotations

from collections import Counter

from rich.table import Table
from rich.text import Text

from tcbench.present.format import counted, duration
from tcbench.present.tables import heads_of, open_table, versioned
from tcbench.run.plan import Plan
from tcbench.run.rounds import Rounds


def plan_table(plan: Plan, rounds: Rounds) -> Table:
    """The cells that a run would measure, how often by what it expects them to cost, and those it would skip."""
    table = open_table()
    heads = heads_of(planned.cell for planned in plan.cells)
    for heading, justify, _ in heads:
        table.add_column(heading, justify=justify)
    table.add_column("config", overflow="fold")
    table.add_column("will run")
    trials = _trials_ahead(rounds)
    for planned in plan.cells:
        about = "" if plan.budget_s is None else "about "
        will = Text(about + counted(trials[planned.place], "trial"))
        if planned.skip_reason:
            will = Text(f"skipped: {planned.skip_reason}", style="yellow")
        table.add_row(*(of(planned.cell) for _, _, of in heads), Text(planned.cell.config), will)
    return table


def rounds_line(rounds: Rounds) -> str:
    """The trials and the time that are ahead, as far as is known before they begin."""
    trials = _trials_ahead(rounds).values()
    if not trials:
        skipped = all(planned.skip_reason for planned in rounds.cells)
        return "nothing to measure: every cell is skipped" if skipped else "nothing is missing: all trials are there"
    least, most, needed_s = min(trials), max(trials), rounds.ahead_s()
    each = f"{counted(most, 'trial')} each" if least == most else f"{least} to {counted(most, 'trial')} each"
    if rounds.budget_s is None:
        return f"{each}, about {duration(needed_s)}"
    until = f"rounds over all cells within {duration(rounds.budget_s)}"
    if rounds.spent_s + needed_s > rounds.budget_s:
        return f"{until}: the first, which is always completed, takes longer: about {duration(needed_s)}"
    at_most = "" if rounds.trials is None else f", at most {counted(rounds.trials, 'trial')} each"
    return f"{until}{at_most}: about {each}, about {duration(needed_s)}"


def _trials_ahead(rounds: Rounds) -> Counter[int | None]:
    """The number of trials to come of the cells that will run, by their places in the plan."""
    return Counter(planned.place for planned, _ in rounds.ahead() if planned.skip_reason is None)


def plan_line(plan: Plan) -> str:
    """A run in one line, before it starts."""
    skipped = sum(planned.skip_reason is not None for planned in plan.cells)
    cell = plan.cells[0].cell
    cells = counted(len(plan.cells) - skipped, "cell")
    network = f"{cell.model}, " if len({planned.cell.model for planned in plan.cells}) == 1 else ""
    what = {"generated": "generated JPEGs", "synthetic": "synthetic images", "modelled": f"input {cell.input.label}"}
    return (
        f"{plan.scenario.name} on {plan.device.name} ({plan.device.title}): {cells}"
        + (f" ({skipped} skipped)" if skipped else "")
        + (
            ""
            if cell.input.kind == "own"
            else f", {network}{cell.image_size}x{cell.image_size} pixels, {what.get(cell.input.kind, cell.input.path)}"
        )
        + f", {counted(cell.threads, 'thread')}"
        + (" per rank" if any(p.cell.ranks > 1 for p in plan.cells) else "")
    )


def plan_json(plan: Plan, rounds: Rounds) -> str:
    """The plan as JSON."""
    trials = _trials_ahead(rounds)
    cells = [
        {
            "config": p.cell.config,
            "model": p.cell.model,
            "batch_size": p.cell.batch_size,
            "ranks": p.cell.ranks,
            "key": p.cell.key,
            "expected_trials": trials[p.place],
            "skip_reason": p.skip_reason,
        }
        for p in plan.cells
    ]
    return versioned(
        scenario=plan.scenario.name,
        device=plan.device.name,
        device_title=plan.device.title,
        machine=plan.device.machine,
        trials=plan.trials,
        budget_s=plan.budget_s,
        expected_s=rounds.ahead_s(),
        timeout_s=plan.timeout_s,
        cells=cells,
    )
