"""The rung contract: one optimisation, in one file, that changes parts before they are built.

Owns what a rung declares and the stages it may change. Knows no framework: what the parts are is between a backend and
its rungs. A rung changes only the stages it overrides; a backend folds the rungs in the config's order."""

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
    """Another rung without which this one does not work. `when` names the rung that brings the need about
    (None: always); `why` is shown to the user."""

    rung: str
    why: str
    when: str | None = None


@dataclass(frozen=True)
class Instructions:
    """Instructions of a processor by Linux's names, of which it takes one. The same numbers come without; `without`
    says how. `optional`: it runs all the same; others are skipped unless they are named."""

    any_of: tuple[str, ...]
    without: str
    optional: bool = False


BF16 = Instructions(("avx512_bf16", "amx_bf16"), "emulated, bf16 is computed in fp32")
"""For products of bfloat16 numbers."""

FP16 = Instructions(("amx_fp16",), "stored in 16 bits, computed in 32", optional=True)
"""For products of float16 numbers that are summed in float32. Those of AVX512-FP16 sum in float16, so that oneDNN
converts and multiplies in float32 there (oneDNN Developer Guide, Data Types, "Hardware Limitations")."""


@dataclass(frozen=True)
class Requires:
    """Requirements of a rung: one of some kinds of device (None: any), a compute capability (of devices that have one),
    instructions of a processor, packages, other rungs, and others where there are many ranks; `alone` says why it does
    not run on many at all."""

    devices: frozenset[str] | None = None
    compute_capability: tuple[int, int] | None = None
    instructions: Instructions | None = None
    packages: tuple[Package, ...] = ()
    rungs: tuple[Needs, ...] = ()
    rungs_on_many_ranks: tuple[Needs, ...] = ()
    alone: str | None = None

    def is_emulated(self, instructions: frozenset[str] | None) -> bool:
        """Whether a processor that has these lacks those it takes; None: another kind of device."""
        needed = self.instructions
        return needed is not None and instructions is not None and instructions.isdisjoint(needed.any_of)


@dataclass(frozen=True)
class Tolerance:
    """Relative distances: of each step's loss; in the L2 norm of what training did to all parameters; of the gradient
    at the first weights, in the L2 norm, of the parameter that is farthest; and how much longer or shorter the
    gradient of one kind of parameter may be, which rounding hardly changes however wide it scatters. None: not held."""

    loss: float
    update: float
    gradient: float | None = None
    length: float | None = None


@dataclass(frozen=True)
class Parity:
    """The distance that a config may have from the same config without the rung, same seed and batches.

    `exact`: bit-identical losses and parameters. `tolerance`: within that of the dtype which a config stores
    activations in, over 5 steps at a learning rate of 0.01. `other`: it trains in another way on purpose, and is held
    within the same tolerance against itself in float64. (The update's tolerance is wide: where rounding moves a value
    across ReLU's kink, a whole gradient appears or vanishes. At the first weights that is seldom so in float32, and the
    gradient's is narrow.) `input`: the rung delivers other pixels, so losses are not compared; `pixels` bounds the mean
    absolute error of a centre crop, in units of 0..255. `where`: the condition under which it holds, in words."""

    kind: Literal["exact", "tolerance", "other", "input"]
    float32: Tolerance | None = None
    float16: Tolerance | None = None
    bfloat16: Tolerance | None = None
    pixels: float = 0.0
    where: str = ""

    def of(self, storage: str) -> Tolerance | None:
        """The tolerance in a config that stores this dtype."""
        return {"float32": self.float32, "float16": self.float16, "bfloat16": self.bfloat16}[storage]

    def __str__(self) -> str:
        if self.kind == "input":
            return f"pixels within {self.pixels:g}/255"
        parts = [
            f"{name}: loss within {tolerance.loss:.2g}"
            for name, tolerance in (("fp32", self.float32), ("fp16", self.float16), ("bf16", self.bfloat16))
            if tolerance
        ]
        other = "of itself in float64" if self.kind == "other" else ""
        return " ".join(filter(None, ["; ".join(parts) or "bit-identical", other, self.where]))


EXACT = Parity("exact")

EXACT_ALONE = Parity("exact", where="on one rank")
"""For a rung about ranks, which changes nothing where there is one."""

ROUNDING = Parity(
    "tolerance",
    float32=Tolerance(5e-4, 0.1, 1e-4),
    float16=Tolerance(1e-2, 0.3, 0.15, 0.01),
    bfloat16=Tolerance(2e-2, 0.4, 0.35, 0.015),
)
"""For a rung that computes the same numbers in another order."""


Update = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
"""One step of an optimizer: from weights, gradient, state (None at first) and settings to weights and state."""


def sgd(weights: Any, gradient: Any, velocity: Any, train: Any) -> tuple[Any, Any]:
    """SGD with momentum and weight decay: the update of a config whose rungs declare no other."""
    kept = 0.0 if velocity is None else train.momentum * velocity
    velocity = kept - train.learning_rate * (gradient + train.weight_decay * weights)
    return weights + velocity, velocity


class Rung:
    """One optimisation. Subclasses set the declarations and override the stages they change. Every stage takes what the
    rungs before it left and the cell's settings, and returns what the next rung gets. `shows` is what a training
    session is seen to do because of the rung, by observed property: a rung changes these and no other observed
    property. `conflicts` names the rungs that it does not go with; a mapping says why."""

    name: ClassVar[str]
    says: ClassVar[str]
    requires: ClassVar[Requires] = Requires()
    conflicts: ClassVar[frozenset[str] | Mapping[str, str]] = frozenset()
    parity: ClassVar[Parity] = EXACT
    rounding: ClassVar[Parity] = ROUNDING
    """The bound of the base config, which has no rung, against float64."""
    shows: ClassVar[Mapping[str, str]] = {}
    source: ClassVar[str]

    def scope(self, settings: Any) -> contextlib.AbstractContextManager[None]:
        """Process or library state held from build to end."""
        return contextlib.nullcontext()

    def parts(self, parts: Any, settings: Any) -> Any:
        """The parts the model is built from."""
        return parts

    def optimizer(self, optimizer: Any, settings: Any) -> Any:
        """The description of the optimizer, before it is built."""
        return optimizer

    def applies(self, update: Update) -> Update:
        """The update that the optimizer is held against in float64, from that of the rungs before it."""
        return update

    def exchange(self, exchange: Any, settings: Any) -> Any:
        """The description of how gradients are averaged over ranks; not asked where there is one rank."""
        return exchange

    def feed(self, recipe: Any, settings: Any) -> Any:
        """The recipe of batches: their source, and the stages around it."""
        return recipe

    def step(self, phases: Any, settings: Any) -> Any:
        """The phases of one step."""
        return phases


def storage_of(rungs: Iterable[Rung]) -> str:
    """The dtype in which a config of these rungs stores activations: float32 where none says otherwise."""
    return next((rung.shows["storage"] for rung in rungs if "storage" in rung.shows), "float32")


@dataclass(frozen=True)
class RungSet:
    """The rungs of one backend, by name, in the order in which they are shown."""

    backend: str
    rungs: Mapping[str, Rung] = field(default_factory=dict)

    @classmethod
    def of(cls, backend: str, rungs: Iterable[Rung]) -> Self:
        return cls(backend, by_name(rungs))

    @classmethod
    def defined_in(cls, backend: str, *modules: ModuleType) -> Self:
        """One of every rung that the modules define, in that order."""
        named = [(module.__name__, kind) for module in modules for kind in vars(module).values()]
        kinds = (kind for name, kind in named if isinstance(kind, type) and kind.__module__ == name)
        return cls.of(backend, (kind() for kind in kinds if issubclass(kind, Rung)))

    def __getitem__(self, name: str) -> Rung:
        return self.rungs[name]

    def __contains__(self, name: str) -> bool:
        return name in self.rungs

    def emulated(self, names: Iterable[str], instructions: frozenset[str] | None) -> tuple[str, ...]:
        """Those rungs that a processor with these instructions emulates; None: another kind of device."""
        return tuple(name for name in names if name in self and self[name].requires.is_emulated(instructions))

    def problem(self, names: Sequence[str]) -> str | None:
        """Why this list of rungs is not a config, or None. Rungs must be known, named once, without conflicts, and
        each must have the rungs it needs before it."""
        for place, name in enumerate(names):
            if name not in self.rungs:
                known = f"known: {', '.join(self.rungs)}"
                return f"unknown rung '{name}' ({hint(name, self.rungs, known)})"
            if name in names[:place]:
                return f"rung '{name}' is named twice"
            rung = self.rungs[name]
            for other in names[:place]:
                for conflicts, with_whom in ((rung.conflicts, other), (self.rungs[other].conflicts, name)):
                    if with_whom in conflicts:
                        why = f": {conflicts[with_whom]}" if isinstance(conflicts, Mapping) else ""
                        return f"rungs '{other}' and '{name}' cannot be used together{why}"
            for need in rung.requires.rungs:
                if (need.when is None or need.when in names) and need.rung not in names[:place]:
                    condition = f" with '{need.when}'" if need.when else ""
                    return f"rung '{name}'{condition} needs '{need.rung}' before it: {need.why}"
        return None

    def problem_of_many(self, names: Sequence[str]) -> str | None:
        """The reason why a config of these rungs does not run on many ranks though it does on one, or None. Nothing is
        known of the rungs of a step of the user's own."""
        for name in filter(self.__contains__, names):
            requires = self.rungs[name].requires
            if requires.alone is not None:
                return f"{name}: on one rank only: {requires.alone}"
            for need in requires.rungs_on_many_ranks:
                if need.rung not in names:
                    return f"{name}: on many ranks it needs '{need.rung}': {need.why}"
        return None
