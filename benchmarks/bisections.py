"""How often `tcbench gate --bisect` names the right commit on a real machine, and what that costs.

    uv run python benchmarks/bisections.py [--runs 5] [--loss 0.10] [--noise 0.01] [--step sleep] [--budget 10m]
    uv run python benchmarks/bisections.py --simulate

Each run makes a git repository of 21 commits with a step of its own, plants a loss in one of them, lets two others not
run at all, and asks `tcbench gate --bisect` for it. `numpy`: a step of some matrix products, about 5 ms, which is as
noisy as the machine is. `sleep`: one of 20 ms that sleeps, so that other processes do not disturb it, and whose trials
differ by `--noise` as a normal deviate. One line per run, then the share that is right. With
`--simulate` nothing runs: rounds are drawn from normal distributions, after those of GOOD and BAD as a gate takes them.

Goal: 19 of 20 that are named are right.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from tcbench.analysis.verdict import interims
from tcbench.analysis.welch import Estimate, SampleStats
from tcbench.commands.gate.bisect.bisection import CommitSearch, Round, RoundCosts

COMMITS = 20

SLEEP = """
import random, time
from tcbench import step as own

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
from tcbench import step as own

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
    parser.add_argument("--simulate", action="store_true", help="draw the rounds; takes seconds")
    options = parser.parse_args()
    if options.simulate:
        simulate(random.Random(options.seed))
        return
    draw, ends = random.Random(options.seed), []
    for run in range(options.runs):
        first = draw.randint(1, COMMITS)
        broken = draw.sample([place for place in range(1, COMMITS) if place not in (first, first - 1)], 2)
        with tempfile.TemporaryDirectory() as folder:
            ends.append(run_bisection(Path(folder), first, broken, options))
        print(f"run {run + 1}: planted in {first:2}, broken {broken}: {ends[-1]}", flush=True)
    answers = [end for end in ends if not end.startswith("not named")]
    right = sum(end.startswith("right") for end in answers)
    print(f"{len(answers)} of {len(ends)} named, {right} of {len(answers)} rightly")


def run_bisection(folder: Path, first: int, broken: list[int], options: argparse.Namespace) -> str:
    """Make one repository, bisect it, and return the outcome in words."""
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


def simulate(draw: random.Random, games: int = 200) -> None:
    """Print a line per kind of machine.

    They differ in the loss, the scatter of rounds, the scatter between equal commits, and the cost of a build in
    rounds."""
    for loss, scatter, spread in ((0.05, 0.01, 0.0), (0.08, 0.02, 0.0), (0.08, 0.03, 0.0), (0.08, 0.02, 0.01)):
        for build in (0.0, 10.0):
            ends = [played(1 + n % COMMITS, -loss, scatter, spread, build, draw) for n in range(games)]
            ended = [end for end in ends if end is not None]
            right, rounds, builds = (statistics.fmean(column) for column in zip(*ended, strict=True))
            print(
                f"loss {loss:.0%}, scatter {scatter:.0%}, own {spread:.0%}, build {build:g} rounds: {right:.1%} of "
                f"{len(ended)} rightly, {rounds:.1f} rounds, {builds:.1f} builds; of {games - len(ended)} not known "
                "whether BAD is slower"
            )


def played(
    first: int, loss: float, scatter: float, spread: float, build: float, draw: random.Random
) -> tuple[bool, int, int] | None:
    """Return whether the right commit is named, the rounds and the builds; None if BAD is not surely slower."""
    off = [draw.gauss(0, spread) for _ in range(COMMITS + 1)]

    def round_of(commit: int) -> Round:
        truth = off[commit] - off[0] + (loss if commit >= first else 0)
        return Round(commit, draw.gauss(truth, scatter))

    search = CommitSearch(COMMITS, built=frozenset({COMMITS}))
    for interim in interims():
        while len(search.rounds) < interim.trials:
            search = search.after(round_of(COMMITS))
        if (
            interim.rule.judge(Estimate(SampleStats.from_values([round_.log_ratio for round_ in search.rounds])).ratio)
            == "regression"
        ):
            break
    else:
        return None
    ends = len(search.rounds)
    while (commit := search.next(RoundCosts(1.0, build))) is not None:
        search = search.with_built(commit).after(round_of(commit))
    return search.likeliest == (first,), len(search.rounds) - ends, len(search.built) - 1


def git(folder: Path, *words: str) -> str:
    identity = ["-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main"]
    done = subprocess.run(["git", *identity, "-C", folder, *words], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    main()
