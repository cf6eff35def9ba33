"""docs/own-step.md does what it says: its blocks are saved as the files it names and run by its command."""

import os
import re
import shlex
import sys
import textwrap
from pathlib import Path

import pytest
from command import Done, tcbench

from tcbench.core import store
from tcbench.core.record import Record

PAGE = Path(__file__).parents[2] / "docs" / "own-step.md"


def blocks(language: str) -> list[str]:
    """The page's blocks in a language."""
    return re.findall(rf"```{language}\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)


LOOP, IN_NUMPY, IN_TORCH = blocks("python")
PROGRAMS, STEPS = blocks("toml")


def run(folder: Path, step: str | None, *options: str) -> Done:
    """Run the page's command in a folder with the page's files."""
    if step is not None:
        (folder / "my_step.py").write_text(step, "utf-8")
    (folder / "my_step.toml").write_text(STEPS, "utf-8")
    words = shlex.split("run ./my_step.toml --device cpu --max-time 0.3 --trials 1 --threads 1 --quiet")
    return tcbench(folder, *words, *options, PYTHONPATH=str(PAGE.parents[1]))


def records(folder: Path) -> tuple[Record, ...]:
    return store.read([folder / "results"]).records


def check(folder: Path, result: Done, package: str) -> None:
    assert result.code == 0, result.err + result.out
    stored = records(folder)
    assert sorted((r.cell.config, r.cell.batch_size, r.status) for r in stored) == [
        (f"my_step/{config}", batch_size, "ok") for config in ("eager", "eager+fused") for batch_size in (8, 16)
    ]
    for record in stored:
        assert record.measurement and record.environment
        assert [phase.name for phase in record.measurement.phases] == ["io", "forward", "backward", "update"]
        assert record.measurement.parameters > 0
        assert record.measurement.last_loss < record.measurement.warmup_loss  # it trains
        assert package in record.environment.packages
        assert (record.cell.model, record.cell.input.kind) == ("mine", "own")
    assert "my_step/eager" in result.out
    assert list((folder / "results").rglob("*.png"))


def test_the_pages_step_in_pytorch_runs_by_the_pages_command(tmp_path):
    pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")
    check(tmp_path, run(tmp_path, IN_TORCH), "torch")


TRAIN = """
import time

loader, model = [[1, 2]] * 50, sum
while True:
"""


def test_the_pages_line_in_a_loop_is_all_that_a_program_needs(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN + textwrap.indent(LOOP + "    time.sleep(0.002)\n", "    "), "utf-8")
    (tmp_path / "train.toml").write_text(PROGRAMS, "utf-8")
    words = shlex.split("run ./train.toml --config eager --max-time 0.2 --trials 2 --quiet")
    paths = {"PYTHONPATH": str(PAGE.parents[1]), "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    done = tcbench(tmp_path, *words, **paths)
    assert done.code == 0, done.err + done.out
    assert "samples/s" in done.out
    first, second = (record.measurement for record in records(tmp_path))
    assert first and second
    assert first.timed_steps == second.timed_steps  # the pilot's number
    assert first.items == 32
    assert first.epoch_starts
    assert [phase.name for phase in first.phases] == ["input", "forward", "body"]
    assert tcbench(tmp_path, "profile", "./train.toml").err.startswith(
        "tcbench: error: eager, batch size 32 is a program"
    )


@pytest.mark.slow
def test_the_pages_step_in_numpy_runs_just_so_and_its_work_has_a_rate(tmp_path):
    result = run(tmp_path, IN_NUMPY)
    check(tmp_path, result, "numpy")
    assert "GFLOP/s" in result.out
    assert {work.phase for work in records(tmp_path)[0].measurement.declared} == {"forward", "backward", "update"}


def test_the_pages_steps_are_about_thirty_lines_long():
    """Count the user's own code, without blank lines, imports and comments."""
    for step in (IN_NUMPY, IN_TORCH):
        lines = [line for line in step.splitlines() if line.strip() and not line.startswith(("import", "from"))]
        assert len(lines) <= 32


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("open_session", "open_sesion", r"module 'my_step' has no 'open_session' \(it has: open_sesion\)"),
        ("return own.step(", "own.step(", "expected a session .*got NoneType"),
        ("import numpy", "import nunpy", "No module named 'nunpy'"),
        ('state["x"] @ w', 'state["y"] @ w', r"^KeyError: 'y' \(in phase 'forward', at my_step\.py:18\)$"),
        (
            'bytes={"forward"',
            'bytes={"fprop"',
            r"bytes: no phase 'fprop'; expected some of backward, forward, io, update",
        ),
        (
            '"update": 2 * weights.size',
            '"update": -1',
            r"flops: expected a number of 0 or more, or one per phase, got -1",
        ),
    ],
    ids=["no such factory", "no session", "broken import", "raising phase", "no such phase", "less than none"],
)
def test_what_is_wrong_with_a_step_stands_in_one_line(tmp_path, old, new, message):
    assert old in IN_NUMPY
    step = IN_NUMPY.replace(old, new)
    result = run(tmp_path, step, "--config", "eager", "--bs", "8")
    assert result.code == 3
    (record,) = records(tmp_path)
    assert record.status == "failed"
    assert re.search(message, record.reason or ""), record.reason
    assert "\n" not in (record.reason or "")


def test_a_module_that_is_not_there_is_the_scenarios_error(tmp_path):
    result = run(tmp_path, None, "--dry-run")
    assert result.code == 2
    assert re.search(r"my_step\.toml: .*no module 'my_step' in .*run in the folder of my_step\.py", result.err)
    assert result.err.strip().count("\n") == 0
