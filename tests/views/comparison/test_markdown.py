from __future__ import annotations

import html
import re

import factories
import pytest
from comparisons import NASTY, named, nasty, one_of_each, sides

from tcbench.analysis.compare import compare
from tcbench.present.sides import Labels
from tcbench.views.comparison.markdown import MOST_CHARACTERS, escaped, markdown

OURS = {"<code>", "</code>", "<details>", "</details>", "<summary>", "</summary>"}


def test_what_needs_attention_stands_above_what_is_folded_away():
    text = markdown(one_of_each(), Labels("v1", "v2"))
    assert text.startswith(
        "### tcbench: regression\n\n<code>v2</code> against <code>v1</code>: 1 regression, 1 missing"
    )
    above, folded = text.split("<details>", 1)
    for config in ("slower", "lost", "broken", "vague", "single", "faster"):
        assert f"| <code>{config}</code> | 4 |" in above
        assert f"<code>{config}</code>" not in folded
    assert "<code>same</code>" in folded and "<code>same</code>" not in above
    assert re.search(r"<code>slower</code> .* \| \*\*regression\*\* \| .*backward takes", above)
    assert "\n- throughput, geometric mean over " in above


def test_every_row_has_as_many_cells_as_its_header():
    text = markdown(one_of_each(("throughput", "memory")))
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) > 20
    assert {line.count("|") for line in rows} == {10}


@pytest.mark.parametrize("text", NASTY)
def test_nothing_of_a_record_becomes_structure(text):
    shown = markdown(nasty(text), named(text))
    assert set(re.findall(r"<[^>]*>", shown)) <= OURS
    assert "`" not in shown and "@" not in shown and "://" not in shown and "www." not in shown
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows} == {10}
    stars = re.sub(r"\*\*(regression|changed status|missing)\*\*", "", shown)
    assert not set("*[]\x1b\x07\u202e") & set(stars)
    assert len(re.findall(r"(?m)^#", shown)) == 1


@pytest.mark.parametrize("text", ["<script>", "a|b", "fp32+dali_x", "`x`", "_x_", "5 % & é 日本"])
def test_what_is_escaped_reads_as_it_was(text):
    assert html.unescape(escaped(text)) == text


def test_a_config_s_name_stays_readable_in_the_source():
    assert escaped("fp16+dali+static_graph") == "fp16+dali+static_graph"


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
