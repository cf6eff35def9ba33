"""`tcbench forecast`: memory, launches and images/s of a scenario on a GPU that is not here."""

from __future__ import annotations

from typing import Annotated

import typer

from tcbench.cli.app import INTERRUPTED, command
from tcbench.cli.options import (
    WHAT,
    WHERE,
    BatchSizesOption,
    ConfigOption,
    ImageSizeOption,
    batch_sizes,
    complete_gpu,
    complete_scenario,
    config_names,
)


@command(
    "Forecast a scenario's needs and speed on a GPU that is not here.",
    """
tcbench forecast --gpu H200                        the talk's matrix on an H200
tcbench forecast --gpu V100 --bs 128,256           ...on the talk's own GPU: what fits into its 16 GB
tcbench forecast beyond --gpu B200 --config '*cuda_graph*' --details
tcbench forecast --gpu my-gpu.json --json
""",
)
def forecast(
    gpu: Annotated[
        str,
        typer.Option(
            metavar="GPU",
            help="V100, T4, A100, L40S, H100, H200, B200, or a JSON file with the same fields.",
            autocompletion=complete_gpu,
            rich_help_panel=WHAT,
        ),
    ],
    scenario: Annotated[
        str,
        typer.Argument(
            metavar="SCENARIO",
            help="A scenario's name or the path of a TOML file.",
            autocompletion=complete_scenario,
        ),
    ] = "naruse2018",
    bs: BatchSizesOption = None,
    config: ConfigOption = None,
    image_size: ImageSizeOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compute again, ignoring kept results.", rich_help_panel=WHAT)
    ] = False,
    details: Annotated[
        bool, typer.Option("--details", help="Also list every operation of every cell.", rich_help_panel=WHERE)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=WHERE)] = False,
    json: Annotated[bool, typer.Option("--json", help="Everything as JSON.", rich_help_panel=WHERE)] = False,
) -> None:
    """Forecast, without any GPU, what each cell would need on one: whether cuDNN has a plan for every operation there,
    how much of the card's memory a step takes, its operations and bytes, the least time that these imply, and the time
    to expect.

    Exit code: 0, also when a cell does not fit (that is an answer); 2 for a mistake in
    the command, the scenario or the GPU's file.
    """
    from tcbench.accelerators import device
    from tcbench.hardware import gpus
    from tcbench.run import forecast as forecasts
    from tcbench.run import plan
    from tcbench.run import scenario as scenarios
    from tcbench.show import forecast as view
    from tcbench.show.console import make_console
    from tcbench.show.progress import Stages

    there = gpus.load(gpu)
    _, its_device = device.absent(there)
    selection = plan.Selection(batch_sizes=batch_sizes(bs), configs=config_names(config), image_size=image_size)
    planned = plan.make(scenarios.load(scenario), selection, its_device, remote=True)
    try:
        with Stages(make_console(stderr=True), quiet) as stages:
            result = forecasts.forecast(planned, there, fresh=fresh, progress=stages.advance)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; what is finished is kept: the same command continues from there", err=True)
        raise typer.Exit(INTERRUPTED) from None
    if json:
        typer.echo(view.to_json(result))
        return
    console = make_console(least=view.WIDTH)

    def say(line: str, style: str = "") -> None:
        console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)

    if details:
        for heading, works in view.details(result):
            say(heading, "bold")
            console.print(works)
            console.print()
    say(view.headline(result))
    console.print()
    console.print(view.table(result))
    console.print()
    for line in view.reasons(result):
        say(line, "yellow")
    for line in view.notes(result):
        say(line, "dim")
    say(view.verdict(result))
