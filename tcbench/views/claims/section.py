"""The scenario's claims: what the talk found in 2018, and what becomes of it here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tcbench.analysis.claims import Evaluated, Outcome, Scorecard
from tcbench.present.page.page import AnyBlock, Badge, Column, Data, Field, Heading, Prose, Section, Table, say
from tcbench.present.page.wording import badge, figure
from tcbench.present.simulated import heading
from tcbench.views.claims.table import IN_2018, measured, notes, tally, title

_BADGES: Mapping[Outcome, Badge] = {
    "holds": Badge("holds", "check", "good"),
    "does not hold": Badge("does not hold", "cross", "bad"),
    "undecided": Badge("undecided", "question", "warn"),
    "not measured": Badge("not measured", "gone"),
    "not testable here": Badge("not testable here", "gone"),
}


def section(cards: Sequence[Scorecard]) -> Section | None:
    """A scorecard per setting; None where no scenario claims anything."""
    cards = [card for card in cards if card.claims]
    if not cards:
        return None
    blocks: list[AnyBlock] = []
    for card in cards:
        if len(cards) > 1:
            blocks.append(Heading(title(card)))
        blocks.append(Prose((say(f"{tally(card)}."),)))
        columns = (
            Column("slide", numeric=True),
            Column("claim", long=True),
            Column("2018"),
            Column("here"),
            Column(f"{heading([card.environment])}, by batch size", long=True),
        )
        table = Table(f"Claims, {title(card)}", columns, tuple(map(_fields, card.claims)))
        blocks.append(Data(table, notes=tuple(notes([card]))))
    return Section("claims", "Claims", tuple(blocks))


def _fields(one: Evaluated) -> tuple[Field, ...]:
    slide = one.claim.slide
    now = _BADGES[one.outcome]
    return (
        figure(slide, None if slide is None else str(slide)),
        Field(one.claim.says),
        Field("" if slide is None else IN_2018),
        badge(Badge(f"{now.word} *", now.icon, now.tone) if one.by_one_trial else now),
        Field(measured(one)),
    )
