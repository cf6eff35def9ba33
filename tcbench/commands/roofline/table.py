"""The tables of `tcbench roofline`, of phases and layers, and its JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from tcbench.commands.roofline.roofline import CellRoofline, WorkPart
from tcbench.engine.api import Ceilings
from tcbench.show.bottlenecks import doubt_words, doubtful
from tcbench.show.document import document, fields
from tcbench.show.format import number
from tcbench.show.tables import NUMBER, SECONDS, WHOLE_SHARE, Column, Table, cell_columns, many_ranks


def headline(ceilings: Ceilings) -> str:
    """Return a line with a device's name, its ceilings of arithmetic and memory, and where they are from."""
    rates = [f"{number(rate / 1e9)} GFLOP/s ({name})" for name, rate in _flops_s(ceilings).items()]
    rates.append(f"{number(ceilings.memory_bytes_s / 1e9)} GB/s")
    return f"{ceilings.device_name}: {', '.join(rates)}: {'; '.join([ceilings.says, *raised_ceilings(ceilings)])}"


def raised_ceilings(ceilings: Ceilings) -> list[str]:
    """Return a line for each ceiling that a step exceeded and thereby raised."""
    return [f"ceiling of {name} raised to the rate of {rate.part}" for name, rate in sorted(ceilings.reached.items())]


def _flops_s(ceilings: Ceilings) -> dict[str, float]:
    return {name: ceilings.peak_flops_s(name) for name in ceilings.flops_s}


_Row = tuple[CellRoofline, WorkPart]


def phases_table(rooflines: Sequence[CellRoofline]) -> Table[_Row]:
    """Return a table with a row per cell and phase. A cell is named in its first row."""
    columns = (
        *cell_columns((roofline.summary.cell for roofline in rooflines), lambda row: row[0].summary.cell),
        Column[_Row]("config", lambda row: row[0].summary.cell.config),
    )

    def first(column: Column[_Row]) -> Column[_Row]:
        return replace(column, value=lambda row: column.value(row) if row[1] is row[0].phases[0] else None)

    rows = [(roofline, part) for roofline in rooflines for part in roofline.phases]
    return Table((*map(first, columns), Column[_Row]("phase", lambda row: row[1].name), *_FIGURES), rows)


def layers_table(roofline: CellRoofline) -> Table[_Row]:
    """Return a table with a row per layer and phase."""
    names = (Column[_Row]("layer", lambda row: row[1].name), Column[_Row]("phase", lambda row: row[1].phase))
    return Table((*names, *_FIGURES), [(roofline, part) for part in roofline.layers])


_FIGURES: tuple[Column[_Row], ...] = (
    Column("GFLOP", lambda row: row[1].flops / 1e9, NUMBER, spare=True),
    Column("MB", lambda row: row[1].bytes / 1e6, NUMBER, spare=True),
    Column("FLOP/B", lambda row: row[1].intensity, NUMBER),
    Column("least", lambda row: row[1].least_s(row[0].ceilings, row[0].precision), SECONDS, spare=True),
    Column("took", lambda row: row[1].time_s, SECONDS),
    Column("GFLOP/s", lambda row: row[1].flops_s / 1e9 if row[1].flops and row[1].flops_s else None, NUMBER),
    Column("of roof", lambda row: row[1].share_of_roof(row[0].ceilings, row[0].precision), WHOLE_SHARE),
)


def notes(rooflines: Sequence[CellRoofline], n_cells: int = 0, *, layers: bool = False) -> list[str]:
    """Return notes on how to read the tables.

    `rooflines` are the cells shown, out of `n_cells`; `layers` means that layers are shown too."""
    lines = [
        "FLOP: a multiply-accumulate counts as two. MB: each operand moved once. least: the shortest time that the "
        "ceilings allow. A phase below the roof may contain layers at it."
    ]
    if len(rooflines) < n_cells:
        lines.insert(
            0, f"For each batch size, only the base and the fastest of each precision; --all shows all {n_cells} cells."
        )
    if layers and any(r.layers and not any(part.time_s for part in r.layers) for r in rooflines):
        lines.append("Layers have times only if you also name a CPU profile of the cell.")
    if many_ranks(roofline.summary.cell for roofline in rooflines):
        lines.append("With several ranks, figures are per rank, each on its own device.")
    if any(roofline.summary.cell.device != "cpu" for roofline in rooflines):
        lines.append("On a GPU, the time of a phase includes the GPU's waits for the host.")
    return lines + doubtful((roofline.summary.cell.label, roofline.bottleneck) for roofline in rooflines)


def to_json(rooflines: Iterable[CellRoofline]) -> str:
    """Return the rooflines as JSON."""
    return document("tcbench-roofline", cells=list(map(_cell_json, rooflines)))


def _cell_json(roofline: CellRoofline) -> dict[str, Any]:
    """Return one cell's roofline as JSON: its ceilings, phases and layers."""
    ceilings = roofline.ceilings

    def part_json(part: WorkPart) -> dict[str, Any]:
        """Return the figures of a layer or phase, with its least time under the roofline."""
        figures = fields(part, "name phase flops bytes flop_per_byte=intensity time_s flops_s")
        return figures | {"floor_s": part.least_s(ceilings, roofline.precision)}

    return {
        "machine": roofline.summary.machine,
        **fields(roofline.summary.cell, "model config batch_size ranks"),
        **({} if roofline.summary.cell.is_own else fields(roofline.summary.cell, "image_size variant")),
        **fields(roofline.summary.cell, "device"),
        "precision": roofline.precision,
        "doubtful": doubt_words(roofline.bottleneck) or None,
        "ceilings": {
            "device_name": ceilings.device_name,
            "flops_s": _flops_s(ceilings),
            "bandwidth_bytes_s": ceilings.memory_bytes_s,
            "reached_by": {name: rate.part for name, rate in sorted(ceilings.reached.items())},
            **fields(ceilings, "measured says processor_time_lost=lost"),
        },
        "phases": list(map(part_json, roofline.phases)),
        "layers": list(map(part_json, roofline.layers)),
    }
