"""`tcbench numerics --rungs`: is every config where its rungs say it is?"""

import typer

from tcbench.commands.numerics import parity_table, plan
from tcbench.commands.numerics.call import Call
from tcbench.commands.numerics.parity_judgement import judge
from tcbench.commands.numerics.runner import NumericsRunner
from tcbench.core.errors import TrainingError
from tcbench.core.numerics import ParityFinished
from tcbench.core.record import DEFAULT_BACKEND
from tcbench.engine.api import backend
from tcbench.hardware import machine
from tcbench.run.plan import select
from tcbench.run.scenario import Scenario
from tcbench.show.console import make_console, stages

PARITY_OFF = 1


def hold(call: Call, scenario: Scenario, names: tuple[str, ...], steps: int, threads: int | None) -> None:
    """Run them, show the outcome; exit with PARITY_OFF where one is off. Raises SelectionError, TrainingError."""
    configs = select(scenario.on(call.device.kind), names)
    job, skipped = plan.parity(scenario, call.device, configs, steps, threads or machine.usable_cpus())
    with stages(call.quiet) as advance:
        advance("configs", 0, len(job.cells))
        runner = NumericsRunner(1, call.timeout_s, lambda _, n: advance("configs", n, len(job.cells)))
        ((_, last),) = runner.run([job])
    assert isinstance(last, ParityFinished)
    if last.reason is not None:
        raise TrainingError(f"the configs could not be compared: {last.reason}")
    rung_set = backend(DEFAULT_BACKEND).RUNGS
    judged = judge(last.runs, lambda rung: rung_set[rung])
    off = parity_table.reasons(judged)
    if call.json:
        typer.echo(parity_table.to_json(job, judged, skipped))
    else:
        console = make_console(details=call.details)
        console.say(parity_table.headline(job), "")
        console.table(parity_table.table(judged))
        console.say(*off, style="red")
        console.notes(parity_table.notes(judged, skipped))
        console.say(parity_table.summary(judged))
    if off:
        raise typer.Exit(PARITY_OFF)
