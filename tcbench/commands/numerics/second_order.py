"""`tcbench numerics --second-order`: steps to a loss at a large batch, by SGD and by K-FAC."""

import datetime
from collections.abc import Iterable

import msgspec
import typer

from tcbench.analysis.numerics.steps import MethodRun, StepsDocument, best
from tcbench.commands.numerics.call import Call, counting
from tcbench.core import files
from tcbench.core.numerics import AnyJob, TrainingSetting
from tcbench.core.record import KfacSettings
from tcbench.present.app import SOME_CELL_FAILED, make_console, stages
from tcbench.present.charts.files import save
from tcbench.present.options import ANOTHER_FOLDER
from tcbench.run import numerics_plan as plan
from tcbench.views import second_order as view


def race(call: Call, setting: TrainingSetting, kfac: KfacSettings, seeds: int) -> None:
    """Tune both, train both from every seed, keep a document and a picture, show them. Exits where a run failed."""
    created_at = datetime.datetime.now(datetime.UTC)
    stem = call.out / call.device.machine / f"steps-{created_at:%Y%m%d-%H%M%S}"
    environment = None
    total = setting.steps * len(plan.METHODS) * (len(plan.RATES) + seeds)
    with stages(call.quiet) as advance:
        runner = call.runner(setting, counting(advance, total))

        def train(words: Iterable[tuple[str, float, int]]) -> tuple[MethodRun, ...]:
            nonlocal environment
            jobs: dict[AnyJob, tuple[str, float, int]] = {plan.method_job(setting, kfac, *each): each for each in words}
            runs = {}
            for job, last in runner.trained(list(jobs)):
                method, rate, seed = jobs[job]
                environment = last.environment or environment
                if last.run.status in ("failed", "oom"):
                    typer.echo(f"tcbench: error: {view.LABELS[method]}, seed {seed}: {last.run.reason}", err=True)
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

        tuning = train((method, rate, plan.TUNING_SEED) for method in plan.METHODS for rate in plan.RATES)
        rates = {method: best([run for run in tuning if run.method == method]) for method in plan.METHODS}
        runs = train((method, rates[method], seed) for seed in range(seeds) for method in plan.METHODS)
    document = StepsDocument(
        created_at=created_at.isoformat(timespec="seconds"),
        setting=setting,
        kfac=kfac,
        tuning=tuning,
        runs=runs,
        environment=environment,
    )
    text = msgspec.json.encode(document).decode()
    files.write(stem.with_suffix(".json"), f"{text}\n".encode(), ANOTHER_FOLDER)
    machine = [environment.device_name, f"tcbench {environment.tcbench}"] if environment else []
    about = [*machine, f"{setting.model} on generated patterns", f"{setting.batch_size:,} images a step"]
    save(view.steps_chart(document, about), stem.with_suffix(".png"))
    if call.json:
        typer.echo(text)
        return
    console = make_console(details=call.details)
    console.say(f"{about[-2]}, {about[-1]}, {setting.steps} steps, {setting.device}", "")
    console.table(view.table(document))
    console.notes(view.notes(document))
    for suffix in (".json", ".png"):
        console.say(f"wrote {stem.with_suffix(suffix)}")
