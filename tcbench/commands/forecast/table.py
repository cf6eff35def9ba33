"""Output of `tcbench forecast`: a table, the plan of every operation on request, notes, and the JSON."""

from collections.abc import Iterable
from typing import Any

from rich.text import Text

from tcbench.analysis.advice import modelled_rate
from tcbench.analysis.stats import Interval
from tcbench.commands.forecast.forecast import CellForecast, Forecast, WorkForecast
from tcbench.core.groups import grouped
from tcbench.core.step_time import StepTime
from tcbench.core.text import digits
from tcbench.engine.api import timing_model
from tcbench.hardware.gpus import ALLOWANCE_BYTES
from tcbench.show.document import document, fields
from tcbench.show.format import size
from tcbench.show.naming import network_suffix
from tcbench.show.notes import Caution
from tcbench.show.tables import BYTES, COUNT, RATE, SECONDS, Column, ConfigTable, Table


def headline(forecast: Forecast) -> str:
    """Return the scenario, its network if there is only one, and the GPU in one line."""
    gpu, cell = forecast.gpu, forecast.cells[0].cell
    network = network_suffix(cell_forecast.cell for cell_forecast in forecast.cells)
    rates = {name: rate / 1e12 for name, rate in timing_model(gpu).peaks.flops_s.items()}
    tf32 = f" {rates['tf32']:.0f} (TF32)," if rates["tf32"] > rates["fp32"] else ""
    return (
        f"{forecast.plan.scenario.name}{network} on {gpu.device_name}, {cell.image_size}x{cell.image_size} pixels: "
        f"{size(gpu.memory_bytes)} at {gpu.memory_bandwidth_bytes_s / 1e9:.0f} GB/s; at most "
        f"{rates['fp32']:.1f} (fp32),{tf32} {rates['fp16']:.0f} (fp16) TFLOP/s"
    )


def table(forecast: Forecast) -> ConfigTable[CellForecast]:
    """Return one row per cell, ordered by batch size."""
    checked = forecast.prospects.plans_unchecked is None
    least = "" if checked else "≤ "

    def plans(cell: CellForecast) -> Text:
        """Return the number of operations with a cuDNN plan, "n/total" if some have none, or "?" if plans were not
        checked."""
        graphs = cell.of_kind("graph")
        planned = sum(work.way.implementation is not None for work in graphs)
        words = str(planned) if planned == len(graphs) else f"{planned}/{len(graphs)}"
        return Text(words, "red" if cell.problems else "") if checked else Text("?", "yellow")

    columns: list[Column[CellForecast]] = [
        Column("cuDNN\nplans", plans, COUNT),
        Column("workspace", lambda cell: least + size(cell.workspace_bytes), BYTES, spare=True),
        Column(f"memory of\n{size(forecast.gpu.memory_bytes)}", lambda cell: cell.memory_bytes, BYTES),
        Column("fits", lambda cell: Text("yes", "green") if cell.fits else Text("NO", "bold red"), COUNT),
        Column("launches\nby host", lambda cell: cell.demand.requests, COUNT, spare=True),
        Column("TFLOP", lambda cell: digits(cell.flops / 1e12), COUNT, spare=True),
        Column("GB", lambda cell: digits(cell.bytes / 1e9), COUNT, spare=True),
        Column("images/s by\nthe GPU alone", by_gpu_alone, RATE),
    ]
    return ConfigTable(columns, forecast.cells, cell=lambda cell: cell.cell, why_no_figures=_not_forecast, gap=1)


def by_gpu_alone(cell: CellForecast) -> Interval:
    """Return the expected throughput, with its limits, if the GPU never waits for the host or the input."""
    return modelled_rate(cell.cell.images_per_step, StepTime(device_s=cell.expected_s))


def _not_forecast(cell: CellForecast) -> str | None:
    """Return "never" for a cell that cannot run on the GPU, "unknown" for one that was not traced, or None for one with
    a forecast."""
    return None if cell.is_known else "never" if cell.cannot_run else "unknown"


def reasons(forecast: Forecast) -> list[str]:
    """Return lines on cells that cannot run on the GPU, whose demand is unknown, or that have operations without a
    cuDNN plan or kernel: each reason once, with its cells."""
    cells = forecast.cells
    never = [(f"Cannot run on {forecast.gpu.name}: {c.cannot_run}", c.cell.config) for c in cells if c.cannot_run]
    unknown = [(f"Unknown: {cell.untraced}", cell.cell.config) for cell in cells if cell.untraced]
    lacking = grouped((problem, cell.cell.label) for cell in cells for problem in cell.problems)
    lines = [f"{reason} ({', '.join(dict.fromkeys(names))})" for reason, names in grouped([*never, *unknown]).items()]
    return lines + [f"{problem} ({'; '.join(labels)})" for problem, labels in lacking.items()]


def verdict(forecast: Forecast) -> str:
    """Return how many cells fit into the GPU's memory, and which do not."""
    forecasts = [cell for cell in forecast.cells if cell.is_known]
    too_large = [cell for cell in forecasts if not cell.fits]
    fit = f"{len(forecasts) - len(too_large)} of {len(forecasts)} cells fit into {size(forecast.gpu.memory_bytes)}"
    if not too_large:
        return fit + "."
    configs = grouped((cell.cell.batch_size, cell.cell.config) for cell in too_large)
    return fit + "; too large: " + "; ".join(f"at {n}: {', '.join(names)}" for n, names in configs.items()) + "."


def engines(forecast: Forecast) -> list[str]:
    """Return a line for each first rung (the dtype) with the cuDNN engines of its cells' plans."""
    by_rung = grouped((cell.cell.rungs[0], name) for cell in forecast.cells for name in cell.engines)
    return [f"{rung}: {', '.join(sorted({*names}, key=_number))}" for rung, names in by_rung.items()]


def _number(engine: str) -> tuple[int, str]:
    """Return the sort key of an engine's name, such as "eng12": its number, then the name."""
    number = engine.removeprefix("eng")
    return (int(number) if number.isdigit() else 10**9, engine)


def notes(forecast: Forecast) -> list[str]:
    """Return the notes on how to read the table: what each figure includes and leaves out."""
    lines: list[str] = []
    prospects = forecast.prospects
    if prospects.plans_unchecked:
        lines.append(
            Caution(f"Plans: not checked: {prospects.plans_unchecked}. The workspace is assumed to be at its limit.")
        )
    else:
        calls = any(cell.of_kind("call") for cell in forecast.cells)
        more = "; batch normalisation by cuDNN's older calls needs none" if calls else ""
        lines.append(
            f"Plans: built by cuDNN {prospects.library}, the first of its heuristic{more}; "
            "autotuning may choose others, up to the workspace limit."
        )
        lines += [f"Engines of {line}." for line in engines(forecast)]
    if prospects.kernels_unchecked:
        lines.append(Caution(f"Kernels: not compiled: {prospects.kernels_unchecked}."))
    lines += [
        f"Memory: peak of all arrays, the largest workspace, and an estimated {size(ALLOWANCE_BYTES)} for the device's "
        "context and libraries; memory of a feed (DALI's decoding on the GPU) is not included.",
        "Launches: requests of the host per step, without those of the feed; cuDNN may run several kernels for one.",
        "By the GPU alone: from the share of their peaks that such cards attain; nine of ten lie within the limits "
        "(docs/virtual.md). A slow host or input makes the step longer, and rungs that act on these change nothing "
        f"here; `tcbench run --device virtual:{forecast.gpu.name} --data modelled:8000` models them.",
    ]
    return lines


def details(forecast: Forecast) -> Iterable[tuple[str, Table[WorkForecast]]]:
    """Yield a heading and a table for each cell with a forecast. A table's rows are the cell's operations, those with
    the largest lower bound of their time first."""
    for cell in forecast.cells:
        if not cell.is_known:
            continue
        works = sorted(cell.works, key=lambda work: -work.count * work.floor_s)
        per_phase = ", ".join(f"{name} {requests}" for name, requests in cell.demand.phases.items())
        replayed = f"; the graph replays {cell.demand.replayed}" if cell.demand.replayed else ""
        at_most = f"at most {cell.images_per_s_at_most:.0f} images/s"
        yield f"{cell.cell.label}: launches by host: {per_phase}{replayed}; {at_most}", Table(_DETAILS, works)


_DOERS = {"graph": "cuDNN ", "call": "cuDNN call ", "kernel": "kernel "}

_DETAILS: tuple[Column[WorkForecast], ...] = (
    Column("times", lambda work: work.count, COUNT, wraps=True),
    Column("work", lambda work: _DOERS[work.work.kind] + work.work.name, wraps=False),
    Column("on", lambda work: _shape(work)),
    Column(
        "by",
        lambda work: work.way.implementation or work.way.problem or "not checked",
        style=lambda work: "" if work.way.implementation else "yellow",
    ),
    Column("workspace", lambda work: (work.way.implementation and work.way.workspace_bytes) or None, BYTES),
    Column("at least", lambda work: work.count * work.floor_s, SECONDS),
    Column("expected", lambda work: work.count * work.expected_s, SECONDS),
)


def _shape(work: WorkForecast) -> str:
    """Return the shape and the dtype of an operation's first operand: "32x64x56x56 float16"."""
    first = work.work.operands[0]
    return f"{'x'.join(map(str, first.shape)) or '1'} {first.dtype}"


def to_json(forecast: Forecast) -> str:
    """Return everything as JSON, with units in the names."""
    gpu = forecast.gpu
    return document(
        "tcbench-forecast",
        scenario=forecast.plan.scenario.name,
        gpu={
            **fields(gpu, "name device_name"),
            "compute_capability": [gpu.sm // 10, gpu.sm % 10],
            **fields(gpu, "multiprocessors memory_bytes memory_bandwidth_bytes_s"),
            **{f"peak_{name}_flops_s": rate for name, rate in timing_model(gpu).peaks.flops_s.items()},
        },
        attained=timing_model(gpu).name,
        **fields(forecast.prospects, "cudnn=library plans_unchecked kernels_unchecked"),
        cells=[_cell_json(cell) for cell in forecast.cells],
        notes=notes(forecast),
    )


def _cell_json(cell: CellForecast) -> dict[str, Any]:
    """Return one cell as JSON fields."""
    cell_json = fields(cell.cell, "config batch_size image_size key") | fields(cell, "cannot_run untraced")
    if not cell.is_known:
        return cell_json
    rate = by_gpu_alone(cell)
    return cell_json | {
        **fields(cell, "fits memory_bytes arrays_bytes=demand.peak_bytes workspace_bytes allowance_bytes flops bytes"),
        **fields(cell, "floor_s floor_in_arithmetic_s images_per_s_at_most expected_s images_per_s_expected"),
        "images_per_s_limits": [rate.low, rate.high],
        **fields(cell, "launches_by_host=demand.phases launches_replayed=demand.replayed engines problems"),
        "works": [
            fields(work, "name=work.name kind=work.kind key=work.key launches=count by=way.implementation")
            | fields(work, "workspace_bytes=way.workspace_bytes problem=way.problem")
            | fields(work, "flops=work.flops bytes=work.bytes floor_s expected_s")
            for work in cell.works
        ],
    }
