"""Each option's valid values stand where it is declared, and in one table; all others end with exit code 2."""

from __future__ import annotations

import itertools
from pathlib import Path

import options
import pytest
from command import tcbench

PAGE = Path(__file__).parents[2] / "docs" / "options.md"
ALL = options.options()


def test_the_page_says_of_every_option_what_it_takes():
    assert [(one.command, one.name) for one in ALL if not one.expected] == []
    same = PAGE.read_text(encoding="utf-8") == options.page()
    assert same, "docs/options.md is not what the program says: uv run python tests/options.py > docs/options.md"


@pytest.mark.parametrize("words", options.commands(), ids=" ".join)
def test_a_value_outside_of_an_options_range_is_one_line_that_names_it_and_exit_code_2(tmp_path, words):
    command, _ = options.commands()[words]
    required = ["x" for one in command.params if one.param_type_name == "argument" and one.required]
    for option in (one for one in ALL if one.command == words):
        for value in itertools.islice(option.outside(), 4):
            done = tcbench(tmp_path, *words, *required, f"{option.name}={value}")
            assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), (option.name, value, done)
            assert done.err.startswith("tcbench: error: ") and option.name in done.err
    assert not [*tmp_path.iterdir()]
