"""Standard output of `tcbench run`, the parts that other commands share, and their JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import BASE, CellSummary, base_config
from tcbench.core.record import TAKE_ENOUGH
from tcbench.present.busy import busy_line
from tcbench.present.format import counted, factor, milliseconds, plus_minus, rate, size
from tcbench.present.naming import rate_unit
from tcbench.present.simulated import emulated, is_simulated
from tcbench.present.tables import add_by_batch, ladder_table, versioned
from tcbench.run.rounds import Rounds


def results_table(summaries: Sequence[CellSummary], speedups: Sequence[Interval | None]) -> Table:
    """One row per cell, batch size by batch size; a config that adds rungs to the one above shows what it adds.

    `speedups` holds each cell's ratio over the base, in the order of `summaries`.
    """
    table = ladder_table([summary.cell for summary in summaries], gap=1, min_width=16)
    table.add_column(rate_unit(summary.cell for summary in summaries), justify="right", no_wrap=True)
    table.add_column("step", justify="right", no_wrap=True)
    table.add_column(f"vs {base_config(summaries)}", justify="right")
    table.add_column("trials", justify="right")
    table.add_column("memory", justify="right", no_wrap=True)
    add_by_batch(
        table, ((summary.cell, _figures(summary, ratio)) for summary, ratio in zip(summaries, speedups, strict=True))
    )
    return table


def _figures(summary: CellSummary, speedup: Interval | None) -> tuple[Text, ...]:
    if summary.images_per_s is None or summary.step_time_s is None:
        return (Text(summary.status, style="yellow"),)
    return (
        Text(rate(summary.images_per_s) + ("" if summary.settled else " *") + (" †" if summary.busy else "")),
        Text(milliseconds(summary.step_time_s.value)),
        _factor(speedup, summary),
        Text(str(summary.trials_ok)),
        Text("" if summary.peak_memory_bytes is None else size(summary.peak_memory_bytes)),
    )


def _factor(speedup: Interval | None, of: CellSummary) -> Text:
    """A speed-up with its interval; pale where that includes 1, or is over the steps of one trial, and so may be
    none."""
    if speedup is None:
        return Text("")
    if speedup.low == speedup.high:  # the base over itself
        return Text(factor(speedup.value))
    pale = speedup.holds(1.0) or of.unit == "steps"
    return Text(f"{factor(speedup.value)} {plus_minus(speedup)}", style="dim" if pale else "")


def reasons(summaries: Sequence[CellSummary]) -> list[str]:
    """Why a cell has no number, or only some of its trials succeeded: a line each."""
    lines = [f"{s.cell.label}: {s.status}: {s.reason or ''}" for s in summaries if s.images_per_s is None]
    lines += [
        f"{s.cell.label}: only {s.trials_ok} of {s.trials} trials succeeded"
        for s in summaries
        if s.images_per_s is not None and s.trials_ok < s.trials
    ]
    return lines


def footnotes(summaries: Sequence[CellSummary]) -> list[str]:
    """Notes on how to read the table of results."""
    lines = []
    units = {summary.unit for summary in summaries if summary.images_per_s}
    if units == {"steps"}:
        lines.append(f"±: 95% interval over the steps of one trial; {TAKE_ENOUGH}.")
    elif units:
        alone = "; of a cell with one trial, over its steps" if "steps" in units else ""
        lines.append(f"±: 95% interval over trials{alone}.")
    if any(summary.images_per_s and not summary.settled for summary in summaries):
        lines.append("*: step times had not settled when the warm-up ended.")
    if busy := busy_line([summary for summary in summaries if summary.images_per_s]):
        lines.append(f"†: {busy}; stop it and measure again.")
    return lines + [f"{line[:1].upper()}{line[1:]}." for line in emulated(summary.cell for summary in summaries)]


def summary_json(
    run_id: str,
    path: Path,
    summaries: Sequence[CellSummary],
    speedups: Sequence[Interval | None],
    scaling: Sequence[dict[str, Any]] = (),
) -> str:
    """The table as JSON. `scaling`: the curves, as `tcbench.views.scaling.table` writes them."""
    base = base_config(summaries)
    cells = [
        {
            "config": summary.cell.config,
            "backend": summary.cell.backend,
            "batch_size": summary.cell.batch_size,
            "ranks": summary.cell.ranks,
            "model": summary.cell.model,
            "image_size": summary.cell.image_size,
            "device": summary.cell.device,
            "simulated": is_simulated(summary.environment),
            "status": summary.status,
            "reason": summary.reason,
            "trials": summary.trials,
            "trials_ok": summary.trials_ok,
            "unit": summary.cell.unit,
            "images_per_s": summary.images_per_s,
            "step_time_s": summary.step_time_s,
            "speedup_over_fp32": speedup if base == BASE else None,
            "speedup": None if speedup is None else {"over": base, "ratio": speedup},
            "peak_memory_bytes": summary.peak_memory_bytes,
            "processor_time_lost": summary.lost,
            "phase_host_s": dict(summary.phase_host_s),
        }
        for summary, speedup in zip(summaries, speedups, strict=True)
    ]
    return versioned(run_id=run_id, results=str(path), cells=cells, **({"scaling": scaling} if scaling else {}))


def round_label(rounds: Rounds) -> str:
    """The round of the next trial, of as many as there can be: "round 2 of at most 5"; empty where that is one. How
    many a budget has time for changes with every trial; the ETA says it."""
    if rounds.trials == 1:
        return ""
    most = "at most " * (rounds.budget_s is not None)
    of = "" if rounds.trials is None else f" of {most}{rounds.trials}"
    return f"round {next(rounds.ahead())[1] + 1}{of}"


def tally(summaries: Sequence[CellSummary]) -> str:
    """`18 cells ok, 2 skipped`."""
    counts = Counter(summary.status for summary in summaries)
    ok = counts.pop("ok", 0)
    return ", ".join([f"{counted(ok, 'cell')} ok", *(f"{n} {status}" for status, n in counts.items())])
