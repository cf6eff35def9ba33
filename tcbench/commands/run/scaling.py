"""Scaling over ranks: throughput and its efficiency, the all-reduce's time and bandwidth, and imbalance.

Pure functions from records to frozen results, all with 95% intervals. docs/ranks.md has definitions and sources.
"""

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tcbench.analysis import welch
from tcbench.analysis.phases import ALLREDUCE, times_s
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, Setting, group_by_code, ratio, summarise
from tcbench.core.groups import grouped
from tcbench.core.record import Cell, Measurement, RankPart, Record

IMAGES_TO_TRAIN = 90 * 1_280_000
"""Images in 90 epochs of ImageNet, the training whose time slide 34 of the talk compares."""


@dataclass(frozen=True)
class AllReduce:
    """The exchange of a step. `time_s` is that of the rank that began it last, which waits for nobody. `bytes` are the
    gradients that a rank gives to it; 0 where that is not known. `overlaps`: it runs beside other phases, `time_s` is
    what is left of it, and nothing tells its bandwidth."""

    time_s: Interval
    bytes: int
    ranks: int
    overlaps: bool = False

    @property
    def algorithm_bytes_s(self) -> Interval | None:
        """nccl-tests' algorithm bandwidth: size over time, bytes per second."""
        return self.bytes / self.time_s if self.bytes and not self.overlaps else None

    @property
    def bus_bytes_s(self) -> Interval | None:
        """nccl-tests' bus bandwidth: the algorithm's times 2 (n - 1) / n, which is what each rank's link carries and
        does not depend on the number of ranks."""
        carried = self.bytes * (2 * (self.ranks - 1) / self.ranks)
        return carried / self.time_s if self.algorithm_bytes_s else None


@dataclass(frozen=True)
class Imbalance:
    """The ranks' work before the all-reduce: the seconds of each, step by step, over all trials."""

    steps: tuple[tuple[float, ...], ...]

    @property
    def share(self) -> float:
        """The slowest rank's time over the mean of all, less 1: how much longer a step takes than if the same work were
        shared evenly. POP's load balance is 1 over 1 more than that."""
        return sum(map(max, self.steps)) / sum(map(statistics.fmean, self.steps)) - 1

    @property
    def _slowest(self) -> tuple[int, int]:
        return Counter(step.index(max(step)) for step in self.steps).most_common(1)[0]

    @property
    def slowest(self) -> int:
        """The rank that came to the all-reduce last most often."""
        return self._slowest[0]

    @property
    def fastest(self) -> int:
        return Counter(step.index(min(step)) for step in self.steps).most_common(1)[0][0]

    @property
    def slowest_in(self) -> int:
        return self._slowest[1]


@dataclass(frozen=True)
class Point:
    """A cell on a curve of scaling. `speedup` is its images/s over those of the curve's base, `efficiency` that over
    the ratio of their ranks; both are None where either was not measured. `allreduce` and `imbalance` are None of one
    rank, and without a profiled pass. `cores`: how many processors its ranks were bound to, if at all."""

    summary: CellSummary
    speedup: Interval | None
    efficiency: Interval | None
    allreduce: AllReduce | None
    imbalance: Imbalance | None
    cores: tuple[int, ...]

    @property
    def ranks(self) -> int:
        return self.summary.cell.ranks

    @property
    def images_per_s(self) -> Interval | None:
        return self.summary.images_per_s

    @property
    def images_per_s_per_rank(self) -> Interval | None:
        return self.images_per_s and self.images_per_s / self.ranks

    @property
    def time_to_train_s(self) -> Interval | None:
        """Seconds that IMAGES_TO_TRAIN images take at the measured rate, without validation; None for other units."""
        trains_images = self.summary.cell.unit == "images"
        return IMAGES_TO_TRAIN / self.images_per_s if trains_images and self.images_per_s else None


@dataclass(frozen=True)
class Curve:
    """One config on more and more ranks, fewest first: with the same batch size on each rank (weak scaling), or with
    the same batch over all of them (strong scaling). `images` is that batch size, or that global batch. `base` is what
    efficiency is over: the cell of the fewest ranks that was measured."""

    kind: Literal["weak", "strong"]
    config: str
    images: int
    points: tuple[Point, ...]
    base: CellSummary | None

    @property
    def setting(self) -> Setting:
        """All but what a curve runs over: curves of one setting stand in one chart."""
        setting = self.points[0].summary.setting
        return setting._replace(cell=msgspec.structs.replace(setting.cell, ranks=1))


def curves(records: Iterable[Record]) -> tuple[Curve, ...]:
    """Every curve of some records that has a cell of several ranks: of weak scaling first, by batch size, then in the
    order of first appearance. A curve of strong scaling has two cells or more. `records` are those that `store.current`
    leaves."""
    records = tuple(records)
    if not any(record.cell.ranks > 1 for record in records):
        return ()
    groups = group_by_code(records).values()
    cells = [
        (summary, [r.measurement for r in group if r.status == "ok" and r.measurement is not None])
        for summary, group in zip(summarise(records), groups, strict=True)
    ]
    weak = _lines(cells, lambda cell: msgspec.structs.replace(cell, ranks=1))
    strong = _lines(cells, lambda cell: msgspec.structs.replace(cell, ranks=1, batch_size=cell.images_per_step))
    made = [*(_curve("weak", line) for line in weak), *(_curve("strong", line) for line in strong if len(line) > 1)]
    return tuple(sorted(made, key=lambda curve: (curve.kind == "strong", curve.images)))


_Measured = tuple[CellSummary, Sequence[Measurement]]
"""A cell, and the measurements of its trials that are ok."""


def _lines(cells: Iterable[_Measured], alike: Callable[[Cell], Cell]) -> list[list[_Measured]]:
    """Cells of one machine and code that are `alike`, where one of them has several ranks; fewest ranks first."""
    lines = grouped(((pair[0].machine, alike(pair[0].cell), pair[0].codes), pair) for pair in cells)
    ordered = [sorted(line, key=lambda pair: pair[0].cell.ranks) for line in lines.values()]
    return [line for line in ordered if line[-1][0].cell.ranks > 1]


def _curve(kind: Literal["weak", "strong"], line: Sequence[_Measured]) -> Curve:
    base = next((summary for summary, _ in line if summary.throughput is not None), None)
    cell = line[0][0].cell
    return Curve(
        kind=kind,
        config=cell.config,
        images=cell.batch_size if kind == "weak" else cell.images_per_step,
        points=tuple(_point(summary, base, measured) for summary, measured in line),
        base=base,
    )


def _point(summary: CellSummary, base: CellSummary | None, measured: Sequence[Measurement]) -> Point:
    speedup = efficiency = None
    if base is not None:
        # The base over itself is exactly 1.
        speedup = Interval(1.0, 1.0, 1.0) if summary is base else ratio(summary, base)
        efficiency = speedup and speedup / (summary.cell.ranks / base.cell.ranks)
    cores = sorted({len(part.cores) for m in measured for part in m.ranks if part.cores})
    many = [m for m in measured if len(m.ranks) > 1]
    steps = [step for m in many for step in zip(*map(before_allreduce_s, m.ranks), strict=False) if sum(step) > 0]
    imbalance = Imbalance(tuple(steps)) if steps else None
    return Point(summary, speedup, efficiency, _allreduce(summary, many), imbalance, tuple(cores))


def _allreduce(summary: CellSummary, measured: Sequence[Measurement]) -> AllReduce | None:
    trials_s = [exchange_times_s(m.ranks) for m in measured]
    trials_s = [times_s for times_s in trials_s if times_s and min(times_s) > 0]
    if not trials_s:
        return None
    # A mean time is the inverse of a mean rate, and so is its interval.
    time_s = welch.throughput(1, trials_s).inverse.geometric_mean.interval()
    overlaps = any(m.reduce_overlaps for m in measured)
    return AllReduce(time_s, max(m.reduced_bytes for m in measured), summary.cell.ranks, overlaps)


def exchange_times_s(parts: Sequence[RankPart]) -> tuple[float, ...]:
    """The time of the exchange itself in each profiled step: the least of any rank's time in it, since whoever comes
    last waits for nobody. Empty where a rank does not tell it."""
    every = [times_s(phase) for part in parts for phase in part.phases if phase.name == ALLREDUCE]
    return tuple(map(min, zip(*every, strict=False))) if len(every) == len(parts) else ()


def before_allreduce_s(part: RankPart) -> tuple[float, ...]:
    """The time that a rank worked in each profiled step until it came to the all-reduce; empty without one."""
    names = [phase.name for phase in part.phases]
    if ALLREDUCE not in names:
        return ()
    before = [times_s(phase) for phase in part.phases[: names.index(ALLREDUCE)]]
    return tuple(map(sum, zip(*before, strict=False)))
