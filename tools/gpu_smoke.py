"""What a GPU does wrong, in two minutes: a piece of work of each kind against NumPy, and a few steps of each rung.

    python tools/gpu_smoke.py [--device cuda:0] [--budget SECONDS] [--out FOLDER] [PATTERN...]

One line per item: ok, skipped or FAILED with the reason; PATTERNs ('conv*', 'fp16+dali*') choose among them. Nothing
that one item does stops the others: an exception, a process that dies and one that hangs are a line each. FOLDER gets
details.log (tracebacks, what libraries say) and the steps' records. Exit code 1 if anything failed or was not come to.

Steps are trials of `tcbench run` on gpu_smoke.toml, each in processes of its own. Pieces of work share one process,
which is replaced when it has died, hangs, or its GPU answers no more. Pieces of work always go to the first GPU.
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
# The references and what the GPU tests share.
sys.path[:0] = [str(TOOLS.parent / "tests")]
START_S = 90
"""For imports, and to find out what work there is."""
LANES = 6
"""Trials at a time. Nothing is timed."""


class Smoke:
    """What was found, said line by line. For several threads."""

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
        self.say(item, "FAILED", "not run: the time for all of them is spent")


def one_line(text: str) -> str:
    return " ".join(text.split())[:300]


def cause_of(error: BaseException) -> str:
    """The error and the place in our code that it came through last."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if "site-packages" not in f.filename]
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return f"{type(error).__name__}: {error}{where}"


# -- pieces of work --------------------------------------------------------------------------------------------------


def works(patterns: list[str]) -> list[tuple[str, Any]]:
    """The smallest work of each kind, dtype, layout and way to be done, by label."""
    from gpu import THROUGH_TABLES, all_works

    kinds: dict[object, Any] = {}
    for work in sorted(all_works(), key=lambda work: work.bytes):
        if isinstance(work, THROUGH_TABLES):  # the steps have them
            continue
        of = next((getattr(work, name) for name in ("conv", "norm", "pool") if hasattr(work, name)), None)
        form = [getattr(of, name, None) for name in ("layout", "math", "after")]
        kinds.setdefault((work.name, work.operands[0].dtype, *form, getattr(work, "persistent", None)), work)
    return [(work.label, work) for work in kinds.values() if chosen(work.label, patterns)]


def do_works(pipe: Connection, details: Path, patterns: list[str], todo: dict[str, Any] | None) -> None:
    """In a process of its own: ("there", works by name) where `todo` does not say, then ("begins", name) and
    ("ok", name) or ("FAILED", name, reason, details) for each, and ("over",); or ("broken", reason, details)."""
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
                    # After an illegal address no call works in this process any more: then this raises.
                    accelerator.download(accelerator.upload(np.zeros(8, np.float32)))
        pipe.send(("over",))
    except Exception as error:
        pipe.send(("broken", cause_of(error), traceback.format_exc()))


def check_works(smoke: Smoke, patterns: list[str]) -> None:
    """Every piece of work, in as many processes as that takes."""
    todo: dict[str, Any] | None = None
    while smoke.left_s > 0 and todo != {}:
        at, come_to = None, 0
        with worker(smoke.details_path, patterns, todo) as (process, pipe):
            what, *told = receive(process, pipe, smoke, START_S)
            while what in ("there", "begins", "ok", "FAILED"):
                if what == "there":
                    todo = told[0]
                elif what == "begins":
                    at, come_to = told[0], come_to + 1
                else:
                    assert todo is not None
                    del todo[told[0]]
                    smoke.say(told[0], what, *told[1:])
                    at = None
                what, *told = receive(process, pipe, smoke, smoke.item_s)
        if what == "over":
            return
        if smoke.left_s <= 0:
            break
        if at is not None and todo is not None:
            del todo[at]
            smoke.say(at, "FAILED", *told)
        elif come_to == 0:
            smoke.say("pieces of work", "FAILED", *told)
            return
    for name in ["pieces of work"] if todo is None else todo:
        smoke.no_time(name)


@contextlib.contextmanager
def worker(details: Path, patterns: list[str], todo: dict[str, Any] | None) -> Iterator[tuple[BaseProcess, Connection]]:
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=do_works, args=(theirs, details, patterns, todo), daemon=True)
    process.start()
    theirs.close()
    try:
        yield process, pipe
    finally:
        process.kill()
        process.join()


def receive(process: BaseProcess, pipe: Connection, smoke: Smoke, limit_s: float) -> tuple[Any, ...]:
    """What the process says next, or why it says nothing more."""
    try:
        if pipe.poll(max(0.0, min(limit_s, smoke.left_s))):
            return tuple(pipe.recv())
    except (EOFError, OSError):
        process.join(5)
        return "died", f"its process ended with {ending(process.exitcode or 0)}"
    return "hangs", f"hangs: no end within {limit_s:.0f} s"


def ending(code: int) -> str:
    return signal.Signals(-code).name if code < 0 else f"exit code {code}"


# -- steps -----------------------------------------------------------------------------------------------------------


def tcbench(device: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "tcbench", "run", str(SCENARIO), "--device", device, *options]


def configs(device: str) -> list[tuple[str, str | None]]:
    """The scenario's configs, each with the reason why it is skipped, or None. Raises RuntimeError."""
    command = tcbench(device, "--config", "*", "--dry-run", "--json")
    asked = subprocess.run(command, capture_output=True, text=True, timeout=START_S)
    if asked.returncode:
        raise RuntimeError(asked.stderr)
    return [(cell["config"], cell["skip_reason"]) for cell in json.loads(asked.stdout)["cells"]]


def check_step(smoke: Smoke, device: str, config: str, out: Path) -> None:
    """A trial of one config; its record tells how it ended."""
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
        smoke.say(config, "FAILED", "no end in its time")
        return
    records = [json.loads(line) for path in folder.glob("*/*.jsonl") for line in path.open(encoding="utf-8")]
    if not records:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        smoke.say(config, "FAILED", said[-1] if said else ending(done.returncode), done.stdout + done.stderr)
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
    try:
        found = [(name, why) for name, why in configs(device) if chosen(name, patterns)]
    except Exception as error:
        smoke.say("steps", "FAILED", str(error), traceback.format_exc())
        return
    with concurrent.futures.ThreadPoolExecutor(max(1, min(LANES, (os.cpu_count() or 1) // 2))) as lanes:
        trials = {}
        for name, why in found:
            if why is None:
                trials[lanes.submit(check_step, smoke, device, name, out)] = name
            else:
                smoke.say(name, "skipped", why)
        for trial in concurrent.futures.as_completed(trials):
            mishap = trial.exception()
            if mishap is not None:
                smoke.say(trials[trial], "FAILED", cause_of(mishap))


def chosen(name: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--budget", type=float, default=120, help="seconds for all of it (default: %(default)s)")
    parser.add_argument(
        "--item-seconds", type=float, default=45, help="what takes longer, hangs (default: %(default)s)"
    )
    parser.add_argument("--out", type=Path, default=None, help="default: a new folder under the temporary ones")
    parser.add_argument("patterns", nargs="*", metavar="PATTERN")
    given = parser.parse_args()
    out: Path = given.out or Path(tempfile.mkdtemp(prefix="gpu_smoke-"))
    out.mkdir(parents=True, exist_ok=True)
    smoke = Smoke(given.budget, given.item_seconds, out)
    steps = threading.Thread(target=check_steps, args=(smoke, given.device, given.patterns, out), daemon=True)
    steps.start()
    if given.device != "cpu":
        check_works(smoke, given.patterns)
    steps.join()
    print(", ".join(f"{count} {verdict}" for verdict, count in smoke.counts.items()) + f"; more in {out}")
    return 1 if smoke.counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
