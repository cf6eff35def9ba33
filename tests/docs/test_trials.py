"""One number of trials is recommended, by help, tables and documents alike."""

import re
from pathlib import Path

import pytest

from tcbench.core.record import ENOUGH_TRIALS, TAKE_ENOUGH

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "tcbench").rglob("*.py")]


@pytest.mark.parametrize("folder", ["README.md", "docs", "tcbench"])
def test_whoever_names_a_number_of_trials_names_the_one_that_is_recommended(folder):
    pages = [page for page in PAGES if page.relative_to(ROOT).parts[0] == folder]
    assert pages
    mentions = {(page.name, int(n)) for page in pages for n in re.findall(r"--trials (\d+)", page.read_text("utf-8"))}
    quick_look = 1
    assert {n for _, n in mentions} <= {quick_look, ENOUGH_TRIALS}, mentions


def test_the_sentence_and_the_help_name_it():
    assert f"--trials {ENOUGH_TRIALS}" in TAKE_ENOUGH
    assert f"else {ENOUGH_TRIALS} if the budget allows" in (ROOT / "tcbench/show/options.py").read_text("utf-8")
