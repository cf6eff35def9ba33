from html.parser import HTMLParser
from typing import Any

import factories
import msgspec
import pytest
from consoles import printed

from tcbench.analysis.claims import AtBatchSize, Evaluated, Scorecard
from tcbench.analysis.stats import Interval
from tcbench.core.claim import Claim, ClaimSide
from tcbench.core.text import plain
from tcbench.views import claims as view


def make_evaluated(slide: int | None = 12, **changes: Any) -> Evaluated:
    claim = Claim("fp16 is faster", "faster", ClaimSide("fp16"), (4, 8), slide, ClaimSide("fp32"))
    at = (
        AtBatchSize(4, "holds", left="fp16", right="fp32", ratio=Interval(1.5, 1.4, 1.6), unit="trials"),
        AtBatchSize(8, "not measured", "fp32 out of memory", out_of_memory=True),
    )
    fields: dict[str, Any] = {"claim": claim, "outcome": "holds", "at": at}
    return Evaluated(**fields | changes)


def make_card(*claims: Evaluated, **changes: Any) -> Scorecard:
    cell = msgspec.structs.replace(factories.make_cell(), config="", batch_size=4)
    fields: dict[str, Any] = {
        "machine": "amd-epyc-2cpu",
        "environment": factories.make_environment(),
        "cell": cell,
        "scenario": "cpu",
        "claims": claims or (make_evaluated(),),
        "commands": ("tcbench run cpu --config fp16 --bs 8",),
    }
    return Scorecard(**fields | changes)


def shown(card: Scorecard) -> str:
    return printed(view.table(card))


def test_the_fastest_of_a_glob_is_named_and_a_stated_figure_is_told_in_images_per_s() -> None:
    at = (AtBatchSize(4, "holds", left="fp16+dali", right="fp32", ratio=Interval(2, 1.9, 2.1), unit="trials"),)
    best = Claim("s", "faster", ClaimSide("fp16*", best=True), (4,), right=ClaimSide("fp32"))
    assert view.measured(make_evaluated(claim=best, at=at)) == "4: 2× (1.9 to 2.1) by fp16+dali"
    stated = Claim("s", "about", ClaimSide("fp16+dali"), (4,), images_per_s=600.0)
    assert view.measured(make_evaluated(claim=stated, at=at)) == "4: 1200 images/s, 2× (1.9 to 2.1)"


# -------------------------------------------------------------------------------------------- what records may contain

NASTY = (
    "<script>alert(1)</script>",
    "a|b",
    "`x`",
    "[x](javascript:y)",
    "**b**",
    "a\nb| c",
    "\x1b[31mred",
    "a\\|b",
    "@all",
)


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


def cells_of(row: str) -> list[str]:
    """A Markdown table's row, split where GitHub splits it: at bars that no odd number of backslashes precedes."""
    cells, cell, backslashes = [], "", 0
    for c in row:
        if c == "|" and backslashes % 2 == 0:
            cells.append(cell)
            cell = ""
        else:
            cell += c
        backslashes = backslashes + 1 if c == "\\" else 0
    return [*cells, cell][1:-1]


@pytest.mark.parametrize("nasty", [plain(text) for text in NASTY])
def test_markdown_makes_no_markup_of_what_records_and_scenarios_say(nasty: str) -> None:
    at = AtBatchSize(4, "not measured", f"{nasty} failed: {nasty}")
    claim = Claim(nasty, "faster", ClaimSide(nasty), (4,), 12, ClaimSide("fp32"))
    environment = factories.make_environment(machine=nasty, device_name=nasty)
    command = f"tcbench run --config {nasty}"
    card = make_card(
        make_evaluated(claim=claim, at=(at,)),
        machine=nasty,
        environment=environment,
        scenario=nasty,
        commands=(command,),
    )
    text = view.markdown([card])
    parser = _Tags()
    parser.feed(text)
    assert parser.tags == []
    assert "<" not in text
    assert "javascript" not in text or r"\[x\](javascript" in text
    assert "\x1b" not in text
    assert "@all" not in text
    for mark in ("`", "**"):
        assert text.replace(f"\\{mark[0]}", "").count(mark) == 0
    head, rule, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 1
    assert [len(cells_of(line)) for line in (head, rule, *rows)] == [5, 5, 5]
    assert "\x1b" not in shown(card) + view.title(card)
