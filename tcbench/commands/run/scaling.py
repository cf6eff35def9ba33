"""Scaling over ranks: throughput, efficiency, time and bandwidth of the all-reduce, and imbalance.

Figures have 95% intervals. docs/ranks.md has definitions and sources."""

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
"""Images in 90 epochs of ImageNet. Slide 34 of the talk compares the time of this training."""


@dataclass(frozen=True)
class AllReduce:
    """The all-reduce of a step.

    `time_s` is the time of the rank that begins last, because it does not wait for others. `bytes` is the size of a
    rank's gradients, 0 if unknown. `overlaps` means that the all-reduce runs during other phases; `time_s` is then only
    the part that does not overlap, and its bandwidth is unknown."""

    time_s: Interval
    bytes: int
    ranks: int
    overlaps: bool = False

    @property
    def algorithm_bytes_s(self) -> Interval | None:
        """The algorithm bandwidth as in nccl-tests: size over time, in bytes per second."""
        return self.bytes / self.time_s if self.bytes and not self.overlaps else None

    @property
    def bus_bytes_s(self) -> Interval | None:
        """The bus bandwidth as in nccl-tests: the algorithm bandwidth times 2 (n - 1) / n. It is the load of each
        rank's link, and so comparable between different numbers of ranks."""
        carried = self.bytes * (2 * (self.ranks - 1) / self.ranks)
        return carried / self.time_s if self.algorithm_bytes_s else None


@dataclass(frozen=True)
class Imbalance:
    """The seconds that each rank works before the all-reduce: `steps[step][rank]`, for the steps of all trials."""

    steps: tuple[tuple[float, ...], ...]

    @property
    def share(self) -> float:
        """The slowest rank's time over the mean of all ranks, minus 1.

        This is how much longer a step takes than with evenly shared work. POP's load balance is 1 / (1 + share)."""
        return sum(map(max, self.steps)) / sum(map(statistics.fmean, self.steps)) - 1

    @property
    def _slowest(self) -> tuple[int, int]:
        return Counter(step.index(max(step)) for step in self.steps).most_common(1)[0]

    @property
    def slowest(self) -> int:
        """The rank that most often reached the all-reduce last."""
        return self._slowest[0]

    @property
    def fastest(self) -> int:
        """The rank that most often reached the all-reduce first."""
        return Counter(step.index(min(step)) for step in self.steps).most_common(1)[0][0]

    @property
    def slowest_in(self) -> int:
        """The number of steps in which the rank `slowest` was last."""
        return self._slowest[1]


@dataclass(frozen=True)
class Point:
    """A cell on a scaling curve.

    `speedup` is the cell's throughput over that of the curve's base, and `efficiency` is `speedup` / (the cell's ranks
    / the base's ranks); both are None if a throughput is missing. `allreduce` and `imbalance` are None for one rank,
    and without a profiled pass. `cores` are the numbers of cores to which ranks were bound."""

    summary: CellSummary
    speedup: Interval | None
    efficiency: Interval | None
    allreduce: AllReduce | None
    imbalance: Imbalance | None
    cores: tuple[int, ...]

    @property
    def ranks(self) -> int:
        """The number of ranks."""
        return self.summary.cell.ranks

    @property
    def images_per_s(self) -> Interval | None:
        """The throughput of all ranks."""
        return self.summary.images_per_s

    @property
    def images_per_s_per_rank(self) -> Interval | None:
        """The throughput divided by the number of ranks."""
        return self.images_per_s and self.images_per_s / self.ranks

    @property
    def time_to_train_s(self) -> Interval | None:
        """The seconds that IMAGES_TO_TRAIN images take, without validation; None if the unit is not images."""
        trains_images = self.summary.cell.unit == "images"
        return IMAGES_TO_TRAIN / self.images_per_s if trains_images and self.images_per_s else None


@dataclass(frozen=True)
class Curve:
    """A config on an increasing number of ranks.

    `images` is the batch size per rank (weak scaling) or the global batch (strong scaling), constant along the curve.
    `base` is the measured cell with the fewest ranks; efficiency is relative to it."""

    kind: Literal["weak", "strong"]
    config: str
    images: int
    points: tuple[Point, ...]
    base: CellSummary | None

    @property
    def setting(self) -> Setting:
        """The setting without the number of ranks. Curves of one setting are drawn together."""
        setting = self.points[0].summary.setting
        return setting._replace(cell=msgspec.structs.replace(setting.cell, ranks=1))


def curves(records: Iterable[Record]) -> tuple[Curve, ...]:
    """Return the scaling curves of records that have a cell of several ranks: weak scaling first, then by batch size.

    A curve of strong scaling has at least two cells. `records` are the result of `store.current`."""
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
    all_curves = [_curve("weak", line) for line in weak]
    all_curves += [_curve("strong", line) for line in strong if len(line) > 1]
    return tuple(sorted(all_curves, key=lambda curve: (curve.kind == "strong", curve.images)))


_Measured = tuple[CellSummary, Sequence[Measurement]]
"""A cell and the measurements of its successful trials."""


def _lines(cells: Iterable[_Measured], normalise: Callable[[Cell], Cell]) -> list[list[_Measured]]:
    """Group cells whose machine, code and normalised cell are equal, in each group the fewest ranks first. `normalise`
    makes cells equal that differ by ranks only. Groups without a cell of several ranks are left out."""
    lines = grouped(((pair[0].machine, normalise(pair[0].cell), pair[0].codes), pair) for pair in cells)
    ordered = [sorted(line, key=lambda pair: pair[0].cell.ranks) for line in lines.values()]
    return [line for line in ordered if line[-1][0].cell.ranks > 1]


def _curve(kind: Literal["weak", "strong"], line: Sequence[_Measured]) -> Curve:
    """Return the curve of cells that differ by ranks only, the fewest ranks first.

    Efficiencies are relative to the first cell with a throughput, the base; without one they are None."""
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
    """Return a cell as a point of a curve, with its speed-up and efficiency relative to the base (None without base).
    `measured` are the measurements of its successful trials."""
    speedup = efficiency = None
    if base is not None:
        # The base relative to itself is exactly 1.
        speedup = Interval(1.0, 1.0, 1.0) if summary is base else ratio(summary, base)
        efficiency = speedup and speedup / (summary.cell.ranks / base.cell.ranks)
    cores = sorted({len(part.cores) for m in measured for part in m.ranks if part.cores})
    many = [m for m in measured if len(m.ranks) > 1]
    steps = [step for m in many for step in zip(*map(before_allreduce_s, m.ranks), strict=False) if sum(step) > 0]
    imbalance = Imbalance(tuple(steps)) if steps else None
    return Point(summary, speedup, efficiency, _allreduce(summary, many), imbalance, tuple(cores))


def _allreduce(summary: CellSummary, measured: Sequence[Measurement]) -> AllReduce | None:
    """Return the all-reduce of a cell from trials with several ranks; None if its time is unknown."""
    trials_s = [exchange_times_s(m.ranks) for m in measured]
    trials_s = [times_s for times_s in trials_s if times_s and min(times_s) > 0]
    if not trials_s:
        return None
    # The mean time is the inverse of the mean rate, and its interval too.
    time_s = welch.throughput(1, trials_s).inverse.geometric_mean.interval()
    overlaps = any(m.reduce_overlaps for m in measured)
    return AllReduce(time_s, max(m.reduced_bytes for m in measured), summary.cell.ranks, overlaps)


def exchange_times_s(parts: Sequence[RankPart]) -> tuple[float, ...]:
    """Return the time in seconds of the all-reduce in each profiled step, without waiting: the shortest of all ranks.

    The rank with the shortest time arrives last and waits for no other. Empty if a rank did not record the phase."""
    ranks_s = [times_s(phase) for part in parts for phase in part.phases if phase.name == ALLREDUCE]
    return tuple(map(min, zip(*ranks_s, strict=False))) if len(ranks_s) == len(parts) else ()


def before_allreduce_s(part: RankPart) -> tuple[float, ...]:
    """Return a rank's time in seconds before the all-reduce in each profiled step; empty if it recorded no
    all-reduce."""
    names = [phase.name for phase in part.phases]
    if ALLREDUCE not in names:
        return ()
    before = [times_s(phase) for phase in part.phases[: names.index(ALLREDUCE)]]
    return tuple(map(sum, zip(*before, strict=False)))
