"""`tcbench plot` as a user meets it: whose settings count, what is chosen, and which run has it."""

from pathlib import Path

import pytest
import reports
import shipped
from command import ended, finish, start, tcbench
from factories import make_record, write


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Real results."""
    shipped.copy(tmp_path, ".jsonl")
    return tmp_path


def drawn(folder: Path, *arguments: str) -> str:
    """The chart as SVG."""
    done = ended(folder, "plot", *arguments, "-o", "chart.svg")
    assert done.out == "wrote chart.svg\n"
    return (folder / "chart.svg").read_text(encoding="utf-8")


@pytest.mark.long
def test_a_matplotlibrc_of_the_users_changes_no_chart(folder: Path) -> None:
    expected = drawn(folder, "cpu-20261121-035658")
    (folder / "matplotlibrc").write_text(
        "text.usetex: True\nbackend: TkAgg\nfont.size: 30\nsavefig.bbox: tight\n", encoding="utf-8"
    )
    # The file is read when matplotlib is imported.
    assert finish(start(folder, "plot", "cpu-20261121-035658", "-o", "chart.svg")).code == 0
    assert (folder / "chart.svg").read_text(encoding="utf-8") == expected


def test_configs_are_chosen(folder: Path) -> None:
    chosen = drawn(folder, "cpu-20261121-035658", "--config", "fp32,fp32+dali")
    assert "<!-- fp32 -->" in chosen and "<!-- fp16 -->" not in chosen


@pytest.mark.long
def test_where_the_newest_run_does_not_have_it_a_run_that_has_it_is_named(tmp_path: Path) -> None:
    results = tmp_path / "results" / "machine"
    write(results / "cpu-20261121-000000.jsonl", *reports.ladders(1, sizes=(4,)))
    write(results / "cpu-20261122-000000.jsonl", make_record("fp32+nhwc", 4))
    for words in (["--kind", "ladder"], ["--slide", "33"], ["--config", "fp32+dali"]):
        done = ended(tmp_path, "plot", *words, code=2)
        note, error = done.err.splitlines()
        assert note == "the newest run: results/machine/cpu-20261122-000000.jsonl"
        command = "tcbench plot results/machine/cpu-20261121-000000.jsonl " + " ".join(words)
        assert error.endswith(f"; this run can be drawn: {command}")
        assert tcbench(tmp_path, *command.split()[1:]).code == 0
    assert "can be drawn" not in tcbench(tmp_path, "plot", "--slide", "33", "cpu-20261122-000000").err


def test_a_home_that_cannot_be_written_is_no_news(tmp_path: Path) -> None:
    write(tmp_path / "r.jsonl", make_record("fp32"))
    variables = dict.fromkeys(("HOME", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "MPLCONFIGDIR"), "/dev/null")
    done = finish(start(tmp_path, "plot", "r.jsonl", "-o", "a.svg", environment=variables), code=0)
    assert done.err == ""
