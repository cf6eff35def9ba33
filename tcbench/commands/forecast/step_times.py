"""Output of `tcbench forecast --device cpu`: the expected step of each cell on this machine, part by part."""

from collections.abc import Mapping
from typing import Any

from tcbench.analysis.advice import ON_HOST, modelled_rate
from tcbench.core.groups import grouped
from tcbench.core.record import BUSY, Cell
from tcbench.core.step_time import StepTime, StepTimeOrReason
from tcbench.run.plan import Plan
from tcbench.show.document import document, fields
from tcbench.show.format import counted, percent
from tcbench.show.naming import network_suffix, rate_unit
from tcbench.show.notes import Caution
from tcbench.show.tables import RATE, SECONDS, Column, ConfigTable

_Row = tuple[Cell, Any]
"""A cell, and its expected `StepTime` or the reason why that is unknown."""


def headline(plan: Plan) -> str:
    """Return the scenario, its network if there is only one, and the processor."""
    cell = plan.cells[0].cell
    network = network_suffix(planned.cell for planned in plan.cells)
    size = f"{cell.image_size}x{cell.image_size} pixels"
    return f"{plan.scenario.name}{network} on {plan.device.title}, {size}, {cell.threads} threads: expected, not run"


def table(predictions: Mapping[Cell, StepTimeOrReason]) -> ConfigTable[_Row]:
    """Return one row per cell: the time of each part of its step, and the resulting rate."""
    columns: list[Column[_Row]] = [
        Column("works", lambda row: row[1].device_s, SECONDS),
        Column("host", lambda row: row[1].host_s, SECONDS),
        Column("input", lambda row: row[1].input_s, SECONDS),
        Column("step", lambda row: row[1].step_s, SECONDS),
        Column(rate_unit(predictions), lambda row: modelled_rate(row[0].images_per_step, row[1]), RATE),
    ]
    rows = [*predictions.items()]
    return ConfigTable(
        columns, rows, cell=lambda row: row[0], why_no_figures=lambda row: "unknown" * isinstance(row[1], str)
    )


def reasons(plan: Plan, predictions: Mapping[Cell, StepTimeOrReason]) -> list[str]:
    """Return the reasons why cells have no figures, each with its configs, and what the plan leaves out."""
    unknown = [(f"Unknown: {answer}", cell.config) for cell, answer in predictions.items() if isinstance(answer, str)]
    skipped = [
        (f"Cannot run here: {planned.skip_reason}", planned.cell.config)
        for planned in plan.cells
        if planned.skip_reason
    ]
    lines = [f"{why} ({', '.join(dict.fromkeys(configs))})" for why, configs in grouped([*skipped, *unknown]).items()]
    return [*filter(None, [plan.left_out]), *lines]


def notes(predictions: Mapping[Cell, StepTimeOrReason]) -> list[str]:
    """Return the notes on how to read the table, and a caution if steps were timed on a busy machine."""
    parts = [answer for answer in predictions.values() if isinstance(answer, StepTime)]
    busy = [answer for answer in parts if answer.lost >= BUSY]
    lines = ["works: the operations that a step launches; host: the program that launches them."] * bool(parts)
    if len(busy) < len(parts):
        lines.append(
            f"Nine of ten steps lie within {percent(ON_HOST, 0)} of the expected step, as measured on two shared cores "
            "(docs/method.md)."
        )
    more = f"or more: {counted(len(busy), 'step was', 'steps were')} timed on a busy machine: too slow, and not cached."
    return [*[Caution(more)] * bool(busy), *lines]


def to_json(plan: Plan, predictions: Mapping[Cell, StepTimeOrReason]) -> str:
    """Return everything as JSON, with units in the names."""
    cells = [_cell_json(*row) for row in predictions.items()]
    names = {"scenario": plan.scenario.name, "device": plan.device.title}
    return document("tcbench-step-times", **names, cells=cells, notes=notes(predictions))


def _cell_json(cell: Cell, answer: StepTimeOrReason) -> dict[str, Any]:
    """Return one cell as JSON fields."""
    cell_json = fields(cell, "config batch_size image_size key") | {"cannot_run": None}
    if isinstance(answer, str):
        return cell_json | {"untraced": answer}
    rate = modelled_rate(cell.images_per_step, answer)
    return cell_json | {
        "untraced": None,
        **fields(answer, "works_s=device_s host_s input_s expected_s=step_s"),
        "images_per_s_expected": rate.value,
        "images_per_s_limits": [rate.low, None if answer.lost >= BUSY else rate.high],
    }
