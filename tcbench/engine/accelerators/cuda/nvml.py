"""GPU monitoring with NVML: settings, and samples of clocks, power and temperature while a trial runs.

The runner's process asks NVML; root is not needed. A field is None if the GPU, its driver or an older nvidia-ml-py does
not answer the query. If NVML is unavailable, GPUs are silently not monitored. Source: NVML API Reference Guide. pynvml
(the module of nvidia-ml-py) is imported when a GPU is opened."""

import logging
import threading
import time
from dataclasses import dataclass
from typing import Any

from tcbench.core.record import GpuSample, GpuSamples, GpuState
from tcbench.engine.accelerators.cuda import driver

logger = logging.getLogger(__name__)

INTERVAL_S = 0.1
"""The time between two samples. NVML's own figures are averages over about as long."""


@dataclass(frozen=True)
class Process:
    """A process that holds GPU memory. `memory_bytes` is None if the driver does not report it."""

    pid: int
    memory_bytes: int | None


class NvmlGpu:
    """A GPU opened through NVML. Call `close` once."""

    def __init__(self, pynvml: Any, handle: Any) -> None:
        self._nvml = pynvml
        self._handle = handle
        self._mismatch: type[Exception] = getattr(pynvml, "NVMLLibraryMismatchError", pynvml.NVMLError)
        self._first_energy_mj: int | None = None

    def state(self) -> GpuState:
        """Return the GPU's settings and limits."""
        nvml = self._nvml
        ecc, persistence = self._ask("nvmlDeviceGetEccMode"), self._ask("nvmlDeviceGetPersistenceMode")
        return GpuState(
            driver=self._ask_system("nvmlSystemGetDriverVersion"),
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
        """Return the GPU's present clocks, power, temperature and load. `time_s`: seconds since the trial began."""
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
        """Return the processes that hold memory of the GPU, for compute or graphics, sorted by process id."""
        processes: dict[int, Process] = {}
        for query in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            for process in self._ask(query) or ():
                processes[process.pid] = Process(process.pid, process.usedGpuMemory)
        return tuple(processes[pid] for pid in sorted(processes))

    def close(self) -> None:
        self._ask_system("nvmlShutdown")

    def _throttle_mask(self) -> int | None:
        """Return the reasons for throttling. The query has a newer and an older name."""
        mask: int | None = self._ask("nvmlDeviceGetCurrentClocksEventReasons")
        return self._ask("nvmlDeviceGetCurrentClocksThrottleReasons") if mask is None else mask

    def _mig(self) -> bool | None:
        modes = self._ask("nvmlDeviceGetMigMode")
        return None if modes is None else bool(modes[0])  # [current, pending]

    def _energy_j(self) -> float | None:
        """Return the energy used since the first call; NVML's counter starts when the driver is loaded. None with MIG,
        where the counter includes the work of the card's other instances."""
        energy_mj: int | None = self._ask("nvmlDeviceGetTotalEnergyConsumption")
        if energy_mj is None:
            return None
        if self._first_energy_mj is None:
            if self._mig():
                return None
            self._first_energy_mj = energy_mj
        return (energy_mj - self._first_energy_mj) / 1000

    def _ask(self, query: str, *arguments: Any) -> Any:
        return self._ask_system(query, self._handle, *arguments)

    def _ask_system(self, query: str, *arguments: Any) -> Any:
        """Return NVML's answer, or None.

        An older nvidia-ml-py lacks the query (AttributeError). With an older driver, some queries raise an
        NVMLLibraryMismatchError, which is not an NVMLError."""
        try:
            return getattr(self._nvml, query)(*arguments)
        except (self._nvml.NVMLError, self._mismatch, AttributeError):
            return None


def open_gpu(index: int) -> NvmlGpu | None:
    """Open the GPU that CUDA calls `index` through NVML. Return None if NVML is unavailable or does not know it."""
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
    """A thread that samples a GPU until `stop` is called. `start`: when the trial began, by `time.monotonic`."""

    def __init__(self, gpu: NvmlGpu, start: float) -> None:
        self._gpu = gpu
        self._start = start
        self._state = gpu.state()
        self._samples: list[GpuSample] = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_ended, name="nvml", daemon=True)
        self._thread.start()

    def stop(self, timed_from_s: float | None = None, timed_to_s: float | None = None) -> GpuSamples:
        """Stop sampling and return all samples. The arguments are the timed pass's begin and end within the trial."""
        self._ended.set()
        self._thread.join()
        self._add_sample()
        self._gpu.close()
        return GpuSamples(
            state=self._state, samples=tuple(self._samples), timed_from_s=timed_from_s, timed_to_s=timed_to_s
        )

    def _sample_until_ended(self) -> None:
        self._add_sample()
        while not self._ended.wait(INTERVAL_S):
            self._add_sample()

    def _add_sample(self) -> None:
        self._samples.append(self._gpu.sample(time.monotonic() - self._start))


def watch(index: int, start: float) -> NvmlWatch | None:
    """Begin to watch the GPU that CUDA calls `index`. Return None if it cannot be opened through NVML."""
    gpu = open_gpu(index)
    return None if gpu is None else NvmlWatch(gpu, start)


def _thousandth(value: int | None) -> float | None:
    return None if value is None else value / 1000
