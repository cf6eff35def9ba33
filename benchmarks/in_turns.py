"""Configs of ours, PyTorch's and stock Chainer, training ResNet-50 on the CPU in turns: ratios to the first.

    uv run python benchmarks/in_turns.py           # stock Chainer and ours, 64x64 batch 16 and 224x224 batch 8
    uv run python benchmarks/in_turns.py --config torch/fp32 --config torch/bf16+nhwc+fused_optimizer --shape 64x8

Stock is Chainer's own ResNet50Layers, MomentumSGD and weight decay on Chainer's own functions. All train on one batch
in memory, in processes of their own with the environment that tcbench's runner gives its workers. The parent lets one
of them step at a time, round by round, so that drift hits all alike. Images/s are of the median step; ratios are of the
rounds' medians, with their 95% intervals over rounds. With `--busy` each round is followed by one beside a process that
computes without end, and each config is compared with itself: how many times as long its step takes there.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from tcbench.analysis import rounds as rounds_of
from tcbench.core.record import Cell, Input
from tcbench.engine.accelerators.device import host
from tcbench.hardware import machine
from tcbench.run import plan, scenario

OURS = ("fp32", "fp32+batched+nhwc+fused", "fp32+batched+nhwc+fused+static_graph")
STOCK = "stock Chainer"


def cell_of(config: str, image_size: int, batch_size: int, threads: int) -> Cell:
    selection = plan.Selection(
        batch_sizes=(batch_size,),
        configs=(config,),
        input=Input(kind="synthetic"),
        image_size=image_size,
        threads=threads,
    )
    return plan.make(scenario.load("peers"), selection, host()).cells[0].cell


def our_step(cell: Cell) -> Callable[[], None]:
    from tcbench.engine.backends import backend

    session = backend(cell.backend).open_session(cell)

    def step() -> None:
        for phase in session.phases:
            phase.run()

    step.session = session  # type: ignore[attr-defined]  # keeps its state alive
    return step


def stock_step(cell: Cell) -> Callable[[], None]:
    import numpy as np

    from tcbench.engine.backends.chainer.compat import chainer

    model = chainer.links.ResNet50Layers(pretrained_model=None)
    optimizer = chainer.optimizers.MomentumSGD(lr=cell.train.learning_rate, momentum=cell.train.momentum)
    optimizer.setup(model)
    optimizer.add_hook(chainer.optimizer_hooks.WeightDecay(cell.train.weight_decay))
    rng = np.random.RandomState(cell.seed)
    x = rng.standard_normal((cell.batch_size, 3, cell.image_size, cell.image_size)).astype(np.float32)
    t = rng.randint(0, cell.n_classes, cell.batch_size).astype(np.int32)

    def step() -> None:
        loss = chainer.functions.softmax_cross_entropy(model(x, layers=["fc6"])["fc6"], t)
        model.cleargrads()
        loss.backward()
        loss.unchain_backward()
        optimizer.update()

    return step


def child(name: str, image_size: int, batch_size: int, threads: int) -> None:
    """Steps once for each line on standard input; answers with the seconds."""
    config = OURS[0] if name == STOCK else name
    cell = cell_of(config, image_size, batch_size, threads)
    step = stock_step(cell) if name == STOCK else our_step(cell)
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        print(time.perf_counter() - start, flush=True)


@contextlib.contextmanager
def children(
    names: list[str], image_size: int, batch_size: int, threads: int
) -> Iterator[dict[str, Callable[[], float]]]:
    variables = {
        **os.environ,
        **machine.blas_variables(),
        "OPENBLAS_NUM_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
    }
    processes = {
        name: subprocess.Popen(
            [
                sys.executable,
                __file__,
                "--child",
                name,
                "--shape",
                f"{image_size}x{batch_size}",
                "--threads",
                str(threads),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=variables,
        )
        for name in names
    }

    def step(process: subprocess.Popen[str]) -> float:
        assert process.stdin
        assert process.stdout
        process.stdin.write("step\n")
        process.stdin.flush()
        return float(process.stdout.readline())

    try:
        yield {name: lambda process=process: step(process) for name, process in processes.items()}  # type: ignore[misc]
    finally:
        for process in processes.values():
            process.kill()


@contextlib.contextmanager
def busy_process() -> Iterator[None]:
    """A process that computes without end."""
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        time.sleep(0.5)
        yield
    finally:
        process.kill()
        process.wait()


def compare(
    names: list[str], image_size: int, batch_size: int, threads: int, rounds: int, steps: int, busy: bool
) -> None:
    times: dict[str, list[list[float]]] = {name: [] for name in names}
    beside: dict[str, list[float]] = {name: [] for name in names}
    with children(names, image_size, batch_size, threads) as step:
        for name in names:
            for _ in range(3):
                step[name]()
        for _ in range(rounds):
            for name in names:
                times[name].append([step[name]() for _ in range(steps)][1:])
            with busy_process() if busy else contextlib.nullcontext():
                for name in names if busy else ():
                    beside[name].append(statistics.median([step[name]() for _ in range(steps)][1:]))
    medians = {name: [statistics.median(of_round) for of_round in times[name]] for name in names}
    print(
        f"{image_size}x{image_size} pixels, batch {batch_size}, {threads} threads, {rounds} rounds of {steps - 1} steps"
    )
    for name in names:
        rate = batch_size / statistics.median(step_s for of_round in times[name] for step_s in of_round)
        print(f"  {name:44} {rate:7.2f} images/s", end="")
        for base in names[: max(1, names.index(name))]:
            ratio = rounds_of.estimate(medians[base], medians[name]).ratio.interval()
            print(f"   {ratio.value:5.2f} [{ratio.low:.2f}, {ratio.high:.2f}] x {base}", end="")
        if busy:
            growth = rounds_of.estimate(beside[name], medians[name]).ratio.interval()
            print(f"   step x {growth.value:.2f} [{growth.low:.2f}, {growth.high:.2f}] beside a busy process", end="")
        print()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", action="append", help="PIXELSxBATCH; default 64x16 and 224x8")
    parser.add_argument("--config", action="append", help=f"default '{STOCK}' and ours")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--steps", type=int, default=4, help="steps per turn; the first is not counted")
    parser.add_argument("--busy", action="store_true", help="also beside a process that computes without end")
    parser.add_argument("--threads", type=int, default=machine.usable_cpus())
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if min(arguments.rounds, arguments.steps) < 2:
        parser.error("--rounds and --steps: expected at least 2 of each, for an interval and for a step that counts")
    for shape in arguments.shape or ["64x16", "224x8"]:
        image_size, batch_size = map(int, shape.split("x"))
        if arguments.child:
            child(arguments.child, image_size, batch_size, arguments.threads)
        else:
            names = arguments.config or [STOCK, *OURS]
            compare(names, image_size, batch_size, arguments.threads, arguments.rounds, arguments.steps, arguments.busy)


if __name__ == "__main__":
    main()
