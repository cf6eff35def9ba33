"""Whether the gate tells the truth on a real machine: the CPU ladder against itself, and with a delay planted.

    uv run python benchmarks/aa.py [--quick] [--bs 4] [--model NAME] [--config NAME] [--phase NAME] [--looks 3,4,6,8]

Two gates of the same code, as `tcbench gate` runs them: in the first nothing differs, in the second a busy wait of 5%
of the cell's step stands in one phase of the current side, another one from config to config unless `--phase` names
it. The first should never say anything but pass or inconclusive, the second regression, and name the phase. With
`--alone` trials run one after another, as those of a gate on a GPU do. With `--gate choice` the current side takes
oneDNN's preferred implementation of each work, however long it takes: that should be a regression where kernels differ.

Goal: no comparison of the first gate says anything but pass or inconclusive.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tcbench.analysis.compare import METRICS, CellComparison, PhaseChange
from tcbench.analysis.verdict import Interim, Rule, interims
from tcbench.commands.gate import turns
from tcbench.commands.gate.builds import Build, with_cache
from tcbench.core.messages import Message
from tcbench.core.record import Cell, Record
from tcbench.core.store import Store
from tcbench.engine.accelerators import device
from tcbench.hardware import machine
from tcbench.run import gate, plan, scenario
from tcbench.run.gate import BASE, CURRENT
from tcbench.run.launcher import Launcher
from tcbench.run.plan import Plan
from tcbench.run.worker_launch import Launch

PLANTED_SHARE = 0.05
"""Of what the process's own steps take without it, as they go: by a trial before the gate it would be another share as
soon as the machine's speed changes."""

PHASES = ("forward", "backward", "update", "io")
CHOICE = "choice"
"""In a phase's place: a worse choice among oneDNN's implementations is planted."""
PLANTED = "AA_PLANTED"
"""The environment variable with the phase of each config in which its wait stands, as JSON."""
RULE = Rule()


# ----------------------------------------------------------------------------------------- the worker, with its delay


def worker() -> None:
    """tcbench's own worker, but that one phase of the session waits first."""
    from tcbench.engine import backends
    from tcbench.engine.measure import worker as real

    backend = backends.backend
    phases = json.loads(os.environ[PLANTED])
    if CHOICE in phases.values():
        from tcbench.engine.accelerators.cpu.onednn import tuning

        tuning.MARGIN = 0.0
    backends.backend = lambda name: _Planted(backend(name), phases)
    real.main()


class _Planted:
    def __init__(self, backend: Any, phases: dict[str, str]) -> None:
        self._backend, self._phases = backend, phases

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def open_session(self, cell: Any) -> Any:
        session = self._backend.open_session(cell)
        phases = tuple(
            dataclasses.replace(phase, run=waiting(phase.run, phase.name == "io"))
            if phase.name == self._phases[cell.config]
            else phase
            for phase in session.phases
        )
        return SimpleNamespace(phases=phases, clock=session.clock, facts=session.facts, close=session.close)


def waiting(run: Any, first: bool) -> Any:
    """The function with a busy wait before or behind it, once a few steps have told what a step takes. Where a batch
    has just been taken a feed decodes the next: on the core that a wait leaves free, so that half of it is no loss."""
    now = time.perf_counter
    steps_s: deque[float] = deque(maxlen=9)
    last_s = waited_s = 0.0

    def delayed() -> None:
        nonlocal last_s, waited_s
        began_s = now()
        if last_s:
            steps_s.append(began_s - last_s - waited_s)
        last_s = began_s
        waited_s = PLANTED_SHARE * statistics.median(steps_s) if len(steps_s) > 1 else 0.0
        if not first:
            run()
        waits_s = now()
        while now() - waits_s < waited_s:
            pass
        if first:
            run()

    return delayed


# ------------------------------------------------------------------------------------------------- the two gates


@dataclass(frozen=True)
class Seen:
    """A gate at its end, and what it took."""

    ended: turns.EndedGate
    seconds: float
    phases: Sequence[str] | None
    """By cell where a loss was planted; None in the gate without one."""


class Told:
    """Says each trial on standard error."""

    def __init__(self) -> None:
        self._began, self._label = time.monotonic(), ""

    def begin(self, label: str, remaining: Sequence[Cell], ahead: int) -> None:
        self._label = label

    def listen(self, cell: Cell, trial: int, message: Message) -> None:
        pass

    def finished(self, record: Record) -> None:
        figure = METRICS["throughput"].read(record)
        told = f"{figure:.4g} images/s" if figure else f"{record.status}: {record.reason}"
        print(f"{time.monotonic() - self._began:6.0f} s  {self._label}: {record.cell.label}: {told}", file=sys.stderr)


def run(
    made: Plan,
    of_gate: tuple[Interim, ...],
    alone: bool,
    budget_s: float | None,
    planted_in: dict[str, str],
    keep: Path | None = None,
) -> Seen:
    """One gate; with a wait in the phase that `planted_in` names for a config, on its current side. Its records stay in
    the folder `keep`, if one is given."""
    began = time.monotonic()
    planted = Launch(worker="aa", variables={PLANTED: json.dumps(planted_in), "PYTHONPATH": str(Path(__file__).parent)})
    of_sides = {BASE: Launch(), CURRENT: planted if planted_in else Launch()}
    ready = [
        Build(side, side, side, Path.cwd(), dataclasses.replace(launch, takes_turns=not alone))
        for side, launch in of_sides.items()
    ]
    with contextlib.ExitStack() as stack:
        own = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ready = [with_cache(build, own, build.name) for build in ready]
        folder = keep or own
        stores = {side: stack.enter_context(Store(Path(folder, f"{side}.jsonl"))) for side in of_sides}
        start = gate.start(len(made.cells), of_gate)
        ended = turns.measure(start, made, (ready[0], ready[1]), Launcher(), stores, Told(), budget_s)
    phases = [planted_in[planned.cell.config] for planned in made.cells] if planted_in else None
    return Seen(ended, time.monotonic() - began, phases)


# ------------------------------------------------------------------------------------------------------- the report


def spread(seen: Seen, cell: Cell) -> str:
    """The standard deviations of one side's trials, mean over both, and of the logarithm of a round's two."""
    sides = [
        [r for r in of if r.cell.key == cell.key and r.measurement] for of in (seen.ended.base, seen.ended.current)
    ]
    figures = [[METRICS["throughput"].read(record) or 0.0 for record in of] for of in sides]
    shares = [statistics.stdev(of) / statistics.fmean(of) for of in figures if len(of) > 1]
    ratios = [now / before for before, now in zip(*figures, strict=False)]
    of_rounds = f", {statistics.stdev(ratios):.1%} of ratios" if len(ratios) > 1 else ""
    return f"{statistics.fmean(shares):.1%}{of_rounds}" if shares else "-"


def table(rows: Iterator[tuple[str, ...]]) -> None:
    kept = list(rows)
    widths = [max(len(row[column]) for row in kept) for column in range(len(kept[0]))]
    for row in kept:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


HEADINGS = ("config", "batch", "sd of trials", "throughput (95% interval)", "verdict", "trials a side", "kernels")


def row(place: int, cell: CellComparison, seen: Seen) -> tuple[str, ...]:
    of = cell.ratio
    ratio = f"{of.value - 1:+.1%} ({of.low - 1:+.1%} to {of.high - 1:+.1%})" if of else "-"
    ran = str(len(seen.ended.state.cells[place].base))
    kernels = f"differ in {', '.join(cell.other_kernels)}" if cell.other_kernels else "same"
    common = (cell.cell.config, str(cell.cell.batch_size), spread(seen, cell.cell), ratio, cell.verdict, ran, kernels)
    if seen.phases is None:
        return common
    grew = max(cell.phases, key=lambda phase: phase.change_s.value, default=None)
    named = cell.culprit.name if cell.culprit else "-"
    return (*common, seen.phases[place], _grown(grew), named)


def _grown(phase: PhaseChange | None) -> str:
    of = phase.slower_by if phase else None
    return f"{phase.name} {of.value:+.1%} ({of.low:+.1%} to {of.high:+.1%}) of the step" if phase and of else "-"


def report(cells: list[Cell], seen: Seen) -> Counter[str]:
    """Print a gate's comparison; its verdicts, counted."""
    ended = seen.ended
    verdicts = ended.state.verdicts(cells, "the budget was spent")
    compared = gate.comparison(verdicts, cells, ended.base, ended.current, ended.state.interims[-1]).cells
    what = "the same code twice" if seen.phases is None else f"a busy wait of {PLANTED_SHARE:.0%} of the step planted"
    what = "a worse choice planted" if CHOICE in (seen.phases or ()) else what
    print(f"\n{what}: {len(ended.base) + len(ended.current)} trials in {seen.seconds:.0f} s")
    headings = HEADINGS if seen.phases is None else (*HEADINGS, "planted in", "grew most", "named")
    table(iter([headings, *(row(place, cell, seen) for place, cell in enumerate(compared))]))
    said: Counter[str] = Counter(cell.verdict for cell in compared)
    print(", ".join(f"{count} {verdict}" for verdict, count in said.items()))
    return said


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--bs", type=int, nargs="*", default=[4])
    parser.add_argument("--model")
    parser.add_argument("--config", action="append", default=[])
    parser.add_argument("--phase", action="append", choices=PHASES, help="where the wait stands, config by config")
    parser.add_argument("--max-time", type=float, metavar="SECONDS", help="of one timed pass")
    parser.add_argument("--looks", default="3,4,6,8")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="no trial of a gate begins after that")
    parser.add_argument("--gate", choices=("unchanged", "planted", CHOICE), help="that one alone")
    parser.add_argument("--alone", action="store_true", help="trials one after another")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="of the gates' records")
    parser.add_argument("--quick", action="store_true", help="two configs, one look at three trials")
    given = parser.parse_args()
    configs, trials = tuple(given.config), given.looks
    if given.quick:
        configs, trials = configs or ("fp32", "fp32+dali+batched+nhwc+fused+static_graph"), "3"
    of_gate = interims([int(word) for word in trials.split(",")], RULE)
    selection = plan.Selection(
        models=(given.model,) if given.model else None,
        batch_sizes=tuple(given.bs),
        configs=configs,
        max_time_s=given.max_time,
        threads=machine.usable_cpus(),
    )
    made = plan.make(scenario.load("cpu"), selection, device.find_device("cpu", {"cpu": None}))
    made = dataclasses.replace(made, cells=tuple(planned for planned in made.cells if planned.skip_reason is None))
    made = turns.with_gate_timing(made, longer=not given.max_time)
    cells = [planned.cell for planned in made.cells]
    planted_in = given.phase or PHASES
    configs_of = dict.fromkeys(cell.config for cell in cells)
    phases = {config: planted_in[place % len(planted_in)] for place, config in enumerate(configs_of)}
    how = "one after another" if given.alone else "in turns"
    print(f"{made.device.title}, {machine.usable_cpus()} cores; looks at {trials} trials a side, {how}", end="; ")
    print(f"threshold {RULE.threshold:.0%}; load average {os.getloadavg()[0]:.1f}", flush=True)
    said: Counter[str] = Counter()

    def kept(name: str) -> Path | None:
        if given.keep is None:
            return None
        folder: Path = given.keep / name
        folder.mkdir(parents=True)
        return folder

    if given.gate == CHOICE:
        phases = dict.fromkeys(configs_of, CHOICE)
    if given.gate in (None, "unchanged"):
        said = report(cells, run(made, of_gate, given.alone, given.budget, {}, kept("unchanged")))
    if given.gate != "unchanged":
        report(cells, run(made, of_gate, given.alone, given.budget, phases, kept("planted")))
    sys.exit(1 if set(said) - {"pass", "inconclusive"} else 0)


if __name__ == "__main__":
    worker() if PLANTED in os.environ else main()
