"""The text output of `tcbench explain`: a table of cells with the limit of each, notes, and JSON. Also the description
of a timeline in lines, for commands that show one."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from rich.text import Text

from tcbench.analysis.advice import Gain
from tcbench.analysis.bottleneck import COSTLIEST, INPUT_PHASES, Bottleneck
from tcbench.analysis.explanation import Explanation
from tcbench.analysis.phases import ALLREDUCE
from tcbench.commands.roofline.roofline import PartCost, phase_parts, precision_of
from tcbench.core.groups import grouped, summed
from tcbench.core.record import TAKE_ENOUGH
from tcbench.core.timeline import Timeline
from tcbench.engine.api import model_of
from tcbench.run import ceilings
from tcbench.show.bottlenecks import doubt_words, doubtful, limit_sentence, limit_words
from tcbench.show.cells import outlier_lines
from tcbench.show.document import document, fields
from tcbench.show.format import factor, listed, milliseconds, number, percent, rate, size
from tcbench.show.naming import is_simulated, measured_or_simulated, rate_unit, setting_headings, stack_name
from tcbench.show.notes import Caution
from tcbench.show.sides import first_few
from tcbench.show.tables import FACTOR, RATE, SECONDS, WHOLE_SHARE, Column, ConfigTable, Table, Words, cell_columns

_APART = (*INPUT_PHASES, ALLREDUCE)
"""Phases that have a column of their own."""
_KINDS = 6
"""Number of kinds of layers that are named."""


def group_by_setting(explanations: Sequence[Explanation]) -> list[tuple[str, list[Explanation]]]:
    """Return the cells of each setting, under a heading that distinguishes it; the heading of a single setting is
    empty."""
    names = setting_headings([explanation.summary for explanation in explanations])
    return list(grouped(zip(names, explanations, strict=True)).items())


def table(explanations: Sequence[Explanation]) -> ConfigTable[Explanation]:
    """Return a table with a row per cell: its verdict, the time that each stage needs, and the next rung with its
    figures."""
    return ConfigTable(
        [
            Column("verdict", lambda row: row.bottleneck and limit_words(row.bottleneck), wraps=False),
            *stage_columns(explanations),
            *speed_columns(explanations),
            Column("next", lambda row: _next_rung(row, with_figures=True), width=14),
        ],
        explanations,
        cell=lambda row: row.summary.cell,
        why_no_figures=lambda row: None if row.bottleneck else row.summary.status,
        min_width=16,
    )


def stage_columns(explanations: Sequence[Explanation]) -> tuple[Column[Explanation], ...]:
    """Return the columns with the time per step that each stage needs: input, host and GPU, or a CPU's phases; the
    all-reduce if any cell has several ranks; and the whole step."""
    bottlenecks = [row.bottleneck for row in explanations if row.bottleneck is not None]

    def column(heading: str, seconds: Callable[[Bottleneck], float | str | None]) -> Column[Explanation]:
        return Column(heading, lambda row: row.bottleneck and seconds(row.bottleneck), SECONDS, spare=True)

    def phase_column(name: str) -> Column[Explanation]:
        return column(name, lambda b: next((p.host_s for p in b.phases if p.name == name), None))

    columns = [column("input", lambda b: "async" if b.needs.input_s is None else b.needs.input_s)]
    if any(b.on_gpu for b in bottlenecks):
        columns += [column("host", lambda b: b.needs.host_s), column("GPU", lambda b: b.needs.gpu_s)]
    else:
        columns += map(
            phase_column, dict.fromkeys(p.name for b in bottlenecks for p in b.phases if p.name not in _APART)
        )
    if any(b.ranks > 1 for b in bottlenecks):
        columns.append(column("all-reduce", lambda b: b.needs.network_s or None))
    return (*columns, column("step", lambda b: b.step_s))


def speed_columns(explanations: Sequence[Explanation]) -> tuple[Column[Explanation], ...]:
    """Return the column with each cell's throughput, and one with its FLOP utilisation if any cell has one."""
    unit = rate_unit(row.summary.cell for row in explanations)
    return (
        Column(unit, lambda row: row.bottleneck and row.bottleneck.images_per_s, RATE),
        *(
            [Column[Explanation]("FLOPs", flop_utilisation, WHOLE_SHARE)]
            if any(map(flop_utilisation, explanations))
            else []
        ),
    )


def advice_columns(explanations: Sequence[Explanation]) -> tuple[Column[Explanation], ...]:
    """Return the columns with the rung to try next, its expected and its measured throughput. Columns without any value
    are left out."""
    ran = measured_or_simulated(row.summary.environment for row in explanations)
    rates: dict[str, Callable[[Explanation], Any]] = {
        "expected": lambda row: (gain := row.advice or row.undecided) and gain.expected,
        ran: lambda row: (gain := row.advice or row.undecided) and gain.measured_images_per_s,
    }
    if all(row.summary.cell.is_own and not row.advice and not row.undecided for row in explanations):
        return ()  # no rung is known for the user's own code, and phases need the room
    return (
        Column("next", lambda row: row.bottleneck and _next_rung(row), wraps=True),
        *(Column(heading, figure, RATE) for heading, figure in rates.items() if any(map(figure, explanations))),
    )


def flop_utilisation(explanation: Explanation) -> float | None:
    """Return the rate of declared FLOPs as a share of the device's ceiling; None if either is unknown."""
    summary = explanation.summary
    limits = ceilings.recorded_ceilings(summary) if summary.gflops_s else None
    if summary.gflops_s is None or limits is None:
        return None
    return summary.gflops_s * 1e9 / summary.cell.ranks / limits.peak_flops_s(precision_of(summary.cell.rungs))


class BelowRoof(NamedTuple):
    """The phase of a CPU's step that takes longest beyond the least time that the machine's ceilings allow.

    `share` is the share of the ceiling that this phase reaches, and `least_s` the sum of the least times of all
    computing phases of the step."""

    phase: str
    share: float
    least_s: float


def below_roof(explanation: Explanation) -> BelowRoof | None:
    """Return the phase of a cell that loses most time against the stored ceilings. None on a GPU, for an unsettled
    bottleneck, or if ceilings or work are unknown."""
    summary, bottleneck = explanation.summary, explanation.bottleneck
    if bottleneck is None or bottleneck.on_gpu or bottleneck.unsteady or model_of(summary.cell) is None:
        return None
    limits, precision = ceilings.recorded_ceilings(summary), precision_of(summary.cell.rungs)
    if limits is None:
        return None
    times_s = {phase.name: phase.host_s for phase in bottleneck.phases if phase.host_s > 0}
    bounds = (
        (part.name, part.least_s(limits, precision)) for part in phase_parts(summary.cell) if part.name in times_s
    )
    least = {name: min(least_s, times_s[name]) for name, least_s in bounds if least_s}
    phase = max(least, key=lambda name: times_s[name] - least[name], default=None)
    return BelowRoof(phase, least[phase] / times_s[phase], sum(least.values())) if phase else None


def _possible_gain(explanations: Sequence[Explanation]) -> list[str]:
    """Return a note on how much faster the machine's ceilings allow the fastest cell to be.

    If no ceilings are stored, the note says how to measure those of a CPU. Empty if no known network ran on a CPU."""
    rated = [(e.bottleneck.images_per_s, e, below) for e in explanations if e.bottleneck and (below := below_roof(e))]
    if not rated:
        on_cpu = any(e.bottleneck and not e.bottleneck.on_gpu and model_of(e.summary.cell) for e in explanations)
        return [
            "Run `tcbench roofline` to measure this machine's ceilings; this note then shows the possible gain."
        ] * on_cpu
    _, fastest, below = max(rated, key=lambda pair: pair[0])
    needs_s = fastest.bottleneck.needs.host_s if fastest.bottleneck else 0.0
    return [
        f"Possible gain of the fastest cell, {fastest.summary.cell.label}: at most {factor(needs_s / below.least_s)}. "
        f"A step computes {milliseconds(needs_s)}, the machine's ceilings allow {milliseconds(below.least_s)}; most of "
        f"it is in {below.phase}, at {percent(below.share, 0)} of its ceiling (--details shows every cell).",
    ]


def _next_rung(explanation: Explanation, *, with_figures: bool = False) -> Text:
    """Return the rung to try next, or a tried one whose gain is undecided, or "none known"; then the slower rungs.
    `with_figures` adds the expected and the measured throughput."""
    gain = explanation.advice or explanation.undecided
    notes = [] if gain is explanation.advice else ["undecided"]
    if with_figures and gain and gain.expected:
        notes.append(f"expected {RATE.interval(gain.expected)}")
    if with_figures and gain and gain.measured_images_per_s is not None:
        notes.append(f"{measured_or_simulated([explanation.summary.environment])} {rate(gain.measured_images_per_s)}")
    figures = ", ".join(notes)
    words = Text("none known", style="dim") if gain is None else Words(rung_change(gain) + (figures and f": {figures}"))
    if slower := slower_rungs(explanation):
        words.append(f" ({slower})", style="dim")
    return words


def rung_change(gain: Gain) -> str:
    """Return the rungs that a gain adds or removes: "+ nhwc + fused"; "without im2col"."""
    return "+ " + " + ".join(gain.added) if gain.added else f"without {listed(gain.removed)}"


def slower_rungs(explanation: Explanation) -> str:
    """Return the rungs that were tried and are certainly slower: "slower: + batched 0.86×"; empty if there are none."""
    tried = [f"{rung_change(gain)} {factor(gain.ratio.value)}" for gain in explanation.slower if gain.ratio]
    return f"slower: {', '.join(tried)}" if tried else ""


def checks(explanations: Sequence[Explanation]) -> Table[_Checked] | None:
    """Return a table of the model's expectations against measurements, or None if there is nothing to check. Rows are
    configs that add rungs to another config."""
    rows = [(e, gain) for e in explanations for gain in e.checked if gain.expected is not None]
    # Only the smallest steps up from each config: a larger step is the sum of such steps.
    nearest = {cell: min(more) for cell, more in grouped((e.summary.cell, len(gain.added)) for e, gain in rows).items()}
    rows = [(e, gain) for e, gain in rows if len(gain.added) == nearest[e.summary.cell]]
    if not rows:
        return None
    ran = measured_or_simulated(e.summary.environment for e in explanations)
    unjudged = {e.summary.cell for e in explanations if e.summary.unit == "steps"}

    def pale(row: _Checked) -> str:
        """Return "dim" for a factor that is not certain: its interval includes 1, or it is from one trial's steps."""
        return "dim" if row[0].summary.cell in unjudged or (row[1].ratio and row[1].ratio.holds(1.0)) else ""

    cells = [e.summary.cell for e, _ in rows]
    columns: list[Column[_Checked]] = [
        *cell_columns(cells, lambda row: row[0].summary.cell),
        Column("from", lambda row: row[0].summary.cell.config),
        Column("adding", lambda row: rung_change(row[1])),
        Column(rate_unit(cells), lambda row: row[0].bottleneck and row[0].bottleneck.images_per_s, RATE),
        Column("expected", lambda row: row[1].expected, RATE),
        Column(ran, lambda row: row[1].measured_images_per_s, RATE),
        Column("factor", lambda row: row[1].ratio, FACTOR, style=pale),
    ]
    return Table(columns, rows)


_Checked = tuple[Explanation, Gain]
"""A cell, and the gain from a rung that was added to it."""


def sentences(explanations: Sequence[Explanation]) -> list[str]:
    """Return a line per cell with its verdict and stage times, and the phase farthest below its ceiling; for a cell
    without a profiled pass, the reason."""
    lines = []
    for e in explanations:
        sentence = limit_sentence(e.bottleneck) if e.bottleneck else e.summary.reason or "no profiled pass"
        below = below_roof(e)
        roof = f"; {below.phase} is at {percent(below.share, 0)} of its ceiling" if below else ""
        lines.append(f"{e.summary.cell.label}: {sentence}{roof}")
    return lines


def notes(explanations: Sequence[Explanation]) -> list[str]:
    """Return the notes that apply to these cells: outliers, the possible gain, and how to read the columns."""
    advice = [e.advice for e in explanations if e.advice and e.advice.evidence]
    evidence = grouped((gain.evidence, rung_change(gain)) for gain in advice)
    lines: list[str] = [*map(Caution, outlier_lines([e.summary for e in explanations])), *_possible_gain(explanations)]
    lines += [f"{listed(list(dict.fromkeys(names)))}: {words}." for words, names in evidence.items()]
    if unsteady := [e.summary.cell.label for e in explanations if e.bottleneck and e.bottleneck.unsteady]:
        lines.append(
            Caution(f"unsettled: one trial, whose mean depends on a few long steps: {first_few(unsteady, 3)}.")
        )
    if any(e.bottleneck and e.bottleneck.on_gpu for e in explanations):
        lines.append("input, host, GPU: what each needs per step without waiting.")
    if any(e.bottleneck and e.bottleneck.needs.input_s is None for e in explanations):
        lines.append("async: input is prepared in its own threads, and no step waits for it.")
    if any(map(flop_utilisation, explanations)):
        lines.append("FLOPs: the step's declared FLOP/s as a share of the ceiling that `tcbench roofline` measured.")
    if any(gain.expected for e in explanations for gain in e.gains):
        lines.append(
            "expected: from the times of the operations of a step, relative to this cell's own step; nine of ten lie "
            "within the limits. Empty if the model does not cover both configs."
        )
    if any(gain.expected and math.isnan(gain.expected.high) for e in explanations for gain in e.gains):
        lines.append(
            Caution("± unknown: the operations of a step were timed on a busy machine; the next call times them again.")
        )
    if any(e.checked and e.summary.unit == "steps" for e in explanations):
        lines.append(Caution(f"Not judged: {TAKE_ENOUGH}."))
    if any(e.bottleneck and e.bottleneck.ranks > 1 for e in explanations):
        lines.append(
            "With several ranks, times are those of the rank that the others wait for, throughput is that of all ranks."
        )
    if any(e.bottleneck and e.bottleneck.on_gpu and e.bottleneck.needs.gpu_s is None for e in explanations):
        lines.append("GPU: known only if it is busy for the whole step; `tcbench profile` shows how long it is busy.")
    return lines + doubtful((e.summary.cell.label, e.bottleneck) for e in explanations)


def cost_lines(costs: Sequence[PartCost]) -> list[str]:
    """Return lines that rank the COSTLIEST parts of a step, each with its share, time and ceiling, and, if there are
    layers, the kinds of layers. `costs` are sorted, the longest first; an empty list gives no lines."""
    if not costs:
        return []
    kinds = summed((cost.part.name.rpartition("/")[2], cost.share) for cost in costs)  # "conv" of "block3.c/conv"
    costs = costs[:COSTLIEST]
    lines = [f"costliest parts, together {percent(sum(cost.share for cost in costs), 0)} of a step:"]
    name_width, phase_width = (max(len(getattr(cost.part, label)) for cost in costs) for label in ("name", "phase"))
    for cost in costs:
        part, reached = cost.part, "" if cost.of_ceiling is None else f", {percent(cost.of_ceiling, 0)} of that reached"
        bound = f"bounded by {cost.bound}{reached}" if cost.bound else "unknown" if part.bytes else ""
        phase = "" if part.phase == part.name else part.phase
        line = f"  {percent(cost.share):>6}  {milliseconds(part.time_s or 0.0):>8}  {part.name:<{name_width}}  "
        lines.append(f"{line}{phase:<{phase_width}}  {bound}".rstrip())
    if any("/" in cost.part.name for cost in costs):
        ranked = sorted(kinds.items(), key=lambda kind: -kind[1])[:_KINDS]
        lines.append(f"by kind: {', '.join(f'{kind} {percent(share, 0)}' for kind, share in ranked)}")
    if any(cost.part.bytes and not cost.bound for cost in costs):
        lines.append("unknown: run `tcbench roofline` to measure this machine's ceilings")
    return lines


def timeline_lines(bottleneck: Bottleneck) -> list[str]:
    """Return lines that describe a timeline: verdict, phases and input; for a GPU also its idle times, and the kernels
    and copies of a step."""
    lines = [f"{bottleneck.label}: {limit_sentence(bottleneck)}"]
    phases = (
        f"{phase.name} {milliseconds(phase.host_s)}"
        + ("" if phase.device_s is None else f" (GPU {milliseconds(phase.device_s)})")
        for phase in bottleneck.phases
    )
    steps = f"{bottleneck.steps} steps of {milliseconds(bottleneck.step_s)}"
    lines.append(f"phases, per step: {', '.join(phases)}; {steps}")
    if bottleneck.io_overlap is not None:
        lines.append(f"input: {percent(bottleneck.io_overlap, 0)} of its work overlaps with other work")
    device = bottleneck.device
    if device is None:
        return lines
    idle = device.idle
    lines.append(
        f"GPU: busy {percent(device.busy_share, 0)}; idle, per step: {milliseconds(idle.launching_s)} while the host "
        f"launches, {milliseconds(idle.input_s)} for input, {milliseconds(idle.synchronising_s)} synchronising, "
        f"{milliseconds(idle.other_s)} otherwise"
    )
    if bottleneck.waits_for_gpu_s is not None:
        lines.append(f"host: waits {milliseconds(bottleneck.waits_for_gpu_s)} per step for the GPU")
    moved = "" if device.copied_bytes is None else f" ({size(round(device.copied_bytes))})"
    lines.append(f"per step: {number(device.kernels_per_step)} kernels, {number(device.copies_per_step)} copies{moved}")
    lines += [
        f"  {percent(cost.share):>6}  {milliseconds(cost.time_s):>8}  {number(cost.per_step):>6} x  {cost.name}"
        for cost in device.costliest
    ]
    return lines


def to_json(explanations: Sequence[Explanation]) -> str:
    """Return everything as JSON, with units in the names.

    In version 1, `gains` had bounds in place of `expected`: `step_at_least_s` and `images_per_s_at_most`."""
    cells = [_cell_json(explanation) for explanation in explanations]
    return document("tcbench-explain", 2, cells=cells, notes=notes(explanations))


_PART = "name=part.name phase=part.phase time_s=part.time_s flops=part.flops bytes=part.bytes"


def timelines_json(
    timelines: Sequence[Timeline], bottlenecks: Sequence[Bottleneck], costs: Iterable[Sequence[PartCost]]
) -> str:
    """Return timelines with their bottlenecks and costliest parts as JSON."""
    described = [
        {
            **fields(timeline, "label device_name"),
            "bottleneck": bottleneck_json(each),
            "costliest": [fields(cost, f"{_PART} share bound of_ceiling") for cost in parts[:COSTLIEST]],
        }
        for timeline, each, parts in zip(timelines, bottlenecks, costs, strict=True)
    ]
    return document("tcbench-explain", 2, timelines=described)


def _cell_json(explanation: Explanation) -> dict[str, Any]:
    """Return a cell's explanation as JSON."""
    summary = explanation.summary
    return {
        "machine": summary.machine,
        **fields(summary.cell, "model config batch_size ranks"),
        "image_size": None if summary.cell.is_own else summary.cell.image_size,
        **fields(summary.cell, "unit device"),
        "simulated": is_simulated(summary.environment),
        "key": summary.cell.key,
        "code": [fields(code, "project version commit") for code in summary.codes],
        "stack": stack_name(summary.codes) or None,
        **fields(summary, "status reason"),
        **({"flop_utilisation": flop_utilisation(explanation)} if summary.flops else {}),
        "bottleneck": explanation.bottleneck and bottleneck_json(explanation.bottleneck),
        "below_roof": (below := below_roof(explanation)) and below._asdict(),
        **fields(explanation, "next=advice gains"),
    }


def bottleneck_json(bottleneck: Bottleneck) -> dict[str, Any]:
    """Return the fields of a bottleneck, its verdict, and the verdict in words. The GPU's idle gaps are only
    counted."""
    fields = dataclasses.asdict(bottleneck)
    dominant = bottleneck.dominant
    fields |= {"dominant_phase": dominant.name if dominant else None, "doubtful": doubt_words(bottleneck) or None}
    fields |= {
        "verdict": bottleneck.verdict,
        "limit": limit_words(bottleneck),
        "sentence": limit_sentence(bottleneck),
        "images_per_s": bottleneck.images_per_s,
    }
    if bottleneck.device is not None:
        fields["device"] |= {"busy_share": bottleneck.device.busy_share, "gaps": len(bottleneck.device.gaps)}
    return fields
