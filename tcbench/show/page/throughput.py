"""Throughput by batch size: a chart per batch size, a bar per config, all of a setting on one scale."""

from __future__ import annotations

from collections.abc import Mapping

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, best
from tcbench.core.record import Cell
from tcbench.show.console import footnotes
from tcbench.show.format import counted, factor, limits, milliseconds, number, plus_minus, size
from tcbench.show.page.colours import Palette
from tcbench.show.page.page import AnyBlock, Chart, Field, Figure, Heading, Row, Section, Table
from tcbench.show.page.scale import Scale
from tcbench.show.page.settings import Here, Settings
from tcbench.show.page.wording import (
    STATUS_BADGES,
    badge,
    columns,
    figure,
    label,
    middle,
    one_line,
    room_em,
    why,
    width_em,
)

Speedups = Mapping[tuple[str | None, Cell], Interval | None]
"""Each cell's images/s over the base's, by machine and cell."""


def section(settings: Settings, over_base: Speedups, palette: Palette) -> Section:
    """Charts and the table behind them, setting by setting."""
    blocks: list[AnyBlock] = []
    for here in settings.here:
        if here.name:
            blocks.append(Heading(here.name))
        blocks.append(_figure(here, over_base, palette))
    return Section("throughput", "Throughput", tuple(blocks))


def _figure(here: Here, over_base: Speedups, palette: Palette) -> Figure:
    scale = Scale.over(s.images_per_s for s in here.summaries if s.images_per_s)
    charts = tuple(_chart(here, size, scale, over_base, palette) for size in here.batch_sizes)
    rows = [row for chart in charts for row in chart.rows]
    notes = footnotes(here.summaries)
    if any(summary.images_per_s for summary in here.summaries):
        notes.insert(0, "Longer is better; all batch sizes have one scale. Whiskers are 95% intervals.")
    if any(row.strong for row in rows):
        notes.append("best: the fastest at its batch size. Factors are over fp32 at the same batch size.")
    if any(row.label.startswith("\u2002+") for row in rows):
        notes.append("+ adds to the config above.")
    return Figure(
        title="Images per second" + (f", {here.name}" if here.name else ""),
        charts=charts,
        table=_table(here, over_base, palette),
        notes=tuple(notes),
        label_em=width_em(row.label for row in rows),
        words_em=room_em(rows),
    )


def _chart(here: Here, batch_size: int, scale: Scale, over_base: Speedups, palette: Palette) -> Chart:
    cells = here.at(batch_size)
    winner = best(cells)
    rows, above = list[Row](), None
    for summary in cells:
        fastest = summary is winner and len(cells) > 1
        rows.append(_row(summary, above, scale, over_base[summary.machine, summary.cell], palette, fastest))
        above = summary.cell
    told = f"the fastest is {winner.cell.config}, {_rate(winner)}" if winner else "no config gave a number"
    return Chart(
        heading=f"Batch size {batch_size}",
        title=f"Images per second at batch size {batch_size}" + (f", {here.name}" if here.name else ""),
        desc=one_line(f"One bar for each of {counted(len(rows), 'config')}; {told}. The table below has every number."),
        rows=tuple(rows),
        ticks=scale.ticks() if any(row.marks for row in rows) else (),
        axis="images/s",
    )


def _row(
    summary: CellSummary, above: Cell | None, scale: Scale, speedup: Interval | None, palette: Palette, fastest: bool
) -> Row:
    name = label(summary.cell, above)
    rate = summary.images_per_s
    if rate is None:
        told = f"{STATUS_BADGES[summary.status].word}: {one_line(summary.reason or '')}"
        return Row(name, (), (one_line(summary.cell.label), told), aside=why(summary))
    look = palette.look(summary.cell.config)
    against = "" if speedup is None or speedup.value == 1.0 else factor(speedup.value)
    unsettled = "" if summary.settled else " *"
    return Row(
        label=name,
        marks=(scale.bar(0.0, rate.value, look.css, look.hatch), scale.whisker(rate)),
        tip=_tip(summary, rate, speedup),
        words=number(rate.value) + unsettled,
        aside="  ".join(filter(None, (against, "best" if fastest else ""))),
        at=scale.place(min(rate.high, scale.high)),
        strong=fastest,
    )


def _tip(summary: CellSummary, rate: Interval, speedup: Interval | None) -> tuple[str, ...]:
    lines = [one_line(summary.cell.label), f"{_rate(summary)} (95%: {limits(rate)})"]
    if speedup is not None and speedup.value != 1.0:
        lines.append(f"{factor(speedup.value)} fp32 (95%: {limits(speedup, 'factor')})")
    assert summary.step_time_s is not None
    step = f"{milliseconds(summary.step_time_s.value)} per step, {counted(summary.trials_ok, 'trial')}"
    lines.append(step + ("" if summary.peak_memory_bytes is None else f", {size(summary.peak_memory_bytes)}"))
    if not summary.settled:
        lines.append("step times had not settled when the warm-up ended")
    return tuple(lines)


def _rate(summary: CellSummary) -> str:
    rate = summary.images_per_s
    return "" if rate is None else f"{number(rate.value)} images/s {plus_minus(rate)}"


def _table(here: Here, over_base: Speedups, palette: Palette) -> Table:
    names = ("#batch", "config", "status", "#images/s", "95% interval", "#vs fp32", "#step", "#peak memory", "#trials")
    return Table(
        caption="Images per second" + (f", {here.name}" if here.name else ""),
        columns=columns(*names),
        rows=tuple(
            _fields(summary, over_base[summary.machine, summary.cell], palette)
            for batch_size in here.batch_sizes
            for summary in here.at(batch_size)
        ),
    )


def _fields(summary: CellSummary, speedup: Interval | None, palette: Palette) -> tuple[Field, ...]:
    look = palette.look(summary.cell.config)
    rate, step, memory = summary.images_per_s, summary.step_time_s, summary.peak_memory_bytes
    return (
        figure(summary.cell.batch_size, str(summary.cell.batch_size)),
        Field(one_line(summary.cell.config), swatch=look.css, hatch=look.hatch),
        badge(STATUS_BADGES[summary.status]),
        middle(rate),
        Field(limits(rate) if rate else ""),
        middle(speedup, factor),
        middle(step, milliseconds),
        figure(memory, "" if memory is None else size(memory)),
        figure(summary.trials_ok, f"{summary.trials_ok} of {summary.trials}"),
    )
