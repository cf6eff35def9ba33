"""The small commands: `tcbench list`, `doctor`, `data make`."""

from __future__ import annotations

from typing import Annotated

import typer

from tcbench.cli.app import OUT, GroupedCommand, command, data_app


@command("Show scenarios, configs and rungs.", name="list")
def list_(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show scenarios, their configs, and the rungs with what each needs and whether it is here."""
    from tcbench.accelerators import device
    from tcbench.backends import device_kinds
    from tcbench.show import catalogue

    catalogue.show(device.find("auto", device_kinds()), json)


@data_app.command("make", cls=GroupedCommand)
def data_make(
    force: Annotated[bool, typer.Option("--force", help="Make it anew even if it is there.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Generate the JPEG set that runs read by default (about 60 MB in the user's cache)."""
    from tcbench.backends.feeds import generated
    from tcbench.show.console import make_console
    from tcbench.show.progress import counting

    with counting(make_console(stderr=True), "generating JPEGs", quiet) as advance:
        made = generated.generate(progress=advance) if force else generated.ensure_generated(advance)
    typer.echo(f"{len(made.files)} images in {len(made.classes)} classes: {made.root}")


@command("Say what is missing here and what mends it.")
def doctor(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Say what was found here, what is missing, what would spoil a measurement, and the command that mends it.

    Exit code: 0; 1 when tcbench cannot run at all; 2 when CUDA packages are installed but cannot be used here.
    """
    from tcbench.run import checkup
    from tcbench.show import catalogue

    findings = checkup.examine(OUT)
    catalogue.show_findings(findings, json)
    if code := checkup.exit_code(findings):
        raise typer.Exit(code)
