"""The results in words: what is fastest and by how much, what each rung bought, what holds it back, what failed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tcbench.analysis.explanation import Explanation
from tcbench.analysis.ladder import Climb
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, base_config, best, ratio, unsure
from tcbench.present.busy import busy_line
from tcbench.present.format import counted, factor, limits, listed, number, numbers, plural, plus_minus
from tcbench.present.groups import grouped
from tcbench.present.page.page import (
    AnyBlock,
    Heading,
    Notice,
    Paragraph,
    Piece,
    Points,
    Prose,
    Section,
    say,
    strong,
)
from tcbench.present.page.settings import SettingCells, Settings
from tcbench.present.page.wording import kept_together, shortened, spaced
from tcbench.present.simulated import lines
from tcbench.present.tables import Badge
from tcbench.present.verdicts import STATUS_BADGES
from tcbench.views.bottleneck import section as bottlenecks
from tcbench.views.ladder import section as rungs
from tcbench.views.throughput.section import Speedups

_MOST_CONFIGS = 6
_MOST_LADDERS = 3

_KEPT = "\u00a0"
"""A space at which no line breaks."""


def section(
    settings: Settings,
    over_base: Speedups,
    explanations: Sequence[Explanation],
    climbs: Sequence[Climb],
    more: Sequence[Paragraph],
    notes: Sequence[str],
) -> Section:
    """Sentences setting by setting. `more` are other sections' sentences, `notes` what was said of the files."""
    badge = Badge("simulated", "warn", "warn")
    simulations = lines(summary.environment for part in settings.parts for summary in part.summaries)
    blocks: list[AnyBlock] = [Notice(badge, say(line.removeprefix("simulated: ") + ".")) for line in simulations]
    if busy := busy_line([s for part in settings.parts for s in part.summaries if s.images_per_s is not None]):
        title, _, words = busy.partition(": ")
        blocks.append(Notice(Badge(title, "warn", "warn"), say(f"{words.capitalize()}.")))
    for part in settings.parts:
        if part.name:
            blocks.append(Heading(part.name))
        said = list(_of(part, over_base, explanations, [c for c in climbs if c.setting == part.setting]))
        if said:
            blocks.append(Prose(tuple(said)))
        gone = _missing(part)
        if gone:
            blocks.append(Points(gone))
    if more:
        blocks.append(Prose(tuple(more)))
    if notes:
        badge = Badge("note", "warn", "warn")
        blocks.append(Notice(badge, say("Not everything could be used."), tuple(notes)))
    return Section("summary", "Summary", tuple(blocks))


def lead(settings: Settings) -> Paragraph:
    """The one sentence that stands above everything: the fastest."""
    everything = [summary for part in settings.parts for summary in part.summaries]
    winner = best(everything)
    if winner is None or winner.images_per_s is None:
        n = len(everything)
        return say("No cell gave a number: ", strong(f"{'it' if n == 1 else f'all {n}'} failed or did not run"), ".")
    where = settings.name(winner.setting)
    return say(
        "The fastest is " if len(everything) > 1 else "One cell was run: ",
        strong(spaced(winner.cell.config)),
        f" at batch size {winner.cell.batch_size}: ",
        strong(f"{number(winner.images_per_s.value)}{_KEPT}{winner.cell.unit}/s"),
        f" {plus_minus(winner.images_per_s)}".replace("± ", f"±{_KEPT}") + (f", on {where}" if where else "") + ".",
    )


def _of(
    part: SettingCells, over_base: Speedups, explanations: Sequence[Explanation], climbs: Sequence[Climb]
) -> Iterable[Paragraph]:
    winner = best(part.summaries)
    if winner is None:
        return
    yield _fastest(part, winner, over_base[winner.key])
    highest = [_highest(climbs, ladder) for ladder in dict.fromkeys(climb.ladder for climb in climbs)]
    climbed = sorted((climb for climb in highest if _steps(climb) > 1), key=_steps, reverse=True)
    yield from map(_bought, climbed[:_MOST_LADDERS])
    if len(climbed) > _MOST_LADDERS:
        more = counted(len(climbed) - _MOST_LADDERS, "more ladder")
        yield say(f"{more}: see “{rungs.TITLE}”.")
    explained = next((one for one in explanations if one.summary.key == winner.key), None)
    if explained is not None:
        yield bottlenecks.next_sentence(explained)


def _fastest(part: SettingCells, winner: CellSummary, speedup: Interval | None) -> Paragraph:
    rate = winner.images_per_s
    assert rate is not None
    n = len(part.summaries)
    parts: list[str | Piece] = [
        strong(spaced(winner.cell.config)),
        f" is the fastest of {n} cells" if n > 1 else "",
        f": {number(rate.value)} {winner.cell.unit}/s at batch size {winner.cell.batch_size} "
        f"(95% interval {limits(rate)})",
    ]
    base = base_config(part.summaries)
    if speedup is not None and winner.cell.config != base:
        parts += [", ", strong(f"{factor(speedup.value)} {base}"), f" there ({limits(speedup, factor)})"]
    parts.append(", by one trial." if winner.unit == "steps" else ".")
    second = best(s for s in part.summaries if s is not winner)
    if second is not None and second.images_per_s is not None:
        ahead = ratio(winner, second)
        name = f"{spaced(second.cell.config)} at batch size {second.cell.batch_size}"
        if ahead is None or unsure(winner, second):
            parts.append(f" {name} may be as fast: {number(second.images_per_s.value)} {second.cell.unit}/s.")
        else:
            parts.append(f" Next comes {name} with {number(second.images_per_s.value)}.")
    return say(*parts)


def _highest(climbs: Sequence[Climb], ladder: str) -> Climb:
    """A ladder at the batch size at which it was climbed highest, the largest of those."""
    return max(
        (climb for climb in climbs if climb.ladder == ladder), key=lambda climb: (_steps(climb), climb.batch_size)
    )


def _steps(climb: Climb) -> int:
    return sum(not step.missing for step in climb.steps)


def _bought(climb: Climb) -> Paragraph:
    """A sentence on the gain of each rung of a ladder."""
    bought, lost, neither, unjudged = list[str](), list[str](), list[str](), list[str]()
    is_judged = not any(step.summary is not None and step.summary.unit == "steps" for step in climb.steps)
    for step in climb.steps:
        if step.ratio is not None:
            judged = neither if step.unsure else bought if step.ratio.value > 1 else lost
            group = judged if is_judged else unjudged
            group.append(f"{kept_together(rungs.adds(step))} ({factor(step.ratio.value)})")
    clauses = [listed(unjudged)] if unjudged else []
    if bought:
        clauses.append(f"{listed(bought)} made it faster")
    if lost:
        clauses.append(f"{listed(lost)} made it slower")
    if neither:
        clauses.append(f"{listed(neither)} may have changed nothing")
    total = rungs.total_factor(climb)
    base = climb.base.config if climb.base else climb.ladder
    where = f" at batch size {climb.batch_size}: "
    parts: list[str | Piece] = ["On ", strong(spaced(base)), where, "; ".join(clauses)]
    if total:
        parts += ["; in all ", total if climb.unsure else strong(total)]
    return say(*parts, "." if is_judged else " (one trial each: not judged).")


def _missing(part: SettingCells) -> tuple[tuple[Badge | None, Paragraph], ...]:
    """Cells without a number and cells of which only some trials succeeded, those with one reason together."""
    groups = grouped(((s.status, s.reason or ""), s) for s in part.summaries if s.images_per_s is None)
    items = []
    for (_, reason), cells in groups.items():
        of_config = grouped((cell.cell.config, cell.cell.batch_size) for cell in cells)
        names = [
            f"{spaced(config)} at {plural(len(sizes), 'batch size')} {numbers(sizes)}"
            for config, sizes in of_config.items()
        ]
        more = len(names) - _MOST_CONFIGS
        if more > 0:
            names = [*names[:_MOST_CONFIGS], counted(more, "more config")]
        text = f": {listed(names)}. {shortened(reason, 400)}"
        items.append((STATUS_BADGES[cells[0].status], say(strong(counted(len(cells), "cell")), text)))
    some = [summary for summary in part.summaries if summary.images_per_s and summary.trials_ok < summary.trials]
    for summary in some[:_MOST_CONFIGS]:
        text = (
            f"{spaced(summary.cell.label)}: only {summary.trials_ok} of {counted(summary.trials, 'trial')} succeeded."
        )
        items.append((Badge("partly", "warn", "warn"), say(text)))
    if len(some) > _MOST_CONFIGS:
        items.append((Badge("partly", "warn", "warn"), say(f"and {len(some) - _MOST_CONFIGS} more cells.")))
    return tuple(items)
