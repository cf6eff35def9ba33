"""Training with many ranks, for tests: real processes under mpirun, and the one process that they must equal."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tcbench.engine import world

SIZE = 2
STEPS = 4
MPIRUN = shutil.which("mpirun", path=os.pathsep.join([sysconfig.get_path("scripts"), os.environ.get("PATH", "")]))
needs_mpi = pytest.mark.skipif(MPIRUN is None, reason="mpirun is not installed: uv sync --extra mpi")


@dataclass(frozen=True)
class Rank:
    """One rank's account of a training: losses, parameters by name, what the session said."""

    losses: np.ndarray
    parameters: Mapping[str, np.ndarray]
    facts: Mapping[str, Any]


def launch(program: str, arguments: Sequence[str], size: int = SIZE, timeout_s: float = 300) -> str:
    """Run tests/PROGRAM.py as so many ranks; what they printed. Fails the test where one of them does."""
    assert MPIRUN is not None
    options = ["--bind-to", "none", "--oversubscribe", "--mca", "mpi_yield_when_idle", "1"]
    if os.geteuid() == 0:
        options.append("--allow-run-as-root")
    script = Path(__file__).parent / f"{program}.py"
    command = [MPIRUN, *options, "-np", str(size), sys.executable, "-X", "faulthandler", str(script), *arguments]
    paths = [str(Path(__file__).parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environment, text=True, start_new_session=True
    )
    try:
        output, _ = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        pytest.fail(f"the ranks hang: no end within {timeout_s} s\n{output}")
    assert process.returncode == 0, output
    return output


def trained(
    program: str, folder: Path, jobs: Mapping[str, Mapping[str, Any]], size: int = SIZE
) -> dict[str, list[Rank]]:
    """Every job's ranks, in order; all jobs run in the same processes. A job is keyword arguments for the program."""
    launch(program, [str(folder), json.dumps(jobs)], size)
    return {name: [read(folder / f"{name}.{rank}.npz") for rank in range(size)] for name in jobs}


Trained = tuple[list[float], Mapping[str, np.ndarray], dict[str, Any]]
"""Losses, parameters by name, facts."""


def main(train: Callable[..., Trained], folder: str, jobs: str) -> None:
    """A rank's program: do every job, and leave its account where `read` takes it from."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    with world.entered(world.World(comm.rank, comm.size, comm.rank, comm.size, comm)):
        for name, job in json.loads(jobs).items():
            losses, parameters, facts = train(**{"steps": STEPS, **job})
            arrays = {f"p:{name}": array for name, array in parameters.items()}
            np.savez(Path(folder) / f"{name}.{comm.rank}.npz", losses=losses, facts=json.dumps(facts), **arrays)


def facts_of(session: Any) -> dict[str, Any]:
    """Return the facts of a training session that a rank reports."""
    facts = session.facts()
    return {
        "engine": facts.engine,
        "reduced_bytes": facts.reduced_bytes,
        "overlaps": facts.reduce_overlaps,
        "phases": [phase.name for phase in session.phases],
        "error": "",
    }


def read(path: Path) -> Rank:
    with np.load(path) as file:
        parameters = {name[2:]: file[name] for name in file.files if name.startswith("p:")}
        return Rank(file["losses"], parameters, json.loads(str(file["facts"])))


def distance(parameters: Mapping[str, np.ndarray], other: Mapping[str, np.ndarray], before: Mapping[str, Any]) -> float:
    """Relative distance of what training did to the parameters, L2."""
    change, other_change = (
        np.concatenate([(side[name] - before[name]).ravel() for name in sorted(before)]) for side in (parameters, other)
    )
    return float(np.linalg.norm(change - other_change) / np.linalg.norm(other_change))
