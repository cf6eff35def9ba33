"""The comparison as GitHub- and GitLab-flavoured Markdown: for a pull request's comment or a job's summary. What needs
attention stands on top, the rest is folded away. Text of a record goes into HTML's code element with everything that
Markdown or HTML would act on as character references: these never are structure (CommonMark 0.31, section 2.5), and
nothing inside a code element is a mention or a reference to an issue."""

import re
from collections.abc import Iterable, Sequence

from tcbench.commands.compare.cell_report import CellReport, ComparisonReport, titled
from tcbench.commands.compare.table import figures
from tcbench.show.tables import COUNT, Column, Table

MOST_CHARACTERS = 60_000
"""GitHub refuses a comment of more than 65536."""

_RESTED = ("pass", "new", "not measured")
"""Verdicts that are folded away."""

_MOST_TEXT = 300
"""Characters of a record's text in one place."""


def markdown(report: ComparisonReport) -> str:
    """At most MOST_CHARACTERS long: what there is no room for is counted instead."""
    alert = [cell for cell in report.cells if cell.verdict not in _RESTED]
    rest = [cell for cell in report.cells if cell.verdict in _RESTED]
    verdict = "regression" if report.failing else "inconclusive" if report.inconclusive else "no regression"
    verdict = "NOT SETTLED" if report.unsettled else verdict
    lines = [*report.mean_lines, *report.one_sided_lines, *report.power_lines, *report.drift_lines]
    head = [
        f"### tcbench: {verdict}",
        "",
        f"{code(report.labels.current)} against {code(report.labels.base)}: {report.headline}.",
        "",
        *(f"- {line}" for line in lines),
        *(f"- allowed to differ: {code(line)}" for line in report.allowed()),
        *(f"- {code(note)}" for note in report.notes[:20]),
        "",
    ]
    room = MOST_CHARACTERS - sum(len(line) + 1 for line in head)
    parts = ""
    for summary, lines in (
        (None, _table(alert)),
        ("Cells without a regression", _table(rest)),
        ("Doubtful trials", [f"- {code(line)}" for line in report.doubts(50)]),
    ):
        parts += _part(summary, lines, room - len(parts))
    return "\n".join(head) + "\n" + parts


def _table(cells: Sequence[CellReport]) -> list[str]:
    columns = (
        Column[CellReport](
            "config", lambda one: " ".join(map(code, [one.cell.config, *([f"({one.where})"] * bool(one.where))]))
        ),
        Column[CellReport]("batch", lambda one: one.cell.label.removeprefix(f"{one.cell.config}, batch size "), COUNT),
        Column[CellReport]("metric", lambda one: titled([one])),
        *figures(),
        Column[CellReport]("verdict", lambda one: f"**{one.verdict}**" if one.failing else one.verdict),
        Column[CellReport]("why", lambda one: escaped(_why(one))),
    )
    return Table(columns, cells).markdown() if cells else []


def _why(cell: CellReport) -> str:
    median = f"at the median step {cell.median_step}" if cell.median_step else ""
    return "; ".join(filter(None, [cell.sentence if cell.explained else "", median]))


def _part(summary: str | None, rows: Iterable[str], room: int) -> str:
    """Rows, folded away under `summary` where there is one; those beyond `room` characters are counted."""
    rows = list(rows)
    if not rows:
        return ""
    before = f"<details><summary>{summary}</summary>\n\n" if summary else ""
    after = "\n</details>\n\n" if summary else "\n"
    left = room - len(before) - len(after) - 80
    kept: list[str] = []
    for row in rows:
        left -= len(row) + 1
        if left < 0:
            break
        kept.append(row)
    missing = len(rows) - len(kept)
    more = f"\nand {missing} more, for which there is no room\n" if missing else ""
    # Of a table the first two lines are no rows.
    if not kept or (missing and len(kept) <= 2 and rows[0].startswith("| config |")):
        return f"{summary or 'Cells'}: {missing}, no room to list them\n\n" if room > 80 else ""
    return before + "\n".join(kept) + "\n" + more + after


def code(text: str) -> str:
    """A record's text, set as code."""
    return f"<code>{escaped(text)}</code>"


_SAFE = re.compile(r"[^\w +\-,.;=%()/]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escaped(text: str) -> str:
    """A record's text as text: every character that could be structure is a character reference."""
    shown = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
    shown = _SAFE.sub(lambda match: f"&#{ord(match[0])};", shown)
    # A bare domain would become a link.
    return re.sub(r"(?i)www\.", lambda match: f"{match[0][:-1]}&#46;", shown)
