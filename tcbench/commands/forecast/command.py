"""`tcbench forecast`: memory, launches and images/s of a scenario on a GPU that is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

from tcbench.core.errors import SelectionError
from tcbench.show import options
from tcbench.show.app import command
from tcbench.show.console import make_console, stages

if TYPE_CHECKING:
    from tcbench.commands.forecast.forecast import Forecast
    from tcbench.core.record import Selection

_KEPT = "; finished work is kept; run the same command to continue"
"""Says, after an interruption, how to resume."""


def _refuse_many_ranks(value: str | None) -> None:
    """Raise SelectionError for the options of the model of many ranks, which was removed."""
    if value is not None:
        raise SelectionError(
            "--ranks, --link and --over were removed; measure ranks with `tcbench run scaling --ranks 1,2`, and "
            "draw them with `tcbench plot --kind scaling`"
        )


@command("Forecast a scenario's needs and speed on a GPU that is not here, or on this CPU.")
@options.selects(
    "scenario batch_sizes configs models image_size input device threads",
    scenario=options.OptionField(options.scenario_argument(" Default: naruse2018, cpu with --device cpu.")),
    device=options.CELLS.field(
        "--device cpu",
        "Instead of --gpu: forecast for this machine's CPU, by timing the operations of a step. Default: none.",
        str,
        "",
        takes="`cpu`",
    ),
)
def forecast(
    *,
    gpu: str | None = options.CELLS.option(
        "--gpu GPU",
        "V100, T4, A100, L40S, H100, H200, B200, or a JSON file with the same fields. Default: none; --gpu "
        "or --device is required.",
        takes="a GPU that `tcbench list --gpus` shows, or a JSON file of one",
        complete=options.completion("complete_gpu"),
    ),
    chosen: Selection,
    fresh: bool = options.CELLS.option("--fresh", "Compute again, ignoring cached results."),
    _many_ranks: str | None = typer.Option(
        None, "--ranks", "--link", "--over", hidden=True, callback=_refuse_many_ranks
    ),
    details: bool = options.details_option("Also show every operation of every cell. "),
    quiet: bool = options.QUIET,
    format_: options.TableOrJson = options.FORMAT,
) -> None:
    """Forecast what each cell would need on a GPU, without having one: whether cuDNN has a plan for every operation,
    how much of the card's memory a step takes, its operations and bytes, the least time that these imply, and the
    expected time. With --device cpu, forecast the step of each cell on this machine: its operations run in the order of
    the step, and nothing is trained.

    Exit code: 0, also when a cell does not fit; 2 for a mistake in the command, the scenario or the GPU's file.

    Examples:
    tcbench forecast --gpu H200                        the talk's matrix on an H200
    tcbench forecast --gpu V100 --bs 128,256           ...on the talk's own GPU: what fits into its 16 GB
    tcbench forecast beyond --gpu B200 --config '*cuda_graph*' --details
    tcbench forecast --gpu my-gpu.json --json
    tcbench forecast --device cpu --model vgg16 --bs 4,16 --image-size 224    this machine, without running it"""
    if chosen.device:
        if gpu:
            raise SelectionError("--device cpu forecasts this machine only; omit --gpu")
        _print_here(chosen, fresh, quiet, format_ == "json", details)
        return
    if chosen.input:
        raise SelectionError("--data: a forecast for a GPU covers only its own work, not the input; omit --data")
    if gpu is None:
        raise SelectionError("expected --gpu, such as --gpu V100, or --device cpu")
    _print(_forecast(gpu, chosen, fresh, quiet), details, format_ == "json")


def _forecast(gpu: str, chosen: Selection, fresh: bool, quiet: bool) -> Forecast:
    """Return the forecast of the selected cells on a GPU. `gpu` is a name or a file."""
    from tcbench.commands.forecast import forecast as forecasts
    from tcbench.hardware import gpus
    from tcbench.run import plan, scenario
    from tcbench.run.devices import absent_device

    card = gpus.load(gpu)
    _, device = absent_device(card)
    planned = plan.make(scenario.load(chosen.scenario or "naruse2018"), chosen, device, remote=True)
    plan.require_ladder(device, (cell.cell.backend for cell in planned.cells))
    with stages(quiet, lambda: _KEPT) as advance:
        return forecasts.forecast(planned, card, fresh=fresh, progress=advance)


def _print_here(chosen: Selection, fresh: bool, quiet: bool, json: bool, details: bool) -> None:
    """Predict the step times of the selected cells on this machine's CPU, and print them as a table or JSON. Raises
    SelectionError if the device is not the CPU."""
    from tcbench.commands.forecast.step_times import headline, notes, reasons, table, to_json
    from tcbench.engine.api import host_device
    from tcbench.run import images, prediction
    from tcbench.run.plan import plan_of

    if chosen.device != host_device().name:
        raise SelectionError(f"--device {chosen.device}: expected {host_device().name}; for a GPU, use --gpu")
    planned = plan_of(chosen)
    with stages(quiet, lambda: _KEPT) as advance:
        images.check_folder(planned, advance)
        images.generate(planned, advance)
        cells = [each.cell for each in planned.cells if each.skip_reason is None]
        predictions = prediction.predict(cells, fresh=fresh, progress=advance)
    if json:
        typer.echo(to_json(planned, predictions))
        return
    console = make_console(details=details)
    console.say(headline(planned), "")
    console.table(table(predictions))
    console.say(*reasons(planned, predictions), style="yellow")
    console.notes(notes(predictions))


def _print(result: Forecast, details: bool, json: bool) -> None:
    """Print the forecast, as a table or as JSON."""
    from tcbench.commands.forecast import table as view

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
