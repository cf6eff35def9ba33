"""The environment variables that other programs and libraries get, and those that a record stores.

Workers, ranks, Slurm's commands and matplotlib get only some of the variables that the user's shell, a notebook or a
surrounding job has set. The variables of git are in `tcbench.core.git`."""

import contextlib
import importlib.machinery
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STRICT = dict.fromkeys(("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"), "STRICT")
"""Variables that make oneDNN compute float32 in float32, whatever the user has set."""

_PRINTING = ("ONEDNN_VERBOSE", "DNNL_VERBOSE")
"""Variables that are not passed on because they print a line per operation, which costs time."""

_INFLUENTIAL = re.compile(
    r"(ONEDNN|DNNL|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|CUDA|CUDNN|CUBLAS\w*|NVIDIA|CUPY|TORCH\w*|PYTORCH|NCCL|DALI|OMPI_MCA"
    r"|MALLOC|LD|NPY|NUMPY|CHAINER|XLA|TRITON)_\w+|GLIBC_TUNABLES|PYTHON\w+"
)
"""Families of variables that change the results or the speed of libraries."""

_NOT_RECORDED = re.compile(
    r"(OMP|OPENBLAS|MKL|BLIS)_NUM_THREADS|\w+_DEFAULT_FPMATH_MODE"  # tcbench sets these
    r"|(?!LD_)\w+_(HOME|ROOT|DIR|PATH|VERSION|VISIBLE_DEVICES|LIB_NAME)|NVIDIA_(REQUIRE|DRIVER|PRODUCT|BUILD)_\w+"
    r"|KMP_DUPLICATE_LIB_OK|\w*(KEY|TOKEN|SECRET|PASSWORD)\w*|OMPI_MCA_(orte|ess|pmix|prte)_\w+"
    r"|PYTHON(PATH|SAFEPATH|UNBUFFERED|DONTWRITEBYTECODE|PYCACHEPREFIX|STARTUP|BREAKPOINT|INSPECT|IOENCODING|UTF8"
    r"|COERCECLOCALE|NOUSERSITE|USERBASE|WARNINGS|_HISTORY|_COLORS|_BASIC_REPL|_SHA256|_PIP\w+|_SETUPTOOLS\w+|_GET\w+)"
)
"""Members of these families that tcbench sets itself, that do not change measurements, or that are private."""

_JOB = re.compile(
    r"(SLURM|SLURMD|SBATCH|SALLOC|SRUN|SQUEUE|SINFO|SCANCEL|PMI)_|PMIX_(?!MCA_)"
    r"|OMPI_(COMM_WORLD|UNIVERSE|FIRST|NUM|APP|WORLD)_"
)
"""Beginnings of the variables of a Slurm or MPI job. A job that is started inside it would take them as options."""
_CLUSTER = re.compile(r"SLURM_(CONF|CONF_SERVER|JWT|SACK_\w+)")
"""Variables that tell how to connect to the cluster."""

_CHARTS = ("MPLBACKEND", "MATPLOTLIBRC", "SOURCE_DATE_EPOCH")
"""Variables, set by notebooks or builds, that change charts or make them fail."""


def worker_variables() -> dict[str, str]:
    """Return this process's environment as workers and ranks get it."""
    environment = {name: value for name, value in os.environ.items() if name not in _PRINTING}
    if "PYTHONPATH" in environment:  # an empty part means the current folder, ahead of the standard library
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, environment["PYTHONPATH"].split(os.pathsep)))
    return environment | STRICT


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker's environment that a record stores because they may change results."""
    names = (n for n in sorted(environment) if _INFLUENTIAL.fullmatch(n) and not _NOT_RECORDED.fullmatch(n))
    return {name: os.fsencode(environment[name]).decode(errors="replace") for name in names}


def outside_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without the variables of a surrounding Slurm or MPI job."""
    return {name: value for name, value in environment.items() if _CLUSTER.fullmatch(name) or not _JOB.match(name)}


def outside_jobs_command() -> list[str]:
    """Return the words to put before a command so that it runs without the variables of a surrounding job."""
    return ["env", *(f"--unset={name}" for name in sorted(os.environ.keys() - outside_jobs(os.environ).keys()))]


def prepare() -> None:
    """Protect imports from this process's environment. matplotlib is imported with its default settings, and a
    SOURCE_DATE_EPOCH that is no number is removed because the import of numpy.f2py would fail."""
    if _MatplotlibFinder not in sys.meta_path:
        sys.meta_path.insert(0, _MatplotlibFinder)
    if not re.fullmatch("[0-9]{1,11}", os.environ.get("SOURCE_DATE_EPOCH", "0"), re.ASCII):
        del os.environ["SOURCE_DATE_EPOCH"]


@contextlib.contextmanager
def changed(**changes: str | None) -> Iterator[None]:
    """Set environment variables of this process (None removes one) while the context lasts."""
    before = {name: os.environ.pop(name, None) for name in changes}
    os.environ.update({name: value for name, value in changes.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def for_charts() -> contextlib.AbstractContextManager[None]:
    """Remove the variables that would change charts while the context lasts."""
    return changed(**dict.fromkeys(_CHARTS))


class _MatplotlibFinder:
    """A finder for `sys.meta_path` that makes matplotlib import with its default settings. Otherwise it would first
    read a `matplotlibrc` in the current folder, and fail if that is not UTF-8."""

    @staticmethod
    def find_spec(name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of matplotlib with a loader that ignores the user's settings file and variables."""
        spec = importlib.machinery.PathFinder.find_spec(name) if name == "matplotlib" else None
        if spec is None or spec.loader is None or spec.origin is None:
            return None
        settings, load = Path(spec.origin).with_name("mpl-data"), spec.loader.exec_module

        def load_with_defaults(module: Any) -> None:
            with for_charts(), _inside(settings):
                load(module)

        spec.loader.exec_module = load_with_defaults  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Change to a folder while the context lasts, if it contains a `matplotlibrc` (not every distribution has one)."""
    if not (folder / "matplotlibrc").exists():
        yield
        return
    before = os.open(".", os.O_PATH)  # a descriptor, because a removed folder has no name
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(before)
        os.close(before)
