"""Whether the gate tells the truth on a real machine: the CPU ladder against itself, and with a delay planted.

    uv run python benchmarks/aa.py [--quick] [--bs 4] [--model NAME] [--config NAME] [--phase NAME] [--looks 3,4,6,8]

Two gates of the same code, as `tcbench gate` runs them: in the first nothing differs, in the second a busy wait of 5%
of the cell's step stands in one phase of the current side, another one from config to config unless `--phase` names
it. The first should never say anything but pass or inconclusive, the second regression, and name the phase. With
`--alone` trials run one after another, as those of a gate on a GPU do. With `--gate choice` the current side takes
oneDNN's preferred implementation of each work, however long it takes: that should be a regression where kernels differ.
With `--computing` the loss is processor time of the thread that drives the step, in place of time that passes: another
process that takes the processor does not shorten it. With `--after` it begins in the middle of the gate, which the
machine check should find. `--load` runs busy programs beside the gates.

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

from load_rounds import BusyPrograms

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
"""The planted delay as a share of the step, measured on the process's own steps as they run.

A share measured by a trial before the gate would be wrong as soon as the machine's speed changes."""

PHASES = ("forward", "backward", "update", "io")
CHOICE = "choice"
"""The value, in place of a phase, that plants a worse choice among oneDNN's implementations."""
PLANTED = "AA_PLANTED"
"""The environment variable with the phase of each config in which its wait stands, as JSON."""
SHARE, COMPUTING, FROM = "AA_SHARE", "AA_COMPUTING", "AA_FROM"
"""Environment variables: the planted delay as a share of the step, whether it is processor time, and when it begins."""
RULE = Rule()


# ----------------------------------------------------------------------------------------- the worker, with its delay


def worker() -> None:
    """Run tcbench's own worker, with a delay in one phase of the session."""
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
    """Return `run` with a busy wait before or after it, once the duration of a few steps is known.

    The wait comes first in the phase io: after a batch is taken, the feed decodes the next one on the core that a wait
    leaves free, so that half of the wait would be no loss."""
    now = time.thread_time if COMPUTING in os.environ else time.perf_counter
    share, from_s = float(os.environ.get(SHARE, PLANTED_SHARE)), float(os.environ.get(FROM, 0.0))
    steps_s: deque[float] = deque(maxlen=9)
    last_s = waited_s = 0.0

    def delayed() -> None:
        nonlocal last_s, waited_s
        began_s = now()
        if last_s:
            steps_s.append(began_s - last_s - waited_s)
        last_s = began_s
        waited_s = share * statistics.median(steps_s) if len(steps_s) > 1 and time.time() > from_s else 0.0
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
    """A finished gate and its duration."""

    ended: turns.EndedGate
    seconds: float
    phases: Sequence[str] | None
    """The phase of each cell in which a loss was planted; None in the gate without one."""


class Told:
    """A listener that prints each trial on standard error."""

    def __init__(self) -> None:
        self._began, self._label = time.monotonic(), ""

    def begin(self, label: str, remaining: Sequence[Cell], ahead: int) -> None:
        self._label = label

    def listen(self, cell: Cell, trial: int, message: Message) -> None:
        pass

    def finished(self, record: Record) -> None:
        figure = METRICS["throughput"].read(record)
        outcome = f"{figure:.4g} images/s" if figure else f"{record.status}: {record.reason}"
        print(
            f"{time.monotonic() - self._began:6.0f} s  {self._label}: {record.cell.label}: {outcome}", file=sys.stderr
        )


def run(
    plan_of_gate: Plan,
    of_gate: tuple[Interim, ...],
    alone: bool,
    budget_s: float | None,
    planted_in: dict[str, str],
    keep: Path | None = None,
) -> Seen:
    """Run one gate. `planted_in` names the phase of each config in which the current side waits.

    The records stay in the folder `keep`, if there is one."""
    began = time.monotonic()
    variables = {name: os.environ[name] for name in (SHARE, COMPUTING, FROM) if name in os.environ}
    variables |= {PLANTED: json.dumps(planted_in), "PYTHONPATH": str(Path(__file__).parent)}
    planted = Launch(worker="aa", variables=variables)
    of_sides = {BASE: Launch(), CURRENT: planted if planted_in else Launch()}
    ready = [
        Build(side, side, side, Path.cwd(), dataclasses.replace(launch, takes_turns=not alone))
        for side, launch in of_sides.items()
    ]
    with contextlib.ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        ready = [with_cache(build, scratch, build.name) for build in ready]
        folder = keep or scratch
        stores = {side: stack.enter_context(Store(Path(folder, f"{side}.jsonl"))) for side in of_sides}
        start = gate.start(len(plan_of_gate.cells), of_gate)
        ended = turns.measure(start, plan_of_gate, (ready[0], ready[1]), Launcher(), stores, Told(), budget_s)
    phases = [planted_in[planned.cell.config] for planned in plan_of_gate.cells] if planted_in else None
    return Seen(ended, time.monotonic() - began, phases)


# ------------------------------------------------------------------------------------------------------- the report


def spread(seen: Seen, cell: Cell) -> str:
    """Return the standard deviation of a side's trials, averaged over both sides, and that of the rounds' ratios."""
    sides = [
        [r for r in records if r.cell.key == cell.key and r.measurement]
        for records in (seen.ended.base, seen.ended.current)
    ]
    figures = [[METRICS["throughput"].read(record) or 0.0 for record in records] for records in sides]
    shares = [statistics.stdev(records) / statistics.fmean(records) for records in figures if len(records) > 1]
    ratios = [now / before for before, now in zip(*figures, strict=False)]
    of_rounds = f", {statistics.stdev(ratios):.1%} of ratios" if len(ratios) > 1 else ""
    return f"{statistics.fmean(shares):.1%}{of_rounds}" if shares else "-"


def table(rows: Iterator[tuple[str, ...]]) -> None:
    lines = list(rows)
    widths = [max(len(row[column]) for row in lines) for column in range(len(lines[0]))]
    for row in lines:
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())


HEADINGS = ("config", "batch", "sd of trials", "throughput (95% interval)", "verdict", "trials a side", "kernels")


def row(place: int, cell: CellComparison, seen: Seen) -> tuple[str, ...]:
    measured = cell.ratio
    ratio = f"{measured.value - 1:+.1%} ({measured.low - 1:+.1%} to {measured.high - 1:+.1%})" if measured else "-"
    ran = str(len(seen.ended.state.cells[place].base))
    kernels = f"differ in {', '.join(cell.other_kernels)}" if cell.other_kernels else "same"
    common = (cell.cell.config, str(cell.cell.batch_size), spread(seen, cell.cell), ratio, cell.verdict, ran, kernels)
    if seen.phases is None:
        return common
    grew = max(cell.phases, key=lambda phase: phase.change_s.value, default=None)
    culprit = cell.culprit.name if cell.culprit else "-"
    return (*common, seen.phases[place], _grown(grew), culprit)


def _grown(phase: PhaseChange | None) -> str:
    growth = phase.slower_by if phase else None
    return (
        f"{phase.name} {growth.value:+.1%} ({growth.low:+.1%} to {growth.high:+.1%}) of the step"
        if phase and growth
        else "-"
    )


def report(cells: list[Cell], seen: Seen) -> Counter[str]:
    """Print a gate's comparison, and return the number of each verdict."""
    ended = seen.ended
    verdicts = ended.state.verdicts(cells, "the budget was spent")
    compared = gate.comparison(verdicts, cells, ended.base, ended.current, ended.state.interims[-1]).cells
    title = (
        "the same code twice"
        if seen.phases is None
        else f"a busy wait of {float(os.environ.get(SHARE, PLANTED_SHARE)):.0%} of the step planted"
    )
    title = "a worse choice planted" if CHOICE in (seen.phases or ()) else title
    print(f"\n{title}: {len(ended.base) + len(ended.current)} trials in {seen.seconds:.0f} s")
    headings = HEADINGS if seen.phases is None else (*HEADINGS, "planted in", "grew most", "named")
    table(iter([headings, *(row(place, cell, seen) for place, cell in enumerate(compared))]))
    verdict_counts: Counter[str] = Counter(cell.verdict for cell in compared)
    print(", ".join(f"{count} {verdict}" for verdict, count in verdict_counts.items()), end="; ")
    check = ended.state.machine_check
    print("too few rounds to check the machine" if check.unstable is None else f"machine unstable: {check.unstable}")
    return verdict_counts


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
    parser.add_argument("--share", type=float, default=PLANTED_SHARE, help="the planted delay as a share of the step")
    parser.add_argument("--computing", action="store_true", help="the planted delay is processor time")
    parser.add_argument("--after", type=float, default=0.0, metavar="SECONDS", help="the planted delay begins then")
    parser.add_argument("--image-size", type=int)
    parser.add_argument("--load", type=int, default=0, help="processes that compute without end; an even number")
    parser.add_argument("--quick", action="store_true", help="two configs, one look at three trials")
    options = parser.parse_args()
    os.environ |= {SHARE: str(options.share), FROM: str(time.time() + options.after)}
    os.environ |= {COMPUTING: "1"} if options.computing else {}
    configs, trials = tuple(options.config), options.looks
    if options.quick:
        configs, trials = configs or ("fp32", "fp32+dali+batched+nhwc+fused+static_graph"), "3"
    of_gate = interims([int(word) for word in trials.split(",")], RULE)
    selection = plan.Selection(
        models=(options.model,) if options.model else None,
        batch_sizes=tuple(options.bs),
        configs=configs,
        image_size=options.image_size,
        max_time_s=options.max_time,
        threads=machine.usable_cpus(),
    )
    cpu_plan = plan.make(scenario.load("cpu"), selection, device.find_device("cpu", {"cpu": None}))
    cpu_plan = dataclasses.replace(
        cpu_plan, cells=tuple(planned for planned in cpu_plan.cells if planned.skip_reason is None)
    )
    cpu_plan = turns.with_gate_timing(cpu_plan, longer=not options.max_time)
    cells = [planned.cell for planned in cpu_plan.cells]
    planted_in = options.phase or PHASES
    configs_of = dict.fromkeys(cell.config for cell in cells)
    phases = {config: planted_in[place % len(planted_in)] for place, config in enumerate(configs_of)}
    how = "one after another" if options.alone else "in turns"
    print(f"{cpu_plan.device.title}, {machine.usable_cpus()} cores; looks at {trials} trials a side, {how}", end="; ")
    print(f"threshold {RULE.threshold:.0%}; load average {os.getloadavg()[0]:.1f}", flush=True)
    verdict_counts: Counter[str] = Counter()

    def kept_folder(name: str) -> Path | None:
        if options.keep is None:
            return None
        folder: Path = options.keep / name
        folder.mkdir(parents=True)
        return folder

    if options.gate == CHOICE:
        phases = dict.fromkeys(configs_of, CHOICE)
    with contextlib.ExitStack() as stack:
        if options.load:
            stack.callback(BusyPrograms(options.load).end)
        if options.gate in (None, "unchanged"):
            verdict_counts = report(
                cells, run(cpu_plan, of_gate, options.alone, options.budget, {}, kept_folder("unchanged"))
            )
        if options.gate != "unchanged":
            report(cells, run(cpu_plan, of_gate, options.alone, options.budget, phases, kept_folder("planted")))
    sys.exit(1 if set(verdict_counts) - {"pass", "inconclusive"} else 0)


if __name__ == "__main__":
    worker() if PLANTED in os.environ else main()
