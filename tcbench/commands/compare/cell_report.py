"""A comparison in words.

`comparison_report` makes a `CellReport` of each cell. The table, Markdown, JUnit, GitHub annotations and the chart show
these and need nothing else of the analysis. Every text is one line without control characters; each format escapes
it in its own way."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from tcbench.analysis.comparability import FACETS
from tcbench.analysis.compare import CellComparison, Comparison, Metric, PhaseChange, Side
from tcbench.analysis.machine_check import LEAST_ROUNDS
from tcbench.analysis.stats import Interval
from tcbench.analysis.verdict import MOST_TRIALS
from tcbench.core.groups import grouped
from tcbench.core.record import STATUSES
from tcbench.show.format import (
    change,
    counted,
    factor,
    listed,
    milliseconds,
    number,
    percent,
    quotient,
    ratio,
    size,
    threshold,
)
from tcbench.show.naming import distinguishing_settings, rate_unit
from tcbench.show.next_steps import NextStep
from tcbench.show.sides import UNNAMED, Labels, allowed_lines, first_few
from tcbench.show.verdicts import STATUS_BADGES

_DOUBTS = ("doubtful", "throttled", "on a busy machine", "stalled", "noisy", "not settled", *STATUSES)
"""Kinds of doubt about trials, in the words with which notes begin."""

_SPLITS = {
    "first and last": ("the first half of the gate agrees with the last", "from the first to the last half"),
    "odd and even": ("odd rounds agree with even ones", "from odd to even rounds"),
}
"""The words for two halves that agree, and for a change between them, by the name of the split."""


@dataclass(frozen=True)
class CellReport(CellComparison):
    """A cell's comparison in words.

    `where` lists the facts that distinguish the cell from others of the same config, batch size and metric; it is
    usually empty."""

    where: str = ""

    @property
    def name(self) -> str:
        """The cell's label with `where`: `fp32, batch size 4`. It is unique among the cells of a metric."""
        return self.cell.label + (f" ({self.where})" if self.where else "")

    @property
    def where_in_table(self) -> str:
        """The facts of `where` without the model, which has its own column."""
        return ", ".join(fact for fact in self.where.split(", ") if fact != f"model {self.cell.model}")

    @property
    def sides(self) -> dict[str, Side]:
        """The sides that have the cell, by name."""
        return {name: side for name, side in (("base", self.base), ("current", self.current)) if side}

    def side_figure(self, side_name: str) -> tuple[str, float | None]:
        """Return the figure of a side ("base" or "current") as text and as a number.

        The text has no unit, except for bytes. Without a figure it is the side's status or "-", and the number None."""
        side = self.sides.get(side_name)
        if side is None or side.figure is None:
            return "-" if side is None or side.status == "ok" else side.status, None
        return size(round(side.figure)) if self.metric.unit == "bytes" else number(side.figure), side.figure

    @cached_property
    def sentence(self) -> str:
        """The reason for the verdict: `findings`, change, `why`, `advice`; for a cell on one side only, its status."""
        if self.verdict in ("missing", "new"):
            [(name, side)] = self.sides.items()
            state = f"{side.status}: {side.reason}" if side.reason else side.status
            return f"not in {'current' if name == 'base' else 'base'}; {name}: {state}"
        changed = f"{self.metric.name} {change(self.ratio.value)} ({_limits(self.ratio)})" if self.ratio else None
        return "; ".join(filter(None, [*self.findings, changed, self.why, *self.advice]))

    @property
    def explained(self) -> bool:
        """Whether the sentence says more than the verdict and the ratio."""
        return self.verdict != "pass" or bool(self.findings)

    @property
    def unsure(self) -> bool:
        """Whether the cell could not be judged."""
        return self.verdict in ("inconclusive", "unstable") or self.fails_on_both

    @property
    def reasons(self) -> list[str]:
        """The parts of `sentence` except the change, then `doubts` as `base: ...` or `current: ...`."""
        doubts = (f"{name}: {note}" for name, note in self.doubts)
        return [*filter(None, [*self.findings, self.why, *self.advice]), *doubts]

    @cached_property
    def doubts(self) -> list[tuple[str, str]]:
        """The remarks on doubtful trials, as pairs of side name and remark. Failed sides are left out."""
        return [(name, note) for name, side in self.sides.items() if side.status == "ok" for note in side.notes]

    @cached_property
    def findings(self) -> list[str]:
        """Confirmed facts besides the ratio: a slower step without waits, a slower median step, and slower phases."""
        return [*filter(None, [self._slower_without_waits, self._slower_at_median, self._slower_in])]

    @property
    def missing_trials(self) -> str:
        """The number of trials a side that would decide an inconclusive cell with a ratio, `+3 trials`; else empty."""
        lacks = self.more_trials if self.verdict == "inconclusive" and self.ratio is not None else None
        return "" if lacks is None else f"+{counted(lacks, 'trial')}"

    @property
    def needs_no_sentence(self) -> bool:
        """Whether the verdict, the ratio and `missing_trials` say everything that the sentence says."""
        return self.verdict == "improved" or bool(self.missing_trials and not self.findings and not self.held_back)

    @cached_property
    def median_step(self) -> str:
        """The throughput ratio at the median step, if slow steps make it differ from `ratio`; else empty."""
        base, current = self.base, self.current
        if self.metric.name != "throughput" or self.ratio is None or base is None or current is None:
            return ""
        if not base.median_images_per_s or not current.median_images_per_s:
            return ""
        at_median = current.median_images_per_s / base.median_images_per_s
        shares = [side.spikes or 0.0 for side in (base, current)]
        spikes_differ = abs(shares[1] - shares[0]) >= 0.005
        if self.ratio.holds(at_median) and not spikes_differ:
            return ""
        return quotient(at_median) + (f", spikes {' -> '.join(map(percent, shares))}" if spikes_differ else "")

    @property
    def _slower_at_median(self) -> str:
        """The loss at the median step, if it is certain while the verdict is inconclusive; else empty."""
        if self.slower_at_median is None:
            return ""
        longer = 1 / self.slower_at_median
        spikes = max(side.spikes or 0.0 for side in self.sides.values())
        hidden = f": {percent(spikes, 0)} of the steps are spikes" if spikes >= 0.005 else ""
        return (
            f"the median step is confirmed to take {factor(longer.value)} as long ({_limits(longer, factor)}); "
            f"the mean step is not settled{hidden}"
        )

    @property
    def _slower_without_waits(self) -> str:
        """The loss without the time for which steps waited for a processor, if the verdict rests on it; else empty."""
        if self.slower_without_waits is None or self.verdict != "regression":
            return ""
        longer = 1 / self.slower_without_waits
        return (
            f"without waits for a processor, the step takes {factor(longer.value)} as long ({_limits(longer, factor)})"
        )

    @property
    def _slower_in(self) -> str:
        """The phases that are certainly slower, with their loss as a share of the base's step.

        Example: `slower by 5.4% of the step (4.3% to 6.5%) in update`. A regression lists only its culprit. If work
        moved between phases, those that became faster are listed too. Empty if no phase is certain."""

        def share(phase: PhaseChange) -> str:
            loss = phase.slower_by
            return f"{percent(loss.value)} of the step ({percent(loss.low)} to {percent(loss.high)})" if loss else ""

        if self.verdict == "regression":
            culprit = self.culprit
            return f"slower by {share(culprit)} in {culprit.name}" if culprit and culprit.decision == "slower" else ""
        if self.moved:
            changes = [(p.name, p.slower_by) for p in self.phases if p.decision in ("moved", "faster")]
            words = [f"{name} {change(1 + loss.value)} of the step" for name, loss in changes if loss]
            return f"work moved: {', '.join(words)}"
        if not self.slower_phases:
            return ""
        step = "the whole step lost less than the threshold"
        if self.verdict == "inconclusive":
            step = "whether the whole step is slower is not settled"
        return f"{listed([f'{p.name} is confirmed slower by {share(p)}' for p in self.slower_phases])}; {step}"

    @cached_property
    def advice(self) -> list[str]:
        """Details of the verdict. A regression of throughput has the phase that caused it. An inconclusive cell has the
        interval that keeps it so (`held_back`), and the number of trials that would decide. An unstable one has the
        verdict by its figures. Others have none."""
        if self.verdict == "regression" and self.metric.name == "throughput":
            kernels = f"phases grew only where the two sides ran different kernels: {', '.join(self.other_kernels)}"
            return [*filter(None, [self._place_of_loss, kernels if self.grew_by_kernels else ""])]
        if self.verdict == "unstable":
            return [f"by its figures alone: {self.by_figures}"]
        if self.verdict != "inconclusive":
            return []
        if self.more_trials is not None:
            trials = f"{counted(self.more_trials, 'more trial')} a side"
            advice = f"measure at least {trials}" if self.ratio is None else f"about {trials} would decide"
        elif self.ratio is None:
            advice = "measure both sides again"
        else:
            advice = f"not even {MOST_TRIALS:,} trials a side would show on which side of the threshold it lies"
        if self.held_back is None:
            return [advice]
        # A loss beyond the threshold must also be confirmed to be a change; that test has a stricter level.
        held = "no change at all" if self.held_back.no_change else "the threshold"
        interval = f"{100 * self.held_back.confidence:.4g}% interval, {_limits(self.held_back.interval)}"
        return [f"judged by its {interval}, which includes {held}", advice]

    @property
    def _place_of_loss(self) -> str:
        """The phase that caused a loss, with the time it added, also as a share of the base's step; or empty."""
        culprit = self.culprit
        if culprit is None:
            return "no single phase is confirmed slower" if self.phases else ""
        grown_s, share = culprit.change_s.value, ""
        if self.base and self.base.figure and culprit.decision != "slower":  # else `_slower_in` says it
            share = f", {percent(grown_s * self.base.figure / self.base.images_per_step)} of the step"
        return (
            f"{culprit.name} takes {milliseconds(grown_s)} longer (median {milliseconds(culprit.base_s)} -> "
            f"{milliseconds(culprit.current_s)} on the {self.clock}{share})"
        )

    # In the chart.

    @property
    def point(self) -> float | None:
        """Current over base, even if there are too few trials for an interval; None if a side has no figure."""
        if self.ratio is not None:
            return self.ratio.value
        figures = [side.figure for side in self.sides.values() if side.figure is not None]
        return figures[1] / figures[0] if len(figures) == 2 else None

    @property
    def phase_ratio(self) -> Interval | None:
        """The throughput ratio if only the slower phase had changed; None if no phase is confirmed slower."""
        loss = self.culprit.slower_by if self.culprit is not None and self.culprit.decision == "slower" else None
        return loss and 1 / Interval(1 + loss.value, 1 + loss.low, 1 + loss.high)

    @property
    def why_no_ratio(self) -> str:
        """Why the cell has no ratio: it is on one side only, or failed or was not measured on a side."""
        if len(self.sides) == 1:
            [(name, side)] = self.sides.items()
            bare = side.figure is None or self.metric.unit == "bytes"  # `side_figure` needs no unit after it
            state = (
                side.status
                if side.figure is None
                else self.side_figure(name)[0] + f" {figure_unit([self])}" * (not bare)
            )
            return f"not in {'current' if name == 'base' else 'base'}; {name}: {state}"
        base, current = self.sides.values()
        before, now = (STATUS_BADGES[side.status].word for side in (base, current))
        if base.status == current.status:
            return (self.why or "") if base.status == "ok" else f"{now} on both sides"
        reason = f": {current.reason.removeprefix(now + ': ')}" if current.reason else ""
        return f"{before} → {now}{reason}"


@dataclass(frozen=True)
class ComparisonReport(Comparison):
    """A comparison in words. `labels` are the names of its sides."""

    cells: tuple[CellReport, ...]
    labels: Labels = UNNAMED

    @cached_property
    def by_metric(self) -> dict[Metric, list[CellReport]]:
        """The cells of each metric, in order."""
        return grouped((cell.metric, cell) for cell in self.cells)

    @property
    def headline(self) -> str:
        """The count of verdicts: `1 regression, 2 inconclusive, 17 pass at a threshold of 3%`. If the machine was
        unstable or nothing is settled, it says that first."""
        counts = ", ".join(f"{n} {verdict}" for verdict, n in self.verdicts.items()) or "nothing to compare"
        loud = "NOT SETTLED: no cell was decided: " if self.unsettled else ""
        loud = "UNSTABLE: the machine changed during the gate: " if self.unstable else loud
        return f"{loud}{counts} at a threshold of {threshold(self.rule.threshold)}"

    @property
    def mean_lines(self) -> list[str]:
        """A line for each metric's geometric mean."""
        means = (
            (mean, f"{mean.metric.name}, geometric mean over {counted(mean.cells, 'cell')}") for mean in self.means
        )
        return [f"{name}: {ratio(mean.ratio)}, {change(mean.ratio.value)}" for mean, name in means]

    @property
    def power_lines(self) -> list[str]:
        """The statistical power: `a slowdown of 5% would be detected in 87 of 100 cells with this noise`."""
        if self.power is None:
            return []
        slower, cells = threshold(self.rule.slowdown), f"in {100 * self.power:.0f} of 100 cells with this noise"
        says = f"a slowdown of {slower} would be detected {cells}"
        if self.phase_power is not None:
            says += f"; {slower} of the step in one phase, in {100 * self.phase_power:.0f} of 100 phases"
        return [says]

    @property
    def machine_lines(self) -> list[str]:
        """The result of the machine check: what differs, or that nothing does. Empty without a check."""
        if self.machine_check is None:
            return []
        splits = self.machine_check.splits
        if not splits:
            return [f"machine check: too few rounds for a check (at least {LEAST_ROUNDS} in each half)"]
        if not self.unstable:
            return [f"machine check passed: {listed([_SPLITS[split.halves][0] for split in splits])}"]
        changes = [
            f"{_SPLITS[split.halves][1]} ({change(split.change)} on average, p = {split.p:.1g})"
            for split in splits
            if split.significant
        ]
        return [f"machine check failed: current / base changed {listed(changes)}; measure again on a quiet machine"]

    @property
    def one_sided_lines(self) -> list[str]:
        """A remark if a cell is decided although its 95% interval includes the threshold; else empty."""
        worst = 1 - self.rule.threshold
        decided = [cell for cell in self.cells if cell.verdict in ("pass", "regression")]
        ratios = [c.ratio if c.metric.more_is_better else 1 / c.ratio for c in decided if c.ratio]
        says = "verdict: by a one-sided test, so the 95% interval may cross the threshold although the cell is decided"
        return [says] if any(interval.holds(worst) for interval in ratios) else []

    @property
    def drift_lines(self) -> list[str]:
        """A remark that trials were paired by round because the machine's speed drifts; empty if they were not."""
        paired = sum(cell.by_round for cell in self.cells)
        ratios = "the ratio" if len(self.cells) == 1 else f"{paired} of {len(self.cells)} ratios"
        says = "machine speed drifts from round to round, so base and current are compared round by round"
        return [f"{says}: {ratios} {'is' if paired == 1 else 'are'} paired"] if paired else []

    @property
    def facets(self) -> str:
        """The facets in which the sides differ, in words and joined by semicolons."""
        return "; ".join(
            FACETS.get(name, name) for name in dict.fromkeys(difference.facet for difference in self.differences)
        )

    def allowed(self, most: int = 8) -> list[str]:
        """Return the differences that --allow permits: a line per facet, with at most `most` differences each."""
        return allowed_lines(self.differences, most)

    def doubts(self, most: int, more: str = "") -> list[str]:
        """Return a line per doubtful trial. If there are more than `most`, return their counts instead, each line
        ending with `more`."""
        lines = dict.fromkeys(f"{side}, {cell.name}: {note}" for cell in self.cells for side, note in cell.doubts)
        return [*lines] if len(lines) <= most else [f"{line}{more}" for line in self.counted_doubts]

    @property
    def counted_doubts(self) -> list[str]:
        """A line per side with its numbers of doubtful trials: `base: 14 trials noisy, 3 trials throttled, in 9 cells`.
        A cell compared by several metrics counts once."""
        of_cells, lines = {(cell.machine, cell.cell): cell.doubts for cell in self.cells}, []
        for side in ("base", "current"):
            noted = [(key, note) for key, doubts in of_cells.items() for name, note in doubts if name == side]
            kinds = Counter(_kind(note) for _, note in noted)
            counts = ", ".join(f"{counted(n, 'trial')} {kind}" for kind, n in kinds.most_common())
            lines += [f"{side}: {counts}, in {counted(len(dict(noted)), 'cell')}"] * bool(noted)
        return lines

    @property
    def next_steps(self) -> list[NextStep]:
        """The command that breaks the greatest loss of throughput down. None without such a loss or without files, or
        if some cells differ in more than config and batch size, because the command cannot tell these apart."""
        lost = [c for c in self.cells if c.verdict == "regression" and c.metric.name == "throughput" and c.ratio]
        if not lost or self.labels.files is None or any(cell.where for cell in self.cells):
            return []
        cell = min(lost, key=lambda c: c.ratio.value if c.ratio else 1.0).cell
        chosen = ["--config", cell.config, "--bs", str(cell.batch_size)] if self.paired > 1 else []
        return [NextStep(("diff", *self.labels.files, *chosen), "shows where the loss is")]


def comparison_report(comparison: Comparison, labels: Labels = UNNAMED) -> ComparisonReport:
    """Return a comparison in words, with names for its cells that are unique within a metric."""
    cells: dict[int, CellReport] = {}
    for numbered in grouped((cell.metric, (n, cell)) for n, cell in enumerate(comparison.cells)).values():
        wheres = distinguishing_settings([(cell.machine, cell.cell) for _, cell in numbered])
        cells |= {n: CellReport(**vars(cell), where=where) for (n, cell), where in zip(numbered, wheres, strict=True)}
    return ComparisonReport(**vars(comparison) | {"cells": tuple(cells[n] for n in sorted(cells))}, labels=labels)


def figure_unit(cells: Sequence[CellReport]) -> str:
    """Return the unit of one metric's figures, with the unit of the user's own step in place of images."""
    return cells[0].metric.unit.replace("images", rate_unit(cell.cell for cell in cells).removesuffix("/s"))


def metric_with_unit(cells: Sequence[CellReport]) -> str:
    """Return the cells' metric with its unit, unless that is bytes: `throughput (images/s)`, `memory`."""
    metric = cells[0].metric
    return metric.name if metric.unit == "bytes" else f"{metric.name} ({figure_unit(cells)})"


def metric_heading(cells: Sequence[CellReport]) -> str:
    """Return a heading for the cells of a metric: `throughput: images per second over total time`."""
    items = rate_unit(cell.cell for cell in cells).removesuffix("/s")
    return f"{cells[0].metric.name}: {cells[0].metric.says.replace('images', items)}"


def reason_lines(cells: Iterable[CellReport], most: int = 3) -> list[str]:
    """Return a line for each verdict that needs an explanation, in order. Cells with the same reason share it."""
    groups = grouped(((cell.verdict, cell.sentence), cell.name) for cell in cells if cell.explained)
    return [f"{first_few(names, most)}: {verdict}: {says}" for (verdict, says), names in groups.items()]


def _limits(interval: Interval, words: Callable[[float], str] = change) -> str:
    """Return the limits of an interval, the lower one first, each formatted by `words`: `-3.1% to +0.4%`."""
    low, high = sorted((interval.low, interval.high))
    return f"{words(low)} to {words(high)}"


def _kind(note: str) -> str:
    """Return the word of `_DOUBTS` that a note on a trial begins with after its number, or else "doubtful"."""
    rest = note.split(" ", 2)[-1]  # without "trial N"
    return next((kind for kind in _DOUBTS if rest.startswith(kind)), "doubtful")
