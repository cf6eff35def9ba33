"""Compilation before a run: all cores build what its trials would otherwise build one after another."""

import logging
from collections.abc import Iterable

from tcbench.core.progress import Progress
from tcbench.core.record import DEFAULT_BACKEND, Cell, CudnnSettings
from tcbench.engine.api import Work, kind_of
from tcbench.hardware import machine
from tcbench.hardware.gpus import GpuProperties

_LOG = logging.getLogger(__name__)

_MOST_PROCESSES = 8
"""The greatest number of processes that trace steps. Each loads the framework, which takes memory."""


def build(cells: Iterable[Cell], device: str, progress: Progress) -> str:
    """Build what the trials of these cells need on a device, such as compiled kernels.

    Return a sentence about what was built, or an empty text if nothing was. Failures are ignored: a trial builds what
    is missing, or reports why it cannot."""
    single_rank_cells = [cell for cell in dict.fromkeys(cells) if cell.backend == DEFAULT_BACKEND and cell.ranks == 1]

    def works(properties: GpuProperties) -> Iterable[tuple[Work, CudnnSettings]]:
        """Yield the operations of all cells that can be traced for a GPU, each with its cell's cuDNN settings."""
        from tcbench.run import demand  # slow to import, and few kinds of device need it

        processes = min(_MOST_PROCESSES, machine.usable_cpus())
        demands = demand.trace_all(single_rank_cells, properties, fresh=False, processes=processes, progress=progress)
        for cell, traced in demands.items():
            if isinstance(traced, demand.Demand):
                yield from ((work, cell.cudnn) for work, _ in traced.works)

    try:
        if single_rank_cells:
            return kind_of(device).build_ahead(device, works, progress)
    except Exception as error:
        _LOG.info("plans are left to the trials: %s", error)
    return ""
