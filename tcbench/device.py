"""Which device a run uses: `auto`, `cpu` or `cuda:N` becomes a Device, or one line that says why not."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass

from tcbench import machine
from tcbench.backends.cuda import driver
from tcbench.errors import SelectionError


@dataclass(frozen=True)
class Device:
    """A device that is there. `name` is "cpu" or "cuda:N"; `title` is what its maker calls it."""

    name: str
    title: str
    memory_bytes: int
    compute_capability: tuple[int, int] | None = None

    @property
    def kind(self) -> str:
        return self.name.partition(":")[0]

    @property
    def machine(self) -> str:
        """The folder of its results."""
        return machine.machine_name(self.title, self.name)


def cpu() -> Device:
    """The host's processor."""
    return Device("cpu", machine.cpu_name(), machine.memory_bytes())


def find(selector: str, supported: Collection[str]) -> Device:
    """The device that a selector means, among the kinds that the backends support.

    `auto` takes the first GPU when there is one and a backend runs on it, else the CPU. Raises SelectionError.
    """
    if selector == "cpu":
        return cpu()
    if selector == "auto":
        found = driver.gpus().found if "cuda" in supported else ()
        return _gpu(found[0]) if found else cpu()
    match = re.fullmatch(r"cuda(?::(\d+))?", selector)
    if not match:
        raise SelectionError(f"--device {selector}: expected auto, cpu or cuda:N")
    there = driver.gpus()
    if there.problem:
        raise SelectionError(f"--device {selector}: {there.problem}; `tcbench doctor` tells more, --device cpu works")
    index = int(match[1] or 0)
    if index >= len(there.found):
        names = ", ".join(f"cuda:{gpu.index} ({gpu.name})" for gpu in there.found)
        raise SelectionError(f"--device {selector}: no such GPU; there is {names}")
    if "cuda" not in supported:
        raise SelectionError(f"--device {selector}: this version of tcbench runs on the CPU only; use --device cpu")
    return _gpu(there.found[index])


def _gpu(gpu: driver.Gpu) -> Device:
    return Device(f"cuda:{gpu.index}", gpu.name, gpu.memory_bytes, gpu.compute_capability)
