"""Steps to a loss, by SGD and by K-FAC, at a large batch: `python benchmarks/kfac.py [--seeds 3] [--chart FILE]`.

The small network of `tcbench numerics` on its generated patterns, 1,024 images a step. Each method takes the learning
rate of its own list with the fewest steps on a seed that is not counted; then every seed is trained by both from the
same weights on the same batches. A loss is reached where the mean of five steps' losses is at it or below.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np

from tcbench.accelerators.device import host
from tcbench.backends.chainer.numerics.training import DivergedError, train
from tcbench.backends.chainer.sites import processor
from tcbench.core.numerics import Job
from tcbench.core.record import KfacSettings, TrainSettings
from tcbench.run import numerics_plan as plan
from tcbench.run.scenario import load

BATCH, STEPS, SMOOTH = 1024, 120, 5
LOSSES = (1.0, 0.5, 0.2)
RATES = {"sgd": (0.1, 0.3, 1.0, 3.0), "kfac": (0.01, 0.03, 0.1, 0.3)}
DAMPING = 0.01
TUNING_SEED = 1000


def job(method: str, rate: float, seed: int, interval: int, steps: int) -> Job:
    asked = plan.Asked(steps=steps, batch_size=BATCH, learning_rate=rate, global_batch=BATCH)
    setting = plan.setting(load("cpu"), host(), asked, 1, None)
    one = plan.jobs(setting, 1, None)[0]
    rungs = (*one.cell.rungs, "kfac") if method == "kfac" else one.cell.rungs
    kfac = KfacSettings(damping=DAMPING, interval=interval)
    cell = msgspec.structs.replace(
        one.cell, rungs=rungs, config="+".join(rungs), seed=seed, train=TrainSettings(kfac=kfac)
    )
    return msgspec.structs.replace(one, cell=cell)


def curve(method: str, rate: float, seed: int, interval: int, steps: int) -> tuple[list[float], float]:
    """Losses, smoothed, and seconds a step; up to where it diverged."""
    begin = time.perf_counter()
    try:
        losses: Sequence[float] = train(job(method, rate, seed, interval, steps), processor(1)).losses
    except DivergedError as error:
        losses = error.losses
    step_s = (time.perf_counter() - begin) / max(1, len(losses))
    return [float(np.mean(losses[i : i + SMOOTH])) for i in range(len(losses) - SMOOTH + 1)], step_s


def steps_to(losses: Sequence[float], goal: float) -> int | None:
    return next((step + SMOOTH for step, loss in enumerate(losses) if loss <= goal), None)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--interval", type=int, default=1)
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    curves: dict[str, list[list[float]]] = {}
    for method, rates in RATES.items():
        tried = {}
        for rate in rates:
            losses, _ = curve(method, rate, TUNING_SEED, given.interval, given.steps)
            tried[rate] = [steps_to(losses, goal) or 10**6 for goal in reversed(LOSSES)]
            print(f"{method} at {rate:g}: steps to {LOSSES[::-1]}: {tried[rate]}", flush=True)
        best = min(tried, key=lambda rate: tried[rate])
        trained = [curve(method, best, seed, given.interval, given.steps) for seed in range(given.seeds)]
        curves[f"{method}, learning rate {best:g}"] = [losses for losses, _ in trained]
        print(f"{method}: {statistics.median(step_s for _, step_s in trained) * 1e3:.0f} ms a step", flush=True)
        for goal in LOSSES:
            print(f"  {best:g}: steps to {goal:g}: {[steps_to(losses, goal) for losses, _ in trained]}", flush=True)
    if given.json:
        given.json.write_text(json.dumps(curves))
    if given.chart:
        draw(curves, given.chart)


def draw(curves: dict[str, list[list[float]]], path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(7, 4), layout="constrained")
    for (label, seeds), colour in zip(curves.items(), ("#0b4f9e", "#b8420f"), strict=True):
        for number, losses in enumerate(seeds):
            steps = range(SMOOTH, SMOOTH + len(losses))
            axes.plot(steps, losses, color=colour, linewidth=1.2, label=label if number == 0 else None)
    axes.set(xlabel="step", ylabel=f"loss, mean of {SMOOTH} steps", yscale="log")
    axes.set_title(f"{BATCH:,} images a step, small ResNet on generated patterns", loc="left", fontsize=10)
    axes.grid(alpha=0.3)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
