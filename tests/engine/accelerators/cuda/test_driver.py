"""The driver's answers, from a library that is called as its own is."""

import ctypes
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from libcuda import one_gpu

from tcbench.core.record import GpuFacts
from tcbench.engine.accelerators.cuda import driver, packages
from tcbench.engine.accelerators.cuda.driver import Gpu, Gpus
from tcbench.engine.accelerators.device import kind_of

NO_GPU = "no NVIDIA GPU (the driver's library, libcuda.so.1, finds none)"


@pytest.fixture(scope="module")
def libcuda(tmp_path_factory):
    """The folder of the library."""
    return one_gpu(tmp_path_factory.mktemp("libcuda"))


@pytest.fixture
def ask_driver(libcuda, monkeypatch):
    """Asks it where the environment says so of its GPUs."""
    real = ctypes.CDLL

    def ask(capability: int = 90, cuda: int = 13000, **environment: int) -> Gpus:
        for name, value in {"CAPABILITY": capability, "DRIVER": cuda, **environment}.items():
            monkeypatch.setenv(name, str(value))
        monkeypatch.setattr(ctypes, "CDLL", lambda name: real(str(libcuda / name)))
        driver.gpus.cache_clear()
        return driver.gpus()

    yield ask
    driver.gpus.cache_clear()


def gpu(index: int = 0, capability: tuple[int, int] = (9, 0), bus: str | None = "0000:3B:00.0") -> Gpu:
    return Gpu(index, "One GPU", capability, 80, 192 * 2**30, bus)


def test_every_gpu_has_its_facts_and_its_place_on_the_bus(ask_driver):
    assert ask_driver(COUNT=2) == Gpus((gpu(0), gpu(1, bus="0000:3C:00.0")), (13, 0), None)


def test_a_driver_that_does_not_tell_the_bus_tells_the_rest(ask_driver):
    assert ask_driver(PCI=801).present == (gpu(bus=None),)


@pytest.mark.parametrize(
    ("environment", "problem"),
    [
        ({"INIT": 100}, NO_GPU),
        ({"COUNT": 0}, NO_GPU),
        ({"INIT": 803}, "no usable NVIDIA driver (it does not start: CUDA error 803)"),
    ],
)
def test_why_there_is_no_gpu_is_said(ask_driver, environment, problem):
    assert ask_driver(**environment) == Gpus((), (13, 0), problem)


def test_without_the_library_there_is_no_driver(monkeypatch):
    monkeypatch.setattr(ctypes, "CDLL", Mock(side_effect=OSError("libcuda.so.1: no such file")))
    assert driver.gpus.__wrapped__() == Gpus(problem="no NVIDIA driver (libcuda.so.1 was not found)")


def test_a_record_gets_the_facts_of_the_cells_own_gpu(ask_driver, monkeypatch):
    ask_driver(COUNT=2)
    monkeypatch.setattr(driver, "version", lambda: "580.65.06")
    assert driver.facts(1) == GpuFacts(
        name="One GPU",
        compute_capability=(9, 0),
        multiprocessors=80,
        memory_bytes=192 * 2**30,
        pci_bus_id="0000:3C:00.0",
        driver="580.65.06",
        driver_cuda="13.0",
    )
    assert driver.facts(2) is None


@pytest.mark.parametrize(
    ("capability", "cuda", "extra"), [(70, 13000, "volta"), (90, 12040, "cuda12"), (75, 13000, "cuda13")]
)
def test_the_drivers_library_alone_tells_which_packages_suit(ask_driver, capability, cuda, extra):
    gpus = ask_driver(capability, cuda)
    assert gpus == Gpus((gpu(capability=divmod(capability, 10)),), (cuda // 1000, cuda % 1000 // 10))
    assert packages.extra_for(gpus).name == extra


@pytest.mark.parametrize(
    ("text", "version"),
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
def test_the_kernel_modules_version_is_read(monkeypatch, tmp_path, text, version):
    path = tmp_path / "version"
    path.write_text(text)
    monkeypatch.setattr(driver, "_VERSION", path)
    assert driver.version() == version
    path.unlink()
    assert driver.version() is None


def test_synchronizing_waits_for_the_current_context(monkeypatch):
    library = SimpleNamespace(cuCtxSynchronize=Mock())
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    kind_of("cuda:0").synchronize()
    library.cuCtxSynchronize.assert_called_once_with()


@pytest.mark.parametrize("status", [0, 201])
def test_the_profiler_is_started_and_stopped_around_even_if_the_driver_will_not(monkeypatch, caplog, status):
    called = []

    def profiler(does):
        return lambda: called.append(does) or status

    library = SimpleNamespace(cuProfilerStart=profiler("start"), cuProfilerStop=profiler("stop"))
    monkeypatch.setattr(ctypes, "CDLL", lambda name: library)
    with pytest.raises(ValueError, match="a step"), driver.profiled():
        assert called == ["start"]
        raise ValueError("a step")
    assert called == ["start", "stop"]
    assert ("CUDA error 201" in caplog.text) == bool(status)
