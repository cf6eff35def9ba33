"""`tcbench forecast`: memory, launches and images/s of a scenario on a GPU that is not here, and on many ranks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tcbench.core.errors import SelectionError
from tcbench.present.app import INTERRUPTED, OUT, command
from tcbench.present.options import (
    ANOTHER_FILE,
    RANKS,
    RUN,
    WHAT,
    WHERE,
    BatchSizesOption,
    ConfigOption,
    FormatOption,
    ImageSizeOption,
    ModelOption,
    ResultsFolderOption,
    batch_sizes,
    complete_gpu,
    complete_network,
    complete_scenario,
    config_names,
    model_names,
    output_option,
    rank_counts,
    takes,
)

if TYPE_CHECKING:
    from tcbench.core.record import Record
    from tcbench.hardware.networks import RankNetwork
    from tcbench.run.forecast import Forecast
    from tcbench.run.scale_out import ScaleOut

MANY = "Many ranks"
_NETWORKS = "dgx-1, dgx-a100, dgx-h100, abci, big-basin, mn-1, p40-100gbe"


@command(
    "Forecast a scenario's needs and speed on a GPU that is not here.",
    """
tcbench forecast --gpu H200                        the talk's matrix on an H200
tcbench forecast --gpu V100 --bs 128,256           ...on the talk's own GPU: what fits into its 16 GB
tcbench forecast beyond --gpu B200 --config '*cuda_graph*' --details
tcbench forecast --gpu my-gpu.json --json
tcbench forecast --gpu V100 --bs 32 --ranks 8,64,1024,4096 --link abci    many ranks, by a model of the all-reduce
tcbench forecast --over results --ranks 8,64 --link 12.5,10               ...from steps that were measured
""",
)
def forecast(
    gpu: Annotated[
        str | None,
        typer.Option(
            metavar="GPU",
            callback=takes("a GPU that `tcbench list --gpus` shows, or a JSON file of one"),
            help="V100, T4, A100, L40S, H100, H200, B200, or a JSON file with the same fields. Default: none; this or "
            "--over is needed.",
            autocompletion=complete_gpu,
            rich_help_panel=WHAT,
        ),
    ] = None,
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
    model: ModelOption = None,
    image_size: ImageSizeOption = None,
    fresh: Annotated[
        bool, typer.Option("--fresh", help="Compute again, ignoring kept results.", rich_help_panel=WHAT)
    ] = False,
    ranks: Annotated[
        str | None,
        typer.Option(
            metavar="N,N,...",
            help="The same step on so many ranks. Default: one.",
            callback=RANKS,
            rich_help_panel=MANY,
        ),
    ] = None,
    link: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            callback=takes(f"{_NETWORKS}, or two numbers above 0: GB/s and microseconds"),
            help=f"The network between them: {_NETWORKS}; or "
            "bandwidth,latency in GB/s and microseconds, such as 12.5,10. Default: none; --ranks needs it.",
            autocompletion=complete_network,
            rich_help_panel=MANY,
        ),
    ] = None,
    over: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RESULTS",
            callback=RUN,
            help="In place of --gpu, steps that were measured: a file or folder of records, or the id of a run.",
            rich_help_panel=MANY,
        ),
    ] = None,
    out: ResultsFolderOption = OUT,
    output: Annotated[
        Path | None, output_option("Of many ranks also a chart: .png, .svg or .pdf. Default: none.")
    ] = None,
    details: Annotated[
        bool, typer.Option("--details", help="Also list every operation of every cell.", rich_help_panel=WHERE)
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.", rich_help_panel=WHERE)] = False,
    format_: FormatOption = "table",
) -> None:
    """Forecast, without any GPU, what each cell would need on one: whether cuDNN has a plan for every operation there,
    how much of the card's memory a step takes, its operations and bytes, the least time that these imply, and the time
    to expect. With --ranks, the step on many of them instead: images/s, efficiency, time and energy to train, by a
    model of the all-reduce; of the fastest config at each batch size, unless --config names others.

    Exit code: 0, also when a cell does not fit (that is an answer); 2 for a mistake in
    the command, the scenario or the GPU's file.
    """
    from tcbench.hardware import networks

    sizes, network = rank_counts(ranks), None if link is None else networks.load(link)
    if (sizes is None) != (network is None):
        raise SelectionError("--ranks and --link go together, such as --ranks 8,64 --link abci")
    if sizes is None and (over or output):
        raise SelectionError("--over and -o are of many ranks: give --ranks and --link too")
    if gpu is not None and over:
        raise SelectionError("expected --gpu or --over RESULTS, got both")
    if gpu is None and not over:
        raise SelectionError("expected --gpu, such as --gpu V100" + (", or --over RESULTS" if sizes else ""))
    if output is not None:
        from tcbench.present.charts.files import check_path

        check_path(output)
    if over:
        _refuse({"--model": model, "--details": details, "--fresh": fresh, "--image-size": image_size})
        from tcbench.present.results import read

        assert sizes is not None
        assert network is not None
        scaled = _measured(read(over, out), batch_sizes(bs), config_names(config), sizes, network)
        _print_ranks(scaled, format_ == "json", output)
        return
    assert gpu is not None
    result = _forecast(
        gpu, scenario, batch_sizes(bs), config_names(config), model_names(model), image_size, fresh, quiet
    )
    if sizes is not None and network is not None:
        from tcbench.run import scale_out

        bases, left_out = scale_out.forecast(result, all_configs=bool(config))
        _print_ranks(scale_out.scale_out(bases, sizes, network, left_out), format_ == "json", output)
        return
    _print(result, details, format_ == "json")


def _refuse(given: dict[str, object]) -> None:
    """Raises SelectionError for an option that has no meaning with --over."""
    for name, value in given.items():
        if value:
            raise SelectionError(f"{name}: has no meaning with --over: nothing is forecast but the all-reduce")


def _forecast(
    gpu: str,
    scenario: str,
    sizes: tuple[int, ...] | None,
    configs: tuple[str, ...],
    models: tuple[str, ...] | None,
    image_size: int | None,
    fresh: bool,
    quiet: bool,
) -> Forecast:
    from tcbench.engine.accelerators import device
    from tcbench.hardware import gpus
    from tcbench.present.progress import Stages
    from tcbench.present.tables import make_console
    from tcbench.run import forecast as forecasts
    from tcbench.run import plan
    from tcbench.run import scenario as scenarios

    there = gpus.load(gpu)
    _, its_device = device.absent(there)
    selection = plan.Selection(batch_sizes=sizes, models=models, configs=configs, image_size=image_size)
    planned = plan.make(scenarios.load(scenario), selection, its_device, remote=True)
    try:
        with Stages(make_console(stderr=True), quiet) as stages:
            return forecasts.forecast(planned, there, fresh=fresh, progress=stages.advance)
    except KeyboardInterrupt:
        typer.echo("\ninterrupted; what is finished is kept: the same command continues from there", err=True)
        raise typer.Exit(INTERRUPTED) from None


def _measured(
    records: Sequence[Record],
    sizes: tuple[int, ...] | None,
    configs: tuple[str, ...],
    ranks: Sequence[int],
    network: RankNetwork,
) -> ScaleOut:
    from tcbench.present.results import chosen
    from tcbench.run import scale_out

    bases = scale_out.measured(chosen(records, configs, sizes), all_configs=bool(configs))
    return scale_out.scale_out(bases, ranks, network)


def _print_ranks(out: ScaleOut, json: bool, output: Path | None) -> None:
    from tcbench.present.tables import make_console
    from tcbench.views.scale_out import table as view

    if output is not None:
        from tcbench.present.charts.files import save
        from tcbench.views.scale_out.chart import curves_of, scale_out_chart

        save(scale_out_chart(curves_of(out), view.headline(out)), output, ANOTHER_FILE)
    if json:
        typer.echo(view.to_json(out))
        return
    console = make_console(least=view.WIDTH)
    console.say(view.headline(out))
    for basis in out.bases:
        console.print()
        console.say(view.heading(basis), style="bold")
        console.print(view.table(out, basis))
    console.print()
    console.say(*(f"Left out: {line}" for line in out.left_out), style="yellow")
    console.say(*view.assumptions(out), style="dim")
    if output is not None:
        console.say(f"wrote {output}")


def _print(result: Forecast, details: bool, json: bool) -> None:
    from tcbench.present.tables import make_console
    from tcbench.views import forecast as view

    if json:
        typer.echo(view.to_json(result))
        return
    console = make_console(least=view.WIDTH)
    if details:
        for heading, works in view.details(result):
            console.say(heading, style="bold")
            console.print(works)
            console.print()
    console.say(view.headline(result))
    console.print()
    console.print(view.table(result))
    console.print()
    console.say(*view.reasons(result), style="yellow")
    console.say(*view.notes(result), style="dim")
    console.say(view.verdict(result))
