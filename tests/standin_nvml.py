"""A stand-in for the module pynvml: one GPU, which answers what a test lets it answer."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tcbench.engine.accelerators.cuda import driver
from tcbench.engine.accelerators.cuda.driver import Gpu, Gpus

H200 = Gpu(0, "NVIDIA H200", (9, 0), 132, 141 * 2**30, "0000:3B:00.0")
V100 = Gpu(1, "Tesla V100-SXM2-16GB", (7, 0), 80, 16 * 2**30, "0000:1A:00.0")


class NVMLError(Exception):
    pass


class NVMLLibraryMismatchError(Exception):
    """Not an NVMLError, as in nvidia-ml-py: listing processes raises it if the driver lacks the newest form."""


class StandInNvml(ModuleType):
    """`answers` are by question; one that is an exception is raised, a callable is called. `questions` are those that
    were asked, with their GPUs."""

    NVMLError = NVMLError
    NVMLLibraryMismatchError = NVMLLibraryMismatchError
    NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.open = 0
        self.questions: list[tuple[Any, ...]] = []
        self.answers: dict[Any, Any] = {
            "nvmlSystemGetDriverVersion": "580.65.06",
            "nvmlDeviceGetEnforcedPowerLimit": 700_000,
            "nvmlDeviceGetPowerManagementDefaultLimit": 700_000,
            ("nvmlDeviceGetMaxClockInfo", 1): 1980,
            ("nvmlDeviceGetMaxClockInfo", 2): 3201,
            ("nvmlDeviceGetApplicationsClock", 1): 1980,
            ("nvmlDeviceGetApplicationsClock", 2): 3201,
            ("nvmlDeviceGetDefaultApplicationsClock", 1): 1980,
            ("nvmlDeviceGetClockInfo", 1): 1755,
            ("nvmlDeviceGetClockInfo", 2): 3201,
            "nvmlDeviceGetEccMode": [1, 1],
            "nvmlDeviceGetMigMode": [0, 0],
            "nvmlDeviceGetPersistenceMode": 1,
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=97, memory=60),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(total=141 * 2**30, free=0, used=5 * 2**30),
            "nvmlDeviceGetPowerUsage": 612_345,
            "nvmlDeviceGetTemperature": 54,
            "nvmlDeviceGetCurrentClocksEventReasons": 0x4,
            "nvmlDeviceGetTotalEnergyConsumption": 1_000_000,
            "nvmlDeviceGetComputeRunningProcesses": [],
            "nvmlDeviceGetGraphicsRunningProcesses": [],
        }

    def nvmlInit(self) -> None:  # noqa: N802
        self._answer("nvmlInit", None)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlDeviceGetHandleByPciBusId(self, pci_bus_id: bytes) -> str:  # noqa: N802
        self._answer("nvmlDeviceGetHandleByPciBusId", None)
        return f"the GPU at {pci_bus_id.decode()}"

    def __getattr__(self, question: str) -> Any:
        if not question.startswith("nvml"):
            raise AttributeError(question)

        def ask(*arguments: Any) -> Any:
            self.questions.append((question, *arguments))
            key = (question, arguments[1]) if (question, *arguments[1:2]) in self.answers else question
            return self._answer(key, NVMLError("Not Supported"))

        return ask

    def _answer(self, question: Any, otherwise: Any) -> Any:
        answer = self.answers.get(question, otherwise)
        if isinstance(answer, BaseException):
            raise answer
        return answer() if callable(answer) else answer


@pytest.fixture
def pynvml(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandInNvml]:
    """NVML of a machine where CUDA sees an H200 as 0 and a V100 as 1."""
    standin = StandInNvml()
    monkeypatch.setitem(sys.modules, "pynvml", standin)
    monkeypatch.setattr(driver, "gpus", lambda: Gpus((H200, V100), (13, 0)))
    yield standin
    assert standin.open == 0, "NVML was left open"
