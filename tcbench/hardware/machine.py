"""Facts of this host: processor, memory, system, library versions, commits of tcbench and of the user's project.

Imports no framework.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import platform
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

import tcbench
from tcbench.core.git import GitError, Repository
from tcbench.core.record import Environment, GpuFacts, Simulated

CHECKOUT = Path(tcbench.__file__).parents[1]
"""The folder that tcbench's package lies in: of a checkout, its top."""


@functools.cache
def usable_cpus() -> int:
    """Processors this process may run on: the affinity mask, capped by the cgroup's quota. As it was when it was first
    asked: a process that then binds itself to some of them is still on the same machine."""
    cpus = len(os.sched_getaffinity(0))
    try:
        quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
        if quota != "max":
            cpus = min(cpus, max(1, round(int(quota) / int(period))))
    except (OSError, ValueError):
        pass
    return cpus


@functools.cache
def _cpuinfo() -> Mapping[str, str]:
    """Linux's facts of the first processor, by name; none where it tells none."""
    try:
        first = Path("/proc/cpuinfo").read_text().partition("\n\n")[0]
    except OSError:
        return {}
    lines = (line.partition(":") for line in first.splitlines())
    return {name.strip(): " ".join(value.split()) for name, _, value in lines}


def cpu_name() -> str:
    """The processor's name as Linux gives it."""
    return _cpuinfo().get("model name", platform.machine())


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The processor's features by Linux's names ("avx512_bf16")."""
    return frozenset(_cpuinfo().get("flags", "").split())


def blas_variables() -> dict[str, str]:
    """Environment variables under which NumPy's OpenBLAS uses the vector units this processor has.

    OpenBLAS 0.3.31 takes AMD processors newer than it knows (family 26) for Haswell and leaves AVX-512 alone: half
    the speed of a matrix product. An OPENBLAS_CORETYPE of the user's stands.
    """
    if "OPENBLAS_CORETYPE" in os.environ:
        return {}
    avx512 = {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"}
    is_amd = _cpuinfo().get("vendor_id") == "AuthenticAMD"
    return {"OPENBLAS_CORETYPE": "SkylakeX"} if is_amd and avx512 <= cpu_flags() else {}


def library_variables(threads: int) -> dict[str, str]:
    """Environment variables that libraries read when they are imported: `blas_variables`, and how many threads."""
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
    return {**blas_variables(), **dict.fromkeys(counts, str(threads))}


def memory_bytes() -> int:
    """Physical memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def slug(text: str) -> str:
    """A name that is safe as a folder's."""
    text = re.sub(r"\((r|tm)\)|cpu @.*|with .*graphics|\d+-core|processor|nvidia|geforce", " ", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-") or "machine"


def os_name() -> str:
    """The distribution's own name."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Versions of those of the distributions that are installed."""
    installed = {}
    for name in distributions:
        try:
            installed[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return installed


@functools.cache
def commit() -> str | None:
    """The commit of the checkout tcbench runs from, with `+` when tracked files differ from it; None outside one."""
    try:
        return Repository.around(CHECKOUT).commit("tcbench", "scenarios") if (CHECKOUT / ".git").exists() else None
    except (OSError, GitError):
        return None


def project_commit(folder: Path | None = None) -> str | None:
    """The commit of the git checkout that a folder (the current one) lies in, with `+` when tracked files differ from
    it; None outside of one, in one without a commit, and in a checkout of tcbench, whose commit is `commit`'s to tell.
    """
    try:
        repository = Repository.around(folder or Path.cwd())
        ours = repository.top / "tcbench" / "__init__.py"
        return None if ours.exists() else repository.commit()
    except (OSError, GitError):
        return None


def environment(
    machine: str,
    device_name: str,
    packages: Iterable[str],
    blas: str,
    gpu: GpuFacts | None = None,
    emulated: tuple[str, ...] = (),
    accelerator: str | None = None,
    shortfall: str | None = None,
    simulated: Simulated | None = None,
) -> Environment:
    """The facts a record carries."""
    return Environment(
        machine=machine,
        device_name=device_name,
        cpu=cpu_name(),
        cpus=usable_cpus(),
        memory_bytes=memory_bytes(),
        os=os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        packages=versions(packages),
        blas=blas,
        tcbench=tcbench.__version__,
        commit=commit(),
        gpu=gpu,
        project_commit=project_commit(),
        emulated=emulated,
        accelerator=accelerator,
        shortfall=shortfall,
        simulated=simulated,
    )
