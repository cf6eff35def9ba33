"""The table of results of `tcbench run`, with the sentences and notes around it, and its JSON."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import BASE, CellSummary, base_config, best, judged
from tcbench.core.record import TAKE_ENOUGH
from tcbench.run.rounds import Rounds
from tcbench.show import cells
from tcbench.show.cells import Row
from tcbench.show.document import fields, versioned
from tcbench.show.format import counted, factor, limits, listed, milliseconds
from tcbench.show.naming import emulation_lines, is_simulated
from tcbench.show.notes import Caution
from tcbench.show.tables import ConfigTable, keyed


def results_table(summaries: Sequence[CellSummary], speedups: Sequence[Interval | None]) -> ConfigTable[Row]:
    """Return a table with a row per cell. `speedups` are the ratios over the base, in the order of `summaries`."""
    return ConfigTable(
        cells.columns(summaries),
        [Row(*pair) for pair in zip(summaries, speedups, strict=True)],
        cell=lambda row: row.summary.cell,
        why_no_figures=lambda row: row.summary.status if row.summary.images_per_s is None else None,
        gap=1,
        min_width=16,
    )


def fastest_sentence(summaries: Sequence[CellSummary], speedups: Sequence[Interval | None]) -> str:
    """Return a sentence with the speed-up of the fastest cell over the base and its certainty.

    `speedups` are the ratios over the base, in the order of `summaries`. Empty if no config but the base has one."""
    base = base_config(summaries)
    pairs = zip(summaries, speedups, strict=True)
    ratios = {s.key: (s, ratio) for s, ratio in pairs if ratio is not None and s.cell.config != base}
    winner = best(s for s, _ in ratios.values())
    if winner is None:
        return ""
    _, ratio = ratios[winner.key]
    name = f"{winner.cell.config}, batch size {winner.cell.batch_size}"
    if winner.key not in judged(summaries):
        return f"{name}: {factor(ratio.value)} {base} from one trial each, not judged."
    undecided = ": undecided, either may be faster" if ratio.holds(1.0) else ""
    return f"{name}: {factor(ratio.value)} {base} (95% interval {limits(ratio, factor)}){undecided}."


def reasons(summaries: Sequence[CellSummary]) -> list[str]:
    """Return a line for each cell that has no number, or of which only some trials succeeded."""
    lines = [f"{s.cell.label}: {s.status}: {s.reason or ''}" for s in summaries if s.images_per_s is None]
    lines += [
        f"{s.cell.label}: only {s.trials_ok} of {s.trials} trials succeeded"
        for s in summaries
        if s.images_per_s is not None and s.trials_ok < s.trials
    ]
    return lines


def footnotes(summaries: Sequence[CellSummary]) -> list[str]:
    """Return notes on the table of results: cautions about doubtful cells, and what the intervals mean."""
    lines: list[str] = []
    if busy := cells.busy_line([summary for summary in summaries if summary.images_per_s]):
        lines.append(Caution(f"†: {busy}; stop it and measure again."))
    lines += [
        Caution(
            f"Stalled: one step of {s.cell.label} took {s.stall_s:.3g} s (median "
            f"{milliseconds(s.step_time_median_s)}): the process was stopped, or waited; measure again."
        )
        for s in summaries
        if s.stall_s and s.step_time_median_s
    ]
    lines += [Caution(f"‡: {s.cell.label}: {'; '.join(s.doubts)}.") for s in summaries if s.doubts and s.images_per_s]
    lines += map(Caution, cells.outlier_lines(summaries))
    if any(summary.images_per_s and not summary.settled for summary in summaries):
        lines.append(Caution("*: step times had not settled when the warm-up ended."))
    for summary in summaries:
        if summary.epoch_first_s is not None:
            first = milliseconds(summary.epoch_first_s)
            lines.append(f"{summary.cell.label}: the first step of an epoch takes {first}; it is not counted.")
        if summary.counts_runs:
            lines.append(Caution(f"{summary.cell.label}: the program marks no steps: a step is one run of it."))
        if summary.processes > summary.cell.ranks:
            lines.append(f"{summary.cell.label}: {summary.processes} processes train; the rate is that of all.")
        if summary.startup_s is not None:
            lines.append(f"{summary.cell.label}: a run takes {summary.startup_s:.3g} s besides its steps.")
    budgets_s = sorted({budget_s for summary in summaries for budget_s in summary.tuning_budgets_s})
    if len(budgets_s) > 1:
        within = listed([f"{budget_s:g} s" for budget_s in budgets_s])
        lines.append(
            Caution(f"cuDNN's plans were tuned with different budgets: {within}; --fresh-autotune tunes with one.")
        )
    units = {summary.unit for summary in summaries if summary.images_per_s}
    if units == {"steps"}:
        lines.append(Caution(f"±: over the steps of one trial each, not judged; {TAKE_ENOUGH}."))
    elif units:
        single_trial = " or ".join([cells.BY_THE_RUN] * ("run" in units) + ["over its steps"] * ("steps" in units))
        several = sum(summary.images_per_s is not None for summary in summaries) > 1
        shared = ": the noise of the cell and of the run's other cells, and drift, which cancels in ratios" * several
        single_trial = single_trial and f"; for a cell with one trial, {single_trial}"
        lines.append(f"±: 95% interval over trials{shared}{single_trial}.")
    return lines + [Caution(f"{line[:1].upper()}{line[1:]}.") for line in emulation_lines(s.cell for s in summaries)]


def summary_json(
    run_id: str,
    path: Path,
    summaries: Sequence[CellSummary],
    speedups: Sequence[Interval | None],
    scaling: Sequence[dict[str, Any]] = (),
) -> str:
    """Return the results of a run as JSON, with a row per cell.

    `speedups` are the ratios over the base, in the order of `summaries`, and `scaling` the curves as JSON
    (`scaling_table.to_json`)."""
    base, columns = base_config(summaries), cells.columns(summaries)
    rows = [
        {
            **fields(summary.cell, "config backend batch_size ranks model image_size device"),
            "simulated": is_simulated(summary.environment),
            **fields(summary, "status reason trials trials_ok unit=cell.unit images_per_s step_time_s"),
            "speedup_over_fp32": speedup if base == BASE else None,
            "speedup": None if speedup is None else {"over": base, "ratio": speedup},
            **fields(summary, "peak_memory_bytes processor_time_lost=lost"),
            "phase_host_s": dict(summary.phase_host_s),
            **keyed(columns, Row(summary, speedup)),
        }
        for summary, speedup in zip(summaries, speedups, strict=True)
    ]
    return versioned(run_id=run_id, results=str(path), cells=rows, **({"scaling": scaling} if scaling else {}))


def round_label(rounds: Rounds) -> str:
    """Name the round of the next trial: "round 2 of at most 5". Empty if there is only one round.

    The limit is the number of trials, not what a time budget allows, since that estimate changes with every trial."""
    if rounds.trials == 1:
        return ""
    most = "at most " * (rounds.budget_s is not None)
    total = "" if rounds.trials is None else f" of {most}{rounds.trials}"
    return f"round {next(rounds.ahead())[1] + 1}{total}"


def tally(summaries: Sequence[CellSummary]) -> str:
    """Return the numbers of cells by status: "18 cells ok, 2 skipped"."""
    counts = Counter(summary.status for summary in summaries)
    ok = counts.pop("ok", 0)
    return ", ".join([f"{counted(ok, 'cell')} ok", *(f"{n} {status}" for status, n in counts.items())])
