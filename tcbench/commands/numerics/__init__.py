"""`tcbench numerics`: do fp16 and bf16 train like fp32 here, many ranks like one, and is every config where its rungs
say it is?"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from tcbench.core.errors import SelectionError
from tcbench.present.app import OUT, SOME_CELL_FAILED, command, interruptible
from tcbench.present.options import (
    ANOTHER_FOLDER,
    CONFIGS,
    HOW,
    WHAT,
    DetailsOption,
    FormatOption,
    QuietOption,
    complete_config,
    config_names,
    option,
    out_option,
    selects,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from tcbench.analysis.numerics.judgement import Margins
    from tcbench.core.numerics import AnyJob, Document, Gradients, TrainingFinished, TrainingSetting
    from tcbench.core.record import Environment, Selection
    from tcbench.engine.accelerators.device import Device
    from tcbench.present.progress import Stages
    from tcbench.run.numerics_runner import Runner

TIMEOUT_S = 7200.0


def loss_scale(text: str | None) -> float | None:
    """The value of --scale: a power of two, as "1024" or "2^10". Raises SelectionError."""
    if text is None:
        return None
    power = re.fullmatch(r"\s*2\^(-?[0-9]{1,3})\s*", text, re.ASCII)
    number = re.fullmatch(r"\s*[0-9]{1,30}(\.[0-9]{1,30})?\s*", text, re.ASCII)
    value = 2.0 ** int(power[1]) if power else float(text) if number else 0.0
    if not 2.0**-20 <= value <= 2.0**60 or math.frexp(value)[0] != 0.5:
        shown = text.strip() if len(text) < 30 else f"{text.strip()[:27]}..."
        raise SelectionError(f"--scale {shown}: expected a power of two from 2^-20 to 2^60, such as 1024 or 2^10")
    return value


@command(
    "Train in fp16 and fp32 side by side; look at gradients.",
    """
tcbench numerics                          generated images, a small ResNet: a few minutes on two cores
tcbench numerics --scale 2^40             your own static loss scale
tcbench numerics --global-batch 32        one machine alone: gradients are not so small
tcbench numerics --data /data/imagenet/train --bs 32 --device cuda:0
tcbench numerics --ranks 4                 linear scaling and warm-up: do four ranks train like one?
tcbench numerics --second-order           SGD and K-FAC at 1,024 images a step: which needs fewer?
tcbench numerics --rungs                  every config against the one without its last rung
""",
)
@selects("scenario device")
def numerics(
    *,
    rungs: Annotated[
        bool, option("--rungs", WHAT, "Check each config of the scenario against its rungs' tolerances.")
    ] = False,
    ranks: Annotated[
        int | None,
        option(
            "--ranks N",
            WHAT,
            "Train as so many ranks do, each on a batch of --bs, beside one rank at the same global batch. "
            "Default: one rank, in several precisions.",
            least=2,
            most=4096,
        ),
    ] = None,
    second_order: Annotated[
        bool,
        option(
            "--second-order",
            WHAT,
            "Count the steps to a loss by SGD and by K-FAC (the rung kfac) at a large batch. Default: not; "
            "with it --bs 1024, --steps 24, --seeds 3.",
        ),
    ] = False,
    config: Annotated[
        list[str] | None,
        option(
            "--config NAME",
            WHAT,
            "With --rungs: configs by name or glob, or rungs joined by '+'; several with commas or by more than "
            "one --config. Default: all.",
            takes=CONFIGS,
            read=config_names,
            complete=complete_config,
        ),
    ] = None,
    chosen: Selection,
    data: Annotated[
        Path | None,
        option(
            "--data FOLDER",
            WHAT,
            "Train the scenario's model on class folders of JPEGs; one in ten is kept for the test. Default: "
            "generated images, a small ResNet.",
            takes="a folder of class folders of JPEGs",
        ),
    ] = None,
    bs: Annotated[
        int | None,
        option("--bs N", WHAT, "Batch size. Default: 32; with --data the scenario's first.", least=2, most=65536),
    ] = None,
    image_size: Annotated[
        int | None,
        option(
            "--image-size PIXELS",
            WHAT,
            "Side of the square images. Default: 16; with --data the scenario's.",
            least=8,
            most=8192,
        ),
    ] = None,
    seeds: Annotated[
        int | None,
        option("--seeds N", HOW, "Runs of each technique, each from its own weights. Default: 5.", least=1, most=1000),
    ] = None,
    steps: Annotated[
        int | None,
        option("--steps N", HOW, "Steps of each run. Default: 240; with --rungs 5.", least=1, most=1_000_000),
    ] = None,
    learning_rate: Annotated[
        float | None,
        option(
            "--lr RATE",
            HOW,
            "Learning rate. Default: 0.001; with --ranks 0.2, of one rank.",
            takes="a rate above 0 and up to 1000000, such as 0.001",
            holds=lambda x: 0 < x <= 1e6,
        ),
    ] = None,
    scale: Annotated[
        str | None,
        option(
            "--scale 2^K",
            HOW,
            "The static loss scale. Default: the middle of the range that the gradients show to be safe.",
            takes="a power of two from 2^-20 to 2^60",
            read=loss_scale,
        ),
    ] = None,
    global_batch: Annotated[
        int | None,
        option(
            "--global-batch N",
            HOW,
            "Images that the loss is averaged over, of which this is one replica. Default: slide 34's 131072.",
            least=2,
            most=10**9,
        ),
    ] = None,
    margin: Annotated[
        float | None,
        option(
            "--margin SHARE",
            HOW,
            "Test loss and accuracy within this share of fp32's count as like fp32's. Default: 0.02; with --ranks "
            "0.1 of the loss.",
            takes="a share between 0 and 1, such as 0.02",
            holds=lambda x: 0 < x < 1,
        ),
    ] = None,
    threads: Annotated[
        int | None,
        option(
            "--threads N",
            HOW,
            "Threads of each run. Default: 1; with --data or --rungs all usable cores.",
            least=1,
            most=4096,
        ),
    ] = None,
    timeout: Annotated[
        float | None,
        option(
            "--timeout SECONDS",
            HOW,
            "A run that takes longer is ended. Default: 7200.",
            takes="seconds above 0 and up to 1000000",
            holds=lambda x: 0 < x <= 1e6,
        ),
    ] = None,
    out: Annotated[Path, out_option("Document and charts")] = OUT,
    details: DetailsOption = False,
    quiet: QuietOption = False,
    format_: FormatOption = "table",
) -> None:
    """Train fp32, and fp16 with loss scaling and fp32 master weights, with one of them, with neither, and bf16, from
    the same weights over the same batches; count what float16 makes of the gradients; say which trains like fp32, by an
    equivalence test over seeds. With --ranks, the same question of many ranks: with linear scaling of the learning rate
    and gradual warm-up, without warm-up, without scaling, each against one rank at the same global batch.
    With --second-order, how many steps SGD and K-FAC take to a loss at a large batch.

    Exit code: 0 whatever the verdicts; 2 for a mistake in the command; 3 when a run failed; 130 when interrupted. With
    --rungs, 1 when a config is farther off than its rungs declare.
    """
    from tcbench.engine.accelerators import device as devices
    from tcbench.engine.backends import device_kinds
    from tcbench.hardware import machine
    from tcbench.run import numerics_plan as plan
    from tcbench.run import scenario as scenarios
    from tcbench.run.plan import refuse

    static_scale = loss_scale(scale)
    target = devices.find(chosen.device, device_kinds(("chainer",)))
    plan.check_computes(target)
    refuse(target, ("chainer",))
    loaded = scenarios.load(chosen.scenario or ("cpu" if target.kind == "cpu" else "naruse2018"))
    call = Call(target, timeout or TIMEOUT_S, out, quiet, format_ == "json", details)
    of_one_rank = {"--scale": scale, "--global-batch": global_batch}
    of_precisions = {"--data": data, "--lr": learning_rate, "--margin": margin, "--ranks": ranks, **of_one_rank}
    if rungs:
        given = {"--bs": bs, "--image-size": image_size, "--seeds": seeds, "--second-order": second_order or None}
        _none_of(given | of_precisions, "--rungs", "its steps are those that tolerances are declared for")
        from tcbench.commands.numerics.parity import hold

        hold(call, loaded, config_names(config), steps or plan.PARITY_STEPS, threads)
        return
    _none_of({"--config": config}, "training side by side", "configs are compared with --rungs")
    if second_order:
        why = "both methods train alike in fp32, each at the best of four learning rates"
        _none_of(of_precisions, "--second-order", why)
        from tcbench.commands.numerics.second_order import race
        from tcbench.core.record import KfacSettings

        asked = plan.Asked(
            steps=steps or plan.RACE_STEPS,
            batch_size=bs or plan.LARGE_BATCH,
            image_size=image_size,
            threads=threads,
            global_batch=bs or plan.LARGE_BATCH,
        )
        setting = plan.setting(loaded, target, asked, machine.usable_cpus(), None)
        race(call, setting, loaded.train.kfac or KfacSettings(), seeds or plan.RACE_SEEDS)
        return
    if ranks is not None:
        _none_of(of_one_rank, "--ranks", "all of its runs are in fp32")
    from tcbench.analysis.numerics.judgement import Margins

    asked = plan.Asked(
        steps=steps,
        batch_size=bs,
        image_size=image_size,
        learning_rate=learning_rate,
        global_batch=plan.GLOBAL_BATCH if global_batch is None else global_batch,
        data=None if data is None else data.absolute(),
        threads=threads,
        ranks=ranks or 1,
    )
    setting = plan.setting(loaded, target, asked, machine.usable_cpus(), None if data is None else _images(data))
    margins = None if margin is None else Margins(margin, margin)
    _train(call, setting, plan.SEEDS if seeds is None else seeds, static_scale, margins)


@dataclass(frozen=True)
class Call:
    """What each of this command's programs is told: where it runs, for how long at most, and how it shows what."""

    device: Device
    timeout_s: float
    out: Path
    quiet: bool
    json: bool
    details: bool

    def runner(self, setting: TrainingSetting, listen: Listen) -> Runner:
        """Runs training jobs, on a processor as many at once as it has room for."""
        from tcbench.hardware import machine
        from tcbench.run.numerics_runner import Runner

        at_once = max(1, machine.usable_cpus() // setting.threads) if self.device.kind == "cpu" else 1
        return Runner(at_once, self.timeout_s, listen)


Listen = Callable[["AnyJob", int], None]
"""Told a job and its steps so far."""


def counting(stages: Stages, total: int) -> Listen:
    """Shows the steps of all jobs."""
    done: dict[AnyJob, int] = {}

    def listen(job: AnyJob, steps: int) -> None:
        done[job] = steps
        stages.advance("training steps", sum(done.values()), total)

    stages.advance("training steps", 0, total)
    return listen


def _none_of(given: dict[str, Any], where: str, why: str) -> None:
    """Raises SelectionError for the first option that has no meaning here."""
    for name, value in given.items():
        if value is not None:
            raise SelectionError(f"{name}: has no meaning with {where}: {why}")


def _images(data: Path) -> Any:
    """The folder's images, to train on and to test with. Raises DataError."""
    from tcbench.engine.feeds.dataset import scan
    from tcbench.engine.numerics.folder import HELD_OUT_EVERY, split

    remedy = (
        f"expected CLASS/IMAGE.jpg in it, at least {HELD_OUT_EVERY} images a class; without --data it trains on "
        "generated images"
    )
    return split(scan(data.absolute(), remedy))


def _train(
    call: Call, setting: TrainingSetting, seeds: int, static_scale: float | None, margins: Margins | None
) -> None:
    import datetime

    from tcbench.analysis.numerics.judgement import margins_of
    from tcbench.core.numerics import ALL_TECHNIQUES, Document
    from tcbench.present.format import counted
    from tcbench.present.progress import Stages
    from tcbench.present.tables import make_console
    from tcbench.run import numerics_plan as plan
    from tcbench.views.numerics import table as view

    created_at = datetime.datetime.now(datetime.UTC)
    kind = "" if setting.ranks == 1 else "ranks-"
    stem = call.out / call.device.machine / f"numerics-{kind}{created_at:%Y%m%d-%H%M%S}"
    _probe(stem.with_suffix(".json"))
    begin = time.monotonic()
    ended: list[TrainingFinished] = []
    train = _train_dtypes if setting.ranks == 1 else _train_ranks
    runs_ahead = 1 + len(plan.jobs(setting, seeds, 1.0)) if setting.ranks == 1 else len(plan.ranks_jobs(setting, seeds))
    with (
        interruptible(lambda: f" after {counted(len(ended), 'run')}; nothing is kept"),
        Stages(make_console(stderr=True), call.quiet) as stages,
    ):
        runner = call.runner(setting, counting(stages, setting.steps * runs_ahead))
        trained = train(setting, seeds, static_scale, runner, ended)

    names = list(ALL_TECHNIQUES)
    runs = sorted((last.run for last in ended), key=lambda run: (run.seed, names.index(run.technique)))
    document = Document(
        created_at=created_at.isoformat(timespec="seconds"),
        setting=setting,
        gradients=trained.gradients,
        runs=tuple(runs),
        static_scale=trained.static_scale,
        static_scale_chosen=static_scale is None,
        duration_s=round(time.monotonic() - begin, 1),
        environment=trained.environment,
    )
    margins = margins_of(document, margins)
    # Measurements are kept before anything is made of them.
    _keep_or_print(stem.with_suffix(".json"), document)
    text = view.to_json(document, margins)
    _keep(stem.with_suffix(".json"), text)
    charts = _charts(document, margins, stem)
    if call.json:
        typer.echo(text)
    else:
        _show(document, margins, [stem.with_suffix(".json"), *charts], call)
    failed = [run for run in runs if run.status in ("failed", "oom")]
    if failed:
        first = failed[0]
        typer.echo(f"{len(failed)} runs failed; {first.technique}, seed {first.seed}: {first.reason}", err=True)
        raise typer.Exit(SOME_CELL_FAILED)


@dataclass(frozen=True)
class _Trained:
    """The rest of a document: the counted gradients, the static scale, and the machine."""

    gradients: Gradients
    static_scale: float
    environment: Environment | None


def _train_dtypes(
    setting: TrainingSetting, seeds: int, static_scale: float | None, runner: Runner, ended: list[TrainingFinished]
) -> _Trained:
    """The talk's techniques: first one run whose gradients are counted, beside those that need no scale of it."""
    from tcbench.run import numerics_plan as plan

    observing = plan.observing(setting)
    # Runs that need no static scale keep the other processors busy while the gradients are observed.
    early = plan.jobs(setting, seeds, None) if runner.at_once > 1 else ()
    observed: TrainingFinished | None = None
    for job, last in runner.trained([observing, *early]):
        if job == observing:
            observed = last
        else:
            ended.append(last)
    if observed is None or observed.gradients is None or observed.run.status != "ok":
        _no_base(observed)
    scale = static_scale if static_scale is not None else _middle(observed)
    ended.extend(last for _, last in runner.trained([j for j in plan.jobs(setting, seeds, scale) if j not in early]))
    return _Trained(observed.gradients, scale, observed.environment)


def _train_ranks(
    setting: TrainingSetting, seeds: int, _scale: float | None, runner: Runner, ended: list[TrainingFinished]
) -> _Trained:
    """The schedules of many ranks; no gradient is counted."""
    from tcbench.core.numerics import Gradients
    from tcbench.run import numerics_plan as plan

    ended.extend(last for _, last in runner.trained(plan.ranks_jobs(setting, seeds)))
    return _Trained(Gradients(seed=0, layers=(), steps=()), 1.0, next((last.environment for last in ended), None))


def _middle(observed: Any) -> float:
    from tcbench.analysis.numerics.judgement import safe

    middle = safe(observed.gradients).middle
    return 1.0 if middle is None else 2.0**middle


def _no_base(observed: TrainingFinished | None) -> NoReturn:
    """fp32 did not get to the end, so there is nothing to hold others against. Raises TrainingError where another
    learning rate may help; what failed otherwise ends with the exit code of a run that failed."""
    from tcbench.core.errors import TrainingError

    run = observed.run if observed else None
    if run is not None and run.status == "diverged":
        raise TrainingError(f"fp32 itself does not train: {run.reason}; try a lower --lr")
    typer.echo(f"tcbench: error: fp32 itself failed: {run.reason if run else 'it did not run'}", err=True)
    raise typer.Exit(SOME_CELL_FAILED)


def _probe(path: Path) -> None:
    """Make the folder, and see that a file can be written there: better now than after all training."""
    _keep(path, "")
    path.unlink()


def _keep_or_print(path: Path, document: Document) -> None:
    """Keep what was measured; where the folder takes nothing any more it goes to standard output, lest it be lost."""
    import msgspec

    from tcbench.core.errors import StoreError

    text = msgspec.json.encode(document).decode()
    try:
        _keep(path, text)
    except StoreError:
        typer.echo(text)
        raise


def _keep(path: Path, text: str) -> None:
    """Write the file as a whole or not at all."""
    from tcbench.core import files

    files.write(path, f"{text}\n".encode(), ANOTHER_FOLDER)


def _charts(document: Document, margins: Margins, stem: Path) -> list[Path]:
    from tcbench.present.charts.files import save_each
    from tcbench.views.numerics.gradients_chart import gradients_chart
    from tcbench.views.numerics.table import about
    from tcbench.views.numerics.training_chart import training_chart

    facts = about(document)
    charts: dict[str, Callable[[], Figure]] = {"training": lambda: training_chart(document, margins, facts)}
    if document.setting.ranks == 1:
        charts = {"gradients": lambda: gradients_chart(document, facts), **charts}
    return save_each({stem.with_name(f"{stem.name}-{name}.png"): draw for name, draw in charts.items()})


def _show(document: Document, margins: Margins, files: Sequence[Path], call: Call) -> None:
    from tcbench.analysis.numerics.judgement import verdicts
    from tcbench.present.next_steps import NextStep, folder, newest_run
    from tcbench.present.tables import make_console
    from tcbench.views.numerics import table as view

    console = make_console(details=call.details)
    console.say(view.setting_line(document))
    console.print()
    if document.setting.ranks == 1:
        console.print(view.gradients_table(document))
        console.say(view.safe_line(document))
        console.say(view.bfloat16_line(document))
        console.print()
    console.print(view.costs_table(document))
    console.print()
    console.print(view.verdicts_table(verdicts(document, margins), document.setting.base))
    console.print()
    console.notes([*view.notes(document, margins), *view.why_lines(document)])
    console.say(*(f"wrote {path}" for path in files))
    if run := newest_run(call.out):  # whose claims on training the document decides
        words = ("claims", str(run), str(files[0]), *folder(call.out))
        console.offer([NextStep(words, "what of the talk holds, training included")])
