"""What the programs of `tcbench numerics` have in common: where they run, and how they show progress."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tcbench.commands.numerics.runner import NumericsRunner
from tcbench.core.numerics import AnyJob, TrainingSetting
from tcbench.engine.api import Device
from tcbench.hardware import machine

Listen = Callable[[AnyJob, int], None]
"""Told a job and its steps so far."""


@dataclass(frozen=True)
class Call:
    """What each of this command's programs is told: where it runs, for how long at most, and how it shows what."""

    device: Device
    timeout_s: float
    out: Path
    quiet: bool
    json: bool
    details: bool

    def runner(self, setting: TrainingSetting, listen: Listen) -> NumericsRunner:
        """Runs training jobs, on a processor as many at once as it has room for."""
        at_once = max(1, machine.usable_cpus() // setting.threads) if self.device.kind == "cpu" else 1
        return NumericsRunner(at_once, self.timeout_s, listen)


def counting(advance: Callable[[str, int, int], None], total: int) -> Listen:
    """Shows the steps of all jobs."""
    done: dict[AnyJob, int] = {}

    def listen(job: AnyJob, steps: int) -> None:
        done[job] = steps
        advance("training steps", sum(done.values()), total)

    advance("training steps", 0, total)
    return listen
