"""NVIDIA GPUs as a kind of device. Every start of tcbench imports this module, so methods import what they need."""

import contextlib
import importlib.util
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from tcbench.core import messages
from tcbench.core.finding import Finding
from tcbench.core.packages import Package
from tcbench.core.progress import Progress
from tcbench.core.record import CudnnSettings, GpuFacts
from tcbench.engine.accelerators.cuda import driver, packages
from tcbench.engine.accelerators.cuda.packages import SYNC, Cudnn
from tcbench.engine.accelerators.device import Activities, Device, DeviceKind, OpenDevice, Prospects, Watch, index_of
from tcbench.engine.work import Work
from tcbench.hardware import machine
from tcbench.hardware.gpus import GpuFile, GpuProperties
from tcbench.hardware.software import Support


class Cuda(DeviceKind):
    """NVIDIA GPUs as a kind of device. `DeviceKind` documents the methods."""

    name = "cuda"
    noun = "GPU"
    assumed_flops_s = 20e12
    budget_s = 600.0
    packages = (Package("cupy", SYNC), Cudnn("cudnn", SYNC))
    distributions = (
        "cupy-cuda12x",
        "cupy-cuda13x",
        "nvidia-cudnn-cu12",
        "nvidia-cudnn-cu13",
        "nvidia-cudnn-frontend",
        "nvidia-cublas-cu12",
        "nvidia-cublas",
        "nvidia-cuda-nvrtc-cu12",
        "nvidia-cuda-nvrtc",
        "nvidia-ml-py",
    )
    recorder = "cupti"

    def devices(self) -> tuple[Device, ...]:
        return tuple(
            Device(f"{self.name}:{gpu.index}", gpu.name, gpu.memory_bytes, gpu.compute_capability)
            for gpu in driver.gpus().present
        )

    def of_rank(self, device: str, local_rank: int) -> str:
        return f"{self.name}:{index_of(device) + local_rank}"

    def rank_problem(self, device: str, local_ranks: int) -> str | None:
        left = len(self.devices()) - index_of(device)
        return None if local_ranks <= left else f"each rank needs a GPU, and there are only {left} from {device} on"

    def absence(self) -> str | None:
        problem, cupy = driver.gpus().problem, packages.cupy()
        return f"CUDA packages are installed ({cupy}), but there is {problem}" if problem and cupy else problem

    def facts(self, device: str) -> GpuFacts | None:
        return driver.facts(index_of(device))

    def findings(self) -> Iterator[Finding]:
        from tcbench.engine.accelerators.cuda import checkup

        return checkup.examine()

    def watch(self, device: str, start: float) -> Watch | None:
        from tcbench.engine.accelerators.cuda import nvml

        return nvml.watch(index_of(device), start)

    def synchronize(self) -> None:
        driver.synchronize()

    def profiled(self) -> contextlib.AbstractContextManager[None]:
        return driver.profiled()

    def activities(self) -> Activities:
        from tcbench.engine.accelerators.cuda import cupti

        return cupti.CuptiActivities()

    def recorder_problem(self) -> str | None:
        if importlib.util.find_spec("cupti") is not None:
            return None
        return f"cupti-python is not installed: {packages.remedy(packages.CUPTI, packages.extra_for(driver.gpus()))}"

    def nsys_options(self, version: tuple[int, int]) -> tuple[str, ...]:
        """Return options to record only what runs within `profiled`, without ending the command afterwards."""
        options = ("--trace=cuda,nvtx", "--capture-range=cudaProfilerApi", "--capture-range-end=stop")
        in_graphs = ("--cuda-graph-trace=node",) if version >= (2021, 5) else ()  # older versions lack the option
        return options + in_graphs

    def out_of_memory(self, device: str, error: Exception) -> Exception | None:
        from tcbench.engine.accelerators import out_of_memory

        gpus, index = driver.gpus().present, index_of(device)
        return out_of_memory.from_error(error, gpus[index].memory_bytes if index < len(gpus) else None)

    def open(self, device: str, settings: CudnnSettings, threads: int, host_speed: float = 1.0) -> OpenDevice:
        from tcbench.engine.accelerators.cuda.live import CudaAccelerator

        accelerator = CudaAccelerator(index_of(device), settings, messages.fresh_autotune())
        return OpenDevice(
            accelerator,
            accelerator.clock,
            accelerator.peak_bytes,
            accelerator.enter,
            accelerator.plan_choices,
            reducer=accelerator.reducer,
        )

    def build_ahead(
        self, device: str, works: Callable[[GpuProperties], Iterable[tuple[Work, CudnnSettings]]], progress: Progress
    ) -> str:
        from tcbench.engine.accelerators.cuda.cudnn import ahead

        if (facts := driver.facts(index_of(device))) is not None:
            major, minor = facts.compute_capability
            gpu = GpuProperties(facts.name, 10 * major + minor, facts.multiprocessors, facts.memory_bytes)
            return ahead.build(index_of(device), gpu, works(gpu), machine.usable_cpus(), progress)
        return ""

    def ceilings(self, device: str, threads: int) -> dict[str, Any]:
        from tcbench.engine.accelerators.cuda import ceilings

        return ceilings.measure(index_of(device))

    def absent(self, figures: GpuFile) -> Device:
        return Device(f"{self.name}:0", figures.device_name, figures.memory_bytes, figures.compute_capability)

    def support(self, compute_capability: tuple[int, int]) -> Support:
        return packages.support(compute_capability)

    def misfit(self, figures: GpuFile) -> str | None:
        return packages.cudnn_misfit(figures.compute_capability)

    def prospects(
        self, works: Iterable[tuple[Work, int]], figures: GpuFile, *, fresh: bool, processes: int, progress: Progress
    ) -> Prospects:
        from tcbench.engine.accelerators.cuda import prospects

        return prospects.forecast_works(works, figures, fresh=fresh, processes=processes, progress=progress)


KIND = Cuda()
