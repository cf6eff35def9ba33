"""`tcbench numerics`: do fp16 and bf16 train like fp32 here, many ranks like one; in how many steps does K-FAC?"""

import datetime
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import typer
from matplotlib.figure import Figure

from tcbench.commands.numerics import plan, second_order_chart, table
from tcbench.commands.numerics.call import Call, counting
from tcbench.commands.numerics.gradients_chart import gradients_chart
from tcbench.commands.numerics.judgement import Margins, margins_of, safe, verdicts
from tcbench.commands.numerics.runner import NumericsRunner
from tcbench.commands.numerics.steps import MethodRun, StepsDocument, best
from tcbench.commands.numerics.training_chart import training_chart
from tcbench.core import files
from tcbench.core.errors import StoreError, TrainingError
from tcbench.core.numerics import ALL_TECHNIQUES, AnyJob, Document, Gradients, TrainingFinished, TrainingSetting
from tcbench.core.record import Environment, KfacSettings
from tcbench.show.app import SOME_CELL_FAILED
from tcbench.show.console import make_console, stages
from tcbench.show.format import counted
from tcbench.show.next_steps import NextStep, newest_run, out_words
from tcbench.show.options import ANOTHER_FOLDER
from tcbench.show.saving import save_each


def train(
    call: Call, setting: TrainingSetting, seeds: int, static_scale: float | None, margins: Margins | None
) -> None:
    """Train every technique from every seed, keep a document and pictures, show them. Exits where a run failed."""
    created_at = datetime.datetime.now(datetime.UTC)
    alone = setting.ranks == 1
    stem = call.out / call.device.machine / f"numerics-{'' if alone else 'ranks-'}{created_at:%Y%m%d-%H%M%S}"
    path = stem.with_suffix(".json")
    _keep(path, "")  # whether a file can be written there: better now than after all training
    path.unlink()
    begin = time.monotonic()
    ended: list[TrainingFinished] = []
    runs_ahead = alone + len(plan.jobs(setting, seeds, 1.0))
    with stages(call.quiet, lambda: f" after {counted(len(ended), 'run')}; nothing is kept") as advance:
        runner = call.runner(setting, counting(advance, setting.steps * runs_ahead))
        if alone:
            gradients, scale, environment = _train_dtypes(setting, seeds, static_scale, runner, ended)
        else:  # no gradient is counted
            ended.extend(last for _, last in runner.trained(plan.jobs(setting, seeds, 1.0)))
            gradients, scale = Gradients(seed=0, layers=(), steps=()), 1.0
            environment = next((last.environment for last in ended), None)

    names = list(ALL_TECHNIQUES)
    runs = sorted((last.run for last in ended), key=lambda run: (run.seed, names.index(run.technique)))
    document = Document(
        created_at=created_at.isoformat(timespec="seconds"),
        setting=setting,
        gradients=gradients,
        runs=tuple(runs),
        static_scale=scale,
        static_scale_chosen=static_scale is None,
        duration_s=round(time.monotonic() - begin, 1),
        environment=environment,
    )
    margins = margins_of(document, margins)
    # Measurements are kept before anything is made of them, or, where the folder takes nothing any more, printed.
    raw = msgspec.json.encode(document).decode()
    try:
        _keep(path, raw)
    except StoreError:
        typer.echo(raw)
        raise
    text = table.to_json(document, margins)
    _keep(path, text)
    facts = table.about(document)
    drawings: dict[str, Callable[[], Figure]] = {"training": lambda: training_chart(document, margins, facts)}
    if alone:
        drawings = {"gradients": lambda: gradients_chart(document, facts), **drawings}
    charts = save_each({stem.with_name(f"{stem.name}-{name}.png"): draw for name, draw in drawings.items()})
    if call.json:
        typer.echo(text)
    else:
        _show(document, margins, [path, *charts], call)
    failed = [run for run in runs if run.status in ("failed", "oom")]
    if failed:
        first = failed[0]
        typer.echo(f"{len(failed)} runs failed; {first.technique}, seed {first.seed}: {first.reason}", err=True)
        raise typer.Exit(SOME_CELL_FAILED)


def _train_dtypes(
    setting: TrainingSetting,
    seeds: int,
    static_scale: float | None,
    runner: NumericsRunner,
    ended: list[TrainingFinished],
) -> tuple[Gradients, float, Environment | None]:
    """The talk's techniques: first one run whose gradients are counted, beside those that need no scale of it. The
    rest of a document: the counted gradients, the static scale, and the machine. Raises TrainingError where fp32 does
    not train, as another learning rate may help; where it failed otherwise, exits as where a run failed."""
    observing = plan.observing(setting)
    # Runs that need no static scale keep the other processors busy while the gradients are observed.
    early = plan.jobs(setting, seeds, None) if runner.at_once > 1 else ()
    observed: TrainingFinished | None = None
    for job, last in runner.trained([observing, *early]):
        if job == observing:
            observed = last
        else:
            ended.append(last)
    if observed is None or observed.gradients is None or observed.run.status != "ok":  # nothing to hold others against
        run = observed.run if observed else None
        if run is not None and run.status == "diverged":
            raise TrainingError(f"fp32 itself does not train: {run.reason}; try a lower --lr")
        typer.echo(f"tcbench: error: fp32 itself failed: {run.reason if run else 'it did not run'}", err=True)
        raise typer.Exit(SOME_CELL_FAILED)
    middle = safe(observed.gradients).middle or 0
    scale = 2.0**middle if static_scale is None else static_scale
    ended.extend(last for _, last in runner.trained([j for j in plan.jobs(setting, seeds, scale) if j not in early]))
    return observed.gradients, scale, observed.environment


def _keep(path: Path, text: str) -> None:
    """Write the file as a whole or not at all."""
    files.write(path, f"{text}\n".encode(), ANOTHER_FOLDER)


def _show(document: Document, margins: Margins, written: Sequence[Path], call: Call) -> None:
    console = make_console(details=call.details)
    console.say(table.setting_line(document), "")
    if document.setting.ranks == 1:
        console.print(table.gradients_table(document))
        console.say(table.safe_line(document), table.bfloat16_line(document), "")
    console.table(table.costs_table(document))
    console.table(table.verdicts_table(document, verdicts(document, margins)))
    console.notes([*table.notes(document, margins), *table.why_lines(document)])
    console.say(*(f"wrote {path}" for path in written))
    if run := newest_run(call.out):  # whose claims on training the document decides
        words = ("claims", str(run), str(written[0]), *out_words(call.out))
        console.offer([NextStep(words, "what of the talk holds, training included")])


def race(call: Call, setting: TrainingSetting, kfac: KfacSettings, seeds: int) -> None:
    """Tune both, train both from every seed, keep a document and a picture, show them. Exits where a run failed."""
    created_at = datetime.datetime.now(datetime.UTC)
    stem = call.out / call.device.machine / f"steps-{created_at:%Y%m%d-%H%M%S}"
    environment = None
    total = setting.steps * len(plan.METHODS) * (len(plan.RATES) + seeds)
    with stages(call.quiet) as advance:
        runner = call.runner(setting, counting(advance, total))

        def trained(words: Iterable[tuple[str, float, int]]) -> tuple[MethodRun, ...]:
            nonlocal environment
            jobs: dict[AnyJob, tuple[str, float, int]] = {plan.method_job(setting, kfac, *each): each for each in words}
            runs = {}
            for job, last in runner.trained(list(jobs)):
                method, rate, seed = jobs[job]
                environment = last.environment or environment
                if last.run.status in ("failed", "oom"):
                    typer.echo(
                        f"tcbench: error: {second_order_chart.LABELS[method]}, seed {seed}: {last.run.reason}", err=True
                    )
                    raise typer.Exit(SOME_CELL_FAILED)
                runs[job] = MethodRun(
                    method=method,
                    learning_rate=rate,
                    seed=seed,
                    losses=last.run.losses,
                    train_time_s=last.run.train_time_s,
                    reason=last.run.reason,
                )
            return tuple(runs[job] for job in jobs)

        tuning = trained((method, rate, plan.TUNING_SEED) for method in plan.METHODS for rate in plan.RATES)
        rates = {method: best([run for run in tuning if run.method == method]) for method in plan.METHODS}
        runs = trained((method, rates[method], seed) for seed in range(seeds) for method in plan.METHODS)
    document = StepsDocument(
        created_at=created_at.isoformat(timespec="seconds"),
        setting=setting,
        kfac=kfac,
        tuning=tuning,
        runs=runs,
        environment=environment,
    )
    text = msgspec.json.encode(document).decode()
    _keep(stem.with_suffix(".json"), text)
    machine = [environment.device_name, f"tcbench {environment.tcbench}"] if environment else []
    about = [*machine, f"{setting.model} on generated patterns", f"{setting.batch_size:,} images a step"]
    charts = save_each({stem.with_suffix(".png"): lambda: second_order_chart.steps_chart(document, about)})
    if call.json:
        typer.echo(text)
        return
    console = make_console(details=call.details)
    console.say(f"{about[-2]}, {about[-1]}, {setting.steps} steps, {setting.device}", "")
    console.table(second_order_chart.table(document))
    console.notes(second_order_chart.notes(document))
    for path in (stem.with_suffix(".json"), *charts):
        console.say(f"wrote {path}")
