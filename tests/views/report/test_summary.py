from __future__ import annotations

import re

import factories
import pytest
import reports

from tcbench.analysis.compare import compare
from tcbench.views.bottleneck.section import next_sentence
from tcbench.views.report.build import Compared, build


def said(results) -> list[str]:
    """The paragraphs and points of the summary, in order."""
    lines = []
    for block in build(results).sections[0].blocks:
        if block.kind == "prose":
            lines += ["".join(piece.text for piece in paragraph) for paragraph in block.paragraphs]
        elif block.kind == "points":
            lines += [f"[{badge.word}] " + "".join(p.text for p in paragraph) for badge, paragraph in block.items]
        elif block.kind == "notice":
            lines += block.details
    return [line.replace("\u00a0", " ") for line in lines]


def test_the_fastest_and_by_how_much():
    lines = said(reports.results(reports.ladders(5, sizes=(4,))))
    assert lines[0].startswith(
        "fp32 + dali + batched + nhwc + fused + static_graph is the fastest of 10 cells: 65.1 images/s at batch size 4 "
        "(95% interval "
    )
    assert ", 1.74× fp32 there (" in lines[0]
    assert lines[0].endswith("Next comes fp32 + dali + batched + nhwc + fused at batch size 4 with 58.7.")


def test_a_second_that_cannot_be_distinguished_may_be_as_fast():
    pairs = (("fp32", 40.0), ("fp16", 40.1))
    records = [record for config, rate in pairs for record in factories.make_trials(config, images_per_s=rate)]
    first = said(reports.results(records))[0]
    assert " at batch size 4 may be as fast: " in first


def test_what_each_rung_bought_cost_or_may_not_have_changed():
    lines = said(reports.results(reports.ladders(5, sizes=(4, 8))))
    assert lines[1] == (
        "On fp32 at batch size 8: + dali (1.10×), + nhwc + fused (1.45×) and + static_graph (1.11×) made it faster; "
        "+ batched (0.99×) may have changed nothing; in all 1.76×."
    )
    slower = [
        *factories.make_trials("fp32", images_per_s=40.0, spread=0.001),
        *factories.make_trials("fp32+dali", images_per_s=30.0, spread=0.001),
    ]
    assert said(reports.results(slower))[1] == "On fp32 at batch size 4: + dali (0.75×) made it slower; in all 0.75×."


@pytest.mark.parametrize(
    ("ratio", "trials", "says"),
    [
        (1.5, 5, "1 cell got better, none surely got worse."),
        (1.0, 1, "1 cell is not settled yet; none surely got worse."),
    ],
)
def test_a_comparison_that_found_no_loss_is_one_sentence(ratio, trials, says):
    before, after = (factories.make_trials(trials=trials, images_per_s=40 * x, seed=x) for x in (1, ratio))
    lines = said(reports.results(after, compared=Compared(compare(before, after), "before")))
    assert f"Compared with before: {says}" in lines


def test_many_ladders_are_not_all_summarised():
    lines = said(reports.many_configs(2))
    ladders = [line for line in lines if line.startswith("On ")]
    assert len(ladders) == 3
    assert any("more ladders: see “What each rung buys”." in line for line in lines)


def test_a_rung_that_was_tried_has_its_measurement():
    def line(images_per_s: float) -> str:
        records = [factories.make_record("fp32"), factories.make_record("fp32+batched", images_per_s=images_per_s)]
        explained = reports.results(records).explanations[0]
        return "".join(piece.text for piece in next_sentence(explained)).replace("\u00a0", " ")

    assert re.search(r" \+.batched helps: measured (42|43)\.\d images/s\.$", line(43.0))
    assert re.search(r" Tried already and slower: \+.batched 0\.7\d×\. Next to try: ", line(30.0))


def test_what_failed_stands_with_its_reason_those_of_one_reason_together():
    lines = said(reports.whole())
    assert (
        "[skipped] 2 cells: fp32 + opencv at batch sizes 4 and 8. opencv: needs the package cv2: pip install "
        "opencv-python-headless" in lines
    )
    assert "[failed] 1 cell: fp16 + dynamic_scale at batch size 4. ValueError: the loss is nan" in lines
    assert "[partly] fp16 + dali + batched, batch size 8: only 5 of 6 trials succeeded." in lines


def test_the_comparison_and_the_notes_on_files_come_last():
    *_, compared, note = said(reports.whole())
    assert compared == (
        "Compared with baseline main: 1 cell got worse (fp16, batch size 8); 1 cell is missing or fails (tf32, batch "
        "size 4)."
    )
    assert note == "results/cpu.jsonl: the last line is cut off and was left out; 105 records read"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("single", "One cell was run: fp32 at batch size 4: 40.0 images/s ± 0.5%."),
        ("failed", "No cell gave a number: all 2 failed or did not run."),
        (
            "machines",
            "The fastest is fp32 + dali + batched + nhwc + fused + static_graph at batch size 256: 3525 images/s ± "
            "2.7%, on Processor 3.",
        ),
    ],
)
def test_the_lead(name, expected):
    lead = "".join(piece.text for piece in build(getattr(reports, name)()).lead).replace("\u00a0", " ")
    assert lead.split(" ±")[0] == expected.split(" ±")[0]
    assert lead.endswith(expected[-8:])
