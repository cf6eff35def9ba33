"""The doctor on machines with GPUs, drivers and packages in every state, through stand-ins."""

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from standin_nvml import H200, NVMLError, pynvml

from tcbench.core.finding import Finding
from tcbench.engine.accelerators.cuda import checkup as gpu_checkup
from tcbench.engine.accelerators.cuda import driver, packages
from tcbench.engine.accelerators.cuda.driver import Gpus
from tcbench.engine.accelerators.cuda.packages import Installed
from tcbench.run import checkup

__all__ = ["pynvml"]

SET_13 = tuple(
    Installed(part, part.distributions[-1][0], "1.2.3", part.distributions[-1][1]) for part in packages.PARTS
)


@pytest.fixture
def machine(monkeypatch):
    """A machine with an H200, and everything for CUDA 13."""
    machine = SimpleNamespace(gpus=Gpus((H200,), (13, 0)), installed=SET_13, trouble={})
    monkeypatch.setattr(driver, "gpus", lambda: machine.gpus)
    monkeypatch.setattr(driver, "version", lambda: "580.65.06")
    monkeypatch.setattr(packages, "installed", lambda: machine.installed)
    monkeypatch.setattr(packages, "trouble", lambda part: machine.trouble.get(part.name))
    return machine


def findings() -> list[Finding]:
    return list(gpu_checkup.examine())


def notes(subject: str = "cuda:0") -> list[tuple[str, str | None]]:
    return [
        (finding.detail, finding.remedy)
        for finding in findings()
        if (finding.state, finding.subject) == ("note", subject)
    ]


def test_a_gpu_and_how_it_is_set(pynvml, machine):
    details = [finding.detail for finding in findings() if (finding.state, finding.subject) == ("ok", "cuda:0")]
    assert details == [
        "NVIDIA H200, compute capability 9.0, 132 SMs, 141 GiB, driver 580.65.06, CUDA up to 13.0",
        "ECC on, MIG off, persistence on, power limit 700 W, 54 °C",
    ]


@pytest.fixture
def quiet(pynvml):
    """A GPU that spoils nothing but its clocks, which float."""
    pynvml.answers["nvmlDeviceGetCurrentClocksEventReasons"] = 0x1
    pynvml.answers["nvmlDeviceGetUtilizationRates"] = SimpleNamespace(gpu=0, memory=0)
    pynvml.answers["nvmlDeviceGetMemoryInfo"] = SimpleNamespace(used=2**29)
    return pynvml


SET = "sudo nvidia-smi -i 0000:3B:00.0"
FLOAT = (
    "clocks are not locked: they vary up to 1980 MHz with power and temperature",
    f"{SET} -lgc MHZ   (choose a clock that the GPU sustains under load)",
)


@pytest.mark.parametrize(
    ("question", "answer", "detail", "mend"),
    [
        ("EnforcedPowerLimit", 500_000, "power is capped: 500 W of 700 W", f"{SET} -pl 700"),
        (
            "MigMode",
            [1, 1],
            "MIG is on: this is a slice of the GPU, and other slices share its power and clocks",
            f"{SET} -mig 0",
        ),
        (
            "PersistenceMode",
            0,
            "persistence mode is off: the driver unloads between trials, which slows their start",
            f"{SET} -pm 1",
        ),
        (
            "CurrentClocksEventReasons",
            0x61,
            "the GPU is throttled: software thermal slowdown, hardware thermal slowdown",
            "nvidia-smi -q -d PERFORMANCE",
        ),
        ("Temperature", 85, "the GPU is hot before the measurement: 85 °C", "let it cool, and check its airflow"),
        ("UtilizationRates", SimpleNamespace(gpu=40), "the GPU is busy (40%)", "wait until it is done"),
        (
            "MemoryInfo",
            SimpleNamespace(used=8 * 2**30),
            "8.0 GiB of GPU memory are in use by a process that is not visible from here",
            "nvidia-smi   (on the host, outside the container)",
        ),
    ],
)
def test_what_would_spoil_a_measurement_comes_with_the_command_that_mends_it(
    quiet, machine, question, answer, detail, mend
):
    quiet.answers[f"nvmlDeviceGet{question}"] = answer
    assert notes() == [FLOAT, (detail, mend)]


def test_clocks_that_are_capped_or_held_are_told_from_those_that_float(quiet, machine):
    quiet.answers["nvmlDeviceGetCurrentClocksEventReasons"] = 0x2
    assert notes()[0][0] == "the SM clock is locked (now 1755 of 1980 MHz): results are steady, but not the fastest"
    quiet.answers["nvmlDeviceGetApplicationsClock", 1] = 1200
    assert notes() == [
        ("the SM clock is capped: application clocks are 1200 of 1980 MHz", "sudo nvidia-smi -i 0000:3B:00.0 -rac")
    ]


def test_a_stock_v100_whose_clocks_nobody_set_is_not_called_capped(quiet, machine):
    quiet.answers[("nvmlDeviceGetMaxClockInfo", 1)] = 1530
    for clock in ("nvmlDeviceGetApplicationsClock", "nvmlDeviceGetDefaultApplicationsClock"):
        quiet.answers[(clock, 1)] = 1312
    assert [detail for detail, _ in notes()] == [
        "clocks are not locked: they vary up to 1530 MHz with power and temperature"
    ]
    quiet.answers[("nvmlDeviceGetApplicationsClock", 1)] = 1005
    assert [detail for detail, _ in notes()] == ["the SM clock is capped: application clocks are 1005 of 1312 MHz"]
    quiet.answers[("nvmlDeviceGetDefaultApplicationsClock", 1)] = NVMLError("Not Supported")
    assert [detail for detail, _ in notes()] == ["the SM clock is capped: application clocks are 1005 of 1530 MHz"]


def test_other_processes_are_named_with_what_they_hold(quiet, machine):
    process = lambda pid, memory: SimpleNamespace(pid=pid, usedGpuMemory=memory)  # noqa: E731
    quiet.answers["nvmlDeviceGetComputeRunningProcesses"] = [
        process(os.getpid(), 2**30),
        process(os.getppid(), 3 * 2**30),
        process(2**22 + 1, None),
    ]
    name = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    assert [detail for detail, _ in notes()[1:]] == [
        f"another process uses the GPU: pid {os.getppid()} ({name}) holds 3.0 GiB",
        f"another process uses the GPU: pid {2**22 + 1}",
    ]


def test_a_gpu_that_says_nothing_is_not_accused(quiet, machine):
    quiet.answers.clear()
    assert notes() == []


def test_with_neither_gpu_nor_cuda_packages_there_is_one_line_and_all_is_well(machine):
    machine.gpus, machine.installed = Gpus(problem="no NVIDIA driver (libcuda.so.1 was not found)"), ()
    assert findings() == [Finding("note", "GPU", "no NVIDIA driver (libcuda.so.1 was not found): runs use the CPU")]
    assert checkup.exit_code(findings()) == 0


def test_a_part_that_does_not_work_makes_the_gpu_unusable(quiet, machine):
    machine.trouble = {"cuDNN frontend": "it lacks build_plan_at_index", "NVML": "no module named pynvml"}
    bad = {finding.subject: finding for finding in findings() if finding.state in ("unusable", "missing")}
    assert [(name, finding.state) for name, finding in bad.items()] == [
        ("cuDNN frontend", "unusable"),
        ("NVML", "missing"),
    ]
    assert bad["NVML"].remedy == "uv sync --extra cuda13 --reinstall-package nvidia-ml-py"
    assert checkup.exit_code(findings()) == 2


def test_a_driver_too_old_for_the_packages_makes_the_gpu_unusable(quiet, machine):
    machine.gpus = Gpus((H200,), (12, 4))
    (finding,) = [finding for finding in findings() if finding.subject == "CUDA versions"]
    assert (finding.state, finding.remedy) == ("unusable", "uv sync --extra cuda12")
    assert "too old for packages for CUDA 13: it supports CUDA up to 12.4" in finding.detail


def test_a_cupti_that_is_newer_than_the_driver_is_a_note(quiet, machine, monkeypatch):
    monkeypatch.setattr(packages, "newer_cupti", lambda gpus: ("CUPTI is newer", f"run this for {gpus.driver_cuda}"))
    assert notes("CUPTI") == [("CUPTI is newer", "run this for (13, 0)")]
    assert checkup.exit_code(findings()) == 0


def test_what_keeps_tcbench_from_running_at_all_outweighs_the_gpu():
    assert checkup.exit_code([Finding("unusable", "GPU", ""), Finding("broken", "chainer", "")]) == 1


def without(hidden: set[Path], folder: Path) -> Path:
    """A folder of packages like the one that this Python has, but for some files: links to all else."""
    site = Path(importlib.metadata.distribution("numpy").locate_file(""))
    above = {parent for file in hidden for parent in file.parents}

    def link(entry: Path) -> None:
        name = entry.relative_to(site)
        if name in above and entry.is_dir():
            for below in entry.iterdir():
                link(below)
        elif name not in hidden and name.name != "__pycache__":
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).symlink_to(entry)

    link(site)
    return folder


DOCTOR = (
    "from tcbench.engine.accelerators.cuda import checkup\n"
    "for found in checkup.examine(): print(found.state, found.subject, found.detail)"
)


def of_wheels(part: packages.Part) -> tuple[Installed, set[Path]]:
    """The distribution that a part is installed from, and its files."""
    distributions = [package for package in packages.installed() if package.part is part]
    if packages.cupy() is None or len(distributions) != 1:
        pytest.skip("needs one of the CUDA extras")
    return distributions[0], {Path(file) for file in importlib.metadata.files(distributions[0].distribution) or ()}


def doctor(hidden: set[Path], folder: Path) -> list[str]:
    """Return the findings about the installed packages without these files; empty files hide a toolkit's libraries."""
    (folder / "libraries").mkdir()
    for name in ("cudart", "nvrtc", "cublas", "cublasLt", "cupti"):
        for major in (12, 13):
            (folder / "libraries" / f"lib{name}.so.{major}").touch()
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": str(folder / "libraries")}
    environment["PYTHONPATH"] = f"{without(hidden, folder / 'packages')}:{Path(__file__).parents[4]}"
    command = [sys.executable, "-S", "-c", DOCTOR]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    print(done.stdout + done.stderr)
    return done.stdout.splitlines()


@pytest.mark.plans
@pytest.mark.parametrize("part", [part for part in packages.PARTS if part is not packages.CUPY], ids=lambda p: p.name)
def test_of_real_packages_the_one_that_is_missing_is_named(tmp_path, part):
    output = doctor(of_wheels(part)[1], tmp_path)
    names = " or ".join(name for name, _ in part.distributions)
    assert any(line.startswith(f"missing {part.name} {names} is not installed; needed on a GPU") for line in output)
    assert any(line.startswith("ok CuPy ") for line in output)
    if part in (packages.FRONTEND, packages.NVML, packages.CUPTI):
        assert any(line.startswith("ok NVRTC ") for line in output)


@pytest.mark.plans
def test_an_nvrtc_without_its_built_in_functions_compiles_nothing_and_the_doctor_says_what_it_lacks(tmp_path):
    nvrtc, files = of_wheels(packages.NVRTC)
    lines = doctor({file for file in files if "builtins" in file.name}, tmp_path)
    (nvrtc_line,) = (line for line in lines if " NVRTC " in line)
    assert nvrtc_line.startswith(f"unusable NVRTC {nvrtc} is installed but does not work: ")
    assert "failed to open libnvrtc-builtins.so.1" in nvrtc_line
