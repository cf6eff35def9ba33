"""The bottleneck of each cell of a matrix, and the rung to try next. Pure functions of records."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tcbench.analysis.advice import (
    Gain,
    Problem,
    Tried,
    best_measured,
    candidates,
    expected_rate,
    is_candidate,
    next_rung,
)
from tcbench.analysis.bottleneck import Bottleneck, explain_records
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, group_by_code, ratio, summarise
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Record
from tcbench.core.step_time import StepTime


@dataclass(frozen=True)
class Explanation:
    """The explanation of one cell's speed. `bottleneck` is None if the cell was not measured. `gains` are the changes
    of rungs that could be tried; `advice` is the one to try next, None if no known rung would help."""

    summary: CellSummary
    bottleneck: Bottleneck | None
    gains: tuple[Gain, ...] = ()
    advice: Gain | None = None

    @property
    def checked(self) -> tuple[Gain, ...]:
        """Gains that were also measured, so that the prediction can be compared with the measurement."""
        return tuple(gain for gain in self.gains if gain.measured_images_per_s is not None)

    @property
    def slower(self) -> tuple[Gain, ...]:
        """The smallest additions that were tried and are significantly slower. Empty with one trial per config, which
        settles nothing."""
        if self.summary.unit == "steps":
            return ()
        least = min((len(gain.added) for gain in self.checked), default=0)
        return tuple(gain for gain in self.checked if gain.slower and len(gain.added) == least)

    @property
    def undecided(self) -> Gain | None:
        """The fastest of the smallest additions that were measured as faster, but not significantly. None if a rung is
        advised, or with one trial per config."""
        if self.advice is not None or self.summary.unit == "steps":
            return None
        return best_measured(gain for gain in self.gains if gain.may_help)


def explain(
    records: Iterable[Record],
    problem: Callable[[CellSummary], Problem] = lambda _: lambda _: None,
    parts: Mapping[Cell, StepTime] | None = None,
) -> tuple[Explanation, ...]:
    """Return one explanation per machine, cell and code, in the order of first appearance.

    `records` come from `store.current`. `problem` takes a cell and returns a function from a list of rungs to the
    reason why they cannot run on the cell's device (None if they can). `parts` holds the modelled step times of cells
    that the model knows."""
    records = tuple(records)
    summaries = summarise(records)
    groups, places = group_by_code(records), grouped((_place(summary), summary) for summary in summaries)

    def explain_cell(summary: CellSummary) -> Explanation:
        """Return the explanation of one cell. It has no bottleneck if a trial lacks a profiled pass."""
        trials = [record for record in groups[summary.key] if record.status == "ok"]
        if summary.images_per_s is None or not all(r.measurement and r.measurement.profiled_steps for r in trials):
            return Explanation(summary, None)
        neighbours = places[_place(summary)]
        bottleneck, tried = explain_records(trials), _tried_configs(summary, neighbours)
        cell_parts = (parts or {}).get(summary.cell)

        def expected(rungs: Sequence[str]) -> Interval | None:
            """Return the predicted images/s of the cell with other rungs. None if the cell or the cell with these rungs
            has no modelled step time."""
            other = (parts or {}).get(with_rungs(summary.cell, rungs))
            return None if cell_parts is None or other is None else expected_rate(bottleneck, cell_parts, other)

        fastest = max(neighbour.images_per_s.value for neighbour in neighbours if neighbour.images_per_s)
        gains = candidates(bottleneck, summary.cell.rungs, problem(summary), tried, expected, fastest)
        return Explanation(summary, bottleneck, gains, next_rung(gains, bottleneck.dominant))

    return tuple(map(explain_cell, summaries))


def with_rungs(cell: Cell, rungs: Sequence[str]) -> Cell:
    """Return the cell with the config that consists of `rungs`; the cell itself if it has these rungs."""
    if tuple(rungs) == cell.rungs:
        return cell
    return msgspec.structs.replace(cell, config="+".join(rungs), rungs=tuple(rungs))


def _place(summary: CellSummary) -> object:
    """Return a key of the cells that are compared with each other: setting, backend and batch size."""
    return summary.setting, summary.cell.backend, summary.cell.batch_size


def _tried_configs(summary: CellSummary, summaries: Sequence[CellSummary]) -> dict[tuple[str, ...], Tried]:
    """Return, by rungs, the measured configs that can be candidates for a cell: the images/s of each, and their ratio
    to the cell's. `summaries` are the cells with the key `_place(summary)`. Ablations are left out."""
    may_be = is_candidate(summary.cell.rungs)
    return {
        other.cell.rungs: (other.images_per_s.value, rate_ratio)
        for other in summaries
        if other.cell.scenario_cudnn is None and summary.cell.scenario_cudnn is None and other.images_per_s is not None
        if may_be(other.cell.rungs)
        for rate_ratio in [ratio(other, summary)]
        if rate_ratio is not None
    }
