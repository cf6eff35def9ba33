"""What this machine can do at most: the rate of a matrix product and the bandwidth of its memory, measured and kept.

`python -m tcbench.run.ceilings DEVICE THREADS` measures and prints JSON; it is a process of its own since libraries
read their thread count as they are imported, and so that CUDA is not left open. Results are kept in the user's cache by
machine and threads. A GPU that is not here has its property file's figures instead.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from tcbench.analysis.floor import peak_rates
from tcbench.analysis.roofline import Ceilings, Precision
from tcbench.analysis.summary import CellSummary
from tcbench.core import cache, files
from tcbench.core.errors import SelectionError, StoreError, TcbenchError
from tcbench.hardware import machine
from tcbench.run.runner import python_module, worker_environment

VERSION = "ceilings-v1"
"""Names the form of what is kept."""

ROUNDS = 9
"""Runs take turns, so that a machine whose speed drifts does so for all. A ceiling is the best of them, as in STREAM
(J. McCalpin, 1995): whatever else the machine does can only lower a rate."""
PRODUCT_SIZE = 2048
COPY_BYTES = 256 * 2**20
"""Of each array: far more than any cache holds."""


def of(summary: CellSummary, fresh: bool = False) -> Ceilings:
    """The ceilings of a cell's device: measured here when it is this machine's, kept from the last time unless `fresh`;
    those of another machine that this user's cache holds; or the figures of a GPU's property file.

    Raises SelectionError where none of these tells.
    """
    kept = None if fresh else _kept(summary)
    if kept is not None:
        return kept
    if _is_here(summary):
        value = _measure(summary)
        _keep(summary, value)
        return _from_json(value)
    told = None if summary.cell.device == "cpu" else _from_file(summary)
    if told is None:
        raise SelectionError(
            f"the ceilings of {summary.machine or 'an unknown machine'} are not known here; "
            "run `tcbench roofline` on that machine"
        )
    return told


def known(summary: CellSummary) -> Ceilings | None:
    """The same without measuring anything; None where that would be needed."""
    found = _kept(summary)
    return found or (None if summary.cell.device == "cpu" else _from_file(summary))


def _name_of(summary: CellSummary) -> str:
    return f"{summary.machine}-{summary.cell.threads}" if summary.cell.device == "cpu" else str(summary.machine)


def _path(summary: CellSummary) -> Path:
    return cache.folder(VERSION) / f"{machine.slug(_name_of(summary))}.json"


def _kept(summary: CellSummary) -> Ceilings | None:
    try:
        return _from_json(json.loads(_path(summary).read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(summary: CellSummary, value: Mapping[str, Any]) -> None:
    """A cache that cannot be written costs time, never a result."""
    with contextlib.suppress(StoreError):
        files.write(_path(summary), json.dumps(value).encode())


def _from_json(value: Mapping[str, Any]) -> Ceilings:
    return Ceilings(
        device_name=str(value["device_name"]),
        rates=tuple((name, float(rate)) for name, rate in value["flops_s"].items()),
        bandwidth_bytes_s=float(value["bandwidth_bytes_s"]),
        measured=True,
        says=str(value["says"]),
    )


def _from_file(summary: CellSummary) -> Ceilings | None:
    """A GPU's figures by its name as its driver says it."""
    from tcbench.accelerators.cuda import properties

    name = summary.environment.device_name if summary.environment else None
    for known_name in properties.names():
        gpu = properties.load(known_name)
        if gpu.device_name == name:
            rates = peak_rates(gpu)
            by_precision: tuple[tuple[Precision, float], ...] = (
                ("fp32", rates.fp32_flops_s),
                ("tf32", rates.tf32_flops_s),
                ("fp16", rates.fp16_flops_s),
            )
            says = f"the published peak of the {gpu.name}, not measured"
            return Ceilings(gpu.device_name, by_precision, gpu.memory_bandwidth_bytes_s, False, says)
    return None


def _is_here(summary: CellSummary) -> bool:
    device = summary.cell.device
    if device == "cpu":
        return summary.machine == machine.machine_name(machine.cpu_name(), device)
    from tcbench.accelerators.cuda import driver

    return any(machine.machine_name(gpu.name, device) == summary.machine for gpu in driver.gpus().found)


def _measure(summary: CellSummary) -> dict[str, Any]:
    """In a process of its own, with no more threads than there are processors. Raises TcbenchError."""
    threads = max(1, min(summary.cell.threads, machine.usable_cpus()))
    cell = msgspec.structs.replace(summary.cell, threads=threads)
    command = python_module(sys.executable, "tcbench.run.ceilings", cell.device, str(threads))
    environment = worker_environment(cell)
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no reason given"])[-1]
        raise TcbenchError(f"the ceilings of {summary.machine} could not be measured: {last}")
    value: dict[str, Any] = json.loads(done.stdout)
    return value


# -- in the measuring process --------------------------------------------------------------------------------------


def measure_host(
    threads: int, size: int = PRODUCT_SIZE, n_bytes: int = COPY_BYTES, rounds: int = ROUNDS
) -> dict[str, Any]:
    """float32 product of two size x size matrices (2 size^3 FLOP); and by all threads a copy of `n_bytes` and a scaling
    of them in place, each byte read once and written once. The faster of these two is the bandwidth: processors that
    fetch a line before they overwrite it move a third more for a copy than STREAM counts."""
    import numpy as np

    a = np.random.default_rng(0).standard_normal((size, size), dtype=np.float32)
    b, c = a.T.copy(), np.empty_like(a)
    source = np.ones(n_bytes // 4, np.float32)
    target = np.zeros_like(source)
    slices = [slice(len(source) * i // threads, len(source) * (i + 1) // threads) for i in range(threads)]

    def by_threads(run: Callable[[slice], object]) -> None:
        # NumPy lets go of the interpreter meanwhile.
        parts = [threading.Thread(target=run, args=(s,)) for s in slices]
        for part in parts:
            part.start()
        for part in parts:
            part.join()

    product_s, copy_s, scale_s = interleaved(
        (
            lambda: np.matmul(a, b, out=c),
            lambda: by_threads(lambda s: np.copyto(target[s], source[s])),
            lambda: by_threads(lambda s: np.multiply(target[s], np.float32(1), out=target[s])),
        ),
        rounds,
    )
    return {
        "device_name": machine.cpu_name(),
        "flops_s": {"fp32": 2 * size**3 / product_s},
        "bandwidth_bytes_s": 2 * source.nbytes / min(copy_s, scale_s),
        "says": f"a matrix product and passes over memory by {threads} thread{'s' if threads > 1 else ''}, measured",
    }


def interleaved(runs: tuple[Callable[[], Any], ...], rounds: int) -> list[float]:
    """Least seconds of each, one round of all after the other; a first round warms up and is not counted."""
    times: list[list[float]] = [[] for _ in runs]
    for _ in range(rounds + 1):
        for run, found in zip(runs, times, strict=True):
            begin = time.perf_counter()
            run()
            found.append(time.perf_counter() - begin)
    return [min(found[1:]) for found in times]


def main() -> None:
    """Measure the device that is named, and print JSON."""
    device, threads = sys.argv[1], int(sys.argv[2])
    if device == "cpu":
        value = measure_host(threads)
    else:
        from tcbench.accelerators.cuda import ceilings

        value = ceilings.measure(int(device.partition(":")[2] or 0))
    print(json.dumps(value))  # noqa: T201  (the process's answer)


if __name__ == "__main__":
    main()
