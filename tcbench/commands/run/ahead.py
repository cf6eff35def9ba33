"""What a run's trials would build one after another, built by all cores before the first."""

import logging
from collections.abc import Iterable

from tcbench.core.record import Cell, CudnnSettings
from tcbench.engine.accelerators.device import Progress, kind_of
from tcbench.engine.backends import DEFAULT
from tcbench.engine.work import Work
from tcbench.hardware import machine
from tcbench.hardware.gpus import GpuProperties

_LOG = logging.getLogger(__name__)

_MOST_PROCESSES = 8
"""Each that traces a step has the framework loaded."""


def build(cells: Iterable[Cell], device: str, progress: Progress) -> str:
    """Build for a device what these cells' trials need, as far as it can be built: a trial builds what it lacks, or
    says why not. Return a sentence about what was built before this run; empty if there is nothing to say."""
    ours = [cell for cell in dict.fromkeys(cells) if cell.backend == DEFAULT and cell.ranks == 1]

    def works(properties: GpuProperties) -> Iterable[tuple[Work, CudnnSettings]]:
        from tcbench.run import demand  # with what traces, which few kinds of device ask for

        processes = min(_MOST_PROCESSES, machine.usable_cpus())
        demands = demand.trace_all(ours, properties, fresh=False, processes=processes, progress=progress)
        for cell, traced in demands.items():
            if isinstance(traced, demand.Demand):
                yield from ((work, cell.cudnn) for work, _ in traced.works)

    try:
        if ours:
            return kind_of(device).build_ahead(device, works, progress)
    except Exception as error:
        _LOG.info("plans are left to the trials: %s", error)
    return ""
