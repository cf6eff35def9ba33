"""Matplotlib's configuration harms no command, and a chart that fails is a note."""

import itertools
import subprocess
import sys
from pathlib import Path

import factories
import pytest

from tcbench.show.saving import save_each

MAIN = "from tcbench.__main__ import main; main()"
WITHOUT_MATPLOTLIB = "import sys; sys.modules['matplotlib'] = None; "


@pytest.fixture
def folder(tmp_path):
    """Results of one run in a folder with a `matplotlibrc` that is not UTF-8."""
    factories.write(tmp_path / "run.jsonl", *factories.make_trials("fp32", trials=3))
    (tmp_path / "matplotlibrc").write_bytes(b"# caf\xe9\n")
    return tmp_path


SETTINGS = {
    "a notebook": {"MPLBACKEND": "module://matplotlib_inline.backend_inline"},
    "a build": {"SOURCE_DATE_EPOCH": "abc", "MPLBACKEND": "nonsense"},
    "a build at a time": {"SOURCE_DATE_EPOCH": "99999999999", "MATPLOTLIBRC": "/dev/null/none"},
}


@pytest.mark.long
def test_charts_are_the_same_bytes_whatever_is_set_up_for_matplotlib(folder, monkeypatch):
    drawn = {}
    for (name, variables), suffix in itertools.product([("nothing", {}), *SETTINGS.items()], ("pdf", "svg")):
        with monkeypatch.context() as context:
            for variable, value in variables.items():
                context.setenv(variable, value)
            command = [sys.executable, "-P", "-c", MAIN, "plot", "run.jsonl", "-o", f"{name}.{suffix}"]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, (name, done.stderr)
        drawn.setdefault(suffix, set()).add((folder / f"{name}.{suffix}").read_bytes())
    assert {suffix: len(files) for suffix, files in drawn.items()} == {"pdf": 1, "svg": 1}


def test_a_run_shows_its_table_where_matplotlib_does_not_load(tmp_path):
    step = "def make(cell):\n    return own.step(lambda: time.sleep(0.001), loss=lambda: 1.0)\n"
    (tmp_path / "small_step.py").write_text(f"import time\nfrom tcbench import step as own\n{step}")
    (tmp_path / "small.toml").write_text(
        'schema = 1\ntitle = "x"\nmodel.name = "x"\n[measure]\nbatch_sizes = [1]\ntrials = 1\nmax_time_s = 0.1\n'
        '[[config]]\nbackend = "small_step:make"\nrungs = ["one"]\n'
    )
    command = [sys.executable, "-P", "-c", WITHOUT_MATPLOTLIB + MAIN, "run", "./small.toml"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "note: no chart: " in done.stderr
    assert "1 cell ok. Records: " in done.stdout
    assert "small_step/one" in done.stdout


def test_whatever_hinders_a_chart_is_a_note_and_the_others_are_drawn(tmp_path, capsys):
    def fails() -> None:
        raise ValueError("broken\nin two lines")

    def figure():
        from matplotlib.figure import Figure

        return Figure()

    paths = {tmp_path / "a.png": fails, tmp_path / "b.png": figure}
    assert save_each(paths) == [tmp_path / "b.png"]
    assert capsys.readouterr().err == "note: no chart: broken in two lines\n"
    assert [path.name for path in Path(tmp_path).iterdir()] == ["b.png"]
