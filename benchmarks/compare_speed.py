"""Wall time of `tcbench compare` from the start of its process: two files of 1000 records with 200 steps each.

    uv run python benchmarks/compare_speed.py

Goal: at most 2 s. The records are made up: 125 cells of 8 trials, the current ones 5% slower.
"""

import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from tcbench.core import record, store
from tcbench.core.record import Measurement, PhaseTimes, Record

ROUNDS = 7
CELLS, TRIALS, STEPS = 125, 8, 200
RUN = Path(__file__).parents[1] / "results" / "amd-epyc-2cpu"
"""The folder of real records that serve as a template."""


def main() -> None:
    script = str(Path(sys.executable).parent / "tcbench")
    like = next(r for r in store.read([RUN]).records if r.status == "ok")
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / "base.jsonl", Path(folder) / "current.jsonl"]
        for path, slower in zip(paths, (1.0, 1.05), strict=True):
            write(path, like, slower)
        print(f"{CELLS * TRIALS} records a side, {paths[0].stat().st_size / 1e6:.1f} MB a file")
        for options in ([], ["--format", "json"], ["--metric", "throughput,memory,energy"]):
            command = [script, "compare", *map(str, paths), *options]
            times_s = [timed(command) for _ in range(ROUNDS)]
            summary = f"{statistics.median(times_s):.2f} s (median of {ROUNDS}, fastest {min(times_s):.2f})"
            print(f"tcbench compare {' '.join(options):36} {summary}")


def timed(command: list[str]) -> float:
    # As a user's shell does it: compiled modules are kept.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    start = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment, check=False)
    spent_s = time.perf_counter() - start
    assert done.returncode == 1, done.stderr  # a regression was found
    return spent_s


def write(path: Path, like: Record, slower: float) -> None:
    draw = random.Random(path.name)
    with path.open("wb") as file:
        for number in range(CELLS):
            for trial in range(TRIALS):
                copy_ = msgspec.structs.replace(
                    like,
                    trial=trial,
                    cell=msgspec.structs.replace(like.cell, batch_size=number + 1),
                    measurement=measured(like.measurement, slower * math.exp(0.01 * draw.gauss(0, 1)), draw),
                )
                file.write(record.encode(copy_) + b"\n")


def measured(like: Measurement | None, mean_s: float, draw: random.Random) -> Measurement:
    assert like is not None
    times_s = tuple(mean_s * math.exp(0.02 * draw.gauss(0, 1)) for _ in range(STEPS))
    phases = tuple(PhaseTimes(name=phase.name, host_s=(mean_s / 4,) * 5) for phase in like.phases)
    return msgspec.structs.replace(like, step_times_s=times_s, phases=phases)


if __name__ == "__main__":
    main()
