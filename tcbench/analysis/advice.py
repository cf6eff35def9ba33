"""The rung that would help against a bottleneck, and the expected gain. Pure functions.

Measurements take precedence over the model. If a config in the same results adds rungs and is significantly faster, it
is the next one to try; if it is not, it is never advised. For configs that were not run, the step-time model
(`tcbench.core.step_time`) gives an expected rate if it knows both configs. Otherwise a rung that acts on the bottleneck
is named without a figure. The model is used for the ratio of two steps on one machine; the measured step gives the
scale, so that slowdowns the model does not know affect both. docs/method.md lists the errors.

Rungs are known by name and by the kind of time they save. The caller says whether rungs can be combined."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from tcbench.analysis.bottleneck import CURVATURE, Bottleneck
from tcbench.analysis.phases import PhaseCost
from tcbench.analysis.stats import Interval
from tcbench.core.record import BUSY
from tcbench.core.step_time import StepTime

Effect = (
    Literal["overlap", "input", "update", "layers", "host", "arithmetic", "curvature"]
    | Literal["network", "half network", "backward", "step"]
)
"""The part of a step that a rung makes shorter.

- overlap: the input, which gets its own threads; input: making the batch
- update: the weight update; layers: forward and backward
- host: the host's share of forward and backward; arithmetic: the computation itself
- network, half network: the all-reduce; backward, step: the part of the all-reduce that does not overlap with these
- curvature: the phases of second-order training"""


@dataclass(frozen=True)
class Remedy:
    """A change of a config that saves time: add `rungs`, or put them in place of a rung in `replaces` (if not empty),
    which the config must have. Without `rungs`, the remedy is to remove the rung in `replaces`.

    `effect` is the part of a step that becomes shorter. `evidence` says what else to check before the gain counts, with
    the command that shows it."""

    rungs: tuple[str, ...]
    effect: Effect
    replaces: frozenset[str] = frozenset()
    evidence: str = ""


_TRAINS = "`tcbench numerics` shows whether it trains like fp32"
_SENT = "`tcbench run --ranks 1,2` with it shows how much all-reduce remains"

REMEDIES: tuple[Remedy, ...] = (
    Remedy(("fp16",), "arithmetic", frozenset({"fp32", "tf32"}), _TRAINS),
    Remedy(("dali",), "overlap"),
    Remedy(("opencv",), "input"),
    Remedy(("batched",), "update"),
    Remedy(("nhwc", "fused"), "layers"),
    Remedy(("fused",), "layers"),
    Remedy(("nhwc",), "layers"),
    Remedy(("static_graph",), "host"),
    Remedy(("cuda_graph",), "host"),
    Remedy(("tf32",), "arithmetic", frozenset({"fp32"}), _TRAINS),
    Remedy(("convstats",), "layers"),
    Remedy(("bf16",), "arithmetic", frozenset({"fp32", "tf32"}), _TRAINS),
    Remedy(("foreach",), "update"),
    Remedy(("fused_optimizer",), "update"),
    Remedy(("cudnn_benchmark",), "layers"),
    Remedy(("compile",), "layers"),
    Remedy(("batched", "flat_allreduce"), "network"),
    Remedy(("flat_allreduce",), "network"),
    Remedy(("fp16_allreduce",), "half network", evidence=_TRAINS),
    Remedy(("overlap",), "backward", evidence=_SENT),
    Remedy(("double_buffering",), "step", evidence=_TRAINS),
    Remedy(("fp32",), "arithmetic", frozenset({"fp16", "bf16"}), "the low precision is emulated here"),
    Remedy((), "layers", frozenset({"im2col"}), "it exists to show what a convolution library gains"),
    Remedy(
        (), "curvature", frozenset({"kfac"}), "it exists to reach a loss in fewer steps: `tcbench numerics` counts them"
    ),
)
"""All remedies: first in the order of the talk's ladder, then later rungs, then those for PyTorch only, those for many
ranks, and last those that exist to make steps slower."""

SLOWER_ON_PURPOSE = frozenset({"im2col", "kfac", "dynamic_scale"})
"""Rungs that nobody adds to make a step faster."""

_AGAINST: dict[str, frozenset[Effect]] = {
    "input-bound": frozenset({"overlap", "input"}),
    "host-bound": frozenset({"update", "layers", "host", "curvature"}),
    "gpu-bound": frozenset({"layers", "arithmetic", "curvature"}),
    "network-bound": frozenset({"network", "half network", "backward", "step"}),
}
"""The effects that act against each verdict. For a balanced cell, anything that shortens the longest stage helps."""


LEAST_GAIN = 1.02
"""A rung is worth trying if the expected rate is at least this multiple of the present rate."""


Tried = tuple[float, Interval]
"""The measurement of another config in the same results: its images/s, and the ratio to the cell's."""


@dataclass(frozen=True)
class Gain:
    """A config that adds, exchanges or removes rungs of a cell's config.

    - `added`, `removed`: the rungs that are added, and those that are removed if none is added.
    - `rungs`: all rungs of the new config.
    - `expected`: its modelled rate in images/s; None if unknown.
    - `helps`: whether it is faster, as measured, else as modelled, else because it acts on the bottleneck.
    - `measured_images_per_s`, `ratio`: its measured rate and the ratio to the cell's; None if it was not measured.
    - `evidence`: as in Remedy."""

    added: tuple[str, ...]
    rungs: tuple[str, ...]
    expected: Interval | None
    helps: bool
    measured_images_per_s: float | None = None
    ratio: Interval | None = None
    removed: tuple[str, ...] = ()
    evidence: str = ""

    @property
    def slower(self) -> bool:
        """Whether the config was measured and is significantly slower. False for rungs that are slower on purpose."""
        return self.ratio is not None and self.ratio.high < 1 and not SLOWER_ON_PURPOSE & set(self.added)

    @property
    def may_help(self) -> bool:
        """Whether the config was measured as faster, but not significantly. False for rungs that are slower on
        purpose."""
        ratio = self.ratio
        return ratio is not None and ratio.low <= 1 < ratio.value and not SLOWER_ON_PURPOSE & set(self.added)


Problem = Callable[[Sequence[str]], str | None]
"""A function from a list of rungs to the reason why they cannot run as a config, or None if they can."""

Expected = Callable[[Sequence[str]], Interval | None]
"""A function from a list of rungs to the images/s that the cell would reach with these rungs, or None if unknown."""


def candidates(
    bottleneck: Bottleneck,
    rungs: Sequence[str],
    problem: Problem = lambda _: None,
    tried: Mapping[tuple[str, ...], Tried] | None = None,
    expected: Expected = lambda _: None,
    fastest: float = 0.0,
) -> tuple[Gain, ...]:
    """Return the gains from all changes to a config of these `rungs`: first the remedies in the order of `REMEDIES`,
    then the configs in `tried` that add rungs.

    A remedy counts if it gives a config that can run (`problem` returns None) and the cell spends time on what it
    shortens. `tried` holds measurements by the rungs of each config. `fastest` is the highest measured rate in
    images/s: a config that was not run helps only if its expected rate exceeds it."""
    measured = {frozenset(config): measurement for config, measurement in (tried or {}).items()}
    configs: dict[frozenset[str], tuple[tuple[str, ...], str]] = {}
    for remedy in REMEDIES:
        config = _apply(remedy, rungs)
        if config is not None and _has_effect(remedy.effect, bottleneck) and problem(config) is None:
            configs.setdefault(frozenset(config), (config, remedy.evidence))
    for config in tried or ():
        if _adds_to(rungs, config):
            configs.setdefault(frozenset(config), (config, ""))

    def gain(config: tuple[str, ...], evidence: str) -> Gain:
        """Return the gain from a config with these rungs. Whether it helps is decided by its measured ratio, else by
        its expected rate, else by whether its rungs act on the bottleneck."""
        added = tuple(rung for rung in config if rung not in rungs)
        removed = () if added else tuple(rung for rung in rungs if rung not in config)
        rate, (images_per_s, ratio) = expected(config), measured.get(frozenset(config), (None, None))
        if ratio is not None:
            helps = ratio.low > 1
        elif rate is not None:
            helps = rate.value > max(LEAST_GAIN * bottleneck.images_per_s, fastest)
        else:
            helps = bool(_helping(bottleneck) & set(effects_of(added, removed)))
        return Gain(added, config, rate, helps, images_per_s, ratio, removed, evidence)

    return tuple(gain(*config) for config in configs.values())


def is_candidate(rungs: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    """Return a function that tells whether a config (its rungs) can be among the `candidates` for these `rungs`."""
    remedied = {frozenset(_apply(remedy, rungs) or ()) for remedy in REMEDIES} - {frozenset()}
    return lambda config: _adds_to(rungs, config) or frozenset(config) in remedied


def _adds_to(rungs: Sequence[str], config: Sequence[str]) -> bool:
    """Return whether `config` begins with the rungs in `rungs` and has further rungs."""
    return len(config) > len(rungs) and tuple(config[: len(rungs)]) == tuple(rungs)


def next_rung(gains: Iterable[Gain], dominant: PhaseCost | None = None) -> Gain | None:
    """Return the gain to try next among those that help, or None if none does.

    This is the fastest of the smallest additions that were measured. If none was measured, it is the gain with the
    highest expected rate. If no rate is known, it is the first gain that shortens the `dominant` phase, or else the
    first."""
    helpful = [gain for gain in gains if gain.helps]
    if fastest := best_measured(helpful):
        return fastest
    expected = [(gain.expected.value, gain) for gain in helpful if gain.expected is not None]
    if expected:
        return max(expected, key=lambda pair: pair[0])[1]
    on_phase = [gain for gain in helpful if dominant and _shorten(effects_of(gain.added, gain.removed), dominant.name)]
    return next(iter(on_phase or helpful), None)


def best_measured(gains: Iterable[Gain]) -> Gain | None:
    """Return the fastest of the measured gains that add the fewest rungs, or None if none was measured."""
    measured = [(len(gain.added), -gain.ratio.value, gain) for gain in gains if gain.ratio is not None]
    return min(measured, key=lambda gain: gain[:2], default=(0, 0.0, None))[2]


def _shorten(effects: Iterable[Effect], phase: str) -> bool:
    """Return whether one of the effects shortens a phase of a CPU's step, given by name. `update` and `curvature`
    shorten only their own phases, and all other effects only the other phases."""
    phases: dict[Effect, tuple[str, ...]] = {"update": ("update",), "curvature": CURVATURE}
    return any(phase in phases.get(e, ()) or (e not in phases and phase not in ("update", *CURVATURE)) for e in effects)


def _has_effect(effect: Effect, bottleneck: Bottleneck) -> bool:
    """Return whether the cell spends time on what the effect shortens. Checks only `curvature` and the all-reduce."""
    if effect == "curvature":
        return any(phase.name in CURVATURE for phase in bottleneck.phases)
    return effect not in _AGAINST["network-bound"] or bool(bottleneck.needs.network_s)


def _apply(remedy: Remedy, rungs: Sequence[str]) -> tuple[str, ...] | None:
    """Return the rungs of a config after a remedy. None if the config already has the remedy's rungs, has no rung to
    replace, or would have no rungs left."""
    if not remedy.replaces:
        return None if set(remedy.rungs) <= set(rungs) else tuple(dict.fromkeys((*rungs, *remedy.rungs)))
    if not remedy.replaces & set(rungs):
        return None
    return tuple(r for rung in rungs for r in (remedy.rungs if rung in remedy.replaces else (rung,))) or None


def _helping(bottleneck: Bottleneck) -> frozenset[Effect]:
    """Return the effects that shorten the limiting stage. On a CPU they include those for a GPU, since the host does
    all computation."""
    if bottleneck.verdict == "balanced":
        return frozenset().union(*_AGAINST.values())
    on_cpu = bottleneck.verdict == "host-bound" and not bottleneck.on_gpu
    return _AGAINST[bottleneck.verdict] | (_AGAINST["gpu-bound"] if on_cpu else frozenset())


def effects_of(added: Iterable[str], removed: Iterable[str] = ()) -> tuple[Effect, ...]:
    """Return the effects of adding and removing rungs, without duplicates. Rungs without a remedy have no effect."""
    effects: dict[tuple[tuple[str, ...], frozenset[str]], Effect] = {
        (remedy.rungs, frozenset() if remedy.rungs else remedy.replaces): remedy.effect for remedy in REMEDIES
    }
    keys = [*(((rung,), frozenset[str]()) for rung in added), *(((), frozenset({rung})) for rung in removed)]
    return tuple(dict.fromkeys(effects[key] for key in keys if key in effects))


# -- what a config that was not run is expected to reach ---------------------------------------------------------------

ON_HOST = 0.15
"""Relative error of a predicted step whose parts were timed on this host: nine of ten predictions lie within it. A
later set lay within 0.11 (docs/method.md); the wider figure is kept."""
BY_TABLE = 0.25
"""Relative error of a step predicted from the table: as far as the virtual GPU and published rates differ
(docs/virtual.md)."""


def modelled_rate(images: float, parts: StepTime) -> Interval:
    """Return the rate in images/s of steps of `images` images with these parts. The limits contain nine of ten
    predictions. If the parts were timed on a busy machine, they took too long, and the upper limit is infinite."""
    rate, error = images / parts.step_s, ON_HOST if parts.on_host else BY_TABLE
    if parts.lost >= BUSY:
        return Interval(rate, rate, math.inf)
    return Interval(rate, rate * (1 - error), rate * (1 + error))


def expected_rate(measured: Bottleneck, cell_parts: StepTime, other_parts: StepTime) -> Interval:
    """Return the expected images/s of another config on the device of a measured cell. `cell_parts` and `other_parts`
    are the modelled step times of the measured cell and of the other config.

    On a CPU the measured step is scaled by the ratio of the modelled steps. If either was timed on a busy machine, the
    limits are NaN. With a GPU each measured stage is scaled by the ratio of its modelled parts, and the stages are
    combined again."""
    if cell_parts.on_host:
        rate = modelled_rate(measured.images_per_step, other_parts) / (measured.step_s / cell_parts.step_s)
        busy = max(cell_parts.lost, other_parts.lost) >= BUSY
        return Interval(rate.value, math.nan, math.nan) if busy else rate
    needs = measured.needs
    gpu_s = cell_parts.device_s if needs.gpu_s is None else needs.gpu_s
    scaled = StepTime(
        device_s=gpu_s * other_parts.device_s / cell_parts.device_s + needs.network_s,
        host_s=needs.host_s * other_parts.host_s / cell_parts.host_s,
        input_s=needs.input_s or 0.0,
        overlapped=needs.overlapped or other_parts.overlapped,
    )
    return modelled_rate(measured.images_per_step, scaled)
