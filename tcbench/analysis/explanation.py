"""The bottleneck of each cell of a whole matrix, and the rung to try next. Pure functions of records."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tcbench.analysis.advice import Gain, Problem, Tried, candidates, in_place_of, is_candidate, next_rung
from tcbench.analysis.bottleneck import Bottleneck, explain_records
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, by_code, ratio, summarise
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Record
from tcbench.core.step_time import StepTime


@dataclass(frozen=True)
class Explanation:
    """A cell: what was measured, what holds it back (None where nothing was measured), what could be added, and which
    of that to try next (None where nothing known would help)."""

    summary: CellSummary
    bottleneck: Bottleneck | None
    gains: tuple[Gain, ...] = ()
    advice: Gain | None = None

    @property
    def checked(self) -> tuple[Gain, ...]:
        """A rung that could be added and was measured too: the model against the measurement."""
        return tuple(gain for gain in self.gains if gain.measured_images_per_s is not None)

    @property
    def slower(self) -> tuple[Gain, ...]:
        """The smallest additions that were tried already and are surely slower: by one trial each nothing is."""
        if self.summary.unit == "steps":
            return ()
        least = min((len(gain.added) for gain in self.checked), default=0)
        return tuple(gain for gain in self.checked if gain.slower and len(gain.added) == least)

    @property
    def undecided(self) -> Gain | None:
        """Where nothing surely helps: the fastest of the smallest additions that were tried and may be faster."""
        if self.advice is not None or self.summary.unit == "steps":
            return None
        may_help = [(len(gain.added), -gain.ratio.value, gain) for gain in self.gains if gain.ratio and gain.may_help]
        return min(may_help, key=lambda entry: entry[:2], default=(0, 0.0, None))[2]


def explain(
    records: Iterable[Record],
    problem: Callable[[CellSummary], Problem] = lambda _: lambda _: None,
    parts: Mapping[Cell, StepTime] | None = None,
) -> tuple[Explanation, ...]:
    """One explanation per machine, cell and code, in the order of first appearance. `records` are those that
    `store.current` leaves. `problem`: says of a cell which rungs do not make a config on its device; `parts`: what the
    model of a step's time has told of cells."""
    records = tuple(records)
    summaries = summarise(records)
    groups, beside = by_code(records), grouped((_place(summary), summary) for summary in summaries)

    def of(summary: CellSummary) -> Explanation:
        trials = [record for record in groups[summary.key] if record.status == "ok"]
        if summary.images_per_s is None or not all(r.measurement and r.measurement.profiled_steps for r in trials):
            return Explanation(summary, None)
        bottleneck, tried = explain_records(trials), _beside(summary, beside[_place(summary)])
        own = (parts or {}).get(summary.cell)

        def expected(rungs: Sequence[str]) -> Interval | None:
            other = (parts or {}).get(with_rungs(summary.cell, rungs))
            return None if own is None or other is None else in_place_of(bottleneck, own, other)

        rates = [other.images_per_s.value for other in beside[_place(summary)] if other.images_per_s]
        gains = candidates(bottleneck, summary.cell.rungs, problem(summary), tried, expected, max(rates))
        return Explanation(summary, bottleneck, gains, next_rung(gains, bottleneck.dominant))

    return tuple(map(of, summaries))


def with_rungs(cell: Cell, rungs: Sequence[str]) -> Cell:
    """The cell of another config in this one's place."""
    if tuple(rungs) == cell.rungs:
        return cell
    return msgspec.structs.replace(cell, config="+".join(rungs), rungs=tuple(rungs))


def _place(summary: CellSummary) -> object:
    return summary.setting, summary.cell.backend, summary.cell.batch_size


def _beside(summary: CellSummary, summaries: Sequence[CellSummary]) -> dict[tuple[str, ...], Tried]:
    """Of a place (`_place`): the configs that may be candidates by rungs, ablations apart."""
    may_be = is_candidate(summary.cell.rungs)
    return {
        other.cell.rungs: (other.images_per_s.value, over)
        for other in summaries
        if other.cell.scenario_cudnn is None and summary.cell.scenario_cudnn is None and other.images_per_s is not None
        if may_be(other.cell.rungs)
        for over in [ratio(other, summary)]
        if over is not None
    }
