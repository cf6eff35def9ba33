"""A plan before it runs, as a table, as lines of text and as JSON."""

from collections import Counter

from rich.text import Text

from tcbench.run.plan import Plan, PlannedCell
from tcbench.run.rounds import Rounds
from tcbench.show.document import fields, versioned
from tcbench.show.format import counted, duration
from tcbench.show.tables import Column, Table, cell_columns


def plan_table(plan: Plan, rounds: Rounds) -> Table[PlannedCell]:
    """Return a table of the cells of a plan, with the expected number of trials or the reason to skip each."""
    trials = _trials_ahead(rounds)
    about = "" if plan.budget_s is None else "about "

    def will_run(planned: PlannedCell) -> Text:
        if planned.skip_reason:
            return Text(f"skipped: {planned.skip_reason}", style="yellow")
        return Text(about + counted(trials[planned.place], "trial"))

    columns = (
        *cell_columns((planned.cell for planned in plan.cells), lambda planned: planned.cell),
        Column[PlannedCell]("config", lambda planned: planned.cell.config),
        Column[PlannedCell]("will run", will_run),
    )
    return Table(columns, plan.cells)


_STEP_UNKNOWN = "no time estimate before the first trial of your own step"


def rounds_line(rounds: Rounds) -> str:
    """Return a line with the number of trials that are left and the time they take, if that can be estimated.

    If no trial is left, the line says why: the budget is spent, all trials are done, or every cell is skipped."""
    trials = _trials_ahead(rounds).values()
    if not trials:
        skipped = all(planned.skip_reason for planned in rounds.cells)
        if skipped:
            return "nothing to measure: every cell is skipped"
        return _spent_budget(rounds) if rounds.ended_by_budget() else "nothing is missing: all trials are done"
    least, most, needed_s = min(trials), max(trials), rounds.ahead_s()
    each = _each(least, most)
    is_guess = rounds.costs.is_guess(planned.cell for planned in rounds.cells if planned.skip_reason is None)
    if rounds.budget_s is None:
        return f"{each}, {_STEP_UNKNOWN}" if is_guess else f"{each}, about {duration(needed_s)}"
    until = f"rounds over all cells within {duration(rounds.budget_s)}"
    if is_guess:
        return f"{until}; the first is always completed; {_STEP_UNKNOWN}"
    if rounds.spent_s + needed_s > rounds.budget_s:
        return f"{until}: the first is always completed, but takes longer: about {duration(needed_s)}"
    at_most = "" if rounds.trials is None else f", at most {counted(rounds.trials, 'trial')} each"
    return f"{until}{at_most}: about {each}, about {duration(needed_s)}"


def _spent_budget(rounds: Rounds) -> str:
    """Return a line for a spent budget: how many trials each cell has, and how to add more."""
    trials = [len(ends) for planned, ends in zip(rounds.cells, rounds.ends, strict=True) if not planned.skip_reason]
    budget, each = duration(rounds.budget_s or 0.0), _each(min(trials), max(trials))
    return f"the budget of {budget} is spent, with {each}; add more with --resume and a larger --budget"


def _each(least: int, most: int) -> str:
    return f"{counted(most, 'trial')} each" if least == most else f"{least} to {counted(most, 'trial')} each"


def _trials_ahead(rounds: Rounds) -> Counter[int | None]:
    """Return the number of trials that are left for each cell that is not skipped, by the cell's `place`."""
    return Counter(planned.place for planned, _ in rounds.ahead() if planned.skip_reason is None)


def plan_line(plan: Plan) -> str:
    """Return a line that describes a run before it starts: scenario, device, cells, network, images and threads."""
    skipped = sum(planned.skip_reason is not None for planned in plan.cells)
    cell = plan.cells[0].cell
    cells = counted(len(plan.cells) - skipped, "cell")
    network = f"{cell.model}, " if len({planned.cell.model for planned in plan.cells}) == 1 else ""
    inputs = {"generated": "generated JPEGs", "synthetic": "synthetic images", "modelled": f"input {cell.input.label}"}
    images = f", {network}{cell.image_size}x{cell.image_size} pixels, {inputs.get(cell.input.kind, cell.input.path)}"
    return (
        f"{plan.scenario.name} on {plan.device.name} ({plan.device.title}): {cells}"
        + (f" ({skipped} skipped)" if skipped else "")
        + ("" if cell.input.kind == "own" else images)
        + (f", {counted(cell.threads, 'thread')}" if cell.threads else "")
        + (" per rank" if cell.threads and any(p.cell.ranks > 1 for p in plan.cells) else "")
    )


def plan_json(plan: Plan, rounds: Rounds) -> str:
    """Return the plan as JSON."""
    trials = _trials_ahead(rounds)
    cells = [
        {
            **fields(planned.cell, "config model batch_size ranks key"),
            "expected_trials": trials[planned.place],
            "skip_reason": planned.skip_reason,
        }
        for planned in plan.cells
    ]
    return versioned(
        scenario=plan.scenario.name,
        **fields(plan, "device=device.name device_title=device.title machine=device.machine trials budget_s"),
        expected_s=rounds.ahead_s(),
        timeout_s=plan.timeout_s,
        cells=cells,
    )
