"""The parts that the programs of `tcbench numerics` share: common options, a runner, and progress."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tcbench.commands.numerics.runner import NumericsRunner
from tcbench.core.numerics import AnyJob, TrainingSetting
from tcbench.engine.api import Device
from tcbench.hardware import machine

Listen = Callable[[AnyJob, int], None]
"""A callback that gets a job and its number of steps so far."""


@dataclass(frozen=True)
class ProgramOptions:
    """The options that every program of `tcbench numerics` takes."""

    device: Device
    timeout_s: float
    out: Path
    quiet: bool
    json: bool
    details: bool

    def runner(self, setting: TrainingSetting, listen: Listen) -> NumericsRunner:
        """Return a runner of training jobs, which on a CPU runs as many at once as the cores allow."""
        at_once = max(1, machine.usable_cpus() // setting.threads) if self.device.kind == "cpu" else 1
        return NumericsRunner(at_once, self.timeout_s, listen)


def step_counter(advance: Callable[[str, int, int], None], total: int) -> Listen:
    """Return a callback that gets a job's number of finished steps and reports the sum over all jobs to `advance`.
    `total` is the number of steps of all jobs."""
    done: dict[AnyJob, int] = {}

    def listen(job: AnyJob, steps: int) -> None:
        done[job] = steps
        advance("training steps", sum(done.values()), total)

    advance("training steps", 0, total)
    return listen
