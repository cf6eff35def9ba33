"""One line per cell: what its trials say together. Pure functions from records to frozen summaries."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import msgspec

from tcbench.analysis import comparability, scatter, welch
from tcbench.analysis.phases import phase_costs
from tcbench.analysis.stats import Interval, images_per_s, stall_s
from tcbench.analysis.welch import Group
from tcbench.core.groups import grouped
from tcbench.core.record import BUSY, STATUSES, Cell, Code, Environment, Measurement, Record, Status

CellKey = tuple[str | None, Cell, tuple[Code, ...]]
"""A machine, a cell, and the code of its runs: what was measured by other code is another thing."""

Unit = Literal["steps", "trials", "run"]


class Setting(NamedTuple):
    """Everything but config and batch size: cells of one setting stand side by side in a table or chart."""

    machine: str | None
    cell: Cell
    codes: tuple[Code, ...] = ()


class Outlier(NamedTuple):
    """A trial's number from 1 and its rate over the median rate of its cell's trials."""

    trial: int
    ratio: float


@dataclass(frozen=True)
class CellSummary:
    """A cell on a machine, over all its trials. Statistics are those of the trials that are ok, None without one.

    `machine` is None when nothing of the cell's run told it; of a cell on many ranks it is rank 0's. `reason` is that
    of the first trial with the summary's status. `throughput` is images/s over total time, those of all ranks, on the
    logarithmic scale: what ratios are made of; `images_per_s` is its geometric mean over trials and `step_time_s` the
    images of a step over that, both with 95% intervals over `unit`: trials, judged by the other cells of its runs too
    ("run": of one trial, by these alone), or steps, where the runs have one trial a cell. `lost`: the largest share of
    the processor time of a trial that it did not get (`tcbench.core.record.HostLoad`); `throttled`: mostly by a quota.
    `stall_s`: the longest step, where a trial has one far beyond its others (`stats.stall_s`). `runs`: the ids of the
    runs that measured it. `began_at`: when its first trial did (UTC, ISO 8601). `codes`: those that these runs
    measured, several where a run was gone on with by other code. `flops`: those of a step, of all ranks, as the step's
    author declares them. `tuning_budgets_s`: the budgets within which its cuDNN plans were tuned, smallest first.
    """

    cell: Cell
    machine: str | None
    environment: Environment | None
    status: Status
    reason: str | None
    trials: int
    trials_ok: int
    throughput: Group | None = None
    images_per_s: Interval | None = None
    step_time_s: Interval | None = None
    step_time_median_s: float | None = None
    peak_memory_bytes: int | None = None
    phase_host_s: tuple[tuple[str, float], ...] = ()
    unit: Unit = "steps"
    settled: bool = False
    lost: float = 0.0
    stall_s: float | None = None
    throttled: bool = False
    runs: tuple[str, ...] = ()
    began_at: str = ""
    codes: tuple[Code, ...] = ()
    flops: float | None = None
    tuning_budgets_s: tuple[float, ...] = ()
    outlier: Outlier | None = None

    @property
    def gflops_s(self) -> float | None:
        return self.flops / self.step_time_s.value / 1e9 if self.flops and self.step_time_s else None

    @property
    def key(self) -> CellKey:
        return self.machine, self.cell, self.codes

    @property
    def busy(self) -> bool:
        return self.lost >= BUSY

    @property
    def setting(self) -> Setting:
        """Config here has its backend and what an ablation changes; the number of ranks belongs to the setting."""
        cudnn = self.cell.scenario_cudnn or self.cell.cudnn
        cell = msgspec.structs.replace(
            self.cell, backend="", config="", rungs=(), batch_size=0, cudnn=cudnn, scenario_cudnn=None
        )
        return Setting(self.machine, cell, self.codes)


def summarise(records: Iterable[Record]) -> tuple[CellSummary, ...]:
    """One summary per machine, cell and code, in the order of `by_code`, of records as `store.current` leaves them. A
    trial that left no facts about its machine (skipped, or dead before it could tell) belongs to that of its run."""
    records = tuple(records)
    of_runs = environments(records)
    groups = by_code(records)
    rates = {key: _rates(key[1], group) for key, group in groups.items()}
    pools = grouped(  # cells of the same runs were measured in the same rounds
        ((str(key[0]), key[1].device, *sorted({record.run_id for record in group})), key)
        for key, group in groups.items()
    )
    scatters: dict[CellKey, scatter.Scatter | None] = {}
    for pool, keys in pools.items():
        scatters |= dict.fromkeys(keys, scatter.scatter([rates[key] for key in keys], pool))
    return tuple(_summary(key, group, of_runs, rates[key], scatters[key]) for key, group in groups.items())


def by_code(records: Iterable[Record]) -> dict[CellKey, list[Record]]:
    """As `by_cell`, apart by the code of their runs and by the stack beneath it, as `compare` would refuse them."""
    records = tuple(records)
    merged: dict[str, dict[Code, frozenset[tuple[str, str]]]] = {record.run_id: {} for record in records}
    for record in records:
        if record.environment is not None:  # of a step's files, each config loads what it needs
            code, of_run = record.environment.code, merged[record.run_id]
            commits = code._replace(sources=frozenset())
            of_run[commits] = of_run.get(commits, frozenset()) | code.sources
    beneath = comparability.beneath(records)
    codes = {
        run: tuple(
            code._replace(sources=of_run[code], beneath=beneath[run])
            for code in sorted(of_run, key=lambda code: (code.commit or "", code.project or "", code.version))
        )
        for run, of_run in merged.items()
    }
    cells = by_cell(records).items()
    return grouped(((*cell, codes[record.run_id]), record) for cell, group in cells for record in group)


def by_cell(records: Iterable[Record]) -> dict[tuple[str | None, Cell], list[Record]]:
    """Records by machine and cell; `summarise` says whose machine is whose. Runs come in the order of first appearance,
    a run's cells in that of its plan, or of first appearance where it has none: they are not measured in that order."""
    runs: dict[str, int] = {}
    records = sorted(records, key=lambda record: (runs.setdefault(record.run_id, len(runs)), record.place or 0))
    of_runs = environments(records)
    told = ((record.environment or of_runs.get(record.run_id), record) for record in records)
    return grouped(
        ((environment.machine if environment else None, record.cell), record) for environment, record in told
    )


BASE = "fp32"
"""The config over which others are set."""


def base_config(summaries: Iterable[CellSummary]) -> str:
    """The config over which these are set: the one that their scenario names; else fp32, or of steps of the user's own
    alone, of which no config is called so, the first."""
    cells = [summary.cell for summary in summaries]
    configs = {cell.config for cell in cells}
    named = next((cell.base for cell in cells if cell.base in configs), None)
    if named is not None:
        return named
    own = bool(cells) and all(cell.is_own and cell.config != BASE for cell in cells)
    return cells[0].config if own else BASE


def speedups(summaries: Sequence[CellSummary]) -> tuple[Interval | None, ...]:
    """Images/s over that of the base config at the same batch size in the same setting, one for each summary, in order.
    None where either of the two was not measured. The base over itself is exactly 1. Source of the interval:
    `tcbench.analysis.welch`."""
    base_name = base_config(summaries)
    bases = {(s.setting, s.cell.batch_size): s for s in summaries if s.cell.config == base_name}

    def over_base(summary: CellSummary) -> Interval | None:
        base = bases.get((summary.setting, summary.cell.batch_size))
        over = ratio(summary, base) if base is not None else None
        return Interval(1.0, 1.0, 1.0) if over is not None and summary.cell.config == base_name else over

    return tuple(map(over_base, summaries))


def ratio(numerator: CellSummary, denominator: CellSummary) -> Interval | None:
    """Images/s of one cell over another's; None where either was not measured."""
    if numerator.throughput is None or denominator.throughput is None:
        return None
    return welch.log_ratio(numerator.throughput, denominator.throughput).interval()


def judged(summaries: Sequence[CellSummary]) -> frozenset[CellKey]:
    """The cells whose factor over the base has more than the steps of one trial on either side."""
    base = base_config(summaries)
    by_steps = {(s.setting, s.cell.batch_size) for s in summaries if s.cell.config == base and s.unit == "steps"}
    places = ((s.key, (s.setting, s.cell.batch_size)) for s in summaries if s.unit != "steps")
    return frozenset(key for key, place in places if place not in by_steps)


def unsure(numerator: CellSummary, denominator: CellSummary) -> bool:
    """Whether one cell may as well be as fast as another: the interval of their ratio holds 1, or nothing tells how the
    trials of its runs differ: the steps of one tell how steady that process was and not how the next one will be."""
    of = ratio(numerator, denominator)
    return of is not None and (of.holds(1.0) or "steps" in (numerator.unit, denominator.unit))


def best(summaries: Iterable[CellSummary]) -> CellSummary | None:
    """The fastest of those that are ok, whatever its dtype; None when none is."""
    ok = [(s.images_per_s.value, s) for s in summaries if s.images_per_s is not None]
    return max(ok, key=lambda pair: pair[0])[1] if ok else None


def environments(records: Sequence[Record]) -> dict[str, Environment]:
    """The environment of each run, from its first record that has one."""
    return {record.run_id: record.environment for record in reversed(records) if record.environment is not None}


def _rates(cell: Cell, group: Sequence[Record]) -> list[tuple[tuple[str, int], float]]:
    """The round and the logarithm of the rate of each trial that is ok."""
    return [
        ((record.run_id, record.trial), math.log(images_per_s(cell.images_per_step, of.counted_times_s)))
        for record in group
        if record.status == "ok" and (of := record.measurement) is not None and of.counted_times_s
    ]


def _summary(
    key: CellKey,
    group: Sequence[Record],
    environments: dict[str, Environment],
    rates: scatter.Trials,
    of_runs: scatter.Scatter | None,
) -> CellSummary:
    machine, cell, codes = key
    ok = [record for record in group if record.status == "ok"]
    record = telling(group)
    measured = [record.measurement for record in ok if record.measurement is not None]
    summary = CellSummary(
        cell=cell,
        machine=machine,
        environment=record.environment or environments.get(record.run_id),
        status=record.status,
        reason=record.reason,
        trials=len(group),
        trials_ok=len(ok),
        runs=tuple(dict.fromkeys(record.run_id for record in group)),
        began_at=min(record.started_at for record in group),
        codes=codes,
    )
    trials_s = [m.counted_times_s for m in measured if m.counted_times_s]
    if not trials_s:
        return summary
    throughput = of_runs.group(rates) if of_runs else welch.throughput(cell.images_per_step, trials_s)
    rate = throughput.geometric_mean.interval()
    loads = [record.host for record in ok if record.host is not None]
    worst = max(loads, key=lambda load: load.lost, default=None)
    return replace(
        summary,
        throughput=throughput,
        images_per_s=rate,
        step_time_s=cell.images_per_step / rate,
        step_time_median_s=statistics.median([t for trial in trials_s for t in trial]),
        peak_memory_bytes=max(m.peak_memory_bytes for m in measured),
        phase_host_s=tuple((phase.name, phase.host_s) for phase in phase_costs(measured)),
        unit="trials" if len(trials_s) > 1 else "run" if of_runs else "steps",
        settled=all(m.warmup_settled for m in measured),
        lost=worst.lost if worst is not None else 0.0,
        throttled=worst is not None and worst.throttled,
        stall_s=max((stall for times_s in trials_s if (stall := stall_s(times_s))), default=None),
        flops=cell.ranks * declared_work(measured[0])[0] or None,
        tuning_budgets_s=tuple(sorted({p.budget_s for m in measured for p in m.plans if p.budget_s is not None})),
        outlier=_outlier(rates),
    )


FAR = math.log(2)
"""The distance from the median, as a logarithm, from which on a trial is called an outlier."""


def _outlier(rates: scatter.Trials) -> Outlier | None:
    """Return the trial that lies farthest from the median of three or more; None where none is far."""
    if len(rates) < 3:
        return None
    median = statistics.median(log for _, log in rates)
    number, log = max(enumerate((log for _, log in rates), start=1), key=lambda trial: abs(trial[1] - median))
    return Outlier(number, math.exp(log - median)) if abs(log - median) >= FAR else None


def declared_work(measured: Measurement) -> tuple[float, float]:
    """FLOPs and bytes of a step of one rank, as its author declares them; 0 where nobody does."""
    works = measured.declared or ()
    whole = next((work for work in works if not work.phase), None)
    flops, n_bytes = sum(work.flops for work in works if work.phase), sum(work.bytes for work in works if work.phase)
    return (whole and whole.flops) or flops, (whole and whole.bytes) or n_bytes


def telling(trials: Sequence[Record]) -> Record:
    """The first trial that has the status of them all: ok where one is, else the worst."""
    ok = next((record for record in trials if record.status == "ok"), None)
    return ok or max(trials, key=lambda record: STATUSES.index(record.status))
