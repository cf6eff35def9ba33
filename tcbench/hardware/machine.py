"""Facts about this host: processor, memory, operating system, package versions, commits of tcbench and the project."""

import functools
import hashlib
import importlib.metadata
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import tcbench
from tcbench.core.git import GitError, Repository
from tcbench.core.record import FINAL_STATUSES, Environment, Record
from tcbench.core.variables import STRICT
from tcbench.hardware import kernel

CHECKOUT = Path(tcbench.__file__).parents[1]
"""The folder that contains the package tcbench; the top folder of a checkout."""

_MASK = frozenset(kernel.affinity())
"""The processors that this process may run on, read before a library binds it to some of them."""


@functools.cache
def usable_cpus() -> int:
    """Return how many processors this process may use: the affinity mask, limited by the control groups' quota.

    The mask is read at import, so that a process that binds itself later gets the same answer."""
    quota = kernel.cpu_quota()
    return max(1, min(len(_MASK), int(quota))) if quota else len(_MASK)


@functools.cache
def cpu_quota() -> float:
    """Return the CPU quota in processors, 0 if it does not limit the process more than its affinity mask."""
    quota = kernel.cpu_quota()
    return quota if quota < len(_MASK) else 0.0


@functools.cache
def _processors() -> tuple[Mapping[str, str], ...]:
    """Return the fields of /proc/cpuinfo by name, for each processor that this process may run on, or for all if Linux
    does not number them."""
    blocks = kernel.text(Path("/proc/cpuinfo")).strip().split("\n\n")
    lines = ([line.partition(":") for line in block.splitlines()] for block in blocks)
    processors = [{name.strip(): " ".join(value.split()) for name, _, value in block} for block in lines]
    usable = [facts for facts in processors if facts.get("processor") in set(map(str, _MASK))]
    return tuple(usable or processors)


def _cpuinfo() -> Mapping[str, str]:
    """Return the fields of /proc/cpuinfo for the first processor."""
    return _processors()[0]


_MODEL = (
    *("vendor_id", "cpu family", "model", "stepping"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
    *("cpu", "revision", "isa", "uarch", "mvendorid", "marchid", "mimpid"),
)
"""The fields of /proc/cpuinfo that identify a processor model: on x86, on ARM, and on POWER and RISC-V."""


@functools.cache
def processor() -> str:
    """Return an identifier of this processor model: the vendor's numbers and a digest of the instruction sets.

    The name is not enough: "AMD EPYC" stands for several models. "" if Linux does not provide the numbers."""
    kinds = dict.fromkeys("/".join(facts[name] for name in _MODEL if name in facts) for facts in _processors())
    flags = " ".join(sorted(flag for flag in cpu_flags() if _INSTRUCTIONS.match(flag)))
    return " ".join(filter(None, [*kinds, flags and hashlib.sha256(flags.encode()).hexdigest()[:8]]))


_INSTRUCTIONS = re.compile(
    "3dnow|abm|adx|aes|amx|asimd|avx|bf16|bmi|crc|dot|f16|fma|fp|gfni|i8mm|mmx|neon|s?sse|sha|sm[34e]|sve|vaes|vfp|vpcl"
)
"""The flags of instruction sets for computing. Other flags depend on the kernel and on mitigations."""


def cpu_name() -> str:
    """Return the processor's name as Linux reports it."""
    return _cpuinfo().get("model name", platform.machine())


@functools.cache
def cpu_flags() -> frozenset[str]:
    """Return the processor's features by Linux's names, such as "avx512_bf16"."""
    facts = _cpuinfo()
    return frozenset((facts.get("flags") or facts.get("Features", "")).split())


def blas_variables() -> dict[str, str]:
    """Return environment variables that make NumPy's OpenBLAS use AVX-512 on new AMD processors.

    OpenBLAS 0.3.31 treats AMD processors that it does not know (family 26) as Haswell, which halves the speed of matrix
    products. OPENBLAS_CORETYPE is not changed if the user has set it."""
    if "OPENBLAS_CORETYPE" in os.environ:
        return {}
    avx512 = {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"}
    is_amd = _cpuinfo().get("vendor_id") == "AuthenticAMD"
    return {"OPENBLAS_CORETYPE": "SkylakeX"} if is_amd and avx512 <= cpu_flags() else {}


def library_variables(threads: int) -> dict[str, str]:
    """Return environment variables for libraries, to set before their import. They set the number of threads, exact
    float32 arithmetic, and `blas_variables`."""
    return {**blas_variables(), **STRICT, **thread_variables(threads)}


def thread_variables(threads: int) -> dict[str, str]:
    """Return the environment variables that set the number of threads of libraries."""
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
    return dict.fromkeys(counts, str(threads))


def memory_bytes() -> int:
    """Return the size of the machine's physical memory; 0 if it is unknown."""
    try:
        return max(0, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError):
        return 0


def usable_memory_bytes() -> int:
    """Return how much memory this process may use: the physical memory, or a lower limit of its control groups."""
    return min(kernel.memory_limit_bytes() or memory_bytes(), memory_bytes())


def available_memory_bytes() -> int:
    """Return how much more memory processes can use, by the kernel's estimate and the limits of this process's control
    groups; 0 if it is unknown."""
    match = re.search(r"(?m)^MemAvailable: +(\d{1,15}) kB$", kernel.text(Path("/proc/meminfo")))
    within_limits = kernel.memory_left_bytes()
    available = 1024 * int(match[1]) if match else 0
    return available if within_limits is None else min(available, within_limits)


def slug(text: str) -> str:
    """Return a text as a name for a folder: lower case, without marketing words and special characters."""
    text = re.sub(r"\((r|tm)\)|cpu @.*|with .*graphics|\d+-core|processor|nvidia|geforce", " ", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-") or "machine"


def os_name() -> str:
    """Return the name of the Linux distribution, or of the operating system."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except (OSError, ValueError):
        return platform.system()


@functools.cache
def last_level_cache_bytes() -> int:
    """Return the size of the level-3 cache, which several processors may share; 0 if it is unknown."""
    try:
        size = kernel.text(Path("/sys/devices/system/cpu/cpu0/cache/index3/size"))
        return int(size.strip().removesuffix("K")) * 1024
    except ValueError:
        return 0


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Return the versions of the distributions that are installed, by name."""
    return {name: installed for name in distributions if (installed := version(name)) is not None}


def version(distribution: str) -> str | None:
    """Return a distribution's version; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def commit() -> str | None:
    """Return the commit of tcbench's checkout, with `+` if tracked files have changed; None outside a checkout."""
    try:
        return Repository.containing(CHECKOUT).commit("tcbench", "scenarios") if (CHECKOUT / ".git").exists() else None
    except (OSError, GitError):
        return None


def project_commit(folder: Path | None = None) -> str | None:
    """Return the commit of the git checkout around a folder (default: the current one), with `+` if files have changed.

    None outside a checkout, before its first commit, and in a checkout of tcbench (see `commit`)."""
    try:
        repository = Repository.containing(folder or Path.cwd())
        return None if (repository.top / "tcbench" / "__init__.py").exists() else repository.commit()
    except (OSError, GitError):
        return None


_PACKAGE = "tcbench/"
"""The name under which `sources` has the digest of tcbench itself."""


def sources(step_files: Iterable[str] = ()) -> dict[str, str]:
    """Return digests of code that a commit does not identify, by file, for `Environment.sources`.

    These are tcbench itself unless it runs from an unchanged commit, and `step_files`, the files of a user's step as
    paths from the working folder. Missing files are left out."""
    digests = {} if (commit() or "+")[-1] != "+" else {_PACKAGE: _package_digest()}
    inside = [Path(name) for name in step_files if not name.startswith("/") and ".." not in name]
    return digests | {str(path): _digest([path]) for path in inside if path.is_file()}


def other_code(records: Iterable[Record]) -> str:
    """Return how the present code differs from the code of finished records, in one line; "" if it does not."""
    earlier = [
        record.environment for record in records if record.environment is not None and record.status in FINAL_STATUSES
    ]
    current_commit, digests = commit() or tcbench.__version__, sources(name for env in earlier for name in env.sources)
    commits = [name for name in dict.fromkeys(env.commit or env.tcbench for env in earlier) if name != current_commit]
    names = {name for env in earlier for name in (_PACKAGE, *env.sources) if env.sources.get(name) != digests.get(name)}
    changed = sorted(names - ({_PACKAGE} if commits else set()))  # another commit implies changed files
    differences = [f"the records are from tcbench {', '.join(commits)}, this is {current_commit}"] * bool(commits)
    differences += [f"{' and '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed"] * bool(changed)
    return "; ".join(differences)


def loaded_files() -> list[str]:
    """Return the files of loaded modules in the working folder, as relative paths. Files of tcbench and of installed
    packages are left out."""
    return files_in_project(
        file for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None))
    )


def files_in_project(files: Iterable[str]) -> list[str]:
    """Return those of the files that are in the working folder, as relative paths, without files of tcbench and of
    installed packages."""
    folder, packages = Path.cwd(), ("site-packages", "dist-packages")
    inside = (path.relative_to(folder) for path in map(Path, files) if path.is_relative_to(folder))
    return sorted(str(path) for path in inside if path.parts[0] != "tcbench" and not {*packages} & {*path.parts})


def is_machine_of(environment: Environment | None) -> bool:
    """Return whether the recorded facts about a machine fit this one. Machines can share a name, so that is not
    enough."""
    if environment is None or environment.processor not in ("", processor()):
        return False
    return (environment.kernel, environment.memory_bytes) == (platform.release(), memory_bytes())


@functools.cache
def _package_digest() -> str:
    files = (path for path in Path(tcbench.__file__).parent.rglob("*") if path.is_file())
    return _digest(sorted(path for path in files if "__pycache__" not in path.parts))


def _digest(paths: Iterable[Path]) -> str:
    """Return a digest of the names and contents of files."""
    digest = hashlib.sha256()
    for path in paths:
        digest.update(os.fsencode(path.name) + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def environment(packages: Iterable[str], **facts: Any) -> Environment:
    """Return the environment for a record: facts about this host, versions of `packages`, and `facts` as given."""
    return Environment(
        cpu=cpu_name(),
        processor=processor(),
        cpus=usable_cpus(),
        cpu_quota=cpu_quota(),
        memory_bytes=memory_bytes(),
        os=os_name(),
        kernel=platform.release(),
        python=platform.python_version(),
        packages=versions(packages),
        tcbench=tcbench.__version__,
        commit=commit(),
        project_commit=project_commit(),
        sources=sources(),
        **facts,
    )
