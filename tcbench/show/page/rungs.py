"""What each rung buys: every ladder at every batch size as a waterfall on its side."""

from __future__ import annotations

from collections.abc import Sequence

from tcbench.analysis.ladder import Climb, LadderStep
from tcbench.analysis.stats import Interval
from tcbench.show.format import counted, factor, limits, number
from tcbench.show.page.colours import Palette
from tcbench.show.page.page import AnyBlock, Chart, Field, Figure, Heading, Key, Mark, Row, Section, Table
from tcbench.show.page.scale import Scale
from tcbench.show.page.settings import Settings
from tcbench.show.page.wording import columns, figure, middle, one_line, room_em, shortened, spaced, why, width_em

_KEYS = (
    Key("faster", "gain"),
    Key("slower", "loss", "h-loss"),
    Key("pale: the interval of the factor holds 1, so it may have changed nothing", "gain-pale"),
)

TITLE = "What each rung buys"

_HOW = "A bar runs from the images/s before its rung to those with it; the factor is over the step before."


def section(found: Sequence[Climb], settings: Settings, palette: Palette) -> Section | None:
    """Every ladder of every setting of which two configs or more ran; None where there is none."""
    groups: dict[tuple[str, str], list[Climb]] = {}
    for climb in found:
        groups.setdefault((settings.name(climb.setting), climb.ladder), []).append(climb)
    told = {key: climbs for key, climbs in groups.items() if any(climb.top is not climb.base for climb in climbs)}
    if not told:
        return None
    blocks: list[AnyBlock] = []
    for (setting, _), climbs in told.items():
        name = " · ".join(filter(None, (_name(climbs[0], [one for one, *_ in told.values()]), setting)))
        if len(told) > 1:
            blocks.append(Heading(name))
        blocks.append(_figure(name, climbs, palette, first=len(blocks) < 2))
    return Section("rungs", TITLE, tuple(blocks))


def _name(climb: Climb, all_: Sequence[Climb]) -> str:
    """A ladder by its base; by its end too, where others stand on the same base."""
    base, top = climb.steps[0].config, climb.steps[-1].config
    tops = {other.steps[-1].config for other in all_ if other.steps[0].config == base}
    return f"{spaced(base)} ladder" + (f", up to {spaced(top)}" if len(tops) > 1 else "")


def _figure(name: str, climbs: Sequence[Climb], palette: Palette, *, first: bool) -> Figure:
    """One ladder; the first of a page says how to read it."""
    scale = Scale.over(
        Interval(step.after.value, 0.0, step.after.value) for climb in climbs for step in climb.steps if step.after
    )
    charts = tuple(_chart(name, climb, scale, palette) for climb in climbs)
    rows = [row for chart in charts for row in chart.rows]
    return Figure(
        title=f"Images per second gained or lost by each rung, {name}",
        charts=charts,
        table=_table(name, climbs),
        legend=_KEYS if first else (),
        notes=(_HOW,) if first else (),
        label_em=width_em(row.label for row in rows),
        words_em=room_em(rows),
    )


def _chart(name: str, climb: Climb, scale: Scale, palette: Palette) -> Chart:
    rows = [_row(climb, place, scale, palette) for place in range(len(climb.steps))]
    top = climb.top
    if top is not None and top.after is not None:
        look, total = palette.look(top.config), total_factor(climb)
        rows.append(
            Row(
                label="in all",
                marks=(scale.bar(0.0, top.after.value, look.css, look.hatch),),
                tip=(one_line(top.config), f"{number(top.after.value)} images/s", total and f"{total} the base"),
                words=number(top.after.value),
                aside=total,
                at=scale.place(top.after.value),
                strong=True,
            )
        )
    return Chart(
        heading=f"Batch size {climb.batch_size}",
        title=f"{name} at batch size {climb.batch_size}",
        desc=f"What each of {counted(len(climb.steps), 'step')} adds to images per second. The table has every number.",
        rows=tuple(rows),
        ticks=scale.ticks(),
        axis="images/s",
    )


def total_factor(climb: Climb) -> str:
    """How many times as fast as the base the top is; empty where the two are one."""
    base, top = climb.base, climb.top
    if base is None or top is None or top is base or base.after is None or top.after is None:
        return ""
    return factor(top.after.value / base.after.value)


def _row(climb: Climb, place: int, scale: Scale, palette: Palette) -> Row:
    step = climb.steps[place]
    name = shortened(one_line(step.config if place == 0 else adds(step)), 36)
    tip = [one_line(f"{step.config}, batch size {climb.batch_size}")]
    if step.after is None:
        return Row(name, (), (*tip, why(step.summary)), aside=why(step.summary))
    tip.append(f"{number(step.after.value)} images/s")
    at = scale.place(max(step.after.value, step.before.value if step.before else 0.0))
    following = next((n for n in range(place + 1, len(climb.steps)) if climb.steps[n].after), len(climb.steps))
    link = Mark("link", scale.place(step.after.value), rows=following - place)
    if step.before is None or step.ratio is None:
        look = palette.look(step.config)
        bar = scale.bar(0.0, step.after.value, look.css, look.hatch)
        return Row(name, (link, bar), tuple(tip), words=number(step.after.value), at=at)
    tip.append(f"{factor(step.ratio.value)} the step before (95%: {limits(step.ratio, 'factor')})")
    unsure = may_be_nothing(step)
    if unsure:
        tip.append("may have changed nothing")
    lost = step.ratio.value < 1
    change_look = ("loss" if lost else "gain") + ("-pale" if unsure else "")
    change = step.after.value - step.before.value
    words = f"{'−' if change < 0 else '+'}{number(abs(change), as_part_of=step.after.value)}"
    bar = scale.bar(step.before.value, step.after.value, change_look, "h-loss" if lost else "")
    return Row(name, (link, bar), tuple(tip), words=words, aside=factor(step.ratio.value), at=at)


def adds(step: LadderStep) -> str:
    """ "+ nhwc + fused"; the config itself where it adds nothing that is known."""
    return "+ " + " + ".join(step.added) if step.added else step.config


def may_be_nothing(step: LadderStep) -> bool:
    """Whether the interval of its factor holds 1."""
    return step.ratio is not None and step.ratio.holds(1.0)


def _table(name: str, climbs: Sequence[Climb]) -> Table:
    return Table(
        caption=f"What each rung buys, {name}",
        columns=columns("#batch", "config", "adds", "#before", "#after", "#factor", "95% interval"),
        rows=tuple(_fields(climb, step) for climb in climbs for step in climb.steps),
    )


def _fields(climb: Climb, step: LadderStep) -> tuple[Field, ...]:
    return (
        figure(climb.batch_size, str(climb.batch_size)),
        Field(one_line(step.config)),
        Field(one_line(adds(step))),
        middle(step.before),
        middle(step.after) if step.after else Field(why(step.summary)),
        middle(step.ratio, factor),
        Field(limits(step.ratio, "factor") if step.ratio else ""),
    )
