"""The section on bottlenecks: where a step's time goes, the verdict, and what to try next."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from tcbench.analysis.advice import Gain
from tcbench.analysis.bottleneck import VERDICTS, Bottleneck
from tcbench.analysis.explanation import Explanation
from tcbench.show.charts.bottlenecks import bottleneck_chart
from tcbench.show.explain import Stages, added, notes
from tcbench.show.format import counted, milliseconds, number
from tcbench.show.page import drawings
from tcbench.show.page.page import (
    AnyBlock,
    Badge,
    Field,
    Figure,
    Heading,
    Paragraph,
    Piece,
    Points,
    Section,
    Table,
    say,
    strong,
)
from tcbench.show.page.settings import Here, Settings
from tcbench.show.page.wording import (
    BOTTLENECK_BADGES,
    STATUS_BADGES,
    badge,
    columns,
    figure,
    kept_together,
    spaced,
)


def section(explanations: Sequence[Explanation], settings: Settings, ceiling: str | None) -> Section | None:
    """Setting by setting; None where no cell left a profiled pass. `ceiling`: whose arithmetic bounds what a rung can
    gain, None where nobody's does."""
    if not any(one.bottleneck for one in explanations):
        return None
    blocks: list[AnyBlock] = [Points(tuple(_counted(explanations)))]
    for place, here in enumerate(settings.here):
        cells = [one for one in explanations if one.summary.setting == here.setting]
        if not any(one.bottleneck for one in cells):
            continue
        if here.name:
            blocks.append(Heading(here.name))
        blocks.append(_figure(here, cells, notes(explanations, ceiling), f"bottlenecks-{place}"))
    return Section("bottlenecks", "What holds it back", tuple(blocks))


def _counted(explanations: Sequence[Explanation]) -> list[tuple[Badge | None, Paragraph]]:
    """The number of cells of each verdict, and the fastest of them."""
    cells = [(one.bottleneck.verdict, one) for one in explanations if one.bottleneck]
    counts = Counter(verdict for verdict, _ in cells)
    lines: list[tuple[Badge | None, Paragraph]] = []
    for verdict in VERDICTS:
        if not counts[verdict]:
            continue
        here = [one for its, one in cells if its == verdict]
        fastest = max(here, key=lambda one: one.bottleneck.images_per_s if one.bottleneck else 0.0)
        which: tuple[str | Piece, ...] = (": ", strong(spaced(fastest.summary.cell.label)))
        if len(here) > 1:
            which = (", the fastest of them ", strong(spaced(fastest.summary.cell.label)))
        lines.append((BOTTLENECK_BADGES[verdict], say(counted(counts[verdict], "cell"), *which)))
    return lines


def _figure(here: Here, cells: Sequence[Explanation], remarks: Sequence[str], prefix: str) -> Figure:
    title = "Where the host's time goes in a step" + (f", {here.name}" if here.name else "")
    return drawings.figure(lambda: bottleneck_chart(cells, title=""), title, prefix, _table(here, cells), remarks)


def _table(here: Here, cells: Sequence[Explanation]) -> Table:
    stages = Stages.of(cells)
    beside = (f"#{heading}" for heading in stages.headings)
    names = ("#batch", "config", "verdict", "#input", "#host", *beside, "#step", "#images/s", "next", "#at most")
    ordered = [one for size in here.batch_sizes for one in cells if one.summary.cell.batch_size == size]
    return Table(
        caption="What holds each cell back, and what to try next" + (f", {here.name}" if here.name else ""),
        columns=columns(*names, "#measured"),
        rows=tuple(_fields(one, stages) for one in ordered),
    )


def _fields(one: Explanation, stages: Stages) -> tuple[Field, ...]:
    cell, bottleneck = one.summary.cell, one.bottleneck
    head = figure(cell.batch_size, str(cell.batch_size)), Field(cell.config)
    if bottleneck is None:
        blank = (Field(),) * (7 + len(stages.headings))
        return (*head, badge(STATUS_BADGES[one.summary.status]), *blank)
    return (*head, badge(BOTTLENECK_BADGES[bottleneck.verdict]), *_needs(bottleneck, stages), *_advice(one.advice))


def _needs(bottleneck: Bottleneck, stages: Stages) -> tuple[Field, ...]:
    needs = bottleneck.needs
    input_ = Field("beside") if needs.input_s is None else figure(needs.input_s, milliseconds(needs.input_s))
    return (
        input_,
        figure(needs.host_s, milliseconds(needs.host_s)),
        *(figure(s, None if s is None else milliseconds(s)) for s in stages.needs_s(needs)),
        figure(bottleneck.step_s, milliseconds(bottleneck.step_s)),
        figure(bottleneck.images_per_s),
    )


def _advice(gain: Gain | None) -> tuple[Field, ...]:
    if gain is None:
        return Field("none known"), Field(), Field()
    at_most = gain.images_per_s_at_most
    return (
        Field(added(gain)),
        figure(at_most) if math.isfinite(at_most) else Field("any"),
        figure(gain.measured_images_per_s),
    )


def next_sentence(one: Explanation) -> Paragraph:
    """A cell's bottleneck and the rung to try next, in words."""
    bottleneck = one.bottleneck
    if bottleneck is None:
        return say(f"What holds {one.summary.cell.label} back is not known: it left no profiled pass.")
    parts: list[str | Piece] = ["It is ", strong(bottleneck.verdict), f": {bottleneck.sentence.partition(': ')[2]}."]
    if one.advice is None:
        return say(*parts, " No rung that is known here would help.")
    advice = one.advice
    ceiling = f"at most {number(advice.images_per_s_at_most)}" if math.isfinite(advice.images_per_s_at_most) else "any"
    name = strong(kept_together(added(advice)))
    if advice.measured_images_per_s is None:
        return say(*parts, " Next to try: ", name, f", by the pipeline model {ceiling} images/s.")
    was = number(advice.measured_images_per_s)
    return say(*parts, " ", name, f" would help: by the pipeline model {ceiling} images/s, measured {was}.")
