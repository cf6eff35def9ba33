"""Output of `tcbench forecast --device cpu`: the step to expect of each cell on this machine, by its parts."""

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
"""A cell and the parts of its step, or why they are not known."""


def headline(plan: Plan) -> str:
    """The scenario, its network where there is one alone, and the processor."""
    cell = plan.cells[0].cell
    network = network_suffix(each.cell for each in plan.cells)
    size = f"{cell.image_size}x{cell.image_size} pixels"
    return f"{plan.scenario.name}{network} on {plan.device.title}, {size}, {cell.threads} threads: expected, not run"


def table(told: Mapping[Cell, StepTimeOrReason]) -> ConfigTable[_Row]:
    """One row per cell: what each part of its step takes, and the rate that they make."""
    columns: list[Column[_Row]] = [
        Column("works", lambda row: row[1].device_s, SECONDS),
        Column("host", lambda row: row[1].host_s, SECONDS),
        Column("input", lambda row: row[1].input_s, SECONDS),
        Column("step", lambda row: row[1].step_s, SECONDS),
        Column(rate_unit(told), lambda row: modelled_rate(row[0].images_per_step, row[1]), RATE),
    ]
    rows = [*told.items()]
    return ConfigTable(columns, rows, cell=lambda row: row[0], instead=lambda row: "unknown" * isinstance(row[1], str))


def reasons(plan: Plan, told: Mapping[Cell, StepTimeOrReason]) -> list[str]:
    """Why cells are left out, each reason with the configs concerned."""
    unknown = [(f"Unknown: {answer}", cell.config) for cell, answer in told.items() if isinstance(answer, str)]
    skipped = [(f"Cannot run here: {each.skip_reason}", each.cell.config) for each in plan.cells if each.skip_reason]
    lines = [f"{why} ({', '.join(dict.fromkeys(which))})" for why, which in grouped([*skipped, *unknown]).items()]
    return [*filter(None, [plan.left_out]), *lines]


def notes(told: Mapping[Cell, StepTimeOrReason]) -> list[str]:
    """How to read the table."""
    known = [answer for answer in told.values() if isinstance(answer, StepTime)]
    busy = [answer for answer in known if answer.lost >= BUSY]
    lines = ["works: what a step launches, in its order; host: the program that launches it."] * bool(known)
    if len(busy) < len(known):
        lines.append(
            f"Nine of ten steps lie within {percent(ON_HOST, 0)} of the step that is expected, as measured on two "
            "shared cores (docs/method.md)."
        )
    more = f"or more: {counted(len(busy), 'step was', 'steps were')} timed on a busy machine: too slow, and not kept."
    return [*[Caution(more)] * bool(busy), *lines]


def to_json(plan: Plan, told: Mapping[Cell, StepTimeOrReason]) -> str:
    """Everything, with units in the names."""
    cells = [_cell_json(*row) for row in told.items()]
    of = {"scenario": plan.scenario.name, "device": plan.device.title}
    return document("tcbench-step-times", **of, cells=cells, notes=notes(told))


def _cell_json(cell: Cell, answer: StepTimeOrReason) -> dict[str, Any]:
    value = fields(cell, "config batch_size image_size key") | {"cannot_run": None}
    if isinstance(answer, str):
        return value | {"untraced": answer}
    rate = modelled_rate(cell.images_per_step, answer)
    return value | {
        "untraced": None,
        **fields(answer, "works_s=device_s host_s input_s expected_s=step_s"),
        "images_per_s_expected": rate.value,
        "images_per_s_limits": [rate.low, None if answer.lost >= BUSY else rate.high],
    }
