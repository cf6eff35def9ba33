"""What `tcbench doctor` looks at: everything a run depends on, and what would spoil its measurement."""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tcbench import dataset, machine
from tcbench.backends.cuda import driver

State = Literal["ok", "note", "missing", "broken"]


@dataclass(frozen=True)
class Finding:
    """One thing looked at. `missing` is something optional; `broken` keeps tcbench from running at all."""

    state: State
    what: str
    found: str
    mend: str | None = None


_SYNC = "uv sync"


def examine(out: Path) -> tuple[Finding, ...]:
    """Look at everything; never raises."""
    return (
        _python(),
        _processor(),
        *_load(),
        *_packages(),
        *_gpus(),
        _data(),
        _writable("results folder", out),
    )


def _python() -> Finding:
    return Finding("ok", "Python", f"{platform.python_version()} ({sys.executable})")


def _processor() -> Finding:
    memory = machine.memory_bytes() / 2**30
    return Finding("ok", "processor", f"{machine.cpu_name()}, {machine.usable_cpus()} usable cores, {memory:.0f} GiB")


def _load() -> Iterator[Finding]:
    """What would disturb a measurement on the host."""
    load, cpus = os.getloadavg()[0], machine.usable_cpus()
    if load > 0.5 * cpus:
        yield Finding(
            "note",
            "load",
            f"{load:.1f} processes were busy over the last minute on {cpus} cores: results will be noisy",
            "stop other work before measuring (see: top)",
        )
    governors = {
        path.read_text().strip() for path in Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    }
    if governors - {"performance"}:
        yield Finding(
            "note",
            "CPU frequency",
            f"governor {', '.join(sorted(governors))}: clocks will vary",
            "sudo cpupower frequency-set -g performance",
        )


@dataclass(frozen=True)
class _Wanted:
    distribution: str
    module: str
    why: str
    mend: str
    needed: bool


_WANTED = (
    _Wanted("chainer", "tcbench.backends.chainer.compat", "the framework", _SYNC, True),
    _Wanted("numpy", "numpy", "arrays", _SYNC, True),
    _Wanted("Pillow", "PIL", "the base config's input", _SYNC, True),
    _Wanted("nvtx", "nvtx", "ranges for Nsight Systems", _SYNC, True),
    _Wanted("matplotlib", "matplotlib", "charts", _SYNC, True),
    _Wanted("nvidia-dali-cuda120", "nvidia.dali", "the dali rung (x86-64 Linux)", _SYNC, False),
    _Wanted("opencv-python-headless", "cv2", "the opencv rung", "uv sync --extra opencv", False),
)


def _packages() -> Iterator[Finding]:
    for wanted in _WANTED:
        try:
            version = importlib.metadata.version(wanted.distribution)
        except importlib.metadata.PackageNotFoundError:
            state: State = "broken" if wanted.needed else "missing"
            yield Finding(state, wanted.distribution, f"not installed; needed for {wanted.why}", wanted.mend)
            continue
        try:
            importlib.import_module(wanted.module)
        except Exception as error:
            message = " ".join(str(error).split())
            broken = f"{version} is installed but does not import: {message}"
            yield Finding("broken" if wanted.needed else "missing", wanted.distribution, broken, wanted.mend)
        else:
            yield Finding("ok", wanted.distribution, version)


def _gpus() -> Iterator[Finding]:
    there = driver.gpus()
    if there.problem:
        yield Finding("note", "GPU", f"{there.problem}: runs use the CPU")
        return
    for gpu in there.found:
        major, minor = gpu.compute_capability
        memory = gpu.memory_bytes / 2**30
        found = f"{gpu.name}, compute capability {major}.{minor}, {gpu.multiprocessors} SMs, {memory:.0f} GiB"
        yield Finding("note", f"cuda:{gpu.index}", f"{found}; this version of tcbench runs on the CPU only")


def _data() -> Finding:
    root = dataset.generated_root()
    manifest = dataset.read_manifest(root)
    if manifest is None:
        return Finding("note", "generated JPEGs", f"not made yet ({root})", "tcbench data make (a run does it too)")
    return Finding("ok", "generated JPEGs", f"{manifest.n_files} files in {root}")


def _writable(what: str, folder: Path) -> Finding:
    """Try to write, in the folder or where it would be made."""
    try:
        there = folder.absolute()
        while not there.exists():
            there = there.parent
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        return Finding("broken", what, f"{folder} cannot be written ({error.strerror})", "tcbench run --out FOLDER")
    return Finding("ok", what, f"{folder} can be written")
