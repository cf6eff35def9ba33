"""A comparison in words: figures, changes, the reason of a verdict, what makes trials doubtful. Every text is one line
without control characters, and is not yet escaped for Markdown, XML or anything else."""

from collections import Counter
from collections.abc import Iterable, Sequence

from tcbench.analysis.compare import CellComparison, Comparison, Mean, Metric, PhaseChange, Side
from tcbench.analysis.verdict import MOST_TRIALS
from tcbench.core.groups import grouped
from tcbench.core.record import STATUSES, Cell
from tcbench.present.format import (
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
from tcbench.present.naming import apart, rate_unit
from tcbench.present.next_steps import NextStep
from tcbench.present.sides import Labels, several

_DOUBTS = ("throttled", "on a busy machine", "stalled", "noisy", "not settled", *STATUSES)


def names(cells: Sequence[CellComparison]) -> tuple[str, ...]:
    """A name for each cell that no cell by the same metric shares: `fp32, batch size 4`."""
    named = zip(cells, wheres(cells), strict=True)
    return tuple(cell.cell.label + (f" ({where})" if where else "") for cell, where in named)


def wheres(cells: Sequence[CellComparison]) -> tuple[str, ...]:
    """The facts that tell cells of one config and batch size apart; all empty where there is one of each."""
    wheres: dict[int, str] = {}
    for of_metric in grouped((cell.metric.name, place) for place, cell in enumerate(cells)).values():
        wheres |= zip(of_metric, apart([(cells[place].machine, cells[place].cell) for place in of_metric]), strict=True)
    return tuple(wheres[place] for place in range(len(cells)))


def by_metric(comparison: Comparison) -> dict[Metric, list[CellComparison]]:
    """The cells of each metric, in order."""
    return grouped((cell.metric, cell) for cell in comparison.cells)


def figure(metric: Metric, side: Side | None) -> str:
    """A side's figure without its unit (bytes have theirs), or its status where it has none."""
    if side is None:
        return "-"
    if side.figure is None:
        return "-" if side.status == "ok" else side.status
    return size(round(side.figure)) if metric.unit == "bytes" else number(side.figure)


def unit(metric: Metric, cells: Iterable[Cell]) -> str:
    """The unit of a metric's figures for these cells: what is counted in images elsewhere, in their own."""
    return metric.unit.replace("images", rate_unit(cells).removesuffix("/s"))


def titled(metric: Metric, cells: Iterable[Cell]) -> str:
    """A metric with its unit, which bytes bring with them: `throughput (images/s)`, `memory`."""
    return metric.name if metric.unit == "bytes" else f"{metric.name} ({unit(metric, cells)})"


def heading(metric: Metric, cells: Iterable[Cell]) -> str:
    """`throughput: images per second over total time`."""
    items = rate_unit(cells).removesuffix("/s")
    return f"{metric.name}: {metric.says.replace('images', items)}"


def median_step(cell: CellComparison) -> str:
    """The ratio at the median step, where slow steps tell it from that over total time. Else empty."""
    base, current = cell.base, cell.current
    if cell.metric.name != "throughput" or cell.ratio is None or base is None or current is None:
        return ""
    if not base.median_images_per_s or not current.median_images_per_s or base.spikes is None or current.spikes is None:
        return ""
    at_median = current.median_images_per_s / base.median_images_per_s
    spiky = abs(current.spikes - base.spikes) >= 0.005  # worth a word
    if cell.ratio.holds(at_median) and not spiky:
        return ""
    spikes = f", spikes {percent(base.spikes)} -> {percent(current.spikes)}" if spiky else ""
    return f"{quotient(at_median)}{spikes}"


def sentence(cell: CellComparison) -> str:
    """The reason of a verdict: the change with its interval, where a loss sits, what would decide."""
    if cell.verdict == "missing":
        return f"not in current; base: {_state(cell.base)}"
    if cell.verdict == "new":
        return f"not in base; current: {_state(cell.current)}"
    parts = [*filter(None, [slower_at_median(cell), slower_in(cell)])]
    if cell.ratio is not None:
        low, high = sorted((cell.ratio.low, cell.ratio.high))
        parts.append(f"{cell.metric.name} {change(cell.ratio.value)} ({change(low)} to {change(high)})")
    if cell.why:
        parts.append(cell.why)
    return "; ".join([*parts, *telling(cell)])


def slower_at_median(cell: CellComparison) -> str:
    """The median step's loss where that is sure and the verdict is inconclusive; else empty."""
    if cell.slower_at_median is None:
        return ""
    longer = 1 / cell.slower_at_median
    low, high = sorted((longer.low, longer.high))
    spikes = [side.spikes or 0.0 for side in (cell.base, cell.current) if side]
    hidden = f": {percent(max(spikes), 0)} of the steps are spikes" if max(spikes) >= 0.005 else ""
    return (
        f"the median step surely takes {factor(longer.value)} as long ({factor(low)} to {factor(high)}); "
        f"the mean step is not settled{hidden}"
    )


def slower_in(cell: CellComparison) -> str:
    """The phases that surely take longer, as shares of the base's step: `slower by 5.4% of the step (4.3% to 6.5%) in
    update`; where work moved also those that surely take less. Empty where no phase is sure."""

    def share(phase: PhaseChange) -> str:
        by = phase.slower_by
        return "" if by is None else f"{percent(by.value)} of the step ({percent(by.low)} to {percent(by.high)})"

    if cell.verdict == "regression":
        culprit = cell.culprit
        return f"slower by {share(culprit)} in {culprit.name}" if culprit and culprit.decision == "slower" else ""
    if cell.moved:
        phases = [(p.name, p.slower_by) for p in cell.phases if p.decision in ("moved", "faster")]
        return f"work moved: {', '.join(f'{name} {change(1 + by.value)} of the step' for name, by in phases if by)}"
    if not cell.slower_phases:
        return ""
    whole = "the whole step lost less than the threshold"
    if cell.verdict == "inconclusive":
        whole = "whether the whole step is slower is not settled"
    return f"{listed([f'{p.name} is surely slower by {share(p)}' for p in cell.slower_phases])}; {whole}"


def telling(cell: CellComparison) -> list[str]:
    """The place of a loss, or what would decide."""
    if cell.verdict == "inconclusive":
        trials = "" if cell.more_trials is None else f"{counted(cell.more_trials, 'more trial')} a side"
        advice = f"at least {trials} to begin with" if cell.ratio is None else f"about {trials} would decide"
        if not trials:
            more = f"not even {MOST_TRIALS:,} trials a side would show on which side of the threshold it lies"
            advice = "measure both sides again" if cell.ratio is None else more
        return [*filter(None, [held_back(cell)]), advice]
    loss = cell.verdict == "regression" and cell.metric.name == "throughput"
    return [*filter(None, [attribution(cell), by_kernels(cell)])] if loss else []


def _state(side: Side | None) -> str:
    if side is None:
        return "none"
    return f"{side.status}: {side.reason}" if side.reason else side.status


def held_back(cell: CellComparison) -> str:
    """The interval by which it is inconclusive, where the one that is shown seems to decide; empty elsewhere."""
    of = cell.held_back
    if of is None:
        return ""
    low, high = sorted((of.interval.low, of.interval.high))
    held = "no change at all" if of.no_change else "the threshold"
    return f"decided by its {100 * of.confidence:.4g}% interval, {change(low)} to {change(high)}, which includes {held}"


def attribution(cell: CellComparison) -> str:
    """The phase that a loss sits in, and how much of the base's step that is."""
    culprit = cell.culprit
    if culprit is None:
        return "no single phase surely takes longer" if cell.phases else ""
    grown_s = culprit.change_s.value
    step_s = cell.cell.images_per_step / cell.base.figure if cell.base and cell.base.figure else None
    told = step_s is None or culprit.decision == "slower"  # by the line's first words
    share = "" if told or step_s is None else f", {percent(grown_s / step_s)} of the step"
    return (
        f"{culprit.name} takes {milliseconds(grown_s)} longer (median {milliseconds(culprit.base_s)} -> "
        f"{milliseconds(culprit.current_s)} on the {cell.clock}{share})"
    )


def by_kernels(cell: CellComparison) -> str:
    """A remark on a loss that lies only where the two sides ran different kernels; empty elsewhere."""
    if not cell.grew_by_kernels:
        return ""
    return f"only where the two sides ran different kernels: {', '.join(cell.other_kernels)}"


def next_steps(comparison: Comparison, labels: Labels) -> list[NextStep]:
    """The command that takes the greatest loss apart; none without a loss, or where no file has its records."""
    lost = [c for c in comparison.cells if c.verdict == "regression" and c.metric.name == "throughput" and c.ratio]
    if not lost or labels.files is None or any(wheres(comparison.cells)):
        return []
    cell = min(lost, key=lambda c: c.ratio.value if c.ratio else 1.0).cell
    chosen = ["--config", cell.config, "--bs", str(cell.batch_size)] if comparison.paired > 1 else []
    return [NextStep(("diff", *labels.files, *chosen), "where the loss sits")]


def headline(comparison: Comparison) -> str:
    """`1 regression, 2 inconclusive, 17 pass at a threshold of 3%`; says first where nothing is settled."""
    counts = ", ".join(f"{n} {verdict}" for verdict, n in comparison.verdicts.items()) or "nothing to compare"
    loud = "NOT SETTLED: nothing was proven: " if comparison.unsettled else ""
    return f"{loud}{counts} at a threshold of {threshold(comparison.rule.threshold)}"


def power(comparison: Comparison) -> str:
    """`a slowdown of 5% would be seen in 87 of 100 cells that vary as these do`; empty where nothing is known of it."""
    if comparison.power is None:
        return ""
    slower = threshold(comparison.rule.slowdown)
    seen = f"a slowdown of {slower} would be seen in {100 * comparison.power:.0f} of 100 cells that vary as these do"
    if comparison.phase_power is None:
        return seen
    return f"{seen}; {slower} of the step in one phase, in {100 * comparison.phase_power:.0f} of 100 phases"


def mean(of: Mean) -> str:
    """A metric's geometric mean."""
    cells = counted(of.cells, "cell")
    return f"{of.metric.name}, geometric mean over {cells}: {ratio(of.ratio)}, {change(of.ratio.value)}"


def one_sided(comparison: Comparison) -> str:
    """A remark where a cell is decided though its interval includes the threshold; empty where none is."""
    worst = 1 - comparison.rule.threshold
    decided = [(c.metric, c.ratio) for c in comparison.cells if c.verdict in ("pass", "regression") and c.ratio]
    if not any((ratio if metric.more_is_better else 1 / ratio).holds(worst) for metric, ratio in decided):
        return ""
    return "verdict: by a one-sided test, whose limit lies within the 95% interval: that may reach past the threshold"


def drift(comparison: Comparison) -> str:
    """A remark on cells that were compared round by round; empty where none was."""
    paired = sum(cell.by_round for cell in comparison.cells)
    if not paired:
        return ""
    cells = "the ratio" if len(comparison.cells) == 1 else f"{paired} of {len(comparison.cells)} ratios"
    return (
        f"machine speed drifts from round to round, so base and current are compared round by round: {cells} "
        f"{'is' if paired == 1 else 'are'} paired"
    )


def reasons(cells: Sequence[CellComparison], called: Sequence[str], most: int = 3) -> list[str]:
    """A line for each verdict that is not `pass`, in order of urgency; cells with the same reason share one."""
    told = [pair for pair in zip(cells, called, strict=True) if pair[0].verdict != "pass" or pair[0].slower_phases]
    groups = grouped(((cell.verdict, sentence(cell)), name) for cell, name in told)
    return [f"{several(group, most)}: {verdict}: {says}" for (verdict, says), group in groups.items()]


def doubts(comparison: Comparison) -> list[str]:
    """Every trial that is doubtful, each once: `base, fp32, batch size 4: trial 2 noisy (mean step ± 12%)`."""
    lines: dict[str, None] = {}
    for cell, name in zip(comparison.cells, names(comparison.cells), strict=True):
        for side, of in (("base", cell.base), ("current", cell.current)):
            if of is not None and of.status == "ok":
                lines |= {f"{side}, {name}: {note}": None for note in of.notes}
    return list(lines)


def doubts_in_short(comparison: Comparison) -> list[str]:
    """The number of doubtful trials of each side, and why: `base: 14 trials noisy, 3 trials throttled, in 9 cells`."""
    lines = []
    for side in ("base", "current"):
        by_cell = {(c.machine, c.cell): c.base if side == "base" else c.current for c in comparison.cells}
        noted = [(key, note) for key, of in by_cell.items() if of and of.status == "ok" for note in of.notes]
        if noted:
            kinds = Counter(_kind(note) for _, note in noted)
            counts = ", ".join(f"{counted(n, 'trial')} {kind}" for kind, n in kinds.most_common())
            cells = len({key for key, _ in noted})
            lines.append(f"{side}: {counts}, in {counted(cells, 'cell')}")
    return lines


def _kind(note: str) -> str:
    rest = note.split(" ", 2)[-1]
    return next((kind for kind in _DOUBTS if rest.startswith(kind)), "doubtful")
