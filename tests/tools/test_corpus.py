"""The corpus: what commands print and draw is what is kept, and the tool sees a difference in each kind of output."""

import re
from pathlib import Path

import corpus
import pytest

KEPT = Path(__file__).parents[1] / "corpus"
ACCEPT = "`python tools/corpus.py write tests/corpus` accepts what is meant"

MARKS = {"edges": (), "verdicts": (), "arithmetic": pytest.mark.slow}  # whose last digits are those of AVX-512


@pytest.mark.parametrize(
    "group", [pytest.param(name, marks=MARKS.get(name, pytest.mark.long)) for name in corpus.INPUTS]
)
def test_what_commands_print_and_draw_is_what_is_kept(tmp_path, capsys, group):
    corpus.write(tmp_path, group, full=False)
    differing = corpus.compare(KEPT / group, tmp_path / group)
    assert not differing, f"{capsys.readouterr().out}\n{ACCEPT}"


def test_an_entry_is_kept_whole_up_to_its_limit_and_of_a_longer_one_the_begin_of_each_part():
    entry = [line for name in "ab" for line in (f"--- {name}", *[name] * 199)]
    assert corpus.shortened(entry) == entry
    lines = corpus.shortened([*entry, "x" * 2001])
    assert [line for line in lines if line[0] != "…"] == [*entry[: corpus.HEAD], *entry[200 : 200 + corpus.HEAD]]
    assert lines[corpus.HEAD].startswith(f"… {200 - corpus.HEAD} more lines, ") and len(lines) == 2 * corpus.HEAD + 2
    assert corpus.shortened(["x" * 2001])[0].startswith("x" * 2000 + "… ")


def test_no_entry_depends_on_which_optional_packages_are_installed():
    sources = "".join(path.read_text("utf-8") for path in (corpus.CHECKOUT / "tcbench").rglob("*.py"))
    assert set(re.findall(r'Package\("([\w.]+)"', sources)) <= set(corpus.PACKAGES)
