"""Output of `tcbench forecast`: a table, the plan of every operation on request, notes on how to read them, and the
JSON."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.table import Table
from rich.text import Text

from tcbench.core.text import digits
from tcbench.engine.accelerators.attained import attained
from tcbench.engine.accelerators.peaks import ALLOWANCE_BYTES, peak_rates
from tcbench.present.document import encoded
from tcbench.present.format import milliseconds, size
from tcbench.present.tables import add_by_batch, ladder_table, open_table
from tcbench.run.forecast import CellForecast, Forecast, WorkForecast

SCHEMA = "tcbench-forecast"
SCHEMA_VERSION = 1
"""Of the JSON. History: 1, first form."""

WIDTH = 100
"""Columns that the table needs."""


def headline(forecast: Forecast) -> str:
    """The scenario, its network where there is one alone, and the GPU in one line."""
    gpu, cell = forecast.gpu, forecast.cells[0].cell
    alone = len({each.cell.model for each in forecast.cells}) == 1
    network = f", {cell.model}" if alone else ""  # several have a column
    rates = peak_rates(gpu)
    tf32 = f" {rates.tf32_flops_s / 1e12:.0f} (TF32)," if rates.tf32_flops_s > rates.fp32_flops_s else ""
    return (
        f"{forecast.plan.scenario.name}{network} on {gpu.device_name}, {cell.image_size}x{cell.image_size} pixels: "
        f"{size(gpu.memory_bytes)} at {gpu.memory_bandwidth_bytes_s / 1e9:.0f} GB/s; at most "
        f"{rates.fp32_flops_s / 1e12:.1f} (fp32),{tf32} {rates.fp16_flops_s / 1e12:.0f} (fp16) TFLOP/s"
    )


def table(forecast: Forecast) -> Table:
    """One row per cell, batch size by batch size, on a console of WIDTH columns or more."""
    table = ladder_table([cell.cell for cell in forecast.cells], gap=1)
    table.columns[0].vertical = "bottom"
    for heading in (
        "cuDNN\nplans",
        "workspace",
        f"memory of\n{size(forecast.gpu.memory_bytes)}",
        "fits",
        "launches\nby host",
        "TFLOP",
        "GB",
        "images/s\nat most",
        "images/s\nexpected",
    ):
        table.add_column(heading, justify="right", no_wrap=True)
    add_by_batch(table, ((cell.cell, _figures(forecast, cell)) for cell in forecast.cells))
    return table


def _figures(forecast: Forecast, cell: CellForecast) -> tuple[Text, ...]:
    memory, floor = cell.memory, cell.floor
    if memory is None or floor is None:
        return (Text("never" if cell.cannot_run else "unknown", style="yellow"),)
    checked = forecast.plans_unchecked is None
    graphs = cell.of_kind("graph")
    planned = sum(work.by is not None for work in graphs)
    plans = Text(str(planned) if planned == len(graphs) else f"{planned}/{len(graphs)}")
    if cell.problems:
        plans.stylize("red")
    return (
        plans if checked else Text("?", style="yellow"),
        Text(("" if checked else "≤ ") + size(memory.workspace_bytes)),
        Text(size(memory.total_bytes)),
        Text("yes", style="green") if memory.fits else Text("NO", style="bold red"),
        Text(str(cell.requests)),
        Text(digits(floor.flops / 1e12)),
        Text(digits(floor.bytes / 1e9)),
        Text(f"{floor.images_per_s(cell.cell.batch_size):.0f}"),
        Text(f"{cell.cell.batch_size / cell.expected_s:.0f}"),
    )


def reasons(forecast: Forecast) -> list[str]:
    """Why configs do not run there, and what is missing for those that would: each reason with the cells concerned."""
    never: dict[str, dict[str, None]] = {}
    unknown: dict[str, dict[str, None]] = {}
    lacking: dict[str, list[str]] = {}
    for cell in forecast.cells:
        if cell.cannot_run:
            never.setdefault(cell.cannot_run, {})[cell.cell.config] = None
        if cell.untraced:
            unknown.setdefault(cell.untraced, {})[cell.cell.config] = None
        for problem in cell.problems:
            lacking.setdefault(problem, []).append(cell.cell.label)
    lines = [f"Cannot run on {forecast.gpu.name}: {reason} ({', '.join(configs)})" for reason, configs in never.items()]
    lines += [f"Unknown: {reason} ({', '.join(configs)})" for reason, configs in unknown.items()]
    return lines + [f"{problem} ({'; '.join(cells)})" for problem, cells in lacking.items()]


def verdict(forecast: Forecast) -> str:
    """`36 cells fit, 4 do not (...)`."""
    forecast_cells = [cell for cell in forecast.cells if cell.memory]
    too_large = [cell for cell in forecast_cells if cell.memory and not cell.memory.fits]
    n = len(forecast_cells)
    fit = f"{n - len(too_large)} of {n} cells fit into {size(forecast.gpu.memory_bytes)}"
    if not too_large:
        return fit + "."
    configs: dict[int, list[str]] = {}
    for cell in too_large:
        configs.setdefault(cell.cell.batch_size, []).append(cell.cell.config)
    return fit + "; too large: " + "; ".join(f"at {n}: {', '.join(names)}" for n, names in configs.items()) + "."


def engines(forecast: Forecast) -> list[str]:
    """The cuDNN engines that the plans of each first rung use, over all batch sizes."""
    by_rung: dict[str, dict[str, None]] = {}
    for cell in forecast.cells:
        by_rung.setdefault(cell.cell.rungs[0], {}).update((name, None) for name, _ in cell.engines)
    return [f"{rung}: {', '.join(sorted(names, key=_number))}" for rung, names in by_rung.items() if names]


def _number(engine: str) -> tuple[int, str]:
    digits = engine.removeprefix("eng")
    return (int(digits) if digits.isdigit() else 10**9, engine)


def notes(forecast: Forecast) -> list[str]:
    """Notes on how to read the table: what each figure includes and leaves out."""
    lines = []
    if forecast.plans_unchecked:
        lines.append(f"Plans: not checked: {forecast.plans_unchecked}. The workspace is assumed to be at its limit.")
    else:
        calls = any(cell.of_kind("call") for cell in forecast.cells)
        more = "; batch normalisation by cuDNN's older calls needs none" if calls else ""
        lines.append(
            f"Plans: built by cuDNN {forecast.cudnn}, the heuristic's first{more}; "
            "autotuning may choose others, up to the workspace limit."
        )
        lines += [f"Engines of {line}." for line in engines(forecast)]
    if forecast.kernels_unchecked:
        lines.append(f"Kernels: not compiled: {forecast.kernels_unchecked}.")
    allowance = size(ALLOWANCE_BYTES)
    lines += [
        f"Memory: peak of all arrays, the largest workspace, and an estimated {allowance} for the device's context and "
        "libraries; memory of a feed (DALI's decoding on the GPU) is not included.",
        "Launches: requests of the host per step, without the feed's; cuDNN may run several kernels for one.",
        "At most: each launch at the card's peak arithmetic or bandwidth, whichever takes longer, one after another. "
        "It is not a prediction: steps take longer; only data still in L2 (small batches) or Winograd's method (fp32) "
        "can beat it.",
        "Expected: the GPU's share of the step, by what such cards attain of their peaks (docs/virtual.md: from which "
        "sources, and how well that predicts). A host or an input that cannot keep up makes the step longer.",
    ]
    return lines


def details(forecast: Forecast) -> Iterable[tuple[str, Table]]:
    """For each cell that was forecast, a heading and a table of its operations, the longest floor first."""
    for cell in forecast.cells:
        if cell.memory is None:
            continue
        table = open_table()
        table.add_column("times", justify="right")
        table.add_column("work", no_wrap=True)
        table.add_column("on", overflow="fold")
        table.add_column("by", overflow="fold")
        table.add_column("workspace", justify="right", no_wrap=True)
        table.add_column("floor", justify="right", no_wrap=True)
        table.add_column("expected", justify="right", no_wrap=True)
        for work in sorted(cell.works, key=lambda w: -w.count * w.floor_s):
            by = Text(work.by or work.problem or "not checked", style="" if work.by else "yellow")
            space = size(work.workspace_bytes) if work.workspace_bytes and work.by else ""
            times = (milliseconds(work.count * seconds) for seconds in (work.floor_s, work.expected_s))
            table.add_row(str(work.count), _doer(work), Text(_shape(work)), by, space, *times)
        per_phase = ", ".join(f"{phase.name} {phase.requests}" for phase in cell.phases)
        replayed = f"; the graph replays {cell.replayed}" if cell.replayed else ""
        yield f"{cell.cell.label}: launches by host: {per_phase}{replayed}", table


def _doer(work: WorkForecast) -> str:
    return {"graph": "cuDNN ", "call": "cuDNN call ", "kernel": "kernel "}[work.work.kind] + work.work.name


def _shape(work: WorkForecast) -> str:
    first = work.work.operands[0]
    return f"{'x'.join(map(str, first.shape)) or '1'} {first.dtype}"


def to_json(forecast: Forecast) -> str:
    """Everything, with units in the names."""
    gpu = forecast.gpu
    rates = peak_rates(gpu)
    value = {
        "schema": SCHEMA,
        "schema_version": SCHEMA_VERSION,
        "scenario": forecast.plan.scenario.name,
        "gpu": {
            "name": gpu.name,
            "device_name": gpu.device_name,
            "compute_capability": [gpu.sm // 10, gpu.sm % 10],
            "multiprocessors": gpu.multiprocessors,
            "memory_bytes": gpu.memory_bytes,
            "memory_bandwidth_bytes_s": gpu.memory_bandwidth_bytes_s,
            "peak_fp32_flops_s": rates.fp32_flops_s,
            "peak_tf32_flops_s": rates.tf32_flops_s,
            "peak_fp16_flops_s": rates.fp16_flops_s,
        },
        "attained": attained(gpu).name,
        "cudnn": forecast.cudnn,
        "plans_unchecked": forecast.plans_unchecked,
        "kernels_unchecked": forecast.kernels_unchecked,
        "cells": [_cell_json(cell) for cell in forecast.cells],
        "notes": notes(forecast),
    }
    return encoded(value)


def _cell_json(cell: CellForecast) -> dict[str, Any]:
    asked = cell.cell
    value: dict[str, Any] = {
        "config": asked.config,
        "batch_size": asked.batch_size,
        "image_size": asked.image_size,
        "key": asked.key,
        "cannot_run": cell.cannot_run,
        "untraced": cell.untraced,
    }
    if cell.memory is None or cell.floor is None:
        return value
    memory, floor = cell.memory, cell.floor
    return value | {
        "fits": memory.fits,
        "memory_bytes": memory.total_bytes,
        "arrays_bytes": memory.arrays_bytes,
        "workspace_bytes": memory.workspace_bytes,
        "allowance_bytes": memory.allowance_bytes,
        "flops": floor.flops,
        "bytes": floor.bytes,
        "floor_s": floor.time_s,
        "floor_in_arithmetic_s": floor.arithmetic_s,
        "images_per_s_at_most": floor.images_per_s(asked.batch_size),
        "expected_s": cell.expected_s,
        "images_per_s_expected": asked.batch_size / cell.expected_s,
        "launches_by_host": {phase.name: phase.requests for phase in cell.phases},
        "launches_replayed": cell.replayed,
        "engines": dict(cell.engines),
        "problems": list(cell.problems),
        "works": [
            {
                "name": work.work.name,
                "kind": work.work.kind,
                "key": work.work.key,
                "launches": work.count,
                "by": work.by,
                "workspace_bytes": work.workspace_bytes,
                "problem": work.problem,
                "flops": work.work.flops,
                "bytes": work.work.bytes,
                "floor_s": work.floor_s,
                "expected_s": work.expected_s,
            }
            for work in cell.works
        ],
    }
