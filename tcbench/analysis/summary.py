"""One summary per cell: the statistics over all its trials. Pure functions from records to frozen summaries."""

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import msgspec

from tcbench.analysis import comparability, scatter, welch
from tcbench.analysis.phases import phase_costs
from tcbench.analysis.stats import Interval, images_per_s, stall_s
from tcbench.analysis.welch import SampleStats
from tcbench.core.groups import grouped
from tcbench.core.record import BUSY, STATUSES, Cell, Code, Environment, Measurement, Record, Status

CellKey = tuple[str | None, Cell, tuple[Code, ...]]
"""A machine, a cell, and the code of its runs. The same cell measured with other code counts as another cell."""

Unit = Literal["steps", "trials", "run"]
"""The basis of an interval: the steps of one trial, several trials, or one trial judged by the other cells of its
run."""


class Setting(NamedTuple):
    """Everything but config and batch size. Cells of one setting share a table or chart."""

    machine: str | None
    cell: Cell
    codes: tuple[Code, ...] = ()


class Outlier(NamedTuple):
    """A trial with an outlying rate. `trial` counts from 1, and `ratio` is its rate relative to the cell's median
    rate."""

    trial: int
    ratio: float


@dataclass(frozen=True)
class CellSummary:
    """A cell on a machine, over all its trials. Statistics cover the successful trials and are None without any.

    - `machine`: rank 0's machine; None if no record of the run names it.
    - `status`, `reason`: those of the first successful trial, else of the first trial with the worst status.
    - `throughput`: the trials' images/s on all ranks, on the log scale. Ratios of cells are computed from it.
    - `images_per_s`: the geometric mean of `throughput` with its 95% interval; `unit` is what the interval is based on.
    - `step_time_s`: images per step / `images_per_s`; `step_time_median_s`: the median of all counted steps.
    - `phase_host_s`: each phase with its seconds per step on the host.
    - `settled`: every trial's warm-up settled.
    - `lost`: the largest share of CPU time that a trial did not get (`tcbench.core.record.HostLoad`); `throttled`: most
      of the lost time was withheld by a CPU quota.
    - `stall_s`: the longest step, if it is a stall (`stats.stall_s`).
    - `runs`: ids of the runs that measured the cell; `began_at`: start of the first trial (UTC, ISO 8601).
    - `codes`: the code that the runs measured; several if a run was resumed with other code.
    - `flops`: FLOPs of a step on all ranks, as declared by the step's author.
    - `epoch_first_s`: the mean of the first steps of epochs, which are not counted; `startup_s`: a program's time
      outside of its steps. Both are None unless a program's trials tell them.
    - `counts_runs`: a step is a run of a program that marks none; `processes`: those of a program that mark steps.
    - `tuning_budgets_s`: the time limits for tuning cuDNN's plans, ascending.
    - `doubts`: reasons why the result may not be true."""

    cell: Cell
    machine: str | None
    environment: Environment | None
    status: Status
    reason: str | None
    trials: int
    trials_ok: int
    throughput: SampleStats | None = None
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
    epoch_first_s: float | None = None
    startup_s: float | None = None
    counts_runs: bool = False
    processes: int = 1
    doubts: tuple[str, ...] = ()

    @property
    def gflops_s(self) -> float | None:
        """The rate of floating-point operations in GFLOP/s, or None without declared FLOPs."""
        return self.flops / self.step_time_s.value / 1e9 if self.flops and self.step_time_s else None

    @property
    def key(self) -> CellKey:
        return self.machine, self.cell, self.codes

    @property
    def busy(self) -> bool:
        """Whether other processes took so much CPU time from a trial that it is marked 'busy machine'."""
        return self.lost >= BUSY

    @property
    def setting(self) -> Setting:
        """The machine, the code, and the cell without config and batch size. The backend, the command and the settings
        that an ablation changes belong to the config; the number of ranks belongs to the setting."""
        cudnn = self.cell.scenario_cudnn or self.cell.cudnn
        cell = msgspec.structs.replace(
            self.cell, backend="", config="", rungs=(), command=None, batch_size=0, cudnn=cudnn, scenario_cudnn=None
        )
        return Setting(self.machine, cell, self.codes)


def summarise(records: Iterable[Record]) -> tuple[CellSummary, ...]:
    """Return one summary per machine, cell and code, in the order of `group_by_code`. `records` come from
    `store.current`. A trial that recorded nothing about its machine (skipped, or ended too early) belongs to its run's
    machine."""
    records = tuple(records)
    run_environments = environments(records)
    groups = group_by_code(records)
    rates = {key: _log_rates(group) for key, group in groups.items()}
    pools = grouped(  # cells of the same runs were measured in the same rounds
        ((str(key[0]), key[1].device, *sorted({record.run_id for record in group})), key)
        for key, group in groups.items()
    )
    scatters: dict[CellKey, scatter.Scatter | None] = {}
    for pool, keys in pools.items():
        scatters |= dict.fromkeys(keys, scatter.scatter([rates[key] for key in keys], pool))
    shared = _shared_losses(records)
    summaries = (_summary(key, group, run_environments, rates[key], scatters[key]) for key, group in groups.items())
    return tuple(replace(s, doubts=_doubts(group, shared)) for s, group in zip(summaries, groups.values(), strict=True))


def _shared_losses(records: Sequence[Record]) -> frozenset[tuple[str, float | None]]:
    """Return the losses after warm-up, each with its run, that are equal to the bit in cells of different batch sizes,
    networks, inputs or dtypes. Records of versions without checks are left out."""
    dtypes = {"fp64", "fp32", "bf16", "fp16"}
    losses = grouped(
        ((record.run_id, m.warmup_loss), (c.batch_size, c.model, c.variant, c.input, frozenset(dtypes & {*c.rungs})))
        for record in records
        if (c := record.cell) and (m := record.measurement) and m.checks and m.warmup_loss is not None
    )
    return frozenset(loss for loss, cells in losses.items() if len({*cells}) > 1)


def _doubts(group: Sequence[Record], shared_losses: frozenset[tuple[str, float | None]]) -> tuple[str, ...]:
    """Return the different doubts about the trials of a cell."""
    measured = [(record.run_id, record.measurement) for record in group if record.measurement is not None]
    doubts = [doubt for _, m in measured for doubt in m.doubts]
    losses = {m.warmup_loss for run, m in measured if (run, m.warmup_loss) in shared_losses}
    doubts += [f"the loss {loss:.9g} is the same to the bit in another cell" for loss in losses]
    return tuple(dict.fromkeys(doubts))


def group_by_code(records: Iterable[Record]) -> dict[CellKey, list[Record]]:
    """Return the records grouped by machine, cell and code. Runs with different code or a different software stack get
    different keys, since `compare` would refuse to compare them."""
    records = tuple(records)
    sources: dict[str, dict[Code, frozenset[tuple[str, str]]]] = {record.run_id: {} for record in records}
    for record in records:
        if record.environment is not None:  # each config loads some of a step's files: collect them over the run
            code, run_sources = record.environment.code, sources[record.run_id]
            commits = code._replace(sources=frozenset())
            run_sources[commits] = run_sources.get(commits, frozenset()) | code.sources
    stacks = comparability.stack_differences(records)
    codes = {
        run: tuple(
            code._replace(sources=run_sources[code], beneath=stacks[run])
            for code in sorted(run_sources, key=lambda code: (code.commit or "", code.project or "", code.version))
        )
        for run, run_sources in sources.items()
    }
    cells = group_by_cell(records).items()
    return grouped(((*cell, codes[record.run_id]), record) for cell, group in cells for record in group)


def group_by_cell(records: Iterable[Record]) -> dict[tuple[str | None, Cell], list[Record]]:
    """Return the records by machine and cell. A record without a machine belongs to its run's machine. Runs are in the
    order of first appearance, and a run's cells in the order of its plan (without a plan, of first appearance), which
    is not the order in which they were measured."""
    runs: dict[str, int] = {}
    records = sorted(records, key=lambda record: (runs.setdefault(record.run_id, len(runs)), record.place or 0))
    run_environments = environments(records)
    pairs = ((record.environment or run_environments.get(record.run_id), record) for record in records)
    return grouped(
        ((environment.machine if environment else None, record.cell), record) for environment, record in pairs
    )


BASE = "fp32"
"""The config to which others are compared by default."""


def base_config(summaries: Iterable[CellSummary]) -> str:
    """Return the config to which the others are compared: the one that their scenario names, else fp32. If all steps
    are the user's own and none is called fp32, it is the first."""
    cells = [summary.cell for summary in summaries]
    configs = {cell.config for cell in cells}
    scenario_base = next((cell.base for cell in cells if cell.base in configs), None)
    if scenario_base is not None:
        return scenario_base
    only_own_steps = bool(cells) and all(cell.is_own and cell.config != BASE for cell in cells)
    return cells[0].config if only_own_steps else BASE


def speedups(summaries: Sequence[CellSummary]) -> tuple[Interval | None, ...]:
    """Return each summary's images/s relative to the base config at the same batch size and setting, in order. None if
    either was not measured. The base relative to itself is exactly 1. `tcbench.analysis.welch` gives the interval."""
    base_name = base_config(summaries)
    bases = {(s.setting, s.cell.batch_size): s for s in summaries if s.cell.config == base_name}

    def over_base(summary: CellSummary) -> Interval | None:
        """Return the ratio of a cell's images/s to the base config's, or None if either was not measured."""
        base = bases.get((summary.setting, summary.cell.batch_size))
        speedup = ratio(summary, base) if base is not None else None
        return Interval(1.0, 1.0, 1.0) if speedup is not None and summary.cell.config == base_name else speedup

    return tuple(map(over_base, summaries))


def ratio(numerator: CellSummary, denominator: CellSummary) -> Interval | None:
    """Return the ratio of two cells' images/s with its 95% interval, or None if either was not measured."""
    if numerator.throughput is None or denominator.throughput is None:
        return None
    return welch.log_ratio(numerator.throughput, denominator.throughput).interval()


def judged(summaries: Sequence[CellSummary]) -> frozenset[CellKey]:
    """Return the keys of the cells whose speedup over the base config can be tested, because neither the cell nor its
    base has only the steps of a single trial."""
    base = base_config(summaries)
    by_steps = {(s.setting, s.cell.batch_size) for s in summaries if s.cell.config == base and s.unit == "steps"}
    judgeable = (s for s in summaries if s.unit != "steps")
    return frozenset(s.key for s in judgeable if (s.setting, s.cell.batch_size) not in by_steps)


def unsure(numerator: CellSummary, denominator: CellSummary) -> bool:
    """Return whether it is open which of two cells is faster: the 95% interval of their ratio includes 1, or one has
    only the steps of a single trial, which do not show how trials vary. False if either was not measured."""
    interval = ratio(numerator, denominator)
    return interval is not None and (interval.holds(1.0) or "steps" in (numerator.unit, denominator.unit))


def best(summaries: Iterable[CellSummary]) -> CellSummary | None:
    """Return the fastest successful cell, whatever its dtype, or None if there is none."""
    ok = [(s.images_per_s.value, s) for s in summaries if s.images_per_s is not None]
    return max(ok, key=lambda pair: pair[0])[1] if ok else None


def environments(records: Sequence[Record]) -> dict[str, Environment]:
    """Return each run's environment by run id, from its first record that has one. Runs without one are left out."""
    return {record.run_id: record.environment for record in reversed(records) if record.environment is not None}


def _log_rates(group: Sequence[Record]) -> list[tuple[tuple[str, int, str], float]]:
    """Return, for each successful trial, its round and the logarithm of its images/s. A round is named by the run id,
    the trial number, and the start of the trials that took turns, since these share the state of the machine."""
    return [
        (
            (record.run_id, record.trial, record.turns_began_at or ""),
            math.log(images_per_s(record.images_per_step, measured.counted_times_s)),
        )
        for record in group
        if record.status == "ok" and (measured := record.measurement) is not None and measured.counted_times_s
    ]


def _summary(
    key: CellKey,
    group: Sequence[Record],
    environments: dict[str, Environment],
    log_rates: scatter.Trials,
    run_scatter: scatter.Scatter | None,
) -> CellSummary:
    """Return the summary of one cell, whose records are `group`.

    `environments` holds each run's environment, for records without one. `log_rates` holds the round and the log
    throughput of each successful trial. `run_scatter` is the variance model that was fitted to all cells of the run;
    None if no cell has two trials."""
    machine, cell, codes = key
    ok = [record for record in group if record.status == "ok"]
    record = representative(group)
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
    throughput = run_scatter.group(log_rates) if run_scatter else welch.throughput(record.images_per_step, trials_s)
    rate = throughput.geometric_mean.interval()
    loads = [record.host for record in ok if record.host is not None]
    worst = max(loads, key=lambda load: load.lost, default=None)
    return replace(
        summary,
        throughput=throughput,
        images_per_s=rate,
        step_time_s=record.images_per_step / rate,
        step_time_median_s=statistics.median([t for trial in trials_s for t in trial]),
        peak_memory_bytes=max(m.peak_memory_bytes for m in measured),
        phase_host_s=tuple((phase.name, phase.host_s) for phase in phase_costs(measured)),
        unit="trials" if len(trials_s) > 1 else "run" if run_scatter else "steps",
        settled=all(m.warmup_settled for m in measured),
        lost=worst.lost if worst is not None else 0.0,
        throttled=worst is not None and worst.throttled,
        stall_s=max((stall for times_s in trials_s if (stall := stall_s(times_s))), default=None),
        flops=cell.ranks * declared_work(measured[0])[0] or None,
        tuning_budgets_s=tuple(sorted({p.budget_s for m in measured for p in m.plans if p.budget_s is not None})),
        outlier=_outlier(log_rates),
        epoch_first_s=_mean(m.epoch_first_s for m in measured),
        startup_s=_mean(m.startup_s for m in measured),
        counts_runs=any(m.runs and m.startup_s is None for m in measured),
        processes=max(1, len(measured[0].ranks)) if cell.command else 1,
    )


def _mean(times_s: Iterable[float | None]) -> float | None:
    """Return the mean of the known times; None without any."""
    known_s = [time_s for time_s in times_s if time_s is not None]
    return statistics.fmean(known_s) if known_s else None


FAR = math.log(2)
"""Distance from the median, on the log scale, from which on a trial is an outlier."""


def _outlier(rates: scatter.Trials) -> Outlier | None:
    """Return the trial farthest from the median of three or more, or None if none is an outlier."""
    if len(rates) < 3:
        return None
    median = statistics.median(log for _, log in rates)
    number, log = max(enumerate((log for _, log in rates), start=1), key=lambda trial: abs(trial[1] - median))
    return Outlier(number, math.exp(log - median)) if abs(log - median) >= FAR else None


def declared_work(measured: Measurement) -> tuple[float, float]:
    """Return the FLOPs and the bytes of a step on one rank as declared by the step's author, each 0 if not declared.
    Declarations for the whole step take precedence over the sums of those for phases."""
    works = measured.declared or ()
    step = next((work for work in works if not work.phase), None)
    flops, n_bytes = sum(work.flops for work in works if work.phase), sum(work.bytes for work in works if work.phase)
    return (step and step.flops) or flops, (step and step.bytes) or n_bytes


def representative(trials: Sequence[Record]) -> Record:
    """Return the trial that gives the cell its status and reason: the first successful one, else the first of the worst
    status."""
    ok = next((record for record in trials if record.status == "ok"), None)
    return ok or max(trials, key=lambda record: STATUSES.index(record.status))
