"""Whatever is written can be drawn."""

from __future__ import annotations

import pytest
from views.plots.charts import TALK, assert_tidy, run, words

from tcbench.views import plots
from tcbench.views.plots import text


@pytest.mark.parametrize("title", [TALK, "$x_1$ costs 5$", "a very long title " * 12, ""])
def test_any_title_is_written_or_replaced(title: str) -> None:
    assert_tidy(plots.throughput_chart(run(("fp32",), (4,)), title=title, subtitle=title))


def test_without_a_japanese_font_the_scenarios_name_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "has_glyph", lambda character: ord(character) < 0x3000)
    assert "cpu" in words(plots.throughput_chart(run(("fp32",), (4,)), title=TALK))
    monkeypatch.setattr(text, "has_glyph", lambda character: True)
    assert text.heading(TALK, "cpu") == TALK
