"""Options of `tcbench run` that act within the worker or on which configs there are."""

import functools
import json
import os
import re
import shlex
import sys
from pathlib import Path

import odd_images
import pytest
from command import ended, next_steps, tcbench
from factories import make_cell, make_environment, make_record

from tcbench import __version__
from tcbench.core import messages, store
from tcbench.engine.accelerators.cpu.kind import KIND
from tcbench.engine.feeds import dataset
from tcbench.hardware import load, machine
from tcbench.run import ranks
from tcbench.run.launcher import Launcher
from tcbench.run.runner import Runner
from tcbench.show import progress


@pytest.mark.parametrize(
    ("options", "tuning"), [((), (False, 60.0)), (("--fresh-autotune", "--tuning-budget", "2m"), (True, 120.0))]
)
@pytest.mark.parametrize(
    "measuring", [("run", "cpu"), ("gate", "cpu", "--base-python", sys.executable), ("profile", "fp32", "cpu")]
)
def test_how_plans_are_tuned_reaches_the_workers_of_every_command(monkeypatch, tmp_path, measuring, options, tuning):
    seen = []

    def stop(*_, **__):
        seen.append((messages.fresh_autotune(), messages.tuning_budget_s()))
        raise KeyboardInterrupt

    monkeypatch.delenv(messages.FRESH_AUTOTUNE, raising=False)
    monkeypatch.delenv(messages.TUNING_BUDGET, raising=False)
    monkeypatch.setattr(Runner, "run", stop)
    monkeypatch.setattr(Runner, "run_group", stop)
    monkeypatch.setattr("tcbench.commands.gate.turns.measure", stop)
    cells = ("--device", "cpu", "--data", "synthetic", "--image-size", "32", "--bs", "1", "-q")
    assert tcbench(tmp_path, *measuring, *cells, *options).code == 130
    assert seen == [tuning]


def test_workers_are_told_how_many_processors_a_rank_of_the_most_has(monkeypatch, tmp_path):
    seen, calls = [], []

    class Stopped(Runner):
        def run(self, trials):
            seen.append(self.launch.variables)
            raise KeyboardInterrupt

    monkeypatch.setattr("tcbench.run.runner.Runner", Stopped)
    monkeypatch.setattr(
        "tcbench.run.ranks.probe_largest", lambda launcher, cells: calls.append({cell.ranks for cell in cells}) or 3
    )
    tcbench(tmp_path, "run", "cpu", "--device", "cpu", "--data", "synthetic", "--config", "fp32")
    assert (seen, calls) == ([{messages.CORES: "3"}], [{1}])


def test_the_launcher_is_asked_for_as_many_ranks_as_the_largest_cell_has(monkeypatch):
    probes = []
    monkeypatch.setattr("tcbench.run.ranks.probe", lambda launcher, ranks, *_: probes.append(ranks) or 2)
    cells = [make_cell(ranks=ranks) for ranks in (1, 4, 2)]
    launcher = Launcher(("mpirun", "-np", "{n}"))
    assert [ranks.probe_largest(launcher, some) for some in (cells, cells[:1], [])] == [2, 0, 0]
    assert probes == [4]


def test_an_ablation_is_chosen_by_its_name_with_any_rungs_and_waits_for_a_gpu(tmp_path):
    configs = "fp16*:no-autotune,fp16,fp32+nhwc:no-autotune"
    done = tcbench(tmp_path, *f"run settings --device cpu --dry-run --json --bs 64 --config {configs}".split())
    cells = {cell["config"]: cell["skip_reason"] for cell in json.loads(done.out)["cells"]}
    ablations = [f"{rungs}:no-autotune" for rungs in ("fp16", "fp16+dali+batched+nhwc+fused", "fp32+nhwc")]
    assert [*cells] == ["fp16", *ablations]
    assert [*cells.values()] == [None, *["no-autotune: cuDNN's settings act on a GPU only"] * 3]


def test_a_folder_with_an_image_that_not_every_feed_takes_is_refused_before_any_trial(tmp_path):
    (tmp_path / "data" / "a").mkdir(parents=True)
    (tmp_path / "data" / "a" / "good.jpg").write_bytes(odd_images.accepted()["plain"])
    (tmp_path / "data" / "a" / "bad.jpg").write_bytes(odd_images.refused()["gif"][0])
    done = ended(tmp_path, "run", "cpu", "--device", "cpu", "--bs", "4", "--data", "data", code=2)
    assert "a/bad.jpg is a GIF, expected a JPEG or PNG with 8 bits per channel" in done.err
    assert len(done.err.strip().splitlines()) == 1
    assert not (tmp_path / "results").exists()


@pytest.mark.parametrize(("quiet", "says"), [((), "checking the images: 1/2"), (("--quiet",), "")])
def test_the_users_images_are_checked_in_silence_where_that_is_asked(tmp_path, monkeypatch, quiet, says):
    (tmp_path / "data" / "a").mkdir(parents=True)
    for name in ("b", "c"):
        (tmp_path / "data" / "a" / f"{name}.jpg").write_bytes(odd_images.accepted()["plain"])
    monkeypatch.setattr(progress, "_LINE_EVERY_S", 0.0)
    monkeypatch.setattr(dataset, "_FILES_PER_PROGRESS", 1)
    done = ended(tmp_path, "run", "cpu", "--device", "cpu", "--bs", "4", "--data", "data", "--dry-run", *quiet)
    assert says in done.err and bool(done.err) == bool(says)


def test_a_run_says_first_which_library_computes_and_where_a_faster_one_is_missing(tmp_path, monkeypatch):
    monkeypatch.setattr(
        "tcbench.run.runner.Runner._trial", lambda _, planned, trial: make_record(cell=planned.cell, trial=trial)
    )
    arguments = ("run", "--config", "fp32", "--bs", "4", "--data", "synthetic", "--device", "cpu")
    monkeypatch.setattr(type(KIND), "shortfall", lambda _: "oneDNN needs libgomp.so.1: apt-get install libgomp1")
    assert "computes: oneDNN needs libgomp.so.1: apt-get install libgomp1" in tcbench(tmp_path, *arguments).err
    monkeypatch.setattr(type(KIND), "shortfall", lambda _: None)
    assert f"\n{KIND.library()} computes\n" in tcbench(tmp_path, *arguments).err


# ------------------------------------------------------------------------------------------------ rounds and resuming


RUN = ("run", "cpu", "--device", "cpu", "--data", "synthetic", "--threads", "1", "--config", "fp32,fp32+batched")


@pytest.fixture
def trials_of_30_s(monkeypatch):
    """Trials on a quiet machine that say they took 30 s and take none; those of a round whose number stands in what is
    returned take so many times as long."""
    slower = {}

    def trial(runner, planned, number):
        code = make_environment(commit=machine.commit(), tcbench=__version__, sources=machine.sources())
        duration_s = 30.0 * slower.get(number, 1)
        of_run = {"run_id": runner.run_id, "plan": runner.plan, "place": planned.place}
        return make_record(cell=planned.cell, trial=number, duration_s=duration_s, environment=code, **of_run)

    monkeypatch.setattr(Runner, "_trial", trial)
    monkeypatch.setattr(Runner, "run_group", lambda self, trials, _: self.run(trials))  # one after another
    monkeypatch.setattr(os, "getloadavg", lambda: (0.0, 0.0, 0.0))
    return slower


def trials(folder):
    """Config and number of each trial, run by run."""
    paths = sorted(folder.glob("results/*/cpu-*.jsonl"), key=lambda path: path.stat().st_mtime_ns)
    return [[(record.cell.config, record.trial) for record in store.read([path]).records] for path in paths]


@pytest.mark.parametrize(
    ("options", "each"), [((), [4, 4]), (("--budget", "100s"), [2, 1]), (("--trials", "3", "--budget", "1h"), [3, 3])]
)
def test_a_run_goes_on_in_rounds_until_its_budget_is_spent(tmp_path, trials_of_30_s, options, each):
    done = ended(tmp_path, *RUN, "--bs", "4", *options, "--json")
    assert [cell["trials"] for cell in json.loads(done.out)["cells"]] == each
    [run] = trials(tmp_path)
    assert [number for _, number in run] == sorted(number for _, number in run)


def test_views_show_the_cells_in_the_scenarios_order_whatever_was_measured_first(tmp_path, trials_of_30_s):
    done = tcbench(tmp_path, *RUN, "--bs", "4,8", "--trials", "1", "--json")
    cells = [(cell["config"], cell["batch_size"]) for cell in json.loads(done.out)["cells"]]
    assert cells == [("fp32", 4), ("fp32", 8), ("fp32+batched", 4), ("fp32+batched", 8)]
    exported = tcbench(tmp_path, "export", "--format", "json", "--per", "cell").out
    assert [(row["config"], row["batch_size"]) for row in json.loads(exported)["rows"]] == cells


def test_a_trial_that_ends_in_an_accident_beside_others_runs_again_alone(tmp_path, trials_of_30_s, monkeypatch):
    groups = []

    def crash(runner, group, _):
        groups.append([planned.cell.config for planned, _ in group])
        for record in runner.run(group):
            crashes = len(groups) == 1 and record.cell.config == "fp32"
            in_turns = {"turns_began_at": "2026-01-01T00:00:00.000+00:00"}
            crash = make_record(cell=record.cell, run_id=runner.run_id, status="crashed", **in_turns)
            yield crash if crashes else record

    monkeypatch.setattr(Runner, "run_group", crash)
    done = ended(tmp_path, *RUN, "--bs", "4", "--trials", "2")
    assert groups == [["fp32", "fp32+batched"], ["fp32"], ["fp32"], ["fp32+batched"]]
    assert "crashed: the worker was killed by signal 11 (SIGSEGV); it runs again alone" in done.err
    fp32, batched = [("fp32", n) for n in (0, 0, 1)], [("fp32+batched", n) for n in (0, 1)]
    assert sorted(trials(tmp_path)[0]) == sorted(fp32 + batched)


@pytest.mark.parametrize(("sizes", "reason", "ran"), [("8", "8", [2, 2]), ("4,8", "4, 8", [2, 4])])
def test_a_finished_run_of_another_selection_is_never_resumed(tmp_path, trials_of_30_s, sizes, reason, ran):
    assert tcbench(tmp_path, *RUN, "--bs", "4", "--trials", "1").code == 0
    done = ended(tmp_path, *RUN, "--bs", sizes, "--trials", "1", "--resume")
    [line] = [line for line in done.err.splitlines() if line.startswith("nothing to resume")]
    assert line.endswith(f"has another selection: batch size 4, here {reason}")
    assert [len(run) for run in trials(tmp_path)] == ran
    again = ended(tmp_path, *RUN, "--bs", "4", "--trials", "1", "--resume")  # not the newest any more
    assert "resuming results/" in again.err and "2 records" in again.err
    assert [len(run) for run in trials(tmp_path)] == ran


def test_a_run_of_the_same_cells_is_resumed_with_what_is_left_of_its_budget(tmp_path, trials_of_30_s):
    arguments = (*RUN, "--bs", "4")
    assert tcbench(tmp_path, *arguments, "--budget", "60s").code == 0
    assert tcbench(tmp_path, *arguments, "--budget", "120s", "--resume").code == 0
    assert [len(run) for run in trials(tmp_path)] == [4]
    again = tcbench(tmp_path, *arguments, "--budget", "120s", "--resume")
    assert (
        "the budget of 2 min 00 s is spent, with 2 trials each; add more with --resume and a larger --budget"
        in again.err
    )
    assert [len(run) for run in trials(tmp_path)] == [4]
    complete = tcbench(tmp_path, *arguments, "--budget", "120s", "--trials", "2", "--resume")
    assert "nothing is missing: all trials are done" in complete.err


def test_where_every_cell_is_skipped_nothing_is_said_to_be_there(tmp_path):
    done = tcbench(tmp_path, "run", "cpu", "--device", "cpu", "--config", "cuda_graph+fp32", "--dry-run")
    assert "all trials are done" not in done.out
    assert "nothing to measure: every cell is skipped" in done.out


def test_a_run_of_another_processor_of_the_same_name_is_not_resumed(tmp_path, trials_of_30_s, monkeypatch):
    def measured(processor, *words):
        environment = functools.partial(make_environment, processor=processor)
        monkeypatch.setattr(f"{__name__}.make_environment", environment)
        monkeypatch.setattr(machine, "processor", lambda: processor)
        return tcbench(tmp_path, *RUN, "--bs", "4", "--trials", *words)

    assert measured("AMD/25/17 1a", "1").code == 0
    again = measured("AMD/26/17 2b", "2", "--resume")
    assert "has another selection: processor AMD/25/17 1a, here AMD/26/17 2b" in again.err
    assert "resuming" in measured("AMD/26/17 2b", "2", "--resume").err


def test_a_run_is_not_resumed_with_other_code_unless_that_is_allowed(tmp_path, trials_of_30_s, monkeypatch):
    arguments = (*RUN, "--bs", "4", "--trials")
    monkeypatch.setattr(machine, "commit", lambda: "aaaaaaaaaaaa")
    assert tcbench(tmp_path, *arguments, "1").code == 0
    [path] = tmp_path.glob("results/*/cpu-*.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:1]))  # an interrupt after the first
    monkeypatch.setattr(machine, "commit", lambda: "bbbbbbbbbbbb")
    refused = ended(tmp_path, *arguments, "1", "--resume", code=2)
    assert (
        "was measured with other code: the records are from tcbench aaaaaaaaaaaa, this is bbbbbbbbbbbb; " in refused.err
    )
    assert "--allow code" in refused.err and refused.err.count("\n") == 1
    assert [len(run) for run in trials(tmp_path)] == [1]
    allowed = tcbench(tmp_path, *arguments, "1", "--resume", "--allow", "code")
    assert (
        allowed.code == 0
        and "1 record, measured with other code: the records are from tcbench aaaaaaaaaaaa" in allowed.err
    )
    assert [len(run) for run in trials(tmp_path)] == [2]
    assert tcbench(tmp_path, *arguments, "1", "--resume", "--allow", "driver").code == 2


def test_changed_files_of_tcbench_and_of_an_own_step_are_other_code(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my_step.py").write_text("STEP = 1\n", "utf-8")
    monkeypatch.setattr(machine, "commit", lambda: "aaaaaaaaaaaa+")
    facts = make_environment(commit=machine.commit(), sources=machine.sources(["my_step.py"]))
    before = [make_record(environment=facts)]
    Path("its_neighbour.py").touch()
    its_own = make_environment(commit=machine.commit(), sources=machine.sources(["its_neighbour.py", "../passwd"]))
    assert machine.other_code([*before, make_record("fp16", environment=its_own)]) == ""  # a config loads what it needs
    Path("my_step.py").write_text("STEP = 2\n", "utf-8")
    assert machine.other_code(before) == "my_step.py has changed"
    assert machine.other_code([make_record(environment=facts, status="failed")]) == ""  # it runs again
    Path("my_step.py").unlink()
    changed = make_environment(commit=machine.commit(), sources={**facts.sources, "tcbench/": "0" * 16})
    assert machine.other_code([make_record(environment=changed)]) == "my_step.py and tcbench/ have changed"


@pytest.mark.parametrize(
    ("words", "counts"),
    [
        (("--trials", "3"), [f"[{n}/6] round {r} of 3:" for n, r in enumerate((1, 1, 2, 2, 3, 3), start=1)]),
        # Of the time for eight trials the two of the second round take half.
        (("--budget", "240s"), ["[1/2] round 1:", "[2/2] round 1:", "[3] round 2:", "[4] round 2:", "[5] round 3:"]),
        (("--budget", "240s", "--trials", "9"), ["[1/2] round 1 of at most 9:"]),
    ],
)
def test_the_count_of_a_run_never_goes_down_whatever_its_trials_take(tmp_path, trials_of_30_s, words, counts):
    trials_of_30_s[1] = 2
    done = tcbench(tmp_path, *RUN, "--bs", "4", *words)
    lines = [line for line in done.err.splitlines() if line.startswith("[")]
    assert [line[: len(count)] for line, count in zip(lines, counts, strict=False)] == counts
    numbers = [int(re.match(r"\[(\d+)", line)[1]) for line in lines]
    assert numbers == list(range(1, len(lines) + 1))
    assert 5 <= len(lines) <= 6


def test_a_run_like_the_last_here_is_expected_to_take_as_long(tmp_path, trials_of_30_s, monkeypatch):
    tcbench(tmp_path, *RUN, "--bs", "4", "--trials", "3")
    (broken,) = (path.with_name("cpu-20990101-000000.jsonl") for path in tmp_path.glob("results/*/*.jsonl"))
    broken.write_text("{}\n")  # of no run, or of another network: both tell nothing
    monkeypatch.setattr(load, "slowdown", lambda: 2.0)  # other work is in those times already
    expected_s = {
        words: json.loads(tcbench(tmp_path, *RUN, "--bs", "4", "--trials", "1", "--json", "--dry-run", *words).out)
        for words in ((), ("--model", "alexnet"))
    }
    assert expected_s[()]["expected_s"] == pytest.approx(60.0)
    assert expected_s["--model", "alexnet"]["expected_s"] < 40


def test_the_time_that_a_run_is_expected_to_take_grows_with_the_load_of_the_machine(tmp_path, monkeypatch):
    monkeypatch.setattr(load, "_PROC", tmp_path)
    expected_s = []
    for busy in (0.0, 16.0):
        monkeypatch.setattr(os, "getloadavg", lambda busy=busy: (busy, busy, busy))
        plan = tcbench(tmp_path, *RUN, "--dry-run", "--trials", "1", "--json")
        expected_s.append(json.loads(plan.out)["expected_s"])
    assert expected_s[1] > 1.5 * expected_s[0]


def test_a_dry_run_says_how_often_and_how_long(tmp_path, trials_of_30_s):
    line = tcbench(tmp_path, *RUN, "--dry-run", "--trials", "3").out.splitlines()[1]
    assert re.fullmatch(r"3 trials each, about .*", line)
    line = tcbench(tmp_path, *RUN, "--dry-run", "--budget", "90s").out.splitlines()[1]
    assert re.fullmatch(r"rounds over all cells within 1 min 30 s: about .* each, about .*", line)
    plan = json.loads(tcbench(tmp_path, *RUN, "--dry-run", "--budget", "1s", "--json").out)
    assert (plan["trials"], plan["budget_s"]) == (None, 1.0)
    assert {cell["expected_trials"] for cell in plan["cells"]} == {1}
    assert plan["expected_s"] > 4


@pytest.mark.long
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("--config", "fp32", "--model", "alexnet", "--bs=8"), ("", "run --bs 8 --model alexnet ")),
        (("settings", "--device", "virtual:V100", "--config", "fp16"), ("", "run settings --device virtual:V100 ")),
        (("--config", "fp32", "--bs", "4", "--model", "alexnet,vgg16"), ("",)),
        (("cpu", "--bs", "4", "--quick", "--out", "mine"), (" --out mine", "run cpu --bs 4 --trials 1 --out mine ")),
    ],
)
def test_the_next_steps_keep_what_was_asked_and_run(tmp_path, trials_of_30_s, monkeypatch, words, expected):
    monkeypatch.setattr("tcbench.run.images.generate", lambda *_: None)
    done = tcbench(tmp_path, "run", *words, "--trials", "1", "--quiet")
    steps, (folder, *all_configs) = next_steps(done), expected
    assert [shlex.join(step) for step in steps[:2]] == [f"explain{folder}", f"report{folder}"]
    for step, start in zip(steps[2:], all_configs, strict=True):
        assert f"{shlex.join(step)} ".startswith(start)
    for step in steps:
        ended(tmp_path, *step, *["--dry-run"] * (step[0] == "run"))
