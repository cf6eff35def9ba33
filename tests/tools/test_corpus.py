"""The corpus: what commands print and draw is what is kept, and the tool sees a difference in each kind of output."""

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
    corpus.write(tmp_path, group, whole=False)
    differing = corpus.compare(KEPT / group, tmp_path / group)
    assert not differing, f"{capsys.readouterr().out}\n{ACCEPT}"
