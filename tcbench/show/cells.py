"""The columns of a run's results, for the console, the page, JSON and exports, and notes on noisy cells."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, Unit, base_config, judged
from tcbench.show.format import limits, number
from tcbench.show.naming import is_simulated, rate_unit
from tcbench.show.tables import BYTES, COUNT, FACTOR, NUMBER, RATE, SECONDS, Column


@dataclass(frozen=True)
class Row:
    """A cell and its speed-up over the base."""

    summary: CellSummary
    over_base: Interval | None


def columns(summaries: Sequence[CellSummary]) -> tuple[Column[Row], ...]:
    """Return the columns of results: throughput, step, speed-up, memory, trials; GFLOP/s if any cell declares FLOPs."""

    def style(row: Row) -> str:
        """Return "dim" for a speed-up that is not certain: its interval includes 1, or one of the two cells has only
        the steps of a single trial. Return an empty text for any other row."""
        ratio = row.over_base
        certain = ratio is None or ratio.low == ratio.high or (row.summary.key in judged_keys and not ratio.holds(1.0))
        return "" if certain else "dim"

    judged_keys = judged(summaries)
    declared = any(summary.flops for summary in summaries)
    return (
        Column(
            rate_unit(s.cell for s in summaries),
            lambda row: _without_model_interval(row, row.summary.images_per_s),
            RATE,
            mark=_marks,
        ),
        Column("95% interval", lambda row: "" if _simulated(row) else limits(row.summary.images_per_s), on="page"),
        Column("step", lambda row: row.summary.step_time_s, SECONDS, spare=True),
        Column(
            f"vs {base_config(summaries)}",
            lambda row: _without_model_interval(row, row.over_base),
            FACTOR,
            style=style,
            wraps=True,
        ),
        Column("memory", lambda row: row.summary.peak_memory_bytes, BYTES),
        Column("trials", lambda row: row.summary.trials_ok, COUNT, mark=_of_trials, wraps=True),
        *([Column[Row]("GFLOP/s", lambda row: row.summary.gflops_s, NUMBER, key="gflops_s")] if declared else []),
    )


def _simulated(row: Row) -> bool:
    return bool(is_simulated(row.summary.environment))


def _without_model_interval(row: Row, interval: Interval | None) -> Interval | float | None:
    """Return the interval, but only its middle for a simulated cell, where the ends do not include the model's error.
    None if the cell has no result."""
    return interval.value if interval and _simulated(row) else interval


def _marks(row: Row) -> str:
    if row.summary.images_per_s is None:
        return ""
    return " *" * (not row.summary.settled) + " †" * row.summary.busy + " ‡" * bool(row.summary.doubts)


def _of_trials(row: Row) -> str:
    return "" if row.summary.trials_ok == row.summary.trials else f" of {row.summary.trials}"


BY_THE_RUN = "from the noise of the run's other cells"
"""The basis of the interval of a cell with one trial, if other cells of its run have several."""


def interval_over(units: Collection[Unit]) -> str:
    """Return what the intervals of cells are computed over, such as "over trials, or steps where there is one trial".
    `units` are the kinds of samples behind these intervals (`CellSummary.unit`)."""
    if {*units} == {"steps"}:
        return "over steps"
    if {*units} == {"run"}:
        return BY_THE_RUN
    single_trial = " or ".join([BY_THE_RUN] * ("run" in units) + ["steps"] * ("steps" in units))
    return "over trials" + (f", or {single_trial} where there is one trial" if single_trial else "")


def outlier_lines(summaries: Sequence[CellSummary]) -> list[str]:
    """Return a line on the most extreme outlier among the trials of cells; an empty list if there is none."""
    far = [(abs(math.log(s.outlier.ratio)), s.cell.label, s.outlier, s.trials_ok) for s in summaries if s.outlier]
    if not far:
        return []
    _, label, (trial, ratio), trials = max(far)
    words = f"{number(ratio if ratio > 1 else 1 / ratio)} times {'faster' if ratio > 1 else 'slower'}"
    more = f" ({len(far) - 1} more cells have such a trial)" if len(far) > 1 else ""
    return [f"{label}: trial {trial} of {trials} is {words} than the median trial: measure again{more}."]


def busy_line(summaries: Sequence[CellSummary]) -> str | None:
    """Return a note on the largest share of CPU time that other processes or a CPU quota took from a busy cell. None if
    no cell lost enough time to count as busy."""
    lost = [summary.lost for summary in summaries if summary.busy]
    if not lost:
        return None
    cells = f" of {len(lost)} of {len(summaries)} cells" if len(lost) < len(summaries) else " of every cell"
    throttled = {summary.throttled for summary in summaries if summary.busy}
    who = "a CPU quota withheld" if throttled == {True} else "other work took"
    who = "other work and a CPU quota took" if len(throttled) > 1 else who
    return f"busy machine: {who} up to {max(lost):.0%} of the processor time{cells * (len(summaries) > 1)}"
