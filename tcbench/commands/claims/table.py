"""The scorecard of `tcbench claims` in every format: the talk of 2018 next to this machine."""

import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tcbench.analysis.claims import EMULATED, OUTCOMES, BatchSizeOutcome, ClaimOutcome, EvaluatedClaim, Scorecard
from tcbench.core.claim import Claim
from tcbench.core.groups import grouped
from tcbench.core.record import TAKE_ENOUGH
from tcbench.show.bottlenecks import limit_sentence
from tcbench.show.document import document, fields
from tcbench.show.format import factor, number, rate
from tcbench.show.naming import code_name, is_simulated, measured_or_simulated
from tcbench.show.notes import Caution
from tcbench.show.page.page import AnyBlock, Data, Heading, Prose, Section, say
from tcbench.show.tables import COUNT, Badge, Column, Table
from tcbench.show.verdicts import STYLES

IN_2018 = "held"
"""The outcome of the talk's claims on the talk's own machine, a Tesla V100-16GB."""

BADGES: Mapping[ClaimOutcome, Badge] = {
    "holds": Badge("holds", "check", "good"),
    "does not hold": Badge("does not hold", "cross", "bad"),
    "undecided": Badge("undecided", "question", "warn"),
    "not measured": Badge("not measured", "gone"),
    "not testable here": Badge("not testable here", "gone"),
}


def title(card: Scorecard) -> str:
    """Return the scorecard's title: scenario, machine, device, network and images."""
    cell, environment = card.cell, card.environment
    device = f" ({environment.device_name})" if environment else ""
    images = f", {cell.model}, {cell.image_size}x{cell.image_size} pixels, {cell.input.label}"
    images = "" if cell.is_own else images
    ranks = f", {cell.ranks} ranks" if cell.ranks > 1 else ""
    code = f", {code_name(card.codes)}" if card.codes else ""
    return f"{card.scenario} on {card.machine or 'an unknown machine'}{device}{images}{ranks}{code}"


def tally(card: Scorecard) -> str:
    """Return the numbers of claims by outcome: "12 of 21 claims hold here, 3 do not, 1 is undecided, 5 are not
    measured", and if there are any, how many are not testable here."""
    if not card.claims:
        return "no claims: the scenario has no [[claim]] tables"
    n = len(card.claims)
    holds, fails, open_, unknown, never = map(card.count, OUTCOMES)
    return (
        f"{holds} of {n} claim{'s' * (n > 1)} hold{'s' * (holds == 1)} here, {fails} do{'es' * (fails == 1)} not, "
        f"{open_} {_is(open_)} undecided, {unknown} {_is(unknown)} not measured"
        + (f", {never} {_is(never)} not testable here" if never else "")
    )


def _is(n: int) -> str:
    return "is" if n == 1 else "are"


def table(card: Scorecard) -> Table[EvaluatedClaim]:
    """Return one row per claim, in the scenario's order."""

    def badge(evaluated: EvaluatedClaim) -> Badge:
        outcome = BADGES[evaluated.outcome]
        return replace(outcome, word=f"{outcome.word} *") if evaluated.by_one_trial else outcome

    columns: list[Column[EvaluatedClaim]] = [
        Column("slide", lambda evaluated: evaluated.claim.slide, COUNT, wraps=True),
        Column("claim", lambda evaluated: evaluated.claim.says, ratio=5),
        Column("2018", lambda evaluated: None if evaluated.claim.slide is None else IN_2018, wraps=False),
        Column("here", badge, wraps=False, style=lambda evaluated: STYLES[BADGES[evaluated.outcome].tone] or "dim"),
        Column(measured_or_simulated([card.environment]), measured, ratio=6),
    ]
    return Table(columns, card.claims, f"Claims, {title(card)}")


def notes(cards: Sequence[Scorecard]) -> list[str]:
    """Return the notes on how to read the tables of these scorecards: only those that apply to some claim."""
    lines: list[str] = []
    claims = [evaluated for card in cards for evaluated in card.claims]
    outcomes = [outcome for evaluated in claims for outcome in evaluated.batch_sizes]
    if any(outcome.unit == "steps" for outcome in outcomes):
        lines.append(Caution(f"*: over the steps of one trial; {TAKE_ENOUGH}."))
    if any(outcome.ratio is not None for outcome in outcomes):
        lines.append("(a to b): 95% interval; a claim is decided only if all of it agrees.")
    if any(outcome.why.endswith(EMULATED) for outcome in outcomes):
        lines.append("emulated: this processor lacks instructions for that precision, so its speed here means nothing.")
    if any(evaluated.claim.slide is not None for evaluated in claims):
        lines.append("2018: on the talk's Tesla V100-16GB, at the batch sizes of the slide.")
    return lines


def missing(cards: Sequence[Scorecard]) -> list[str]:
    """Return one line per command that measures what is missing."""
    commands = dict.fromkeys(command for card in cards for command in card.commands)
    return [f"To measure what is missing: {command}" for command in commands]


def claims_section(cards: Sequence[Scorecard]) -> Section | None:
    """Return the report's section with one scorecard per setting, or None if no scenario makes claims."""
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


def markdown(cards: Sequence[Scorecard]) -> str:
    """Return the scorecards as Markdown tables for GitHub. No text of a record or scenario can become markup."""
    lines: list[str] = []
    for card in cards:
        lines += [f"### {_escaped(title(card))}", "", f"{_escaped(tally(card))}.", ""]
        if card.claims:
            lines += [*table(card).markdown(_escaped), ""]
    return "\n".join([*lines, *(f"- {_escaped(line)}" for line in [*notes(cards), *missing(cards)])])


def to_json(cards: Sequence[Scorecard]) -> str:
    """Return the scorecards as JSON of version 2, in which an open limit is null. In version 1, a ratio over several
    trials was the one at the median step."""
    lines = [*notes(cards), *missing(cards)]
    return document("tcbench-claims", 2, scorecards=list(map(_card_json, cards)), notes=lines)


def _card_json(card: Scorecard) -> dict[str, Any]:
    """Return one scorecard as JSON fields."""
    return {
        **fields(card, "scenario machine device=cell.device ranks=cell.ranks device_name=environment.device_name"),
        "simulated": is_simulated(card.environment),
        **fields(card, "image_size=cell.image_size input=cell.input.kind low_precision=low"),
        "counts": {outcome: card.count(outcome) for outcome in OUTCOMES},
        "claims": list(map(_claim_json, card.claims)),
        "commands": card.commands,
    }


_CLAIM_KEYS = {"quantifier": "at"}
"""JSON keys that differ from the names of a claim's fields."""


def _claim_json(evaluated: EvaluatedClaim) -> dict[str, Any]:
    """Return one claim with its outcomes as JSON fields."""
    claim = evaluated.claim
    return {
        **{_CLAIM_KEYS.get(name, name): fact for name, fact in dataclasses.asdict(claim).items()},
        "left": str(claim.left),
        "right": None if claim.right is None else str(claim.right),
        "batch_sizes": claim.batch_sizes,
        "in_2018": None if claim.slide is None else IN_2018,
        **fields(evaluated, "outcome why by_one_trial command"),
        "at_batch_sizes": [
            fields(outcome, "batch_size outcome")
            | {"why": _why(outcome)}
            | fields(outcome, "left right ratio unit more_trials out_of_memory")
            | {"missing": [{"config": config, "batch_size": size} for config, size in outcome.missing]}
            for outcome in evaluated.batch_sizes
        ],
    }


def _why(outcome: BatchSizeOutcome) -> str:
    """Return the reason for an outcome in words: what limits the cell, if the claim is about that."""
    return limit_sentence(outcome.bottleneck) if outcome.bottleneck else outcome.why


def measured(evaluated: EvaluatedClaim) -> str:
    """Return the figures behind a claim's outcome for each batch size; the reason if there are none. Batch sizes with
    equal figures are joined: "8, 16: 1.52× (1.49 to 1.55)"."""
    if not evaluated.batch_sizes:
        return evaluated.why
    sizes_by_text = grouped(
        (_figures(evaluated.claim, outcome), outcome.batch_size) for outcome in evaluated.batch_sizes
    )
    return "; ".join(f"{', '.join(map(str, sizes))}: {text}" for text, sizes in sizes_by_text.items())


def _figures(claim: Claim, outcome: BatchSizeOutcome) -> str:
    """Return the ratio at one batch size with its interval, "1.52× (1.49 to 1.55)".

    A limit of the claim is added if the interval includes it, the configs if the claim is about the best of several,
    and the reason of the outcome unless it rests on one trial."""
    parts = []
    if (interval := outcome.ratio) is not None:
        value, low, high = map(number, (interval.value, interval.low, interval.high))
        ratio = f"{value}× ({low} to {high if interval.high < 1000 else 'any'})"
        limits = [limit for limit in (claim.least, claim.most) if limit not in (None, 1.0) and interval.holds(limit)]
        if claim.images_per_s is not None:
            ratio = f"{rate(interval.value * claim.images_per_s)} images/s, {ratio}"
        sides = ((claim.left, outcome.left), (claim.right, outcome.right))
        chosen = [name or "" for side, name in sides if side is not None and side.best]
        parts.append(ratio + (f" by {' over '.join(chosen)}" if chosen else ""))
        parts += [f"the limit is {factor(limit)}" for limit in limits]
    if outcome.unit != "steps":  # for one trial, a note below the table gives the reason
        parts += filter(None, [_why(outcome)])
    return ", ".join(parts)


def _escaped(text: str) -> str:
    """Return the text with everything escaped that Markdown or HTML would interpret."""
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("@", "&#64;")
    return re.sub(r"([\\`*_\[\]|~$#!])", r"\\\1", text)
