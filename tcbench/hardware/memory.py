"""Peak memory of this process, from Linux's own books."""

from pathlib import Path

_STATUS = Path("/proc/self/status")


def peak_resident_bytes() -> int:
    """The most memory this process has ever had resident (VmHWM). Not `ru_maxrss`: that one a child inherits from the
    process that started it."""
    for line in _STATUS.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"{_STATUS} has no VmHWM line")
