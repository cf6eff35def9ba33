"""The trainings of `tcbench numerics`: several precisions or ranks side by side, and SGD against K-FAC."""

import datetime
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
import typer
from matplotlib.figure import Figure

from tcbench.commands.numerics import plan, second_order_chart, table
from tcbench.commands.numerics.call import ProgramOptions, step_counter
from tcbench.commands.numerics.gradients_chart import gradients_chart
from tcbench.commands.numerics.judgement import Margins, margins_or_default, model_safe_scales, verdicts
from tcbench.commands.numerics.runner import NumericsRunner
from tcbench.commands.numerics.steps import MethodRun, StepsDocument, best_learning_rate
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
    program: ProgramOptions, setting: TrainingSetting, seeds: int, static_scale: float | None, margins: Margins | None
) -> None:
    """Train every technique from every seed; store the document and charts, and show them. Exits if a run failed."""
    created_at = datetime.datetime.now(datetime.UTC)
    alone = setting.ranks == 1
    stem = program.out / program.device.machine / f"numerics-{'' if alone else 'ranks-'}{created_at:%Y%m%d-%H%M%S}"
    path = stem.with_suffix(".json")
    _write(path, "")  # fail now, not after all training, if the file cannot be written
    path.unlink()
    begin = time.monotonic()
    results: list[TrainingFinished] = []
    runs_ahead = alone + len(plan.training_jobs(setting, seeds, 1.0))
    with stages(program.quiet, lambda: f" after {counted(len(results), 'run')}; nothing is kept") as advance:
        runner = program.runner(setting, step_counter(advance, setting.steps * runs_ahead))
        if alone:
            gradients, scale, environment = _train_dtypes(setting, seeds, static_scale, runner, results)
        else:  # no gradient is counted
            results.extend(last for _, last in runner.trained(plan.training_jobs(setting, seeds, 1.0)))
            gradients, scale = Gradients(seed=0, layers=(), steps=()), 1.0
            environment = next((last.environment for last in results), None)

    names = list(ALL_TECHNIQUES)
    runs = sorted((last.run for last in results), key=lambda run: (run.seed, names.index(run.technique)))
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
    margins = margins_or_default(document, margins)
    # Store the raw measurements before they are used, or print them if the folder is no longer writable.
    raw = msgspec.json.encode(document).decode()
    try:
        _write(path, raw)
    except StoreError:
        typer.echo(raw)
        raise
    text = table.to_json(document, margins)
    _write(path, text)
    facts = table.about(document)
    drawings: dict[str, Callable[[], Figure]] = {"training": lambda: training_chart(document, margins, facts)}
    if alone:
        drawings = {"gradients": lambda: gradients_chart(document, facts), **drawings}
    charts = save_each({stem.with_name(f"{stem.name}-{name}.png"): draw for name, draw in drawings.items()})
    if program.json:
        typer.echo(text)
    else:
        _show(document, margins, [path, *charts], program)
    failed = [run for run in runs if run.status in ("failed", "oom")]
    if failed:
        first = failed[0]
        typer.echo(
            f"{counted(len(failed), 'run')} failed; {first.technique}, seed {first.seed}: {first.reason}", err=True
        )
        raise typer.Exit(SOME_CELL_FAILED)


def _train_dtypes(
    setting: TrainingSetting,
    seeds: int,
    static_scale: float | None,
    runner: NumericsRunner,
    results: list[TrainingFinished],
) -> tuple[Gradients, float, Environment | None]:
    """Train on one rank in every precision, and return the counted gradients, the static scale and the environment.

    The first run is in fp32 and counts its gradients, from which the static scale follows. Results are added to
    `results`. Raises TrainingError if fp32 diverges, because another learning rate may help; exits if it fails
    otherwise."""
    fp32_job = plan.observed_job(setting)
    # Runs that need no static scale keep the other processors busy while the gradients are observed.
    early = plan.training_jobs(setting, seeds, None) if runner.at_once > 1 else ()
    fp32: TrainingFinished | None = None
    for job, last in runner.trained([fp32_job, *early]):
        if job == fp32_job:
            fp32 = last
        else:
            results.append(last)
    if fp32 is None or fp32.gradients is None or fp32.run.status != "ok":  # nothing to hold others against
        run = fp32.run if fp32 else None
        if run is not None and run.status == "diverged":
            raise TrainingError(f"fp32 itself does not train: {run.reason}; try a lower --lr")
        typer.echo(f"tcbench: error: fp32 itself failed: {run.reason if run else 'it did not run'}", err=True)
        raise typer.Exit(SOME_CELL_FAILED)
    middle = model_safe_scales(fp32.gradients).middle or 0
    scale = 2.0**middle if static_scale is None else static_scale
    results.extend(
        last for _, last in runner.trained([j for j in plan.training_jobs(setting, seeds, scale) if j not in early])
    )
    return fp32.gradients, scale, fp32.environment


def _write(path: Path, text: str) -> None:
    """Write the file completely or not at all."""
    files.write(path, f"{text}\n".encode(), ANOTHER_FOLDER)


def _show(document: Document, margins: Margins, written: Sequence[Path], program: ProgramOptions) -> None:
    """Print the tables and notes of a document."""
    console = make_console(details=program.details)
    console.say(table.setting_line(document), "")
    if document.setting.ranks == 1:
        console.print(table.gradients_table(document))
        console.say(table.safe_line(document), table.bfloat16_line(document), "")
    console.table(table.costs_table(document))
    console.table(table.verdicts_table(document, verdicts(document, margins)))
    console.notes([*table.notes(document, margins), *table.why_lines(document)])
    console.say(*(f"wrote {path}" for path in written))
    if run := newest_run(program.out):  # whose claims on training the document decides
        words = ("claims", str(run), str(written[0]), *out_words(program.out))
        console.offer([NextStep(words, "which claims of the talk hold, training included")])


def compare_methods(program: ProgramOptions, setting: TrainingSetting, kfac: KfacSettings, seeds: int) -> None:
    """Tune SGD and K-FAC and train both from every seed; store the document and a chart, and show them. Exits if a run
    failed."""
    created_at = datetime.datetime.now(datetime.UTC)
    stem = program.out / program.device.machine / f"steps-{created_at:%Y%m%d-%H%M%S}"
    environment = None
    total = setting.steps * len(plan.METHODS) * (len(plan.RATES) + seeds)
    with stages(program.quiet) as advance:
        runner = program.runner(setting, step_counter(advance, total))

        def train_all(settings: Iterable[tuple[str, float, int]]) -> tuple[MethodRun, ...]:
            """Train a run for each method, learning rate and seed, and return them in order. Exits if one failed."""
            nonlocal environment
            jobs: dict[AnyJob, tuple[str, float, int]]
            jobs = {plan.method_job(setting, kfac, *each): each for each in settings}
            runs = {}
            for job, last in runner.trained(list(jobs)):
                (method, rate, seed), run = jobs[job], last.run
                environment = last.environment or environment
                if run.status in ("failed", "oom"):
                    label = second_order_chart.LABELS[method]
                    typer.echo(f"tcbench: error: {label}, seed {seed}: {run.reason}", err=True)
                    raise typer.Exit(SOME_CELL_FAILED)
                runs[job] = MethodRun(
                    method=method,
                    learning_rate=rate,
                    seed=seed,
                    losses=run.losses,
                    train_time_s=run.train_time_s,
                    reason=run.reason,
                )
            return tuple(runs[job] for job in jobs)

        tuning = train_all((method, rate, plan.TUNING_SEED) for method in plan.METHODS for rate in plan.RATES)
        rates = {method: best_learning_rate([run for run in tuning if run.method == method]) for method in plan.METHODS}
        runs = train_all((method, rates[method], seed) for seed in range(seeds) for method in plan.METHODS)
    document = StepsDocument(
        created_at=created_at.isoformat(timespec="seconds"),
        setting=setting,
        kfac=kfac,
        tuning=tuning,
        runs=runs,
        environment=environment,
    )
    text = msgspec.json.encode(document).decode()
    _write(stem.with_suffix(".json"), text)
    machine = [environment.device_name, f"tcbench {environment.tcbench}"] if environment else []
    about = [*machine, f"{setting.model} on generated patterns", f"{setting.batch_size:,} images a step"]
    charts = save_each({stem.with_suffix(".png"): lambda: second_order_chart.steps_chart(document, about)})
    if program.json:
        typer.echo(text)
        return
    console = make_console(details=program.details)
    console.say(f"{about[-2]}, {about[-1]}, {setting.steps} steps, {setting.device}", "")
    console.table(second_order_chart.table(document))
    console.notes(second_order_chart.notes(document))
    for path in (stem.with_suffix(".json"), *charts):
        console.say(f"wrote {path}")
