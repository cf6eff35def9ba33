"""Every trial as a row, whatever became of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tcbench.core.record import Record
from tcbench.present.format import milliseconds, size
from tcbench.present.naming import rate_unit
from tcbench.present.page.drawings import Swatches
from tcbench.present.page.page import Column, Data, Field, Section, Table
from tcbench.present.page.settings import MOST_TRIALS
from tcbench.present.page.wording import STATUS_BADGES, badge, figure
from tcbench.present.tables import many_ranks
from tcbench.views.report.environment import when

FILTERS = ("config", "batch", "ranks", "status")

_LONGEST = 200
"""Letters of a text in a row."""


def section(records: Sequence[Record], swatches: Swatches, beside: str | None = None) -> Section:
    """The raw table: all trials, or the last of them, where `beside` names the file that holds all."""
    machines = {record.environment.machine for record in records if record.environment}
    several, with_ranks = len(machines) > 1, many_ranks(record.cell for record in records)
    unit = rate_unit(record.cell for record in records)
    columns = (
        Column("config", key="config"),
        Column("batch", numeric=True, key="batch"),
        *((Column("ranks", numeric=True, key="ranks"),) if with_ranks else ()),
        Column("trial", numeric=True),
        Column("status", key="status"),
        Column(unit, numeric=True),
        Column("mean step", numeric=True),
        Column("median step", numeric=True),
        Column("counted steps", numeric=True),
        Column("warm-up steps", numeric=True),
        Column("ended by"),
        Column("last loss", numeric=True),
        Column("peak memory", numeric=True),
        Column("lost to others", numeric=True),
        Column("took", numeric=True),
        Column("began (UTC)"),
        *((Column("machine"),) if several else ()),
        Column("run"),
        Column("reason", long=True),
    )
    rows = tuple(_row(record, swatches, several, with_ranks) for record in records[-MOST_TRIALS:])
    title, notes = "Every trial", [f"{unit} of one trial: all of its counted steps over their total time."]
    if len(records) > MOST_TRIALS:
        title = f"The last {MOST_TRIALS:,} of {len(records):,} trials"
        notes.append(f"All {len(records):,} trials stand in {beside}, beside this page.")
    table = Table(title, columns, rows, tuple(key for key in FILTERS if any(column.key == key for column in columns)))
    return Section("trials", title, (Data(table, notes=tuple(notes)),))


def _text(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _row(record: Record, swatches: Swatches, several: bool, with_ranks: bool) -> tuple[Field, ...]:
    cell = record.cell
    machine = record.environment.machine if record.environment else ""
    return (
        Field(_text(cell.config), swatch=swatches.paint(cell.config)),
        figure(cell.batch_size, str(cell.batch_size)),
        *((figure(cell.ranks, str(cell.ranks)),) if with_ranks else ()),
        figure(record.trial + 1, str(record.trial + 1)),
        badge(STATUS_BADGES[record.status]),
        *_measured(record),
        Field() if record.host is None else figure(record.host.lost, f"{record.host.lost:.0%}"),
        figure(record.duration_s, f"{record.duration_s:.1f} s"),
        Field(when(record.started_at)),
        *((Field(_text(machine)),) if several else ()),
        Field(_text(record.run_id)),
        Field(_text(record.reason or "")),
    )


def _loss(loss: float | None) -> Field:
    if loss is None:
        return Field("not computed")
    return figure(loss, f"{loss:.3f}" if math.isfinite(loss) else str(loss))


def _measured(record: Record) -> tuple[Field, ...]:
    measurement = record.measurement
    if measurement is None:
        return (Field(),) * 8
    times_s = measurement.counted_times_s
    mean_s, median_s = statistics.fmean(times_s), statistics.median(times_s)
    warm_up = str(measurement.warmup_steps) + ("" if measurement.warmup_settled else " *")
    return (
        figure(record.cell.images_per_step / mean_s),
        figure(mean_s, milliseconds(mean_s)),
        figure(median_s, milliseconds(median_s)),
        figure(len(times_s), str(len(times_s))),
        figure(measurement.warmup_steps, warm_up),
        Field(measurement.stopped_by),
        _loss(measurement.last_loss),
        figure(measurement.peak_memory_bytes, size(measurement.peak_memory_bytes)),
    )
