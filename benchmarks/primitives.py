"""A whole step of ours beside the same primitives in a bare loop, and beside oneDNN's own threads, in turns.

    uv run python benchmarks/primitives.py --shape 64x8 --shape 224x8

`bare loop`: the launches of one step, prepared on the arrays that it gave them and made one after another: no Chainer,
no graph, no allocations. `OpenMP`: the same launches where oneDNN's own threads divide each primitive, in place of ours
that each run it on a slice of the batch. `beside a busy process`: the step while another process computes.
Synthetic input; medians over rounds, in which each takes one turn.
"""

import argparse
import statistics
import time
from collections.abc import Callable

from in_turns import busy_process, cell_of

from tcbench.engine.accelerators.cpu.onednn.accelerator import OneDnnAccelerator
from tcbench.engine.accelerators.cpu.onednn.library import Engine
from tcbench.engine.accelerators.device import OpenDevice
from tcbench.engine.accelerators.protocol import Array
from tcbench.engine.backends.chainer.session import ChainerSession
from tcbench.engine.clock import HostClock
from tcbench.engine.work import Work
from tcbench.hardware import machine

CONFIGS = ("fp32+batched+nhwc+fused", "bf16+batched+nhwc+fused", "bf16+batched+nhwc+fused+static_graph")
WARM_UP = 4


class Noting(OneDnnAccelerator):
    """An accelerator that records its launches while `noted` is a list."""

    noted: list[tuple[Work, tuple[Array, ...]]] | None = None

    def launch(self, work: Work, *arrays: Array) -> None:
        if self.noted is not None:
            self.noted.append((work, arrays))
        super().launch(work, *arrays)


class OpenMpEngine(Engine):
    """An engine with a single slice, on all threads of OpenMP."""

    def slices(self, extent: int) -> int:
        return 1


class OpenMp(OneDnnAccelerator):
    """An accelerator whose primitives each run on all threads."""

    def __init__(self, threads: int) -> None:
        super().__init__(threads)
        self.engine = OpenMpEngine(threads)

    def prepare(self, work: Work, *arrays: Array) -> Callable[[], None]:
        self.engine.set_threads(self.engine.n_threads)
        return super().prepare(work, *arrays)


class Step:
    """A session's step, and the launches in it for a dynamic graph."""

    def __init__(self, config: str, image_size: int, batch_size: int, threads: int) -> None:
        self.accelerator = Noting(threads)
        site = OpenDevice(self.accelerator, HostClock(), lambda: 0, enter=self.accelerator.enter)
        self.session = ChainerSession(cell_of(config, image_size, batch_size, threads), site)
        for _ in range(WARM_UP):
            self.run()

    def run(self) -> None:
        for phase in self.session.phases:
            phase.run()

    def launches(self) -> list[tuple[Work, tuple[Array, ...]]]:
        """Return the launches of one step in order, with their arrays, which stay alive."""
        noted: list[tuple[Work, tuple[Array, ...]]] = []
        self.accelerator.noted = noted
        self.run()
        self.accelerator.noted = None
        return noted


def loop(prepared: list[Callable[[], None]]) -> Callable[[], None]:
    def run() -> None:
        for launch in prepared:
            launch()

    return run


def in_turns(runs: dict[str, Callable[[], None]], rounds: int) -> dict[str, float]:
    """Run the functions in turns; return the median seconds of each."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(rounds):
        for name, run in runs.items():
            start = time.perf_counter()
            run()
            times[name].append(time.perf_counter() - start)
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def report(image_size: int, batch_size: int, threads: int, rounds: int) -> None:
    for config in CONFIGS:
        step = Step(config, image_size, batch_size, threads)
        runs: dict[str, Callable[[], None]] = {"step": step.run}
        if "static_graph" not in config:
            launches = step.launches()
            runs["bare loop"] = loop([step.accelerator.prepare(work, *arrays) for work, arrays in launches])
            openmp = OpenMp(threads)
            runs["OpenMP"] = loop([openmp.prepare(work, *arrays) for work, arrays in launches])
        for run in runs.values():
            run()
        quiet = in_turns(runs, rounds)
        with busy_process():
            busy = in_turns({name: runs[name] for name in runs if name != "bare loop"}, max(3, rounds // 3))
        parts = [f"step {1e3 * quiet['step']:.1f} ms ({batch_size / quiet['step']:.1f} images/s)"]
        parts += [
            f"{name} {1e3 * seconds:.1f} ms ({seconds / quiet['step']:.0%} of the step)"
            for name, seconds in quiet.items()
            if name != "step"
        ]
        parts += [f"{name} beside a busy process x {growth / quiet[name]:.1f}" for name, growth in busy.items()]
        print(f"{image_size}x{image_size}, batch {batch_size}, {config}: " + ", ".join(parts), flush=True)
        step.session.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", action="append", help="pixels of a side x batch size; 64x8 if none is given")
    parser.add_argument("--threads", type=int, default=machine.usable_cpus())
    parser.add_argument("--rounds", type=int, default=15)
    arguments = parser.parse_args()
    for shape in arguments.shape or ["64x8"]:
        image_size, batch_size = map(int, shape.split("x"))
        report(image_size, batch_size, arguments.threads, arguments.rounds)


if __name__ == "__main__":
    main()
