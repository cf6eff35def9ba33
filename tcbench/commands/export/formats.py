"""Results as other tools read them: CSV, Parquet, JSON, github-action-benchmark's and Bencher's own JSON.

Owns the columns and the names. A row is a trial, a cell or a step; what a row does not know is empty. Units are in the
columns' names.
"""

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
from tcbench.show.naming import stable_names, stack_name
from tcbench.show.simulated import is_simulated
from tcbench.show.tables import keyed

Row = dict[str, Any]

_FORMULA = ("=", "+", "-", "@", "\t", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""A text that begins so is a formula to a spreadsheet (OWASP, "CSV Injection"), full-width signs included."""


def table(records: Sequence[Record], per: str) -> tuple[tuple[str, ...], Sequence[Sequence[Any]]]:
    """Columns, and of what `store.current` leaves all rows, each with a value or None for every column. A row as a
    dictionary would be four times as large, and there may be a hundred thousand. What is not finite is empty: JSON has
    no infinity, and a table's reader takes an empty place better."""
    columns: dict[str, int] = {}
    filled: list[list[Any]] = []
    for row in {"trial": _trials, "cell": _cells, "step": _steps}[per](records):
        if row.keys() - columns.keys():
            for name in row:
                columns.setdefault(name, len(columns))
        values = [None if type(v) is float and not math.isfinite(v) else v for v in map(row.get, columns)]
        filled.append(values)
    for values in filled:
        values += [None] * (len(columns) - len(values))
    return tuple(columns), filled


def _identity(machine: str | None, of: Record | CellSummary) -> Row:
    cell, environment = of.cell, of.environment
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
    for machine, record in _placed(records):
        environment = record.environment
        row = _identity(machine, record) | {
            **fields(record, "run_id trial status reason started_at duration_s"),
            **fields(environment, "tcbench commit project_commit python"),
        }
        if environment is not None and environment.ranks is not None:
            ranks = environment.ranks
            row |= {"engine": ranks.engine, "hosts": ", ".join(ranks.hosts), "binding": ranks.binding}
        if record.host is not None:
            row |= {f"host_{name}": value for name, value in msgspec.structs.asdict(record.host).items()}
            row["host_lost"] = record.host.lost
        measured = record.measurement
        if measured is not None:
            counted_s = measured.counted_times_s
            row |= {
                "images_per_s": images_per_s(record.cell.images_per_step, counted_s),
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
            **_ends("images_per_s", summary.images_per_s),
            **_ends("step_time_mean_s", summary.step_time_s),
            "step_time_median_s": summary.step_time_median_s,
            "interval_over": summary.unit if summary.images_per_s else None,
            "warmup_settled": summary.settled if summary.images_per_s else None,
            "peak_memory_bytes": summary.peak_memory_bytes,
            **{f"{name}_host_s": seconds for name, seconds in summary.phase_host_s},
            **scaled.get(summary.key, {}),
            **_flat(keyed(columns, cells.Row(summary, None))),
        }


def _scaled(curve: Curve, point: Point) -> Row:
    """The figures of a cell on a curve of weak scaling."""
    exchange = point.allreduce
    return {
        **fields(point, "images_per_s_per_rank=images_per_s_per_rank.value"),
        **_ends("efficiency", point.efficiency),
        **fields(curve, "efficiency_over_ranks=base.cell.ranks"),
        **_ends("allreduce_s", exchange.time_s if exchange else None),
        **fields(exchange, "allreduce_overlaps=overlaps reduced_bytes=bytes"),
        **fields(exchange, "algorithm_bandwidth_bytes_s=algorithm_bytes_s.value"),
        **fields(exchange, "bus_bandwidth_bytes_s=bus_bytes_s.value"),
        **fields(point.imbalance, "imbalance=share slowest_rank=slowest fastest_rank=fastest"),
    }


def _steps(records: Sequence[Record]) -> Iterator[Row]:
    for machine, record in _placed(records):
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


def _placed(records: Sequence[Record]) -> Iterator[tuple[str | None, Record]]:
    """Each record with its machine, cell by cell; one that knows nothing of its machine has its run's."""
    return ((machine, record) for (machine, _), group in group_by_cell(records).items() for record in group)


def _flat(values: Row) -> Row:
    """Intervals as their middles and ends."""
    flat: Row = {}
    for name, value in values.items():
        flat |= _ends(name, value) if isinstance(value, Interval) else {name: value}
    return flat


def _ends(name: str, interval: Interval | None) -> Row:
    if interval is None:
        return {name: None, f"{name}_low": None, f"{name}_high": None}
    return {name: interval.value, f"{name}_low": interval.low, f"{name}_high": interval.high}


def to_json(records: Sequence[Record], per: str) -> str:
    """Rows under a schema's name and version, a line each. In form 1 `images_per_s` and `step_time_mean_s` of a cell
    were over the steps of all its trials at once; now they are geometric means over trials."""
    columns, rows = table(records, per)
    head = json.dumps({"schema": "tcbench-export", "schema_version": 2, "per": per}).removesuffix("}")
    encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
    lines = (encode(dict(zip(columns, values, strict=True))) for values in rows)
    return head + ', "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def to_csv(records: Sequence[Record], per: str) -> str:
    """Comma-separated, with a header; a text that a spreadsheet would compute has an apostrophe before it."""
    (columns, rows), text = table(records, per), io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(map(_defused, columns))
    writer.writerows([_defused(v) if type(v) is str else v for v in values] for values in rows)
    return text.getvalue()


@functools.lru_cache(4096)
def _defused(value: str) -> str:
    text = value.replace("\r\n", "\n").replace("\r", "\n")  # which few readers take for a line's end
    return f"'{text}" if text.startswith(_FORMULA) else text


def to_parquet(records: Sequence[Record], per: str) -> bytes:
    """Columns with their types, empty places as nulls. Raises SelectionError where pyarrow is missing."""
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
    """The type of a column's values; pandas would make whole seconds integers."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return "boolean"
    if kinds == {int} and all(abs(value or 0) < 2**63 for value in values):
        return "Int64"
    return "Float64" if kinds and kinds <= {int, float} else "string"


def to_github_action_benchmark(records: Sequence[Record]) -> str:
    """Throughput as github-action-benchmark's `customBiggerIsBetter`: name, unit and value; range and extra are shown
    beside them (https://github.com/benchmark-action/github-action-benchmark, README, "Examples")."""
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
    """Bencher Metric Format (https://bencher.dev/docs/reference/bencher-metric-format): by cell and by the measure's
    slug, a value with the limits of its 95% interval. A limit that is not finite is left out."""
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
"""Bencher takes no longer name; so long is none that a run made."""


def _measured(records: Sequence[Record]) -> list[tuple[str, CellSummary]]:
    """Every cell that has a throughput, by a name that no other has; where several revisions were measured, as of that
    which was last, since services follow one series. Raises SelectionError when none has."""
    measured = [summary for summary in summarise(records) if summary.images_per_s is not None]
    newest = {(summary.machine, summary.cell): summary for summary in sorted(measured, key=lambda one: one.began_at)}
    summaries = [summary for summary in measured if newest[summary.machine, summary.cell] is summary]
    if not summaries:
        raise SelectionError("no cell was measured in these results: nothing to export; --format csv tells why")
    names = stable_names([(summary.machine, summary.cell) for summary in summaries])
    ends = (f"... {summary.cell.key}" for summary in summaries)
    short = [
        name if len(name) <= _MOST_NAME else name[: _MOST_NAME - len(end)] + end
        for name, end in zip(names, ends, strict=True)
    ]
    return list(zip(short, summaries, strict=True))


def missing_line(records: Sequence[Record]) -> str | None:
    """Return a line that names the cells without a throughput, which a service's file leaves out; None where there are
    none."""
    missing = [summary for summary in summarise(records) if summary.images_per_s is None]
    if not missing:
        return None
    names = listed([f"{summary.cell.label} ({summary.status})" for summary in missing[:_MOST_NAMED]])
    more = f" and {len(missing) - _MOST_NAMED} more" if len(missing) > _MOST_NAMED else ""
    return f"note: left out, as not measured: {names}{more}"


_MOST_NAMED = 5

SERVICES: dict[str, Callable[[Sequence[Record]], str]] = {
    "github-action-benchmark": to_github_action_benchmark,
    "bencher": to_bencher,
}
"""Formats of services that follow cells over time."""
