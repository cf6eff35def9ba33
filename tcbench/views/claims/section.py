"""The scenario's claims: what the talk found in 2018, and what becomes of it here."""

from collections.abc import Sequence

from tcbench.analysis.claims import Scorecard
from tcbench.present.page.page import AnyBlock, Data, Heading, Prose, Section, say
from tcbench.views.claims.table import missing, notes, table, tally, title


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
        blocks.append(Data(table(card), notes=(*notes([card]), *missing([card]))))
    return Section("claims", "Claims", tuple(blocks))
