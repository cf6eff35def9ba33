"""NVML: what a GPU is set to and what it does while a trial runs, asked by the runner's process, without root.

A question that a GPU, its driver or an older nvidia-ml-py does not answer leaves its field None; where NVML cannot be
asked at all there is no GPU to watch, and nothing is said about it. Source: NVML API Reference Guide. pynvml (the
module of nvidia-ml-py) is imported when a GPU is opened."""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from tcbench.core.record import GpuSample, GpuSamples, GpuState
from tcbench.engine.accelerators.cuda import driver

logger = logging.getLogger(__name__)

INTERVAL_S = 0.1
"""Between two samples. NVML's own figures are averages over about as long."""


@dataclass(frozen=True)
class Process:
    """A process that has memory on the GPU. Its memory is None where the driver keeps it to itself."""

    pid: int
    memory_bytes: int | None


class NvmlGpu:
    """One GPU as NVML knows it. Close it once."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._nvml = pynvml
        self._handle = handle
        self._mismatch: type[Exception] = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
        self._first_energy_mj: int | None = None

    def state(self) -> GpuState:
        nvml = self._nvml
        ecc, persistence = self._ask("nvmlDeviceGetEccMode"), self._ask("nvmlDeviceGetPersistenceMode")
        return GpuState(
            driver=_text(self._ask_system("nvmlSystemGetDriverVersion")),
            power_limit_w=_thousandth(self._ask("nvmlDeviceGetEnforcedPowerLimit")),
            default_power_limit_w=_thousandth(self._ask("nvmlDeviceGetPowerManagementDefaultLimit")),
            max_sm_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_SM),
            max_memory_clock_mhz=self._ask("nvmlDeviceGetMaxClockInfo", nvml.NVML_CLOCK_MEM),
            sm_clock_set_mhz=self._ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_SM),
            default_sm_clock_mhz=self._ask("nvmlDeviceGetDefaultApplicationsClock", nvml.NVML_CLOCK_SM),
            memory_clock_set_mhz=self._ask("nvmlDeviceGetApplicationsClock", nvml.NVML_CLOCK_MEM),
            ecc=None if ecc is None else bool(ecc[0]),  # [current, pending]
            mig=self._mig(),
            persistence=None if persistence is None else bool(persistence),
        )

    def sample(self, time_s: float) -> GpuSample:
        """Its clocks, power, temperature and use now; `time_s` is the trial's."""
        nvml = self._nvml
        utilization, memory = self._ask("nvmlDeviceGetUtilizationRates"), self._ask("nvmlDeviceGetMemoryInfo")
        return GpuSample(
            time_s=round(time_s, 4),
            sm_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask("nvmlDeviceGetClockInfo", nvml.NVML_CLOCK_MEM),
            power_w=_thousandth(self._ask("nvmlDeviceGetPowerUsage")),
            temperature_c=self._ask("nvmlDeviceGetTemperature", nvml.NVML_TEMPERATURE_GPU),
            throttle_mask=self._throttle_mask(),
            utilization_percent=None if utilization is None else utilization.gpu,
            memory_used_bytes=None if memory is None else memory.used,
            energy_j=self._energy_j(),
        )

    def processes(self) -> tuple[Process, ...]:
        """The processes with memory on it, for compute or graphics; by process id."""
        processes: dict[int, Process] = {}
        for question in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for process in self._ask(question) or ():
                processes[process.pid] = Process(process.pid, process.usedGpuMemory)
        return tuple(processes[pid] for pid in sorted(processes))

    def close(self) -> None:
        self._ask_system("nvmlShutdown")

    def _throttle_mask(self) -> int | None:
        """The question has a newer and an older name."""
        mask: int | None = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") if mask is None else mask

    def _mig(self) -> bool | None:
        modes = self._ask("nvmlDeviceGetMigMode")
        return None if modes is None else bool(modes[0])  # [current, pending]

    def _energy_j(self) -> float | None:
        """Since the first time it was asked; the counter itself runs since the driver was loaded. Nothing under MIG:
        the counter is the whole card's, neighbours' work included."""
        energy_mj: int | None = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if energy_mj is None:
            return None
        if self._first_energy_mj is None:
            if self._mig():
                return None
            self._first_energy_mj = energy_mj
        return (energy_mj - self._first_energy_mj) / 1000

    def _ask(self, question: str, *more: Any) -> Any:
        return self._ask_system(question, self._handle, *more)

    def _ask_system(self, question: str, *arguments: Any) -> Any:
        """The answer, or None. An AttributeError is an older nvidia-ml-py that does not know the question; of an older
        driver that does not, some questions raise what is no NVMLError."""
        try:
            return getattr(self._nvml, question)(*arguments)
        except (self._nvml.NVMLError, self._mismatch, AttributeError):
            return None


def open_gpu(index: int) -> NvmlGpu | None:
    """The GPU that CUDA calls `index`; None where NVML cannot be asked about it."""
    gpu = next((gpu for gpu in driver.gpus().present if gpu.index == index), None)
    if gpu is None or gpu.pci_bus_id is None:
        return None
    try:
        import pynvml
    except ImportError:
        logger.debug("NVML: nvidia-ml-py is not installed")
        return None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        logger.debug("NVML: %s", error)
        return None
    try:
        return NvmlGpu(pynvml, pynvml.nvmlDeviceGetHandleByPciBusId(gpu.pci_bus_id.encode()))
    except pynvml.NVMLError as error:
        logger.debug("NVML: %s: %s", gpu.pci_bus_id, error)
        pynvml.nvmlShutdown()
        return None


class NvmlWatch:
    """Samples a GPU from a thread, from its making until `stop`. `start` is the trial's start (`time.monotonic`)."""

    def __init__(self, gpu: NvmlGpu, start: float) -> None:
        self._gpu = gpu
        self._start = start
        self._state = gpu.state()
        self._samples: list[GpuSample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_ended, name="nvml", daemon=True)
        self._thread.start()

    def stop(self, timed_from_s: float | None = None, timed_to_s: float | None = None) -> GpuSamples:
        """End it; everything it saw. The times are those of the timed pass, since the trial's start."""
        self._ended.set()
        self._thread.join()
        self._take()
        self._gpu.close()
        return GpuSamples(
            state=self._state, samples=tuple(self._samples), timed_from_s=timed_from_s, timed_to_s=timed_to_s
        )

    def _sample_until_ended(self) -> None:
        self._take()
        while not self._ended.wait(INTERVAL_S):
            self._take()

    def _take(self) -> None:
        self._samples.append(self._gpu.sample(time.monotonic() - self._start))


def watch(index: int, start: float) -> NvmlWatch | None:
    """Begin to watch the GPU that CUDA calls `index`; None where there is nothing to ask."""
    gpu = open_gpu(index)
    return None if gpu is None else NvmlWatch(gpu, start)


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000


def _text(value: Any) -> str | None:
    """Older nvidia-ml-py answers in bytes."""
    return value.decode() if isinstance(value, bytes) else value
