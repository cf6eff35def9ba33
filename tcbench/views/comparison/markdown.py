"""The comparison as GitHub- and GitLab-flavoured Markdown: for a pull request's comment or a job's summary. What needs
attention stands on top, the rest is folded away. Text of a record goes into HTML's code element with everything that
Markdown or HTML would act on as character references: these never are structure (CommonMark 0.31, section 2.5), and
nothing inside a code element is a mention or a reference to an issue."""

import re
from collections.abc import Iterable, Sequence

from tcbench.analysis.compare import CellComparison, Comparison
from tcbench.present import sides
from tcbench.present.sides import UNNAMED, Labels
from tcbench.present.tables import COUNT, Column, Table
from tcbench.views.comparison import wording
from tcbench.views.comparison.table import Row, figures

MOST_CHARACTERS = 60_000
"""GitHub refuses a comment of more than 65536."""

_RESTED = ("pass", "new", "not measured")
"""Verdicts that are folded away."""

_MOST_TEXT = 300
"""Characters of a record's text in one place."""


def markdown(comparison: Comparison, labels: Labels = UNNAMED) -> str:
    """At most MOST_CHARACTERS long: what there is no room for is counted instead."""
    pairs = list(zip(comparison.cells, wording.wheres(comparison.cells), strict=True))
    alert = [pair for pair in pairs if pair[0].verdict not in _RESTED]
    rest = [pair for pair in pairs if pair[0].verdict in _RESTED]
    verdict = "regression" if comparison.failing else "inconclusive" if comparison.inconclusive else "no regression"
    verdict = "NOT SETTLED" if comparison.unsettled else verdict
    head = [
        f"### tcbench: {verdict}",
        "",
        f"{code(labels.current)} against {code(labels.base)}: {wording.headline(comparison)}.",
        "",
        *(f"- {wording.mean(mean)}" for mean in comparison.means),
        *(
            f"- {line}"
            for line in (say(comparison) for say in (wording.one_sided, wording.power, wording.drift))
            if line
        ),
        *(f"- allowed to differ: {code(line)}" for line in sides.allowed(comparison.differences)),
        *(f"- {code(note)}" for note in comparison.notes[:20]),
        "",
    ]
    doubts = wording.doubts(comparison)
    if len(doubts) > 50:
        doubts = wording.doubts_in_short(comparison)
    room = MOST_CHARACTERS - sum(len(line) + 1 for line in head)
    parts = ""
    for summary, lines in (
        (None, _table(alert)),
        ("Cells without a regression", _table(rest)),
        ("Doubtful trials", [f"- {code(line)}" for line in doubts]),
    ):
        parts += _part(summary, lines, room - len(parts))
    return "\n".join(head) + "\n" + parts


def _table(cells: Sequence[Row]) -> list[str]:
    columns = (
        Column[Row]("config", lambda row: code(row[0].cell.config) + (f" {code(f'({row[1]})')}" if row[1] else "")),
        Column[Row]("batch", lambda row: row[0].cell.label.removeprefix(f"{row[0].cell.config}, batch size "), COUNT),
        Column[Row]("metric", lambda row: wording.titled(row[0].metric, [row[0].cell])),
        *figures(),
        Column[Row]("verdict", lambda row: f"**{row[0].verdict}**" if row[0].failing else row[0].verdict),
        Column[Row]("why", lambda row: escaped("; ".join(_why(row[0])))),
    )
    return Table(columns, cells).markdown() if cells else []


def _why(cell: CellComparison) -> list[str]:
    median = wording.median_step(cell)
    said = [wording.sentence(cell)] if cell.verdict != "pass" or cell.slower_phases else []
    return [*said, *([f"at the median step {median}"] if median else [])]


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
