"""Properties of GPUs from JSON files, for forecasts and for cuDNN's plans on machines without the GPU.

The files in this folder have cuDNN's form ("device properties") and contain public figures. Users can provide files of
the same form. Standard library only."""

import functools
import hashlib
import importlib.resources
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcbench.core import files
from tcbench.core.errors import SelectionError

_POWER_LIMITS_W = {"V100": 300, "T4": 70, "A100": 400, "L40S": 350, "H100": 700, "H200": 700, "B200": 1000}
"""Default power limits, from general knowledge of NVIDIA's data sheets; for the SXM form if there is one."""
NAMES = tuple(_POWER_LIMITS_W)
"""The names of the GPUs that come with tcbench, oldest first."""
_COUNTS = ("deviceVer", "multiProcessorCount", "totalGlobalMem", "memClockRateKHz", "memoryBusWidth", "smClockRateKHz")


ALLOWANCE_BYTES = 500 * 2**20
"""An estimate of the GPU memory that a process holds beside its arrays: the CUDA context (300 to 500 MiB on data-centre
GPUs), and the kernels of cuDNN and tcbench, which are loaded at first use. It grows with the driver's version, the
number of multiprocessors and the kernels in use."""


@dataclass(frozen=True)
class GpuProperties:
    """The properties of a GPU that plans and routes depend on. `sm`: the compute capability as a number, 90 for 9.0."""

    name: str
    sm: int
    multiprocessors: int
    memory_bytes: int


@dataclass(frozen=True)
class GpuFile:
    """The properties of a GPU from a JSON file; the machine need not have the GPU.

    - `name`: the GPU's name in tcbench, or `device_name` for a user's file; `device_name`: its name in the driver.
    - `sm`: the compute capability as a number (90 for 9.0); `sm_clock_hz`: the highest clock.
    - `json`: the file's text, which cuDNN reads."""

    name: str
    device_name: str
    sm: int
    multiprocessors: int
    memory_bytes: int
    memory_bandwidth_bytes_s: float
    sm_clock_hz: float
    json: str

    @property
    def compute_capability(self) -> tuple[int, int]:
        return divmod(self.sm, 10)

    @property
    def power_limit_w(self) -> float | None:
        """The default power limit of the board; None for a user's file, which does not contain it."""
        return _POWER_LIMITS_W.get(self.name)

    @property
    def digest(self) -> str:
        """A digest of the file, which distinguishes files with the same name."""
        return hashlib.sha256(self.json.encode()).hexdigest()[:16]

    def properties(self) -> GpuProperties:
        return GpuProperties(self.device_name, self.sm, self.multiprocessors, self.memory_bytes)


def shipped_name(text: str) -> str | None:
    """Return the name in NAMES that equals a text except for case; None if there is none."""
    return next((name for name in NAMES if name.upper() == text.strip().upper()), None)


@functools.cache
def load(name_or_path: str) -> GpuFile:
    """Return the GPU with a name, in any case, or from a user's JSON file. Raises SelectionError."""
    name = shipped_name(name_or_path)
    if name is not None:
        file = importlib.resources.files(__package__).joinpath(f"{name.lower()}.json")
        return _parse(name, file.read_text(encoding="utf-8"), f"GPU {name}")
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        raise SelectionError(f"unknown GPU {name_or_path!r}: expected one of {', '.join(NAMES)}, or a JSON file")
    try:
        text = files.read(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SelectionError(f"GPU file {path} cannot be read ({reason}): expected JSON text") from None
    return _parse(None, text, f"GPU file {path}")


def _parse(name: str | None, text: str, where: str) -> GpuFile:
    """Return the GPU that a JSON text describes. Raises SelectionError with the first mistake in it."""
    remedy = "start from a copy of a file in tcbench/hardware/gpus/"
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SelectionError(f"{where} is not JSON ({error}): {remedy}") from None
    if not isinstance(content, dict):
        raise SelectionError(f"{where}: expected a JSON object: {remedy}")
    for key in _COUNTS:
        value = content.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
            raise SelectionError(f"{where}: {key} must be a whole number above 0, not {value!r}: {remedy}")
    device_name = content.get("deviceName")
    if not isinstance(device_name, str) or not device_name.strip():
        raise SelectionError(f"{where}: deviceName must be the GPU's name, not {device_name!r}: {remedy}")
    return GpuFile(
        name=name or device_name,
        device_name=device_name,
        # 900 stands for 9.0. Plans do not depend on the last digit, a revision.
        sm=content["deviceVer"] // 10,
        multiprocessors=content["multiProcessorCount"],
        memory_bytes=content["totalGlobalMem"],
        # Two transfers per clock: the driver's convention for memory clocks.
        memory_bandwidth_bytes_s=content["memClockRateKHz"] * 1e3 * 2 * content["memoryBusWidth"] / 8,
        sm_clock_hz=content["smClockRateKHz"] * 1e3,
        json=text,
    )
