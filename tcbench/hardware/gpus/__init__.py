"""Facts of GPUs that need not be here, from JSON files: for forecasts and for building cuDNN's plans.

The files beside this module are in the form that cuDNN reads ("device properties"), typed from public figures. A
user's own file in that form serves as well. Standard library only.
"""

import functools
import hashlib
import importlib.resources
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tcbench.core import files
from tcbench.core.errors import SelectionError

_SUFFIX = ".json"
_NAMES = ("V100", "T4", "A100", "L40S", "H100", "H200", "B200")
_POWER_LIMITS_W = {"V100": 300, "T4": 70, "A100": 400, "L40S": 350, "H100": 700, "H200": 700, "B200": 1000}
"""Of NVIDIA's data sheets for these cards, of the SXM form where there is one; from general knowledge."""
_COUNTS = ("deviceVer", "multiProcessorCount", "totalGlobalMem", "memClockRateKHz", "memoryBusWidth", "smClockRateKHz")


@dataclass(frozen=True)
class GpuProperties:
    """The facts of a GPU that plans and routes depend on. `sm` is the compute capability as one number: 90 for 9.0."""

    name: str
    sm: int
    multiprocessors: int
    memory_bytes: int


@dataclass(frozen=True)
class GpuFile:
    """A GPU that need not be there. `name` is how it was asked for (for a user's file: the name within), `device_name`
    what its driver would say, `sm` the compute capability as one number (90 for 9.0), `sm_clock_hz` the highest clock,
    `json` what cuDNN is given."""

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
        """The most that the board draws by default; None for a user's file, whose form does not say it."""
        return _POWER_LIMITS_W.get(self.name)

    @property
    def digest(self) -> str:
        """Tells two files of one name apart."""
        return hashlib.sha256(self.json.encode()).hexdigest()[:16]

    def properties(self) -> GpuProperties:
        return GpuProperties(self.device_name, self.sm, self.multiprocessors, self.memory_bytes)


def names() -> tuple[str, ...]:
    """The GPUs that come with tcbench, oldest first."""
    return _NAMES


def shipped(name: str) -> str | None:
    """The name, as `names` has it, of the GPU that is called so in any case; None for another."""
    return next((known for known in _NAMES if known.upper() == name.strip().upper()), None)


@functools.cache
def load(name_or_path: str) -> GpuFile:
    """The GPU of that name (in any case), or of a user's JSON file. Raises SelectionError."""
    known = shipped(name_or_path)
    if known is not None:
        file = importlib.resources.files(__package__).joinpath(known.lower() + _SUFFIX)
        return _parse(known, file.read_text(encoding="utf-8"), f"GPU {known}")
    path = Path(name_or_path).expanduser()
    if not path.is_file():
        raise SelectionError(f"unknown GPU {name_or_path!r}: expected one of {', '.join(_NAMES)}, or a JSON file")
    try:
        text = files.read(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not UTF-8 text"
        raise SelectionError(f"GPU file {path} cannot be read ({reason}): expected JSON text") from None
    return _parse(None, text, f"GPU file {path}")


def _parse(name: str | None, text: str, where: str) -> GpuFile:
    remedy = "copy one of tcbench/hardware/gpus/*.json and change it"
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
        # 900 is 9.0; the last digit is a revision that plans do not tell apart.
        sm=content["deviceVer"] // 10,
        multiprocessors=content["multiProcessorCount"],
        memory_bytes=content["totalGlobalMem"],
        # Two transfers a clock: the driver's own convention for its memory clock.
        memory_bandwidth_bytes_s=content["memClockRateKHz"] * 1e3 * 2 * content["memoryBusWidth"] / 8,
        sm_clock_hz=content["smClockRateKHz"] * 1e3,
        json=text,
    )
