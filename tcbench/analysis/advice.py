"""The rung that acts on a bottleneck, and what it is expected to bring. Pure functions.

What was measured goes before what is modelled: a config of the same results that adds rungs and is surely faster is the
next one; one that is not is never advised. Of others the model of a step's time (`tcbench.core.step_time`) says what to
expect, where it knows both configs; where it does not, a rung that acts on what holds the cell back is named alone.
Two steps of one machine are compared by the model, and the measured one gives the scale: what the machine was doing
then, and what the model does not know, slows both. docs/method.md has the errors.

Knows rungs by name and what kind of time each saves; whether a rung goes with others is asked of the caller.
"""

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
"""What a rung makes shorter. overlap: the input, which gets threads of its own. input: making the batch. update: the
weight update. layers: forward and backward. host: what the host does in them. arithmetic: what computes them. network,
half network: the all-reduce; backward, step: its part that is not beside them. curvature: the phases of second-order
training."""


@dataclass(frozen=True)
class Remedy:
    """Rungs that belong together and what they save. `replaces`: rungs that make way for them, one of which must be
    there; without `rungs` it is leaving those out that helps. `evidence`: what else has to be seen before the gain
    counts, with the command that shows it."""

    rungs: tuple[str, ...]
    effect: Effect
    replaces: frozenset[str] = frozenset()
    evidence: str = ""


_TRAINS = "`tcbench numerics` shows whether it trains like fp32"
_SENT = "`tcbench run --ranks 1,2` with it shows what is left of the all-reduce"

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
    Remedy((), "layers", frozenset({"im2col"}), "it is there to show what a convolution library buys"),
    Remedy(
        (), "curvature", frozenset({"kfac"}), "it is there for fewer steps to a loss, which `tcbench numerics` counts"
    ),
)
"""In the order of the talk's ladder, then what came after it, what only PyTorch's users reach for, what is about many
ranks, and what makes steps slower on purpose."""

SLOWER_ON_PURPOSE = frozenset({"im2col", "kfac", "dynamic_scale"})
"""Rungs that no one adds for the speed of a step."""

_AGAINST: dict[str, frozenset[Effect]] = {
    "input-bound": frozenset({"overlap", "input"}),
    "host-bound": frozenset({"update", "layers", "host", "curvature"}),
    "gpu-bound": frozenset({"layers", "arithmetic", "curvature"}),
    "network-bound": frozenset({"network", "half network", "backward", "step"}),
}
"""Effects that act against a verdict. A balanced cell needs whatever shortens its longest stage."""


LEAST_GAIN = 1.02
"""A rung that is expected to bring less than so many times the rate is not worth trying."""


Tried = tuple[float, Interval]
"""A config as it was measured in the same results: its images/s, and that over the cell's."""


@dataclass(frozen=True)
class Gain:
    """A config that adds, exchanges or leaves out rungs. `expected`: its images/s by the model, None where that does
    not know. `measured_images_per_s` and `ratio`, that over the cell's, are of the same results, None where it was not
    measured. `helps`: it shortens what holds the cell back."""

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
        """Whether it was tried for its speed and is surely slower."""
        return self.ratio is not None and self.ratio.high < 1 and not SLOWER_ON_PURPOSE & set(self.added)

    @property
    def may_help(self) -> bool:
        """Whether it was tried for its speed and was faster, though that is not sure."""
        ratio = self.ratio
        return ratio is not None and ratio.low <= 1 < ratio.value and not SLOWER_ON_PURPOSE & set(self.added)


Problem = Callable[[Sequence[str]], str | None]
"""Why a list of rungs is not a config that runs here, or None."""

Expected = Callable[[Sequence[str]], Interval | None]
"""The images/s that a config of these rungs is expected to reach in the cell's place; None where nothing is known."""


def candidates(
    bottleneck: Bottleneck,
    rungs: Sequence[str],
    problem: Problem = lambda _: None,
    tried: Mapping[tuple[str, ...], Tried] | None = None,
    expected: Expected = lambda _: None,
    fastest: float = 0.0,
) -> tuple[Gain, ...]:
    """Everything that can be done to a config, in the order of the ladder: known remedies that make a config and act on
    something it does, and configs of the same results that add rungs to it. A config that was not run helps only where
    it is expected to beat `fastest`, the images/s of the fastest that was measured in its place."""
    measured = {frozenset(config): its for config, its in (tried or {}).items()}
    known: dict[frozenset[str], tuple[tuple[str, ...], str]] = {}
    for remedy in REMEDIES:
        config = _with(rungs, remedy)
        if config is not None and _acts(remedy.effect, bottleneck) and problem(config) is None:
            known.setdefault(frozenset(config), (config, remedy.evidence))
    for config in tried or ():
        if _adds_to(rungs, config):
            known.setdefault(frozenset(config), (config, ""))

    def gain(config: tuple[str, ...], evidence: str) -> Gain:
        added = tuple(rung for rung in config if rung not in rungs)
        removed = () if added else tuple(rung for rung in rungs if rung not in config)
        foreseen, (images_per_s, ratio) = expected(config), measured.get(frozenset(config), (None, None))
        if ratio is not None:
            helps = ratio.low > 1
        elif foreseen is not None:
            helps = foreseen.value > max(LEAST_GAIN * bottleneck.images_per_s, fastest)
        else:
            helps = bool(_helping(bottleneck) & set(effects_of(added, removed)))
        return Gain(added, config, foreseen, helps, images_per_s, ratio, removed, evidence)

    return tuple(gain(*config) for config in known.values())


def is_candidate(rungs: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    """Whether a config may be one of a config's `candidates`."""
    remedied = {frozenset(config) for remedy in REMEDIES for config in [_with(rungs, remedy)] if config is not None}
    return lambda config: _adds_to(rungs, config) or frozenset(config) in remedied


def _adds_to(rungs: Sequence[str], config: Sequence[str]) -> bool:
    return len(config) > len(rungs) and tuple(config[: len(rungs)]) == tuple(rungs)


def next_rung(gains: Iterable[Gain], dominant: PhaseCost | None = None) -> Gain | None:
    """The one to try, of those that act against what holds the cell back: of the smallest additions that were measured
    the fastest, else of those of which the model expects something the one that brings most, else the first on the
    ladder, of those that act on a `dominant` phase where some do. None when nothing that is known acts against it."""
    able = [gain for gain in gains if gain.helps]
    faster = [(len(gain.added), -gain.ratio.value, gain) for gain in able if gain.ratio is not None]
    if faster:
        return min(faster, key=lambda entry: entry[:2])[2]
    foreseen = [(gain.expected.value, gain) for gain in able if gain.expected is not None]
    if foreseen:
        return max(foreseen, key=lambda entry: entry[0])[1]
    on_it = [gain for gain in able if dominant and _is_on(effects_of(gain.added, gain.removed), dominant.name)]
    return next(iter(on_it or able), None)


def _is_on(effects: Iterable[Effect], phase: str) -> bool:
    """Whether one of the effects shortens a computing phase of a step."""
    of_one: dict[Effect, tuple[str, ...]] = {"update": ("update",), "curvature": CURVATURE}
    return any(phase in of_one.get(e, ()) or (e not in of_one and phase not in ("update", *CURVATURE)) for e in effects)


def _acts(effect: Effect, bottleneck: Bottleneck) -> bool:
    """Whether there is anything that the effect could save."""
    if effect == "curvature":
        return any(phase.name in CURVATURE for phase in bottleneck.phases)
    return effect not in _AGAINST["network-bound"] or bool(bottleneck.needs.network_s)


def _with(rungs: Sequence[str], remedy: Remedy) -> tuple[str, ...] | None:
    """The config with a remedy's rungs; None where it has them, has nothing that they replace, or nothing is left."""
    if not remedy.replaces:
        return None if set(remedy.rungs) <= set(rungs) else tuple(dict.fromkeys((*rungs, *remedy.rungs)))
    if not remedy.replaces & set(rungs):
        return None
    return tuple(r for rung in rungs for r in (remedy.rungs if rung in remedy.replaces else (rung,))) or None


def _helping(bottleneck: Bottleneck) -> frozenset[Effect]:
    """The effects that act against what holds it back. On a CPU the host does what a GPU would."""
    if bottleneck.verdict == "balanced":
        return frozenset().union(*_AGAINST.values())
    on_cpu = bottleneck.verdict == "host-bound" and not bottleneck.on_gpu
    return _AGAINST[bottleneck.verdict] | (_AGAINST["gpu-bound"] if on_cpu else frozenset())


def effects_of(added: Iterable[str], removed: Iterable[str] = ()) -> tuple[Effect, ...]:
    """The savings of rungs, and of leaving some out, each effect once; rungs that save no time have none."""
    alone: dict[tuple[tuple[str, ...], frozenset[str]], Effect] = {
        (remedy.rungs, frozenset() if remedy.rungs else remedy.replaces): remedy.effect for remedy in REMEDIES
    }
    keys = [*(((rung,), frozenset[str]()) for rung in added), *(((), frozenset({rung})) for rung in removed)]
    return tuple(dict.fromkeys(alone[key] for key in keys if key in alone))


# -- what a config that was not run is expected to reach ---------------------------------------------------------------

ON_HOST = 0.15
"""Nine of ten predictions of a step whose works were timed here lay within this share, and in a later set within 0.11
(docs/method.md): the wider one stands."""
BY_TABLE = 0.25
"""The same of a step by the table: as far apart as the virtual GPU and published rates are (docs/virtual.md)."""


def images_per_s(images: int, parts: StepTime) -> Interval:
    """The rate of steps with these parts, and the limits within which nine of ten lie. Parts that were timed on a busy
    machine took too long: they set no upper limit."""
    rate, error = images / parts.step_s, ON_HOST if parts.on_host else BY_TABLE
    if parts.lost >= BUSY:
        return Interval(rate, rate, math.inf)
    return Interval(rate, rate * (1 - error), rate * (1 + error))


def in_place_of(measured: Bottleneck, own: StepTime, other: StepTime) -> Interval:
    """The rate of another config on the device of a measured one; `own` are the measured one's parts by the model.

    On a host that computes all parts add up, and the whole step is in proportion; where either was timed on a busy
    machine, nothing limits how far that is off. Beside a GPU each stage is in
    proportion to its own part, and the longest decides again."""
    if own.on_host:
        foreseen = images_per_s(measured.images_per_step, other) / (measured.step_s / own.step_s)
        return Interval(foreseen.value, math.nan, math.nan) if max(own.lost, other.lost) >= BUSY else foreseen
    needs = measured.needs
    gpu_s = own.device_s if needs.gpu_s is None else needs.gpu_s
    scaled = StepTime(
        device_s=gpu_s * other.device_s / own.device_s + needs.network_s,
        host_s=needs.host_s * other.host_s / own.host_s,
        input_s=needs.input_s or 0.0,
        overlapped=needs.overlapped or other.overlapped,
    )
    return images_per_s(measured.images_per_step, scaled)
