"""The environment variables that other programs and libraries get, and those that a record keeps.

Workers, ranks, Slurm's commands and matplotlib do not see everything that a user's shell, a notebook or a surrounding
job has set. git's variables are in `tcbench.core.git`, since they protect from a repository.
"""

import contextlib
import importlib.machinery
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

STRICT = dict.fromkeys(("ONEDNN_DEFAULT_FPMATH_MODE", "DNNL_DEFAULT_FPMATH_MODE"), "STRICT")
"""Variables with which oneDNN computes float32 in float32, whatever the user's environment says."""

_PRINTING = ("ONEDNN_VERBOSE", "DNNL_VERBOSE")
"""Variables that print a line per operation into a trial's log, which takes time. Nobody sees a good trial's log."""

_TELLING = re.compile(
    r"(ONEDNN|DNNL|OMP|GOMP|KMP|MKL|OPENBLAS|BLIS|CUDA|CUDNN|CUBLAS\w*|NVIDIA|CUPY|TORCH\w*|PYTORCH|NCCL|DALI|OMPI_MCA"
    r"|MALLOC|LD|NPY|NUMPY|CHAINER|XLA|TRITON)_\w+|GLIBC_TUNABLES|PYTHON\w+"
)
"""Families of variables that change what libraries compute, or how fast."""

_SILENT = re.compile(
    r"(OMP|OPENBLAS|MKL|BLIS)_NUM_THREADS|\w+_DEFAULT_FPMATH_MODE"  # as the cell says; strict
    r"|(?!LD_)\w+_(HOME|ROOT|DIR|PATH|VERSION|VISIBLE_DEVICES|LIB_NAME)|NVIDIA_(REQUIRE|DRIVER|PRODUCT|BUILD)_\w+"
    r"|KMP_DUPLICATE_LIB_OK|\w*(KEY|TOKEN|SECRET|PASSWORD)\w*|OMPI_MCA_(orte|ess|pmix|prte)_\w+"
    r"|PYTHON(PATH|SAFEPATH|UNBUFFERED|DONTWRITEBYTECODE|PYCACHEPREFIX|STARTUP|BREAKPOINT|INSPECT|IOENCODING|UTF8"
    r"|COERCECLOCALE|NOUSERSITE|USERBASE|WARNINGS|_HISTORY|_COLORS|_BASIC_REPL|_SHA256|_PIP\w+|_SETUPTOOLS\w+|_GET\w+)"
)
"""Among them those that tcbench sets, that change no measurement, or that are nobody else's business."""

_JOB = re.compile(
    r"(SLURM|SLURMD|SBATCH|SALLOC|SRUN|SQUEUE|SINFO|SCANCEL|PMI)_|PMIX_(?!MCA_)"
    r"|OMPI_(COMM_WORLD|UNIVERSE|FIRST|NUM|APP|WORLD)_"
)
"""Beginnings of what a job of Slurm's or MPI's sets, which would be options to the next one."""
_OF_CLUSTER = re.compile(r"SLURM_(CONF|CONF_SERVER|JWT|SACK_\w+)")
"""Variables that say how to reach the cluster."""

_OF_CHARTS = ("MPLBACKEND", "MATPLOTLIBRC", "SOURCE_DATE_EPOCH")
"""Variables by which a notebook or a build would choose how charts are drawn, or keep them from being drawn."""


def of_worker() -> dict[str, str]:
    """Return the user's environment as workers and ranks get it."""
    passed = {name: value for name, value in os.environ.items() if name not in _PRINTING}
    if "PYTHONPATH" in passed:  # an empty entry would be the current folder, before the standard library
        passed["PYTHONPATH"] = os.pathsep.join(filter(None, passed["PYTHONPATH"].split(os.pathsep)))
    return passed | STRICT


def recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of a worker's environment that a record keeps, since results may differ by them."""
    telling = (name for name in sorted(environment) if _TELLING.fullmatch(name) and not _SILENT.fullmatch(name))
    return {name: os.fsencode(environment[name]).decode(errors="replace") for name in telling}


def outside_jobs(environment: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what a surrounding job of Slurm's or MPI's has set in it."""
    return {name: value for name, value in environment.items() if _OF_CLUSTER.fullmatch(name) or not _JOB.match(name)}


def outside_jobs_command() -> list[str]:
    """Return the words before a command that starts it in such an environment."""
    return ["env", *(f"--unset={name}" for name in sorted(os.environ.keys() - outside_jobs(os.environ).keys()))]


def prepare() -> None:
    """Prepare this process's environment for the libraries that it imports: matplotlib takes its own settings, and a
    SOURCE_DATE_EPOCH that is no time, which ends the import of numpy.f2py, is dropped."""
    if _MatplotlibFinder not in sys.meta_path:
        sys.meta_path.insert(0, _MatplotlibFinder)
    if not re.fullmatch("[0-9]{1,11}", os.environ.get("SOURCE_DATE_EPOCH", "0"), re.ASCII):
        del os.environ["SOURCE_DATE_EPOCH"]


@contextlib.contextmanager
def changed(**changes: str | None) -> Iterator[None]:
    """Set variables of this process (None: remove them), for libraries and processes that start as long as the context
    lasts."""
    before = {name: os.environ.pop(name, None) for name in changes}
    os.environ.update({name: value for name, value in changes.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ.update({} if value is None else {name: value})


def for_charts() -> contextlib.AbstractContextManager[None]:
    """Hide from matplotlib, as long as the context lasts, the variables that change it."""
    return changed(**dict.fromkeys(_OF_CHARTS))


class _MatplotlibFinder:
    """A finder for `sys.meta_path` that has matplotlib imported with its own settings. A `matplotlibrc` in the current
    folder would else be read first, and one that is not UTF-8 ends the import."""

    @staticmethod
    def find_spec(name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        """Return matplotlib's own module specification, whose loader sees neither the user's file nor variables."""
        spec = importlib.machinery.PathFinder.find_spec(name) if name == "matplotlib" else None
        if spec is None or spec.loader is None or spec.origin is None:
            return None
        settings, load = Path(spec.origin).with_name("mpl-data"), spec.loader.exec_module

        def load_with_own_settings(module: Any) -> None:
            with for_charts(), _inside(settings):
                load(module)

        spec.loader.exec_module = load_with_own_settings  # type: ignore[method-assign]
        return spec


@contextlib.contextmanager
def _inside(folder: Path) -> Iterator[None]:
    """Work in a folder that has a `matplotlibrc`; one without it, as some distributions leave it, changes nothing."""
    if not (folder / "matplotlibrc").exists():
        yield
        return
    before = os.open(".", os.O_PATH)  # it may have been removed, and has no name then
    try:
        os.chdir(folder)
        yield
    finally:
        os.fchdir(before)
        os.close(before)
