"""Measure and check on a GPU what only a GPU can show, within a time limit, and collect the results in one archive.

    python tools/gpu_check.py FOLDER                        everything, in half an hour
    python tools/gpu_check.py FOLDER --call 1 --carried build/loan/call1        on a borrowed machine:
    python tools/gpu_check.py FOLDER --call 2 --carried build/loan/call2        docs/gpu-offline.md

The steps, their order and their expected times are in `tools/gpu_plan.py`. A step begins only if there is time for it,
at the pace of the steps before. A step that fails does not stop the others. After each step FOLDER gets
gpu_check.tar.gz (records, charts, logs; steps.jsonl says how each step ended) and, on a borrowed machine, plans.tar.gz
(the tuned cuDNN plans). Run the same command again to continue.

Exit code: 0; 1 if a step failed or was not run yet; 2 if nothing can be run.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import contextlib
import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import gpu_plan
from gpu_plan import Step

ROOT = Path(__file__).resolve().parents[1]
MOST_BYTES = 16 << 20
"""The most bytes of an archive."""
BUDGET_S = 1800.0
"""The default budget without `--call`."""
FROM_CACHE, AHEAD = 3, 11
"""Places of these fields of `tcbench.core.record.PlanChoice` in a record."""
BEYOND = "fp16+dali+batched+nhwc+fused+cuda_graph"
EVERYTHING = (
    *(step for step in gpu_plan.STEPS if step.kind != "check"),
    Step("beyond", 2, "run", (BEYOND, f"{BEYOND}+convstats"), (64,), scenario="beyond"),
    Step("all-smoke", 2, "check", expected_s=120),
    Step("all-tests", 2, "check", expected_s=60),
    Step("torch-tests", 2, "check", expected_s=160),
)
SMOKE = ("fp16+*", "torch/*")
TESTS = {
    "tests": [
        f"tests/engine/{path}" for path in ("accelerators/cuda/cudnn", "accelerators/test_event_clock.py", "feeds")
    ],
    "torch-tests": ["tests/engine/backends/torch"],
    "dali": ["tests/engine/feeds/test_dali.py::test_on_a_gpu_the_pixels_are_those_of_the_cpu"],
}
"""GPU tests by step. `tests`: those of what has changed since a GPU was last at hand. All others: `_gpu_tests`."""

Execute = Callable[[Sequence[str], Path, float], str]
"""Runs a command for at most so many seconds, with what it prints in a log, and returns how it ended."""


@dataclass(frozen=True)
class Ended:
    """How a step ended, for these batch sizes: a line of steps.jsonl."""

    name: str
    sizes: tuple[int, ...]
    words: str
    took_s: float
    expected_s: float


@dataclass
class Check:
    """One call: what it runs on, where it leaves its results, and until when it may run, by the clock `now`."""

    folder: Path
    device: str
    ends_at_s: float
    execute: Execute
    now: Callable[[], float]
    forecast: gpu_plan.Forecast = field(default_factory=lambda: gpu_plan.Forecast(gpu_plan.read_records()))
    to_come: list[str] = field(default_factory=list)

    @property
    def results(self) -> Path:
        """The folder that the archive holds."""
        return self.folder / "gpu_check"

    @property
    def left_s(self) -> float:
        """Seconds that are left for steps."""
        return self.ends_at_s - gpu_plan.RESERVE_S - self.now()

    @property
    def ended(self) -> list[Ended]:
        """The steps that ended, in this call and before it."""
        path = self.results / "steps.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        return [Ended(**{**ended, "sizes": tuple(ended["sizes"])}) for ended in map(json.loads, lines)]

    @property
    def slowness(self) -> float:
        """How many times as long as expected the runs took that did not fail; 1 before the first."""
        runs = [ended for ended in self.ended if ended.sizes and ended.words == "ok"]
        return max(0.5, sum(run.took_s for run in runs) / sum(run.expected_s for run in runs)) if runs else 1.0

    def remaining(self, step: Step) -> Step | None:
        """Return what is left of a step, or None. A run that ran out of time continues."""
        over = [
            end for end in self.ended if end.name == step.name and not (end.sizes and end.words.startswith("ran out"))
        ]
        if step.kind != "run":
            return None if over else step
        sizes = tuple(size for size in step.batch_sizes if not any(size in end.sizes for end in over))
        return dataclasses.replace(step, batch_sizes=sizes) if sizes else None

    def log(self, name: str) -> Path:
        """Return the file for what a command prints."""
        return self.results / "logs" / f"{name}.log"

    def note(self, ended: Ended) -> None:
        """Write down how a step ended, and pack what there is."""
        print(f"== {ended.name}: {ended.words} ({ended.took_s:.0f} s, expected {ended.expected_s:.0f} s)", flush=True)
        with (self.results / "steps.jsonl").open("a") as file:
            file.write(json.dumps(dataclasses.asdict(ended)) + "\n")
        pack(self.folder)

    def run(self, step: Step) -> None:
        """Run as much of a step as there is time for, and note how it ended."""
        part = self.forecast.fitting(step, self.left_s, self.slowness)
        if missing := gpu_plan.left_out(step, part):
            print(f"== no time for {missing}", flush=True)
            self.to_come.append(missing)
        if part is None:
            return
        expected_s, began_s = self.forecast.step(part).total_s, self.now()
        limit_s = min(self.left_s, 60 + 3 * self.slowness * expected_s)
        print(f"== {part.name}: expected {self.slowness * expected_s:.0f} s of {self.left_s:.0f}", flush=True)
        words = self.execute(command(part, self, limit_s), self.log(part.name), limit_s)
        if words.startswith("ran out"):
            self.to_come.append(part.name)
        sizes = part.batch_sizes if part.kind == "run" else ()
        self.note(Ended(part.name, sizes, words, self.now() - began_s, expected_s))


def main(
    arguments: Sequence[str] | None = None, execute: Execute | None = None, now: Callable[[], float] = time.monotonic
) -> int:
    """Run the steps of one call, or everything."""
    began_s = now()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="FOLDER")
    parser.add_argument("--call", type=int, choices=sorted(gpu_plan.LIMIT_S))
    parser.add_argument("--carried", type=Path, metavar="FOLDER", help="wheels, DALI and plans to unpack first")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, metavar="SECONDS", help="default: 200 (call 1), 560 (call 2), 1800")
    parser.add_argument("--bs", type=int, metavar="N", help="run every step at this batch size only, to rehearse")
    options = parser.parse_args(arguments)
    budget_s = options.budget or gpu_plan.LIMIT_S.get(options.call, BUDGET_S)
    check = Check(options.folder.resolve(), options.device, began_s + budget_s, execute or run_command, now)
    check.log("").parent.mkdir(parents=True, exist_ok=True)
    if options.carried is not None:
        unpack(options.carried, check.folder)
    set_environment(check.folder)
    if refusal := why_not(check):
        print(f"gpu_check: nothing was run on {check.device}: {refusal}", file=sys.stderr)
        return 2
    steps = [step for step in gpu_plan.STEPS if step.call == options.call] or list(EVERYTHING)
    if options.bs:
        steps = [dataclasses.replace(step, batch_sizes=(options.bs,) if step.configs else ()) for step in steps]
    if options.call != 2:
        look_around(check)
        check.note(Ended("set-up", (), "ok", check.now() - began_s, steps[0].expected_s))
    run_steps(check, [step for step in steps if step.kind != "set-up"], began_s)
    return conclude(check, check.now() - began_s)


def run_steps(check: Check, steps: Sequence[Step], began_s: float) -> None:
    """Run steps in their order. Before the first that needs DALI, see whether DALI decodes; if not, replace them."""
    todo = [part for step in steps if (part := check.remaining(step)) is not None]
    chosen = gpu_plan.planned(check.forecast, todo, check.left_s, check.slowness)
    missing = "; ".join(filter(None, (gpu_plan.left_out(*pair) for pair in chosen))) or "nothing"
    print(f"== steps take {check.slowness:.2f} times the expected time so far; no time for: {missing}", flush=True)
    if any(step.needs_dali for step in todo):
        on_gpu = check.device.startswith("cuda")
        probe = _pytest("dali") if on_gpu else [sys.executable, "-c", "import nvidia.dali"]
        words = check.execute(probe, check.log("dali"), 60)
        if words != "ok":
            print(f"== DALI does not decode here ({words}, see dali.log): other input replaces it", flush=True)
            todo = [part for step in todo for part in gpu_plan.without_dali(step)]
            todo = [left for part in todo if (left := check.remaining(part)) is not None]
        check.note(Ended("set-up-dali", (), words, check.now() - began_s, gpu_plan.SET_UP_DALI_S))
    for step in todo:
        check.run(step)


# -- commands ----------------------------------------------------------------------------------------------------------


def command(step: Step, check: Check, limit_s: float) -> list[str]:
    """Return the command line of a step."""
    if step.kind in ("run", "profile"):
        return [sys.executable, "-m", "tcbench", *step.arguments(check.device, check.results / "results")]
    if step.name.endswith("smoke"):
        patterns = () if step.name == "all-smoke" else SMOKE
        options = ["--device", check.device, "--budget", f"{limit_s:.0f}", "--out", str(check.results / "smoke")]
        return [sys.executable, "tools/gpu_smoke.py", *options, *patterns]
    return [*_pytest(step.name), *_at_once()]


def _pytest(name: str) -> list[str]:
    # The suite's own options ask for packages that may be missing here, and a library's warning is no failure.
    options = ["-o", "addopts=", "--import-mode=importlib", "-W", "default", "-p", "no:cacheprovider"]
    output = ["-m", "gpu", "-q", "-ra", "--tb=short", "--maxfail=30", "--durations=10"]
    return [sys.executable, "-m", "pytest", *options, *output, *(TESTS.get(name) or _gpu_tests())]


def _gpu_tests() -> list[str]:
    """Return the test files that have GPU tests, but for PyTorch's."""
    files = (path for path in sorted((ROOT / "tests").rglob("test_*.py")) if "torch" not in path.parts)
    return [str(path.relative_to(ROOT)) for path in files if "mark.gpu" in path.read_text(encoding="utf-8")]


def _at_once() -> list[str]:
    """Return pytest's options for six tests at once, where several processes may use the GPU and there are cores."""
    query = ["nvidia-smi", "--query-gpu=compute_mode", "--format=csv,noheader"]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        modes = subprocess.run(query, capture_output=True, text=True, timeout=20).stdout.split()
        if {*modes} == {"Default"} and (os.cpu_count() or 1) >= 12 and importlib.util.find_spec("xdist"):
            return ["-n", "6", "--dist", "worksteal"]
    return []


def run_command(command: Sequence[str], log: Path, limit_s: float) -> str:
    """Run a command for at most so many seconds. Return "ok", its exit code, or that it ran out of its time."""
    words = f"ran out of its {limit_s:.0f} s"
    with log.open("ab") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, cwd=ROOT, process_group=0)
        try:
            code = process.wait(limit_s)
            words = f"exit code {code}" if code else "ok"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGINT)  # tcbench keeps what is done, and pytest says what failed
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(10)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    print("".join(f"   {line}\n" for line in log.read_text(errors="replace").splitlines()[-6:]), end="", flush=True)
    return words


# -- set-up ------------------------------------------------------------------------------------------------------------


def unpack(carried: Path, folder: Path) -> None:
    """Unpack what was carried here, once: wheels and DALI into `site`, plans into `cache`."""
    list_path = folder / "unpacked.txt"
    before = list_path.read_text().splitlines() if list_path.exists() else []
    new = [path for path in sorted(carried.iterdir()) if path.name not in before]

    def extract(archive: Path) -> None:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(folder / "site")
        else:
            safe: dict[str, str] = (
                {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            )  # Python 3.11.4 and newer
            with tarfile.open(archive) as tar:
                tar.extractall(folder / ("cache" if archive.name.startswith("cache") else "site"), **safe)

    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(extract, new))
    list_path.write_text("\n".join([*before, *(path.name for path in new)]))


def set_environment(folder: Path) -> None:
    """Let every command find the packages that were carried here, and leave its tuned plans in the folder."""
    paths = [str(ROOT), str(folder / "site"), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ |= {"PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"}
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # every trial would compile everything anew
    if (folder / "site").exists():
        os.environ["TCBENCH_CACHE"] = str(folder / "cache")


def why_not(check: Check) -> str:
    """Return why tcbench cannot run on the device; empty if it can. Imports Chainer, which the trials need."""
    script = "import sys, tcbench.engine.backends.chainer.compat, tcbench.__main__ as t; sys.exit(t.main())"
    arguments = ["run", "naruse2018", "--device", check.device, "--dry-run"]
    words = check.execute([sys.executable, "-c", script, *arguments], check.log("dry-run"), 120)
    lines = check.log("dry-run").read_text(errors="replace").strip().splitlines()
    return "" if words == "ok" else lines[-1] if lines else words


def look_around(check: Check) -> None:
    """Write down what this machine is, while the JPEGs are made."""
    tcbench = [sys.executable, "-m", "tcbench"]
    commands = {
        "environment": ["sh", "-c", f"date -u; uname -a; lscpu; nvidia-smi; '{sys.executable}' -m pip list"],
        "doctor": [*tcbench, "doctor"],
        "data": [*tcbench, "data", "make", "--quiet"],
    }
    with concurrent.futures.ThreadPoolExecutor() as pool:
        list(pool.map(lambda name: check.execute(commands[name], check.log(name), check.left_s / 2), commands))


# -- archives ----------------------------------------------------------------------------------------------------------


def pack(folder: Path) -> None:
    """Make the archives anew, each in one rename: whatever ends this script leaves whole ones."""
    results = folder / "gpu_check"
    _pack(folder / "gpu_check.tar.gz", [results])
    if (folder / "gpu_check.tar.gz").stat().st_size > MOST_BYTES:
        for log in (results / "logs").iterdir():
            log.write_bytes(log.read_bytes()[-100_000:])
        _pack(folder / "gpu_check.tar.gz", [results])
    if plans := sorted((folder / "cache").glob("plans-v*")):
        _pack(folder / "plans.tar.gz", plans)


def _pack(archive: Path, folders: Sequence[Path]) -> None:
    part = archive.with_suffix(".part")
    with tarfile.open(part, "w:gz", compresslevel=1) as tar:
        for folder in folders:
            tar.add(folder, folder.name)
    part.rename(archive)


def conclude(check: Check, took_s: float) -> int:
    """Print the results, what failed and what was not run yet; return the exit code."""
    paths = sorted(check.results.glob("results/*/*.jsonl"))
    records = [json.loads(line) for path in paths for line in path.read_text("utf-8").splitlines()]
    plans = [plan for record in records for plan in (record.get("measurement") or {}).get("plans") or ()]
    ahead = sum(plan[AHEAD] for plan in plans if len(plan) > AHEAD and not plan[FROM_CACHE])
    states = collections.Counter(record["status"] for record in records)
    summary = ", ".join(f"{count} {state}" for state, count in states.items()) or "none"
    print(f"\ngpu_check: {took_s:.0f} s; records: {summary}; carried plans that were timed: {ahead}")
    for archive in sorted(check.folder.glob("*.tar.gz")):
        size = archive.stat().st_size
        print(f"{archive} ({size} bytes{', which is more than 16 MiB' if size > MOST_BYTES else ''})")
    failed = [ended for ended in check.ended if ended.words != "ok" and ended.name not in check.to_come]
    for ended in failed:
        print(f"failed: {ended.name}: {ended.words}")
    if check.to_come:
        print(f"not run yet: {'; '.join(check.to_come)}; run the same command again to continue")
    elif not failed:
        print("nothing failed")
    return 1 if failed or check.to_come else 0


if __name__ == "__main__":
    sys.exit(main())
