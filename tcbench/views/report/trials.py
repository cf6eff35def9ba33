"""Every trial as a row, whatever became of it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from tcbench.record import Record
from tcbench.views.console import milliseconds, size
from tcbench.views.report.colours import Palette
from tcbench.views.report.environment import when
from tcbench.views.report.page import Column, Data, Field, Section, Table
from tcbench.views.report.wording import STATUS_BADGES, badge, figure, one_line

FILTERS = ("config", "batch", "status")


def section(records: Sequence[Record], palette: Palette) -> Section:
    """The raw table."""
    machines = {record.environment.machine for record in records if record.environment}
    several = len(machines) > 1
    columns = (
        Column("config", key="config"),
        Column("batch", numeric=True, key="batch"),
        Column("trial", numeric=True),
        Column("status", key="status"),
        Column("images/s", numeric=True),
        Column("mean step", numeric=True),
        Column("median step", numeric=True),
        Column("counted steps", numeric=True),
        Column("warm-up steps", numeric=True),
        Column("ended by"),
        Column("last loss", numeric=True),
        Column("peak memory", numeric=True),
        Column("took", numeric=True),
        Column("began (UTC)"),
        *((Column("machine"),) if several else ()),
        Column("run"),
        Column("reason", long=True),
    )
    rows = tuple(_row(record, palette, several) for record in records)
    table = Table("Every trial", columns, rows, FILTERS)
    note = "images/s of one trial are images over the total time of its counted steps."
    return Section("trials", "Every trial", (Data(table, notes=(note,)),))


def _row(record: Record, palette: Palette, several: bool) -> tuple[Field, ...]:
    cell, look = record.cell, palette.look(record.cell.config)
    machine = record.environment.machine if record.environment else ""
    return (
        Field(one_line(cell.config), swatch=look.css, hatch=look.hatch),
        figure(cell.batch_size, str(cell.batch_size)),
        figure(record.trial + 1, str(record.trial + 1)),
        badge(STATUS_BADGES[record.status]),
        *_measured(record),
        figure(record.duration_s, f"{record.duration_s:.1f} s"),
        Field(when(record.started_at)),
        *((Field(one_line(machine)),) if several else ()),
        Field(one_line(record.run_id)),
        Field(one_line(record.reason or "")),
    )


def _measured(record: Record) -> tuple[Field, ...]:
    found = record.measurement
    if found is None:
        return (Field(),) * 8
    times_s = found.counted_times_s
    mean_s, median_s = statistics.fmean(times_s), statistics.median(times_s)
    warm_up = str(found.warmup_steps) + ("" if found.warmup_settled else " *")
    return (
        figure(record.cell.batch_size / mean_s),
        figure(mean_s, milliseconds(mean_s)),
        figure(median_s, milliseconds(median_s)),
        figure(len(times_s), str(len(times_s))),
        figure(found.warmup_steps, warm_up),
        Field(found.stopped_by),
        figure(found.last_loss, f"{found.last_loss:.3f}" if math.isfinite(found.last_loss) else str(found.last_loss)),
        figure(found.peak_memory_bytes, size(found.peak_memory_bytes)),
    )
