"""`tcbench gate` as a user meets it: on a throw-away git project with a training step and a clock of its own.

Two gates run their trials, and one is interrupted; the others have stand-ins for them."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import factories
import projects
import pytest
from command import Done, ended, start, tcbench
from projects import commit, planted

from tcbench.analysis.verdict import Rule
from tcbench.commands.compare.outcome import Format
from tcbench.commands.gate import builds
from tcbench.commands.gate.command import _BISECT_INTERIMS, _INTERIMS, _new_path, parse_interims
from tcbench.core import store
from tcbench.core.record import Cell, Record
from tcbench.run import gate_file

QUICK = ("./my_step.toml", "--max-time", "0.25", "--quiet")


@pytest.fixture
def project(tmp_path):
    return projects.make(tmp_path / "mine")


class StandIn(projects.OneByOne):
    """Runs no trial: each side's Python, in the side's folder, imports the step and says how much longer it takes."""

    def run(self, trials):
        for planned, trial in trials:
            cell = planned.cell
            try:
                planted_s = _planted_s(self.launch.python, self.launch.folder, tuple(self.launch.variables.items()))
            except subprocess.CalledProcessError as error:
                reason = error.stderr.splitlines()[-1]
                yield factories.make_record(cell=cell, trial=trial, run_id=self.run_id, status="failed", reason=reason)
            else:
                rate = cell.batch_size / (0.02 + (planted_s if "deep" in cell.rungs else 0.0))
                yield factories.make_record(cell=cell, trial=trial, run_id=self.run_id, images_per_s=rate)


@functools.cache
def _planted_s(python: str, folder: Path | None, variables: tuple[tuple[str, str], ...]) -> float:
    code = "import os, my_step as s; print(getattr(s, 'PLANTED_S', 0) + float(os.environ.get('PLANTED_S', 0)))"
    environment = {**os.environ, **dict(variables)}
    done = subprocess.run([python, "-c", code], cwd=folder, env=environment, capture_output=True, text=True, check=True)
    return float(done.stdout)


@pytest.fixture
def unchecked(monkeypatch):
    """Whether tcbench starts on both sides takes a second each; tests/commands/gate/test_builds.py asks it."""
    monkeypatch.setattr("tcbench.commands.gate.builds._probed", lambda build, option: build)


@pytest.fixture
def stand_ins(monkeypatch, unchecked):
    monkeypatch.setattr("tcbench.commands.gate.turns.Runner", StandIn)


def gate(project: Path, *arguments: str, code: int | None = None) -> Done:
    done = tcbench(project, "gate", *QUICK, *arguments)
    assert code in (None, done.code), done
    return done


def left(project: Path, side: str) -> tuple[Record, ...]:
    """The records of one side."""
    (path,) = project.glob(f"results/*/gate-*-{side}.jsonl")
    return store.read([path]).records


def cells(text: str) -> dict[str, dict]:
    return {cell["config"]: cell for cell in json.loads(text)["cells"]}


@pytest.mark.slow
def test_a_bisection_asks_longer_at_the_same_levels() -> None:
    usual, longer = (parse_interims(text, Rule(0.03)) for text in (_INTERIMS, _BISECT_INTERIMS))
    assert [interim.rule for interim in usual] == [interim.rule for interim in longer]
    assert (usual[-1].trials, longer[-1].trials) == (8, 24)


@pytest.mark.long
def test_a_loss_planted_in_the_working_tree_is_found_with_its_cell_and_phase(project):
    (project / "my_step.py").write_text(planted(30))
    arguments = ("--base", "HEAD", "--looks", "3,6", "-o", "gate.json", "--format", "json")
    done = ended(project, "gate", *QUICK[:-1], *arguments, code=1)
    pattern = r"my_step/deep, batch size 1: regression: (slower by .* in forward; )?throughput -.*; forward takes "
    assert re.search(pattern, done.out), done.out
    assert "base HEAD (" in done.out
    assert "current the working tree (" in done.out
    judged = cells((project / "gate.json").read_text())
    assert (judged["my_step/deep"]["verdict"], judged["my_step/deep"]["culprit"]) == ("regression", "forward")
    assert judged["my_step/flat"]["verdict"] in ("pass", "inconclusive")
    # Progress: which side and look, the trials that are certain, an ETA.
    assert "[1/12] base, look 1/2: my_step/deep, batch size 1: " in done.err
    assert "[2/12] current, look 1/2: my_step/deep, batch size 1: " in done.err
    assert "(ETA " in done.err
    # A round's two trials are there at once: which of them began first is chance.
    records = [record for side in ("base", "current") for record in left(project, side)]
    deep = sorted((r for r in records if r.cell.config == "my_step/deep"), key=lambda r: r.started_at)
    sides = [r.run_id[-4] for r in deep]  # b(ase), cu(r)rent
    assert [{*sides[place : place + 2]} for place in (0, 2, 4)] == [{"b", "r"}] * 3
    assert all(r.status == "ok" for r in records)
    base = left(project, "base")[0].environment
    assert base.project_commit == projects.git(project, "rev-parse", "--short=12", "HEAD")
    assert tcbench(project, "compare", *(f"{r.run_id}" for r in (records[0], records[-1]))).code == 1


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_a_loss_between_two_commits_is_found_whatever_the_working_tree_says(project):
    commit(project, my_step__py=planted(2))
    (project / "my_step.py").write_text("raise SystemExit")
    done = gate(project, "--config", "deep", "--base", "HEAD~1", "--current", "HEAD", "--looks", "3,6", code=1)
    assert "my_step/deep, batch size 1: regression" in done.out
    assert done.err == ""


@pytest.mark.usefixtures("stand_ins")
def test_without_a_loss_it_passes_and_a_hyphen_names_standard_output(project, capfd):
    commit(project, other__txt="nothing of the step")
    done = gate(project, "--base", "HEAD~1", "--config", "deep", "-o", "-", "--format", "json", code=0)
    judged = capfd.readouterr().out
    assert cells(judged)["my_step/deep"]["verdict"] == "pass" and done.out == ""


@pytest.mark.slow
def test_two_interpreters_are_compared_whatever_libraries_they_have(project, tmp_path):
    """The same version of Python and tcbench, another NumPy by its own word: allowed, and shown."""
    (tmp_path / "lib/numpy-9.9.dist-info").mkdir(parents=True)
    (tmp_path / "lib/numpy-9.9.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 9.9\n")
    (project / "my_step.py").write_text(projects.STEP + "\nPACKAGES = ('numpy',)\n")
    slow = projects.interpreter(tmp_path / "slow", f"export PLANTED_S=0.03 PYTHONPATH={tmp_path}/lib")
    arguments = ("--base-python", sys.executable, "--current-python", str(slow), "--config", "deep", "--looks", "3,6")
    done = gate(project, *arguments, "--format", "json", "-o", "gate.json", code=1)
    text = (project / "gate.json").read_text()
    assert json.loads(text)["base"] == sys.executable
    deep = cells(text)["my_step/deep"]
    assert deep["verdict"] == "regression"
    assert max(deep["phases"], key=lambda phase: phase["change_s"]["value"])["name"] == "forward"
    assert "allowed to differ: libraries: numpy: " in done.out
    assert " -> 9.9" in done.out


@pytest.mark.slow
def test_a_worker_that_speaks_no_protocol_is_a_record_and_never_a_hang(project, tmp_path):
    talks = (
        f"""[ "$2" = -m ] && exec {sys.executable} -c 'import os, sys; os.write(int(sys.argv[1]), b"hi\\n")' "$4" """
    )
    dies = f"""[ "$2" = -m ] && exec {sys.executable} -c 'raise KeyError("rungs")' """
    for name, body, message in (
        ("talks", talks, "the worker sent something that is not a message"),
        ("dies", dies, "the worker ended without a result (exit code 1): KeyError: 'rungs'"),
    ):
        python = projects.interpreter(tmp_path / name, body)
        arguments = ("--config", "deep", "--base-python", sys.executable, "--current-python", str(python))
        done = gate(project, *arguments, "--out", name, code=1)
        assert f"changed status: ok -> crashed: {message}" in done.out
        assert "Traceback" not in done.err


def test_a_spent_budget_leaves_the_rest_inconclusive_and_says_so(project, monkeypatch, unchecked):
    class Slow(projects.OneByOne):
        now_s = 0.0

        def run(self, trials):
            Slow.now_s += 1.0 if "current" in self.run_id else 0.0
            for planned, trial in trials:
                yield factories.make_record(cell=planned.cell, trial=trial, duration_s=0.5)

    monkeypatch.setattr("tcbench.commands.gate.turns.Runner", Slow)
    monkeypatch.setattr("tcbench.commands.gate.turns.time", SimpleNamespace(monotonic=lambda: Slow.now_s))
    arguments = ("--base-python", sys.executable, "--config", "deep", "--looks", "4,6", "--budget")
    done = tcbench(project, "gate", *QUICK[:-1], *arguments, "1s", "--strict")
    assert done.code == 4
    assert "the budget of 1 s was spent: cells not yet decided are inconclusive" in done.out
    assert re.search("(?m)^Next: tcbench gate .* --budget 1s --strict --resume$", done.err), done.err
    assert [len(left(project, side)) for side in ("base", "current")] == [1, 1]
    gate(project, *arguments, "2s", "--strict", "--resume", code=4)  # a new budget, whatever was spent before
    assert [len(left(project, side)) for side in ("base", "current")] == [3, 3]
    gate(project, *arguments, "9s", "--strict", "--resume", code=0)
    assert [len(left(project, side)) for side in ("base", "current")] == [4, 4]


@pytest.mark.usefixtures("stand_ins")
def test_a_budget_for_one_side_alone_is_not_green(project, monkeypatch):
    # As on a GPU, one trial after another.
    monkeypatch.setattr("tcbench.commands.gate.turns.runs_on_host", lambda cell: False)
    done = gate(project, "--base", "HEAD", "--budget", "0.01", "--config", "deep", code=5)
    assert "nothing was measured on both sides: the budget was spent before look 1 of 4 (3 trials a side)" in done.err
    assert [len(store.read([path]).records) for path in project.glob("results/*/*.jsonl")] == [1]


@pytest.mark.slow
def test_an_interrupt_keeps_what_is_done_for_compare(project):
    arguments = ("--base", "HEAD", "--looks", "8", "--config", "deep")
    with start(project, "gate", *QUICK[:-1], *arguments, stdout=subprocess.DEVNULL) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if line.startswith("[2/"):
                break
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        rest = process.stderr.read()
        assert process.wait(60) == 130
    assert "interrupted; 2 records kept; continue with: tcbench gate ./my_step.toml" in rest
    assert " --resume; compare what was stored: tcbench compare results/" in rest
    files = rest.strip().rpartition("tcbench compare ")[2].split()
    done = tcbench(project, "compare", *files)
    assert (done.code, "at least two trials per side are needed" in done.out) == (0, True)
    assert "NOT SETTLED: no cell was decided: 1 inconclusive" in done.out


class Wavering(projects.OneByOne):
    """Trials that differ by 10% and more, the sides by nothing: nothing can be said."""

    most = 1000

    def run(self, trials):
        for planned, trial in trials:
            if Wavering.most == 0:
                raise KeyboardInterrupt
            Wavering.most -= 1
            rate = 50 * (1 + 0.3 * ((trial + ("current" in self.run_id)) % 2))
            yield factories.make_record(cell=planned.cell, trial=trial, run_id=self.run_id, images_per_s=rate)


@pytest.fixture
def wavering(monkeypatch, unchecked):
    monkeypatch.setattr(Wavering, "most", 1000)
    monkeypatch.setattr("tcbench.commands.gate.turns.Runner", Wavering)


def test_an_interrupted_gate_goes_on_and_measures_nothing_twice(project, monkeypatch, wavering):
    arguments = ("--base", "HEAD", "--looks", "2,3", "--threshold", "10%", "--config", "deep")
    monkeypatch.setattr(Wavering, "most", 3)
    assert gate(project, *arguments).code == 130
    (path,) = project.glob("results/*/gate-*-verdicts.json")
    assert not gate_file.read(path).finished
    monkeypatch.setattr(Wavering, "most", 1000)
    # Another question is not gone on with: neither of other looks, nor of other code.
    refused = gate(project, *arguments, "--looks", "2,4", "--resume")
    assert (refused.code, "was started with other options (trials changed)" in refused.err) == (2, True)
    step = (project / "my_step.py").read_text()
    (project / "my_step.py").write_text(planted(1))
    refused = gate(project, *arguments, "--resume")
    assert (refused.code, "was started with other options (current changed)" in refused.err) == (2, True)
    (project / "my_step.py").write_text(step)
    gate(project, *arguments, "--resume", code=4)
    of_sides = [left(project, side) for side in ("base", "current")]
    assert [[record.trial for record in of_side] for of_side in of_sides] == [[0, 1, 2], [0, 1, 2]]
    assert gate_file.read(path).finished
    assert Wavering.most == 996, "of two in turns, an interrupted one takes the other along"
    again = gate(project, *arguments, "--resume")
    assert len(list(project.glob("results/*/gate-*-verdicts.json"))) == 2, again


def test_nothing_settled_is_loud_and_fails_unless_it_is_allowed(project, wavering):
    arguments = ("--base", "HEAD", "--looks", "2,3", "--config", "deep")
    done = gate(project, *arguments)
    assert (done.code, "NOT SETTLED: no cell was decided: 1 inconclusive" in done.out) == (4, True)
    assert "base and current are the same code (the working tree (" in done.out
    assert "a slowdown of 5% would be detected in " in done.out
    assert gate(project, *arguments, "--lenient").code == 0


class Changing(projects.OneByOne):
    """Current has half the rate of base, and 30% from the fifth trial on."""

    def run(self, trials):
        for planned, trial in trials:
            rate = (50 if "base" in self.run_id else 25 if trial < 4 else 15) * (1 + 0.01 * (trial % 3))
            yield factories.make_record(cell=planned.cell, trial=trial, run_id=self.run_id, images_per_s=rate)


def test_a_machine_that_changes_during_a_gate_is_a_verdict_of_its_own_in_every_format(project, monkeypatch, unchecked):
    monkeypatch.setattr("tcbench.commands.gate.turns.Runner", Changing)
    done = gate(project, "--base", "HEAD", "--looks", "8", "--config", "deep", "--lenient", code=4)
    assert "UNSTABLE: the machine changed during the gate: 1 unstable at a threshold of 3%" in done.out
    changed = "machine check failed: current / base changed from the first to the last half (-40.0% on average, p = "
    assert changed in " ".join(done.out.split())
    (path,) = project.glob("results/*/gate-*-verdicts.json")
    (stored,) = json.loads(path.read_text("utf-8"))["verdicts"]
    assert (stored["verdict"], stored["by_figures"], stored["failing"]) == ("unstable", "regression", False)
    sides = [str(side) for side in gate_file.record_files(path).values()]
    shown = {form: tcbench(project, "compare", *sides, "--format", form) for form in get_args(Format)}
    assert {done.code for done in shown.values()} == {4}
    comparison = json.loads(shown["json"].out)
    assert (comparison["unstable"], comparison["machine_check"]["splits"][0]["change"]) == (True, pytest.approx(0.6))
    assert "by its figures alone: regression" in shown["table"].out
    assert "### tcbench: UNSTABLE" in shown["markdown"].out
    assert '<skipped message="unstable: ' in shown["junit"].out
    assert "::warning title=tcbench%3A unstable::my_step/deep" in shown["github"].out
    ended(project, "report", *sides, "-o", "page.html")
    assert ">unstable<" in (project / "page.html").read_text("utf-8")
    # A gate of an earlier version has no check, and keeps its verdicts.
    content = json.loads(path.read_text("utf-8"))
    del content["machine_check"]
    path.write_text(json.dumps(content), "utf-8")
    assert tcbench(project, "compare", *sides).code == 1


@pytest.mark.long
def test_a_gates_records_are_compared_by_its_own_verdicts(project, wavering):
    """All trials at once would be judged at another level: the file says what the gate said."""
    gate(project, "--base", "HEAD", "--looks", "2,3", "--config", "deep", "--threshold", "10%")
    (path,) = project.glob("results/*/gate-*-verdicts.json")
    content = json.loads(path.read_text("utf-8"))
    assert (content["schema"], content["schema_version"]) == ("tcbench-gate", 2)
    assert [verdict["verdict"] for verdict in content["verdicts"]] == ["inconclusive"]
    content["verdicts"][0] |= {"verdict": "regression", "trials": 2}
    path.write_text(json.dumps(content), "utf-8")
    sides = [str(side) for side in gate_file.record_files(path).values()]
    done = tcbench(project, "compare", *sides)
    assert (done.code, "1 regression at a threshold of 10%" in done.out) == (1, True)
    assert f"showing the verdicts of the gate ({path})" in done.err
    anew = tcbench(project, "compare", *sides, "--threshold", "10%")
    assert "1 inconclusive at a threshold of 10%" in anew.out
    for shown in (sides[1:], sides):
        ended(project, "report", *shown, "-o", "page.html")
        assert ">regression<" in (project / "page.html").read_text("utf-8")
    path.write_text("{}")
    refused = tcbench(project, "compare", *sides)
    assert (refused.code, "expected the verdicts of a gate (tcbench-gate 2)" in refused.err) == (2, True)


def test_a_dry_run_says_trials_and_minutes_and_measures_nothing(project):
    done = gate(project, "--base", "HEAD", "--dry-run", "--budget", "10min", code=0)
    for message in ("base HEAD (", "2 cells, 12 to 32 trials, about ", "a guess: no run on this machine yet"):
        assert message in done.out
    assert "--budget stops it after 10 min 00 s" in done.out
    plan = json.loads(gate(project, "--base", "HEAD", "--dry-run", "--json", "--budget", "10min", code=0).out)
    assert (plan["trials_a_side_at_looks"], plan["budget_s"], len(plan["cells"])) == ([3, 4, 6, 8], 600, 2)
    once = gate(project, "--base", "HEAD", "--dry-run", "--looks", "3", code=0)
    assert re.search(r"2 cells, 12 trials, about [^(]* s \(a guess", once.out) and " to " not in once.out
    assert not list(project.glob("results/**/*"))


@pytest.mark.parametrize("setup", [("--setup", ""), ("--setup=",)])
def test_an_empty_setup_makes_no_environment(project, setup):
    assert "2 cells" in gate(project, "--base", "HEAD", "--dry-run", *setup, code=0).out


@pytest.mark.usefixtures("stand_ins")
def test_the_environment_of_a_revision_is_made_and_runs_there(project, tmp_path):
    commit(project, pyproject__toml='[project]\nname = "mine"\nversion = "1"\n')
    python = projects.interpreter(tmp_path / "python", "export PLANTED_S=0.002")
    setup = f"mkdir -p .venv/bin && cp {python} .venv/bin/python"
    arguments = ("--config", "deep", "--base", "HEAD", "--setup", setup)
    done = gate(project, *arguments, "--looks", "2", "--format", "json", code=0)
    assert cells(done.out)["my_step/deep"]["verdict"] in ("improved", "inconclusive")
    assert cells(done.out)["my_step/deep"]["ratio"]["value"] > 1.03


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            (),
            "has neither changes nor commits that are not on the main branch; expected --base REVISION, --base-python",
        ),
        (("--base", "HEAD", "--lenient", "--strict"), "--strict and --lenient: expected one of them"),
        (("--base-python", "missing/python"), "missing/python cannot be started in "),
        (("--base", "HEAD", "--looks", "3,4,5,6,7"), "--looks 3,4,5,6,7: expected one to 4 looks, got 5"),
        (("--base", "HEAD", "--looks", "1"), "--looks 1: expected ascending numbers of trials, each at least 2"),
        (("--base", "HEAD", "--looks", "three"), "--looks 'three': expected numbers of trials, such as 3,4,6,8"),
        (("--base", "HEAD", "--config", "none*"), "config 'none*': matches none of "),
    ],
)
def test_a_mistake_is_one_clear_line(project, arguments, message):
    done = gate(project, *arguments)
    assert (done.code, done.err.count("\n"), message in done.err) == (2, 1, True), done
    assert not list(project.glob("results/*/*"))


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_a_cell_that_only_the_base_has_is_missing(project):
    scenario = (project / "my_step.toml").read_text(encoding="utf-8")
    (project / "my_step.toml").write_text(scenario[: scenario.rindex("[[config]]")], encoding="utf-8")
    arguments = ("--base", "HEAD", "--looks", "2", "--threshold", "90%")
    done = gate(project, *arguments, code=1)
    assert "1 missing" in done.out
    assert "my_step/flat, batch size 1: missing: not in current" in done.out
    assert gate(project, *arguments, "--allow", "missing").code == 0


@pytest.mark.usefixtures("stand_ins")
def test_a_base_whose_scenario_cannot_be_read_leaves_a_note(project):
    good = (project / "my_step.toml").read_text(encoding="utf-8")
    commit(project, **{"my_step.toml": "schema = 99"})
    (project / "my_step.toml").write_text(good, encoding="utf-8")
    done = tcbench(project, "gate", *QUICK[:-1], "--base", "HEAD", "--looks", "2", "--budget", "0.01")
    assert "note: cannot tell whether cells are missing" in done.err


def test_nothing_is_measured_before_it_is_known_where_to_write(project):
    done = gate(project, "--base", "HEAD", "-o", "my_step.toml/out.json", "--format", "json", code=2)
    assert "my_step.toml/out.json: cannot be written" in done.err
    assert not list(project.glob("results/**/*.jsonl"))


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    ("base", "current", "message"),
    [
        ("import no_such_module", "import no_such_module", ""),
        ("import no_such_module", projects.STEP, ": failed -> ok: base: "),
        ("def open_session(cell) return 1", projects.STEP, ": failed -> ok: base: SyntaxError: "),
    ],
)
def test_a_base_that_runs_in_no_cell_is_not_green(project, base, current, message):
    commit(project, my_step__py=base)
    (project / "my_step.py").write_text(current)
    for strict in ((), ("--strict",)):
        done = gate(project, "--base", "HEAD", *strict, code=5)
        assert f"nothing was measured on both sides{message}" in done.err.splitlines()[-1]
        assert ("--setup 'uv sync --extra NAME'" in done.err.splitlines()[-1]) == ("import" in base)


@pytest.mark.parametrize("words", [("--base", "HEAD"), ("--bisect", "HEAD~1..HEAD")])
def test_what_one_side_does_not_know_of_a_cell_is_refused_before_anything_runs(project, monkeypatch, words):
    commit(project, my_step__py=projects.STEP + "\n")
    fields = frozenset(Cell.__struct_fields__) - {"batch_size"}
    monkeypatch.setattr(builds, "_probed", lambda build, option: replace(build, cell_fields=fields))
    done = tcbench(project, "gate", *(QUICK if "--base" in words else QUICK[:-1]), *words)
    assert done.code == 2 and "does not support 'batch_size' of my_step/" in done.err.splitlines()[-1], done.err
    assert not list(project.glob("results/**/*.jsonl"))


@pytest.mark.slow
@pytest.mark.usefixtures("stand_ins")
def test_a_step_in_a_submodule_runs_on_both_sides(project, tmp_path):
    library = projects.make(tmp_path / "library")
    projects.add_submodule(project, library, "lib")
    commit(project, my_step__py="from lib.my_step import open_session")
    gate(project, "--base", "HEAD", "--looks", "2", "--threshold", "90%", code=0)
    assert [record.status for record in left(project, "base")] == ["ok"] * 4


def test_two_gates_of_one_name_have_files_of_their_own(project, monkeypatch):
    """One that begins in the same second, and ends with nothing measured, takes nothing of the other's away."""
    monkeypatch.setattr(store, "new_run_id", lambda scenario: f"{scenario}-20261122-101010")
    first, second = (_new_path(project / "results", "machine") for _ in range(2))
    assert [path.name for path in gate_file.record_files(first).values()] == [
        "gate-20261122-101010-base.jsonl",
        "gate-20261122-101010-current.jsonl",
    ]
    assert second.name == "gate-20261122-101010-2-verdicts.json"
