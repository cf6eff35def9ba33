"""How often a gate's machine check fails: `python benchmarks/machine_check.py [--gates 10000]`.

Simulates gates of unchanged code with the product's own looks, rules and check. Cells take turns until the first look;
from then on each undecided cell runs its trials up to the next look. `few`: gates with too few rounds for a check.
`failed`: gates whose check failed; `checked`: their share of the gates with enough rounds. `wrong`: gates in which any
cell was called a regression or improved, before the check and `after` it. The machines differ in how trials vary
(standard deviation of a trial's logarithm on each side), and in what happens to them from the middle of the gate on;
the middle is that of the same gate on a machine that stays the same.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from gate_truth import GATE, IN_TURNS, Judgement, judge_look, real_steps
from numpy.typing import NDArray

from tcbench.analysis import machine_check, verdict
from tcbench.analysis.machine_check import MachineCheck, PairedRound
from tcbench.analysis.verdict import Decided

JUDGEMENT, TRIALS = Judgement(GATE, IN_TURNS), verdict.DEFAULT_INTERIMS[-1]

Array = NDArray[np.float64]


def normal(draw: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return draw.standard_normal(shape)


def heavy(draw: np.random.Generator, shape: tuple[int, ...]) -> Array:
    return draw.standard_t(3, shape) / np.sqrt(3)


def real(draw: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return the deviations of real trials' steps, beside normal noise between trials, for a `sd` of 1%."""
    sides, cells, trials = shape
    steps = np.array([real_steps(draw, range(cells), trials).mean(axis=-1) for _ in range(sides)])
    return draw.standard_normal(shape) + np.log(steps) / 0.01


@dataclass(frozen=True)
class Machine:
    """A machine: `sd` of trials, `drift` of rounds, the standard deviation of the logarithm of the cells' sd
    (`unequal`), a factor of the noise of one cell (`wild`), and the changes from the middle of the gate on: a loss of
    current (`loss`), one of each cell (`own_loss`, its standard deviation), or a factor of the noise (`noisier`).
    `first_loss`: what the side that goes first loses, from the beginning."""

    sd: float = 0.02
    drift: float = 0.05
    unequal: float = 0.0
    wild: float = 1.0
    shape: Callable[[np.random.Generator, tuple[int, ...]], Array] = normal
    loss: float = 0.0
    own_loss: float = 0.0
    noisier: float = 1.0
    first_loss: float = 0.0

    @property
    def changes(self) -> bool:
        """Whether it changes in the middle."""
        return bool(self.loss or self.own_loss or self.noisier != 1.0)


MACHINES = {
    "trials differ by 1%": Machine(0.01),
    "by 2%": Machine(),
    "by 5%": Machine(0.05),
    "by 5%, no drift": Machine(0.05, drift=0.0),
    "cells differ (sd of ln sigma 0.5)": Machine(unequal=0.5),
    "one cell five times as noisy": Machine(wild=5.0),
    "heavy tails (Student's t, 3)": Machine(shape=heavy),
    "steps of real trials": Machine(0.01, shape=real),
    "from the middle: current 5% slower": Machine(loss=0.05),
    "from the middle: current 10% slower": Machine(loss=0.1),
    "from the middle: current 20% slower": Machine(loss=0.2),
    "by 5%, from the middle: current 10% slower": Machine(0.05, loss=0.1),
    "by 5%, from the middle: current 20% slower": Machine(0.05, loss=0.2),
    "from the middle: each ratio by its own 10%": Machine(own_loss=0.1),
    "from the middle: five times as noisy": Machine(noisier=5.0),
    "the side that goes first 5% slower": Machine(first_loss=0.05),
}


@dataclass(frozen=True)
class Noise:
    """The drawn noise of a gate: log rates of shape (2 sides, cells, trials), and the cells' own losses."""

    logs: Array
    drift: Array
    own: Array


def drawn(machine: Machine, cells: int, draw: np.random.Generator) -> Noise:
    """Return the noise of one gate."""
    sds = machine.sd * np.exp(machine.unequal * draw.standard_normal(cells))
    sds[0] *= machine.wild
    logs = sds[None, :, None] * machine.shape(draw, (2, cells, TRIALS))
    return Noise(logs, machine.drift * draw.standard_normal((cells, TRIALS)), draw.standard_normal(cells))


def gate(machine: Machine, noise: Noise, middle: float) -> tuple[list[Decided | None], MachineCheck, int]:
    """Return a gate's decisions, its check and the number of its rounds. The machine changes after `middle` rounds."""
    cells = noise.logs.shape[1]
    decided: list[Decided | None] = [None] * cells
    rounds: list[list[PairedRound]] = [[] for _ in range(cells)]
    rates: list[tuple[list[float], list[float]]] = [([], []) for _ in range(cells)]
    time = 0
    for number, look in enumerate(GATE):
        order = [(n, cell) for n in range(look.trials) for cell in range(cells) if decided[cell] is None]
        if number:
            order.sort(key=lambda pair: pair[1])
        for n, cell in order:
            if n < len(rounds[cell]):
                continue
            late = time >= middle
            base, current = noise.logs[:, cell, n] * (machine.noisier if late else 1.0) + noise.drift[cell, n]
            current += late * (np.log1p(-machine.loss) + machine.own_loss * noise.own[cell])
            base, current = (
                log + np.log1p(-machine.first_loss) * (n % 2 == side) for side, log in enumerate((base, current))
            )
            rounds[cell].append(PairedRound(f"{time:06}", float(current - base)))
            rates[cell][0].append(float(np.exp(current)))
            rates[cell][1].append(float(np.exp(base)))
            time += 1
        decided = judge_look(rates, decided, number, JUDGEMENT)
    return decided, machine_check.check(rounds, GATE[-1].rule.threshold), time


def wrong(decided: Sequence[Decided | None]) -> bool:
    """Return whether a gate of unchanged code says that a cell changed."""
    return any(decision is not None and decision[0] in ("regression", "improved") for decision in decided)


def measure(machine: Machine, cells: int, gates: int, seed: int) -> str:
    """Return a line of the table."""
    draw, few, failed, changed, kept = np.random.default_rng(seed), 0, 0, 0, 0
    for _ in range(gates):
        noise = drawn(machine, cells, draw)
        middle = float("inf")
        if machine.changes:
            middle = gate(replace(machine, loss=0.0, own_loss=0.0, noisier=1.0), noise, middle)[2] / 2
        decided, check, _ = gate(machine, noise, middle)
        few += check.unstable is None
        failed += bool(check.unstable)
        changed += wrong(decided)
        kept += wrong(decided) and not check.unstable
    checked = f"{failed / (gates - few):8.2%}" if few < gates else f"{'-':>8}"
    return f"{few / gates:7.1%} {failed / gates:7.2%} {checked} {changed / gates:7.2%} {kept / gates:7.2%}"


def main() -> None:
    """Print the table."""
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--gates", type=int, default=10000)
    options.add_argument("--cells", type=int, nargs="+", default=(1, 3, 20))
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--only", default="", metavar="WORDS", help="machines whose names hold this")
    chosen = options.parse_args()
    print(f"{'machine':44} {'cells':>5} {'few':>7} {'failed':>7} {'checked':>8} {'wrong':>7} {'after':>7}")
    for name, machine in MACHINES.items():
        for cells in chosen.cells:
            if chosen.only in name:
                gates = chosen.gates if cells < 10 else chosen.gates // 5
                print(f"{name:44} {cells:5} {measure(machine, cells, gates, chosen.seed)}", flush=True)


if __name__ == "__main__":
    main()
