"""The comparison as GitHub- and GitLab-flavoured Markdown, for a pull request's comment or a job's summary.

Cells that need attention stand on top, the rest is folded away. Text from a record is set in an HTML code element, and
its characters that mean something in Markdown or HTML become character references. These are never structure
(CommonMark 0.31, section 2.5), and nothing inside a code element becomes a mention or a reference to an issue."""

import re
from collections.abc import Iterable, Sequence

from tcbench.commands.compare.cell_report import CellReport, ComparisonReport, metric_with_unit
from tcbench.commands.compare.table import figure_columns
from tcbench.show.tables import COUNT, Column, Table

MOST_CHARACTERS = 60_000
"""Length limit of the text; GitHub rejects comments of more than 65536 characters."""

_FOLDED = ("pass", "new", "not measured")
"""Verdicts whose cells are folded away."""

_MOST_TEXT = 300
"""Number of characters of a record's text that are shown in one place."""


def markdown(report: ComparisonReport) -> str:
    """Return the comparison as Markdown of at most MOST_CHARACTERS. Cells that do not fit are counted."""
    alert = [cell for cell in report.cells if cell.verdict not in _FOLDED]
    rest = [cell for cell in report.cells if cell.verdict in _FOLDED]
    verdict = "regression" if report.failing else "inconclusive" if report.inconclusive else "no regression"
    verdict = "UNSTABLE" if report.unstable else "NOT SETTLED" if report.unsettled else verdict
    lines = [*report.mean_lines, *report.one_sided_lines, *report.power_lines, *report.machine_lines]
    lines += report.drift_lines
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
    """Return the table of these cells, line by line."""
    columns = (
        Column[CellReport](
            "config", lambda cell: " ".join(map(code, [cell.cell.config, *([f"({cell.where})"] * bool(cell.where))]))
        ),
        Column[CellReport](
            "batch", lambda cell: cell.cell.label.removeprefix(f"{cell.cell.config}, batch size "), COUNT
        ),
        Column[CellReport]("metric", lambda cell: metric_with_unit([cell])),
        *figure_columns(),
        Column[CellReport]("verdict", lambda cell: f"**{cell.verdict}**" if cell.failing else cell.verdict),
        Column[CellReport]("why", lambda cell: escaped(_why(cell))),
    )
    return Table(columns, cells).markdown() if cells else []


def _why(cell: CellReport) -> str:
    """Return the reason of a cell's verdict, and its ratio at the median step if slow steps change it; else empty."""
    median = f"ratio at the median step: {cell.median_step}" if cell.median_step else ""
    return "; ".join(filter(None, [cell.sentence if cell.explained else "", median]))


def _part(summary: str | None, rows: Iterable[str], room: int) -> str:
    """Return the rows as one text of at most `room` characters; rows that do not fit are counted.

    With `summary`, the rows are folded away under it. Without rows, return an empty text."""
    rows = list(rows)
    if not rows:
        return ""
    before = f"<details><summary>{summary}</summary>\n\n" if summary else ""
    after = "\n</details>\n\n" if summary else "\n"
    room_left = room - len(before) - len(after) - 80  # for the line that counts the others
    shown: list[str] = []
    for row in rows:
        room_left -= len(row) + 1
        if room_left < 0:
            break
        shown.append(row)
    missing = len(rows) - len(shown)
    more = f"\nand {missing} more that do not fit here\n" if missing else ""
    # The first two lines of a table are its heading.
    if not shown or (missing and len(shown) <= 2 and rows[0].startswith("| config |")):
        return f"{summary or 'Cells'}: {missing}, too many to list\n\n" if room > 80 else ""
    return before + "\n".join(shown) + "\n" + more + after


def code(text: str) -> str:
    """Return text of a record as an HTML code element."""
    return f"<code>{escaped(text)}</code>"


# Matches what is not safe: all but letters, digits, some punctuation, and underscores inside of words.
_SAFE = re.compile(r"[^\w +\-,.;=%()/]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def escaped(text: str) -> str:
    """Return the first _MOST_TEXT characters of a text, with character references for those that could be markup."""
    shown = text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
    shown = _SAFE.sub(lambda match: f"&#{ord(match[0])};", shown)
    # GitHub would turn a bare domain into a link.
    return re.sub(r"(?i)www\.", lambda match: f"{match[0][:-1]}&#46;", shown)
