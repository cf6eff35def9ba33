"""Each option's valid values stand where it is declared, and in one table; all others end with exit code 2."""

import dataclasses
import itertools
from pathlib import Path

import options
import pytest
from command import tcbench
from typer.main import get_command

from tcbench.commands import app
from tcbench.core.record import Input, Selection
from tcbench.show.options import SELECTION, words

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
ALL = options.options()


def test_the_page_says_of_every_option_what_it_takes():
    assert [(option.command, option.name) for option in ALL if not option.expected] == []
    same = PAGE.read_text(encoding="utf-8") == options.page()
    assert same, "docs/options.md is not what the program says: uv run python tests/options.py > docs/options.md"


@pytest.mark.parametrize("words", options.commands(), ids=" ".join)
def test_a_value_outside_of_an_options_range_is_one_line_that_names_it_and_exit_code_2(tmp_path, words):
    command, _ = options.commands()[words]
    required = ["x" for parameter in command.params if parameter.param_type_name == "argument" and parameter.required]
    for option in (candidate for candidate in ALL if candidate.command == words):
        for value in itertools.islice(option.outside(), 4):
            done = tcbench(tmp_path, *words, *required, f"{option.name}={value}")
            assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), (option.name, value, done)
            assert done.err.startswith("tcbench: error: ") and option.name in done.err
    assert not [*tmp_path.iterdir()]


def test_each_field_of_a_selection_is_an_option_and_one_written_as_words_is_read_as_itself():
    chosen = Selection(
        batch_sizes=(4, 8),
        ranks=(1, 2),
        configs=("fp32", "fp16*"),
        device="cpu",
        input=Input(kind="modelled", images_per_s=2000.0),
        models=("resnet18", "alexnet"),
        image_size=64,
        trials=3,
        budget_s=0.5,
        target=0.03,
        max_time_s=7.0,
        timeout_s=90.0,
        fresh_autotune=True,
        tuning_budget_s=5.25,
        seed=7,
        threads=1,
        host_speed=0.5,
        launcher="mpirun -np {n}",
    )
    assert list(SELECTION) == [field.name for field in dataclasses.fields(Selection)]
    run = get_command(app).commands["run"]
    parent = get_command(app).make_context("tcbench", ["list"], resilient_parsing=True)

    def read(words: list[str]) -> Selection:
        params = run.make_context("run", words, parent=parent).params
        return Selection(**{name: field.read(params[name]) for name, field in SELECTION.items()})

    assert read(words(chosen)) == chosen
    assert words(read([])) == []
    for source in (Input(kind="synthetic"), Input(kind="folder", path="/data")):
        assert read(words(dataclasses.replace(chosen, input=source))).input == source
