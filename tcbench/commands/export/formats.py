"""Results in the formats of other tools: CSV, Parquet, JSON, and the JSON of github-action-benchmark and Bencher.

A row is a trial, a cell or a step. Unknown fields are empty. Column names contain units."""

import csv
import functools
import importlib
import io
import json
import math
import re
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from tcbench.analysis.stats import Interval, images_per_s
from tcbench.analysis.summary import CellSummary, group_by_cell, summarise
from tcbench.commands.run.scaling import Curve, Point, curves
from tcbench.core.errors import SelectionError
from tcbench.core.record import Record
from tcbench.show import cells
from tcbench.show.document import encoded, fields
from tcbench.show.format import listed, plus_minus
from tcbench.show.naming import is_simulated, stable_names, stack_name
from tcbench.show.tables import keyed

Row = dict[str, Any]

_FORMULA = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters that make a spreadsheet treat a text as a formula (OWASP, "CSV Injection"), including full-width
signs."""


def table(records: Sequence[Record], per: str) -> tuple[tuple[str, ...], Sequence[Sequence[Any]]]:
    """Return the column names and all rows, each with a value or None per column.

    `records` are those of `store.current`. Rows are lists, because dictionaries would be four times as large, and there
    may be 100,000 rows. Values that are not finite are None: JSON has no infinity, and readers of tables handle an
    empty field better."""
    columns: dict[str, int] = {}
    filled: list[list[Any]] = []
    for row in {"trial": _trials, "cell": _cells, "step": _steps}[per](records):
        if row.keys() - columns.keys():
            for name in row:
                columns.setdefault(name, len(columns))
        row_values = [None if type(v) is float and not math.isfinite(v) else v for v in map(row.get, columns)]
        filled.append(row_values)
    for row_values in filled:
        row_values += [None] * (len(columns) - len(row_values))
    return tuple(columns), filled


def _identity(machine: str | None, source: Record | CellSummary) -> Row:
    """Return the columns that identify a cell: machine, config, input, software."""
    cell, environment = source.cell, source.environment
    return {
        "machine": machine,
        "device_name": environment.device_name if environment else None,
        **fields(cell, "scenario backend config batch_size ranks"),
        "image_size": None if cell.is_own else cell.image_size,
        "model": cell.model,
        "variant": None if cell.is_own else cell.variant,
        **fields(cell, "device input=input.kind input_path=input.path threads seed cell_key=key"),
        "driver": environment.gpu.driver if environment and environment.gpu else None,
        "simulated": is_simulated(environment),
        "host_speed": environment.simulated.host_speed if environment and environment.simulated else None,
    }


def _trials(records: Sequence[Record]) -> Iterator[Row]:
    """Yield a row per trial."""
    for machine, record in _by_machine(records):
        environment = record.environment
        row = _identity(machine, record) | {
            **fields(record, "run_id trial status reason started_at duration_s"),
            **fields(environment, "tcbench commit project_commit python"),
        }
        if environment is not None and environment.ranks is not None:
            ranks = environment.ranks
            row |= {"engine": ranks.engine, "hosts": ", ".join(ranks.hosts), "binding": ranks.binding}
        if record.host is not None:
            row |= {f"host_{name}": value for name, value in msgspec.to_builtins(record.host).items()}
            row["host_lost"] = record.host.lost
        measured = record.measurement
        if measured is not None:
            counted_s = measured.counted_times_s
            row |= {
                "images_per_s": images_per_s(record.images_per_step, counted_s),
                "step_time_mean_s": statistics.fmean(counted_s),
                "step_time_median_s": statistics.median(counted_s),
                "counted_steps": len(counted_s),
                **fields(measured, "warmup_steps warmup_settled stopped_by peak_memory_bytes peak_memory_of"),
                **fields(measured, "warmup_loss last_loss"),
            }
            for phase in measured.phases:
                if phase.host_s:
                    row[f"{phase.name}_host_s"] = statistics.median(phase.host_s)
                if phase.device_s:
                    row[f"{phase.name}_device_s"] = statistics.median(phase.device_s)
        yield row


def _cells(records: Sequence[Record]) -> Iterator[Row]:
    """Yield a row per cell."""
    weak = [curve for curve in curves(records) if curve.kind == "weak"]
    scaled = {point.summary.key: _scaled(curve, point) for curve in weak for point in curve.points}
    summaries = summarise(records)
    columns = cells.columns(summaries)
    for summary in summaries:
        yield _identity(summary.machine, summary) | {
            **fields(summary, "status reason trials trials_ok"),
            "commit": ", ".join(dict.fromkeys(code.commit for code in summary.codes if code.commit)) or None,
            "project_commit": ", ".join(dict.fromkeys(code.project for code in summary.codes if code.project)) or None,
            "stack": stack_name(summary.codes) or None,
            **_interval("images_per_s", summary.images_per_s),
            **_interval("step_time_mean_s", summary.step_time_s),
            "step_time_median_s": summary.step_time_median_s,
            "interval_over": summary.unit if summary.images_per_s else None,
            "warmup_settled": summary.settled if summary.images_per_s else None,
            "peak_memory_bytes": summary.peak_memory_bytes,
            **{f"{name}_host_s": seconds for name, seconds in summary.phase_host_s},
            **scaled.get(summary.key, {}),
            **_flattened(keyed(columns, cells.Row(summary, None))),
        }


def _scaled(curve: Curve, point: Point) -> Row:
    """Return a cell's columns on weak scaling, from its point on a curve: efficiency, all-reduce, imbalance."""
    exchange = point.allreduce
    return {
        **fields(point, "images_per_s_per_rank=images_per_s_per_rank.value"),
        **_interval("efficiency", point.efficiency),
        **fields(curve, "efficiency_over_ranks=base.cell.ranks"),
        **_interval("allreduce_s", exchange.time_s if exchange else None),
        **fields(exchange, "allreduce_overlaps=overlaps reduced_bytes=bytes"),
        **fields(exchange, "algorithm_bandwidth_bytes_s=algorithm_bytes_s.value"),
        **fields(exchange, "bus_bandwidth_bytes_s=bus_bytes_s.value"),
        **fields(point.imbalance, "imbalance=share slowest_rank=slowest fastest_rank=fastest"),
    }


def _steps(records: Sequence[Record]) -> Iterator[Row]:
    """Yield a row per timed step. The first step of each block is not counted."""
    for machine, record in _by_machine(records):
        measured = record.measurement
        if measured is None:
            continue
        identity = _identity(machine, record) | {"run_id": record.run_id, "trial": record.trial}
        for step, time_s in enumerate(measured.step_times_s):
            yield identity | {
                "step": step,
                "block": step // measured.block_steps,
                "counted": step % measured.block_steps != 0,
                "step_time_s": time_s,
            }


def _by_machine(records: Sequence[Record]) -> Iterator[tuple[str | None, Record]]:
    """Return pairs of a machine's name and a record, cell by cell. A record without a machine gets that of its run."""
    return ((machine, record) for (machine, _), group in group_by_cell(records).items() for record in group)


def _flattened(row: Row) -> Row:
    """Return the row with each interval as three columns: its value, low and high."""
    flat: Row = {}
    for name, value in row.items():
        flat |= _interval(name, value) if isinstance(value, Interval) else {name: value}
    return flat


def _interval(name: str, interval: Interval | None) -> Row:
    """Return the three columns of an interval."""
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def to_json(records: Sequence[Record], per: str) -> str:
    """Return rows as JSON, one per line, under the schema's name and version.

    In version 1, `images_per_s` and `step_time_mean_s` of a cell were over the steps of all trials together; now they
    are geometric means over trials."""
    columns, rows = table(records, per)
    head = json.dumps({"schema": "tcbench-export", "schema_version": 2, "per": per}).removesuffix("}")
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    lines = (encode(dict(zip(columns, values, strict=True))) for values in rows)
    return head + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def to_csv(records: Sequence[Record], per: str) -> str:
    """Return comma-separated rows with a header. A text that a spreadsheet would evaluate starts with an apostrophe."""
    (columns, rows), text = table(records, per), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_without_formula, columns))
    writer.writerows([_without_formula(v) if type(v) is str else v for v in values] for values in rows)
    return text.getvalue()


@functools.lru_cache(4096)
def _without_formula(value: str) -> str:
    """Return the text, with an apostrophe in front if a spreadsheet would take it for a formula."""
    text = value.replace("\r\n", "\n").replace("\r", "\n")  # few readers treat a lone "\r" as the end of a line
    return f"'{text}" if text.startswith(_FORMULA) else text


def to_parquet(records: Sequence[Record], per: str) -> bytes:
    """Return a Parquet file with one row per trial, cell or step (`per`). Raises SelectionError without pyarrow."""
    try:
        importlib.import_module("pyarrow")
    except ImportError:
        raise SelectionError(
            "--format parquet: needs the package pyarrow: uv sync --extra parquet, or uv pip install pyarrow"
        ) from None
    import pandas

    names, rows = table(records, per)
    columns = zip(names, zip(*rows, strict=True) if rows else ((),) * len(names), strict=True)
    frame = pandas.DataFrame({name: pandas.array(values, dtype=_type(values)) for name, values in columns})
    buffer = io.BytesIO()
    frame.to_parquet(buffer, index=False, engine="pyarrow")
    return buffer.getvalue()


def _type(values: Sequence[Any]) -> Any:
    """Return the pandas type of a column with these values; None stands for a missing value. By default, pandas would
    turn whole seconds into integers."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int} and all(abs(value or 0) < 2**63 for value in values):
        return "Int64"
    return "Float64" if kinds and kinds <= {int, float} else "string"


def to_github_action_benchmark(records: Sequence[Record]) -> str:
    """Return throughput in github-action-benchmark's format `customBiggerIsBetter`.

    It shows range and extra beside the value (https://github.com/benchmark-action/github-action-benchmark, README,
    "Examples")."""
    entries = [
        {
            "name": name,
            "unit": f"{summary.cell.unit}/s",
            "value": summary.images_per_s.value,
            "range": plus_minus(summary.images_per_s),
            "extra": f"{summary.trials_ok} of {summary.trials} trials ok; ± is the 95% interval "
            + cells.interval_over([summary.unit]),
        }
        for name, summary in _measured(records)
        if summary.images_per_s is not None
    ]
    return encoded(entries) + "\n"


def to_bencher(records: Sequence[Record]) -> str:
    """Return results in Bencher Metric Format, by cell and measure, with the limits of 95% intervals.

    Limits that are not finite are left out (https://bencher.dev/docs/reference/bencher-metric-format)."""
    entries: dict[str, Row] = {}
    for cell, summary in _measured(records):
        measures = entries.setdefault(cell, {})
        rate = re.sub(r"[^a-z0-9]+", "-", f"{summary.cell.unit}-per-second".lower()).strip("-")
        for slug, interval in ((rate, summary.images_per_s), ("step-time-seconds", summary.step_time_s)):
            if interval is not None:
                limits = {"value": interval.value, "lower_value": interval.low, "upper_value": interval.high}
                measures[slug] = {name: limit for name, limit in limits.items() if math.isfinite(limit)}
        if summary.peak_memory_bytes:
            measures["peak-memory-bytes"] = {"value": summary.peak_memory_bytes}
    return encoded(entries) + "\n"


_MOST_NAME = 1024
"""Longest name that Bencher accepts. No run produces a name that long."""


def _measured(records: Sequence[Record]) -> list[tuple[str, CellSummary]]:
    """Return each cell that has a throughput, under a unique name.

    If several revisions were measured, the newest counts, because services follow one series. Raises SelectionError if
    no cell was measured."""
    measured = [summary for summary in summarise(records) if summary.images_per_s is not None]
    by_time = sorted(measured, key=lambda summary: summary.began_at)
    newest = {(summary.machine, summary.cell): summary for summary in by_time}
    summaries = [summary for summary in measured if newest[summary.machine, summary.cell] is summary]
    if not summaries:
        raise SelectionError("no cell was measured in these results: nothing to export; --format csv shows why")
    names = stable_names([(summary.machine, summary.cell) for summary in summaries])
    return [(_shortened(name, summary.cell.key), summary) for name, summary in zip(names, summaries, strict=True)]


def _shortened(name: str, key: str) -> str:
    """Return the name of a cell; if it is too long, its beginning and the cell's key."""
    return name if len(name) <= _MOST_NAME else f"{name[: _MOST_NAME - len(key) - 4]}... {key}"


def missing_line(records: Sequence[Record]) -> str | None:
    """Return a note that names the cells without a throughput, which a service's file leaves out, or None."""
    missing = [summary for summary in summarise(records) if summary.images_per_s is None]
    if not missing:
        return None
    names = listed([f"{summary.cell.label} ({summary.status})" for summary in missing[:_MOST_NAMED]])
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f"note: left out because they were not measured: {names}{more}"


_MOST_NAMED = 5
"""Number of cells that the note names."""

SERVICES: dict[str, Callable[[Sequence[Record]], str]] = {
    "github-action-benchmark": to_github_action_benchmark,
    "bencher": to_bencher,
}
"""Formats of services that track benchmarks over time."""
