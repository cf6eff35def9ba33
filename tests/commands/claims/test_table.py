import re

import factories
import pytest
from consoles import printed

from tcbench.analysis.claims import BatchSizeOutcome, EvaluatedClaim, Scorecard
from tcbench.analysis.stats import Interval
from tcbench.commands.claims import table as view
from tcbench.core.claim import Claim, ClaimSide
from tcbench.core.text import plain


def test_the_fastest_of_a_glob_is_named_and_a_stated_figure_is_told_in_images_per_s() -> None:
    outcomes = (
        BatchSizeOutcome(4, "holds", left="fp16+dali", right="fp32", ratio=Interval(2, 1.9, 2.1), unit="trials"),
    )
    best = Claim("s", "faster", ClaimSide("fp16*", best=True), (4,), right=ClaimSide("fp32"))
    assert view.measured(EvaluatedClaim(best, "holds", outcomes)) == "4: 2.00× (1.90 to 2.10) by fp16+dali"
    third = Claim("s", "about", ClaimSide("fp16*", best=True), (4,), right=ClaimSide("fp32"), factor=2.2, margin=0.1)
    expected = "4: 2.00× (1.90 to 2.10) by fp16+dali, the limit is 2.00×"
    assert view.measured(EvaluatedClaim(third, "undecided", outcomes)) == expected
    stated = Claim("s", "about", ClaimSide("fp16+dali"), (4,), images_per_s=600.0)
    assert view.measured(EvaluatedClaim(stated, "holds", outcomes)) == "4: 1200 images/s, 2.00× (1.90 to 2.10)"


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


@pytest.mark.parametrize("nasty", [plain(text) for text in NASTY])
def test_markdown_makes_no_markup_of_what_records_and_scenarios_say(nasty: str) -> None:
    outcome = BatchSizeOutcome(4, "not measured", f"{nasty} failed: {nasty}")
    claim = Claim(nasty, "faster", ClaimSide(nasty), (4,), 12, ClaimSide("fp32"))
    environment = factories.make_environment(machine=nasty, device_name=nasty)
    command = f"tcbench run --config {nasty}"
    claims = (EvaluatedClaim(claim, "holds", (outcome,)),)
    card = Scorecard(nasty, environment, factories.make_cell(), nasty, claims, (command,))
    text = view.markdown([card])
    assert "<" not in text
    assert "javascript" not in text or r"\[x\](javascript" in text
    assert "\x1b" not in text
    assert "@all" not in text
    for mark in ("`", "**"):
        assert text.replace(f"\\{mark[0]}", "").count(mark) == 0
    head, rule, *rows = [line for line in text.splitlines() if line.startswith("|")]
    assert len(rows) == 1
    # GitHub splits a row at bars that no odd number of backslashes precedes.
    assert [len(re.findall(r"((?:\\.|[^|\\])*)\|", line)[1:]) for line in (head, rule, *rows)] == [5, 5, 5]
    assert "\x1b" not in printed(view.table(card)) + view.title(card)
