"""The comparison as GitHub's workflow commands: lines on standard output that become annotations of the job, escaped as
in GitHub's toolkit (https://github.com/actions/toolkit, packages/core/src/command.ts)."""

from collections.abc import Sequence
from typing import Literal

from tcbench.analysis.compare import CellComparison, Comparison
from tcbench.present.sides import UNNAMED, Labels
from tcbench.views.comparison import wording

MOST_OF_A_KIND = 10
"""GitHub shows so many errors, warnings and notices of a step; the rest it drops without a word."""

Kind = Literal["error", "warning", "notice"]


def github(comparison: Comparison, labels: Labels = UNNAMED) -> str:
    """Errors for what fails, warnings for what is inconclusive, notices for other changes; at the end the counts."""
    kinds: dict[Kind, list[tuple[CellComparison, str]]] = {"error": [], "warning": [], "notice": []}
    for cell, name in zip(comparison.cells, wording.names(comparison.cells), strict=True):
        kind = _kind(cell)
        if kind is not None:
            kinds[kind].append((cell, name))
    lines = [line for kind, cells in kinds.items() for line in _annotations(kind, cells)]
    parts = [wording.headline(comparison), *map(wording.mean, comparison.means), wording.power(comparison)]
    says = "; ".join(filter(None, parts))
    lines.append(command("notice", "tcbench", f"{labels.current} against {labels.base}: {says}"))
    return "\n".join(lines) + "\n"


def _kind(cell: CellComparison) -> Kind | None:
    if cell.failing:
        return "error"
    if cell.verdict == "inconclusive":
        return "warning"
    return "notice" if cell.verdict in ("improved", "changed status", "missing") else None


def _annotations(kind: Kind, cells: Sequence[tuple[CellComparison, str]]) -> list[str]:
    # One notice is the count of verdicts.
    most = MOST_OF_A_KIND - (kind == "notice")
    shown = cells if len(cells) <= most else cells[: most - 1]
    lines = [command(kind, f"tcbench: {cell.verdict}", f"{name}: {wording.sentence(cell)}") for cell, name in shown]
    if len(shown) < len(cells):
        rest = [f"{name} ({cell.verdict})" for cell, name in cells[len(shown) :]]
        lines.append(command(kind, f"tcbench: {len(rest)} more", "\n".join(rest)))
    return lines


def command(kind: Kind, title: str, message: str) -> str:
    """One workflow command. A message may have several lines."""
    data = message.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    value = title.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A").replace(":", "%3A").replace(",", "%2C")
    return f"::{kind} title={value}::{data}"
