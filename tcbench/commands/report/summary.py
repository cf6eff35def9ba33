"""The report's summary, for readers of nothing else: one setting in words, several in a table."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tcbench.analysis.explanation import Explanation
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, base_config, best, judged, ratio, unsure
from tcbench.commands.explain.chart import held_back, next_rung_words, would_help
from tcbench.commands.plot.ladder import Climb
from tcbench.commands.plot.ladder_chart import adds
from tcbench.commands.run.chart import Speedups
from tcbench.core.groups import grouped
from tcbench.core.record import TAKE_ENOUGH
from tcbench.show.bottlenecks import limit_words
from tcbench.show.cells import busy_line
from tcbench.show.format import counted, factor, limits, listed, number, numbers, plural, plus_minus
from tcbench.show.naming import is_simulated, simulation_lines
from tcbench.show.page.page import AnyBlock, Data, FactList, Notice, Paragraph, Points, Prose, Section, say, strong
from tcbench.show.page.settings import SettingCells, Settings
from tcbench.show.page.wording import kept_together, spaced
from tcbench.show.tables import FACTOR, RATE, Badge, Column, Table
from tcbench.show.verdicts import STATUS_BADGES

_MOST_CONFIGS = 6

_NO_BREAK = "\u00a0"
"""A space at which lines do not break."""


def summary_section(
    settings: Settings,
    over_base: Speedups,
    explanations: Sequence[Explanation],
    climbs: Sequence[Climb],
    more: Sequence[Paragraph],
    notes: Sequence[str],
) -> Section:
    """Return the section on the fastest cell of each setting. `more` are sentences from other sections, `notes` are
    about the input files."""
    by_key = {explanation.summary.key: explanation for explanation in explanations}
    fastest = [
        _Fastest(part, winner, over_base[winner.key], by_key[winner.key], _rungs(part, winner, climbs))
        for part in settings.parts
        if (winner := best(part.summaries)) is not None
    ]
    blocks: list[AnyBlock] = []
    if len(settings.parts) > 1 and fastest:
        if busy := busy_line([s for part in settings.parts for s in part.summaries if s.images_per_s]):
            title, _, words = busy.partition(": ")
            blocks.append(Notice(Badge(title, "warn", "warn"), say(f"{words.capitalize()}.")))
        blocks.append(Data(Table(_COLUMNS, fastest, "The fastest of each setting")))
    elif fastest:
        blocks.append(FactList(tuple(_answers(fastest[0], over_base))))
    if missing := _missing([summary for part in settings.parts for summary in part.summaries]):
        blocks.append(Points(missing))
    if more:
        blocks.append(Prose(tuple(more)))
    if notes:
        badge = Badge("note", "warn", "warn")
        blocks.append(Notice(badge, say("Some input could not be used."), tuple(notes)))
    return Section("summary", "Summary", tuple(blocks))


def notices(settings: Settings) -> tuple[Notice, ...]:
    """Return notices about all numbers of the page, such as which are simulated."""
    badge = Badge("simulated", "warn", "warn")
    simulations = simulation_lines(summary.environment for part in settings.parts for summary in part.summaries)
    return tuple(Notice(badge, say(line.removeprefix("simulated: ") + ".")) for line in simulations)


def summary_lead(settings: Settings, over_base: Speedups) -> Paragraph:
    """Return the sentence at the top of the page: the fastest cell and its speed-up."""
    cells = [summary for part in settings.parts for summary in part.summaries]
    n = len(cells)
    winner = best(cells)
    if winner is None or winner.images_per_s is None:
        return say("No cell has a result: ", strong(f"{'it' if n == 1 else f'all {n}'} failed or did not run"), ".")
    part = next(part for part in settings.parts if part.setting == winner.setting)
    base, over = base_config(part.summaries), over_base[winner.key]
    simulated = is_simulated(winner.environment)
    sentence = say(
        f"The fastest of {n} cells is " if n > 1 else "One cell was run: ",
        strong(spaced(winner.cell.config)),
        f" at batch size {winner.cell.batch_size}: ",
        strong(f"{number(winner.images_per_s.value)}{_NO_BREAK}{winner.cell.unit}/s"),
        "" if simulated else f" {plus_minus(winner.images_per_s)}".replace("± ", f"±{_NO_BREAK}"),
    )
    if over is not None and winner.cell.config != base:
        is_judged = winner.key in judged(part.summaries)
        interval = limits(over, factor) if is_judged else "one trial each"
        certainty = ": ".join(filter(None, [interval, _doubt(over, is_judged)]))
        sentence += say(", ", strong(f"{factor(over.value)}{_NO_BREAK}{base}"), f" ({certainty})")
    # Only device and network, which come first in the name. Headings have the other facts.
    where = ", ".join(part.name.split(" · ")[:2])
    return sentence + say(f", on {where}." if where else ".")


@dataclass(frozen=True)
class _Rung:
    """The gain of a config's rungs over the config below it. `sure` means that the change is significant."""

    name: str
    ratio: Interval
    sure: bool

    def __str__(self) -> str:
        return f"{self.name}{_NO_BREAK}{factor(self.ratio.value)}"


@dataclass(frozen=True)
class _Fastest:
    """The fastest cell of a setting, its speed-up over the base, and the gain of each rung that leads to it."""

    part: SettingCells
    cell: CellSummary
    over_base: Interval | None
    explanation: Explanation
    rungs: tuple[_Rung, ...]

    @property
    def judged(self) -> bool:
        """Whether there are enough trials to judge the cell's speed-up."""
        return self.cell.key in judged(self.part.summaries)

    @property
    def helpful(self) -> list[_Rung]:
        """The rungs with a significant gain, the largest first; any gain counts if nothing is judged."""
        faster = [rung for rung in self.rungs if rung.ratio.value > 1 and (rung.sure or not self.judged)]
        return sorted(faster, key=lambda rung: -rung.ratio.value)


def _rungs(part: SettingCells, winner: CellSummary, climbs: Sequence[Climb]) -> tuple[_Rung, ...]:
    """Return the gains of the rungs from the base to the fastest cell, `winner`, on the first ladder that contains it.

    If that ladder begins above the base, the first gain is that of the ladder's first measured config over the base.
    Empty if no ladder contains the cell."""
    steps = next((c.steps for c in climbs if any(step.summary is winner for step in c.steps)), ())
    steps = steps[: 1 + next((place for place, step in enumerate(steps) if step.summary is winner), 0)]
    base = base_config(part.summaries)
    bases = (s for s in part.by_batch_size[winner.cell.batch_size] if s.cell.config == base)
    below, measured = next(bases, None), [step.summary for step in steps if step.summary and step.after]
    rungs = [_Rung(kept_together(adds(s)), s.ratio, not s.unsure) for s in steps if s.ratio is not None]
    if below and measured and measured[0] is not below and (over := ratio(measured[0], below)):
        name = f"{spaced(measured[0].cell.config)} for {base}"
        rungs.insert(0, _Rung(name, over, not unsure(measured[0], below)))
    return tuple(rungs)


def _answers(fastest: _Fastest, over_base: Speedups) -> Iterator[tuple[str, Paragraph]]:
    """Yield pairs of name and paragraph on the fastest cell: its gains, its limit, what to try next, and how certain
    the result is."""
    if fastest.rungs:
        yield "gained by", _gains_of_rungs(fastest)
    yield "limited by", held_back(fastest.explanation)
    if help_ := would_help(fastest.explanation, _gain_of_largest_batch(fastest)):
        yield "try next", help_
    if doubts := "; ".join(_doubts(fastest, over_base)):
        yield "certainty", say(f"{doubts}.")


def _gains_of_rungs(fastest: _Fastest) -> Paragraph:
    """Return the gain of each rung of the fastest config: first those that helped, then slower and undecided ones. If
    too few trials were made to judge, the rungs are in the order of the ladder."""
    if not fastest.judged:
        return say(", ".join(map(str, fastest.rungs)), ".")
    helpful = fastest.helpful
    first = strong(str(helpful[0])) if helpful else "no certain gain"
    groups = {
        "slower": [rung for rung in fastest.rungs if rung.sure and rung.ratio.value <= 1],
        "undecided": [rung for rung in fastest.rungs if not rung.sure],
    }
    rest = "".join(f"; {name}: {', '.join(map(str, group))}" for name, group in groups.items() if group)
    return say(first, "".join(f", {rung}" for rung in helpful[1:]), rest, ".")


def _gain_of_largest_batch(fastest: _Fastest) -> str:
    """Return how much faster the fastest config is at its largest batch size than at the next smaller one.

    Empty if the fastest cell does not have the largest batch size, or if the difference is not significant."""
    config, groups = fastest.cell.cell.config, fastest.part.by_batch_size.values()
    sizes = [s for group in groups for s in group if s.cell.config == config and s.images_per_s]
    if len(sizes) < 2 or sizes[-1] is not fastest.cell or unsure(sizes[-1], sizes[-2]):
        return ""
    over, (first, last) = ratio(sizes[-1], sizes[-2]), (summary.cell.batch_size for summary in sizes[-2:])
    return f"batch size {last} is {factor(over.value)} as fast as {first}: a larger one may help" if over else ""


def _doubts(fastest: _Fastest, over_base: Speedups) -> Iterator[str]:
    """Yield statements on the certainty of the result: a busy machine, too few trials, the second-fastest cell, and the
    number of undecided factors."""
    cells, winner, base = fastest.part.summaries, fastest.cell, base_config(fastest.part.summaries)
    if busy := busy_line([summary for summary in cells if summary.images_per_s]):
        yield busy
    if not fastest.judged:
        yield f"not judged: {TAKE_ENOUGH}"
        return
    second = best(summary for summary in cells if summary is not winner)
    if second is not None and second.images_per_s is not None:
        how = "may be as fast" if unsure(winner, second) else "is certainly slower"
        rate = f"{number(second.images_per_s.value)}{_NO_BREAK}{second.cell.unit}/s"
        yield f"{spaced(second.cell.config)} at batch size {second.cell.batch_size} {how}: {rate}"
    factors = [over for s in cells if s.cell.config != base and (over := over_base[s.key]) is not None]
    if factors:
        n = sum(over.holds(1.0) for over in factors)
        count = f"{n} of {counted(len(factors), 'factor')}" if n else "no factor"
        yield f"{count} over {base} {plural(max(n, 1), 'is', 'are')} undecided"


def _doubt(over: Interval, is_judged: bool) -> str:
    """Return "not judged" or "undecided" for a factor over the base that may be 1; empty for a certain one.

    `is_judged` is whether there are enough trials to judge it. A factor without an interval counts as certain."""
    if over.low == over.high:
        return ""
    return "not judged" if not is_judged else "undecided" if over.holds(1.0) else ""


def _setting(fastest: _Fastest) -> str:
    """Return the first three facts of a setting's name, and its ranks. Other sections' headings have the whole name."""
    facts, ranks = fastest.part.name.split(" · "), counted(fastest.cell.cell.ranks, "rank")
    return " · ".join(fact for place, fact in enumerate(facts) if place < 3 or fact == ranks)


def _over(fastest: _Fastest) -> str:
    """Return the text after the factor over the base: the base's name, and "not judged" or "undecided" if the factor
    may be 1; empty without a factor."""
    base, over = base_config(fastest.part.summaries), fastest.over_base
    return "" if over is None else ", ".join(filter(None, [f" {base}", _doubt(over, fastest.judged)]))


_COLUMNS: tuple[Column[_Fastest], ...] = (
    Column("setting", _setting, ratio=1),
    Column("fastest", lambda row: f"{spaced(row.cell.cell.config)}, batch size {row.cell.cell.batch_size}", ratio=1),
    Column("rate", lambda row: row.cell.images_per_s, RATE, mark=lambda row: f" {row.cell.cell.unit}/s"),
    Column("factor", lambda row: row.over_base, FACTOR, mark=_over),
    Column("largest gain", lambda row: str(row.helpful[0]) if row.helpful else "", ratio=1),
    Column("limited by", lambda row: row.explanation.bottleneck and limit_words(row.explanation.bottleneck)),
    Column("try next", lambda row: next_rung_words(row.explanation), ratio=1),
    Column("run", lambda row: listed(row.cell.runs)),
)


def _missing(summaries: Sequence[CellSummary]) -> tuple[tuple[Badge | None, Paragraph], ...]:
    """Return points with a badge on cells without a result, grouped by status and reason, and on cells of which only
    some trials succeeded."""
    groups = grouped(((s.status, s.reason or ""), s) for s in summaries if s.images_per_s is None)
    points = []
    for (_, reason), cells in groups.items():
        by_config = grouped((cell.cell.config, cell.cell.batch_size) for cell in cells)
        names = [
            f"{spaced(config)} at {plural(len({*sizes}), 'batch size')} {numbers(sizes)}"
            for config, sizes in by_config.items()
        ]
        more = len(names) - _MOST_CONFIGS
        if more > 0:
            names = [*names[:_MOST_CONFIGS], counted(more, "more config")]
        if len(reason) > 400:  # keep the beginning and the end
            reason = f"{reason[:199].rstrip()}…{reason[-199:].lstrip()}"
        text = f": {listed(names)}. {reason}"
        points.append((STATUS_BADGES[cells[0].status], say(strong(counted(len(cells), "cell")), text)))
    incomplete = [summary for summary in summaries if summary.images_per_s and summary.trials_ok < summary.trials]
    partly = [
        f"{spaced(s.cell.label)}: only {s.trials_ok} of {counted(s.trials, 'trial')} succeeded." for s in incomplete
    ]
    if len(incomplete) > _MOST_CONFIGS:
        partly[_MOST_CONFIGS:] = [f"and {len(incomplete) - _MOST_CONFIGS} more cells."]
    points += [(Badge("partly", "warn", "warn"), say(text)) for text in partly]
    return tuple(points)
