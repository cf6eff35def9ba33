import functools

import pytest

from tcbench.core.errors import SelectionError
from tcbench.core.packages import Package
from tcbench.engine.accelerators import device
from tcbench.engine.accelerators.cuda import driver, packages
from tcbench.engine.accelerators.cuda.driver import Gpu, Gpus
from tcbench.engine.accelerators.cuda.packages import Installed
from tcbench.hardware import machine

V100 = Gpu(0, "Tesla V100-SXM2-16GB", (7, 0), 80, 16 * 2**30)
BOTH = {"cpu": None, "cuda": None}
CUPY = Package("cupy", "uv sync --extra cuda12")


@pytest.fixture
def gpus(monkeypatch):
    def set_gpus(*present: Gpu, problem: str | None = None) -> None:
        monkeypatch.setattr(driver, "gpus", lambda: Gpus(present, (12, 4), problem))

    monkeypatch.setattr(packages, "cupy", lambda: Installed(packages.CUPY, "cupy-cuda12x", "14.2.0", 12))
    return set_gpus


def test_auto_takes_the_first_gpu_where_a_backend_runs_on_it(gpus):
    gpus(V100)
    assert device.find_device("auto", BOTH).name == "cuda:0"
    assert device.find_device("auto", {"cpu": None}).name == "cpu"
    assert device.find_device("auto", {"cpu": None, "cuda": CUPY}).name == "cpu"


def test_auto_takes_the_cpu_where_there_is_no_gpu(gpus):
    gpus(problem="no NVIDIA driver")
    assert device.find_device("auto", BOTH) == device.host_device()


def test_a_gpu_keeps_its_facts(gpus):
    gpus(V100)
    v100 = device.find_device("cuda", BOTH)
    assert (v100.kind, v100.title, v100.compute_capability) == ("cuda", V100.name, (7, 0))
    assert v100.machine == "tesla-v100-sxm2-16gb"


@pytest.mark.parametrize("selector", ["tpu", "cuda:", "cuda:x", "CPU", "", "cuda:-1"])
def test_a_device_that_is_none_is_refused(selector):
    *first, last = ["auto", *(kind.selector for kind in device.device_kinds().values())]
    with pytest.raises(SelectionError, match=f"expected {', '.join(first)} or {last}$"):
        device.find_device(selector, BOTH)


@pytest.mark.parametrize(
    "problem",
    [
        "no NVIDIA GPU (the driver's library, libcuda.so.1, finds none)",
        "no NVIDIA driver (libcuda.so.1 was not found)",
    ],
)
@pytest.mark.parametrize("cupy", [True, False])
def test_without_a_gpu_or_a_driver_that_is_told_with_the_packages_that_are_there(gpus, monkeypatch, cupy, problem):
    gpus(problem=problem)
    if not cupy:
        monkeypatch.setattr(packages, "cupy", lambda: None)
    with pytest.raises(SelectionError) as error:
        device.find_device("cuda:0", BOTH)
    prefix = "CUDA packages are installed (cupy-cuda12x 14.2.0), but there is " if cupy else ""
    assert str(error.value).startswith(f"--device cuda:0: {prefix}{problem}; ")
    assert error.value.exit_code == 2


def test_a_gpu_that_is_not_there_is_refused_with_the_reason(gpus):
    gpus(V100)
    with pytest.raises(SelectionError, match=r"no such GPU; this machine has cuda:0 \(Tesla V100"):
        device.find_device("cuda:3", BOTH)
    with pytest.raises(SelectionError, match="no backend of this scenario runs on a GPU"):
        device.find_device("cuda:0", {"cpu": None})
    with pytest.raises(SelectionError, match="needs the package cupy: uv sync --extra cuda12"):
        device.find_device("cuda:0", {"cpu": None, "cuda": CUPY})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Intel(R) Xeon(R) Platinum 8375C CPU @ 2.90GHz", "intel-xeon-platinum-8375c"),
        ("AMD EPYC 7763 64-Core Processor", "amd-epyc-7763"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("../../x", "x"),
        ("***", "machine"),
    ],
)
def test_a_machines_folder_has_a_plain_name(name, expected):
    assert machine.slug(name) == expected


def test_machine_facts_are_those_of_this_machine():
    environment = machine.environment(["numpy", "no-such-distribution"], machine="m", device_name="d", blas="blas")
    assert environment.cpus >= 1
    assert environment.memory_bytes > 2**28
    assert set(environment.packages) == {"numpy"}


CPUINFO = "vendor_id : {vendor}\nflags : fpu {flags}\n"
AVX512 = "avx512f avx512dq avx512cd avx512bw avx512vl"


@pytest.mark.parametrize(
    ("vendor", "flags", "expected"),
    [
        ("AuthenticAMD", AVX512, {"OPENBLAS_CORETYPE": "SkylakeX"}),
        ("AuthenticAMD", "avx2", {}),
        ("GenuineIntel", AVX512, {}),
    ],
)
def test_openblas_is_told_of_avx512_only_where_it_does_not_know(monkeypatch, tmp_path, vendor, flags, expected):
    path = tmp_path / "cpuinfo"
    path.write_text(CPUINFO.format(vendor=vendor, flags=flags))
    monkeypatch.delenv("OPENBLAS_CORETYPE", raising=False)
    monkeypatch.setattr(machine, "Path", lambda name: path)
    for cached in (machine._processors, machine.cpu_flags):
        monkeypatch.setattr(machine, cached.__name__, functools.cache(cached.__wrapped__))
    assert machine.cpu_flags() == {"fpu", *flags.split()}
    assert machine.blas_variables() == expected
    monkeypatch.setenv("OPENBLAS_CORETYPE", "Zen")
    assert machine.blas_variables() == {}
