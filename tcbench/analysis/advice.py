"""The rung that acts on a bottleneck, and the most it could gain. Pure functions.

The model is the pipeline of `tcbench.analysis.bottleneck`: a step takes at least as long as its longest stage. A rung
makes some stage shorter. What it leaves of that stage nobody knows beforehand; so it is taken to leave nothing but what
must be left (the arithmetic, say), and all else is taken to be as fast as in the fastest step. That is a maximum, not
a prediction, and it is withdrawn where it is none: where nothing is known of what must be left, or a measurement beat
it.

What was measured goes before what is modelled: a config of the same results that adds rungs and is surely faster is the
next one; one that is not is never advised.

Knows rungs by name and what kind of time each saves; whether a rung goes with others is asked of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tcbench.analysis.bottleneck import CURVATURE, INPUT, Bottleneck, PhaseCost, StageNeeds
from tcbench.analysis.scaling import ALLREDUCE
from tcbench.analysis.stats import Interval

Effect = (
    Literal["overlap", "input", "update", "layers", "host", "arithmetic", "curvature"]
    | Literal["network", "half network", "backward", "step"]
)
"""The most that a rung can take away. overlap: the input moves into threads of its own. input: making the batch.
update: the weight update. layers: forward and backward, but for the arithmetic. host: what the host does in forward and
backward; a GPU has as much to do as before. arithmetic: what computes forward and backward, but for what faster
arithmetic units leave. network: the all-reduce; half network: half of it; backward, step: as much of it as fits beside
backward, or beside everything else. curvature: the phases of second-order training."""


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


LEAST_GAIN = 0.98
"""A rung that cannot bring a step below this share of what it was is not worth trying."""


@dataclass(frozen=True)
class Tried:
    """A config that adds rungs, as it was measured in the same results: its rate, and that over the cell's."""

    images_per_s: float
    ratio: Interval


@dataclass(frozen=True)
class Gain:
    """A config that adds, exchanges or leaves out rungs. `images_per_s_at_most` and `step_at_least_s` by the model,
    None where that knows no limit. `measured_images_per_s` and `ratio`, that over the cell's, are of the same results,
    None where it was not measured. `helps`: it shortens what holds the cell back."""

    added: tuple[str, ...]
    rungs: tuple[str, ...]
    step_at_least_s: float | None
    images_per_s_at_most: float | None
    helps: bool
    measured_images_per_s: float | None = None
    ratio: Interval | None = None
    removed: tuple[str, ...] = ()
    evidence: str = ""

    @property
    def slower(self) -> bool:
        """Whether it was tried for its speed and is surely slower."""
        return self.ratio is not None and self.ratio.high < 1 and not SLOWER_ON_PURPOSE & set(self.added)


Problem = Callable[[Sequence[str]], str | None]
"""Why a list of rungs is not a config that runs here, or None."""

Arithmetic = Callable[[Sequence[str]], float]
"""The least time, in seconds, that forward's and backward's arithmetic takes with these rungs; 0 if not known."""


def candidates(
    bottleneck: Bottleneck,
    rungs: Sequence[str],
    problem: Problem = lambda _: None,
    tried: Mapping[tuple[str, ...], Tried] | None = None,
    arithmetic_s: Arithmetic = lambda _: 0.0,
) -> tuple[Gain, ...]:
    """Everything that can be done to a config, in the order of the ladder: known remedies that make a config and act on
    something it does, and configs of the same results that add rungs to it."""
    measured = {frozenset(config): its for config, its in (tried or {}).items()}
    gains: dict[frozenset[str], Gain] = {}
    for remedy in REMEDIES:
        config = _with(rungs, remedy)
        if config is None or not _acts(remedy.effect, bottleneck) or problem(config) is not None:
            continue
        its = measured.get(frozenset(config))
        gain = _gain(bottleneck, rungs, config, arithmetic_s(config), its, remedy.evidence)
        gains.setdefault(frozenset(config), gain)
    for config, its in (tried or {}).items():
        if _adds_to(rungs, config):
            gains.setdefault(frozenset(config), _gain(bottleneck, rungs, config, arithmetic_s(config), its))
    return tuple(gains.values())


def is_candidate(rungs: Sequence[str]) -> Callable[[Sequence[str]], bool]:
    """Whether a config may be one of a config's `candidates`."""
    remedied = {frozenset(config) for remedy in REMEDIES for config in [_with(rungs, remedy)] if config is not None}
    return lambda config: _adds_to(rungs, config) or frozenset(config) in remedied


def _adds_to(rungs: Sequence[str], config: Sequence[str]) -> bool:
    return len(config) > len(rungs) and tuple(config[: len(rungs)]) == tuple(rungs)


def next_rung(gains: Iterable[Gain], dominant: str | None = None) -> Gain | None:
    """The one to try, of those that act against what holds the cell back: of the smallest additions that were measured
    the fastest, else the first on the ladder, of those that act on a `dominant` phase where some do. None when nothing
    that is known acts against it."""
    able = [gain for gain in gains if gain.helps]
    faster = [(len(gain.added), -gain.ratio.value, gain) for gain in able if gain.ratio is not None]
    if faster:
        return min(faster, key=lambda entry: entry[:2])[2]
    on_it = [gain for gain in able if dominant and _is_on(effects_of(gain.added, gain.removed), dominant)]
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


def _gain(
    bottleneck: Bottleneck,
    rungs: Sequence[str],
    config: tuple[str, ...],
    arithmetic_s: float,
    tried: Tried | None,
    evidence: str = "",
) -> Gain:
    added = tuple(rung for rung in config if rung not in rungs)
    removed = () if added else tuple(rung for rung in rungs if rung not in config)
    effects = effects_of(added, removed)
    # A CPU's host computes; a GPU's leaves it the arithmetic.
    unbounded = {"layers", "arithmetic"} if bottleneck.on_gpu else {"layers", "arithmetic", "host"}
    known = effects and (arithmetic_s > 0 or not unbounded & set(effects))
    at_least_s = step_at_least_s(bottleneck, effects, arithmetic_s) if known else None
    at_most = bottleneck.images_per_step / at_least_s if at_least_s else None
    if tried is not None and at_most is not None and tried.images_per_s > at_most:
        at_least_s = at_most = None
    if tried is not None:
        helps = tried.ratio.low > 1
    else:
        # A rung that leaves the pipeline nearly as long as it was does not help.
        short = at_least_s is None or at_least_s < LEAST_GAIN * bottleneck.step_s
        helps = short and bool(_helping(bottleneck) & set(effects))
    rate, ratio = (tried.images_per_s, tried.ratio) if tried else (None, None)
    return Gain(added, config, at_least_s, at_most, helps, rate, ratio, removed, evidence)


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


def step_at_least_s(bottleneck: Bottleneck, effects: Iterable[Effect], arithmetic_s: float = 0.0) -> float:
    """The shortest step that the pipeline allows once rungs with these effects have done all they can; no step gets
    longer than it was. `arithmetic_s`: what forward and backward must take at least.

    Without a GPU everything else is taken as short as in the fastest of the steps, timed or profiled.
    """
    after, phases = bottleneck.needs, {phase.name: phase for phase in bottleneck.phases}
    scale = 1.0
    if not bottleneck.on_gpu:
        phases = {name: replace(phase, host_s=phase.least_s or phase.host_s) for name, phase in phases.items()}
        io_s, network_s = (phases[name].host_s if name in phases else 0.0 for name in (INPUT, ALLREDUCE))
        computing_s = sum(phase.host_s for name, phase in phases.items() if name not in (INPUT, ALLREDUCE))
        input_s = after.input_s if after.overlapped else io_s
        after = replace(after, input_s=input_s, host_s=computing_s, network_s=network_s)
        scale = min(1.0, bottleneck.least_step_s / after.step_at_least_s) if after.step_at_least_s else 1.0
    for effect in _each_once(effects, bottleneck.on_gpu):
        after = _after(after, effect, phases, arithmetic_s / scale, bottleneck.on_gpu)
    return min(after.step_at_least_s * scale, bottleneck.step_s)


def _each_once(effects: Iterable[Effect], on_gpu: bool) -> Iterator[Effect]:
    """Without those that save only what another has saved: the layers' time, the host's or the GPU's, goes once."""
    layers: dict[Effect, set[str]] = {"layers": {"host", "gpu"}, "host": {"host"}, "arithmetic": {"gpu"}}
    if not on_gpu:  # the host does the arithmetic
        layers = {effect: {"host"} for effect in layers}
    saved: set[str] = set()
    for effect in sorted(dict.fromkeys(effects), key=lambda effect: effect != "layers"):
        saves = layers.get(effect, set())
        if not saves or not saves <= saved:
            yield effect
        saved |= saves


def _after(
    needs: StageNeeds, effect: Effect, phases: Mapping[str, PhaseCost], arithmetic_s: float, on_gpu: bool
) -> StageNeeds:
    def less(host_s: float, gpu_s: float = 0.0) -> StageNeeds:
        gpu = None if needs.gpu_s is None else max(0.0, needs.gpu_s - gpu_s)
        return replace(needs, host_s=max(0.0, needs.host_s - host_s), gpu_s=gpu)

    def less_network(hidden_s: float) -> StageNeeds:
        return replace(needs, network_s=max(0.0, needs.network_s - hidden_s))

    def spent_in(*names: str) -> tuple[float, float]:
        those = [phases[name] for name in names if name in phases]
        return sum(phase.host_s for phase in those), sum(phase.device_s or 0.0 for phase in those)

    others = (INPUT, "update", ALLREDUCE, *CURVATURE)
    layers_host_s, layers_gpu_s = spent_in(*(name for name in phases if name not in others))
    # On a CPU the host itself does the arithmetic.
    less_host_s = layers_host_s if on_gpu else max(0.0, layers_host_s - arithmetic_s)
    less_gpu_s = max(0.0, layers_gpu_s - arithmetic_s)

    match effect:
        case "overlap":
            return replace(needs, overlapped=True)
        case "input":
            return replace(needs, input_s=0.0)
        case "update":
            return less(*spent_in("update"))
        case "curvature":
            return less(*spent_in(*CURVATURE))
        case "layers":
            return less(less_host_s, less_gpu_s)
        case "host":
            return less(less_host_s)
        case "arithmetic":
            return less(0.0 if on_gpu else less_host_s, less_gpu_s)
        case "network":
            return less_network(needs.network_s)
        case "half network":
            return less_network(needs.network_s / 2)
        case "backward":
            return less_network(max(spent_in("backward")))
        case "step":
            return less_network(max(needs.host_s, needs.gpu_s or 0.0))
