"""Verdicts on a document of `tcbench numerics`: which techniques train like the base, what float16 does to gradients,
and how curves and costs compare. Pure functions.

The base is fp32, or with many ranks one rank at the same global batch. A verdict is an equivalence test over seeds. For
each seed, all techniques train from the same weights on the same batches, so their differences are paired. A technique
is like the base if both test loss and accuracy are equivalent within their margins; `does not` if one of them is
certainly outside, or if a run diverged. The verdict is `undecided` if the base itself has not clearly learnt, or if
there are too few test images to resolve the accuracy."""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tcbench.analysis.claims import Evidence, EvidenceSource
from tcbench.analysis.stats import Interval
from tcbench.analysis.welch import SampleStats, exp, quantile
from tcbench.commands.numerics.equivalence import Equivalence, equivalence
from tcbench.commands.numerics.loss_scales import LOST_AT_MOST, SafeScales, Shares, safe_scales, shares
from tcbench.core.claim import Claim
from tcbench.core.numerics import (
    ALL_TECHNIQUES,
    KINDS,
    Document,
    GradientKind,
    Gradients,
    Magnitudes,
    Run,
    Technique,
    total_magnitudes,
)

Word = Literal["trains like fp32", "trains like one rank", "does not", "undecided"]

SCALES = range(0, 49, 4)
"""log2 of the loss scales that tables show."""


@dataclass(frozen=True)
class Margins:
    """The largest differences from the base that count as equal: the relative difference of the test loss, and the
    absolute difference of the accuracy."""

    loss: float = 0.02
    accuracy: float = 0.02


RANKS_MARGINS = Margins(0.1, 0.02)
"""Margins of many ranks.

Batch normalisation over one rank's images, instead of all, changes the loss by a few per cent. This is inherent to
ranks and no fault of a learning rate schedule."""


def margins_or_default(document: Document, margins: Margins | None) -> Margins:
    """Return the given margins, or the defaults of the document's kind."""
    return margins or (RANKS_MARGINS if document.setting.ranks > 1 else Margins())


def like_base(document: Document) -> Word:
    """Return the verdict of a technique that trains like the base."""
    return "trains like one rank" if document.setting.ranks > 1 else "trains like fp32"


@dataclass(frozen=True)
class TechniqueVerdict:
    """A technique's verdict and reason. Both tests are None if a run diverged or failed, or if the base never
    finished."""

    technique: str
    word: Word
    reason: str
    loss: Equivalence | None = None
    accuracy: Equivalence | None = None


@dataclass(frozen=True)
class TechniqueCosts:
    """Means over a technique's finished seeds, and the ratios of fp32's time and memory to the technique's.

    A ratio above 1 is a gain. Times are paired by seed. The memory of a whole process has no ratio, because most of it
    is the program. Figures are None if no seed finished."""

    technique: str
    runs: int
    ok: int
    train_time_s: float | None = None
    peak_memory_bytes: float | None = None
    accuracy: Interval | None = None
    test_loss: float | None = None
    time_ratio: Interval | None = None
    memory_ratio: float | None = None


CLAIMED = {"fp16": ("both", "dynamic"), "bf16": ("bf16",)}
"""The techniques that a rung stands for: the talk's fp16 has loss scaling, static or dynamic, and master weights."""


def document_evidence(document: Document, source: str | None = None) -> EvidenceSource:
    """Return a function that decides claims about training by a document of training runs (slides 5 to 7 of the talk).

    A document of one rank decides whether fp16 with loss scaling and fp32 master weights trains like fp32, and whether
    loss scaling keeps gradients that float16 would make zero. A document of many ranks decides whether they train like
    one. The function returns None for any other claim. `source` is the document's name; reasons quote it with the
    number of steps and seeds."""
    has_many_ranks, words = (
        document.setting.ranks > 1,
        {verdict.technique: verdict.word for verdict in verdicts(document)},
    )

    def evidence(claim: Claim) -> Evidence | None:
        """Return the finding on one claim, or None. A document of many ranks decides only claims of scaling, other
        documents all others."""
        rung = claim.left.config.partition("+")[0]
        if has_many_ranks != (claim.relation == "scales"):
            return None
        if has_many_ranks or claim.relation == "trains like":
            finding = _training_finding(document, words, ("ranks",) if has_many_ranks else CLAIMED.get(rung, ()))
        else:
            finding = _loss_scale_finding(document) if claim.relation == "keeps gradients" and rung == "fp16" else None
        return finding and replace(finding, why=finding.why + basis)

    steps, n = document.setting.steps, len({run.seed for run in document.runs})
    basis = f" ({source}: {steps} step{'s' * (steps > 1)}, {n} seed{'s' * (n > 1)})" if source else ""
    return evidence


def _training_finding(document: Document, answers: Mapping[str, Word], techniques: Sequence[str]) -> Evidence | None:
    """Return the evidence on whether `techniques` train like the base; None if none of them was run. `answers` are the
    verdicts by technique."""
    words = {answers[name] for name in techniques if name in answers}
    if not words:
        return None
    why = "; ".join(f"{ALL_TECHNIQUES[name].label}: {answer}" for name, answer in answers.items())
    if nothing := not_learnt(document):
        return Evidence("undecided", f"{why}; {nothing}")
    if "does not" in words:
        return Evidence("does not hold", why)
    return Evidence("holds" if words == {like_base(document)} else "undecided", why)


def _loss_scale_finding(document: Document) -> Evidence | None:
    """Return the evidence on whether gradients need the loss scale and are kept by it; None if none were counted."""
    k = round(math.log2(document.static_scale))
    unscaled, scaled = model_shares(document.gradients, 0), model_shares(document.gradients, k)
    kinds = [kind for kind in KINDS if model_magnitudes(document.gradients, kind).non_zero]
    if not kinds:
        return None
    why = "; ".join(f"{kind}: {unscaled[kind].zero:.1%} zero, {scaled[kind].zero:.2%} at 2^{k}" for kind in kinds)
    many, few = (max(shares[kind].zero for kind in kinds) for shares in (unscaled, scaled))
    return Evidence("holds" if many > LOST_AT_MOST >= few else "does not hold", why)


def techniques_run(document: Document) -> tuple[Technique, ...]:
    """Return the techniques that were run, in the order in which they are shown."""
    names = {run.technique for run in document.runs}
    return tuple(technique for name, technique in ALL_TECHNIQUES.items() if name in names)


# -- gradients -----------------------------------------------------------------------------------------------------


def model_magnitudes(gradients: Gradients, kind: GradientKind) -> Magnitudes:
    """Return the magnitudes of the whole model's gradients over all observed steps."""
    return total_magnitudes(layer.magnitudes for layer in gradients.layers if layer.kind == kind)


def model_shares(gradients: Gradients, log2_scale: int) -> dict[GradientKind, Shares]:
    """Return the shares of the whole model's gradients that are lost at a loss scale, by kind."""
    return {kind: shares(model_magnitudes(gradients, kind), log2_scale) for kind in KINDS}


def observed_steps(gradients: Gradients) -> int:
    """Return the number of observed steps."""
    return len({gradient.step for gradient in gradients.steps})


def model_safe_scales(gradients: Gradients) -> SafeScales:
    """Return the loss scales that are safe for both kinds of gradients."""
    return safe_scales([model_magnitudes(gradients, kind) for kind in KINDS])


# -- training ------------------------------------------------------------------------------------------------------


def verdicts(document: Document, margins: Margins | None = None) -> tuple[TechniqueVerdict, ...]:
    """Return a verdict on each technique that was run, except the base."""
    margins, base = margins_or_default(document, margins), document.setting.base
    return tuple(_verdict(tried.name, document, margins) for tried in techniques_run(document) if tried != base)


def not_learnt(document: Document) -> str | None:
    """Return why the base has not clearly learnt, or None if it has or never finished.

    Either its loss did not fall, or its accuracy is not well above chance (one-sided at 5%: over seeds by Student's t,
    over test images by the normal approximation)."""
    base = document.setting.base
    runs = [run for run in document.runs if run.technique == base.name and run.status == "ok"]
    if not runs:
        return None
    steps = document.setting.steps
    quarter = max(1, steps // 4)
    falls = [statistics.fmean(run.losses[:quarter]) - statistics.fmean(run.losses[-quarter:]) for run in runs]
    if statistics.fmean(falls) <= 0:
        fell = f"its loss did not fall in {steps} step{'s' * (steps > 1)}"
        return f"{base.label} itself has not clearly learnt here: {fell}; {_REMEDY}"
    chance, accuracies = 1 / document.setting.n_classes, [_accuracy(run) for run in runs]
    well_above = chance + _LEARNT * (1 - chance)
    error = _NORMAL_95 * math.sqrt(well_above * (1 - well_above) / document.setting.test_images)
    if len(runs) > 1:
        over_seeds = quantile(0.95, len(runs) - 1) * statistics.stdev(accuracies) / math.sqrt(len(runs))
        error = math.hypot(error, over_seeds)
    accuracy = statistics.fmean(accuracies)
    if accuracy - error > well_above:
        return None
    not_above = f"its accuracy of {accuracy:.1%} is not significantly above {well_above:.1%} (chance: {chance:.1%})"
    return f"{base.label} itself has not clearly learnt here: {not_above}; {_REMEDY}"


_LEARNT = 0.2
"""Share of the way from chance to perfect accuracy that the base has to go: about ten margins, so that a technique that
learnt nothing is far outside of them."""

_REMEDY = "use more --steps or a lower --lr"
_NORMAL_95 = 1.6449
"""The 95% quantile of the normal distribution."""


def _verdict(name: str, document: Document, margins: Margins) -> TechniqueVerdict:
    """Return the verdict on the technique `name`: whether its loss and accuracy differ from the base's at the same seed
    by less than the margins, or why that cannot be judged."""
    runs = [run for run in document.runs if run.technique == name]
    base = {run.seed: run for run in document.runs if run.technique == document.setting.base.name}
    pairs = [(run, base[run.seed]) for run in runs if run.seed in base and base[run.seed].status == "ok"]
    diverged = [run for run, _ in pairs if run.status == "diverged"]
    if diverged:
        seeds = f" ({len(diverged)} of {len(pairs)} seeds)" if len(pairs) > 1 else ""
        return TechniqueVerdict(name, "does not", f"{diverged[0].reason}{seeds}")
    unfinished = [run for run in runs if run.status not in ("ok", "diverged")]
    if unfinished:
        return TechniqueVerdict(
            name, "undecided", f"seed {unfinished[0].seed} {unfinished[0].status}: {unfinished[0].reason}"
        )
    if not pairs:
        return TechniqueVerdict(name, "undecided", f"{document.setting.base.label} itself did not finish")
    loss = equivalence([_log_loss(run) - _log_loss(partner) for run, partner in pairs], math.log1p(margins.loss))
    images = document.setting.test_images
    # A count of images is rounded: a uniform error of up to half an image, with a standard deviation of 1/sqrt(12).
    rounding = 1 / (images * math.sqrt(12 * len(pairs)))
    differences = [_accuracy(run) - _accuracy(partner) for run, partner in pairs]
    accuracy = equivalence(differences, margins.accuracy, rounding)
    coarse = 1 / images > margins.accuracy
    if coarse:
        accuracy = replace(accuracy, decision="undecided")
    decisions = {loss.decision, accuracy.decision}
    nothing = not_learnt(document)
    word: Word = "undecided"
    if not nothing and "different" in decisions:
        word = "does not"
    elif not nothing and decisions == {"equivalent"}:
        word = like_base(document)
    worse = relative(loss.mean)
    on_average = f"{worse:+.1%}" if worse < _USEFUL else f"{worse + 1:.3g} times as much"
    reason = (
        f"test loss {on_average} ({_limits(relative(loss.low), relative(loss.high))}), "
        f"accuracy {100 * accuracy.mean:+.1f} points ({_limits(accuracy.low, accuracy.high, points=True)})"
    )
    if coarse:
        reason += (
            f"; {images} test images resolve {100 / images:.2g} points at best, more than the margin of "
            f"{100 * margins.accuracy:g}"
        )
    if len(pairs) == 1:
        reason = "one seed gives no interval: use --seeds 5"
    return TechniqueVerdict(name, word, nothing or reason, loss, accuracy)


_USEFUL = 10.0
"""Largest relative limit that is shown: an interval up to 11 times fp32's loss would be of no use to a reader."""


def relative(log_ratio: float) -> float:
    """Return exp(log_ratio) - 1; infinite if it exceeds a float."""
    return math.expm1(log_ratio) if math.isfinite(exp(log_ratio)) else math.inf


def _limits(low: float, high: float, points: bool = False) -> str:
    """Return the limits of an interval in percent, or with `points` in percentage points of accuracy. Infinite or very
    wide intervals are named as such."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return "no interval"
    if points:
        return f"{100 * low:+.1f} to {100 * high:+.1f}" if max(-low, high) <= 1 else "no useful interval"
    return f"{low:+.1%} to {high:+.1%}" if high < _USEFUL else "no useful interval"


def _log_loss(run: Run) -> float:
    """Return the logarithm of a finished run's test loss."""
    return math.log(max(_test_loss(run), 1e-12))


def _test_loss(run: Run) -> float:
    assert run.test_loss is not None
    return run.test_loss


def _accuracy(run: Run) -> float:
    assert run.accuracy is not None
    return run.accuracy


def costs(document: Document) -> tuple[TechniqueCosts, ...]:
    """Return time, memory, accuracy and ratios of each technique.

    The figures are those of D. Yamamoto's table ("Mixed Precision のすゝめ", 2020)."""
    rows: list[TechniqueCosts] = []
    base: TechniqueCosts | None = None
    base_runs: list[Run] = []
    for technique in techniques_run(document):  # the base is the first
        runs = [run for run in document.runs if run.technique == technique.name]
        ok = [run for run in runs if run.status == "ok"]
        if not ok:
            rows.append(TechniqueCosts(technique.name, len(runs), 0))
            continue
        time_s = statistics.fmean(run.train_time_s or 0.0 for run in ok)
        memory_bytes = statistics.fmean(run.peak_memory_bytes or 0 for run in ok)
        row = TechniqueCosts(
            technique=technique.name,
            runs=len(runs),
            ok=len(ok),
            train_time_s=time_s,
            peak_memory_bytes=memory_bytes,
            accuracy=mean_interval([_accuracy(run) for run in ok]),
            test_loss=statistics.fmean(_test_loss(run) for run in ok),
            time_ratio=_time_ratio(ok, base_runs) if base else None,
            memory_ratio=base.peak_memory_bytes / memory_bytes
            if base and base.peak_memory_bytes and memory_bytes and ok[0].peak_memory_of == "device"
            else None,
        )
        if technique == document.setting.base:
            base, base_runs = row, ok
        rows.append(row)
    return tuple(rows)


def _time_ratio(runs: Sequence[Run], base: Sequence[Run]) -> Interval | None:
    """Return the geometric mean over seeds of the base's training time over the technique's, with its 95% interval."""
    times_s = {run.seed: run.train_time_s for run in base}
    pairs = [(times_s.get(run.seed), run.train_time_s) for run in runs]
    logs = [math.log(before_s / time_s) for before_s, time_s in pairs if before_s and time_s]
    return _from_logs(mean_interval(logs)) if logs else None


def _from_logs(mean: Interval) -> Interval:
    """Return the interval of the values whose logarithms these are."""
    return Interval(exp(mean.value), exp(mean.low), exp(mean.high))


def mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean with Student's 95% interval; without width for a single value."""
    return (
        SampleStats.from_values(values).mean_interval if len(values) > 1 else Interval(*[statistics.fmean(values)] * 3)
    )


def loss_curve(document: Document, technique: str, window: int) -> tuple[Interval, ...]:
    """Return the mean loss over seeds with its 95% interval, per window of steps, until the first seed ends."""
    return _curve([_windows(run.losses, window) for run in document.runs if run.technique == technique])


def ratio_curve(document: Document, technique: str, window: int) -> tuple[Interval, ...]:
    """Return the geometric mean of the loss over fp32's loss at the same seed and steps, per window of steps."""
    name = document.setting.base.name
    base = {run.seed: _windows(run.losses, window) for run in document.runs if run.technique == name}
    logs = [
        [
            math.log(max(loss, 1e-12) / max(base_loss, 1e-12))
            for loss, base_loss in zip(_windows(run.losses, window), base[run.seed], strict=False)
        ]
        for run in document.runs
        if run.technique == technique and run.seed in base
    ]
    return tuple(map(_from_logs, _curve(logs)))


def _windows(losses: Sequence[float], window: int) -> list[float]:
    """Return the mean loss of each complete window of steps."""
    return [statistics.fmean(losses[i : i + window]) for i in range(0, len(losses) - window + 1, window)]


def _curve(curves: Sequence[Sequence[float]]) -> tuple[Interval, ...]:
    """Return the mean over seeds with its 95% interval, window by window."""
    return tuple(map(mean_interval, zip(*curves, strict=False)))
