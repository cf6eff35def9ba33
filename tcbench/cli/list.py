"""`tcbench list`: the scenarios, configs and rungs there are."""

from __future__ import annotations

from typing import Annotated

import typer

from tcbench.cli.app import command


@command("Show scenarios, configs and rungs.", name="list")
def list_(
    json: Annotated[bool, typer.Option("--json", help="As JSON.")] = False,
) -> None:
    """Show the scenarios with their configs, and the rungs: what each needs, and whether this machine has it."""
    from tcbench.accelerators import device
    from tcbench.backends import device_kinds
    from tcbench.show import catalogue

    catalogue.show(device.find("auto", device_kinds()), json)
