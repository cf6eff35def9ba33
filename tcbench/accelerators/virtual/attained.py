"""The time that a work takes on a modelled GPU, and the host in the driver to ask for it.

PROVISIONAL, so that the virtual device can be built on it: every work is done at the roofline's bound, all of which is
counted as attained. The table of attained fractions, each row with its source, takes this place.
"""

from __future__ import annotations

from tcbench.accelerators.peaks import peak_rates, work_floor_s
from tcbench.hardware.gpus import GpuFile
from tcbench.work import Work

TABLE = "peak rates (provisional)"
"""Names the table in records; with a digest, where it has rows."""

LATENCY_S = 2e-6
"""Between the end of one kernel and the begin of the next on one stream. PROVISIONAL."""

DRIVER_S = 5e-6
"""The host's time in the driver for one launch, copy or graph. PROVISIONAL."""

_LINK_BYTES_S = {70: 12e9, 75: 12e9, 80: 24e9, 86: 24e9, 89: 24e9, 90: 50e9, 100: 50e9, 103: 50e9, 120: 50e9}
"""PROVISIONAL: pinned host memory to the device, by compute capability."""


def expected_s(work: Work, card: GpuFile) -> float:
    """Seconds from the begin of a launch's work on the device to its end. Raises SelectionError for a card whose peak
    rates are not known."""
    return work_floor_s(work, peak_rates(card), card.memory_bandwidth_bytes_s)


def link_bytes_s(card: GpuFile) -> float:
    """Bytes per second that copies from pinned memory of the host reach."""
    return _LINK_BYTES_S[card.sm]
