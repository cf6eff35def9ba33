"""The interface of a rung: one optimisation, in one file, that changes the parts of a training step before it is built.

It defines what a rung declares and the stages that it may change. It is independent of frameworks: each backend agrees
with its rungs on what the parts are. A rung changes only the stages that it overrides. A backend applies the rungs in
the config's order."""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, ClassVar, Literal, Self

from tcbench.core.errors import hint
from tcbench.core.groups import by_name
from tcbench.core.packages import Package


@dataclass(frozen=True)
class Needs:
    """Another rung that this one requires. `when` names a third rung that causes the requirement; None means always.
    `why` is shown to the user."""

    rung: str
    why: str
    when: str | None = None


@dataclass(frozen=True)
class Instructions:
    """Instructions of a processor, by their names in Linux. A rung needs one of them to be fast. A processor that has
    none computes the same numbers more slowly; `fallback` describes how. On such a processor the rung is skipped unless
    the user names it, or unless `optional` is set."""

    any_of: tuple[str, ...]
    fallback: str
    optional: bool = False


BF16 = Instructions(("avx512_bf16", "amx_bf16"), "emulated, bf16 is computed in fp32")
"""Instructions for products of bfloat16 numbers."""

FP16 = Instructions(("amx_fp16",), "stored in 16 bits, computed in 32", optional=True)
"""Instructions for products of float16 numbers with sums in float32.

AVX512-FP16 is not among them: it sums in float16, so oneDNN converts to float32 first (oneDNN Developer Guide, Data
Types, "Hardware Limitations")."""


@dataclass(frozen=True)
class Requires:
    """Requirements of a rung.

    - `devices`: kinds of device, one of which is needed; None means any.
    - `compute_capability`: the lowest that works, for devices that have one.
    - `rungs_on_many_ranks`: other rungs that are needed with several ranks.
    - `alone`: why the rung does not run on several ranks at all; None if it does."""

    devices: frozenset[str] | None = None
    compute_capability: tuple[int, int] | None = None
    instructions: Instructions | None = None
    packages: tuple[Package, ...] = ()
    rungs: tuple[Needs, ...] = ()
    rungs_on_many_ranks: tuple[Needs, ...] = ()
    alone: str | None = None

    def is_emulated(self, instructions: frozenset[str] | None) -> bool:
        """Return whether a processor with these instructions has none of those that the rung needs to be fast. Returns
        False if the rung needs none, or if `instructions` is None (the device is not a CPU)."""
        needed = self.instructions
        return needed is not None and instructions is not None and instructions.isdisjoint(needed.any_of)


@dataclass(frozen=True)
class Tolerance:
    """The largest relative distances of a config from its reference. A distance with the limit None is not checked.

    - `loss`: the distance between the losses of any one step.
    - `update`: the distance, in the L2 norm, between the changes that training makes to all parameters together.
    - `gradient`: the distance, in the L2 norm, between gradients at the first weights, for the parameter with the
      largest distance.
    - `length`: the distance between the L2 norms of all gradients of a kind of parameter (such as every batch
      normalisation's gamma), for the kind with the largest distance. Rounding changes the direction of gradients, but
      hardly their norm."""

    loss: float
    update: float
    gradient: float | None = None
    length: float | None = None


@dataclass(frozen=True)
class Parity:
    """The allowed distance of a config from the same config without the rung, with the same seed and batches.

    - `exact`: losses and parameters are bit-identical.
    - `tolerance`: within the tolerance of the dtype in which the config stores activations, over 5 steps at a learning
      rate of 0.01. The tolerance of `update` is wide, because a whole gradient appears or vanishes when rounding moves
      a value across ReLU's kink. In the first step that is rare in float32, so the tolerance of `gradient` is narrow.
    - `other`: the rung trains differently on purpose, and is compared with itself in float64, with the same tolerances.
    - `input`: the rung delivers other pixels, so losses are not compared. `pixels` is the largest mean absolute error
      of a centre crop, in units of 0 to 255.

    `where` states the condition under which this holds."""

    kind: Literal["exact", "tolerance", "other", "input"]
    float32: Tolerance | None = None
    float16: Tolerance | None = None
    bfloat16: Tolerance | None = None
    pixels: float = 0.0
    where: str = ""

    def tolerance(self, storage: str) -> Tolerance | None:
        """Return the tolerance for a config that stores activations in this dtype."""
        return {"float32": self.float32, "float16": self.float16, "bfloat16": self.bfloat16}[storage]

    def __str__(self) -> str:
        if self.kind == "input":
            return f"pixels within {self.pixels:g}/255"
        parts = [
            f"{name}: loss within {tolerance.loss:.2g}"
            for name, tolerance in (("fp32", self.float32), ("fp16", self.float16), ("bf16", self.bfloat16))
            if tolerance
        ]
        other = "of the same config in float64" if self.kind == "other" else ""
        return " ".join(filter(None, ["; ".join(parts) or "bit-identical", other, self.where]))


EXACT = Parity("exact")

EXACT_ALONE = Parity("exact", where="on one rank")
"""Parity of a rung for several ranks, which changes nothing on a single one."""

ROUNDING = Parity(
    "tolerance",
    float32=Tolerance(5e-4, 0.1, 1e-4),
    float16=Tolerance(1e-2, 0.3, 0.15, 0.01),
    bfloat16=Tolerance(2e-2, 0.4, 0.35, 0.015),
)
"""Parity of a rung that computes the same numbers in another order."""


Update = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
"""One step of an optimizer: from weights, gradient, state (None at first) and settings to weights and state."""


def sgd(weights: Any, gradient: Any, velocity: Any, train: Any) -> tuple[Any, Any]:
    """Update weights by SGD with momentum and weight decay, the default of a config whose rungs declare no other."""
    momentum = 0.0 if velocity is None else train.momentum * velocity
    velocity = momentum - train.learning_rate * (gradient + train.weight_decay * weights)
    return weights + velocity, velocity


class Rung:
    """One optimisation. Subclasses set the declarations and override the stages that they change.

    A stage takes what the previous rungs returned and the cell's settings, and returns what the next rung gets.
    `says` is a one-line description. `effects` maps observable properties of a training session to the values that the
    rung causes; the rung changes no other observable property. `conflicts` names rungs that cannot be used together
    with it; a mapping also gives the reasons. `source` names a publication."""

    name: ClassVar[str]
    says: ClassVar[str]
    requires: ClassVar[Requires] = Requires()
    conflicts: ClassVar[frozenset[str] | Mapping[str, str]] = frozenset()
    parity: ClassVar[Parity] = EXACT
    rounding: ClassVar[Parity] = ROUNDING
    """The allowed distance of the base config, whose only rung this is, from the same config in float64."""
    effects: ClassVar[Mapping[str, str]] = {}
    source: ClassVar[str]

    def __init_subclass__(cls, **options: Any) -> None:
        """Accept the earlier names of `effects` and `reference_update`, which rungs of other packages may use."""
        super().__init_subclass__(**options)
        for earlier, name in (("shows", "effects"), ("applies", "reference_update")):
            if earlier in vars(cls):
                setattr(cls, name, vars(cls)[earlier])

    def scope(self, settings: Any) -> contextlib.AbstractContextManager[None]:
        """Return a context that changes state of the process or of a library. It lasts as long as a session."""
        return contextlib.nullcontext()

    def parts(self, parts: Any, settings: Any) -> Any:
        """Return the parts from which the model is built."""
        return parts

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        """Return the description of the optimizer, before it is built."""
        return optimizer

    def reference_update(self, update: Update) -> Update:
        """Return the step of an optimizer, in float64, that the session's optimizer must agree with. `update` is the
        step that the previous rungs returned; at first, `sgd`."""
        return update

    def exchange(self, exchange: Any, settings: Any) -> Any:
        """Return the description of how gradients are averaged over ranks. Not called for a single rank."""
        return exchange

    def feed(self, recipe: Any, settings: Any) -> Any:
        """Return the recipe of batches: the feed that makes them, and the wrappers around it."""
        return recipe

    def step(self, phases: Any, settings: Any) -> Any:
        """Return the phases of one step."""
        return phases


def storage_of(rungs: Iterable[Rung]) -> str:
    """Return the dtype in which a config of these rungs stores activations; float32 by default."""
    return next((rung.effects["storage"] for rung in rungs if "storage" in rung.effects), "float32")


@dataclass(frozen=True)
class RungSet:
    """The rungs of one backend, by name, in display order."""

    backend: str
    rungs: Mapping[str, Rung] = field(default_factory=dict)

    @classmethod
    def from_rungs(cls, backend: str, rungs: Iterable[Rung]) -> Self:
        """Return the set of these rungs."""
        return cls(backend, by_name(rungs))

    of = from_rungs
    """The earlier name of `from_rungs`, which backends of other packages may use."""

    @classmethod
    def defined_in(cls, backend: str, *modules: ModuleType) -> Self:
        """Return the set of all rungs that the modules define (not those that they import), in order of definition."""
        members = [(module.__name__, member) for module in modules for member in vars(module).values()]
        kinds = (kind for name, kind in members if isinstance(kind, type) and kind.__module__ == name)
        return cls.from_rungs(backend, (kind() for kind in kinds if issubclass(kind, Rung)))

    def __getitem__(self, name: str) -> Rung:
        return self.rungs[name]

    def __contains__(self, name: str) -> bool:
        return name in self.rungs

    def emulated(self, names: Iterable[str], instructions: frozenset[str] | None) -> tuple[str, ...]:
        """Return which of the rungs `names` a processor with these instructions emulates; unknown rungs are ignored.
        Returns an empty tuple if `instructions` is None, as for devices other than CPUs."""
        return tuple(name for name in names if name in self and self[name].requires.is_emulated(instructions))

    def problem(self, names: Sequence[str]) -> str | None:
        """Return why this list of rungs is not a valid config, or None if it is valid.

        Rungs must exist, occur once, and not conflict, and the rungs that each requires must stand before it."""
        for place, name in enumerate(names):
            if name not in self.rungs:
                expected = f"known: {', '.join(self.rungs)}"
                return f"unknown rung '{name}' ({hint(name, self.rungs, expected)})"
            if name in names[:place]:
                return f"rung '{name}' is named twice"
            rung = self.rungs[name]
            for other in names[:place]:
                # Either of the two rungs can declare the conflict.
                for conflicts, with_whom in ((rung.conflicts, other), (self.rungs[other].conflicts, name)):
                    if with_whom in conflicts:
                        why = f": {conflicts[with_whom]}" if isinstance(conflicts, Mapping) else ""
                        return f"rungs '{other}' and '{name}' cannot be used together{why}"
            for need in rung.requires.rungs:
                if (need.when is None or need.when in names) and need.rung not in names[:place]:
                    condition = f" with '{need.when}'" if need.when else ""
                    return f"rung '{name}'{condition} needs '{need.rung}' before it: {need.why}"
        return None

    def problem_on_many_ranks(self, names: Sequence[str]) -> str | None:
        """Return why a config of these rungs does not run on several ranks, or None if it does. Unknown rungs are
        ignored: a user's own step may give its configs any name."""
        for name in filter(self.__contains__, names):
            requires = self.rungs[name].requires
            if requires.alone is not None:
                return f"{name}: on one rank only: {requires.alone}"
            for need in requires.rungs_on_many_ranks:
                if need.rung not in names:
                    return f"{name}: on many ranks it needs '{need.rung}': {need.why}"
        return None
