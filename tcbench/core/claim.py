"""A claim: a sentence made checkable, most often the talk's; and the form of a scenario's [[claim]] tables."""

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import msgspec
from msgspec import Meta

from tcbench.core.errors import ScenarioError, hint

ComparisonRelation = Literal["faster", "slower", "about"]
"""Of images per second: left over right lies above, below or about the factor."""

RunRelation = Literal["runs", "does not run"]
"""Whether the left config runs at all: out of memory is an answer."""

BoundRelation = Literal["gpu-bound", "not gpu-bound"]
"""Whether the GPU holds the left config back, in the words of `tcbench explain`."""

ExternalRelation = Literal["trains like", "keeps gradients", "scales", "fewer kernels"]
"""Relations that records of `tcbench run` do not show: the loss curves are alike; few of the gradients' values become
zero; many ranks train like one at the same global batch; fewer kernels are launched per step than with the right
config."""

Relation = ComparisonRelation | RunRelation | BoundRelation | ExternalRelation
COMPARISONS: tuple[ComparisonRelation, ...] = get_args(ComparisonRelation)
RUNS: tuple[RunRelation, ...] = get_args(RunRelation)
BOUNDS: tuple[BoundRelation, ...] = get_args(BoundRelation)
EXTERNAL: tuple[ExternalRelation, ...] = get_args(ExternalRelation)
RELATIONS: tuple[Relation, ...] = (*COMPARISONS, *RUNS, *BOUNDS, *EXTERNAL)

At = Literal["all", "any"]

BEST_OF = "best of "
"""Prefix of a glob that means the fastest of the configs that it matches."""

LOW = "{low}"
"""Stands, in a claim's configs and words, for the low precision that the machine computes in."""

LOW_PRECISIONS = ("fp16", "bf16")
"""The rungs that it may be, the talk's first."""

ABOUT = 0.1
"""The margin of `about` where the claim names none."""


@dataclass(frozen=True)
class ClaimSide:
    """One side of a claim: a config by its name or, where `best`, the fastest of those that a glob matches."""

    config: str
    best: bool = False

    def matches(self, name: str) -> bool:
        return fnmatch.fnmatchcase(name, self.config) if self.best else name == self.config

    def __str__(self) -> str:
        return (BEST_OF if self.best else "") + self.config


@dataclass(frozen=True)
class Claim:
    """A statement about configs at batch sizes. `slide` is the talk's; None for what the talk did not say. A comparison
    sets left's images/s over right's, or over `images_per_s`: `faster` is above `factor` / (1 + `margin`), `slower`
    below `factor` x (1 + `margin`), `about` between the two. Right has left's batch size, or `right_batch_size`. `at`:
    it is said of `all` of the batch sizes, or of `any` one of them."""

    says: str
    relation: Relation
    left: ClaimSide
    batch_sizes: tuple[int, ...]
    slide: int | None = None
    right: ClaimSide | None = None
    images_per_s: float | None = None
    factor: float = 1.0
    margin: float = 0.0
    right_batch_size: int | None = None
    at: At = "all"

    @property
    def asks_low(self) -> bool:
        """Whether it is asked of the low precision that the machine computes in, whichever that is."""
        return LOW in self.says or any(side is not None and LOW in side.config for side in (self.left, self.right))

    def of(self, low: str) -> Self:
        """The claim with `low` as that precision. One of the talk's keeps the talk's word, and says what stands in."""
        left, right = (side and replace(side, config=side.config.replace(LOW, low)) for side in (self.left, self.right))
        assert left is not None
        talks = LOW_PRECISIONS[0]
        says = self.says.replace(LOW, low if self.slide is None else talks)
        if self.asks_low and self.slide is not None and low != talks:
            says += f" ({low} here, {talks} in the talk)"
        return replace(self, says=says, left=left, right=right)

    @property
    def least(self) -> float | None:
        """The ratio that a comparison must lie above; None where any is low enough."""
        return None if self.relation == "slower" else self.factor / (1 + self.margin)

    @property
    def most(self) -> float | None:
        """The ratio that a comparison must lie below; None where any is high enough."""
        return None if self.relation == "faster" else self.factor * (1 + self.margin)


class ClaimTable(msgspec.Struct, frozen=True, kw_only=True):
    """A [[claim]] table, key by key."""

    says: Annotated[str, Meta(min_length=1)]
    relation: str
    left: Annotated[str, Meta(min_length=1)]
    slide: Annotated[int, Meta(ge=1, le=1000)] | None = None
    right: Annotated[str, Meta(min_length=1)] | None = None
    images_per_s: Annotated[float, Meta(gt=0, le=1e9)] | None = None
    factor: Annotated[float, Meta(gt=0, le=1e6)] | None = None
    margin: Annotated[float, Meta(gt=0, lt=1)] | None = None
    batch_sizes: Annotated[list[int], Meta(min_length=1)] | None = None
    right_batch_size: int | None = None
    at: str = "all"


def read(
    path: Path,
    tables: Sequence[ClaimTable],
    configs: Iterable[str],
    batch_sizes: Sequence[int],
    *,
    inherited: bool = False,
) -> tuple[Claim, ...]:
    """The claims of a scenario that has these configs and batch sizes. Raises ScenarioError naming file and key.
    `inherited`: the tables were written for another form of the scenario, so that one about a config or batch size that
    is not here is left out."""
    names = list(dict.fromkeys(configs))
    claims = []
    for place, table in enumerate(tables):
        key = f"{path}: claim[{place}]"
        mistake = _mistake(table)
        absent = None if mistake else _absent(table, names, batch_sizes)
        if absent and inherited:
            continue
        if mistake or absent:
            raise ScenarioError(f"{key}.{mistake or absent}")
        fields: dict[str, Any] = {"margin": ABOUT if table.relation == "about" else 0.0}
        fields |= {name: value for name, value in msgspec.structs.asdict(table).items() if value is not None}
        fields |= {name: _side(fields[name]) for name in ("left", "right") if name in fields}
        claims.append(Claim(**fields | {"batch_sizes": tuple(dict.fromkeys(table.batch_sizes or batch_sizes))}))
    return tuple(claims)


def _side(text: str) -> ClaimSide:
    return ClaimSide(text.removeprefix(BEST_OF), text.startswith(BEST_OF))


def _mistake(table: ClaimTable) -> str | None:
    """The mistake in a table by itself: the key, what was expected, what it has."""
    relation = table.relation
    if relation not in RELATIONS:
        return f"relation: unknown '{relation}'; {hint(relation, RELATIONS)}"
    if table.at not in get_args(At):
        return f"at: expected all or any, got '{table.at}'"
    if relation in COMPARISONS:
        if (table.right is None) == (table.images_per_s is None):
            return f"right: expected for '{relation}', or images_per_s in its place"
        if table.right is None and table.right_batch_size is not None:
            return "right_batch_size: expected only beside right"
        return None
    needs_right = relation in ("trains like", "fewer kernels")
    if needs_right and table.right is None:
        return f"right: missing; expected for '{relation}'"
    alien = ("images_per_s", "factor", "margin", "right_batch_size", *(() if needs_right else ("right",)))
    for key in alien:
        if getattr(table, key) is not None:
            return f"{key}: not for '{relation}'; expected with {', '.join(COMPARISONS)}"
    for key in ("left", "right"):
        if (getattr(table, key) or "").startswith(BEST_OF):
            return f"{key}: '{BEST_OF}...' not for '{relation}'; expected a config's name"
    return None


def _absent(table: ClaimTable, names: Sequence[str], batch_sizes: Sequence[int]) -> str | None:
    """The config or batch size that a table names and the scenario has not."""
    for key, text in (("left", table.left), ("right", table.right)):
        if text is None:
            continue
        for named in dict.fromkeys(text.replace(LOW, low) for low in LOW_PRECISIONS):
            side = _side(named)
            if any(map(side.matches, names)):
                continue
            if side.best:
                return f"{key}: '{named}' matches none of {', '.join(names)}"
            return f"{key}: unknown config '{named}'; {hint(named, names)}"
    sizes = ", ".join(map(str, batch_sizes))
    for place, size in enumerate(table.batch_sizes or ()):
        if size not in batch_sizes:
            return f"batch_sizes[{place}]: expected one of {sizes}, got {size}"
    if table.right_batch_size is not None and table.right_batch_size not in batch_sizes:
        return f"right_batch_size: expected one of {sizes}, got {table.right_batch_size}"
    return None
