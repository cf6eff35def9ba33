"""The output of `tcbench numerics --second-order` beside its picture: table and words."""

from __future__ import annotations

import statistics

from rich.table import Table

from tcbench.analysis.numerics.steps import LOSSES, SMOOTH, StepsDocument
from tcbench.present.tables import open_table

LABELS = {"sgd": "SGD", "kfac": "K-FAC"}


def table(document: StepsDocument) -> Table:
    """Steps to each loss, seed by seed, and the time of a step."""
    made = open_table()
    made.add_column("method")
    for heading in ("learning rate", "step, ms", *(f"steps to {loss:g}" for loss in LOSSES)):
        made.add_column(heading, justify="right", no_wrap=True)
    for method, label in LABELS.items():
        runs = document.of(method)
        times = [run.step_time_s for run in runs if run.step_time_s is not None]
        steps = [", ".join(str(run.steps_to(loss) or "none") for run in runs) for loss in LOSSES]
        time = f"{1e3 * statistics.median(times):.0f}" if times else ""
        made.add_row(label, f"{runs[0].learning_rate:g}", time, *steps)
    return made


def notes(document: StepsDocument) -> list[str]:
    """Notes that explain the table."""
    kfac, n = document.kfac, document.setting.steps
    lines = [
        f"Steps to a loss: until the mean of {SMOOTH} steps' losses is at it or below, one figure for each seed; none: "
        f"not in {n} steps. Both methods have the same steps, weights and batches. A step's time is the median.",
        f"K-FAC: damping {kfac.damping:g}, decay {kfac.decay:g}, interval {kfac.interval}.",
    ]
    for method, label in LABELS.items():
        rates, chosen = document.rates(method), document.of(method)[0].learning_rate
        tried = ", ".join(f"{rate:g}" for rate in rates)
        edge = ", at the end of the list: another may be better" if chosen in (rates[0], rates[-1]) else ""
        lines.append(f"{label}: the best learning rate of {tried} on a seed that is not counted{edge}.")
    lines += [f"{LABELS[run.method]}, seed {run.seed}: {run.reason}" for run in document.runs if run.reason is not None]
    return lines
