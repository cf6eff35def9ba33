"""`tcbench doctor`: whether this machine is ready to run and to measure."""

import typer

from tcbench.show import options
from tcbench.show.app import OUT, command


@command("Check this machine, and show how to fix what is missing.")
def doctor(format_: options.TableOrJson = options.FORMAT) -> None:
    """Check what is installed here, what is missing, and what would spoil a measurement; show the command that fixes
    each.

    Exit code: 0; 1 if tcbench cannot run at all; 2 if CUDA packages are installed but cannot be used here."""
    from tcbench.commands.doctor import table
    from tcbench.run import checkup

    findings = checkup.examine(OUT)
    table.show_findings(findings, format_ == "json")
    if code := checkup.exit_code(findings):
        raise typer.Exit(code)
