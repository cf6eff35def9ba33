"""`tcbench numerics --rungs`: checks whether every config is as close to its neighbour as its rung declares."""

import typer

from tcbench.commands.numerics import parity_table, plan
from tcbench.commands.numerics.call import ProgramOptions
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
"""Exit code if a config is farther off than its rungs declare."""


def check_configs(
    program: ProgramOptions, scenario: Scenario, config_names: tuple[str, ...], steps: int, threads: int | None
) -> None:
    """Run the configs and show their distances. Exit with PARITY_OFF if any is off. Raises SelectionError,
    TrainingError."""
    configs = select(scenario.on(program.device.kind), config_names)
    job, skipped = plan.parity_job(scenario, program.device, configs, steps, threads or machine.usable_cpus())
    with stages(program.quiet) as advance:
        advance("configs", 0, len(job.cells))
        runner = NumericsRunner(1, program.timeout_s, lambda _, n: advance("configs", n, len(job.cells)))
        ((_, answer),) = runner.run([job])
    assert isinstance(answer, ParityFinished)
    if answer.reason is not None:
        raise TrainingError(f"the configs could not be compared: {answer.reason}")
    rung_set = backend(DEFAULT_BACKEND).RUNGS
    runs = judge(answer.runs, lambda rung: rung_set[rung])
    off_lines = parity_table.off_lines(runs)
    if program.json:
        typer.echo(parity_table.to_json(job, runs, skipped))
    else:
        console = make_console(details=program.details)
        console.say(parity_table.headline(job), "")
        console.table(parity_table.table(runs))
        console.say(*off_lines, style="red")
        console.notes(parity_table.notes(runs, skipped))
        console.say(parity_table.summary(runs))
    if off_lines:
        raise typer.Exit(PARITY_OFF)
