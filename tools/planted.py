#!/usr/bin/env python3
"""Does any test find them? About 300 faults, planted one at a time.

    tools/planted.py draw --seed 1 >tests/planted.jsonl    draw faults by the rule of planted_rule.py
    tools/planted.py run [--sample N] [--jobs 2]           plant those that have no result yet
    tools/planted.py report [--before FILE]                found or not, by room; exit code 1 where fewer are found

tests/planted.jsonl is frozen, and results/planted.tsv says what found each. A fault whose code is gone is replaced, in
its line of the file, by one of the same rule in the code that took over: `draw --count 1 --under tcbench.ROOM.MODULE`.
results/planted-seed2-*.tsv are of others, drawn by seed 2 in the code of 0.1.0 and in that of 2026-11-27.

Tests run in clones of what is committed, under build/planted. The suite runs once under coverage for each state of the
code, to say which test files reach each fault (minutes: twice the suite's). `run` takes those, first the ones with the
module's name, then the quickest, up to BUDGET_S seconds of them. The first that fails ends a fault, and so does a run
that takes five times as long as it should. A fault may kill every process that it sees, or remove every file: what runs
with one sees its own processes alone and writes to its clone alone (unshare(1), mount(8): Linux).
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
"""The tests that look for a fault: the README's command's, and the long ones."""
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
    return [Fault(**json.loads(line)) for line in FROZEN.read_text("utf-8").splitlines()]


def ask(words: list[Any], folder: Path, limit_s: float | None = None, **more: str) -> tuple[int | None, str]:
    """A command's exit code, None past its limit, and what it prints; it runs in that folder's environment."""
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
    code, output = ask(words, folder, **more)
    if code != 0:
        sys.exit(f"{' '.join(map(str, words))}: exit code {code}\n{output}")
    return output


def clone(number: int) -> Path:
    """A clone of what is committed, with an environment of its own."""
    tree = WORK / f"tree{number}"
    if not tree.exists():
        must(["git", "clone", "--quiet", ROOT, tree], ROOT)
    head = must(["git", "rev-parse", "HEAD"], ROOT)
    for words in (["git", "fetch"], ["git", "checkout", "--force", "--detach", head], ["uv", "sync", "--group", "ci"]):
        must([*words, "--quiet"], tree)
    return tree


# -------------------------------------------------------------------------------------------- which test files reach it


class Recorder:
    """A plugin of pytest: tells coverage the test file; keeps each file's seconds, and what fails without a fault."""

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
            found = {"seconds": self.seconds, "failed": self.failed}
            (session.config.rootpath.parent / "suite.json").write_text(json.dumps(found), "utf-8")


def pytest_configure(config: Any) -> None:
    config.pluginmanager.register(Recorder())


def suite() -> dict[str, Any]:
    """Test files by the fault that they reach, their seconds, and tests that fail without a fault."""
    tree, tools = clone(0), str(Path(__file__).parent)
    kept = WORK / f"suite-{must(['git', 'rev-parse', '--short', 'HEAD:tcbench'], tree)}.json"
    if not kept.exists():
        shutil.rmtree(WORK / "coverage", ignore_errors=True)
        (WORK / "coveragerc").write_text(COVERAGE, "utf-8")
        coverage, rc = tree / ".venv" / "bin" / "coverage", "--rcfile=../coveragerc"
        (WORK / "suite.json").unlink(missing_ok=True)
        words = ["-m", MARKED, "-p", "planted", "-q", "-n", "2"]
        ask([coverage, "run", rc, "-m", "pytest", *words], tree, PYTHONPATH=tools)
        must([coverage, "combine", rc, "--quiet"], tree)
        code = f"import planted, pathlib; planted.reach(pathlib.Path({str(kept)!r}))"
        must([tree / ".venv" / "bin" / "python", "-c", code], tree, PYTHONPATH=tools)
    return json.loads(kept.read_text("utf-8"))


def reach(kept: Path) -> None:
    """From what coverage measured: the test files that run each fault's statement.

    What a module or a class defines is read elsewhere: there, the files that run any function that names it.
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

    found = json.loads((WORK / "suite.json").read_text("utf-8")) | {"reach": {}}
    # Some fail under coverage only.
    found["failed"] = found["failed"] and failing(WORK / "tree0", found["failed"], 3600)
    for fault in frozen():
        if not (at := place(fault, modules)):
            continue
        module, edit = at
        statement: Any = edit.statement
        if isinstance(statement, FUNCTIONS):  # a default
            files = ran(module, statement.body[0].lineno, statement.end_lineno)
        elif any(isinstance(owner, FUNCTIONS) for owner in module.owners[fault.function]):
            files = ran(module, statement.lineno, edit.span[2])
        else:
            targets = re.match(r"[\w, ]+", module.source.splitlines()[statement.lineno - 1].strip())
            names = r"\b(" + "|".join(re.findall(r"\w+", targets[0] if targets else "")) + r")\b"
            files = readers(modules.values(), names) or readers([module], "")
        found["reach"][fault.id] = sorted(files)
    kept.write_text(json.dumps(found), "utf-8")


# -------------------------------------------------------------------------------------------------- which test finds it


def results(path: Path) -> dict[str, dict[str, str]]:
    if not path.exists():
        return {}
    with path.open(encoding="utf-8", newline="") as file:
        return {row["fault"]: row for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)}


def chosen(module: Module, files: list[str], seconds: dict[str, float], tree: Path) -> tuple[list[str], ...]:
    """Test files in their order and in three parts: those with the module's name, others, and beyond the budget."""
    mirrors = f"test_{module.name.rpartition('.')[2].strip('_')}.py"
    own = {str(path.relative_to(tree)) for path in (tree / "tests").rglob(mirrors)}
    total_s, parts = 0.0, ([], [], [])
    for file in sorted(own.union(files), key=lambda file: (file not in own, seconds.get(file, 1.0))):
        total_s += seconds.get(file, 1.0)
        parts[2 if total_s > BUDGET_S and any(parts) else 0 if file in own else 1].append(file)
    return parts


def failing(tree: Path, tests: list[str], limit_s: float, *options: str) -> list[str]:
    """Which of these tests fail; "timeout" where they take too long."""
    words = ["-n", "0", "-q", "--tb=no", "-rfE", "-p", "no:cacheprovider", "--hypothesis-seed=0", "-m", MARKED]
    code, output = ask([*ALONE, tree / ".venv" / "bin" / "pytest", *words, *options, *tests], tree, limit_s)
    if code in (0, 5):  # 5: no test of these is in the default suite
        return []
    if code is not None and code < 0:
        sys.exit("the tests were killed from outside, for want of memory perhaps; the same command goes on from here")
    failed = re.findall(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.MULTILINE)
    return failed or ["timeout" if code is None else f"exit code {code}"]


def plant(fault: Fault, tree: Path, suite: dict[str, Any]) -> dict[str, Any]:
    """Plants one fault in a clone, runs tests until one fails, and takes it out again."""
    began = time.monotonic()
    files = suite["reach"].get(fault.id, [])
    if not (at := place(fault, package(tree))):
        return {"outcome": "unplaceable"}
    module, edit = at
    by, ran = "", 0
    *parts, beyond = chosen(module, files, suite["seconds"], tree)
    try:
        write(module.path, edit.apply(module.source))
        for some in parts:
            if some and not by:
                limit_s = 60 + 5 * sum(suite["seconds"].get(file, 1.0) for file in some)
                unfit = (f"--deselect={test}" for test in suite["failed"])
                by = "".join(failing(tree, some, limit_s, "-x", *unfit))
                ran += len(some)
    finally:
        write(module.path, module.source)
    outcome = "killed" if by else "survived" if files else "unreached"
    seconds = f"{time.monotonic() - began:.1f}"
    return {"outcome": outcome, "by": by, "seconds": seconds, "files": f"{ran} of {sum(map(len, (*parts, beyond)))}"}


def write(path: Path, text: str) -> None:
    """A module's text. Its bytecode goes: a change of no length within a second would not be seen."""
    path.write_text(text, "utf-8")
    for compiled in path.parent.glob(f"__pycache__/{path.stem}.*.pyc"):
        compiled.unlink()


def run(sample: int | None, jobs: int, out: Path) -> None:
    """Plants the faults that `out` does not have yet, and adds a row for each as it comes."""
    done = results(out)
    waiting = [fault for fault in frozen() if fault.id not in done][:sample]
    known = suite()
    trees: Queue[Path] = Queue()
    for number in range(jobs):
        tree = clone(number)
        must([*ALONE, tree / ".venv" / "bin" / "pytest", "--version"], tree)  # else every fault would count as killed
        trees.put(tree)
    commit = must(["git", "rev-parse", "--short", "HEAD"], ROOT)

    def one(fault: Fault) -> None:
        tree = trees.get()
        try:
            row = {"fault": fault.id, **plant(fault, tree, known), "commit": commit}
        finally:
            trees.put(tree)
        with out.open("a", encoding="utf-8") as file:
            file.write("\t".join(row.get(column, "") for column in COLUMNS) + "\n")
        print("{outcome:11} {fault}".format(**row), row.get("by", ""), sep="  ", flush=True)

    if not done:
        out.write_text("\t".join(COLUMNS) + "\n", "utf-8")
    with ThreadPoolExecutor(jobs) as pool:
        list(pool.map(one, waiting))


def report(out: Path, before: Path) -> int:
    """Prints outcomes by room, then what was found before and is not any more."""
    done = results(out)
    rooms: dict[str, Counter[str]] = defaultdict(Counter)
    for fault in frozen():
        rooms[fault.room][done[fault.id]["outcome"] if fault.id in done else "not run"] += 1
    for room, counts in [*sorted(rooms.items()), ("all", sum(rooms.values(), Counter()))]:
        words = ", ".join(f"{number} {outcome}" for outcome, number in sorted(counts.items()))
        print(f"{room:13} {counts['killed'] / counts.total():4.0%} of {counts.total():3}: {words}")
    found = {id_: row["by"] for id_, row in results(before).items() if row["outcome"] == "killed"}
    lost = [id_ for id_, row in done.items() if row["outcome"] != "killed" and id_ in found]
    print(*(f"lost: {id_}\n  was found by {found[id_]}" for id_ in lost), sep="\n")
    return bool(lost)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    drawing, running, reporting = (commands.add_parser(name) for name in ("draw", "run", "report"))
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=300)
    drawing.add_argument("--under", default="tcbench", help="a room or a module")
    running.add_argument("--sample", type=int, help="at most so many")
    running.add_argument("--jobs", type=int, default=1)
    reporting.add_argument("--before", type=Path, default=RESULTS)
    for subparser in (running, reporting):
        subparser.add_argument("--results", type=Path, default=RESULTS)
    asked = parser.parse_args()
    if asked.command == "draw":
        for fault in draw(package(ROOT), asked.seed, asked.count, asked.under):
            print(json.dumps(vars(fault), ensure_ascii=False))
    elif asked.command == "report":
        return report(asked.results, asked.before)
    else:
        run(asked.sample, asked.jobs, asked.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
