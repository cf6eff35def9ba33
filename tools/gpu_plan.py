"""The steps on a GPU that is borrowed for 15 minutes: what they measure, their order, and their expected time.

    python tools/gpu_plan.py            the table for an H200 in Markdown, from the records in results/h200

`tools/gpu_check.py` runs these steps. Steps are in the order of their value: when time runs short, those at the end are
left out first. The same figures make the table and that choice.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median
from typing import Any, Literal

RECORDS = Path(__file__).resolve().parents[1] / "results" / "h200"
LIMIT_S = {1: 200, 2: 560}
"""The time that each call may take, from its first command to its archive."""
RESERVE_S = 4
"""The part of that time that is kept for the archive."""
SET_UP_DALI_S = 12
"""To unpack DALI and to see whether it decodes."""
MAX_TIME_S = 1.0
"""`--max-time` of every trial."""


def ladder(precision: str) -> tuple[str, ...]:
    """The configs of the talk for a precision that read their input with DALI, from the first to the best."""
    rungs = ("dali", "batched", "nhwc+fused", "static_graph")
    return tuple("+".join((precision, *rungs[:n])) for n in range(1, len(rungs) + 1))


TORCH = ("torch/fp16+dali", "torch/fp16+dali+nhwc+cudnn_benchmark+fused_optimizer+cuda_graph")
BEST = {precision: ladder(precision)[-1] for precision in ("fp16", "fp32")}


@dataclass(frozen=True)
class Step:
    """One command of a call. `cells` has a config and a batch size for each trial; the batch sizes are in the order of
    their value. `expected_s` is given where no record tells how long the step takes: set-up and checks."""

    name: str
    call: int
    kind: Literal["set-up", "run", "profile", "check"]
    configs: tuple[str, ...] = ()
    batch_sizes: tuple[int, ...] = ()
    scenario: str = "naruse2018"
    data: str = "generated"
    expected_s: float = 0.0

    @property
    def cells(self) -> tuple[tuple[str, int], ...]:
        """Each trial's config and batch size."""
        return tuple((config, size) for size in self.batch_sizes for config in self.configs)

    @property
    def needs_dali(self) -> bool:
        """Whether the step cannot run without DALI."""
        return any("dali" in config.split("+") for config in self.configs)

    def arguments(self, device: str, results: Path) -> list[str]:
        """Return the arguments of `tcbench` for a step that measures."""
        sizes = ",".join(map(str, sorted(self.batch_sizes)))
        common = ["--device", device, "--bs", sizes, "--out", str(results), "--quiet"]
        if self.data != "generated":
            common += ["--data", self.data]
        if self.kind == "profile":
            return ["profile", *self.configs, self.scenario, *common]
        common += f"--trials 1 --max-time {MAX_TIME_S:g} --timeout 100 --label {self.name} --resume".split()
        return ["run", self.scenario, "--config", ",".join(self.configs), *common]


def with_feed(config: str, feed: str) -> str:
    """Return a config with another feed in DALI's place, or with none if `feed` is empty."""
    return "+".join(filter(None, (feed if rung == "dali" else rung for rung in config.split("+"))))


def without_dali(step: Step) -> tuple[Step, ...]:
    """Return what takes the place of a step where DALI does not decode: other input.

    That is synthetic input; for the talk's best config, which call 1 measured so, it is OpenCV's."""
    if not step.needs_dali:
        return (step,)
    decoded = step.configs[-1:] if step.name.startswith("dali-") else ()
    synthetic = tuple(with_feed(config, "") for config in step.configs if config not in decoded)
    steps = [replace(step, name=f"{step.name}-synthetic", configs=synthetic, data="synthetic")]
    if decoded:
        steps.append(replace(step, name=f"{step.name}-opencv", configs=(with_feed(*decoded, "opencv"),)))
    return tuple(steps)


BEST_SYNTHETIC = tuple(with_feed(config, "") for config in BEST.values())
STEPS = (
    Step("set-up", 1, "set-up", expected_s=12),
    Step("pillow-64", 1, "run", ("fp32", "fp16"), (64,)),
    Step("best", 1, "run", BEST_SYNTHETIC, (64, 256, 128, 32), data="synthetic"),
    Step("set-up-dali", 2, "set-up", expected_s=SET_UP_DALI_S),
    *(Step(f"dali-{precision}", 2, "run", ladder(precision), (64, 256, 128, 32)) for precision in BEST),
    Step("torch", 2, "run", TORCH, (64, 256), scenario="peers"),
    Step("profile-host", 2, "profile", ("fp16+dali",), (64,)),
    Step("profile-best", 2, "profile", (BEST["fp16"],), (64,)),
    Step("pillow", 2, "run", ("fp32", "fp16"), (32, 128, 256)),
    Step("smoke", 2, "check", expected_s=20),
    Step("tests", 2, "check", expected_s=20),
)
"""All steps in the order in which they run."""


# -- expected seconds --------------------------------------------------------------------------------------------------

LEAST_TIMED_STEPS = {"dali": 20, "synthetic": 12, "decoded": 6}
"""Whole blocks of timed steps by where the input comes from. More are timed where MAX_TIME_S has time for them."""
LEAST_PROFILED_STEPS = 5
STALLED_ROUNDS, STALLS_S = 5, 2.0
"""A trial's rounds behind a stall, and the time that all of them may take; one is always run. Today a round without a
stall comes before them, and the stall does not wait for the input."""
RUNS_OF_A_PLAN = 29
"""Times that tuning ran each plan when the records were made."""
LOOK_S, LEAST_RUNS, MOST_RUNS, TRIAL_RUNS = 10e-3, 3, 20, 3
"""Today tuning runs a plan a few times on trial, and then for about 10 ms of device time."""
COMPILE_S, COMPILED_PLANS = 0.5, 2
"""Time that cuDNN takes to compile a plan, and the compiled plans of a batch normalisation that a trial looks at."""
RESTORE_S = 1.9 / 52
"""Time to restore a compiled plan: 52 took 1.9 s on two cores. Carried plans are restored in place of compiling."""
RUN_S = 4.0
"""Assumption: the time of one `tcbench run` outside its trials. Between two runs the records show 2.1 and 7.5 s."""
PROFILE_S = 5.0
"""Assumption: what `tcbench profile` takes longer than a trial, to write its trace and its pictures."""


@dataclass(frozen=True)
class Recorded:
    """The times of a recorded trial.

    `start_s`: the time before its first step. `process_s`: all time but that of steps. `plan_times_s`: the approximate
    device time of each plan that was timed in this trial. `compiled`: the batch normalisations for which plans were
    compiled."""

    config: str
    batch_size: int
    first_step_s: float
    step_s: float
    host_s: float
    warmup_steps: int
    profiled_steps: int
    start_s: float
    process_s: float
    plan_times_s: tuple[float, ...]
    compiled: int


def read_records(folder: Path = RECORDS) -> list[Recorded]:
    """Read what the trials in a folder took, in the order of their files."""
    lines = (line for path in sorted(folder.glob("*.jsonl")) for line in path.read_text("utf-8").splitlines())
    return [_recorded(record) for record in map(json.loads, lines) if record["status"] == "ok"]


def _recorded(record: dict[str, Any]) -> Recorded:
    measurement, cell = record["measurement"], record["cell"]
    warmup_s, timed_s = measurement["warmup_times_s"], measurement["step_times_s"]
    phases, step_s = measurement["phases"], median(timed_s)
    host_s = sum(median(phase["host_s"]) for phase in phases if phase["name"] != "io")
    input_s = median(phases[0]["host_s"])
    profiled_steps = len(phases[0]["host_s"])
    stall_s = 2 * (input_s + host_s)
    stalls_s = max(1, min(STALLED_ROUNDS, int(STALLS_S / stall_s))) * (stall_s + (measurement["busy_s"] or 0.0))
    trained_s = sum(warmup_s) + sum(timed_s) + profiled_steps * step_s + stalls_s
    # A plan: work, plan, workspace, whether it was kept, its time, the first plan's time, how many were timed, ...
    timed = [plan for plan in measurement["plans"] if not plan[3] and plan[4]]
    return Recorded(
        config=cell["config"],
        batch_size=cell["batch_size"],
        first_step_s=warmup_s[0],
        step_s=step_s,
        host_s=host_s,
        warmup_steps=len(warmup_s) - 1,
        profiled_steps=profiled_steps,
        start_s=record["gpu"]["timed_from_s"] - sum(warmup_s),
        process_s=max(0.0, record["duration_s"] - trained_s),
        plan_times_s=tuple(time_s for plan in timed for time_s in plan[6] * [mean((plan[4], plan[5] or plan[4]))]),
        compiled=sum("batch_norm" in plan[0] for plan in timed),
    )


@dataclass(frozen=True)
class Expected:
    """Seconds that a step is expected to take: set-up and processes, steps of training, and tuning."""

    process_s: float = 0.0
    steps_s: float = 0.0
    tuning_s: float = 0.0

    @property
    def total_s(self) -> float:
        """Seconds of the whole step."""
        return self.process_s + self.steps_s + self.tuning_s

    def __add__(self, other: Expected) -> Expected:
        return Expected(self.process_s + other.process_s, self.steps_s + other.steps_s, self.tuning_s + other.tuning_s)


class Forecast:
    """Expected times of steps on the GPU of the records. Plans are tuned once, in the first step that needs them."""

    def __init__(self, recorded: list[Recorded]) -> None:
        self._recorded = recorded
        self._tuned: set[tuple[object, ...]] = set()
        self._cells = {(step.name, *cell): self._trial(step, *cell) for step in STEPS for cell in step.cells}

    def step(self, step: Step) -> Expected:
        """Return what a step is expected to take. A step that replaces another tunes nothing."""
        total = Expected(step.expected_s + {"run": RUN_S, "profile": PROFILE_S}.get(step.kind, 0.0))
        for cell in step.cells:
            total += self._cells.get((step.name, *cell)) or self._trial(step, *cell)
        return total

    def fitting(self, step: Step, left_s: float, factor: float = 1.0) -> Step | None:
        """Return the step with as many batch sizes as there is time for, or None if there is time for none.

        `factor`: how many times as long as expected the steps before took."""
        fewer = (replace(step, batch_sizes=step.batch_sizes[:n]) for n in range(len(step.batch_sizes), 0, -1))
        options = fewer if step.batch_sizes else iter([step])
        return next((option for option in options if factor * self.step(option).total_s <= left_s), None)

    def _trial(self, step: Step, config: str, size: int) -> Expected:
        rungs = [rung for rung in config.split("+") if rung != "opencv"]
        from_memory = step.data == "synthetic"
        if "dali" not in rungs and (from_memory or len(rungs) > 1):
            rungs.insert(1, "dali")  # the records have no other input for such a config
        like = self._nearest("+".join(rungs), size)
        step_s = max(like.host_s, like.step_s * size / like.batch_size)
        source = "synthetic" if from_memory else "dali" if "dali" in config else "decoded"
        in_time = math.ceil(MAX_TIME_S / step_s)
        timed = max(LEAST_TIMED_STEPS[source], in_time)
        profiled = max(LEAST_PROFILED_STEPS, min(like.profiled_steps, in_time))
        round_s = step_s + 2 * like.host_s
        rounds = 1 + max(1, min(STALLED_ROUNDS, int(STALLS_S / round_s)))
        steps_s = (like.warmup_steps + timed + profiled) * step_s + rounds * round_s
        works = _works(config)
        first_step_s = min(r.first_step_s for r in self._recorded if _works(r.config) == works)
        process_s = like.process_s + first_step_s
        if "dali" in like.config and "dali" not in config:
            process_s -= self._dali_start_s()
        return Expected(process_s, steps_s, self._tuning_s(works, size))

    def _dali_start_s(self) -> float:
        """Return how much longer a trial with DALI takes until its first step than one without."""
        starts = {dali: [r.start_s for r in self._recorded if ("dali" in r.config) == dali] for dali in (True, False)}
        return median(starts[True]) - median(starts[False])

    def _tuning_s(self, works: tuple[object, ...], size: int) -> float:
        """Return the time to tune the plans of these works at a batch size; 0 if that was asked for before."""
        alike = [r for r in self._recorded if _works(r.config) == works]
        untuned = [r for r in alike if r.plan_times_s]
        if not untuned or (*works, size) in self._tuned:
            return 0.0
        self._tuned.add((*works, size))
        tuned_s = min(r.first_step_s for r in alike)
        return median(self._one_tuning_s(r, size, tuned_s) for r in untuned)

    def _one_tuning_s(self, untuned: Recorded, size: int, tuned_s: float) -> float:
        compiled = untuned.compiled * COMPILED_PLANS
        timing_s = RUNS_OF_A_PLAN * sum(untuned.plan_times_s)
        building_s = max(0.0, untuned.first_step_s - tuned_s - timing_s - compiled * COMPILE_S)
        times_s = [time_s * size / untuned.batch_size for time_s in untuned.plan_times_s]
        looks_s = sum(time_s * (TRIAL_RUNS + min(MOST_RUNS, max(LEAST_RUNS, LOOK_S / time_s))) for time_s in times_s)
        return building_s + compiled * RESTORE_S + looks_s

    def _nearest(self, config: str, size: int) -> Recorded:
        """Return the newest trial at the nearest batch size of the config, or of the longest that it climbs from."""
        below = [r for r in self._recorded if config == r.config or config.startswith(r.config + "+")]
        longest = max(len(r.config) for r in below)
        nearest = [r for r in reversed(below) if len(r.config) == longest]
        return min(nearest, key=lambda r: abs(math.log(r.batch_size / size)))


def _works(config: str) -> tuple[object, ...]:
    """Return what decides which cuDNN plans a config needs."""
    rungs = config.split("+")
    return rungs[0], "nhwc" in rungs, "convstats" in rungs


def planned(
    forecast: Forecast, steps: Iterable[Step], left_s: float, factor: float = 1.0
) -> list[tuple[Step, Step | None]]:
    """Return each step of a call with what of it there is time for, as in `Forecast.fitting`."""
    chosen = []
    for step in steps:
        part = forecast.fitting(step, left_s, factor)
        left_s -= factor * forecast.step(part).total_s if part else 0.0
        chosen.append((step, part))
    return chosen


def whole_plan(forecast: Forecast) -> list[tuple[Step, Step | None]]:
    """Return each step of both calls with what of it there is time for if all goes as expected."""
    calls = ((limit_s, [step for step in STEPS if step.call == call]) for call, limit_s in LIMIT_S.items())
    return [pair for limit_s, steps in calls for pair in planned(forecast, steps, limit_s - RESERVE_S)]


def left_out(step: Step, part: Step | None) -> str:
    """Return a step's name, and the batch sizes for which there is no time; empty if there is time for all of it."""
    sizes = [size for size in step.batch_sizes if part is None or size not in part.batch_sizes]
    if part == step:
        return ""
    return f"{step.name} at {', '.join(map(str, sizes))}" if sizes and step.kind == "run" else step.name


def table(forecast: Forecast) -> str:
    """Return the expected seconds of each step as a Markdown table, and what there is no time for."""
    lines = ["| call | step | trials | processes | steps | tuning | seconds | sum |"]
    lines.append("| ---: | --- " + "| ---: " * 6 + "|")
    total, missing = Expected(), []
    for step, part in whole_plan(forecast):
        if left_out(step, part):
            seconds = forecast.step(step).total_s - (forecast.step(part).total_s if part else 0)
            missing.append(f"{left_out(step, part)} ({seconds:.0f} s)")
        if part is None:
            continue
        took = forecast.step(part)
        total += took
        figures = (took.process_s, took.steps_s, took.tuning_s, took.total_s, total.total_s)
        numbers = " | ".join(f"{figure:.0f}" for figure in figures)
        lines.append(f"| {part.call} | `{part.name}` | {len(part.cells) or ''} | {numbers} |")
    return "\n".join([*lines, "", f"No time: {'; '.join(missing) or 'none'}."])


if __name__ == "__main__":
    print(table(Forecast(read_records())))
