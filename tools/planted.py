#!/usr/bin/env python3
"""Mutation testing: plant about 300 faults, one at a time, and see whether a test finds each.

    tools/planted.py draw --seed 1 >tests/planted.jsonl    draw faults by the rule of planted_rule.py
    tools/planted.py run [--sample N] [--jobs 2]           plant the faults that have no result yet
    tools/planted.py report [--before FILE]                outcomes by room; exit code 1 if fewer are found than before

tests/planted.jsonl is frozen; results/planted.tsv has the test that found each fault. If the code of a fault is gone,
replace its line by a fault in the code that took over: `draw --count 1 --under tcbench.ROOM.MODULE`.
results/planted-seed2-*.tsv are the results of other faults, drawn by seed 2 in the code of 0.1.0 and of 2026-11-27.

Tests run in clones of the committed code, under build/planted. For each state of the code the suite runs once under
coverage, to find the test files that reach each fault (this takes twice the suite's time). `run` then runs these files,
first those with the module's name, then the fastest, up to BUDGET_S seconds. A fault is found when the first test fails
or when the tests take five times as long as usual. A fault might kill other processes or delete files, so tests see
only their own processes and can write only to their clone (unshare(1) and mount(8), on Linux).
"""

import argparse
import csv
import functools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

from planted_rule import FUNCTIONS, Fault, Module, draw, package, place

ROOT = Path(__file__).parents[1]
FROZEN = ROOT / "tests" / "planted.jsonl"
RESULTS = ROOT / "results" / "planted.tsv"
WORK = ROOT / "build" / "planted"
BUDGET_S = 60.0
MARKED = "not slow and not plans and not gpu and not faults and not readme"
"""The marks of the tests that look for a fault: those of the README's command, and the long ones."""
OF_THIS_ENVIRONMENT = {"VIRTUAL_ENV", "UV_PROJECT_ENVIRONMENT", "UV_NO_SYNC", "PYTHONPATH"}
ALONE = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", *["--map-root-user"][: os.geteuid()]]
ALONE += ["sh", "-ec", 'mount --bind . .; mount -t tmpfs t /tmp; mount -o remount,bind,ro /; cd "$PWD"; "$@"', "-"]
COLUMNS = ("fault", "outcome", "by", "seconds", "files", "commit")
COVERAGE = f"""[run]
branch = true
core = ctrace
parallel = true
patch = subprocess, _exit
source = tcbench
context = ${{PYTEST_CURRENT_TEST-}}
data_file = {WORK}/coverage/data
disable_warnings = no-data-collected, module-not-measured, module-not-imported, couldnt-parse, already-imported
"""


def frozen() -> list[Fault]:
    """Return the faults of tests/planted.jsonl."""
    return [Fault(**json.loads(line)) for line in FROZEN.read_text("utf-8").splitlines()]


def ask(words: list[Any], folder: Path, limit_s: float | None = None, **more: str) -> tuple[int | None, str]:
    """Run a command in a folder and its environment; return the exit code (None on a timeout) and the output."""
    env = {key: value for key, value in os.environ.items() if key not in OF_THIS_ENVIRONMENT} | more
    running = subprocess.Popen(words, cwd=folder, env=env, text=True, start_new_session=True, stdout=-1, stderr=-2)
    try:
        output, _ = running.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        running.wait()
        return None, ""
    return running.returncode, output.strip()


def must(words: list[Any], folder: Path, **more: str) -> str:
    """Run a command and return its output; exit if it fails."""
    code, output = ask(words, folder, **more)
    if code != 0:
        sys.exit(f"{' '.join(map(str, words))}: exit code {code}\n{output}")
    return output


def clone(number: int) -> Path:
    """Return a clone of the committed code with its own environment."""
    tree = WORK / f"tree{number}"
    if not tree.exists():
        must(["git", "clone", "--quiet", ROOT, tree], ROOT)
    head = must(["git", "rev-parse", "HEAD"], ROOT)
    for words in (["git", "fetch"], ["git", "checkout", "--force", "--detach", head], ["uv", "sync", "--group", "ci"]):
        must([*words, "--quiet"], tree)
    return tree


# -------------------------------------------------------------------------------------------- which test files reach it


class Recorder:
    """A pytest plugin that records coverage by test file, each file's seconds, and tests that fail without a fault."""

    def __init__(self) -> None:
        self.seconds: Counter[str] = Counter()
        self.failed: list[str] = []

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        from coverage import Coverage

        if measuring := Coverage.current():
            measuring.switch_context(nodeid.partition("::")[0])

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid.partition("::")[0]] += report.duration
        if report.failed:
            self.failed.append(report.nodeid)

    def pytest_sessionfinish(self, session: Any) -> None:
        if not hasattr(session.config, "workerinput"):
            summary = {"seconds": self.seconds, "failed": self.failed}
            (session.config.rootpath.parent / "suite.json").write_text(json.dumps(summary), "utf-8")


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(Recorder())


def suite() -> dict[str, Any]:
    """Return the test files that reach each fault, the seconds of each file, and tests that fail without a fault."""
    tree, tools = clone(0), str(Path(__file__).parent)
    cached = WORK / f"suite-{must(['git', 'rev-parse', '--short', 'HEAD:tcbench'], tree)}.json"
    if not cached.exists():
        shutil.rmtree(WORK / "coverage", ignore_errors=True)
        (WORK / "coveragerc").write_text(COVERAGE, "utf-8")
        coverage, rc = tree / ".venv" / "bin" / "coverage", "--rcfile=../coveragerc"
        (WORK / "suite.json").unlink(missing_ok=True)
        words = ["-m", MARKED, "-p", "planted", "-q", "-n", "2"]
        ask([coverage, "run", rc, "-m", "pytest", *words], tree, PYTHONPATH=tools)
        must([coverage, "combine", rc, "--quiet"], tree)
        code = f"import planted, pathlib; planted.reach(pathlib.Path({str(cached)!r}))"
        must([tree / ".venv" / "bin" / "python", "-c", code], tree, PYTHONPATH=tools)
    return json.loads(cached.read_text("utf-8"))


def reach(target: Path) -> None:
    """Write the test files that run each fault's statement, from the measured coverage, to `target`.

    For a definition in a module or a class, these are the files that run any function which uses its name.
    """
    from coverage import CoverageData

    data = CoverageData(str(WORK / "coverage" / "data"))
    data.read()
    modules = package((WORK / "tree0").resolve())

    @functools.cache
    def contexts(module: Module) -> dict[int, set[str]]:
        by_line = data.contexts_by_lineno(str(module.path)).items()
        parts = {line: [part for name in names for part in name.split("|")] for line, names in by_line}
        return {line: {part.partition("::")[0] for part in some if "tests/" in part} for line, some in parts.items()}

    def ran(module: Module, first: int, last: int) -> set[str]:
        return {file for line, files in contexts(module).items() if first <= line <= last for file in files}

    def readers(modules: Iterable[Module], names: str) -> set[str]:
        return {
            file
            for module in modules
            if re.search(names, module.source)
            for owner in (owner for owners in module.owners.values() for owner in owners)
            if isinstance(owner, FUNCTIONS)
            and re.search(names, "\n".join(module.source.splitlines()[owner.lineno - 1 : owner.end_lineno]))
            for file in ran(module, owner.body[0].lineno, owner.end_lineno)
        }

    summary = json.loads((WORK / "suite.json").read_text("utf-8")) | {"reach": {}}
    # Some tests fail only under coverage.
    summary["failed"] = summary["failed"] and failing(WORK / "tree0", summary["failed"], 3600)
    for fault in frozen():
        if not (location := place(fault, modules)):
            continue
        module, edit = location
        statement: Any = edit.statement
        if isinstance(statement, FUNCTIONS):  # a default
            files = ran(module, statement.body[0].lineno, statement.end_lineno)
        elif any(isinstance(owner, FUNCTIONS) for owner in module.owners[fault.function]):
            files = ran(module, statement.lineno, edit.span[2])
        else:
            targets = re.match(r"[\w, ]+", module.source.splitlines()[statement.lineno - 1].strip())
            names = r"\b(" + "|".join(re.findall(r"\w+", targets[0] if targets else "")) + r")\b"
            files = readers(modules.values(), names) or readers([module], "")
        summary["reach"][fault.id] = sorted(files)
    target.write_text(json.dumps(summary), "utf-8")


# -------------------------------------------------------------------------------------------------- which test finds it


def results(path: Path) -> dict[str, dict[str, str]]:
    """Return the rows of a file of results by fault."""
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["fault"]: row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


def chosen(module: Module, files: list[str], seconds: dict[str, float], tree: Path) -> tuple[list[str], ...]:
    """Return the test files in order, in three parts: those with the module's name, others, those over the budget."""
    mirrors = f"test_{module.name.rpartition('.')[2].strip('_')}.py"
    mirrored = {str(path.relative_to(tree)) for path in (tree / "tests").rglob(mirrors)}
    total_s, parts = 0.0, ([], [], [])
    for file in sorted(mirrored.union(files), key=lambda file: (file not in mirrored, seconds.get(file, 1.0))):
        total_s += seconds.get(file, 1.0)
        parts[2 if total_s > BUDGET_S and any(parts) else 0 if file in mirrored else 1].append(file)
    return parts


def failing(tree: Path, tests: list[str], limit_s: float, *options: str) -> list[str]:
    """Return the tests among these that fail, or ["timeout"] if they take too long."""
    words = ["-n", "0", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-m", MARKED]
    code, output = ask([*ALONE, tree / ".venv" / "bin" / "pytest", *words, *options, *tests], tree, limit_s)
    if code in (0, 5):  # 5: no test of these is in the default suite
        return []
    if code is not None and code < 0:
        sys.exit("the tests were killed, perhaps for lack of memory; run the same command again to continue")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return failed or ["timeout" if code is None else f"exit code {code}"]


def plant(fault: Fault, tree: Path, suite: dict[str, Any]) -> dict[str, Any]:
    """Plant one fault in a clone, run tests until one fails, and remove it again; return the result's columns."""
    began = time.monotonic()
    files = suite["reach"].get(fault.id, [])
    if not (location := place(fault, package(tree))):
        return {"outcome": "unplaceable"}
    module, edit = location
    killers, ran = "", 0
    *parts, beyond = chosen(module, files, suite["seconds"], tree)
    try:
        write(module.path, edit.apply(module.source))
        for some in parts:
            if some and not killers:
                limit_s = 60 + 5 * sum(suite["seconds"].get(file, 1.0) for file in some)
                unfit = (f"--deselect={test}" for test in suite["failed"])
                killers = "".join(failing(tree, some, limit_s, "-x", *unfit))
                ran += len(some)
    finally:
        write(module.path, module.source)
    outcome = "killed" if killers else "survived" if files else "unreached"
    seconds = f"{time.monotonic() - began:.1f}"
    return {
        "outcome": outcome,
        "by": killers,
        "seconds": seconds,
        "files": f"{ran} of {sum(map(len, (*parts, beyond)))}",
    }


def write(path: Path, text: str) -> None:
    """Write a module and delete its bytecode: Python would miss a change of equal length within a second."""
    path.write_text(text, "utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def run(sample: int | None, jobs: int, out: Path) -> None:
    """Plant the faults that are not in `out` yet, and append a row for each."""
    done = results(out)
    waiting = [fault for fault in frozen() if fault.id not in done][:sample]
    measured = suite()
    trees: Queue[Path] = Queue()
    for number in range(jobs):
        tree = clone(number)
        must([*ALONE, tree / ".venv" / "bin" / "pytest", "--version"], tree)  # else every fault would count as killed
        trees.put(tree)
    commit = must(["git", "rev-parse", "--short", "HEAD"], ROOT)

    def run_fault(fault: Fault) -> None:
        tree = trees.get()
        try:
            row = {"fault": fault.id, **plant(fault, tree, measured), "commit": commit}
        finally:
            trees.put(tree)
        with out.open("a", encoding="utf-8") as file:
            file.write("\t".join(row.get(column, "") for column in COLUMNS) + "\n")
        print("{outcome:11} {fault}".format(**row), row.get("by", ""), sep="  ", flush=True)

    if not done:
        out.write_text("\t".join(COLUMNS) + "\n", "utf-8")
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(run_fault, waiting))


def report(out: Path, before: Path) -> int:
    """Print outcomes by room and the faults that are no longer found; return whether there are any."""
    done = results(out)
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for fault in frozen():
        rooms[fault.room][done[fault.id]["outcome"] if fault.id in done else "not run"] += 1
    for room, counts in [*sorted(rooms.items()), ("all", sum(rooms.values(), Counter()))]:
        words = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        print(f"{room:13} {counts['killed'] / counts.total():4.0%} of {counts.total():3}: {words}")
    finders = {id_: row["by"] for id_, row in results(before).items() if row["outcome"] == "killed"}
    lost = [id_ for id_, row in done.items() if row["outcome"] != "killed" and id_ in finders]
    print(*(f"lost: {id_}\n  was found by {finders[id_]}" for id_ in lost), sep="\n")
    return bool(lost)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing, running, reporting = (commands.add_parser(name) for name in ("draw", "run", "report"))
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=300)
    drawing.add_argument("--under", default="tcbench", help="the room or module to draw from")
    running.add_argument("--sample", type=int, help="plant at most this many faults")
    running.add_argument("--jobs", type=int, default=1)
    reporting.add_argument("--before", type=Path, default=RESULTS)
    for subparser in (running, reporting):
        subparser.add_argument("--results", type=Path, default=RESULTS)
    options = parser.parse_args()
    if options.command == "draw":
        for fault in draw(package(ROOT), options.seed, options.count, options.under):
            print(json.dumps(vars(fault), ensure_ascii=False))
    elif options.command == "report":
        return report(options.results, options.before)
    else:
        run(options.sample, options.jobs, options.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
