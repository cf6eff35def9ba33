"""The results for someone who reads nothing else. One setting is told in words, several in a table."""

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
from tcbench.show.page.page import AnyBlock, Data, FactList, Notice, Paragraph, Points, Prose, Section, say, strong
from tcbench.show.page.settings import SettingCells, Settings
from tcbench.show.page.wording import kept_together, spaced
from tcbench.show.simulated import is_simulated, simulation_lines
from tcbench.show.tables import FACTOR, RATE, Badge, Column, Table
from tcbench.show.verdicts import STATUS_BADGES

_MOST_CONFIGS = 6

_KEPT = "\u00a0"
"""A space at which no line breaks."""


def summary_section(
    settings: Settings,
    over_base: Speedups,
    explanations: Sequence[Explanation],
    climbs: Sequence[Climb],
    more: Sequence[Paragraph],
    notes: Sequence[str],
) -> Section:
    """The fastest of each setting. `more` are other sections' sentences, `notes` what was said of the files."""
    explained = {explanation.summary.key: explanation for explanation in explanations}
    fastest = [
        _Fastest(part, winner, over_base[winner.key], explained[winner.key], _rungs(part, winner, climbs))
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
    if gone := _missing([summary for part in settings.parts for summary in part.summaries]):
        blocks.append(Points(gone))
    if more:
        blocks.append(Prose(tuple(more)))
    if notes:
        badge = Badge("note", "warn", "warn")
        blocks.append(Notice(badge, say("Not everything could be used."), tuple(notes)))
    return Section("summary", "Summary", tuple(blocks))


def notices(settings: Settings) -> tuple[Notice, ...]:
    """What is true of all numbers of the page: which were simulated."""
    badge = Badge("simulated", "warn", "warn")
    simulations = simulation_lines(summary.environment for part in settings.parts for summary in part.summaries)
    return tuple(Notice(badge, say(line.removeprefix("simulated: ") + ".")) for line in simulations)


def summary_lead(settings: Settings, over_base: Speedups) -> Paragraph:
    """The one sentence that stands above everything: the fastest, and by how much."""
    everything = [summary for part in settings.parts for summary in part.summaries]
    n = len(everything)
    winner = best(everything)
    if winner is None or winner.images_per_s is None:
        return say("No cell gave a number: ", strong(f"{'it' if n == 1 else f'all {n}'} failed or did not run"), ".")
    part = next(part for part in settings.parts if part.setting == winner.setting)
    base, over = base_config(part.summaries), over_base[winner.key]
    simulated = is_simulated(winner.environment)
    said = say(
        f"The fastest of {n} cells is " if n > 1 else "One cell was run: ",
        strong(spaced(winner.cell.config)),
        f" at batch size {winner.cell.batch_size}: ",
        strong(f"{number(winner.images_per_s.value)}{_KEPT}{winner.cell.unit}/s"),
        "" if simulated else f" {plus_minus(winner.images_per_s)}".replace("± ", f"±{_KEPT}"),
    )
    if over is not None and winner.cell.config != base:
        sides = winner.key in judged(part.summaries)
        within = limits(over, factor) if sides else "one trial each"
        sure = ": ".join(filter(None, [within, _doubt(over, sides)]))
        said += say(", ", strong(f"{factor(over.value)}{_KEPT}{base}"), f" ({sure})")
    # Device and network come first; what else tells settings apart stands at their headings.
    where = ", ".join(part.name.split(" · ")[:2])
    return said + say(f", on {where}." if where else ".")


@dataclass(frozen=True)
class _Rung:
    """What a config's rungs brought over the config below it. `sure`: it surely changed something."""

    name: str
    ratio: Interval
    sure: bool

    def __str__(self) -> str:
        return f"{self.name}{_KEPT}{factor(self.ratio.value)}"


@dataclass(frozen=True)
class _Fastest:
    """The fastest cell of a setting, its rate over the base's, and what each rung on its way brought."""

    part: SettingCells
    cell: CellSummary
    over_base: Interval | None
    explained: Explanation
    rungs: tuple[_Rung, ...]

    @property
    def judged(self) -> bool:
        return self.cell.key in judged(self.part.summaries)

    @property
    def helpful(self) -> list[_Rung]:
        """The rungs that surely made it faster, or where nothing is judged those that seem to, the largest first."""
        faster = [rung for rung in self.rungs if rung.ratio.value > 1 and (rung.sure or not self.judged)]
        return sorted(faster, key=lambda rung: -rung.ratio.value)


def _rungs(part: SettingCells, winner: CellSummary, climbs: Sequence[Climb]) -> tuple[_Rung, ...]:
    """From the base up to the fastest cell, on the first ladder that leads to it."""
    steps = next((c.steps for c in climbs if any(step.summary is winner for step in c.steps)), ())
    steps = steps[: 1 + next((place for place, step in enumerate(steps) if step.summary is winner), 0)]
    base = base_config(part.summaries)
    bases = (s for s in part.by_batch_size[winner.cell.batch_size] if s.cell.config == base)
    below, ran = next(bases, None), [step.summary for step in steps if step.summary and step.after]
    found = [_Rung(kept_together(adds(s)), s.ratio, not s.unsure) for s in steps if s.ratio is not None]
    if below and ran and ran[0] is not below and (over := ratio(ran[0], below)):
        found.insert(0, _Rung(f"{spaced(ran[0].cell.config)} for {base}", over, not unsure(ran[0], below)))
    return tuple(found)


def _answers(fastest: _Fastest, over_base: Speedups) -> Iterator[tuple[str, Paragraph]]:
    """What brought it, what holds it back, what would help, what is not sure."""
    if fastest.rungs:
        yield "brought by", _brought(fastest)
    yield "held back by", held_back(fastest.explained)
    if help_ := would_help(fastest.explained, _larger_batch(fastest)):
        yield "would help", help_
    if doubts := "; ".join(_doubts(fastest, over_base)):
        yield "how sure", say(f"{doubts}.")


def _brought(fastest: _Fastest) -> Paragraph:
    if not fastest.judged:
        return say(", ".join(map(str, fastest.rungs)), ".")
    most, *others = [*fastest.helpful, None]
    first = strong(str(most)) if most else "no rung surely"
    groups = {
        "slower": [rung for rung in fastest.rungs if rung.sure and rung.ratio.value <= 1],
        "undecided": [rung for rung in fastest.rungs if not rung.sure],
    }
    rest = "".join(f"; {name}: {', '.join(map(str, group))}" for name, group in groups.items() if group)
    return say(first, "".join(f", {rung}" for rung in others if rung), rest, ".")


def _larger_batch(fastest: _Fastest) -> str:
    """What the largest batch size brought over the next smaller one; empty where that is not sure."""
    config, groups = fastest.cell.cell.config, fastest.part.by_batch_size.values()
    sizes = [s for group in groups for s in group if s.cell.config == config and s.images_per_s]
    if len(sizes) < 2 or sizes[-1] is not fastest.cell or unsure(sizes[-1], sizes[-2]):
        return ""
    over, (first, last) = ratio(sizes[-1], sizes[-2]), (summary.cell.batch_size for summary in sizes[-2:])
    return f"batch size {last} is {factor(over.value)} as fast as {first}: a larger one may help" if over else ""


def _doubts(fastest: _Fastest, over_base: Speedups) -> Iterator[str]:
    """What a reader must not take for sure; where there is nothing, what is."""
    cells, winner, base = fastest.part.summaries, fastest.cell, base_config(fastest.part.summaries)
    if busy := busy_line([summary for summary in cells if summary.images_per_s]):
        yield busy
    if not fastest.judged:
        yield f"not judged: {TAKE_ENOUGH}"
        return
    second = best(summary for summary in cells if summary is not winner)
    if second is not None and second.images_per_s is not None:
        how = "may be as fast" if unsure(winner, second) else "is surely slower"
        rate = f"{number(second.images_per_s.value)}{_KEPT}{second.cell.unit}/s"
        yield f"{spaced(second.cell.config)} at batch size {second.cell.batch_size} {how}: {rate}"
    factors = [over for s in cells if s.cell.config != base and (over := over_base[s.key]) is not None]
    if factors:
        n = sum(over.holds(1.0) for over in factors)
        some = f"{n} of {counted(len(factors), 'factor')}" if n else "no factor"
        yield f"{some} over {base} {plural(max(n, 1), 'is', 'are')} undecided"


def _doubt(over: Interval, is_judged: bool) -> str:
    """Why a factor over the base may be none; empty where it surely is one."""
    if over.low == over.high:
        return ""
    return "not judged" if not is_judged else "undecided" if over.holds(1.0) else ""


def _setting(fastest: _Fastest) -> str:
    """Device, network and input where they differ, and ranks; the headings of other sections have the rest."""
    facts, ranks = fastest.part.name.split(" · "), counted(fastest.cell.cell.ranks, "rank")
    return " · ".join(fact for place, fact in enumerate(facts) if place < 3 or fact == ranks)


def _over(fastest: _Fastest) -> str:
    """What stands behind a factor: the config that it is over, and whether it is sure."""
    base, over = base_config(fastest.part.summaries), fastest.over_base
    return "" if over is None else ", ".join(filter(None, [f" {base}", _doubt(over, fastest.judged)]))


_COLUMNS: tuple[Column[_Fastest], ...] = (
    Column("setting", _setting, ratio=1),
    Column("fastest", lambda row: f"{spaced(row.cell.cell.config)}, batch size {row.cell.cell.batch_size}", ratio=1),
    Column("rate", lambda row: row.cell.images_per_s, RATE, mark=lambda row: f" {row.cell.cell.unit}/s"),
    Column("factor", lambda row: row.over_base, FACTOR, mark=_over),
    Column("brought most by", lambda row: str(row.helpful[0]) if row.helpful else "", ratio=1),
    Column("held back by", lambda row: row.explained.bottleneck and limit_words(row.explained.bottleneck)),
    Column("next", lambda row: next_rung_words(row.explained), ratio=1),
    Column("run", lambda row: listed(row.cell.runs)),
)


def _missing(summaries: Sequence[CellSummary]) -> tuple[tuple[Badge | None, Paragraph], ...]:
    """Cells without a number and cells of which only some trials succeeded, those with one reason together."""
    groups = grouped(((s.status, s.reason or ""), s) for s in summaries if s.images_per_s is None)
    items = []
    for (_, reason), cells in groups.items():
        of_config = grouped((cell.cell.config, cell.cell.batch_size) for cell in cells)
        names = [
            f"{spaced(config)} at {plural(len({*sizes}), 'batch size')} {numbers(sizes)}"
            for config, sizes in of_config.items()
        ]
        more = len(names) - _MOST_CONFIGS
        if more > 0:
            names = [*names[:_MOST_CONFIGS], counted(more, "more config")]
        if len(reason) > 400:  # begin and end tell most
            reason = f"{reason[:199].rstrip()}…{reason[-199:].lstrip()}"
        text = f": {listed(names)}. {reason}"
        items.append((STATUS_BADGES[cells[0].status], say(strong(counted(len(cells), "cell")), text)))
    some = [summary for summary in summaries if summary.images_per_s and summary.trials_ok < summary.trials]
    partly = [f"{spaced(s.cell.label)}: only {s.trials_ok} of {counted(s.trials, 'trial')} succeeded." for s in some]
    if len(some) > _MOST_CONFIGS:
        partly[_MOST_CONFIGS:] = [f"and {len(some) - _MOST_CONFIGS} more cells."]
    items += [(Badge("partly", "warn", "warn"), say(text)) for text in partly]
    return tuple(items)
