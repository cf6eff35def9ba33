"""Whether the gate tells the truth on a real machine: the CPU ladder against itself, and with a delay planted.

    uv run python benchmarks/aa.py [--quick] [--bs 4] [--model NAME] [--config NAME] [--phase NAME] [--looks 3,4,6,8]

Three sides run in turns, each trial in a process of its own, all with the same code: base, again (the same once more)
and planted, where a busy wait of 5% of the cell's step stands in one phase, another one from config to config unless
`--phase` names it. `again`
against base should never say anything but pass or inconclusive; `planted` against base should say regression and name
the phase. Both pairs are judged as `tcbench gate` does, look by look; only what is inconclusive in either goes on.

Goal: no A/A comparison says anything but pass or inconclusive.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import statistics
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tcbench.analysis.compare import METRICS, CellComparison
from tcbench.analysis.verdict import Interim, Rule, interims
from tcbench.core.record import Record
from tcbench.engine.accelerators import device
from tcbench.hardware import machine
from tcbench.run import gate, plan, scenario
from tcbench.run.gate import BASE, CURRENT, Gate, Trial
from tcbench.run.plan import PlannedCell
from tcbench.run.runner import Runner

PLANTED_SHARE = 0.05
"""Of the median step of the cell's first trial."""

PHASES = ("forward", "backward", "update", "io")
SIDES = ("base", "again", "planted")
RULE = Rule()


# ----------------------------------------------------------------------------------------- the worker, with its delay


def worker(pipe: str, phase: str, delay_s: str) -> None:
    """tcbench's own worker, but that one phase of the session waits first."""
    from tcbench.engine import backends
    from tcbench.engine.measure import worker as real

    backend = backends.backend

    def planted(name: str) -> Any:
        found = backend(name)
        return _Planted(found, phase, float(delay_s))

    backends.backend = planted
    sys.argv = [sys.argv[0], pipe]
    real.main()


class _Planted:
    def __init__(self, backend: Any, phase: str, delay_s: float) -> None:
        self._backend, self._phase, self._delay_s = backend, phase, delay_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def open_session(self, cell: Any) -> Any:
        session = self._backend.open_session(cell)
        phases = tuple(
            dataclasses.replace(phase, run=waiting(phase.run, self._delay_s)) if phase.name == self._phase else phase
            for phase in session.phases
        )
        return SimpleNamespace(phases=phases, clock=session.clock, facts=session.facts, close=session.close)


def waiting(run: Any, delay_s: float) -> Any:
    """The function after a busy wait."""
    now = time.perf_counter

    def delayed() -> None:
        end = now() + delay_s
        while now() < end:
            pass
        run()

    return delayed


# ------------------------------------------------------------------------------------------------- the three sides


@dataclass(frozen=True)
class Seen:
    """Both pairs so far; records by side and cell."""

    again: Gate
    planted: Gate
    records: dict[str, list[list[Record]]]

    def after(self, side: str, cell: int, record: Record) -> Seen:
        """With one more trial; the base's belongs to both pairs."""
        of = {**self.records, side: [*self.records[side]]}
        of[side][cell] = [*of[side][cell], record]
        trial = Trial(BASE if side == "base" else CURRENT, cell, record.trial, 0)
        return Seen(
            self.again if side == "planted" else self.again.after(trial, record),
            self.planted if side == "again" else self.planted.after(trial, record),
            of,
        )

    def going(self, cell: int) -> bool:
        """Whether some pair of the cell wants more trials."""
        return not all(of.cells[cell].over(of.interims) for of in (self.again, self.planted))

    def wanted(self, cell: int) -> int:
        """Trials a side by the end of the cell's present look."""
        open_ = [of.cells[cell] for of in (self.again, self.planted) if not of.cells[cell].over(of.interims)]
        return min((self.again.interims[state.interims_taken].trials for state in open_), default=0)


def run(
    cells: list[PlannedCell],
    phases: list[str],
    of_gate: tuple[Interim, ...],
    timeout_s: float,
    budget_s: float | None,
) -> Seen:
    start = gate.start(len(cells), of_gate)
    seen = Seen(start, start, {side: [[] for _ in cells] for side in SIDES})
    began = time.monotonic()
    for number in range(of_gate[-1].trials):
        for place, planned in enumerate(cells):
            if not seen.going(place) or number >= seen.wanted(place):
                continue
            if budget_s is not None and time.monotonic() - began >= budget_s:
                print(f"the budget of {budget_s:g} s is spent in round {number + 1}", file=sys.stderr)
                return seen
            # Each side is first, second and third equally often; the base is first in the first round, since the
            # delay is a share of its step.
            for side in (SIDES[(number + turn) % 3] for turn in range(3)):
                record = trial(planned, number, side, delay_s(seen.records["base"][place]), phases[place], timeout_s)
                seen = seen.after(side, place, record)
                figure = METRICS["throughput"].of(record)
                told = f"{figure:.4g} images/s" if figure else f"{record.status}: {record.reason}"
                elapsed_s = time.monotonic() - began
                print(f"{elapsed_s:6.0f} s  round {number + 1}  {planned.cell.label}, {side}: {told}", file=sys.stderr)
    return seen


def trial(planned: PlannedCell, number: int, side: str, delay_s: float, phase: str, timeout_s: float) -> Record:
    planted = (phase, f"{delay_s:.9f}") if side == "planted" else ("", "0")
    command = lambda pipe: [sys.executable, str(Path(__file__)), "--worker", str(pipe), *planted]  # noqa: E731
    (record,) = Runner(f"aa-{side}", timeout_s, command).run([(planned, number)])
    return record


def delay_s(base: list[Record]) -> float:
    measured = next((r.measurement for r in base if r.measurement), None)
    return PLANTED_SHARE * statistics.median(measured.counted_times_s) if measured else 0.0


# ------------------------------------------------------------------------------------------------------- the report


def compared(state: Gate, cells: list[PlannedCell], seen: Seen, side: str) -> tuple[CellComparison, ...]:
    flat = {name: [r for of_cell in seen.records[name] for r in of_cell] for name in ("base", side)}
    of = [planned.cell for planned in cells]
    return gate.comparison(state, of, flat["base"], flat[side], RULE, "the budget was spent").cells


def spread(seen: Seen, place: int) -> str:
    """The standard deviation of one side's trials, mean over base and again."""
    figures = [[METRICS["throughput"].of(r) for r in seen.records[side][place]] for side in ("base", "again")]
    kept = [[f for f in of if f] for of in figures]
    shares = [statistics.stdev(of) / statistics.fmean(of) for of in kept if len(of) > 1]
    return f"{statistics.fmean(shares):.1%}" if shares else "-"


def needed(cell: CellComparison, state: Gate, place: int) -> str:
    """Trials a side that it took, or would take."""
    decision = state.cells[place].decisions[0]
    if decision:
        return str(state.interims[decision[1]].trials)
    have = len(cell.base.figures) if cell.base else 0
    return f"about {have + cell.more_trials}" if cell.more_trials is not None else "no number"


def table(rows: Iterator[tuple[str, ...]]) -> None:
    kept = list(rows)
    widths = [max(len(row[column]) for row in kept) for column in range(len(kept[0]))]
    for row in kept:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


def row(place: int, cell: CellComparison, state: Gate, seen: Seen, phase: str | None = None) -> tuple[str, ...]:
    """`phase`: where the loss was planted; None in the comparison without one."""
    of = cell.ratio
    ratio = f"{of.value - 1:+.1%} ({of.low - 1:+.1%} to {of.high - 1:+.1%})" if of else "-"
    common = (cell.cell.config, str(cell.cell.batch_size), spread(seen, place), ratio, cell.verdict)
    if phase is None:
        return (*common, needed(cell, state, place))
    grew = max(cell.phases, key=lambda phase: phase.change_s.value, default=None)
    named = cell.culprit.name if cell.culprit else "-"
    return (*common, needed(cell, state, place), phase, grew.name if grew else "-", named)


HEADINGS = ("config", "batch", "sd of trials", "throughput (95% interval)", "verdict", "trials a side it takes")


def report(cells: list[PlannedCell], phases: list[str], seen: Seen) -> bool:
    """Print both comparisons; whether no A/A comparison said anything it must not."""
    again = compared(seen.again, cells, seen, "again")
    planted = compared(seen.planted, cells, seen, "planted")
    print("\nthe same code twice")
    table(iter([HEADINGS, *(row(n, cell, seen.again, seen) for n, cell in enumerate(again))]))
    print(f"\na busy wait of {PLANTED_SHARE:.0%} of the step planted in one phase")
    more = (*HEADINGS, "planted in", "grew most", "named")
    table(iter([more, *(row(n, cell, seen.planted, seen, phases[n]) for n, cell in enumerate(planted))]))
    said = Counter(cell.verdict for cell in again)
    wrong = sum(count for verdict, count in said.items() if verdict not in ("pass", "inconclusive"))
    counts = ", ".join(f"{count} {verdict}" for verdict, count in said.items())
    print(f"\nA/A: {len(again)} comparisons: {counts}; anything but pass or inconclusive: {wrong} (goal: none)")
    said = Counter(cell.verdict for cell in planted)
    found = [(n, cell) for n, cell in enumerate(planted) if cell.verdict == "regression"]
    named = sum(cell.culprit is not None and cell.culprit.name == phases[n] for n, cell in found)
    misnamed = sum(cell.culprit is not None and cell.culprit.name != phases[n] for n, cell in found)
    grew = sum(
        bool(cell.phases) and max(cell.phases, key=lambda p: p.change_s.value).name == phases[n]
        for n, cell in enumerate(planted)
    )
    counts = ", ".join(f"{count} {verdict}" for verdict, count in said.items())
    print(f"planted: {len(planted)} comparisons: {counts}; the planted phase grew most in {grew} of all")
    print(
        f"of {len(found)} losses found, the right phase is named in {named}, a wrong one in {misnamed}, none in "
        f"{len(found) - named - misnamed}"
    )
    return not wrong


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bs", type=int, nargs="*", default=[4])
    parser.add_argument("--model")
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--phase", action="append", choices=PHASES, help="where the wait stands, config by config")
    parser.add_argument("--max-time", type=float, default=2.0, metavar="SECONDS", help="of one timed pass")
    parser.add_argument("--looks", default="3,4,6,8")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="no cell begins a round after that")
    parser.add_argument("--quick", action="store_true", help="two configs, one look at three trials")
    given = parser.parse_args()
    configs, trials = tuple(given.config), given.looks
    if given.quick:
        configs, trials = configs or ("fp32", "fp32+dali+batched+nhwc+fused+static_graph"), "3"
    of_gate = interims([int(word) for word in trials.split(",")], RULE)
    loaded = scenario.load("cpu")
    selection = plan.Selection(
        models=(given.model,) if given.model else None,
        batch_sizes=tuple(given.bs),
        configs=configs,
        max_time_s=given.max_time,
        threads=machine.usable_cpus(),
    )
    made = plan.make(loaded, selection, device.find("cpu", {"cpu": None}))
    cells = [planned for planned in made.cells if planned.skip_reason is None]
    planted_in = given.phase or PHASES
    phases = [planted_in[place % len(planted_in)] for place in range(len(cells))]
    before, began = os.getloadavg(), time.monotonic()
    cores = machine.usable_cpus()
    print(f"{made.device.title}, {cores} cores; looks at {trials} trials a side, threshold {RULE.threshold:.0%}")
    seen = run(cells, phases, of_gate, made.timeout_s, given.budget)
    count = sum(len(of_cell) for side in seen.records.values() for of_cell in side)
    print(
        f"{count} trials in {time.monotonic() - began:.0f} s; load average {before[0]:.1f} when it began, "
        f"{os.getloadavg()[0]:.1f} when it ended"
    )
    sys.exit(0 if report(cells, phases, seen) else 1)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        worker(*sys.argv[2:5])
    else:
        main()
