"""Ceilings of a device: the highest rate of a matrix product and the memory bandwidth, measured and cached.

`python -m tcbench.run.ceilings DEVICE THREADS` measures them and prints JSON. It runs as a separate process, because
libraries read their thread count at import, and so that the device is closed afterwards. Results are stored in the
user's cache by machine and threads. For a GPU that is not here, the figures of its property file are used."""

import json
import sys
from collections.abc import Mapping

import msgspec

from tcbench.analysis.summary import CellSummary, summarise
from tcbench.core import process
from tcbench.core.errors import SelectionError, StoreError, TcbenchError
from tcbench.core.progress import Progress
from tcbench.core.record import BUSY, Record
from tcbench.engine.api import Ceilings, Reached, kind_of, timing_model
from tcbench.hardware import gpus, load, machine
from tcbench.hardware.gpus import GpuFile
from tcbench.run.worker_launch import python_module, worker_environment


def find_ceilings(summary: CellSummary, reached: Mapping[str, Reached], *, fresh: bool, progress: Progress) -> Ceilings:
    """Return the ceilings of a cell's device, raised to any higher rate that parts of steps `reached` on it.

    For a device of this machine they come from the cache. They are measured if they are missing there, if
    `fresh`, or if a rate that was reached on this very machine exceeds one of them. Ceilings measured on a busy machine
    are not stored. For another machine they come from the cache, else from the property file of its GPU.

    Raises SelectionError if the ceilings of another machine are unknown."""
    limits, is_here = _cached(summary), _is_here(summary)
    is_same_machine = is_here and machine.is_machine_of(summary.environment)
    beaten = is_same_machine and limits is not None and limits.raised(reached).reached.keys() - limits.reached.keys()
    if is_here and (fresh or limits is None or beaten):
        stage = f"measuring the ceilings of {summary.cell.device}"
        progress(stage, 0, 1)
        measured = _measure(summary)
        if measured.busy:  # too low: the next call measures again
            measured = limits.best(measured) if limits else measured
        limits = measured if measured.busy else _keep(summary, measured)
        progress(stage, 1, 1)
    limits = limits or _from_file(summary)
    if limits is None:
        raise SelectionError(
            f"the ceilings of {summary.machine or 'an unknown machine'} are not known here; "
            "run `tcbench roofline` on that machine"
        )
    raised = limits.raised(reached)
    return _keep(summary, raised) if is_same_machine and raised != limits and not raised.busy else raised


def recorded_ceilings(summary: CellSummary) -> Ceilings | None:
    """Return the ceilings of a cell's device from the cache or its property file, without measuring, or None."""
    return _cached(summary) or _from_file(summary)


def trial_ceilings(record: Record | None) -> Ceilings | None:
    """Return the ceilings of a trial's device from the cache or its property file, without measuring. None without a
    record, or if neither has them."""
    return None if record is None else recorded_ceilings(summarise([record])[0])


def _cache_name(summary: CellSummary) -> str:
    """Return the name under which the ceilings of a device are cached."""
    return f"{summary.machine}-{summary.cell.threads}" if summary.cell.device == "cpu" else str(summary.machine)


def _cached(summary: CellSummary) -> Ceilings | None:
    return Ceilings.load(_cache_name(summary))


def _keep(summary: CellSummary, measured: Ceilings) -> Ceilings:
    """Merge ceilings into those in the cache, and return the highest of both. If the cache cannot be written, return
    `measured`."""
    try:
        return measured.store(_cache_name(summary))
    except StoreError:
        return measured


def _from_file(summary: CellSummary) -> Ceilings | None:
    """Return the published peak rates of a cell's GPU, or None if the GPU has no property file."""
    card = card_of(summary)
    if card is None:
        return None
    says = f"the published peak of the {card.name}, not measured"
    shown = summary.environment.device_name if summary.environment else card.device_name
    return msgspec.structs.replace(timing_model(card).peaks, device_name=shown, says=says)


def card_of(summary: CellSummary) -> GpuFile | None:
    """Return the GPU that a cell ran on or that was simulated, by its device name; None without a property file."""
    environment = summary.environment
    name = environment and (environment.gpu.name if environment.gpu else environment.device_name)
    return next((card for card in map(gpus.load, gpus.NAMES) if card.device_name == name), None)


def _is_here(summary: CellSummary) -> bool:
    """Return whether this machine has a device under the name of the summary's machine."""
    kind = kind_of(summary.cell.device)
    return kind.simulates is None and any(device.machine == summary.machine for device in kind.devices())


def _measure(summary: CellSummary) -> Ceilings:
    """Measure the ceilings of a cell's device in a separate process, with the cell's threads but no more than there are
    processors. Raises TcbenchError."""
    threads = max(1, min(summary.cell.threads, machine.usable_cpus()))
    cell = msgspec.structs.replace(summary.cell, threads=threads)
    command = python_module(sys.executable, "tcbench.run.ceilings", cell.device, str(threads))
    answer = process.ask(command, environment=worker_environment(cell))
    if answer.code:
        raise TcbenchError(f"the ceilings of {summary.machine} could not be measured: {answer.last_line}")
    return msgspec.json.decode(answer.stdout, type=Ceilings)


# -- in the measuring process --------------------------------------------------------------------------------------


def main() -> None:
    """Measure the device named on the command line, and print JSON, with a remark if the CPU was busy otherwise."""
    before = load.own_counts()
    value = kind_of(sys.argv[1]).ceilings(sys.argv[1], int(sys.argv[2]))
    meanwhile = load.between(before, load.own_counts()) if sys.argv[1] == "cpu" else None
    if meanwhile and meanwhile.lost >= BUSY:
        says = (
            f"other processes used {meanwhile.lost:.0%} of the processor time: "
            "too low, not stored, measured again next time"
        )
        value |= {"lost": meanwhile.lost, "says": f"{value['says']} on a busy machine ({says})"}
    print(json.dumps(value))  # noqa: T201  (the answer to the calling process)


if __name__ == "__main__":
    main()
