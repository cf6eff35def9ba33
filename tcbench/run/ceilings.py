"""The most that this machine can do: the rate of a matrix product and the bandwidth of its memory, measured and kept.

`python -m tcbench.run.ceilings DEVICE THREADS` measures and prints JSON; it is a process of its own since libraries
read their thread count as they are imported, and so that the device is not left open. Results are kept in the user's
cache by machine and threads. A GPU that is not here has its property file's figures instead.
"""

from __future__ import annotations

import functools
import json
import sys
from collections.abc import Callable, Sequence

import msgspec

from tcbench.analysis.roofline import Ceilings, ConfigPrecision, WorkPart, phase_roofline, precision_of
from tcbench.analysis.summary import CellSummary, by_code, summarise
from tcbench.core import process
from tcbench.core.errors import SelectionError, StoreError, TcbenchError
from tcbench.core.record import Record
from tcbench.engine.accelerators import ceilings
from tcbench.engine.accelerators.ceilings import Measured
from tcbench.engine.accelerators.device import kind_of
from tcbench.engine.accelerators.peaks import peak_rates
from tcbench.engine.backends import model_of
from tcbench.hardware import gpus, machine
from tcbench.run.runner import python_module, worker_environment


def of(summary: CellSummary, fresh: bool = False) -> Ceilings:
    """The ceilings of a cell's device: measured here when it is this machine's, kept from the last time unless `fresh`;
    those of another machine that this user's cache holds; or the figures of a GPU's property file.

    Raises SelectionError where none of these tells.
    """
    kept = None if fresh else _kept(summary)
    if kept is not None:
        return kept
    if _is_here(summary):
        return _ceilings(_keep(summary, _measure(summary)))
    published = None if summary.cell.device == "cpu" else _from_file(summary)
    if published is None:
        raise SelectionError(
            f"the ceilings of {summary.machine or 'an unknown machine'} are not known here; "
            "run `tcbench roofline` on that machine"
        )
    return published


def standing(
    summary: CellSummary, known: Ceilings, timed: Sequence[tuple[WorkPart, ConfigPrecision]], fresh: bool
) -> Ceilings:
    """For `roofline`: the ceilings of a device that no part which was timed there ran faster than. One that was beaten
    is measured anew, unless that was done just now (`fresh`) or the device is not here, and withdrawn where it is still
    beaten."""
    if known.beaten_by(timed) and not fresh and _is_here(summary):
        known = of(summary, fresh=True)
    return known.without(known.beaten_by(timed))


def known(summary: CellSummary) -> Ceilings | None:
    """The same without measuring anything; None where that would be needed."""
    return _kept(summary) or (None if summary.cell.device == "cpu" else _from_file(summary))


def _name_of(summary: CellSummary) -> str:
    return f"{summary.machine}-{summary.cell.threads}" if summary.cell.device == "cpu" else str(summary.machine)


def _ceilings(measured: Measured) -> Ceilings:
    return Ceilings(
        measured.device_name, tuple(measured.flops_s.items()), measured.bandwidth_bytes_s, True, measured.says
    )


def _kept(summary: CellSummary) -> Ceilings | None:
    measured = ceilings.kept(ceilings.path(_name_of(summary)))
    return None if measured is None else _ceilings(measured)


def _keep(summary: CellSummary, measured: Measured) -> Measured:
    """The best ever measured. A cache that cannot be written costs time, never a result."""
    try:
        return ceilings.keep(ceilings.path(_name_of(summary)), measured)
    except StoreError:
        return measured


def _from_file(summary: CellSummary) -> Ceilings | None:
    """A GPU's figures by its name as its driver says it, or would say it of one that is simulated."""
    environment = summary.environment
    gpu_facts = environment.gpu if environment else None
    name = gpu_facts.name if gpu_facts else environment and environment.device_name
    for known_name in gpus.names():
        gpu = gpus.load(known_name)
        if gpu.device_name == name:
            rates = peak_rates(gpu)
            by_precision: tuple[tuple[ConfigPrecision, float], ...] = (
                ("fp32", rates.fp32_flops_s),
                ("tf32", rates.tf32_flops_s),
                ("fp16", rates.fp16_flops_s),
            )
            says = f"the published peak of the {gpu.name}, not measured"
            shown = environment.device_name if environment else gpu.device_name
            return Ceilings(shown, by_precision, gpu.memory_bandwidth_bytes_s, False, says)
    return None


def _is_here(summary: CellSummary) -> bool:
    kind = kind_of(summary.cell.device)
    return kind.simulates is None and any(device.machine == summary.machine for device in kind.devices())


def _measure(summary: CellSummary) -> Measured:
    """In a process of its own, with no more threads than there are processors. Raises TcbenchError."""
    threads = max(1, min(summary.cell.threads, machine.usable_cpus()))
    cell = msgspec.structs.replace(summary.cell, threads=threads)
    command = python_module(sys.executable, "tcbench.run.ceilings", cell.device, str(threads))
    answer = process.ask(command, environment=worker_environment(cell))
    if answer.code:
        raise TcbenchError(f"the ceilings of {summary.machine} could not be measured: {answer.last_line}")
    return msgspec.json.decode(answer.stdout, type=Measured)


# -- in the measuring process --------------------------------------------------------------------------------------


def arithmetic(
    records: Sequence[Record],
) -> tuple[Callable[[CellSummary, Sequence[str]], float], Callable[[CellSummary], str | None]]:
    """The least time of the arithmetic of forward and backward, and whose ceiling it is: of the ceilings that are known
    those that none of these records beat."""
    trials = by_code(records)
    summaries = [s for s in summarise(records) if s.images_per_s is not None and model_of(s.cell)]

    @functools.cache
    def known_of(machine: str | None, device: str, threads: int) -> Ceilings | None:
        here = [s for s in summaries if (s.machine, s.cell.device, s.cell.threads) == (machine, device, threads)]
        found = known(here[0]) if here else None
        if found is None:
            return None
        timed = [entry for s in here for entry in phase_roofline(s, trials[s.key], found).timed]
        return found.without(found.beaten_by(timed))

    def unbeaten(summary: CellSummary) -> Ceilings | None:
        return known_of(summary.machine, summary.cell.device, summary.cell.threads)

    def arithmetic_s(summary: CellSummary, rungs: Sequence[str]) -> float:
        bound, cell = unbeaten(summary), summary.cell
        model = model_of(cell)
        if bound is None or model is None:
            return 0.0
        macs = model.macs(cell.variant, cell.image_size, cell.n_classes)
        # Backward computes as much again for the inputs and for the weights.
        return 3 * 2 * macs * cell.batch_size / bound.flops_s(precision_of(rungs))

    def ceiling(summary: CellSummary) -> str | None:
        bound = unbeaten(summary) if model_of(summary.cell) else None
        return None if bound is None else bound.says

    return arithmetic_s, ceiling


def main() -> None:
    """Measure the device that is named, and print JSON."""
    device, threads = sys.argv[1], int(sys.argv[2])
    value = kind_of(device).ceilings(device, threads)
    print(json.dumps(value))  # noqa: T201  (the process's answer)


if __name__ == "__main__":
    main()
