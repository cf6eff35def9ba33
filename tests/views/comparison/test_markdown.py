import html
import re

import factories
import pytest
from comparisons import sides

from tcbench.analysis.compare import compare
from tcbench.views.comparison.markdown import MOST_CHARACTERS, escaped, markdown


@pytest.mark.parametrize("text", ["<script>", "a|b", "fp32+dali_x", "`x`", "_x_", "5 % & é 日本"])
def test_what_is_escaped_reads_as_it_was(text):
    assert html.unescape(escaped(text)) == text


def test_it_never_grows_beyond_what_a_comment_holds():
    base, current = sides({f"config-{n}-{'x' * 200}": 0.9 for n in range(300)}, trials=2)
    text = markdown(compare(base, current))
    assert 50_000 < len(text) <= MOST_CHARACTERS
    assert re.search(r"and \d+ more, for which there is no room", text)
    assert text.count("<details>") == text.count("</details>")


def test_a_long_reason_is_cut():
    base = factories.make_trials()
    current = [factories.make_record(status="failed", reason="x" * 10_000)]
    assert len(markdown(compare(base, current))) < 2000


def test_ranks_stand_beside_the_batch_size():
    cell = factories.make_cell(ranks=2)
    trials = factories.make_trials(cell=cell, trials=3)
    text = markdown(compare(trials, trials))
    assert "| <code>fp32</code> | 4, 2 ranks | throughput" in text
