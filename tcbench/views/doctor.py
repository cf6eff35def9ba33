"""Output of `tcbench doctor`."""

from __future__ import annotations

from collections.abc import Sequence

import typer
from rich.text import Text

from tcbench.core.finding import Finding
from tcbench.present.tables import make_console, open_table, versioned

_MARKS = {
    "ok": ("ok", "green"),
    "note": ("note", "cyan"),
    "missing": ("missing", "yellow"),
    "unusable": ("unusable", "red"),
    "broken": ("broken", "red"),
}


def show_findings(findings: Sequence[Finding], as_json: bool) -> None:
    """The doctor's findings, each with the command that fixes it."""
    if as_json:
        rows = [{"state": f.state, "what": f.subject, "found": f.detail, "mend": f.remedy} for f in findings]
        typer.echo(versioned(findings=rows))
        return
    console = make_console()
    table = open_table(show_header=False)
    table.add_column(no_wrap=True)
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for finding in findings:
        mark, style = _MARKS[finding.state]
        text = Text(finding.detail)
        if finding.remedy:
            text.append(f"\n-> {finding.remedy}", style="bold")
        table.add_row(Text(mark, style=style), finding.subject, text)
    console.print(table)
