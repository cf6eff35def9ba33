"""The output of `tcbench doctor`."""

from collections.abc import Sequence

import typer
from rich.text import Text

from tcbench.core.finding import Finding
from tcbench.show.console import make_console
from tcbench.show.document import fields, versioned
from tcbench.show.tables import Column, Table

_STYLES = {"ok": "green", "note": "cyan", "missing": "yellow", "unusable": "red", "broken": "red"}


def show_findings(findings: Sequence[Finding], as_json: bool) -> None:
    """Print findings, each with the command that fixes it."""
    if as_json:
        rows = [fields(finding, "state what=subject found=detail mend=remedy") for finding in findings]
        typer.echo(versioned(findings=rows))
        return
    make_console().print(Table(_COLUMNS, findings, header=None))


def _detail(finding: Finding) -> Text:
    """Return a finding's detail, and the command that fixes it."""
    text = Text(finding.detail)
    return text.append(f"\n-> {finding.remedy}", style="bold") if finding.remedy else text


_COLUMNS: tuple[Column[Finding], ...] = (
    Column("", lambda finding: finding.state, style=lambda finding: _STYLES[finding.state], wraps=False),
    Column("", lambda finding: finding.subject, wraps=False),
    Column("", _detail),
)
