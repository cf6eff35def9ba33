"""Rounds of unchanged code beside busy programs: raw data by which estimators of a gate's ratio are compared.

    uv run python benchmarks/load_rounds.py --load 2 --rounds 24 --max-time 2.5 --out load2.jsonl.gz

A round is a pair of processes for each of three cells. They alternate turns of a few steps, as in a gate. Meanwhile
`--load` processes compute without end, two in each session: the kernel may share processors among sessions, and a
session of two then gets as much as a worker, which has two threads. These processes stop while workers start. That
saves time, and changes no step that counts. Each line of the file is one pair:

- `cell`, `load`, `round`; `first`: the side that stepped first; `start_s`: the seconds until the first timed step.
- `foreign`: the share of the processors' time that neither the workers nor the busy programs used.
- For each side: `steps`, the microseconds of each phase of each counted step, turn by turn; `turns`: for each turn the
  seconds that passed, the processor time, the time for which its threads waited for a processor (`run delay` of
  /proc/PID/task/*/schedstat), and that of the main thread alone, all in microseconds and with the turn's first step.

`benchmarks/load_truth.py` compares estimators on these files.
"""

import argparse
import contextlib
import gzip
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tcbench.core.messages import Message, Stepped
from tcbench.core.record import Cell, Record
from tcbench.engine.accelerators.device import find_device
from tcbench.hardware import load, machine
from tcbench.run import plan, scenario
from tcbench.run.plan import PlannedCell
from tcbench.run.runner import Runner
from tcbench.run.worker_launch import Launch

BEST = "dali+batched+nhwc+fused"
CONFIGS = (f"fp32+{BEST}+static_graph", f"bf16+{BEST}+static_graph", f"fp32+{BEST}")
SIDES = ("base", "current")
TURNS_FILE = "LOAD_ROUNDS_TURNS"
"""The environment variable with the file to which a worker writes the times of its turns."""


# --------------------------------------------------------------------------------------------------------- the worker


def worker() -> None:
    """Run tcbench's own worker, and write the times of each of its turns."""
    from tcbench.engine.backends.chainer import session  # noqa: F401 (both workers import it at once, before their turns)
    from tcbench.engine.measure import pipe
    from tcbench.engine.measure import worker as real_worker

    turns: list[list[int]] = []

    def add_turn(before: list[int], after: list[int]) -> None:
        turns.append([(y - x) // 1000 for x, y in zip(before, after, strict=True)])

    def write(_: Sequence[None]) -> None:
        Path(os.environ[TURNS_FILE]).write_text(json.dumps(turns))

    stand_in = SimpleNamespace(counts=lambda _: own_times_ns(), between=add_turn, sum_loads=write)
    vars(pipe)["load"] = stand_in
    real_worker.main()


def own_times_ns() -> list[int]:
    """Return the clock, this process's processor time, and the run delay of all its threads and of the main thread."""
    delays = {}
    for thread in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            delays[thread.name] = int((thread / "schedstat").read_text().split()[1])
    main_thread = str(threading.main_thread().native_id)
    return [time.perf_counter_ns(), time.process_time_ns(), sum(delays.values()), delays[main_thread]]


# ------------------------------------------------------------------------------------------------------- the recorder


SPIN = "import os; os.fork(); parent = os.getppid()\nwhile os.getppid() == parent:\n for _ in range(10**6): pass"


class BusyPrograms:
    """Sessions of two processes that compute without end while they are not stopped."""

    def __init__(self, processes: int) -> None:
        command = [sys.executable, "-c", SPIN]
        self._leaders = [subprocess.Popen(command, start_new_session=True) for _ in range(processes // 2)]
        time.sleep(0.5)

    def send(self, number: signal.Signals) -> None:
        for leader in self._leaders:
            os.killpg(leader.pid, number)

    def cpu_s(self) -> float:
        """Return the processor time of all these processes."""
        counts = [load.counts(leader.pid) for leader in self._leaders]
        return sum(count.own_s for count in counts if count is not None)

    def end(self) -> None:
        self.send(signal.SIGKILL)
        for leader in self._leaders:
            leader.wait()


class Listener:
    """Lets the busy programs run from when both workers begin their timed passes until both have ended them."""

    def __init__(self, busy: BusyPrograms, throughout: bool) -> None:
        self._throughout = throughout
        self._busy, self._started, self.began_s = busy, time.monotonic(), 0.0
        self._seen = {"timed": 0, "profiled": 0}
        self.used_s = self.elapsed_s = 0.0

    def __call__(self, cell: Cell, trial: int, message: Message) -> None:
        if not isinstance(message, Stepped) or message.steps or message.stage == "warm-up":
            return
        self._seen[message.stage] += 1
        if message.stage == "timed" and self._seen["timed"] == 2:
            self.began_s = time.monotonic() - self._started
            self._before = busy_s(), self._busy.cpu_s(), time.monotonic()
            self._busy.send(signal.SIGCONT)
        if message.stage == "profiled" and self._seen["profiled"] == 2:
            if not self._throughout:
                self._busy.send(signal.SIGSTOP)
            after = busy_s(), self._busy.cpu_s(), time.monotonic()
            total, spinning, self.elapsed_s = (y - x for x, y in zip(self._before, after, strict=True))
            self.used_s = total - spinning


def busy_s() -> float:
    """Return the busy time of all processors since the machine started."""
    counts = load.own_counts()
    assert counts is not None
    return counts.busy_s


def planned_cells(max_time_s: float, image_size: int) -> list[PlannedCell]:
    selection = plan.Selection(
        batch_sizes=(4,), configs=CONFIGS, image_size=image_size, max_time_s=max_time_s, target=1e-3
    )
    cpu_plan = plan.make(scenario.load("cpu"), selection, find_device("cpu", {"cpu": None}))
    from tcbench.commands.gate import turns

    return list(turns.with_gate_timing(cpu_plan, longer=False).cells)


def pair_of_trials(
    planned: PlannedCell, number: int, busy: BusyPrograms, throughout: bool, folder: Path
) -> dict[str, Any]:
    """Run a pair of trials, and return its line of the file. Raises RuntimeError if one fails."""
    listener = Listener(busy, throughout)
    files = [folder / f"turns-{side}.json" for side in SIDES]
    runners = [
        Runner(
            side,
            timeout_s=300,
            listen=listener,
            launch=Launch(variables={TURNS_FILE: str(file), "TCBENCH_CACHE": os.environ["TCBENCH_CACHE"]}),
            command=lambda pipe: [sys.executable, __file__, str(pipe)],
        )
        for side, file in zip(SIDES, files, strict=True)
    ]
    swap = number % 2
    first, second = reversed(runners) if swap else runners
    records = dict(first.in_turns(second, planned, (number, number)))
    sides = {SIDES[place ^ swap]: record for place, record in records.items()}
    for side, record in sides.items():
        if record.status != "ok":
            raise RuntimeError(f"{side}: {record.status}: {record.reason}")
    measured = {
        side: side_times(sides[side], json.loads(file.read_text())) for side, file in zip(SIDES, files, strict=True)
    }
    workers_s = sum(turn[1] for times in measured.values() for turn in times["turns"]) * 1e-6
    foreign = (listener.used_s - workers_s) / machine.usable_cpus() / listener.elapsed_s
    return {
        "cell": planned.cell.config,
        "load": 0,
        "round": number,
        "first": SIDES[swap],
        "start_s": round(listener.began_s, 2),
        "foreign": round(foreign, 4),
        **measured,
    }


def side_times(record: Record, turns: list[list[int]]) -> dict[str, Any]:
    measurement = record.measurement
    assert measurement is not None
    counted = measurement.block_steps - 1
    steps = zip(*(phase.host_s for phase in measurement.phases), strict=True)
    by_step = [[round(1e6 * time_s) for time_s in step] for step in steps]
    blocks = [by_step[place : place + counted] for place in range(0, len(by_step), counted)]
    assert len(blocks) == len(turns), (len(blocks), len(turns))
    return {"phases": [phase.name for phase in measurement.phases], "steps": blocks, "turns": turns}


@contextlib.contextmanager
def quiet_cache() -> Iterator[Path]:
    """A cache of our own, so that every worker chooses the same implementations, and a folder for files."""
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["TCBENCH_CACHE"] = scratch
        yield Path(scratch)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--load", type=int, required=True, help="processes that compute without end; an even number")
    parser.add_argument("--rounds", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="the number of the first round")
    parser.add_argument("--max-time", type=float, default=2.5, metavar="SECONDS", help="of one timed pass")
    parser.add_argument("--image-size", type=int, default=32)
    parser.add_argument("--most", type=float, default=700.0, metavar="SECONDS", help="no round begins after that")
    parser.add_argument("--throughout", action="store_true", help="busy programs do not stop while workers start")
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    began = time.monotonic()
    busy = BusyPrograms(options.load)
    try:
        with quiet_cache() as folder, gzip.open(options.out, "at") as out:
            busy.send(signal.SIGSTOP)
            cells = planned_cells(options.max_time, options.image_size)
            from tcbench.commands.gate import turns

            for planned in cells:
                turns.time_candidates([Runner("tuning", timeout_s=300)], planned)
            for number in range(options.first, options.first + options.rounds):
                if time.monotonic() - began > options.most:
                    break
                busy.send(signal.SIGCONT if options.throughout else signal.SIGSTOP)
                for planned in cells:
                    line = pair_of_trials(planned, number, busy, options.throughout, folder)
                    line["load"] = options.load
                    out.write(json.dumps(line, separators=(",", ":")) + "\n")
                    sizes = [len(line[side]["turns"]) for side in SIDES]
                    print(
                        f"{time.monotonic() - began:6.1f} s  round {number}, {planned.cell.config}: {sizes} turns, "
                        f"start {line['start_s']:.1f} s, foreign {line['foreign']:.1%}, load average "
                        f"{os.getloadavg()[0]:.1f}",
                        flush=True,
                    )
    finally:
        busy.end()


if __name__ == "__main__":
    worker() if TURNS_FILE in os.environ else main()
