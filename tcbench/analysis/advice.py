"""The rung that acts on a bottleneck, and the most it could gain. Pure functions.

The model is the pipeline of `tcbench.analysis.bottleneck`: a step takes at least as long as its longest stage. A rung
makes some stage shorter. What it leaves of that stage nobody knows beforehand; so it is taken to leave nothing but the
arithmetic, and the other stages stay as they are. That is a ceiling, not a prediction: a rung that cannot pay by this
reckoning cannot pay. Where the same results hold the config with the rung, what it did is put beside it.

Knows rungs by name and what kind of time each saves; whether a rung goes with others is asked of the caller.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tcbench.analysis.bottleneck import INPUT, Bottleneck, Needs, PhaseCost
from tcbench.analysis.scaling import ALLREDUCE

Effect = Literal["overlap", "input", "update", "layers", "host", "arithmetic", "network"]
"""The most that a rung can take away. overlap: the input moves into threads of its own. input: making the batch.
update: the weight update, on host and GPU. layers: forward and backward, on host and GPU, but for the arithmetic.
host: what the host does in forward and backward; a GPU has as much to do as before. arithmetic: what a GPU does in
forward and backward, but for what faster arithmetic units leave. network: the all-reduce, made shorter or hidden
beside backward."""


@dataclass(frozen=True)
class Remedy:
    """Rungs that belong together and what they save. `replaces`: rungs that make way for them."""

    rungs: tuple[str, ...]
    effect: Effect
    replaces: frozenset[str] = frozenset()


REMEDIES: tuple[Remedy, ...] = (
    Remedy(("fp16",), "arithmetic", frozenset({"fp32", "tf32"})),
    Remedy(("dali",), "overlap"),
    Remedy(("opencv",), "input"),
    Remedy(("batched",), "update"),
    Remedy(("nhwc", "fused"), "layers"),
    Remedy(("fused",), "layers"),
    Remedy(("nhwc",), "layers"),
    Remedy(("static_graph",), "host"),
    Remedy(("cuda_graph",), "host"),
    Remedy(("tf32",), "arithmetic", frozenset({"fp32"})),
    Remedy(("convstats",), "layers"),
    Remedy(("bf16",), "arithmetic", frozenset({"fp32", "tf32"})),
    Remedy(("foreach",), "update"),
    Remedy(("fused_optimizer",), "update"),
    Remedy(("cudnn_benchmark",), "layers"),
    Remedy(("compile",), "layers"),
    Remedy(("batched", "flat_allreduce"), "network"),
    Remedy(("flat_allreduce",), "network"),
    Remedy(("fp16_allreduce",), "network"),
    Remedy(("overlap",), "network"),
    Remedy(("double_buffering",), "network"),
)
"""In the order of the talk's ladder, then what came after it, what only PyTorch's users reach for, and what is about
many ranks."""

_EFFECTS: dict[Effect, frozenset[str]] = {
    "overlap": frozenset({"input-bound"}),
    "input": frozenset({"input-bound"}),
    "update": frozenset({"host-bound"}),
    "layers": frozenset({"host-bound", "gpu-bound"}),
    "host": frozenset({"host-bound"}),
    "arithmetic": frozenset({"gpu-bound"}),
    "network": frozenset({"network-bound"}),
}
"""Verdicts that an effect attacks. A balanced cell needs whatever shortens its longest stage."""


LEAST_GAIN = 0.98
"""A rung that cannot bring a step below this share of what it was is not worth trying."""


@dataclass(frozen=True)
class Gain:
    """A config that adds (or exchanges) rungs: `images_per_s_at_most` by the model; `measured_images_per_s` in the
    same results, None where it was not measured. `helps`: it shortens what holds the cell back."""

    added: tuple[str, ...]
    rungs: tuple[str, ...]
    step_at_least_s: float
    images_per_s_at_most: float
    helps: bool
    measured_images_per_s: float | None = None

    @property
    def holds(self) -> bool | None:
        """Whether the measurement stays below the ceiling; None without one."""
        return None if self.measured_images_per_s is None else self.measured_images_per_s <= self.images_per_s_at_most


Problem = Callable[[Sequence[str]], str | None]
"""Why a list of rungs is not a config that runs here, or None."""

Arithmetic = Callable[[Sequence[str]], float]
"""The least time, in seconds, that forward's and backward's arithmetic takes with these rungs; 0 if not known."""


def candidates(
    bottleneck: Bottleneck,
    rungs: Sequence[str],
    problem: Problem = lambda _: None,
    measured: dict[tuple[str, ...], float] | None = None,
    arithmetic_s: Arithmetic = lambda _: 0.0,
) -> tuple[Gain, ...]:
    """Everything that can be added to a config, in the order of the ladder: known remedies that make a config, and
    configs of the same results (`measured`: images/s by rungs) that add rungs to it."""
    measured = measured or {}
    gains: dict[frozenset[str], Gain] = {}
    for remedy in REMEDIES:
        config = _with(rungs, remedy)
        if (
            config is None
            or problem(config) is not None
            or (remedy.effect == "network" and not bottleneck.needs.network_s)
        ):
            continue
        rate = next((r for other, r in measured.items() if set(other) == set(config)), None)
        added = tuple(rung for rung in remedy.rungs if rung not in rungs)
        gains.setdefault(frozenset(config), _gain(bottleneck, added, config, arithmetic_s(config), rate))
    for config, rate in measured.items():
        if len(config) > len(rungs) and config[: len(rungs)] == tuple(rungs):
            added = config[len(rungs) :]
            gains.setdefault(frozenset(config), _gain(bottleneck, added, config, arithmetic_s(config), rate))
    return tuple(gains.values())


def next_rung(gains: Iterable[Gain]) -> Gain | None:
    """The one to try, of those that attack what holds the cell back: the smallest addition that was measured, else the
    first on the ladder. None when nothing that is known attacks it."""
    able = [gain for gain in gains if gain.helps]
    measured = [gain for gain in able if gain.measured_images_per_s is not None]
    return min(measured, key=lambda gain: len(gain.added), default=next(iter(able), None))


def _with(rungs: Sequence[str], remedy: Remedy) -> tuple[str, ...] | None:
    """The config with a remedy's rungs; None where it has them, or has nothing that they replace."""
    if set(remedy.rungs) <= set(rungs):
        return None
    if remedy.replaces:
        if not remedy.replaces & set(rungs):
            return None
        return tuple(remedy.rungs[0] if rung in remedy.replaces else rung for rung in rungs)
    return (*rungs, *(rung for rung in remedy.rungs if rung not in rungs))


def _gain(
    bottleneck: Bottleneck, added: tuple[str, ...], config: tuple[str, ...], arithmetic_s: float, rate: float | None
) -> Gain:
    at_least_s = step_at_least_s(bottleneck, added, arithmetic_s)
    effects = effects_of(added)
    verdict = bottleneck.verdict
    helps = any(verdict in _EFFECTS[e] for e in effects) or (verdict == "balanced" and bool(effects))
    return Gain(
        added=added,
        rungs=config,
        step_at_least_s=at_least_s,
        images_per_s_at_most=bottleneck.images_per_step / at_least_s if at_least_s else float("inf"),
        # A rung that leaves the pipeline nearly as long as it was does not help.
        helps=helps and at_least_s < LEAST_GAIN * bottleneck.step_s,
        measured_images_per_s=rate,
    )


def effects_of(added: Iterable[str]) -> tuple[Effect, ...]:
    """The savings of rungs, each effect once; rungs that save no time have none."""
    effects: dict[Effect, None] = {}
    for rung in added:
        effects.update((remedy.effect, None) for remedy in REMEDIES if remedy.rungs == (rung,))
    return tuple(effects)


def step_at_least_s(bottleneck: Bottleneck, added: Iterable[str], arithmetic_s: float = 0.0) -> float:
    """The shortest step that the pipeline allows once these rungs have done all they can.

    Without a GPU the phases of the profiled pass are scaled to the step of the timed pass, which they make up. With one
    a stage needs what it needs, and no step gets longer than it was.
    """
    after = bottleneck.needs
    phases = {phase.name: phase for phase in bottleneck.phases}
    for effect in effects_of(added):
        after = _after(after, effect, phases, arithmetic_s, bottleneck.on_gpu)
    if bottleneck.on_gpu:
        return min(after.step_at_least_s, bottleneck.step_s)
    scale = bottleneck.step_s / bottleneck.needs.step_at_least_s if bottleneck.needs.step_at_least_s else 1.0
    return min(after.step_at_least_s * scale, bottleneck.step_s)


def _after(needs: Needs, effect: Effect, phases: dict[str, PhaseCost], arithmetic_s: float, on_gpu: bool) -> Needs:
    layered = [phase for name, phase in phases.items() if name not in (INPUT, "update", ALLREDUCE)]
    layers_host_s = sum(phase.host_s for phase in layered)
    layers_gpu_s = sum(phase.device_s or 0.0 for phase in layered)
    # On a CPU the host itself does the arithmetic.
    left_host_s = 0.0 if on_gpu else min(arithmetic_s, layers_host_s)
    left_gpu_s = min(arithmetic_s, layers_gpu_s)

    def less_host(saved_s: float) -> Needs:
        return replace(needs, host_s=max(0.0, needs.host_s - saved_s))

    def less_gpu(needs: Needs, saved_s: float) -> Needs:
        return needs if needs.gpu_s is None else replace(needs, gpu_s=max(0.0, needs.gpu_s - saved_s))

    match effect:
        case "overlap":
            return replace(needs, overlapped=True)
        case "input":
            return replace(needs, input_s=0.0)
        case "update":
            update = phases.get("update", PhaseCost("update", 0.0))
            return less_gpu(less_host(update.host_s), update.device_s or 0.0)
        case "layers":
            return less_gpu(less_host(layers_host_s - left_host_s), layers_gpu_s - left_gpu_s)
        case "host":
            return less_host(layers_host_s - left_host_s)
        case "network":
            return replace(needs, network_s=0.0)
        case "arithmetic":
            return less_gpu(needs, layers_gpu_s - left_gpu_s)
