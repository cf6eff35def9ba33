"""`tcbench gate --bisect` as a user meets it: throw-away git projects with a slowdown planted in one commit.

Trials have stand-ins; the slow test runs them."""

import json
import math
import random
import shutil
import subprocess
from pathlib import Path

import factories
import msgspec
import projects
import pytest
from command import ended, next_step, tcbench
from projects import commit, planted

from tcbench.analysis.machine_check import MachineCheck
from tcbench.analysis.verdict import Rule
from tcbench.commands.gate.bisect import search as bisections
from tcbench.core.store import SUFFIX
from tcbench.run.plan import PlannedCell

COMMAND = ("gate", "./my_step.toml", "--config", "deep")
COMMITS = 20


@pytest.fixture(scope="module")
def template(tmp_path_factory):
    """Twenty commits after GOOD: from the 13th on a step is a tenth longer; the 5th and the 10th do not run."""
    project = projects.make(tmp_path_factory.mktemp("bisect") / "mine")
    projects.git(project, "tag", "good")
    for number in range(1, COMMITS + 1):
        step = planted(2 if number >= 13 else 0)
        broken = "raise SystemExit('broken')\n" if number in (5, 10) else ""
        commit(project, my_step__py=f"{broken}{step}\n# {number}\n")
        projects.git(project, "tag", f"c{number}")
    return project


@pytest.fixture
def project(template, tmp_path):
    """One of a test's own."""
    return Path(shutil.copytree(template, tmp_path / "mine"))


class StandIn(projects.OneByOne):
    """Runs no trial: reads off the commit's step how long it takes, and scatters by 1%."""

    draw = random.Random(0)

    def run(self, trials):
        for planned, trial in trials:
            cell = planned.cell
            text = (self.launch.folder / "my_step.py").read_text()
            if "SystemExit" in text:
                changes = {"status": "failed", "reason": "SystemExit: broken"}
            else:
                planted_s = float(text.partition("PLANTED_S = ")[2].split("\n")[0])
                changes = {"images_per_s": 1 / (0.02 + planted_s) * self.draw.gauss(1, 0.01)}
            yield factories.make_record(cell=cell, trial=trial, run_id=self.run_id, duration_s=2.0, **changes)


@pytest.fixture
def stand_ins(monkeypatch):
    monkeypatch.setattr("tcbench.run.runner.Runner", StandIn)
    monkeypatch.setattr("tcbench.commands.gate.turns.Runner", StandIn)
    monkeypatch.setattr("tcbench.commands.gate.builds._probed", lambda build, option: build)  # it starts a Python
    monkeypatch.setattr(StandIn, "draw", random.Random(0))


def id_of(project, name: str) -> str:
    return projects.git(project, "rev-parse", name)


def record_of(project) -> bisections.Bisection:
    (path,) = project.glob("results/*/bisect-*.json")
    return bisections.read(path)


@pytest.mark.usefixtures("stand_ins")
def test_the_commit_that_made_a_cell_slower_is_named_and_broken_ones_are_skipped(project, monkeypatch):
    monkeypatch.setattr(projects.OneByOne, "pairs", 0)
    done = ended(project, *COMMAND, "--bisect", "good..main", code=1)
    slow = id_of(project, "c13")
    assert done.out.startswith(f"{slow[:12]} made my_step/deep, batch size 1 slower: a commit\n")
    record = record_of(project)
    assert (record.state, record.named, record.candidates[0].probability >= 0.95) == ("named", slow, True)
    assert record.loss is not None and record.loss.low < 1 / 1.1 < record.loss.high
    assert {skipped.commit for skipped in record.skipped} <= {id_of(project, "c5"), id_of(project, "c10")}
    assert len(record.built) <= 2 + 6
    # The commands that go on from it work.
    assert tcbench(project, *next_step(done)).code == 0
    # What it measured is nobody's newest run.
    refused = tcbench(project, "explain")
    assert refused.code == 2 and "no run of your own" in refused.err
    assert list(project.glob(f"results/*/bisect-*-{slow[:12]}{SUFFIX}"))
    trials = "".join(path.read_text() for path in project.glob(f"results/*/bisect-*{SUFFIX}"))
    assert record.trials == len(trials.splitlines())
    # Every round is in turns, the search's too; a broken commit's pair is not kept, but tried once more, each side
    # alone, as far as the broken one.
    assert 0 <= 2 * projects.OneByOne.pairs - record.trials <= len(record.skipped)


@pytest.mark.usefixtures("stand_ins")
def test_interrupted_by_its_budget_the_same_command_goes_on(project):
    ended(project, *COMMAND, "--bisect", "good..main", "--budget", "0.001", "--looks", "3", code=4)
    assert record_of(project).state == "not settled"  # the budget was gone before it was known whether BAD is slower
    done = tcbench(project, *COMMAND, "--bisect", "good..main", "--looks", "3", "--quiet")
    assert (done.code, done.err) == (1, "")


@pytest.mark.usefixtures("stand_ins")
def test_on_a_machine_that_did_not_stay_the_same_no_search_begins(project, monkeypatch):
    monkeypatch.setattr("tcbench.run.gate.machine_check.check", lambda cells, threshold: MachineCheck(unstable=True))
    done = ended(project, *COMMAND, "--bisect", "good..main", "--looks", "3", code=4)
    assert "not settled: the machine did not stay the same while GOOD and BAD were compared" in done.err
    assert record_of(project).state == "not settled"


@pytest.mark.usefixtures("stand_ins")
def test_a_search_goes_on_from_its_last_round(project, monkeypatch):
    measured = bisections._with_round
    calls = []

    def interrupted(*arguments):
        if len(calls) == 2:
            raise KeyboardInterrupt
        calls.append(1)
        return measured(*arguments)

    monkeypatch.setattr(bisections, "_with_round", interrupted)
    first = ended(project, *COMMAND, "--bisect", "good..main", code=130)
    assert "the same command continues from the last round" in first.err
    before = record_of(project)
    assert before.state == "searching"
    monkeypatch.setattr(bisections, "_with_round", measured)
    [path] = project.glob("results/*/bisect-*.json")
    bisections.write(msgspec.structs.replace(before, seconds=3600.0), path)  # a budget counts for each call
    done = ended(project, *COMMAND, "--bisect", "good..main", "--json", "--budget", "10min", code=1)
    assert f"({len(before.rounds)} rounds); delete that file to start over" in done.err
    document = json.loads(done.out)
    assert (document["schema"], document["schema_version"]) == ("tcbench-bisection", 1)
    assert document["named"] == id_of(project, "c13")
    assert document["rounds"][: len(before.rounds)] == [
        {"commit": round_.commit, "log_ratio": round_.log_ratio, "seconds": round_.seconds} for round_ in before.rounds
    ]


def test_a_machine_that_stops_now_and_then_does_not_hide_a_loss_at_the_median_step():
    def trials(rate: float):
        records = []
        for trial in range(4):
            times_s = [1 / rate] * 24
            times_s[3 + trial] += 0.5 * trial**2  # the machine stopped
            measured = factories.make_measurement(times_s)
            records.append(factories.make_record("fp32", 1, trial=trial, measurement=measured))
        return records

    before, after = trials(40.0), list(reversed(trials(36.0)))
    cell = before[0].cell
    lost = bisections.median_step_losses([cell], before, after, Rule())
    assert lost == {cell.key: pytest.approx(0.9)}
    assert bisections.median_step_losses([cell], before, before, Rule()) == {}
    question = bisections.Bisection(
        good="a", bad="b", commits=("b",), subjects=("",), cells=(cell.key,), threshold=0.03
    )
    begun = bisections.begin_search(question, PlannedCell(cell), before, after)
    assert begun.figure == "throughput at the median step"
    assert [round_.log_ratio for round_ in begun.rounds] == [pytest.approx(math.log(0.9))] * 4
    timed = ((before, 0.01), (after, 0.02))
    phased = [[factories.remeasured(r, phases=factories.make_phases({"update": s})) for r in rs] for rs, s in timed]
    by_phase = bisections.begin_search(begun, PlannedCell(cell), *phased, "update")
    assert by_phase.figure == "speed of update"
    assert [round_.log_ratio for round_ in by_phase.rounds[-4:]] == [pytest.approx(math.log(0.5))] * 4


@pytest.mark.usefixtures("stand_ins")
def test_where_the_end_is_not_slower_there_is_nothing_to_search_for(project):
    done = ended(project, *COMMAND, "--bisect", "good..c12")
    assert "no loss: " in done.out
    assert record_of(project).state == "no loss"


@pytest.mark.usefixtures("stand_ins")
def test_commits_that_do_not_run_beside_the_slow_one_are_named_with_it(project):
    commit(project, my_step__py="raise SystemExit('broken')\n" + planted(2))
    commit(project, my_step__py=planted(8))
    done = ended(project, *COMMAND, "--bisect", "c20..main", "--quiet", code=4)
    assert "NOT SETTLED: one of 2 commits made my_step/deep, batch size 1 slower" in done.out
    assert "skipped: " in done.out and "failed: SystemExit: broken" in done.out
    assert record_of(project).state == "narrowed down"


@pytest.mark.usefixtures("stand_ins")
@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--bisect", "good"], 2, "expected GOOD..BAD"),
        (["--bisect", "good...main"], 2, "expected GOOD..BAD"),
        (["--bisect", "nobody..main"], 2, "--bisect 'nobody': no such commit"),
        (["--bisect", "c9..c4"], 2, "does not come after"),
        (["--bisect", "main..main"], 2, "does not come after"),
        (["--bisect", "good..main", "--base", "good"], 2, "leave out --base"),
        (["--bisect", "good..main", "--metric", "memory"], 2, "leave out --metric memory"),
        (["--bisect", "good..main", "-o", "new/a.png", "--strict"], 2, "leave out --strict --output new/a.png"),
        (["--bisect", "good..main", "--lenient", "--allow", "os"], 2, "leave out --allow os --lenient"),
        (["--bisect", "good..main", "--format", "junit"], 2, "leave out --format junit"),
        (["--bisect", "good..c5"], 5, "not measured at both GOOD and BAD"),
    ],
)
def test_what_cannot_be_bisected_is_one_line(project, words, code, says):
    done = tcbench(project, *COMMAND, *words, "--quiet")
    assert done.code == code, done.err
    assert says in done.err
    assert len(done.err.splitlines()) == 1
    assert not (project / "new").exists()


@pytest.mark.slow
def test_a_real_bisection_names_the_planted_commit(project):
    commit(project, my_step__py=planted(2) + "\n# the last\n")
    done = ended(project, *COMMAND, "--bisect", "good..main", "--max-time", "0.3", "--threads", "1", code=1)
    assert done.out.startswith(id_of(project, "c13")[:12])
    assert not subprocess.run(["git", "-C", project, "status", "--porcelain"], capture_output=True).stdout
