"""Check a GPU in two minutes: compare a piece of work of each kind with NumPy, and run a few steps of each rung.

    python tools/gpu_smoke.py [--device cuda:0] [--budget SECONDS] [--out FOLDER] [PATTERN...]

Prints one line per item: ok, skipped or FAILED with the reason. PATTERNs ('conv*', 'fp16+dali*') select items. No item
can stop the others: an exception, a crash and a hang each become a line. FOLDER gets details.log (tracebacks, messages
of libraries) and the steps' records. The exit code is 1 if any item failed or was not run.

Steps are trials of `tcbench run` on gpu_smoke.toml, each in its own process. Pieces of work share one process, which is
replaced if it dies, hangs, or loses its GPU. Pieces of work always run on the first GPU.
"""

import argparse
import concurrent.futures
import contextlib
import faulthandler
import fnmatch
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

TOOLS = Path(__file__).resolve().parent
SCENARIO = TOOLS / "gpu_smoke.toml"
# The references and helpers of the GPU tests.
sys.path[:0] = [str(TOOLS.parent / "tests")]
START_S = 90
"""The time limit for imports and for listing the work."""
LANES = 6
"""The most trials at a time; nothing is timed."""


class Smoke:
    """A thread-safe report that prints and counts results line by line."""

    def __init__(self, budget_s: float, item_s: float, out: Path) -> None:
        self.item_s = item_s
        self.details_path = out / "details.log"
        self._ends_at = time.monotonic() + budget_s
        self.counts = {"ok": 0, "skipped": 0, "FAILED": 0}
        self._details = self.details_path.open("a", encoding="utf-8")
        self._lock = threading.Lock()

    @property
    def left_s(self) -> float:
        return self._ends_at - time.monotonic()

    def say(self, item: str, verdict: str, reason: str = "", details: str = "") -> None:
        with self._lock:
            self.counts[verdict] += 1
            print(f"{verdict:8}{item}" + (f": {one_line(reason)}" if reason else ""), flush=True)
            if details:
                self._details.write(f"== {item}\n{details.rstrip()}\n\n")
                self._details.flush()

    def no_time(self, item: str) -> None:
        self.say(item, "FAILED", "not run: the budget is used up")


def one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def cause_of(error: BaseException) -> str:
    """Return the error and its innermost place in our code."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


# -- pieces of work --------------------------------------------------------------------------------------------------


def works(patterns: list[str]) -> list[tuple[str, Any]]:
    """Return the smallest work of each kind, dtype, layout and method, with its label."""
    from gpu import THROUGH_TABLES, all_works

    kinds: dict[object, Any] = {}
    for work in sorted(all_works(), key=lambda work: work.bytes):
        if isinstance(work, THROUGH_TABLES):  # the steps have them
            continue
        description = next((getattr(work, name) for name in ("conv", "norm", "pool") if hasattr(work, name)), None)
        form = [getattr(description, name, None) for name in ("layout", "math", "after")]
        kinds.setdefault((work.name, work.operands[0].dtype, *form, getattr(work, "persistent", None)), work)
    return [(work.label, work) for work in kinds.values() if chosen(work.label, patterns)]


def do_works(pipe: Connection, details: Path, patterns: list[str], todo: dict[str, Any] | None) -> None:
    """Check pieces of work in a separate process, and send messages through `pipe`.

    If `todo` is None, the first message is ("there", works by name). Each work sends ("begins", name), then
    ("ok", name) or ("FAILED", name, reason, details). The last message is ("over",) or ("broken", reason, details)."""
    os.dup2(os.open(details, os.O_WRONLY | os.O_APPEND), 2)
    faulthandler.enable()
    try:
        import numpy as np
        from gpu import accelerator_scope, check_against_reference

        from tcbench.core.record import CudnnSettings

        if todo is None:
            todo = dict(works(patterns))
            pipe.send(("there", todo))
        with accelerator_scope(CudnnSettings(autotune=False)) as accelerator:
            for name, work in todo.items():
                pipe.send(("begins", name))
                try:
                    check_against_reference(accelerator, work)
                    pipe.send(("ok", name))
                except Exception as error:
                    pipe.send(("FAILED", name, cause_of(error), traceback.format_exc()))
                    # After an illegal address every call in this process fails, so this raises.
                    accelerator.download(accelerator.upload(np.zeros(8, np.float32)))
        pipe.send(("over",))
    except Exception as error:
        pipe.send(("broken", cause_of(error), traceback.format_exc()))


def check_works(smoke: Smoke, patterns: list[str]) -> None:
    """Check every piece of work, and replace the process whenever it breaks."""
    todo: dict[str, Any] | None = None
    while smoke.left_s > 0 and todo != {}:
        running, n_begun = None, 0
        with worker(smoke.details_path, patterns, todo) as (process, pipe):
            message, *details = receive(process, pipe, smoke, START_S)
            while message in ("there", "begins", "ok", "FAILED"):
                if message == "there":
                    todo = details[0]
                elif message == "begins":
                    running, n_begun = details[0], n_begun + 1
                else:
                    assert todo is not None
                    del todo[details[0]]
                    smoke.say(details[0], message, *details[1:])
                    running = None
                message, *details = receive(process, pipe, smoke, smoke.item_s)
        if message == "over":
            return
        if smoke.left_s <= 0:
            break
        if running is not None and todo is not None:
            del todo[running]
            smoke.say(running, "FAILED", *details)
        elif n_begun == 0:
            smoke.say("pieces of work", "FAILED", *details)
            return
    for name in ["pieces of work"] if todo is None else todo:
        smoke.no_time(name)


@contextlib.contextmanager
def worker(details: Path, patterns: list[str], todo: dict[str, Any] | None) -> Iterator[tuple[BaseProcess, Connection]]:
    """Run `do_works` in a process, and kill it at the end."""
    context = multiprocessing.get_context("spawn")
    pipe, worker_end = context.Pipe()
    process = context.Process(target=do_works, args=(worker_end, details, patterns, todo), daemon=True)
    process.start()
    worker_end.close()
    try:
        yield process, pipe
    finally:
        process.kill()
        process.join()


def receive(process: BaseProcess, pipe: Connection, smoke: Smoke, limit_s: float) -> tuple[Any, ...]:
    """Return the process's next message, or ("died", reason) or ("hangs", reason)."""
    try:
        if pipe.poll(max(0.0, min(limit_s, smoke.left_s))):
            return tuple(pipe.recv())
    except (EOFError, OSError):
        process.join(5)
        return "died", f"its process ended with {ending(process.exitcode or 0)}"
    return "hangs", f"hangs: did not end within {limit_s:.0f} s"


def ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


# -- steps -----------------------------------------------------------------------------------------------------------


def tcbench(device: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "tcbench", "run", str(SCENARIO), "--device", device, *options]


def configs(device: str) -> list[tuple[str, str | None]]:
    """Return the scenario's configs, each with its reason to be skipped or None. Raises RuntimeError."""
    command = tcbench(device, "--config", "*", "--dry-run", "--json")
    listing = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    if listing.returncode:
        raise RuntimeError(listing.stderr)
    return [(cell["config"], cell["skip_reason"]) for cell in json.loads(listing.stdout)["cells"]]


def check_step(smoke: Smoke, device: str, config: str, out: Path) -> None:
    """Run a trial of one config, and report the outcome in its record."""
    if smoke.left_s <= 0:
        smoke.no_time(config)
        return
    folder = out / config.replace("/", "-")
    command = tcbench(device, "--config", config, "--timeout", f"{smoke.item_s:.0f}", "--quiet", "--out", str(folder))
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=min(START_S + smoke.item_s, smoke.left_s)
        )
    except subprocess.TimeoutExpired:
        smoke.say(config, "FAILED", "did not end in its time")
        return
    records = [json.loads(line) for path in folder.glob("*/*.jsonl") for line in path.open(encoding="utf-8")]
    if not records:
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        smoke.say(config, "FAILED", output[-1] if output else ending(done.returncode), done.stdout + done.stderr)
        return
    status, reason = records[-1]["status"], records[-1].get("reason") or ""
    verdict = status if status in ("ok", "skipped") else "FAILED"
    smoke.say(
        config,
        verdict,
        reason if status in ("ok", "skipped", "failed") else f"{status}: {reason}",
        records[-1].get("log") or "" if verdict == "FAILED" else "",
    )


def check_steps(smoke: Smoke, device: str, patterns: list[str], out: Path) -> None:
    """Run the steps of all selected configs, several at a time."""
    try:
        selected = [(name, skip_reason) for name, skip_reason in configs(device) if chosen(name, patterns)]
    except Exception as error:
        smoke.say("steps", "FAILED", str(error), traceback.format_exc())
        return
    with concurrent.futures.ThreadPoolExecutor(max(1, min(LANES, (os.cpu_count() or 1) // 2))) as lanes:
        trials = {}
        for name, skip_reason in selected:
            if skip_reason is None:
                trials[lanes.submit(check_step, smoke, device, name, out)] = name
            else:
                smoke.say(name, "skipped", skip_reason)
        for trial in concurrent.futures.as_completed(trials):
            mishap = trial.exception()
            if mishap is not None:
                smoke.say(trials[trial], "FAILED", cause_of(mishap))


def chosen(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, default=120, help="seconds for all items (default: %(default)s)")
    parser.add_argument(
        "--item-seconds", type=float, default=45, help="seconds after which an item hangs (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=None, help="default: a new temporary folder")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    options = parser.parse_args()
    out: Path = options.out or Path(tempfile.mkdtemp(prefix="gpu_smoke-"))
    out.mkdir(parents=True, exist_ok=True)
    smoke = Smoke(options.budget, options.item_seconds, out)
    steps = threading.Thread(target=check_steps, args=(smoke, options.device, options.patterns, out), daemon=True)
    steps.start()
    if options.device != "cpu":
        check_works(smoke, options.patterns)
    steps.join()
    print(", ".join(f"{count} {verdict}" for verdict, count in smoke.counts.items()) + f"; details in {out}")
    return 1 if smoke.counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
