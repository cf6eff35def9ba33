"""The text output of `tcbench numerics`: tables, notes, and the stored JSON."""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.text import Text

from tcbench.commands.numerics import judgement
from tcbench.commands.numerics.equivalence import Equivalence
from tcbench.commands.numerics.judgement import Margins, TechniqueCosts, TechniqueVerdict, Word
from tcbench.commands.numerics.loss_scales import LOST_AT_MOST, shares, zero_in_bfloat16
from tcbench.core.numerics import ALL_TECHNIQUES, DECAYS, KINDS, WARM_UP, Document, GradientKind, TrainingSetting
from tcbench.show.document import encoded, fields
from tcbench.show.format import factor, ratio, size
from tcbench.show.notes import Caution
from tcbench.show.tables import COUNT, Column, Kind, Table

_STYLES: dict[Word, str] = {
    "trains like fp32": "green",
    "trains like one rank": "green",
    "does not": "red",
    "undecided": "yellow",
}


def setting_line(document: Document) -> str:
    """Return the setting of the training, in one line."""
    s = document.setting
    data = "generated patterns" if s.data is None else s.data
    ranks = f"{s.ranks} ranks of {s.batch_size // s.ranks}: global " if s.ranks > 1 else ""
    return (
        f"{s.model} on {data}, {s.image_size}x{s.image_size}, {s.n_classes} classes, {ranks}batch size {s.batch_size}, "
        f"{s.steps} steps, learning rate {s.learning_rate:g}, momentum {s.momentum:g}, {s.device}"
    )


def about(document: Document) -> list[str]:
    """Return the facts below a chart: machine, model, data, settings, version."""
    setting, environment = document.setting, document.environment
    replicas, pixels = _factors(setting)
    also = f" × {pixels:.3g} for fewer pixels" if pixels > 1 else ""
    data = "generated patterns" if setting.data is None else f"images of {Path(setting.data).name}"
    return [
        *([environment.device_name] if environment else []),
        f"{setting.model} {setting.variant}",
        f"{setting.image_size} × {setting.image_size} {data}",
        f"batch size {setting.batch_size}",
        f"learning rate {setting.learning_rate:g}",
        "loss not divided"
        if setting.loss_divisor == 1
        else f"loss divided by {setting.loss_divisor:g}: {replicas:.5g} replicas{also}",
        *([f"tcbench {environment.tcbench}"] if environment else []),
    ]


def _factors(setting: TrainingSetting) -> tuple[float, float]:
    """Return the two factors of the loss divisor: the number of replicas, and the correction for a small feature map.

    Only the small network needs the correction, whose map is smaller than that of the scenario's model (see `plan`)."""
    replicas = setting.global_batch / setting.batch_size
    return replicas, setting.loss_divisor / replicas if setting.data is None else 1.0


SMALL_RATE = 1e-3
"""Learning rate at the end of a schedule: 0.1 divided by 10 twice (K. He et al., 2015, section 3.4)."""


def why_lines(document: Document) -> list[str]:
    """Return notes on why the setting has small gradients and updates, or how ranks and their learning rate are set."""
    s = document.setting
    if s.ranks > 1:
        n, rate, rank_batch = s.ranks, s.learning_rate, s.batch_size // s.ranks
        decays = ", ".join(str(round(part * s.steps)) for part in DECAYS)
        return [
            f"Ranks: one process takes the {n} shards of a step in turn, each with its own batch normalisation, and "
            "applies the mean of their gradients once: the computation of real ranks, without communication.",
            f"Linear scaling: {n} ranks use {n} times one rank's learning rate of {rate:g}. Warm-up: from {rate:g} to "
            f"{n * rate:g} over the first {max(1, round(WARM_UP * s.steps))} steps, as Goyal et al. (2017) do over 5 "
            f"of 90 epochs. All techniques divide it by 10 at steps {decays}.",
            f"One rank, its own batch and rate: {n} steps of {rank_batch} images for each step of {s.batch_size}.",
        ]
    lines = []
    replicas, pixels = _factors(s)
    if s.loss_divisor != 1:
        share = (
            f"one replica's share of the mean over a global batch of {s.global_batch:,} images (the talk's slide 34 "
            "has 4096 GPUs x 32)"
        )
        lines.append(
            f"Small gradients: the loss is divided by {s.loss_divisor:,g}, as {share}."
            if pixels <= 1
            else f"Small gradients: the loss is divided by {s.loss_divisor:,g} = {replicas:,.5g} x {pixels:.3g}. "
            f"{replicas:,.5g}: it is {share}. {pixels:.3g}: gradients are divided by the number of pixels of the "
            "last feature map, which has fewer here than in the scenario's model on ImageNet (rounded down to a power "
            "of two)."
        )
    if s.learning_rate <= SMALL_RATE:
        lines.append(
            f"Small updates: a learning rate of {s.learning_rate:g} is what a schedule ends with; a step changes "
            "a weight by less than half of float16's spacing, so without a float32 copy the weight rounds back."
        )
    else:
        lines.append(
            f"Learning rate {s.learning_rate:g}: updates are not as small as at the end of a schedule "
            f"({SMALL_RATE:g}), where float32 master weights are needed most."
        )
    return lines


def gradients_table(document: Document) -> Table[int]:
    """Return a table of the shares of gradients that become zero, subnormal or infinite at each loss scale (its
    log2)."""
    used = round(math.log2(document.static_scale))

    def share(kind: GradientKind, fate: str) -> Column[int]:
        """Return a column with the share of gradients of a kind that become zero, subnormal or infinite (`fate`)."""
        heading = f"{kind}: {fate}" if fate == "zero" else fate
        return Column(
            heading, lambda k: getattr(judgement.model_shares(document.gradients, k)[kind], fate), Kind(_share)
        )

    scale = Column[int]("loss scale", lambda k: f"{'static: ' if k == used else ''}2^{k}", COUNT, wraps=True)
    fates = ("zero", "subnormal", "infinite")
    return Table([scale, *(share(kind, fate) for kind in KINDS for fate in fates)], sorted({*judgement.SCALES, used}))


def _share(share: float) -> str:
    """Return a small share in percent."""
    if not share:
        return "0"
    return "<0.01%" if share < 1e-4 else f"{share:.2%}"


def safe_line(document: Document) -> str:
    """Return the sentence on the smallest and the largest safe loss scale."""
    scales, used = judgement.model_safe_scales(document.gradients), f"used: 2^{round(math.log2(document.static_scale))}"
    if scales.smallest is None or scales.largest is None:
        return f"No gradients were seen; {used}."
    if scales.smallest > scales.largest:
        return (
            f"No loss scale is safe: from 2^{scales.smallest} on at most {LOST_AT_MOST:.0%} of the gradients become "
            f"zero, but above 2^{scales.largest} some overflow; {used}."
        )
    n, steps = judgement.observed_steps(document.gradients), document.setting.steps
    return (
        f"Safe loss scales: 2^{scales.smallest} (at most {LOST_AT_MOST:.0%} of the gradients that are not zero become "
        f"zero) to 2^{scales.largest} (none overflows), from {n} of {steps} steps; {used}."
    )


def bfloat16_line(document: Document) -> str:
    """Return the sentence on gradients that are lost in bfloat16, which has float32's range of exponents."""
    lost = max(zero_in_bfloat16(judgement.model_magnitudes(document.gradients, kind)) for kind in KINDS)
    share = _share(lost) if lost else "none"
    return f"In bfloat16, which has float32's range, {share} of the gradients become zero without a loss scale."


def costs_table(document: Document) -> Table[TechniqueCosts]:
    """Return a table with each technique's time, memory and accuracy, and ratios to fp32. With many ranks in one
    process, time and memory mean nothing and are left out."""
    rows = judgement.costs(document)
    one_rank = document.setting.ranks == 1

    def ended(row: TechniqueCosts) -> bool:
        return None not in (row.train_time_s, row.peak_memory_bytes, row.accuracy)

    def column(heading: str, figure: Callable[[TechniqueCosts], object], kind: Kind = COUNT) -> Column[TechniqueCosts]:
        return Column(heading, lambda row: figure(row) if ended(row) else None, kind)

    def time_ratio(row: TechniqueCosts) -> str:
        return f"{factor(row.time_ratio.value)}, one seed" if row.time_ratio and row.ok == 1 else ratio(row.time_ratio)

    figures = [column("test loss", lambda row: row.test_loss, _LOSS), column("accuracy (95%)", _accuracy)]
    if any(row.memory_ratio is not None for row in rows) and one_rank:
        figures.insert(0, column("vs fp32", lambda row: row.memory_ratio, Kind("{:.2f}×".format)))
    if one_rank:
        figures[:0] = [
            column("time", lambda row: row.train_time_s, Kind("{:.1f} s".format)),
            column("vs fp32", time_ratio),
            column("memory", lambda row: row.peak_memory_bytes, Kind(lambda n_bytes: size(round(n_bytes)))),
        ]
    first = figures[0]
    figures[0] = replace(first, value=lambda row: first.value(row) if ended(row) else Text("did not finish", "red"))
    return Table([Column("technique", lambda row: ALL_TECHNIQUES[row.technique].label), *figures], rows)


def _accuracy(row: TechniqueCosts) -> str | None:
    """Return a technique's accuracy with its interval; None if no seed finished."""
    if row.accuracy is None:
        return None
    half = (row.accuracy.high - row.accuracy.low) / 2
    some = "" if row.ok == row.runs else f" ({row.ok} of {row.runs} seeds)"
    return f"{row.accuracy.value:.1%}" + (f" ± {100 * half:.1f}" if half else "") + some


_LOSS = Kind(lambda loss: f"{loss:.3f}" if loss < 1000 else f"{loss:.4g}")


def verdicts_table(document: Document, judged: Sequence[TechniqueVerdict]) -> Table[TechniqueVerdict]:
    """Return a table with each technique's verdict and its reason."""
    columns: list[Column[TechniqueVerdict]] = [
        Column("technique", lambda verdict: ALL_TECHNIQUES[verdict.technique].label),
        Column("verdict", lambda verdict: verdict.word, style=lambda verdict: _STYLES[verdict.word]),
        Column(f"difference from {document.setting.base.label}, same seed (90%)", lambda verdict: verdict.reason),
    ]
    return Table(columns, judged)


def notes(document: Document, margins: Margins) -> list[str]:
    """Return notes that explain the tables."""
    owner = "fp32's" if document.setting.ranks == 1 else "that of one rank"
    like = judgement.like_base(document)
    lines = [
        f"{like}: two one-sided tests at 5% over seeds show that the test loss is within {margins.loss:.0%} "
        f"and the accuracy within {100 * margins.accuracy:g} points of {owner}; undecided: more --seeds may settle it."
    ]
    if document.setting.ranks > 1:
        return lines
    if document.setting.device == "cpu":
        lines.append(
            Caution(
                "On the CPU, fp16 is stored in 16 bits but computed in fp32: its extra time is that of the conversions."
            )
        )
        lines.append(
            "memory: of the whole process, most of which is the program. Ratios: fp32's figure over the technique's, "
            "as in Yamamoto's table."
        )
    if any(run.technique == "dynamic" and run.status == "ok" for run in document.runs):
        runs = [run for run in document.runs if run.technique == "dynamic"]
        skipped = sum(run.skipped_steps for run in runs) / len(runs)
        ends = sorted({round(math.log2(run.last_scale)) for run in runs})
        shown = f"2^{ends[0]}" if len(ends) == 1 else f"2^{ends[0]} to 2^{ends[-1]}"
        begin = round(math.log2(runs[0].first_scale))
        lines.append(f"Dynamic scale: from 2^{begin} to {shown}, {skipped:.3g} steps skipped on average.")
    return lines


def to_json(document: Document, margins: Margins) -> str:
    """Return the document, with everything derived from it under "derived", which readers of documents ignore."""
    raw: dict[str, Any] = msgspec.to_builtins(document)

    def test_json(test: Equivalence | None, relative: bool) -> dict[str, Any] | None:
        """Return an equivalence test as JSON fields, or None. A `relative` test is on logarithms; its figures become
        relative differences."""
        if test is None:
            return None
        figures = fields(test, "difference=mean low high margin")
        if relative:
            figures = {name: math.expm1(log) if math.isfinite(log) else log for name, log in figures.items()}
        return figures | fields(test, "decision seeds=pairs")

    raw["derived"] = {
        "margins": {"test_loss": margins.loss, "accuracy": margins.accuracy},
        "verdicts": [
            fields(v, "technique verdict=word reason")
            | {"test_loss": test_json(v.loss, True), "accuracy": test_json(v.accuracy, False)}
            for v in judgement.verdicts(document, margins)
        ],
        "shares": [
            {"log2_scale": k, **judgement.model_shares(document.gradients, k)}
            for k in sorted({*judgement.SCALES, round(math.log2(document.static_scale))})
        ],
        "layers": [
            {"kind": layer.kind, "layer": layer.layer, **msgspec.to_builtins(shares(layer.magnitudes, 0))}
            for layer in document.gradients.layers
        ],
        "non_zero": {kind: judgement.model_magnitudes(document.gradients, kind).non_zero for kind in KINDS},
        "safe_log2_scales": judgement.model_safe_scales(document.gradients),
        "costs": [
            fields(row, "technique runs ok train_time_s peak_memory_bytes accuracy=accuracy.value")
            | fields(row, "accuracy_low=accuracy.low accuracy_high=accuracy.high test_loss")
            | fields(row, "fp32_time_over_this=time_ratio.value fp32_time_over_this_low=time_ratio.low")
            | fields(row, "fp32_time_over_this_high=time_ratio.high fp32_memory_over_this=memory_ratio")
            for row in judgement.costs(document)
        ],
    }
    return json.dumps(json.loads(encoded(raw)), ensure_ascii=False)
