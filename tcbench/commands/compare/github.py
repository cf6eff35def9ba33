"""The comparison as GitHub workflow commands, lines that become annotations of the job.

They are escaped as in GitHub's toolkit (https://github.com/actions/toolkit, packages/core/src/command.ts)."""

from collections.abc import Sequence
from typing import Literal, get_args

from tcbench.commands.compare.cell_report import CellReport, ComparisonReport
from tcbench.core.groups import grouped

MOST_OF_A_KIND = 10
"""Number of errors, warnings or notices that GitHub shows per step; it silently drops the rest."""

Kind = Literal["error", "warning", "notice"]


def github(report: ComparisonReport) -> str:
    """Return errors for failing cells, warnings for inconclusive ones, notices for other changes, and the counts."""
    cells = grouped((_kind(cell), cell) for cell in report.cells)
    lines = [line for kind in get_args(Kind) for line in _annotations(kind, cells.get(kind, ()))]
    says = "; ".join([report.headline, *report.mean_lines, *report.power_lines, *report.machine_lines])
    lines.append(command("notice", "tcbench", f"{report.labels.current} against {report.labels.base}: {says}"))
    return "\n".join(lines) + "\n"


def _kind(cell: CellReport) -> Kind | None:
    """Return the kind of a cell's annotation, or None if it needs none."""
    if cell.failing:
        return "error"
    if cell.verdict in ("inconclusive", "unstable"):
        return "warning"
    return "notice" if cell.verdict in ("improved", "changed status", "missing") else None


def _annotations(kind: Kind, cells: Sequence[CellReport]) -> list[str]:
    """Return the workflow commands of one kind, one per cell; cells beyond GitHub's limit share the last one."""
    most = MOST_OF_A_KIND - (kind == "notice")  # the last notice has the count of verdicts
    shown = cells if len(cells) <= most else cells[: most - 1]
    lines = [command(kind, f"tcbench: {cell.verdict}", f"{cell.name}: {cell.sentence}") for cell in shown]
    if len(shown) < len(cells):
        rest = [f"{cell.name} ({cell.verdict})" for cell in cells[len(shown) :]]
        lines.append(command(kind, f"tcbench: {len(rest)} more", "\n".join(rest)))
    return lines


def command(kind: Kind, title: str, message: str) -> str:
    """Return one workflow command. The message may have several lines."""
    data = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    value = title.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={value}::{data}"
