"""The checks of `tcbench doctor`: everything that a run depends on, and conditions that would disturb a measurement."""

from __future__ import annotations

import importlib
import importlib.metadata
import platform
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tcbench.core import git
from tcbench.core.errors import SelectionError
from tcbench.core.finding import Finding, FindingState
from tcbench.core.packages import INSTALL_LADDER
from tcbench.engine.api import device_kinds, generated_images
from tcbench.hardware import kernel, machine
from tcbench.hardware.load import average
from tcbench.run import launcher

_SYNC = "uv sync"

LOW_PRECISION = ("avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16", "bf16", "asimdhp")
"""Processor flags of instructions that multiply 16-bit numbers, as Linux names them."""


def examine(out: Path) -> tuple[Finding, ...]:
    """Return the findings of all checks. Never raises."""
    return (
        Finding("ok", "Python", f"{platform.python_version()} ({sys.executable})"),
        _processor(),
        *disturbances(),
        *_packages(),
        *(finding for kind in device_kinds().values() for finding in kind.findings()),
        _ranks(),
        _data(),
        _writable(out),
    )


def exit_code(findings: Sequence[Finding]) -> int:
    """Return `doctor`'s exit code: 1 if tcbench cannot run at all, 2 if the CPU can be used but the configured GPU
    cannot, else 0."""
    states = {finding.state for finding in findings}
    return 1 if "broken" in states else 2 if "unusable" in states else 0


def _processor() -> Finding:
    """Return the processor's name, cores, memory and 16-bit arithmetic."""
    low = [name for name in LOW_PRECISION if name in machine.cpu_flags()]
    memory = f"{n_bytes / 2**30:.3g} GiB" if (n_bytes := machine.usable_memory_bytes()) else "unknown memory"
    quota = f" (a quota of {machine.cpu_quota():.2f} CPUs)" if machine.cpu_quota() else ""
    model = f"{machine.cpu_name()} ({machine.processor() or 'unknown model'})"
    cores = f"{machine.usable_cpus()} usable cores{quota}"
    return Finding("ok", "processor", f"{model}, {cores}, {memory}, 16-bit arithmetic: {' '.join(low) or 'none'}")


def disturbances() -> Iterator[Finding]:
    """Yield a finding for each condition of the host that would disturb measurements, and one if git refuses to name
    the commit. None on a quiet host."""
    load, cpus = average(), len(kernel.affinity())
    if load > 0.5 * cpus:
        busy = f"{load:.1f} processes were busy over the last minute on {cpus} cores: results will be noisy"
        yield Finding("note", "load", busy, "stop other work before measuring (see: top)")
    if (refusal := git.refusal(Path.cwd())) is not None:
        yield Finding("note", "git", f"records will not name a commit: {refusal}")
    governor_files = Path("/sys/devices/system/cpu").glob("cpu[0-9]*/cpufreq/scaling_governor")
    governors = {kernel.text(path).strip() or "unknown" for path in governor_files}
    if governors - {"performance", "unknown"}:
        vary = f"governor {', '.join(sorted(governors))}: clocks will vary"
        yield Finding("note", "CPU frequency", vary, "sudo cpupower frequency-set -g performance")


_DEPENDENCIES: tuple[tuple[tuple[str, ...], str, str, str, FindingState, FindingState], ...] = (
    (("numpy",), "numpy", "arrays", _SYNC, "broken", "broken"),
    (("nvtx",), "nvtx", "ranges for Nsight Systems", _SYNC, "broken", "broken"),
    (("matplotlib",), "matplotlib", "charts", _SYNC, "broken", "broken"),
    (("chainer",), "tcbench.engine.backends.chainer.compat", "the ladder", INSTALL_LADDER, "missing", "broken"),
    (("ml-dtypes",), "ml_dtypes", "the built-in networks", INSTALL_LADDER, "missing", "broken"),
    (("Pillow",), "PIL", "the base config's input", INSTALL_LADDER, "missing", "broken"),
    (
        *(("nvidia-dali-cuda120", "nvidia-dali-cuda130"), "nvidia.dali", "the dali rung (x86-64)", INSTALL_LADDER),
        *("missing", "missing"),
    ),
    (("opencv-python-headless",), "cv2", "the opencv rung", "uv sync --extra opencv", "missing", "missing"),
)
"""One row per dependency: its distributions (any of them suffices, the remedy installs the first), module, purpose,
remedy, the state of tcbench without it, and the state if it is installed but cannot be imported."""


def _packages() -> Iterator[Finding]:
    """Yield a finding for each dependency in `_DEPENDENCIES`: whether it is installed and can be imported."""
    for distributions, module, why, remedy, without, unusable in _DEPENDENCIES:
        installed = machine.versions(distributions)
        name, version = next(iter(installed.items()), (distributions[0], None))
        if version is None:
            yield Finding(without, name, f"not installed; needed for {why}", remedy)
            continue
        try:
            importlib.import_module(module)
        except Exception as error:
            message = " ".join(str(error).split())
            yield Finding(unusable, name, f"{version} is installed but cannot be imported: {message}", remedy)
        else:
            yield Finding("ok", name, version)


def _ranks() -> Finding:
    """Return the finding on whether trials with many ranks can be started. Only users of --ranks need that."""
    try:
        version = importlib.metadata.version("mpi4py")
        return Finding("ok", "ranks", f"mpi4py {version}, started by {launcher.find(None).words[0]}")
    except (importlib.metadata.PackageNotFoundError, SelectionError) as error:
        lacks = str(error) if isinstance(error, SelectionError) else "mpi4py is not installed"
        return Finding("missing", "ranks", f"{lacks}; needed for --ranks above 1", launcher.MPI.install)


def _data() -> Finding:
    """Return the finding on whether the generated images exist."""
    images = generated_images()
    if images.n_files is None:
        return Finding(
            "note", "generated JPEGs", f"not generated yet ({images.root})", "tcbench data make (a run makes them too)"
        )
    return Finding("ok", "generated JPEGs", f"{images.n_files} files in {images.root}")


def _writable(folder: Path) -> Finding:
    """Return the finding on whether files can be written in a folder or, if it does not exist, in its nearest existing
    parent."""
    try:
        existing = folder.absolute()
        while not existing.exists():
            existing = existing.parent
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        return Finding(
            "broken", "results folder", f"{folder} cannot be written ({error.strerror})", "tcbench run --out FOLDER"
        )
    return Finding("ok", "results folder", f"{folder} can be written")
