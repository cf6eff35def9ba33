"""Which device a run uses: `auto`, `cpu` or `cuda:N` becomes a Device, or one line that says why not."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from tcbench.accelerators.cuda import driver, packages
from tcbench.core.errors import SelectionError
from tcbench.core.rung import Package
from tcbench.hardware import machine

_NONE = Package("", "")
"""Stands for a kind that no backend runs on."""


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


def find(selector: str, kinds: Mapping[str, Package | None]) -> Device:
    """The device that a selector means. `kinds`: what the backends run on, with the package that is missing for it.

    `auto` takes the first GPU when there is one and all is there to use it, else the CPU. Raises SelectionError.
    """
    if selector == "cpu":
        return cpu()
    if selector == "auto":
        found = driver.gpus().found if kinds.get("cuda", _NONE) is None else ()
        return _gpu(found[0]) if found else cpu()
    match = re.fullmatch(r"cuda(?::(\d+))?", selector)
    if not match:
        raise SelectionError(f"--device {selector}: expected auto, cpu or cuda:N")
    there, cupy = driver.gpus(), packages.cupy()
    if there.problem:
        though = f"CUDA packages are installed ({cupy}), but there is " if cupy else ""
        raise SelectionError(
            f"--device {selector}: {though}{there.problem}; `tcbench doctor` tells more, --device cpu works"
        )
    index = int(match[1] or 0)
    if index >= len(there.found):
        names = ", ".join(f"cuda:{gpu.index} ({gpu.name})" for gpu in there.found)
        raise SelectionError(f"--device {selector}: no such GPU; there is {names}")
    missing = kinds.get("cuda", _NONE)
    if missing is _NONE:
        raise SelectionError(f"--device {selector}: no backend of this scenario runs on a GPU; use --device cpu")
    if missing is not None:
        raise SelectionError(f"--device {selector}: needs the package {missing.module}: {missing.install}")
    return _gpu(there.found[index])


def _gpu(gpu: driver.Gpu) -> Device:
    return Device(f"cuda:{gpu.index}", gpu.name, gpu.memory_bytes, gpu.compute_capability)
