"""Facts of this host: processor, memory, system, library versions, commits of tcbench and of the user's project."""

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
"""The folder that tcbench's package lies in: of a checkout, its top."""


_MASK = frozenset(kernel.affinity())
"""The processors that this process may run on, read before a library binds it to some of them."""


@functools.cache
def usable_cpus() -> int:
    """Return how many processors this process may use: those of its affinity mask, at most the whole ones of its
    control groups' quota. A process that binds itself later is still on the same machine."""
    quota = kernel.cpu_quota()
    return max(1, min(len(_MASK), int(quota))) if quota else len(_MASK)


@functools.cache
def cpu_quota() -> float:
    """Return the number of processors whose time quotas allow, 0 where they allow what the affinity mask does."""
    quota = kernel.cpu_quota()
    return quota if quota < len(_MASK) else 0.0


@functools.cache
def _processors() -> tuple[Mapping[str, str], ...]:
    """Return Linux's facts of each processor that this process may run on; of none where it tells of none."""
    blocks = kernel.text(Path("/proc/cpuinfo")).strip().split("\n\n")
    lines = ([line.partition(":") for line in block.splitlines()] for block in blocks)
    processors = [{name.strip(): " ".join(value.split()) for name, _, value in block} for block in lines]
    usable = [facts for facts in processors if facts.get("processor") in set(map(str, _MASK))]
    return tuple(usable or processors)


def _cpuinfo() -> Mapping[str, str]:
    """Return Linux's facts of the first processor."""
    return _processors()[0]


_MODEL = (
    *("vendor_id", "cpu family", "model", "stepping"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
    *("cpu", "revision", "isa", "uarch", "mvendorid", "marchid", "mimpid"),
)
"""Linux's facts that tell one kind of processor from another: on x86, on ARM, and on POWER and RISC-V."""


@functools.cache
def processor() -> str:
    """Return what identifies this kind of processor, which its name does not ("AMD EPYC" is several): its maker's
    numbers, and a digest of its instruction sets. "" where Linux does not tell."""
    kinds = dict.fromkeys("/".join(facts[name] for name in _MODEL if name in facts) for facts in _processors())
    flags = " ".join(sorted(flag for flag in cpu_flags() if _INSTRUCTIONS.match(flag)))
    return " ".join(filter(None, [*kinds, flags and hashlib.sha256(flags.encode()).hexdigest()[:8]]))


_INSTRUCTIONS = re.compile(
    "3dnow|abm|adx|aes|amx|asimd|avx|bf16|bmi|crc|dot|f16|fma|fp|gfni|i8mm|mmx|neon|s?sse|sha|sm[34e]|sve|vaes|vfp|vpcl"
)
"""Flags that name instructions that compute. Others come and go with the kernel and with mitigations."""


def cpu_name() -> str:
    """The processor's name as Linux gives it."""
    return _cpuinfo().get("model name", platform.machine())


@functools.cache
def cpu_flags() -> frozenset[str]:
    """The processor's features by Linux's names ("avx512_bf16")."""
    facts = _cpuinfo()
    return frozenset((facts.get("flags") or facts.get("Features", "")).split())


def blas_variables() -> dict[str, str]:
    """Environment variables under which NumPy's OpenBLAS uses the vector units this processor has. OpenBLAS 0.3.31
    takes AMD processors newer than it knows (family 26) for Haswell and leaves AVX-512 alone: half the speed of a
    matrix product. An OPENBLAS_CORETYPE of the user's stands."""
    if "OPENBLAS_CORETYPE" in os.environ:
        return {}
    avx512 = {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"}
    is_amd = _cpuinfo().get("vendor_id") == "AuthenticAMD"
    return {"OPENBLAS_CORETYPE": "SkylakeX"} if is_amd and avx512 <= cpu_flags() else {}


def library_variables(threads: int) -> dict[str, str]:
    """Environment variables that libraries read when they are imported: `blas_variables`, that float32 is computed in
    float32, and how many threads."""
    counts = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "BLIS_NUM_THREADS")
    return {**blas_variables(), **STRICT, **dict.fromkeys(counts, str(threads))}


def memory_bytes() -> int:
    """Return the size of the physical memory, which is a fact of the machine; 0 where it is unknown."""
    try:
        return max(0, os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (OSError, ValueError):
        return 0


def usable_memory_bytes() -> int:
    """Return how much memory this process may use: the machine's, or less by the limits of control groups."""
    return min(kernel.memory_limit_bytes() or memory_bytes(), memory_bytes())


def slug(text: str) -> str:
    """A name that is safe as a folder's."""
    text = re.sub(r"\((r|tm)\)|cpu @.*|with .*graphics|\d+-core|processor|nvidia|geforce", " ", text.lower())
    return re.sub(r"[^a-z0-9]+", "-", text).strip("-") or "machine"


def os_name() -> str:
    """The distribution's own name."""
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except (OSError, ValueError):
        return platform.system()


@functools.cache
def last_level_cache_bytes() -> int:
    """Of the third level, which all or some processors share; 0 where the system does not tell."""
    try:
        size = kernel.text(Path("/sys/devices/system/cpu/cpu0/cache/index3/size"))
        return int(size.strip().removesuffix("K")) * 1024
    except ValueError:
        return 0


def versions(distributions: Iterable[str]) -> dict[str, str]:
    """Versions of those of the distributions that are installed."""
    return {name: found for name in distributions if (found := version(name)) is not None}


def version(distribution: str) -> str | None:
    """A distribution's version; None where it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def commit() -> str | None:
    """The commit of the checkout tcbench runs from, with `+` when tracked files differ from it; None outside one."""
    try:
        return Repository.around(CHECKOUT).commit("tcbench", "scenarios") if (CHECKOUT / ".git").exists() else None
    except (OSError, GitError):
        return None


def project_commit(folder: Path | None = None) -> str | None:
    """The commit of the git checkout that a folder (the current one) lies in, with `+` when tracked files differ from
    it; None outside of one, in one without a commit, and in a checkout of tcbench, which `commit` tells."""
    try:
        repository = Repository.around(folder or Path.cwd())
        ours = repository.top / "tcbench" / "__init__.py"
        return None if ours.exists() else repository.commit()
    except (OSError, GitError):
        return None


_OURS = "tcbench/"


def sources(of_step: Iterable[str] = ()) -> dict[str, str]:
    """Digests of code that no commit tells, as in `Environment.sources`; `of_step` are paths from the working folder.
    Files that are not there have none."""
    digests = {} if (commit() or "+")[-1] != "+" else {_OURS: _package_digest()}
    inside = [Path(name) for name in of_step if not name.startswith("/") and ".." not in name]
    return digests | {str(path): _digest([path]) for path in inside if path.is_file()}


def other_code(before: Iterable[Record]) -> str:
    """The differences of the code that is here from that of the records that need not run again; "" without any."""
    then = [
        record.environment for record in before if record.environment is not None and record.status in FINAL_STATUSES
    ]
    here, now = commit() or tcbench.__version__, sources(name for record in then for name in record.sources)
    commits = [name for name in dict.fromkeys(record.commit or record.tcbench for record in then) if name != here]
    names = {name for record in then for name in (_OURS, *record.sources) if record.sources.get(name) != now.get(name)}
    changed = sorted(names - ({_OURS} if commits else set()))  # where the commit is another, so are the files
    said = [f"tcbench at {', '.join(commits)}, here {here}"] * bool(commits)
    said += [f"{' and '.join(changed)} {'has' if len(changed) == 1 else 'have'} changed"] * bool(changed)
    return "; ".join(said)


def loaded_files() -> list[str]:
    """The files of modules in the working folder, by their paths from there; without tcbench's and environments'."""
    here, packages = Path.cwd(), ("site-packages", "dist-packages")
    paths = (Path(file) for module in list(sys.modules.values()) if (file := getattr(module, "__file__", None)))
    inside = (path.relative_to(here) for path in paths if path.is_relative_to(here))
    return sorted(str(path) for path in inside if path.parts[0] != "tcbench" and not {*packages} & {*path.parts})


@functools.cache
def _package_digest() -> str:
    files = (path for path in Path(tcbench.__file__).parent.rglob("*") if path.is_file())
    return _digest(sorted(path for path in files if "__pycache__" not in path.parts))


def _digest(paths: Iterable[Path]) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(os.fsencode(path.name) + b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()[:16]


def environment(packages: Iterable[str], **facts: Any) -> Environment:
    """The facts a record carries: this host's, versions of the packages, and `facts`, which are the other fields."""
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
