"""`tcbench forecast`: memory, launches and images/s of a scenario on a GPU that is not here, and on many ranks."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import typer

from tcbench.core.errors import SelectionError
from tcbench.present import options
from tcbench.present.app import command, make_console, stages

if TYPE_CHECKING:
    from tcbench.core.record import Selection
    from tcbench.run.forecast import Forecast
    from tcbench.run.scale_out import ScaleOut

MANY = options.Group("Many ranks")
_KEPT = "; what is finished is kept: the same command continues from there"
_NETWORKS = "dgx-1, dgx-a100, dgx-h100, abci, big-basin, mn-1, p40-100gbe"


@command("Forecast a scenario's needs and speed on a GPU that is not here, or on this CPU.")
@options.selects(
    "scenario batch_sizes configs models image_size input device threads",
    scenario=options.OptionField(options.scenario_argument(" Default: naruse2018, cpu with --device cpu.")),
    device=options.WHAT.field(
        "--device cpu",
        "In place of --gpu, this machine's processor: what steps would launch is timed. Default: none.",
        str,
        "",
        takes="`cpu`",
    ),
)
def forecast(
    *,
    gpu: str | None = options.WHAT.option(
        "--gpu GPU",
        "V100, T4, A100, L40S, H100, H200, B200, or a JSON file with the same fields. Default: none; this, "
        "--device or --over is needed.",
        takes="a GPU that `tcbench list --gpus` shows, or a JSON file of one",
        complete=options.complete_gpu,
    ),
    chosen: Selection,
    fresh: bool = options.WHAT.option("--fresh", "Compute again, ignoring kept results."),
    ranks: str | None = MANY.option(
        "--ranks N,N,...",
        "The same step on so many ranks. Default: one.",
        takes=options.COUNTS,
        read=options.rank_counts,
    ),
    link: str | None = MANY.option(
        "--link NAME",
        f"The network between them: {_NETWORKS}; or "
        "bandwidth,latency in GB/s and microseconds, such as 12.5,10. Default: none; --ranks needs it.",
        takes=f"{_NETWORKS}, or two numbers above 0: GB/s and microseconds",
        complete=options.complete_network,
    ),
    over: list[str] | None = MANY.option(
        "--over RESULTS",
        "In place of --gpu, steps that were measured: a file or folder of records, or the id of a run.",
        takes=options.RUN,
    ),
    out: Path = options.RESULTS_FOLDER,
    output: Path | None = options.picture_option("Of many ranks also a chart: .png, .svg or .pdf. Default: none."),
    details: bool = options.details_option("Also every operation of every cell. "),
    quiet: bool = options.QUIET,
    format_: options.TableOrJson = options.FORMAT,
) -> None:
    """Forecast, without any GPU, what each cell would need on one: whether cuDNN has a plan for every operation there,
    how much of the card's memory a step takes, its operations and bytes, the least time that these imply, and the time
    to expect. With --device cpu, the step to expect of each cell on this machine, which launches in the step's order
    what the cell would, and trains nothing. With --ranks, the step on many of them instead: images/s, efficiency, time
    and energy to train, by a model of the all-reduce; of the fastest config at each batch size, unless --config names
    others.

    Exit code: 0, also when a cell does not fit (that is an answer); 2 for a mistake in
    the command, the scenario or the GPU's file.

    Examples:
    tcbench forecast --gpu H200                        the talk's matrix on an H200
    tcbench forecast --gpu V100 --bs 128,256           ...on the talk's own GPU: what fits into its 16 GB
    tcbench forecast beyond --gpu B200 --config '*cuda_graph*' --details
    tcbench forecast --gpu my-gpu.json --json
    tcbench forecast --device cpu --model vgg16 --bs 4,16 --image-size 224    this machine, without running it
    tcbench forecast --gpu V100 --bs 32 --ranks 8,64,1024,4096 --link abci    many ranks, by a model of the all-reduce
    tcbench forecast --over results --ranks 8,64 --link 12.5,10               ...from steps that were measured
    """
    from tcbench.hardware import networks

    sizes, network = options.rank_counts(ranks), None if link is None else networks.load(link)
    if (sizes is None) != (network is None):
        raise SelectionError("--ranks and --link go together, such as --ranks 8,64 --link abci")
    if sizes is None and (over or output):
        raise SelectionError("--over and -o are of many ranks: give --ranks and --link too")
    if chosen.device:
        if gpu or over or sizes:
            raise SelectionError("--device cpu forecasts this machine alone: expected no --gpu, --over, --ranks")
        _print_here(chosen, fresh, quiet, format_ == "json", details)
        return
    if gpu is not None and over:
        raise SelectionError("expected --gpu or --over RESULTS, got both")
    if chosen.input:
        raise SelectionError("--data: of a GPU that is not here only what it computes is forecast; leave it out")
    if gpu is None and not over:
        raise SelectionError(f"expected --gpu, such as --gpu V100, or {'--over RESULTS' if sizes else '--device cpu'}")
    if sizes is None or network is None:
        assert gpu is not None
        _print(_forecast(gpu, chosen, fresh, quiet), details, format_ == "json")
        return
    from tcbench.run import scale_out

    if over:
        from tcbench.present import results

        refused = {"--model": chosen.models, "--fresh": fresh, "--image-size": chosen.image_size}
        for name in (name for name, value in refused.items() if value):
            raise SelectionError(f"{name}: has no meaning with --over: nothing is forecast but the all-reduce")
        records = results.chosen(results.read_results(over, out).records, chosen.configs, chosen.batch_sizes)
        bases, left_out = scale_out.measured(records, all_configs=bool(chosen.configs)), list[str]()
    else:
        assert gpu is not None
        forecasts = _forecast(gpu, chosen, fresh, quiet)
        bases, left_out = scale_out.forecast(forecasts, all_configs=bool(chosen.configs))
    _print_ranks(scale_out.scale_out(bases, sizes, network, left_out), format_ == "json", output, details)


def _forecast(gpu: str, chosen: Selection, fresh: bool, quiet: bool) -> Forecast:
    from tcbench.engine.accelerators import device
    from tcbench.hardware import gpus
    from tcbench.run import forecast as forecasts
    from tcbench.run import plan
    from tcbench.run import scenario as scenarios

    card = gpus.load(gpu)
    _, its_device = device.absent(card)
    planned = plan.make(scenarios.load(chosen.scenario or "naruse2018"), chosen, its_device, remote=True)
    with stages(quiet, lambda: _KEPT) as advance:
        return forecasts.forecast(planned, card, fresh=fresh, progress=advance)


def _print_ranks(out: ScaleOut, json: bool, output: Path | None, details: bool) -> None:
    from tcbench.views.scale_out import table as view

    if output is not None:
        from tcbench.present.charts.files import save
        from tcbench.views.scale_out.chart import curves_of, scale_out_chart

        save(scale_out_chart(curves_of(out), view.headline(out)), output, options.ANOTHER_FILE)
    if json:
        typer.echo(view.to_json(out))
        return
    console = make_console(details=details)
    console.say(view.headline(out), "")
    for basis in out.bases:
        console.table(view.table(out, basis), view.heading(basis))
    console.say(*(f"Left out: {line}" for line in out.left_out), style="yellow")
    console.notes(view.assumptions(out))
    if output is not None:
        console.say(f"wrote {output}")


def _print_here(chosen: Selection, fresh: bool, quiet: bool, json: bool, details: bool) -> None:
    from tcbench.engine.accelerators.device import host
    from tcbench.run import images, prediction
    from tcbench.run.plan import plan_of
    from tcbench.views import step_times as view

    if chosen.device != host().name:
        raise SelectionError(f"--device {chosen.device}: expected {host().name}; of a GPU, --gpu")
    planned = plan_of(chosen)
    with stages(quiet, lambda: _KEPT) as advance:
        images.check_folder(planned, advance)
        images.generate(planned, advance)
        cells = [each.cell for each in planned.cells if each.skip_reason is None]
        told = prediction.predict(cells, fresh=fresh, progress=advance)
    if json:
        typer.echo(view.to_json(planned, told))
        return
    console = make_console(details=details)
    console.say(view.headline(planned), "")
    console.table(view.table(told))
    console.say(*view.reasons(planned, told), style="yellow")
    console.notes(view.notes(told))


def _print(result: Forecast, details: bool, json: bool) -> None:
    from tcbench.views import forecast as view

    if json:
        typer.echo(view.to_json(result))
        return
    console = make_console(details=details)
    if details:
        for heading, works in view.details(result):
            console.table(works, heading)
    console.say(view.headline(result), "")
    console.table(view.table(result))
    console.say(*view.reasons(result), style="yellow")
    console.notes(view.notes(result))
    console.say(view.verdict(result))
