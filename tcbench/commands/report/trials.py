"""The report's table of every trial, including failed ones."""

import math
import statistics
from collections.abc import Callable, Sequence

from tcbench.analysis.stats import images_per_s
from tcbench.commands.report.environment import start_time
from tcbench.core.record import Measurement, Record
from tcbench.show.naming import rate_unit
from tcbench.show.page.drawings import Swatches
from tcbench.show.page.page import Data, Section
from tcbench.show.page.settings import MOST_TRIALS
from tcbench.show.tables import BYTES, COUNT, NUMBER, SECONDS, TEXT, WHOLE_SHARE, Column, Field, Kind, Table
from tcbench.show.verdicts import STATUS_BADGES

FILTERS = ("config", "batch", "ranks", "status")

_LONGEST = 200
"""The greatest length of a text in a row, in characters."""


def trials_section(records: Sequence[Record], swatches: Swatches, trials_file: str | None = None) -> Section:
    """Return the section with all trials, or with the last MOST_TRIALS and a note that `trials_file` has all."""
    machines = {record.environment.machine for record in records if record.environment}
    with_ranks = any(record.cell.ranks > 1 for record in records)
    unit = rate_unit(record.cell for record in records)
    columns: list[Column[Record]] = [
        Column("config", lambda record: swatches.config(_text(record.cell.config), full_name=record.cell.config)),
        Column("batch", lambda record: record.cell.batch_size, COUNT),
        *([Column[Record]("ranks", lambda record: record.cell.ranks, COUNT)] if with_ranks else []),
        Column("trial", lambda record: record.trial + 1, COUNT),
        Column("status", lambda record: STATUS_BADGES[record.status]),
        _measured(unit, lambda trial, measured: images_per_s(trial.images_per_step, measured.counted_times_s), NUMBER),
        _measured("mean step", lambda _, measured: statistics.fmean(measured.counted_times_s), SECONDS),
        _measured("median step", lambda _, measured: statistics.median(measured.counted_times_s), SECONDS),
        _measured("counted steps", lambda _, measured: len(measured.counted_times_s), COUNT),
        _measured("warm-up steps", lambda _, measured: measured.warmup_steps, COUNT, mark=_unsettled),
        _measured("ended by", lambda _, measured: measured.stopped_by),
        _measured("last loss", lambda _, measured: _loss(measured.last_loss), COUNT),
        _measured("peak memory", lambda _, measured: measured.peak_memory_bytes, BYTES),
        Column("lost to others", lambda record: record.host and record.host.lost, WHOLE_SHARE),
        Column("took", lambda record: record.duration_s, Kind("{:.1f} s".format)),
        Column("began (UTC)", lambda record: start_time(record.started_at)),
        *([Column[Record]("machine", _machine)] if len(machines) > 1 else []),
        Column("run", lambda record: _text(record.run_id)),
        Column("reason", lambda record: _text(record.reason or ""), ratio=1),
    ]
    title, notes = "Every trial", [f"{unit} of one trial: all of its counted steps over their total time."]
    if len(records) > MOST_TRIALS:
        title = f"The last {MOST_TRIALS:,} of {len(records):,} trials"
        notes.append(f"All {len(records):,} trials are in {trials_file}, next to this page.")
    filters = tuple(key for key in FILTERS if any(column.heading == key for column in columns))
    return Section("trials", title, (Data(Table(columns, records[-MOST_TRIALS:], title, filters), notes=tuple(notes)),))


def _text(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"


def _machine(record: Record) -> str:
    return _text(record.environment.machine if record.environment else "")


def _measured(
    heading: str,
    figure: Callable[[Record, Measurement], object],
    kind: Kind = TEXT,
    mark: Callable[[Record], str] | None = None,
) -> Column[Record]:
    """Return a column with a figure of each trial's measurement, empty for trials without one."""
    return Column(
        heading, lambda record: None if record.measurement is None else figure(record, record.measurement), kind, mark
    )


def _unsettled(record: Record) -> str:
    return "" if record.measurement is None or record.measurement.warmup_settled else " *"


def _loss(loss: float | None) -> Field:
    if loss is None:
        return Field("not computed")
    return Field(f"{loss:.3f}" if math.isfinite(loss) else str(loss), loss)
