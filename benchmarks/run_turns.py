"""How precisely a run measures speed-ups, per second: trials alone, in turns with the base, or all configs in turns.

    uv run python benchmarks/run_turns.py --rounds 5 --bs 8 --out turns.jsonl.gz    # measures, then prints the table
    uv run python benchmarks/run_turns.py turns.jsonl.gz                            # prints the table of earlier rounds

The three designs alternate. A round of a design yields one speed-up of each config over the first:

- `alone`: one trial of each config, one after another;
- `pairs`: for each other config, one trial of it and one of the first config in turns, as in a gate;
- `turns`: one trial of each config, all in turns, as `run` does.

`sd`: the standard deviation of a speed-up from round to round, pooled over the configs. `gain`: the variance of `alone`
times its seconds, over those of the design. `mean`: the geometric mean over configs of the speed-ups, relative to those
of `alone` in the same rounds, with its 95% interval over rounds: a design that favours a config shows it there.
`blocks`: as if each trial had ended after so many blocks of steps. `--load` runs busy programs meanwhile.
"""

import argparse
import gzip
import json
import math
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from load_rounds import BusyPrograms

from tcbench.analysis.stats import Interval
from tcbench.analysis.welch import SampleStats
from tcbench.core.record import Record
from tcbench.engine.accelerators.device import find_device
from tcbench.run import plan, runner, scenario
from tcbench.run.plan import PlannedCell
from tcbench.run.runner import Runner

DESIGNS = ("alone", "pairs", "turns")
BEST = "dali+batched+nhwc+fused"
CONFIGS = (
    "fp32",
    "fp32+dali+batched",
    f"fp32+{BEST}",
    f"fp32+{BEST}+static_graph",
    "bf16",
    f"bf16+{BEST}+static_graph",
)


def trial_line(record: Record) -> dict[str, Any]:
    """Return what is kept of a trial. Raises RuntimeError if it failed."""
    if record.measurement is None:
        raise RuntimeError(f"{record.cell.config}: {record.status}: {record.reason}")
    steps_us = [round(1e6 * time_s) for time_s in record.measurement.step_times_s]
    block = record.measurement.block_steps
    blocks = [steps_us[place : place + block] for place in range(0, len(steps_us), block)]
    return {"config": record.cell.config, "blocks_us": blocks}


def groups(design: str, cells: Sequence[PlannedCell], number: int) -> Iterator[list[dict[str, Any]]]:
    """Run a round of a design, and yield the trials of each group."""
    trials = Runner("run-turns", timeout_s=600)
    if design == "alone":
        yield [trial_line(record) for record in trials.run([(planned, number) for planned in cells])]
    elif design == "turns":
        order = cells if number % 2 == 0 else cells[::-1]
        yield [trial_line(record) for record in trials.run_group([(planned, number) for planned in order])]
    else:
        for planned in cells[1:]:
            pair = (cells[0], planned) if number % 2 else (planned, cells[0])
            yield [trial_line(r) for _, r in runner.run_in_turns([(trials, each, number) for each in pair])]


def record_rounds(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run the rounds, and yield each as a line of the file."""
    selection = plan.Selection(
        batch_sizes=(options.bs,), configs=tuple(options.config or CONFIGS), max_time_s=options.max_time, target=1e-3
    )
    cells = plan.make(scenario.load("cpu"), selection, find_device("cpu", {"cpu": None})).cells
    busy = BusyPrograms(options.load) if options.load else None
    try:
        for number in range(options.rounds):
            for design in DESIGNS[number % 3 :] + DESIGNS[: number % 3]:
                began_s = time.monotonic()
                measured = [*groups(design, cells, number)]
                seconds = round(time.monotonic() - began_s, 2)
                yield {"design": design, "round": number, "load": options.load, "seconds": seconds, "groups": measured}
                print(f"round {number}, {design}: {seconds} s; load average {os.getloadavg()[0]:.1f}", flush=True)
    finally:
        if busy:
            busy.end()


def rate(trial: dict[str, Any], blocks: int | None) -> float:
    """Return the steps per second of a trial that ends after so many blocks."""
    return 1e6 / statistics.fmean(time_us for block in trial["blocks_us"][:blocks] for time_us in block[1:])


@dataclass(frozen=True)
class Speedups:
    """The logarithms of a design's speed-ups over the base by config and round, and the seconds of a round."""

    logs: dict[str, dict[int, float]]
    seconds: float

    @property
    def variance(self) -> float:
        return statistics.fmean(statistics.variance(by_round.values()) for by_round in self.logs.values())

    def relative_to(self, other: "Speedups") -> Interval:
        """Return the geometric mean of the speed-ups relative to those of another design, paired by round."""
        rounds = set.intersection(*(set(each.logs[config]) for each in (self, other) for config in each.logs))
        differences = [
            statistics.fmean(self.logs[config][number] - other.logs[config][number] for config in self.logs)
            for number in rounds
        ]
        interval = SampleStats.from_values(differences).mean_interval
        return Interval(*map(math.exp, (interval.value, interval.low, interval.high)))


def speedups(lines: Iterable[dict[str, Any]], base: str, blocks: int | None) -> Speedups:
    """Return the speed-ups of a design whose trials end after so many blocks."""
    logs: dict[str, dict[int, float]] = defaultdict(dict)
    seconds = []
    for line in lines:
        trials = [trial for group in line["groups"] for trial in group]
        left_out = [trial["blocks_us"][blocks:] for trial in trials] if blocks else []
        seconds.append(line["seconds"] - 1e-6 * sum(sum(map(sum, each)) for each in left_out))
        for group in line["groups"]:
            rates = {trial["config"]: rate(trial, blocks) for trial in group}
            for config, per_s in rates.items():
                if config != base:
                    logs[config][line["round"]] = math.log(per_s / rates[base])
    return Speedups(logs, statistics.fmean(seconds))


def show(files: Sequence[Path]) -> None:
    for file in files:
        with gzip.open(file, "rt") as text:
            lines = [json.loads(line) for line in text]
        base = next(line for line in lines if line["design"] == "alone")["groups"][0][0]["config"]
        rounds = len({line["round"] for line in lines})
        print(f"{file.name}: load {lines[0]['load']}, {rounds} rounds, speed-ups over {base}")
        print(f"{'design':8} {'blocks':>6} {'round':>7} {'sd':>6} {'gain':>6}  mean")
        for blocks in (1, 2, None):
            by_design = {
                design: speedups([line for line in lines if line["design"] == design], base, blocks)
                for design in DESIGNS
            }
            alone = by_design["alone"]
            for design, each in by_design.items():
                gain = alone.variance * alone.seconds / (each.variance * each.seconds)
                mean = each.relative_to(alone)
                spread = f"{math.sqrt(each.variance):6.1%} {gain:5.2f}x"
                interval = f"{mean.value:.3f} ({mean.low:.3f} to {mean.high:.3f})"
                print(f"{design:8} {blocks or 'all':>6} {each.seconds:5.1f} s {spread}  {interval}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("files", nargs="*", type=Path, help="rounds recorded before")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--config", action="append")
    parser.add_argument("--max-time", type=float, default=2.0, metavar="SECONDS", help="of one timed pass")
    parser.add_argument("--load", type=int, default=0, help="processes that compute without end; an even number")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    if options.out:
        with gzip.open(options.out, "at") as out:
            for line in record_rounds(options):
                out.write(json.dumps(line, separators=(",", ":")) + "\n")
    show([*options.files, *([options.out] if options.out else [])])


if __name__ == "__main__":
    main()
