"""Current results compared with a base, cell by cell: the ratio with its interval, a verdict, and the phase in which a
loss occurs. Pure functions from records to frozen results."""

import functools
import math
import operator
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import msgspec

from tcbench.analysis import comparability, noise, phase_tests, rounds, welch
from tcbench.analysis.comparability import Difference
from tcbench.analysis.machine_check import MachineCheck
from tcbench.analysis.phase_tests import PhaseDecision, PhaseTrials, PhaseVerdict
from tcbench.analysis.phases import by_phase
from tcbench.analysis.stats import Interval, images_per_s, stall_s, typical
from tcbench.analysis.summary import group_by_cell, representative
from tcbench.analysis.verdict import Decision, HeldBack, Rule
from tcbench.analysis.welch import LEAST_TRIALS, Estimate, LogRatio
from tcbench.core.groups import grouped
from tcbench.core.record import BUSY, STATUSES, THROTTLE_REASONS, Cell, Measurement, Record, Status, throttle_reasons
from tcbench.core.stopping import relative_half_width

Verdict = Literal[
    "regression",
    "pass",
    "improved",
    "inconclusive",
    "unstable",
    "missing",
    "new",
    "changed status",
    "not measured",
]
VERDICTS: tuple[Verdict, ...] = (
    *("regression", "missing", "changed status", "unstable", "inconclusive", "improved", "pass", "new", "not measured"),
)
"""All verdicts, ordered by how much attention they need."""

ClockName = Literal["host", "device"]
"""The clock by which the phases of a step were measured."""

SPIKE = 2.0
"""A step that takes more than this multiple of its trial's median step is a spike."""

NOISY, _LEAST_STEPS_FOR_NOISE = 0.1, 5
"""A trial is noisy if the 95% interval of its mean step time extends to `NOISY` times the mean or more on either side.
Trials of fewer than `_LEAST_STEPS_FOR_NOISE` steps are not checked, since their interval is always wide."""

_WAITS = 0.05
"""If the steps of a gate waited for a processor for this share of their time or more, on average over both sides, the
time without these waits is judged too."""

_WHOLE_SHARE = 0.1
"""The share of the levels that the test of the whole step then keeps. It seldom rejects among so much noise."""

_DEVICE_FILLS = 0.9
"""The times that phases take on the device are compared if they add up to at least this fraction of the step;
otherwise the times on the host are compared."""

ACCIDENTS: frozenset[Status] = frozenset({"crashed", "timeout"})
"""Statuses of trials that may have ended because of the machine. Any other status without a figure is a result."""

_BROKEN: frozenset[Status] = frozenset({"oom", "failed"})

_BY_FIGURES = ("regression", "pass", "improved", "inconclusive")
"""Verdicts that follow from the figures of both sides."""

_HARMLESS = ("idle", "application clocks", "sync boost", "display clocks")
_THROTTLED = sum(bit for bit, name in THROTTLE_REASONS.items() if name not in _HARMLESS)


@dataclass(frozen=True)
class Metric:
    """A figure of one trial, such as its throughput in images/s. `says` is its name in words, and `read` returns the
    figure of a record, or None if the record does not contain it. `timed`: it depends on the machine's speed."""

    name: str
    says: str
    unit: str
    more_is_better: bool
    read: Callable[[Record], float | None]
    timed: bool = True


def _throughput(record: Record) -> float | None:
    if record.measurement is None:
        return None
    return images_per_s(record.images_per_step, record.measurement.counted_times_s)


def _memory(record: Record) -> float | None:
    return None if record.measurement is None else float(record.measurement.peak_memory_bytes) or None


def _energy(record: Record) -> float | None:
    """Return images per joule: throughput divided by the mean power of the timed pass. None with many ranks, since only
    rank 0's GPU is monitored."""
    rate, power_w = _throughput(record), record.gpu.mean_power_w if record.gpu else None
    return rate / power_w if rate is not None and power_w is not None and record.cell.ranks == 1 else None


THROUGHPUT = Metric("throughput", "images per second over total time", "images/s", True, _throughput)
METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        THROUGHPUT,
        Metric("memory", "peak memory", "bytes", False, _memory, timed=False),
        Metric("energy", "images per joule", "images/J", True, _energy),
    )
}


@dataclass(frozen=True)
class Side:
    """A summary of one cell's trials on one side of a comparison, base or current.

    - `figures`: the figures of the compared metric, one for each successful trial that has one.
    - `images_per_s`: the geometric mean of the trials' throughput, whichever metric is compared.
    - `median_images_per_s`: the geometric mean of the images per second at each trial's median step.
    - `images_per_step`: the images, or a program's items, in a step of all ranks.
    - `spikes`: the fraction of counted steps that are spikes (`SPIKE`).
    - `notes`: a remark for each trial that failed, was throttled or disturbed, or whose steps vary or had not settled.
    """

    cell: Cell
    machine: str | None
    status: Status
    reason: str | None
    trials: int
    trials_ok: int
    figures: tuple[float, ...] = ()
    images_per_s: float | None = None
    median_images_per_s: float | None = None
    spikes: float | None = None
    notes: tuple[str, ...] = ()
    images_per_step: float = math.nan

    @property
    def figure(self) -> float | None:
        """The geometric mean of the figures."""
        return statistics.geometric_mean(self.figures) if self.figures else None


@dataclass(frozen=True, eq=False)
class Trials:
    """The trials of a cell on one side. Derived figures are cached, since a history compares each commit with its
    predecessor and its successor."""

    records: Sequence[Record]
    machine: str | None
    _figures: dict[str, tuple[float, ...]] = field(default_factory=dict, init=False)
    _phase_times: dict[ClockName, dict[str, list[float]]] = field(default_factory=dict, init=False)

    @property
    def cell(self) -> Cell:
        return self.records[0].cell

    @property
    def identity(self) -> tuple[object, ...]:
        """A key that is equal for cells without any difference on the same machine."""
        return self.cell.name, self.machine, comparability.fingerprint(self.cell)

    @functools.cached_property
    def facts(self) -> comparability.Values:
        """The different values of each fact in the trials' records, for `comparability.differences`."""
        return comparability.values(self.records)

    @functools.cached_property
    def _measurements(self) -> list[Measurement]:
        return [r.measurement for r in self.records if r.status == "ok" and r.measurement is not None]

    @functools.cached_property
    def _medians_s(self) -> list[float]:
        """The median step of each successful trial."""
        return [statistics.median(measurement.counted_times_s) for measurement in self._measurements]

    @property
    def rates_at_median(self) -> list[float]:
        """Images per second at the median step of each successful trial."""
        return [representative(self.records).images_per_step / median_s for median_s in self._medians_s]

    @functools.cached_property
    def waits(self) -> tuple[float, ...]:
        """The share of its steps' time for which each successful trial waited for a processor. Empty unless all of them
        have this time, and compute in one process."""
        shares = [_waited_share(record) for record in self.records if record.status == "ok"]
        return tuple(share for share in shares if share is not None) if None not in shares else ()

    @property
    def rates_without_waits(self) -> list[float]:
        """Images per second of each successful trial, without the time for which its steps waited for a processor."""
        means_s = [statistics.fmean(measurement.step_times_s) for measurement in self._measurements]
        images = representative(self.records).images_per_step
        return [images / mean_s / (1 - share) for mean_s, share in zip(means_s, self.waits, strict=True)]

    def figures(self, metric: Metric) -> tuple[float, ...]:
        """Return the metric's figures, one for each successful trial whose record has a positive, finite figure."""
        if metric.name not in self._figures:
            figures = (metric.read(record) for record in self.records if record.status == "ok")
            self._figures[metric.name] = tuple(f for f in figures if f is not None and 0 < f < math.inf)
        return self._figures[metric.name]

    @functools.cached_property
    def tuning(self) -> dict[str, None]:
        """How cuDNN's plans were tuned, in words, each distinct description once. Empty if no trial timed any plans."""
        timed_plans = ([p for p in m.plans if p.budget_s is not None] for m in self._measurements)
        return {
            f"{sum(p.timed for p in plans)} candidates timed, {sum(p.left_out for p in plans)} left out, "
            f"budget {', '.join(f'{s:g}' for s in sorted({p.budget_s or 0 for p in plans}))} s": None
            for plans in timed_plans
            if plans
        }

    @functools.cached_property
    def kernels(self) -> Mapping[str, frozenset[frozenset[tuple[str, str]]]]:
        """The distinct sets of kernels that the trials used, by kind of work (`PlanChoice.work`). A kernel is a plan's
        name with a digest of its choices."""
        trials = [grouped((p.work, (p.plan, p.choices)) for p in m.plans) for m in self._measurements]
        kinds = dict.fromkeys(kind for trial in trials for kind in trial)
        return {kind: frozenset(frozenset(trial.get(kind, ())) for trial in trials) for kind in kinds}

    @functools.cached_property
    def fills_device(self) -> bool:
        """Whether every trial has device times for all its phases, and they add up to about the median step time."""
        return all(map(_fills_device, self._measurements, self._medians_s))

    @functools.cached_property
    def times_phases(self) -> bool:
        """Whether the phases are precise enough for a verdict: in every trial they were measured in the timed steps, or
        their device times add up to the step."""
        return self.fills_device or all(measurement.phases_are_timed for measurement in self._measurements)

    def phase_times(self, clock: ClockName) -> Mapping[str, Sequence[float]]:
        """Return each phase's trimmed mean time per step in seconds by this clock, one value per successful trial."""
        if clock not in self._phase_times:
            self._phase_times[clock] = by_phase(
                (m.phases for m in self._measurements),
                lambda phase: [typical(t) for t in [phase.device_s if clock == "device" else phase.host_s] if t],
            )
        return self._phase_times[clock]

    def side_by_metric(self, metric: Metric) -> Side:
        """Return the summary of the trials with `figures` of this metric."""
        return replace(self.side, figures=self.figures(metric))

    @functools.cached_property
    def side(self) -> Side:
        """The summary of the trials with empty `figures`, which depend on the metric. Throughputs and spikes are None
        without a successful trial."""
        trials_ok = sum(record.status == "ok" for record in self.records)
        record = representative(self.records)
        side = Side(self.cell, self.machine, record.status, record.reason, len(self.records), trials_ok)
        if not trials_ok:
            return side
        trials = zip(self._measurements, self._medians_s, strict=True)
        spikes = [time_s > SPIKE * median_s for m, median_s in trials for time_s in m.counted_times_s]
        return replace(
            side,
            images_per_step=record.images_per_step,
            images_per_s=statistics.geometric_mean(self.figures(THROUGHPUT)),
            median_images_per_s=statistics.geometric_mean(self.rates_at_median),
            spikes=statistics.fmean(spikes),
            notes=_trial_notes(self.records),
        )


def _waited_share(record: Record) -> float | None:
    """Return the share of its steps' time for which the thread that takes them waited for a processor; None if it is
    unknown or not below 1, or if a device computes."""
    waited_s = record.host.step_waited_s if record.host else msgspec.UNSET
    if record.measurement is None or waited_s is msgspec.UNSET or record.cell.workers > 1:
        return None
    if any(phase.device_s is not None for phase in record.measurement.phases):
        return None  # a device computes while the thread waits
    share = waited_s / math.fsum(record.measurement.step_times_s)
    return share if share < 1 else None


def _fills_device(measurement: Measurement, median_step_s: float) -> bool:
    """Return whether the phases of a trial have times on the device that add up to its step."""
    if not measurement.phases or any(not phase.device_s for phase in measurement.phases):
        return False
    total_s = math.fsum(statistics.median(phase.device_s or ()) for phase in measurement.phases)
    return total_s >= _DEVICE_FILLS * median_step_s


@dataclass(frozen=True)
class PhaseChange:
    """The change of one phase from base to current.

    - `base_s`, `current_s`: seconds per step, averaged over trials; `change_s`: current - base with its 95% interval.
    - `slower_by`: how much longer the phase takes, as a fraction of the base's step, with a 95% interval from pooled
      noise; `decision`: the verdict on the phase. Both are None if the phase is not judged."""

    name: str
    base_s: float
    current_s: float
    change_s: Interval
    slower_by: Interval | None = None
    decision: PhaseDecision | None = None


@dataclass(frozen=True)
class CellComparison:
    """One cell compared by one metric.

    - `failing`: whether the verdict makes the comparison fail.
    - `estimate`: current / base with pooled noise (`tcbench.analysis.noise`); None unless both sides have two trials.
    - `by_figures`: the verdict that `unstable` replaced; else None.
    - `why`: the reason for a verdict that does not follow from the ratio.
    - `more_trials`: how many more trials per side would decide an inconclusive cell (None: no sensible number).
    - `held_back`: the interval that keeps the cell inconclusive, if the 95% interval of `ratio` does not show why.
    - `at_median`: current / base of the images per second at each trial's median step; only for throughput.
    - `slower_at_median`: the ratio of `at_median`, if it shows a regression although the verdict is inconclusive.
    - `without_waits`: current / base of the images per second without the time for which steps waited for a processor;
      only in a gate, if they waited for `_WAITS` of their time or more.
    - `slower_without_waits`: that ratio, if it shows a regression although the whole step does not.
    - `phases`: the change of each phase by `clock`; `phase_trials`: the times by which phases are judged.
    - `culprit`: the phase that causes a loss of throughput; None if no phase grew significantly.
    - `other_kernels`: by phase, the kinds of work for which the two sides used different kernels."""

    metric: Metric
    base: Side | None
    current: Side | None
    verdict: Verdict
    failing: bool = False
    by_figures: Verdict | None = None
    estimate: Estimate | None = None
    why: str | None = None
    more_trials: int | None = None
    held_back: HeldBack | None = None
    at_median: Estimate | None = None
    slower_at_median: Interval | None = None
    without_waits: Estimate | None = None
    slower_without_waits: Interval | None = None
    clock: ClockName = "host"
    phases: tuple[PhaseChange, ...] = ()
    phase_trials: PhaseTrials = phase_tests.NONE
    culprit: PhaseChange | None = None
    differences: tuple[Difference, ...] = ()
    other_kernels: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def ratio(self) -> Interval | None:
        """Current / base with its 95% interval."""
        return None if self.estimate is None else self.estimate.ratio.interval()

    @property
    def slower_phases(self) -> tuple[PhaseChange, ...]:
        """The phases that are significantly slower although the cell is not called slower."""
        judged = self.verdict in ("pass", "improved", "inconclusive")
        return tuple(p for p in self.phases if judged and p.decision in ("slower", "unsettled", "moved"))

    @property
    def moved(self) -> bool:
        """Whether work moved: one phase is significantly slower and another significantly faster, in a cell that is not
        slower."""
        return any(phase.decision == "moved" for phase in self.slower_phases)

    @property
    def grew_by_kernels(self) -> bool:
        """Whether at least one phase became significantly slower, and every such phase ran different kernels on the two
        sides."""
        slower_names = {phase.name for phase in self.phases if phase.change_s.low > 0}
        return bool(slower_names) and slower_names <= self.other_kernels.keys()

    @property
    def measured(self) -> bool:
        """Whether both sides have a figure."""
        return all(side is not None and side.figures for side in (self.base, self.current))

    @property
    def fails_on_both(self) -> bool:
        """Whether the cell failed on both sides. The statuses `skipped` and `oom` do not count as failures."""
        answers = ("ok", "skipped", "oom")
        return all(side is not None and side.status not in answers for side in (self.base, self.current))

    @property
    def by_round(self) -> bool:
        """Whether the trials were paired by round, so that drift of the machine cancels."""
        return self.estimate is not None and self.estimate.by_round

    @property
    def cell(self) -> Cell:
        """The current side's cell, or the base's if the current side is missing."""
        side = self.current or self.base
        assert side is not None
        return side.cell

    @property
    def machine(self) -> str | None:
        """The name of the current side's machine, or of the base's if the current side is missing; None if no record
        names it."""
        side = self.current or self.base
        return side.machine if side else None


@dataclass(frozen=True)
class Mean:
    """The geometric mean of a metric's ratios over the cells that have one, with its 95% interval."""

    metric: Metric
    ratio: Interval
    cells: int


@dataclass(frozen=True)
class Comparison:
    """A complete comparison: one entry per cell and metric.

    - `paired`: the number of cells that both sides have.
    - `notes`: facts on which the trials of a side disagree, and other remarks.
    - `machine_check`: whether the machine stayed the same during a gate; None for runs that took no turns.
    - `power`: the statistical power by the first metric: the share of cells that would be called a regression if they
      were slower by `rule.slowdown`. None if no cell has a ratio.
    - `phase_power`: the share of phases in which a loss of `rule.slowdown` of the step would be detected. None if no
      phase is judged."""

    cells: tuple[CellComparison, ...]
    means: tuple[Mean, ...]
    rule: Rule
    paired: int
    notes: tuple[str, ...] = ()
    power: float | None = None
    phase_power: float | None = None
    machine_check: MachineCheck | None = None

    def with_machine_check(self, check: MachineCheck) -> "Comparison":
        """Return the comparison with the check of its machine. If that failed, cells judged by time are `unstable`."""
        cells = (
            replace(cell, verdict="unstable", by_figures=cell.verdict, failing=False)
            if check.unstable and cell.verdict in _BY_FIGURES and cell.estimate and cell.metric.timed
            else cell
            for cell in self.cells
        )
        return replace(self, cells=tuple(cells), machine_check=check)

    @property
    def unstable(self) -> bool | None:
        """Whether the machine changed during a gate; None if it was not checked."""
        return self.machine_check.unstable if self.machine_check else None

    @property
    def verdicts(self) -> dict[Verdict, int]:
        """The number of cells with each verdict, those that need attention first."""
        counts = Counter(cell.verdict for cell in self.cells)
        return {verdict: counts[verdict] for verdict in VERDICTS if counts[verdict]}

    @property
    def failing(self) -> bool:
        """Whether any cell fails the comparison."""
        return any(cell.failing for cell in self.cells)

    @property
    def inconclusive(self) -> bool:
        """Whether some cell could not be judged: its trials do not settle it, or it failed on both sides."""
        return any(cell.verdict in ("inconclusive", "unstable") or cell.fails_on_both for cell in self.cells)

    @property
    def unsettled(self) -> bool:
        """Whether nothing was shown: no cell fails, and none is confirmed not to be slower."""
        return not self.failing and not any(cell.verdict in ("pass", "improved") for cell in self.cells)

    @property
    def differences(self) -> tuple[Difference, ...]:
        """The differences between the two sides over all cells, each once."""
        return tuple(dict.fromkeys(difference for cell in self.cells for difference in cell.differences))

    def refused(self, allowed: Iterable[str]) -> tuple[Difference, ...]:
        """Return the differences that forbid the comparison because their facet is not allowed."""
        allowed = set(allowed)
        return tuple(d for d in self.differences if d.facet not in allowed)


def compare(
    base: Iterable[Record],
    current: Iterable[Record],
    metrics: Sequence[str] = ("throughput",),
    rule: Rule | None = None,
    in_turns: bool = False,
    decisions: Mapping[str, Decision] | None = None,
) -> Comparison:
    """Return the comparison of two sides' records, which come from `store.current`.

    - `metrics`: names in METRICS.
    - `in_turns`: the i-th trials of both sides ran in the same round, rather than one side after the other.
    - `decisions`: decisions already made, by cell key; a gate decides some cells at an interim look.

    All cells with a ratio are judged together as one family. Cells are paired by config, batch size and ranks; if a
    side has several of these (two machines, two inputs), the most similar are paired first. `Comparison.refused` tells
    whether the comparison is allowed at all."""
    rule = rule or Rule()
    bases, currents = (
        [Trials(records, machine) for (machine, _), records in group_by_cell(side).items()] for side in (base, current)
    )
    pairs = _pairs(bases, currents)
    both = [(before, after) for before, after in pairs if before is not None and after is not None]
    chosen = [METRICS[name] for name in metrics]
    drafts = [_draft(before, after, metric, in_turns) for before, after in pairs for metric in chosen]
    cell_rule = rule.among(sum(draft.estimate is not None for draft in drafts))
    phases = [draft.phase_trials for draft in drafts]
    phase_verdicts = phase_tests.judge(phases, cell_rule)
    cells = _judged(drafts, cell_rule, phase_verdicts, decisions)
    ratios = grouped((cell.metric, cell.estimate.ratio) for cell in cells if cell.estimate is not None)
    return Comparison(
        cells=cells,
        means=tuple(Mean(m, welch.geometric_mean(ratios[m]).interval(), len(ratios[m])) for m in chosen if m in ratios),
        rule=rule,
        paired=len(both),
        notes=(
            *(*_kernel_notes(both), *_mixture_notes("base", bases), *_mixture_notes("current", currents)),
            *(*_version_notes(bases, currents), *_tuning_notes(both), *(() if in_turns else _drift_notes(both))),
        ),
        power=power([cell for cell in cells if cell.metric is chosen[0]], cell_rule),
        phase_power=phase_tests.power(phases, phase_verdicts, cell_rule),
    )


def compare_cell(base: Trials, current: Trials, metric: Metric, rule: Rule) -> CellComparison:
    """Return the comparison of one cell by one metric, judged by its own trials without other cells."""
    draft = _draft(base, current, metric)
    [judged] = _judged([draft], rule, phase_tests.judge([draft.phase_trials], rule))
    return judged


def power(cells: Sequence[CellComparison], rule: Rule, trials: int | None = None) -> float | None:
    """Return the statistical power: the share of cells that `rule` would call a regression if they were slower by
    `rule.slowdown`. None if no cell has a ratio. With `trials`, it is the power with that many trials a side."""
    estimates = [cell.estimate for cell in cells if cell.estimate is not None]
    shares = [rule.power(e.with_more_trials(max(0, trials - e.n) if trials else 0)) for e in estimates]
    return statistics.fmean(shares) if shares else None


_Pair = tuple["Trials | None", "Trials | None"]


def _pairs(bases: Sequence[Trials], currents: Sequence[Trials]) -> list[_Pair]:
    """Return pairs of base and current cells in the base's order, then the cells that only current has. The partner of
    an unpaired cell is None.

    Cells are paired if they have the same name (config, batch size and ranks). Cells without any difference are paired
    first, then those with the fewest differences."""
    exact = grouped((currents[j].identity, j) for j in reversed(range(len(currents))))  # pop() takes the first
    partner = {i: twins.pop() for i, trials in enumerate(bases) if (twins := exact.get(trials.identity))}
    paired = set(partner.values())
    unpaired = grouped((trials.cell.name, j) for j, trials in enumerate(currents) if j not in paired)
    candidates = sorted(
        (comparability.distance(base.cell, currents[j].cell) + (base.machine != currents[j].machine), i, j)
        for i, base in enumerate(bases)
        if i not in partner
        for j in unpaired.get(base.cell.name, ())
    )
    for _, i, j in candidates:
        if i not in partner and j not in paired:
            partner[i] = j
            paired.add(j)
    return [
        *((trials, currents[partner[i]] if i in partner else None) for i, trials in enumerate(bases)),
        *((None, trials) for j, trials in enumerate(currents) if j not in paired),
    ]


def _draft(before: Trials | None, after: Trials | None, metric: Metric, in_turns: bool = False) -> CellComparison:
    """Return a cell's comparison by one metric before its ratio is judged. `before` and `after` are the trials of base
    and current; one of them may be None."""
    base, current = (trials.side_by_metric(metric) if trials else None for trials in (before, after))
    pair = CellComparison(metric, base, current, "not measured")
    if base is None or current is None or before is None or after is None:
        verdict: Verdict = "missing" if current is None else "new"
        return replace(pair, verdict=verdict, failing=base is not None and base.status == "ok")
    pair = replace(pair, differences=comparability.differences(before.facts, after.facts))
    if base.status != "ok" or current.status != "ok":
        return _by_status(pair, base, current)
    pair = _with_ratio(pair, base, current, in_turns)
    if metric is THROUGHPUT:
        if pair.estimate is not None:
            estimate = rounds.estimate if in_turns else welch.estimate
            pair = replace(pair, at_median=estimate(after.rates_at_median, before.rates_at_median))
            pair = replace(pair, without_waits=_without_waits(before, after) if in_turns else None)
        pair = replace(_attributed(pair, before, after, in_turns), other_kernels=other_kernels(before, after))
    why = _failure_reason(before.records, after.records)
    return replace(pair, verdict="changed status", failing=True, why=why, more_trials=None) if why else pair


def _by_status(pair: CellComparison, base: Side, current: Side) -> CellComparison:
    """Return the pair with a verdict by the sides' statuses, of which at least one is not `ok`. It stays `not measured`
    if both have the same status."""
    if base.status == current.status:
        return replace(pair, why=f"{base.status} on both sides: {current.reason}")
    reason = current.reason or f"base: {base.reason}"  # at most one of the two is ok
    why = f"{base.status} -> {current.status}: {reason}"
    return replace(pair, verdict="changed status", failing=base.status == "ok", why=why)


def _failure_reason(before: Sequence[Record], after: Sequence[Record]) -> str | None:
    """Return how trials of the current side failed although others succeeded, or None.

    None if any trial of the base failed in any way, or if the only failure is a single crash or timeout, which may be
    an accident."""
    if any(record.status in (*_BROKEN, *ACCIDENTS) for record in before):
        return None
    ended = [record for record in after if record.status in (*_BROKEN, *ACCIDENTS)]
    if not any(record.status in _BROKEN for record in ended) and len(ended) < 2:
        return None
    worst = max(ended, key=lambda record: (record.status in _BROKEN, STATUSES.index(record.status)))
    n = sum(record.status == worst.status for record in ended)
    return f"{n} of {len(after)} trials {worst.status}" + (f": {worst.reason}" if worst.reason else "")


def _with_ratio(pair: CellComparison, base: Side, current: Side, in_turns: bool) -> CellComparison:
    """Return the pair with its ratio, inconclusive until it is judged, or with the reason why it has no ratio."""
    least = min(len(base.figures), len(current.figures))
    if least == 0:
        return replace(pair, why=f"no {pair.metric.says} in the records of {'base' if not base.figures else 'current'}")
    pair = replace(pair, verdict="inconclusive")
    if least < LEAST_TRIALS:
        have = f"{len(base.figures)} trial{'s' * (len(base.figures) != 1)} of base, {len(current.figures)} of current"
        why = f"{have}: at least two trials per side are needed"
        return replace(pair, why=why, more_trials=LEAST_TRIALS - least)
    sides = (("base", base), ("current", current))
    same = [name for name, side in sides if pair.metric is THROUGHPUT and len(set(side.figures)) == 1]
    if same and not in_turns:  # the interval of copies would be a point, and any loss would be sure
        why = f"the trials of {' and of '.join(same)} have identical figures and may be copies"
        return replace(pair, why=why)
    estimate = rounds.estimate if in_turns else welch.estimate
    return replace(pair, estimate=estimate(current.figures, base.figures))


def _without_waits(before: Trials, after: Trials) -> Estimate | None:
    """Return current / base of the images per second without the time for which steps waited for a processor, or None
    if that time is unknown or short. Whether it is short depends on both sides alike, as in `rounds`."""
    if not before.waits or not after.waits or statistics.fmean([*before.waits, *after.waits]) < _WAITS:
        return None
    return rounds.estimate(after.rates_without_waits, before.rates_without_waits)


def _step_verdict(rule: Rule, step: LogRatio, without_waits: Estimate | None) -> tuple[Decision, Interval | None]:
    """Return the verdict on a whole step, and the ratio without waits if only that ratio shows a regression."""
    decision = rule.judge(step)
    if without_waits is None:
        return decision, None
    if decision != "pass":
        decision = rule.part(_WHOLE_SHARE).judge(step)
    is_slower = decision != "regression" and rule.part(1 - _WHOLE_SHARE).judge(without_waits.ratio) == "regression"
    return decision, without_waits.ratio.interval() if is_slower else None


def _judged(
    drafts: Sequence[CellComparison],
    rule: Rule,
    phase_verdicts: Sequence[Mapping[str, PhaseVerdict]],
    decisions: Mapping[str, Decision] | None = None,
) -> tuple[CellComparison, ...]:
    """Return the drafts with their verdicts. `phase_verdicts` holds the verdicts on each draft's phases, and
    `decisions` holds decisions already made, by cell key.

    Noise is pooled over the cells of each metric. If the whole step is inconclusive, a significantly slower phase makes
    the cell a regression, and so does a significantly slower step without waits, which gets most of the levels. A cell
    never passes by its time without waits, because its own threads may have caused them."""
    estimates: dict[int, Estimate] = {}
    for metric in dict.fromkeys(draft.metric for draft in drafts):
        unpooled = {n: d.estimate for n, d in enumerate(drafts) if d.metric is metric and d.estimate is not None}
        estimates |= zip(unpooled, noise.pooled(list(unpooled.values())), strict=True)
    waiting = {n: draft.without_waits for n, draft in enumerate(drafts) if draft.without_waits is not None}
    without_waits = dict(zip(waiting, noise.pooled(list(waiting.values())), strict=True))
    judged = []
    for number, draft in enumerate(drafts):
        estimate, phases = estimates.get(number), phase_verdicts[number]
        cell = _with_phase_verdicts(replace(draft, estimate=estimate), phases)
        if estimate is not None and draft.verdict == "inconclusive":
            # The rule expects figures where more is better.
            better = estimate if draft.metric.more_is_better else estimate.inverse
            earlier_decision = (decisions or {}).get(draft.cell.key)
            by_step, slower = _step_verdict(rule, better.ratio, without_waits.get(number))
            decision = earlier_decision or by_step
            if earlier_decision is None and decision == "inconclusive" and (phase_tests.lost(phases) or slower):
                decision = "regression"
            held_back = rule.held_back(better.ratio)
            median = draft.at_median.ratio if draft.at_median and decision == "inconclusive" else None
            is_slower = median is not None and median.error > 0 and rule.judge(median) == "regression"
            cell = replace(
                cell,
                verdict=decision,
                failing=decision == "regression",
                more_trials=rule.more_trials(better) if decision == "inconclusive" else None,
                held_back=held_back if held_back is None or draft.metric.more_is_better else held_back.inverse,
                slower_at_median=median.interval() if is_slower and median else None,
                slower_without_waits=slower,
            )
        judged.append(cell if cell.verdict == "regression" else replace(cell, culprit=None))
    return tuple(judged)


def phase_trials(before: Trials, after: Trials, step_s: float, by_round: bool) -> PhaseTrials:
    """Return the times by which a cell's phases are judged, given the base's `step_s`. Return `phase_tests.NONE` if a
    side's phases are too imprecise (`times_phases`), or if the sides have different phases or clocks."""
    clock: ClockName = "device" if before.fills_device else "host"
    base_times, current_times = before.phase_times(clock), after.phase_times(clock)
    timed = before.times_phases and after.times_phases and before.fills_device == after.fills_device
    if not timed or base_times.keys() != current_times.keys():
        return phase_tests.NONE
    return PhaseTrials(step_s, base_times, current_times, by_round)


def _attributed(pair: CellComparison, before: Trials, after: Trials, in_turns: bool) -> CellComparison:
    """Return the pair with the changes of its phases, the phase that grew most (None unless significantly), and, if it
    has a ratio, the times by which its phases are judged."""
    clock: ClockName = "device" if before.fills_device and after.fills_device else "host"
    current_times = after.phase_times(clock)
    difference, changes = rounds.difference if in_turns else welch.difference, []
    for name, base_s in before.phase_times(clock).items():
        current_s = current_times.get(name, ())
        if min(len(base_s), len(current_s)) < LEAST_TRIALS:
            continue
        means_s = statistics.fmean(base_s), statistics.fmean(current_s)
        changes.append(PhaseChange(name, *means_s, difference(current_s, base_s)))
    pair = replace(pair, clock=clock, phases=tuple(changes), culprit=_most_grown_phase(changes))
    if pair.estimate is None or pair.base is None or not pair.base.figure:
        return pair
    step_s = pair.base.images_per_step / pair.base.figure
    return replace(pair, phase_trials=phase_trials(before, after, step_s, pair.by_round))


def _most_grown_phase(changes: Iterable[PhaseChange]) -> PhaseChange | None:
    """Return the phase with the largest increase in time, or None if no phase became significantly slower."""
    grown = [change for change in changes if change.change_s.low > 0]
    return max(grown, key=lambda change: change.change_s.value, default=None)


def _with_phase_verdicts(cell: CellComparison, judged: Mapping[str, PhaseVerdict]) -> CellComparison:
    """Return the cell with the verdicts on its phases, given by phase name. The culprit is the phase judged slower with
    the largest loss, else the phase with the largest significant increase in time."""
    if not judged:
        return cell
    changes = [
        replace(change, slower_by=verdict.slower_by, decision=verdict.decision)
        if (verdict := judged.get(change.name))
        else change
        for change in cell.phases
    ]
    name = phase_tests.lost(judged)
    culprit = next((change for change in changes if change.name == name), None) or _most_grown_phase(changes)
    return replace(cell, phases=tuple(changes), culprit=culprit)


def _trial_notes(records: Sequence[Record]) -> tuple[str, ...]:
    """Return remarks on trials that are not reliable: a failed trial, doubts, a throttled GPU, a busy machine, a stall,
    noisy steps, or a warm-up that did not settle. A trial may have several."""
    notes = []
    for record in records:
        measurement, name = record.measurement, f"trial {record.trial + 1}"
        if record.status != "ok" or measurement is None:
            notes.append(f"{name} {record.status}: {record.reason}")
            continue
        notes += [f"{name} doubtful ({doubt})" for doubt in measurement.doubts]
        masks = [sample.throttle_mask or 0 for sample in record.gpu.timed] if record.gpu else []
        mask = functools.reduce(operator.or_, masks, 0)
        if mask & _THROTTLED:
            notes.append(f"{name} throttled ({', '.join(throttle_reasons(mask & _THROTTLED))})")
        if record.host is not None and record.host.lost >= BUSY:
            where = "was withheld by a CPU quota" if record.host.throttled else "went to other processes"
            notes.append(f"{name} on a busy machine ({record.host.lost:.0%} of its processor time {where})")
        if (longest_s := stall_s(measurement.counted_times_s)) is not None:
            median_s = statistics.median(measurement.counted_times_s)
            notes.append(f"{name} stalled (a step of {longest_s:.3g} s, median {median_s:.3g} s)")
        half = relative_half_width(measurement.counted_times_s)
        if half >= NOISY and len(measurement.counted_times_s) >= _LEAST_STEPS_FOR_NOISE:
            notes.append(f"{name} noisy (mean step {f'± {half:.0%}' if half < 1 else '± >100%'})")
        if not measurement.warmup_settled:
            notes.append(f"{name} not settled when its warm-up ended")
    return tuple(notes)


def _version_notes(*sides: Sequence[Trials]) -> tuple[str, ...]:
    """Return a note if base and current were measured by different versions of tcbench, else an empty tuple."""
    versions = ({r.environment.tcbench for trials in side for r in trials.records if r.environment} for side in sides)
    base, current = (", ".join(sorted(side)) for side in versions)
    return (f"base was measured by tcbench {base}, current by {current}",) * (
        base != current and "" not in (base, current)
    )


def _tuning_notes(pairs: Sequence[tuple[Trials, Trials]]) -> tuple[str, ...]:
    """Return a note if cuDNN's plans were tuned differently on the two sides, with the first such cell as an example,
    else an empty tuple."""
    tuned = [(base, current) for base, current in pairs if base.tuning and current.tuning]
    differing = [(base, current) for base, current in tuned if base.tuning.keys() != current.tuning.keys()]
    return tuple(
        f"cuDNN's plans were tuned differently in {len(differing)} of {len(tuned)} cells: {base.cell.label}: "
        f"{' or '.join(base.tuning)} -> {' or '.join(current.tuning)}"
        for base, current in differing[:1]
    )


def _drift_notes(pairs: Sequence[tuple[Trials, Trials]]) -> tuple[str, ...]:
    """Return a note on cells that become slower from trial to trial on both sides, and one on cells that become faster.
    Empty without such cells."""
    signs = [rounds.trend(*(side.figures(THROUGHPUT) for side in pair), tests=len(pairs)) for pair in pairs]
    return tuple(
        f"base and current both become {word} during the run in {signs.count(sign)} of {len(pairs)} cells: the ratio "
        "may be drift of the machine; `tcbench gate` measures the sides in turns"
        for word, sign in (("slower", -1), ("faster", 1))
        if sign in signs
    )


def other_kernels(base: Trials, current: Trials) -> Mapping[str, Sequence[str]]:
    """Return, by phase, the kinds of work for which the two sides used different kernels. Records without a digest of
    the choices are compared by the kernels' names alone."""
    sides = [(kind, base.kernels[kind], current.kernels[kind]) for kind in base.kernels if kind in current.kernels]
    return grouped((_phase_of(kind), kind) for kind, before, after in sides if _kernels_differ(before, after))


def _kernels_differ(
    base: frozenset[frozenset[tuple[str, str]]], current: frozenset[frozenset[tuple[str, str]]]
) -> bool:
    """Return whether the two sides used different kernels for one kind of work. `base` and `current` hold the distinct
    sets of kernels that the trials of a side used; a kernel is (name, digest of its choices)."""
    if all(digest for trial in base | current for _, digest in trial):
        return base != current
    before, after = ({frozenset(name for name, _ in trial) for trial in side} for side in (base, current))
    return before != after


def _phase_of(kind: str) -> str:
    """Return the phase in which a kind of work such as "conv_dgrad float32" is done: update, backward or forward."""
    name = kind.partition(" ")[0]
    if any(word in name for word in ("update", "unscale", "pack")):
        return "update"
    return "backward" if any(word in name for word in ("dgrad", "wgrad", "backward", "gradient")) else "forward"


def _kernel_notes(pairs: Sequence[tuple[Trials, Trials]]) -> tuple[str, ...]:
    """Return a note if the two sides ran different kernels for the same work, with the first such cell as an example,
    else an empty tuple."""
    differing = [(base, phases) for base, current in pairs if (phases := other_kernels(base, current))]
    return tuple(
        f"base and current ran different kernels for the same work in {len(differing)} of {len(pairs)} cells: "
        f"{base.cell.label}: " + "; ".join(f"in {phase}: {', '.join(kinds)}" for phase, kinds in phases.items())
        for base, phases in differing[:1]
    )


def _mixture_notes(side: str, cells: Sequence[Trials]) -> tuple[str, ...]:
    """Return a note for each fact on which the trials of one cell disagree, without duplicates. `side` is the name of
    the side that `cells` belong to, "base" or "current"."""
    mixed = dict.fromkeys(note for cell in cells for note in comparability.mixtures(cell.records, cell.facts))
    return tuple(f"the trials of {side} differ in {note}" for note in mixed)
