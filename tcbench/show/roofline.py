"""What `tcbench roofline` shows beside its picture: tables of phases and layers, and the JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tcbench.analysis.roofline import Ceilings, CellRoofline, Part
from tcbench.show.format import milliseconds

SCHEMA = "tcbench-roofline"
SCHEMA_VERSION = 1
"""Of the JSON. History: 1, first form."""


def headline(ceilings: Ceilings) -> str:
    """A device's ceilings in one line."""
    rates = ", ".join(f"{rate / 1e9:.4g} GFLOP/s ({name})" for name, rate in ceilings.rates)
    return f"{ceilings.device_name}: {rates}, {ceilings.bandwidth_bytes_s / 1e9:.4g} GB/s: {ceilings.says}"


def phases_table(found: Sequence[CellRoofline]) -> Table:
    """One row per cell and phase that computes."""
    table = _table("batch", "config", "phase")
    for roofline in found:
        cell = roofline.summary.cell
        first = True
        for part in roofline.phases:
            names = (str(cell.batch_size), cell.config) if first else ("", "")
            table.add_row(*map(Text, names), Text(part.name), *_figures(part, roofline))
            first = False
    return table


def layers_table(roofline: CellRoofline) -> Table:
    """One row per layer and direction."""
    table = _table("layer", "phase")
    for part in roofline.layers:
        table.add_row(Text(part.name), Text(part.phase), *_figures(part, roofline))
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name, justify="right" if name == "batch" else "left", overflow="fold")
    for heading in ("GFLOP", "MB", "FLOP/B", "least", "took", "GFLOP/s", "of roof"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _figures(part: Part, roofline: CellRoofline) -> tuple[str, ...]:
    share = part.share_of_roof(roofline.ceilings, roofline.precision)
    return (
        f"{part.flops / 1e9:.3g}",
        f"{part.bytes / 1e6:.3g}",
        f"{part.intensity:.3g}",
        milliseconds(part.floor_s(roofline.ceilings, roofline.precision)),
        "" if part.time_s is None else milliseconds(part.time_s),
        "" if part.flops_s is None or not part.flops else f"{part.flops_s / 1e9:.3g}",
        "" if share is None else f"{share:.0%}",
    )


def notes(found: Sequence[CellRoofline]) -> list[str]:
    """How to read the tables."""
    lines = [
        "FLOP: a multiply-accumulate is two. MB: the least traffic, every operand once. least: time under the roof.",
        "Whole phases mix layers on both sides of the ridge: a phase under the roof may still hold layers at it.",
    ]
    if any(not any(part.time_s for part in roofline.layers) for roofline in found):
        lines.append("Layers have times where a profile of the cell on the CPU is named beside the results.")
    parts = [(part, roofline) for roofline in found for part in (*roofline.phases, *roofline.layers)]
    if any((part.share_of_roof(r.ceilings, r.precision) or 0) > 1.05 for part, r in parts):
        lines.append(
            "Above the roof: the machine was busier when its ceilings were measured (--fresh measures them anew), or "
            "what one layer leaves is still in the cache for the next."
        )
    if any(roofline.summary.cell.device != "cpu" for roofline in found):
        lines.append("On a GPU a phase's time holds what the GPU waited for the host.")
    return lines


def to_json(found: Iterable[CellRoofline]) -> str:
    """Everything, with units in the names."""
    value = {"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "cells": [_cell_json(one) for one in found]}
    return json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)


def _cell_json(found: CellRoofline) -> dict[str, Any]:
    cell, ceilings = found.summary.cell, found.ceilings

    def part_json(part: Part) -> dict[str, Any]:
        return {
            "name": part.name,
            "phase": part.phase,
            "flops": part.flops,
            "bytes": part.bytes,
            "flop_per_byte": part.intensity,
            "time_s": part.time_s,
            "flops_s": part.flops_s,
            "floor_s": part.floor_s(ceilings, found.precision),
        }

    return {
        "machine": found.summary.machine,
        "config": cell.config,
        "batch_size": cell.batch_size,
        "image_size": cell.image_size,
        "variant": cell.variant,
        "device": cell.device,
        "precision": found.precision,
        "ceilings": {
            "device_name": ceilings.device_name,
            "flops_s": dict(ceilings.rates),
            "bandwidth_bytes_s": ceilings.bandwidth_bytes_s,
            "measured": ceilings.measured,
            "says": ceilings.says,
        },
        "phases": [part_json(part) for part in found.phases],
        "layers": [part_json(part) for part in found.layers],
    }
