"""Output of `tcbench roofline` beside its chart: tables of phases and layers, and the JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from tcbench.analysis.roofline import MEMORY, Ceilings, CellRoofline, Part
from tcbench.present.document import encoded
from tcbench.present.format import doubtful, listed, milliseconds, number, percent
from tcbench.present.tables import heads_of, many_ranks, open_table

SCHEMA = "tcbench-roofline"
SCHEMA_VERSION = 1
"""Of the JSON. History: 1, first form."""


def headline(ceilings: Ceilings) -> str:
    """A device's ceilings in one line."""
    standing = [
        *(f"{number(rate / 1e9)} GFLOP/s ({name})" for name, rate in ceilings.rates if name not in ceilings.withdrawn),
        *([] if MEMORY in ceilings.withdrawn else [f"{number(ceilings.bandwidth_bytes_s / 1e9)} GB/s"]),
    ]
    return f"{ceilings.device_name}: {', '.join(standing) or 'no ceiling is known'}: {ceilings.says}"


def phases_table(rooflines: Sequence[CellRoofline]) -> Table:
    """One row per cell and phase that computes."""
    heads = heads_of(roofline.summary.cell for roofline in rooflines)
    table = _table(*(heading for heading, _, _ in heads), "config", "phase")
    for roofline in rooflines:
        cell = roofline.summary.cell
        names = *(of(cell) for _, _, of in heads), cell.config
        for part in roofline.phases:
            table.add_row(*map(Text, names), Text(part.name), *_figures(part, roofline))
            names = ("",) * len(names)
    return table


def layers_table(roofline: CellRoofline) -> Table:
    """One row per layer and direction."""
    table = _table("layer", "phase")
    for part in roofline.layers:
        table.add_row(Text(part.name), Text(part.phase), *_figures(part, roofline))
    return table


def _table(*names: str) -> Table:
    table = open_table()
    for name in names:
        table.add_column(name, justify="right" if name in ("batch", "ranks") else "left", overflow="fold")
    for heading in ("GFLOP", "MB", "FLOP/B", "least", "took", "GFLOP/s", "of roof"):
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def _figures(part: Part, roofline: CellRoofline) -> tuple[str, ...]:
    share = part.share_of_roof(roofline.ceilings, roofline.precision)
    least_s = part.least_s(roofline.ceilings, roofline.precision)
    return (
        number(part.flops / 1e9),
        number(part.bytes / 1e6),
        number(part.intensity),
        "" if least_s is None else milliseconds(least_s),
        "" if part.time_s is None else milliseconds(part.time_s),
        "" if part.flops_s is None or not part.flops else number(part.flops_s / 1e9),
        "" if share is None else percent(share, 0),
    )


def notes(rooflines: Sequence[CellRoofline]) -> list[str]:
    """Notes on how to read the tables."""
    lines = [
        "FLOP: a multiply-accumulate counts as two. MB: the least traffic, each operand moved once. least: the "
        "shortest time that the ceilings allow.",
        "A phase mixes layers limited by arithmetic and by bandwidth: below the roof itself, it may hold layers at it.",
    ]
    if any(not any(part.time_s for part in roofline.layers) for roofline in rooflines):
        lines.append("Layers have times only where a profile of the cell on the CPU is named beside the results.")
    if withdrawn := sorted(set().union(*(roofline.ceilings.withdrawn for roofline in rooflines))):
        lines.append(f"Withdrawn, since a phase or a layer ran faster: the ceiling of {listed(withdrawn)}.")
    if many_ranks(roofline.summary.cell for roofline in rooflines):
        lines.append("With many ranks: what each of them does and reaches, on its own device.")
    if any(roofline.summary.cell.device != "cpu" for roofline in rooflines):
        lines.append("On a GPU the time of a phase includes the GPU's waiting for the host.")
    return lines + doubtful((one.summary.cell.label, one.doubt) for one in rooflines)


def to_json(rooflines: Iterable[CellRoofline]) -> str:
    """Everything, with units in the names."""
    cells = list(map(_cell_json, rooflines))
    return encoded({"schema": SCHEMA, "schema_version": SCHEMA_VERSION, "cells": cells})


def _cell_json(roofline: CellRoofline) -> dict[str, Any]:
    cell, ceilings = roofline.summary.cell, roofline.ceilings

    def part_json(part: Part) -> dict[str, Any]:
        return {
            "name": part.name,
            "phase": part.phase,
            "flops": part.flops,
            "bytes": part.bytes,
            "flop_per_byte": part.intensity,
            "time_s": part.time_s,
            "flops_s": part.flops_s,
            "floor_s": part.least_s(ceilings, roofline.precision),
        }

    return {
        "machine": roofline.summary.machine,
        "model": cell.model,
        "config": cell.config,
        "batch_size": cell.batch_size,
        "ranks": cell.ranks,
        "image_size": cell.image_size,
        "variant": cell.variant,
        "device": cell.device,
        "precision": roofline.precision,
        "doubtful": roofline.doubt or None,
        "ceilings": {
            "device_name": ceilings.device_name,
            "flops_s": {name: rate for name, rate in ceilings.rates if name not in ceilings.withdrawn},
            "bandwidth_bytes_s": None if MEMORY in ceilings.withdrawn else ceilings.bandwidth_bytes_s,
            "withdrawn": sorted(ceilings.withdrawn),
            "measured": ceilings.measured,
            "says": ceilings.says,
        },
        "phases": [part_json(part) for part in roofline.phases],
        "layers": [part_json(part) for part in roofline.layers],
    }
