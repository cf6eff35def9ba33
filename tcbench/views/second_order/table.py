"""The output of `tcbench numerics --second-order` beside its picture: table and words."""

import statistics

from tcbench.analysis.numerics.steps import LOSSES, SMOOTH, StepsDocument
from tcbench.present.tables import COUNT, Column, Table

LABELS = {"sgd": "SGD", "kfac": "K-FAC"}


def table(document: StepsDocument) -> Table[str]:
    """Steps to each loss, seed by seed, and the time of a step."""

    def step_ms(method: str) -> str:
        times_s = [run.step_time_s for run in document.of(method) if run.step_time_s is not None]
        return f"{1e3 * statistics.median(times_s):.0f}" if times_s else ""

    def steps_to(loss: float) -> Column[str]:
        def steps(method: str) -> str:
            return ", ".join(str(run.steps_to(loss) or "none") for run in document.of(method))

        return Column(f"steps to {loss:g}", steps, COUNT)

    columns = (
        Column[str]("method", lambda method: LABELS[method]),
        Column[str]("learning rate", lambda method: f"{document.of(method)[0].learning_rate:g}", COUNT),
        Column[str]("step, ms", step_ms, COUNT),
        *map(steps_to, LOSSES),
    )
    return Table(columns, tuple(LABELS))


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
