"""The driver's answers, from a stand-in for its library."""

import ctypes
import os
import subprocess
import sys
from typing import Any

import pytest
from libcuda import one_gpu

from tcbench.core.record import GpuFacts
from tcbench.engine.accelerators.cuda import driver
from tcbench.engine.accelerators.cuda.driver import Gpu, Gpus

NO_GPU = "no NVIDIA GPU (the driver's library, libcuda.so.1, is there and finds none)"
ATTRIBUTES = {75: 9, 76: 0, 16: 132}


class StandInDriver:
    """libcuda.so.1 of a machine with two H200; `pci` is what it returns to the question for a bus id."""

    def __init__(self, count: int = 2, status: int = 0, pci: int = 0) -> None:
        self.count, self.status, self.pci = count, status, pci

    def cuInit(self, flags: int) -> int:  # noqa: N802
        return self.status

    def cuDriverGetVersion(self, version: Any) -> int:  # noqa: N802
        version._obj.value = 13000
        return 0

    def cuDeviceGetCount(self, count: Any) -> int:  # noqa: N802
        count._obj.value = self.count
        return 0

    def cuDeviceGet(self, device: Any, index: int) -> int:  # noqa: N802
        device._obj.value = index
        return 0

    def cuDeviceGetName(self, name: Any, length: int, device: Any) -> int:  # noqa: N802
        name.value = b"NVIDIA H200"
        return 0

    def cuDeviceGetPCIBusId(self, text: Any, length: int, device: Any) -> int:  # noqa: N802
        if self.pci == 0:
            text.value = f"0000:{0x3B + device.value:02X}:00.0".encode()
        return self.pci

    def cuDeviceTotalMem_v2(self, memory: Any, device: Any) -> int:  # noqa: N802
        memory._obj.value = 141 * 2**30
        return 0

    def cuDeviceGetAttribute(self, value: Any, which: int, device: Any) -> int:  # noqa: N802
        value._obj.value = ATTRIBUTES[which]
        return 0


@pytest.fixture
def library(monkeypatch):
    def there(standin: StandInDriver | None) -> Gpus:
        def load(name: str) -> StandInDriver:
            assert name == "libcuda.so.1"
            if standin is None:
                raise OSError("no such file")
            return standin

        monkeypatch.setattr(ctypes, "CDLL", load)
        driver.gpus.cache_clear()
        return driver.gpus()

    yield there
    driver.gpus.cache_clear()


def test_every_gpu_has_its_facts_and_its_place_on_the_bus(library):
    there = library(StandInDriver())
    assert there.present == tuple(
        Gpu(index, "NVIDIA H200", (9, 0), 132, 141 * 2**30, bus)
        for index, bus in enumerate(("0000:3B:00.0", "0000:3C:00.0"))
    )
    assert (there.driver_cuda, there.problem) == ((13, 0), None)


def test_a_driver_that_does_not_tell_the_bus_tells_the_rest(library):
    (gpu,) = library(StandInDriver(count=1, pci=801)).present
    assert (gpu.pci_bus_id, gpu.name) == (None, "NVIDIA H200")


@pytest.mark.parametrize(
    ("standin", "problem"),
    [
        (None, "no NVIDIA driver (libcuda.so.1 was not found)"),
        (StandInDriver(status=100), NO_GPU),
        (StandInDriver(count=0), NO_GPU),
        (StandInDriver(status=803), "no usable NVIDIA driver (it does not start: CUDA error 803)"),
    ],
)
def test_why_there_is_no_gpu_is_said(library, standin, problem):
    assert library(standin).problem == problem


def test_a_record_gets_the_facts_of_the_cells_own_gpu(library, monkeypatch):
    library(StandInDriver())
    monkeypatch.setattr(driver, "version", lambda: "580.65.06")
    assert driver.facts(1) == GpuFacts(
        name="NVIDIA H200",
        compute_capability=(9, 0),
        multiprocessors=132,
        memory_bytes=141 * 2**30,
        pci_bus_id="0000:3C:00.0",
        driver="580.65.06",
        driver_cuda="13.0",
    )
    assert driver.facts(2) is None


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory):
    """The folder of a library that is called as the driver's is."""
    return one_gpu(tmp_path_factory.mktemp("libcuda"))


ASK = """
from tcbench.engine.accelerators.cuda import driver, packages
print(driver.gpus())
print(packages.extra_for(driver.gpus()).name)
"""


@pytest.mark.parametrize(
    ("capability", "cuda", "extra"), [("70", "13000", "volta"), ("90", "12040", "cuda12"), ("75", "13000", "cuda13")]
)
def test_the_drivers_library_alone_tells_which_packages_suit(libcuda, capability, cuda, extra):
    environment = {**os.environ, "LD_LIBRARY_PATH": str(libcuda), "CAPABILITY": capability, "DRIVER": cuda}
    done = subprocess.run([sys.executable, "-c", ASK], env=environment, capture_output=True, text=True, timeout=600)
    gpu = Gpu(0, "One GPU", divmod(int(capability), 10), 80, 192 * 2**30, "0000:3B:00.0")
    runs = (int(cuda) // 1000, int(cuda) % 1000 // 10)
    assert done.stdout.splitlines() == [str(Gpus((gpu,), runs)), extra], done.stderr


@pytest.mark.parametrize(
    ("said", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.57.02  Tue Jul 13 16:14:05 UTC 2021\n", "470.57.02"),
        (
            "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  Release Build  (dvs-builder@U22)\n"
            "GCC version:  gcc version 12.3.0 (Ubuntu 12.3.0-1ubuntu1~22.04)\n",
            "580.95.05",
        ),
        ("something else\n", None),
    ],
)
def test_the_kernel_modules_version_is_read(monkeypatch, tmp_path, said, version):
    path = tmp_path / "version"
    path.write_text(said)
    monkeypatch.setattr(driver, "_VERSION", path)
    assert driver.version() == version
    path.unlink()
    assert driver.version() is None


class StandInProfiler:
    def __init__(self, status: int = 0) -> None:
        self.status = status
        self.called: list[str] = []

    def cuProfilerStart(self) -> int:  # noqa: N802
        self.called.append("start")
        return self.status

    def cuProfilerStop(self) -> int:  # noqa: N802
        self.called.append("stop")
        return self.status


@pytest.mark.parametrize("status", [0, 201])
def test_the_profiler_is_started_and_stopped_around_even_if_the_driver_will_not(monkeypatch, caplog, status):
    standin = StandInProfiler(status)
    monkeypatch.setattr(ctypes, "CDLL", lambda name: standin)
    with pytest.raises(ValueError, match="a step"), driver.profiled():
        assert standin.called == ["start"]
        raise ValueError("a step")
    assert standin.called == ["start", "stop"]
    assert ("CUDA error 201" in caplog.text) == bool(status)
