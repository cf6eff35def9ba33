"""The section on rungs: each setting's ladders as waterfalls, and the table behind them."""

from collections.abc import Sequence
from dataclasses import replace

from tcbench.analysis.ladder import Climb, DerivedLadder, LadderStep, derive
from tcbench.present.format import counted, factor, limits
from tcbench.present.groups import grouped
from tcbench.present.page import drawings
from tcbench.present.page.page import AnyBlock, Section
from tcbench.present.page.settings import MOST_DRAWN, MOST_LADDERS, SettingCells, Settings, left_out
from tcbench.present.page.wording import why
from tcbench.present.tables import COUNT, FACTOR, RATE, Column, Table
from tcbench.views.ladder.chart import ladder_chart

TITLE = "What each rung buys"

_HOW = "A bar runs from the throughput before its rung to those with it; the factor is over the step before."


def section(climbs: Sequence[Climb], settings: Settings) -> Section | None:
    """Every ladder of every setting of which two configs or more ran; None where there is none."""
    # Of all settings together, as the climbs are: one of them alone may give its ladders other names.
    known = derive([summary for part in settings.parts for summary in part.summaries])

    def figure(part: SettingCells) -> AnyBlock | None:
        ladders = grouped((climb.ladder, climb) for climb in climbs if climb.setting == part.setting)
        ladders = {
            name: group for name, group in ladders.items() if any(climb.top is not climb.base for climb in group)
        }
        return _figure(part, known, ladders) if ladders else None

    blocks = settings.blocks(figure)
    return Section("rungs", TITLE, blocks) if blocks else None


def _figure(part: SettingCells, known: Sequence[DerivedLadder], ladders: dict[str, list[Climb]]) -> AnyBlock:
    longest = sorted(ladders, key=lambda name: -len(ladders[name][0].steps))[:MOST_LADDERS]
    drawn = [replace(one, configs=one.configs[:MOST_DRAWN]) for one in known if one.name in longest]
    shown = [summary for cells in [*part.by_batch_size.values()][:MOST_DRAWN] for summary in cells]
    of_ladder = max(len(climbs[0].steps) for climbs in ladders.values())
    notes = [_HOW, *left_out({"configs of a ladder": of_ladder, "batch sizes": len(part.by_batch_size)})]
    if len(ladders) > MOST_LADDERS:
        many = counted(len(ladders), "ladder")
        notes.append(f"The longest {MOST_LADDERS} of {many} are drawn; the table has all of them.")
    title = part.titled(f"{part.unit.capitalize()} per second gained or lost by each rung")
    rows = [(climb, step) for climbs in ladders.values() for climb in climbs for step in climb.steps]
    rungs = Table(_COLUMNS, rows, part.titled(TITLE))
    return drawings.of_setting(part, lambda: ladder_chart(shown, drawn, title=""), title, "rungs", rungs, notes)


_COLUMNS: tuple[Column[tuple[Climb, LadderStep]], ...] = (
    Column("ladder", lambda row: row[0].ladder),
    Column("batch", lambda row: row[0].batch_size, COUNT),
    Column("config", lambda row: row[1].config),
    Column("adds", lambda row: adds(row[1])),
    Column("before", lambda row: row[1].before, RATE),
    Column("after", lambda row: row[1].after or why(row[1].summary), RATE),
    Column("factor", lambda row: row[1].ratio, FACTOR),
    Column("95% interval", lambda row: limits(row[1].ratio, factor)),
)


def adds(step: LadderStep) -> str:
    """ "+ nhwc + fused"; the config itself where it adds nothing that is known."""
    return "+ " + " + ".join(step.added) if step.added else step.config
