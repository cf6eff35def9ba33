"""Whatever is written can be drawn."""

import time

import pytest
from show.charts.charts import TALK, assert_tidy, run, words

from tcbench.commands.run.chart import throughput_chart
from tcbench.show.charts import text


@pytest.mark.parametrize("title", [TALK, "$x_1$ costs 5$", "a very long title " * 12, ""])
def test_any_title_is_written_or_replaced(title: str) -> None:
    assert_tidy(throughput_chart(run(("fp32",), (4,)), title=title, subtitle=title))


def test_without_a_japanese_font_the_scenarios_name_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "has_glyph", lambda character: ord(character) < 0x3000)
    assert "cpu" in words(throughput_chart(run(("fp32",), (4,)), title=TALK))
    monkeypatch.setattr(text, "has_glyph", lambda character: True)
    assert text.drawable_title(TALK, "cpu") == TALK


def test_a_font_without_bold_is_taken_as_it_is_without_a_word(monkeypatch, caplog) -> None:
    monkeypatch.setattr(text, "families", lambda: ("DejaVu Sans", "DejaVu Sans Display"))
    assert text.text_width("a bold line", 9.0, bold=True) > 0
    assert caplog.messages == []


def test_a_text_of_any_length_is_broken_and_shortened_in_a_few_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    measured = 0

    def text_width(line: str, size: float, bold: bool = False) -> float:
        nonlocal measured
        measured += 1
        return len(line) / 10

    monkeypatch.setattr(text, "text_width", text_width)
    assert text.wrapped("one two " + "three" * 4, text.LABEL, 1.0) == ["one two", "threethree", "threethree"]
    assert text.shortened("a" * 11, text.LABEL, 1.0) == "a" * 9 + "…"
    assert text.shortened("a" * 10, text.LABEL, 1.0) == "a" * 10
    assert text.shortened("ab", text.LABEL, 0.1) == ""
    lines = text.wrapped("a" * 100_000, text.LABEL, 1.0)
    assert lines[-1].endswith("…") and len("".join(lines)) == 4000
    assert text.shortened("a" * 100_000, text.LABEL, 1.0) == "a" * 9 + "…"
    assert measured < 10_000


def test_a_text_of_megabytes_is_measured_and_drawn_by_its_beginning():
    begin = time.process_time()
    assert text.text_width("x" * 5_000_000, 8.0) == text.text_width("x" * 4_000, 8.0)
    assert len(text.drawable("x" * 5_000_000)) == 4_000
    assert time.process_time() - begin < 5
