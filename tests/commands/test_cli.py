"""The command line as a user meets it: mistakes are one line and exit code 2, runs leave what they say."""

import functools
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import projects
import pytest
from command import ended, finish, start, tcbench
from corpus_inputs import QUICK
from factories import make_record
from processes import children, soon
from typer.main import get_command

from tcbench import commands as cli
from tcbench.commands.numerics import plan as numerics_plan
from tcbench.commands.numerics.command import TIMEOUT_S
from tcbench.core import store
from tcbench.engine.feeds import generated as jpegs
from tcbench.show.app import GROUPS
from tcbench.show.options import config_names


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "quick.toml").write_text(QUICK, encoding="utf-8")
    return tmp_path


@pytest.fixture
def sleeper(tmp_path: Path) -> Path:
    """A step of one's own that sleeps, in two configs: trials that need neither Chainer nor much of a processor."""
    (tmp_path / "my_step.py").write_text(projects.STEP, encoding="utf-8")
    (tmp_path / "quick.toml").write_text(projects.SCENARIO, encoding="utf-8")
    return tmp_path


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_results_folder_that_may_not_be_written_is_exit_code_2(folder):
    (folder / "results").mkdir(mode=0o500)
    done = ended(folder, "run", "quick.toml", "--threads", "1", "--data", "synthetic", code=2)
    assert "cannot be written" in done.err


def test_a_traceback_is_shown_only_when_asked_for(folder):
    shown = tcbench(folder, "run", "--bs", "0", "--debug")
    assert "Traceback" in shown.err
    assert shown.code == 2
    assert "Traceback" in tcbench(folder, "--debug", "run", "--bs", "0").err


def wait_for_records(folder: Path, n: int) -> Path:
    assert soon(
        lambda: any(path.read_bytes().count(b"\n") >= n for path in folder.glob("results/*/quick-*.jsonl")), 600
    )
    (path,) = folder.glob("results/*/quick-*.jsonl")
    return path


@pytest.mark.long
@pytest.mark.parametrize("signum", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_an_interrupted_run_keeps_what_is_done_and_is_resumed(sleeper, signum):
    arguments = ("run", "quick.toml", "--trials", "2", "--max-time", "1")
    process = start(sleeper, *arguments)
    path = wait_for_records(sleeper, 1)
    process.send_signal(signum)
    done = finish(process, code=130)
    assert "continue with: tcbench run quick.toml --trials 2 --max-time 1 --resume" in done.err
    assert "Traceback" not in done.err
    content = store.read([path])
    assert content.notes == ()
    assert 1 <= len(content.records) < 4

    ended(sleeper, *arguments, "--resume")
    records = store.read([path]).records
    assert records[: len(content.records)] == content.records
    assert len(records) == 4
    assert len(list((sleeper / "results").glob("*/*.jsonl"))) == 1


@pytest.mark.slow
def test_a_killed_runner_leaves_whole_lines_and_is_resumed(sleeper):
    arguments = ("run", "quick.toml", "--trials", "2", "--max-time", "1")
    process = start(sleeper, *arguments)
    path = wait_for_records(sleeper, 1)
    process.kill()
    finish(process)
    assert path.read_bytes().endswith(b"\n")
    assert tcbench(sleeper, *arguments, "--resume").code == 0
    assert len(store.read([path]).records) == 4


def sleep_at_the_start(folder):
    step = projects.STEP.replace(
        "def open_session(cell):\n", "def open_session(cell):\n    import time; time.sleep(60)\n"
    )
    (folder / "my_step.py").write_text(step, encoding="utf-8")


def test_an_interrupt_before_the_first_record_leaves_nothing_behind(sleeper):
    sleep_at_the_start(sleeper)
    process = start(sleeper, "run", "quick.toml", "--max-time", "60")
    wait_for_records(sleeper, 0)
    time.sleep(1.0)
    process.send_signal(signal.SIGINT)
    done = finish(process, code=130)
    assert "nothing was measured yet; continue with: tcbench run quick.toml --max-time 60\n" in done.err
    assert not list((sleeper / "results").glob("*/*.jsonl"))


@pytest.mark.long
def test_a_killed_worker_is_a_record_and_the_run_goes_on(sleeper):
    process = start(sleeper, "run", "quick.toml")
    assert soon(lambda: [os.kill(pid, signal.SIGKILL) for pid in children(process.pid, "tcbench.worker")], 600)
    assert finish(process).code == 3
    (path,) = (sleeper / "results").glob("*/*.jsonl")
    assert [r.status for r in store.read([path]).records] == ["crashed", "ok"]


def test_a_trial_over_its_timeout_is_a_record(sleeper):
    sleep_at_the_start(sleeper)
    done = ended(sleeper, "run", "quick.toml", "--config", "deep", "--max-time", "60", "--timeout", "0.5", code=3)
    (path,) = (sleeper / "results").glob("*/*.jsonl")
    (record,) = store.read([path]).records
    assert (record.status, record.reason) == ("timeout", "no result after 0.5 s (--timeout)")
    assert "timeout" in done.out


def test_a_cell_skipped_for_a_missing_package_runs_once_the_package_is_there(folder, monkeypatch):
    arguments = ("run", "quick.toml", "--bs", "2", "--trials", "1", "--threads", "1", "--data", "synthetic", "--json")
    arguments += ("--config", "fp32+opencv")
    monkeypatch.setattr("tcbench.engine.rung.Package.is_installed", lambda package: package.module != "cv2")
    first = ended(folder, *arguments)
    assert "needs the package cv2: uv sync --extra opencv" in json.loads(first.out)["cells"][0]["reason"]
    monkeypatch.undo()
    monkeypatch.setattr("tcbench.engine.rung.Package.is_installed", lambda package: True)
    monkeypatch.setattr(
        "tcbench.run.runner.Runner._trial", lambda _, planned, trial: make_record(cell=planned.cell, trial=trial)
    )
    second = tcbench(folder, *arguments, "--resume")
    # The stand-in's record is of another machine, and so a row of its own.
    assert [cell["status"] for cell in json.loads(second.out)["cells"]] == ["skipped", "ok"]


def test_doctor_says_what_is_here_and_what_is_missing(folder):
    done = ended(folder, "doctor")
    assert "chainer" in done.out
    assert "7.8.1" in done.out
    assert "tcbench data make" in done.out
    findings = json.loads(tcbench(folder, "doctor", "--json").out)["findings"]
    assert {finding["what"] for finding in findings} >= {"Python", "processor", "chainer", "results folder"}


@pytest.mark.long
def test_data_make_makes_the_set_once(folder, monkeypatch):
    monkeypatch.setitem(jpegs.generate.__kwdefaults__, "n_files", 16)
    monkeypatch.setitem(jpegs.generate.__kwdefaults__, "workers", 1)
    first = ended(folder, "data", "make")
    assert "16 images in 16 classes" in first.out
    monkeypatch.setattr(jpegs, "_write_images", lambda *_: pytest.fail("made anew"))
    assert tcbench(folder, "data", "make").out == first.out


COMMANDS = [name for names in GROUPS.values() for name in names]
INNER = ["data make", "baseline set", "baseline list", "baseline show", "baseline remove"]
HELPS = [words.split() for words in (*COMMANDS, *INNER)]


@pytest.mark.parametrize("module", ["tcbench.commands", "tcbench.run.prediction"], ids=["every command", "run"])
def test_the_start_of_a_command_imports_no_library_that_takes_long(module):
    heavy = ("chainer", "cupy", "matplotlib", "numpy", "rich", "scipy", "torch")
    look = f"import sys, {module}; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_help_shows_every_command_in_one_group(folder):
    shown = tcbench(folder, "--help").out
    assert re.findall(r"^(Measure|Look|Compare|More):$", shown, re.MULTILINE) == list(GROUPS)
    commands = shown[shown.index(f"{next(iter(GROUPS))}:") :]
    assert [line.split()[0] for line in commands.splitlines() if re.match(r"  [a-z]", line)] == COMMANDS
    assert sorted(COMMANDS) == sorted(get_command(cli.app).commands)


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_fits_80_columns_and_speaks_of_no_type_of_pythons(folder, words):
    shown = tcbench(folder, *words, "-h", COLUMNS="80").out
    assert [line for line in shown.splitlines() if len(line) > 80] == []
    assert not re.search(r"<|\[(default|required)", shown)
    assert not re.search(r"\.\.\.$", shown.partition("Commands:")[2], re.MULTILINE)  # a line that was cut


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_help_says_of_every_option_what_is_taken_without_it(words):
    context = get_command(cli.app).make_context("tcbench", ["list"], resilient_parsing=True)
    for name in words:
        context = context.command.commands[name].make_context(name, [], parent=context, resilient_parsing=True)
    silent = []
    for parameter in context.command.get_params(context):
        if parameter.required or getattr(parameter, "is_flag", False) or getattr(parameter, "hidden", False):
            continue
        _, says = parameter.get_help_record(context)
        if not re.search(r"default:|Default[:,]|In place of|Not with", says):
            silent.append(parameter.opts)
    assert silent == []


def test_the_defaults_that_help_states_are_those_that_are_taken():
    """Figures in help texts that come from modules that help does not import."""
    stated = {parameter.name: parameter.help for parameter in get_command(cli.app).commands["numerics"].params}
    for name, figures in {
        "seeds": (numerics_plan.SEEDS,),
        "steps": (numerics_plan.STEPS, numerics_plan.PARITY_STEPS),
        "learning_rate": (numerics_plan.LEARNING_RATE, numerics_plan.RANKS_LEARNING_RATE),
        "bs": (numerics_plan.BATCH,),
        "image_size": (numerics_plan.IMAGE,),
        "global_batch": (numerics_plan.GLOBAL_BATCH,),
        "timeout": (int(TIMEOUT_S),),
    }.items():
        assert [figure for figure in figures if str(figure) not in stated[name].split("Default:")[1]] == [], name


@pytest.mark.parametrize("words", HELPS, ids=" ".join)
def test_output_is_asked_for_by_the_same_words_everywhere(words):
    """-o FILE, --out FOLDER, --format FORMAT, in one group of help; results are arguments."""
    command = functools.reduce(lambda group, name: group.commands[name], words, get_command(cli.app))
    options = {option: parameter for parameter in command.params for option in parameter.opts}
    assert {"--chart", "--file", "--json", "--results"}.isdisjoint(options)
    assert options.get("-o") is options.get("--output")
    for option, metavar in (("-o", "FILE"), ("--out", "FOLDER"), ("--format", "FORMAT")):
        if option in options:
            assert (options[option].metavar, options[option].rich_help_panel) == (metavar, "Output")


def test_a_config_is_named_as_charts_write_it_too():
    assert config_names(["fp32 + dali, fp16", " fp16+nhwc"]) == ("fp32+dali", "fp16", "fp16+nhwc")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("tcbench run na", "naruse2018"),
        ("tcbench run --config fp16+dali+b", "fp16+dali+batched"),
        ("tcbench pl", "plot"),
    ],
)
def test_shell_completion_completes(folder, line, expected):
    variables = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    done = tcbench(folder, _TCBENCH_COMPLETE="complete_bash", **variables)
    assert expected in done.out.split()
