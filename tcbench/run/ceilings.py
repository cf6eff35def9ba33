"""The most that this machine can do: the rate of a matrix product and the bandwidth of its memory, measured and kept.

`python -m tcbench.run.ceilings DEVICE THREADS` measures and prints JSON; it is a process of its own since libraries
read their thread count as they are imported, and so that the device is not left open. Results are kept in the user's
cache by machine and threads. A GPU that is not here has its property file's figures instead.
"""

import json
import platform
import sys
from collections.abc import Mapping

import msgspec

from tcbench.analysis.summary import CellSummary, summarise
from tcbench.core import process
from tcbench.core.errors import SelectionError, StoreError, TcbenchError
from tcbench.core.progress import Progress
from tcbench.core.record import BUSY, Record
from tcbench.engine.api import Ceilings, Reached, attained, kind_of
from tcbench.hardware import gpus, load, machine
from tcbench.hardware.gpus import GpuFile
from tcbench.run.worker_launch import python_module, worker_environment


def of(summary: CellSummary, reached: Mapping[str, Reached], *, fresh: bool, progress: Progress) -> Ceilings:
    """The ceilings of a cell's device: measured here when it is this machine's, kept from the last time unless `fresh`;
    those of another machine that this user's cache holds; or the figures of a GPU's property file. None is lower than
    what parts of steps `reached`: one that this very machine has beaten is measured anew, and if it still is, what was
    reached is kept in its place.

    Raises SelectionError where none of these tells.
    """
    limits, here = _kept(summary), _is_here(summary)
    ours = here and _is_this_very(summary)
    beaten = ours and limits is not None and limits.raised(reached).reached.keys() - limits.reached.keys()
    if here and (fresh or limits is None or beaten):
        what = f"measuring the ceilings of {summary.cell.device}"
        progress(what, 0, 1)
        measured = _measure(summary)
        if measured.busy:  # too low: the next call measures again
            measured = limits.best(measured) if limits else measured
        limits = measured if measured.busy else _keep(summary, measured)
        progress(what, 1, 1)
    limits = limits or _from_file(summary)
    if limits is None:
        raise SelectionError(
            f"the ceilings of {summary.machine or 'an unknown machine'} are not known here; "
            "run `tcbench roofline` on that machine"
        )
    raised = limits.raised(reached)
    return _keep(summary, raised) if ours and raised != limits and not raised.busy else raised


def known(summary: CellSummary) -> Ceilings | None:
    """As `of`, but nothing is measured; None where nothing tells."""
    return _kept(summary) or _from_file(summary)


def of_record(record: Record | None) -> Ceilings | None:
    """The same of a trial's device."""
    return None if record is None else known(summarise([record])[0])


def _name_of(summary: CellSummary) -> str:
    return f"{summary.machine}-{summary.cell.threads}" if summary.cell.device == "cpu" else str(summary.machine)


def _kept(summary: CellSummary) -> Ceilings | None:
    return Ceilings.load(_name_of(summary))


def _keep(summary: CellSummary, measured: Ceilings) -> Ceilings:
    """The best ever measured or reached. A cache that cannot be written costs time, never a result."""
    try:
        return measured.store(_name_of(summary))
    except StoreError:
        return measured


def _from_file(summary: CellSummary) -> Ceilings | None:
    """The figures of a GPU's property file."""
    card = card_of(summary)
    if card is None:
        return None
    says = f"the published peak of the {card.name}, not measured"
    shown = summary.environment.device_name if summary.environment else card.device_name
    return msgspec.structs.replace(attained(card).peaks, device_name=shown, says=says)


def card_of(summary: CellSummary) -> GpuFile | None:
    """The known GPU that a cell ran on, by its name as its driver says it, or would say it of one that is simulated."""
    environment = summary.environment
    name = environment and (environment.gpu.name if environment.gpu else environment.device_name)
    return next((card for card in map(gpus.load, gpus.names()) if card.device_name == name), None)


def _is_here(summary: CellSummary) -> bool:
    kind = kind_of(summary.cell.device)
    return kind.simulates is None and any(device.machine == summary.machine for device in kind.devices())


def _is_this_very(summary: CellSummary) -> bool:
    """Whether the facts of a machine that is here by its name are this one's: machines of one name may differ."""
    facts = summary.environment
    if facts is None or facts.processor not in ("", machine.processor()):
        return False
    return (facts.kernel, facts.memory_bytes) == (platform.release(), machine.memory_bytes())


def _measure(summary: CellSummary) -> Ceilings:
    """In a process of its own, with no more threads than there are processors. Raises TcbenchError."""
    threads = max(1, min(summary.cell.threads, machine.usable_cpus()))
    cell = msgspec.structs.replace(summary.cell, threads=threads)
    command = python_module(sys.executable, "tcbench.run.ceilings", cell.device, str(threads))
    answer = process.ask(command, environment=worker_environment(cell))
    if answer.code:
        raise TcbenchError(f"the ceilings of {summary.machine} could not be measured: {answer.last_line}")
    return msgspec.json.decode(answer.stdout, type=Ceilings)


# -- in the measuring process --------------------------------------------------------------------------------------


def main() -> None:
    """Measure the device that is named, and print JSON."""
    before = load.own_counts()
    value = kind_of(sys.argv[1]).ceilings(sys.argv[1], int(sys.argv[2]))
    meanwhile = load.between(before, load.own_counts()) if sys.argv[1] == "cpu" else None
    if meanwhile and meanwhile.lost >= BUSY:
        says = f"others had {meanwhile.lost:.0%} of the processor time: too low, not kept, measured again next time"
        value |= {"lost": meanwhile.lost, "says": f"{value['says']} on a busy machine ({says})"}
    print(json.dumps(value))  # noqa: T201  (the process's answer)


if __name__ == "__main__":
    main()
