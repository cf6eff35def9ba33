"""Divide a trial's time into parts, from the start of its process to its end, by the messages that it sends.

    uv run python benchmarks/trial_parts.py                                   # the scenario `cpu`, base and best
    uv run python benchmarks/trial_parts.py --scenario naruse2018 --device cuda:0 --config fp16+dali --bs 64

`python`: until our module runs. `imports`: until the model is built. `build`: model, weights and input, until the first
step begins. `first`: that step. `warm-up`: the others of it. `timed`: the timed pass. `rest`: the profiled pass and the
end. The first trial of each config, which may tune and fill caches, is not counted; then medians of some in turns.
"""

import argparse
import statistics
import time
from typing import Any

from tcbench.core.messages import Building, Message, Stepped
from tcbench.core.record import Selection
from tcbench.run import plan
from tcbench.run.runner import Runner

PARTS = ("python", "imports", "build", "first", "warm-up", "timed", "rest")


def seconds_of(planned: plan.PlannedCell) -> dict[str, float]:
    """Run a trial, and return the seconds of its parts."""
    heard: list[tuple[Message, float]] = []
    begin = time.perf_counter()
    [record] = Runner(
        "trial-parts", timeout_s=3600.0, listen=lambda *words: heard.append((words[-1], time.perf_counter() - begin))
    ).run([(planned, 0)])
    end_s = time.perf_counter() - begin
    if record.measurement is None:
        raise SystemExit(f"{planned.cell.config}: {record.reason}")
    started_s, imported_s = (heard_s for message, heard_s in heard if isinstance(message, Building))
    steps = [(message.stage, heard_s) for message, heard_s in heard if isinstance(message, Stepped)]
    warm_s = next(heard_s for stage, heard_s in steps if stage == "timed")
    done_s = max(heard_s for stage, heard_s in steps if stage == "timed")
    first, *remaining = record.measurement.warmup_times_s
    begun_s = warm_s - first - sum(remaining)
    ends = (0.0, started_s, imported_s, begun_s, begun_s + first, warm_s, done_s, end_s)
    return {name: later - sooner for name, sooner, later in zip(PARTS, ends, ends[1:], strict=False)}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenario", default="cpu")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--config", nargs="+", default=["fp32", "fp32+dali+batched+nhwc+fused+static_graph"])
    parser.add_argument("--bs", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=7)
    chosen = parser.parse_args()
    selection: dict[str, Any] = {"configs": tuple(chosen.config), "batch_sizes": (chosen.bs,), "device": chosen.device}
    cells = plan.plan_of(Selection(scenario=chosen.scenario, trials=1, threads=None, **selection)).cells
    parts_by_config: dict[str, list[dict[str, float]]] = {planned.cell.config: [] for planned in cells}
    for round_ in range(chosen.rounds + 1):
        for planned in cells:
            parts = seconds_of(planned)
            if round_:
                parts_by_config[planned.cell.config].append(parts)
    print("".join(f"{name:>9}" for name in (*PARTS, "all")), " s, medians of", chosen.rounds)
    for config, trials in parts_by_config.items():
        medians = [statistics.median(trial[name] for trial in trials) for name in PARTS]
        medians.append(statistics.median(sum(trial.values()) for trial in trials))
        print("".join(f"{median:9.2f}" for median in medians), "", config)


if __name__ == "__main__":
    main()
