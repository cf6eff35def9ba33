"""How often `tcbench gate --bisect` names the right commit on a real machine, and what that costs.

    uv run python benchmarks/bisections.py [--runs 5] [--loss 0.10] [--noise 0.01] [--step sleep] [--budget 600]

Each run makes a git repository of 21 commits with a step of its own, plants a loss in one of them, lets two others not
run at all, and asks `tcbench gate --bisect` for it. `numpy`: a step of some matrix products, about 5 ms, which is as
noisy as the machine is. `sleep`: one of 20 ms that sleeps, so that other processes do not disturb it, and whose trials
differ by `--noise` as a normal deviate. One line per run, then the share that is right.

Goal: 19 of 20 that are named are right.
"""

from __future__ import annotations

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

COMMITS = 20

SLEEP = """
import random, time
from tcbench.backends import step as own

EXTRA, NOISE = {extra}, {noise}


def open_session(cell):
    {broken}
    factor = random.SystemRandom().gauss(1, NOISE)

    def io():
        time.sleep(0.005 * factor)

    def forward():
        time.sleep((0.007 + 0.02 * EXTRA) * factor)

    def backward():
        time.sleep(0.008 * factor)

    return own.step(io, forward, backward, loss=lambda: 1.0)
"""

NUMPY = """
import numpy as np
from tcbench.backends import step as own

EXTRA, NOISE = {extra}, {noise}
ROUNDS = 40


def open_session(cell):
    {broken}
    rng = np.random.default_rng(cell.seed)
    weights = rng.standard_normal((160, 160), dtype=np.float32)
    now = {{}}

    def forward():
        x = weights
        for _ in range(round(ROUNDS * (1 + 2 * EXTRA))):
            x = np.tanh(x @ weights * 0.05)
        now["x"] = x

    def backward():
        g = now["x"]
        for _ in range(ROUNDS):
            g = np.tanh(g @ weights.T * 0.05)
        now["g"] = g

    return own.step(forward, backward, loss=lambda: float(now["x"].mean()))
"""

SCENARIO = """
schema = 1
title = "Planted"
model.name = "planted"

[measure]
batch_sizes = [1]
max_time_s = {seconds}

[[config]]
backend = "my_step:open_session"
rungs = ["plain"]
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--loss", type=float, default=0.10, help="share of the step that is planted")
    parser.add_argument("--noise", type=float, default=0.01, help="by which trials of `sleep` differ")
    parser.add_argument("--step", choices=("sleep", "numpy"), default="sleep")
    parser.add_argument("--trial-s", type=float, default=0.3, help="budget of a trial's timed pass")
    parser.add_argument("--budget", default="10m", help="of one run")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    draw, ends = random.Random(options.seed), []
    for run in range(options.runs):
        first = draw.randint(1, COMMITS)
        broken = draw.sample([place for place in range(1, COMMITS) if place not in (first, first - 1)], 2)
        with tempfile.TemporaryDirectory() as folder:
            ends.append(one(Path(folder), first, broken, options))
        print(f"run {run + 1}: planted in {first:2}, broken {broken}: {ends[-1]}", flush=True)
    named = [end for end in ends if not end.startswith("not named")]
    right = sum(end.startswith("right") for end in named)
    print(f"{len(named)} of {len(ends)} named, {right} of {len(named)} rightly")


def one(folder: Path, first: int, broken: list[int], options: argparse.Namespace) -> str:
    """One repository; the end of its bisection in words."""
    git(folder, "init", "--quiet")
    (folder / ".gitignore").write_text("results/\n__pycache__/\n")
    (folder / "my_step.toml").write_text(SCENARIO.format(seconds=options.trial_s))
    text = SLEEP if options.step == "sleep" else NUMPY
    for place in range(COMMITS + 1):
        ends = 'raise RuntimeError("does not run")' if place in broken else ""
        step = text.format(extra=options.loss * (place >= first), noise=options.noise, broken=ends or "pass")
        (folder / "my_step.py").write_text(f"{step}\n# commit {place}\n")
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", "--message", f"commit {place}")
        git(folder, "tag", f"c{place}")
    command = [sys.executable, "-m", "tcbench", "gate", "./my_step.toml", "--bisect", f"c0..c{COMMITS}", "--json"]
    started = time.monotonic()
    done = subprocess.run(
        [*command, "--threads", "1", "--budget", options.budget, "--quiet"], cwd=folder, capture_output=True, text=True
    )
    took_s = time.monotonic() - started
    if not done.stdout:
        return f"not named: {done.stderr.strip()}"
    end = json.loads(done.stdout)
    cost = (
        f"{took_s / 60:.1f} min, {end['trials']} trials, {len(end['rounds'])} rounds, {len(end['built'])} builds, "
        f"{len(end['skipped'])} skipped"
    )
    if end["state"] != "named":
        return f"not named ({end['state']}): {cost}"
    right = end["named"] == git(folder, "rev-parse", f"c{first}")
    loss, sure = end["loss"], end["candidates"][0]["probability"]
    return f"{'right' if right else 'WRONG'}, {sure:.1%} sure, {loss['ratio'] - 1:+.1%}: {cost}"


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
