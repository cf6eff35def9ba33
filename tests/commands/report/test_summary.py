import dataclasses
import re

import factories
import msgspec
import pytest
import reports

from tcbench.analysis.compare import compare
from tcbench.analysis.stats import Interval
from tcbench.commands.explain.chart import would_help
from tcbench.commands.report.build import Compared, build
from tcbench.core.record import TAKE_ENOUGH, Input
from tcbench.show.page.page import FactList, Notice, Points


def words(paragraph) -> str:
    return "".join(piece.text for piece in paragraph).replace("\u00a0", " ")


def blocks(results) -> list:
    [section] = [section for section in build(results).sections if section.id == "summary"]
    return section.blocks


def summary_lines(results) -> list[str]:
    """The answers, paragraphs and points of the summary, in order."""
    lines = []
    for block in blocks(results):
        if isinstance(block, FactList):
            lines += [f"{name}: {words(answer)}" for name, answer in block.pairs]
        elif isinstance(block, Points):
            lines += [f"[{badge.word}] {words(paragraph)}" for badge, paragraph in block.items]
        elif isinstance(block, Notice):
            lines += [words(block.paragraph), *block.details]
    return lines


def test_a_reader_of_nothing_else_learns_what_brought_it_what_holds_it_back_what_would_help_and_how_sure():
    results = reports.results(reports.ladders(5))
    assert words(build(results).lead) == (
        "The fastest of 20 cells is fp32 + dali + batched + nhwc + fused + static_graph at batch size 8: 78.7 images/s "
        "± 1.3%, 1.76× fp32 (1.73× to 1.78×)."
    )
    assert summary_lines(results) == [
        "gained by: + nhwc + fused 1.45×, + static_graph 1.11×, + dali 1.10×; undecided: + batched 0.99×.",
        "limited by: compute-bound: the CPU computes 91 ms per step (forward 30 ms, backward 51 ms, update 10 ms); "
        "input is prepared in parallel.",
        "try next: + cuda_graph: expected gain unknown; tried and slower: + fp16 0.50×.",
        "certainty: fp32 + dali + batched + nhwc + fused at batch size 8 is certainly slower: 70.6 images/s; no factor "
        "over fp32 is undecided.",
    ]
    without = [dataclasses.replace(explanation, advice=None) for explanation in results.explanations]
    assert summary_lines(dataclasses.replace(results, explanations=tuple(without)))[2].startswith(
        "try next: no known rung is expected to make it faster; batch size 8 is 1.21× as fast as 4: a larger one may "
    )


@pytest.mark.parametrize(
    ("rates", "trials", "expected"),
    [
        ({"fp32": 40.0, "fp16": 40.1}, 5, "certainty: fp32 at batch size 4 may be as fast: 4"),
        ({"fp32": 40.0, "fp16": 40.1}, 5, "1 of 1 factor over fp32 is undecided."),
        ({"fp32": 40.0, "fp32+batched": 30.0}, 1, f"trains like fp32.\ncertainty: not judged: {TAKE_ENOUGH}."),
        ({"fp32": 20.0, "fp16": 30.0, "fp16+dali": 60.0}, 5, "gained by: + dali 2.00×, fp16 for fp32 1.50×."),
        ({"fp32": 40.0, "fp32+dali": 40.001}, 5, "gained by: no certain gain; undecided: + dali 1.0"),
        ({"fp32": 20.0, "fp32+dali": 15.0, "fp32+dali+batched": 60.0}, 5, "; slower: + dali 0.75×."),
        ({"fp32": 20.0, "fp32+kfac": 1.0, "fp32+batched": 12.0}, 5, "; tried and slower: + batched 0.60×."),
    ],
)
def test_what_brought_it_and_how_sure_it_is(rates, trials, expected):
    records = [
        record
        for config, rate in rates.items()
        for record in factories.make_trials(config, trials=trials, images_per_s=rate, spread=1e-4)
    ]
    assert expected in "\n".join(summary_lines(reports.results(records)))


@pytest.mark.parametrize(
    ("ratio", "trials", "says"),
    [
        (1.5, 5, "1 cell became better, none is confirmed worse."),
        (1.0, 1, "1 cell is not settled yet; none is confirmed worse."),
    ],
)
def test_a_comparison_that_found_no_loss_is_one_sentence(ratio, trials, says):
    before, after = (factories.make_trials(trials=trials, images_per_s=40 * x, seed=x) for x in (1, ratio))
    page = build(reports.results(after, compared=Compared(compare(before, after), "before")))
    assert words(page.lead) == f"Compared with before: {says}"


def test_what_is_expected_of_the_next_rung_has_its_limits_and_its_factor():
    [cell] = reports.results(factories.make_trials(images_per_s=40.0, spread=0.0)).explanations
    foreseen = dataclasses.replace(cell.advice, expected=Interval(60.0, 55.0, 65.0), evidence="")
    answer = words(would_help(dataclasses.replace(cell, advice=foreseen)))
    assert re.fullmatch(r"\+ .*: 60\.0 images/s expected \(55\.0 to 65\.0\), 1\.50× the present rate\.", answer)
    nothing = dataclasses.replace(cell, advice=None)
    assert words(would_help(nothing, "sleep")) == "no known rung is expected to make it faster; sleep."
    own_cell = msgspec.structs.replace(cell.summary.cell, input=Input(kind="own"))
    assert would_help(dataclasses.replace(nothing, summary=dataclasses.replace(cell.summary, cell=own_cell))) == ()


def test_what_failed_or_ran_partly_stands_with_its_reason():
    lines = summary_lines(reports.full())
    assert "[failed] 1 cell: fp16 + dynamic_scale at batch size 4. ValueError: the loss is nan" in lines
    assert "[partly] fp16 + dali + batched, batch size 8: only 5 of 6 trials succeeded." in lines
