"""Peak memory of this process, from Linux's own books."""

from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_resident_bytes() -> int:
    """The most memory this process ever had resident: VmHWM, since a child inherits `ru_maxrss` from its parent."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no VmHWM line")
