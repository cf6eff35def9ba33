"""Claims: statements, mostly of the talk, that results can confirm or refute, and a scenario's [[claim]] tables."""

import fnmatch
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

import msgspec
from msgspec import Meta

from tcbench.core.errors import ScenarioError, hint

ComparisonRelation = Literal["faster", "slower", "about"]
"""Relations of a rate ratio: left's images per second over right's are above, below or about the factor."""

RunRelation = Literal["runs", "does not run"]
"""Relations about whether the left config runs or is out of memory."""

BoundRelation = Literal["gpu-bound", "not gpu-bound"]
"""Relations about whether the GPU limits the left config, as `tcbench explain` defines it."""

ExternalRelation = Literal["trains like", "keeps gradients", "scales", "fewer kernels"]
"""Relations that need more than records of `tcbench run`: the loss curves are alike; few gradient values become zero;
many ranks train like one at the same global batch; a step launches fewer kernels than with the right config."""

Relation = ComparisonRelation | RunRelation | BoundRelation | ExternalRelation
COMPARISONS: tuple[ComparisonRelation, ...] = get_args(ComparisonRelation)
RUNS: tuple[RunRelation, ...] = get_args(RunRelation)
BOUNDS: tuple[BoundRelation, ...] = get_args(BoundRelation)
EXTERNAL: tuple[ExternalRelation, ...] = get_args(ExternalRelation)
RELATIONS: tuple[Relation, ...] = (*COMPARISONS, *RUNS, *BOUNDS, *EXTERNAL)

Quantifier = Literal["all", "any"]

BEST_OF = "best of "
"""The prefix of a glob that selects the fastest of the matching configs."""

LOW = "{low}"
"""The placeholder in a claim for the low precision that the machine computes in."""

LOW_PRECISIONS = ("fp16", "bf16")
"""The rungs that may replace the placeholder. The first one is the talk's."""

ABOUT = 0.1
"""The default margin of the relation `about`."""


@dataclass(frozen=True)
class ClaimSide:
    """One side of a claim: a config by name or, if `best`, the fastest of those that a glob matches."""

    config: str
    best: bool = False

    def matches(self, name: str) -> bool:
        """Return whether this side of the claim refers to the config `name`."""
        return fnmatch.fnmatchcase(name, self.config) if self.best else name == self.config

    def __str__(self) -> str:
        return (BEST_OF if self.best else "") + self.config


@dataclass(frozen=True)
class Claim:
    """A statement about configs at batch sizes. `slide` is the talk's slide, or None if the talk did not claim it.

    A comparison is about the ratio of left's images/s to right's, or to `images_per_s`. `faster` means above `factor` /
    (1 + `margin`), `slower` means below `factor` x (1 + `margin`), `about` means between the two. Right is measured at
    `right_batch_size`, or else at left's batch size. The statement holds for `all` batch sizes or for `any` of them
    (`quantifier`)."""

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
    quantifier: Quantifier = "all"

    @property
    def depends_on_precision(self) -> bool:
        """Whether the claim has the placeholder for the machine's low precision."""
        return LOW in self.says or any(side is not None and LOW in side.config for side in (self.left, self.right))

    def with_precision(self, low: str) -> Self:
        """Return the claim with the placeholder replaced by `low`, a rung such as "bf16". The text of a claim of the
        talk names the talk's precision, followed by a remark if `low` is another one."""
        left, right = (side and replace(side, config=side.config.replace(LOW, low)) for side in (self.left, self.right))
        assert left is not None
        in_talk = LOW_PRECISIONS[0]
        says = self.says.replace(LOW, low if self.slide is None else in_talk)
        if self.depends_on_precision and self.slide is not None and low != in_talk:
            says += f" ({low} here, {in_talk} in the talk)"
        return replace(self, says=says, left=left, right=right)

    @property
    def least(self) -> float | None:
        """The ratio that a comparison must exceed, or None if there is no lower limit."""
        return None if self.relation == "slower" else self.factor / (1 + self.margin)

    @property
    def most(self) -> float | None:
        """The ratio that a comparison must stay below, or None if there is no upper limit."""
        return None if self.relation == "faster" else self.factor * (1 + self.margin)


class ClaimTable(msgspec.Struct, frozen=True, kw_only=True):
    """A [[claim]] table of a scenario file. The fields are its keys."""

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


def check_claims(
    path: Path,
    tables: Sequence[ClaimTable],
    configs: Iterable[str],
    batch_sizes: Sequence[int],
    *,
    inherited: bool = False,
) -> tuple[Claim, ...]:
    """Check the [[claim]] tables of a scenario, and return them as claims.

    `path` is the scenario's file, for error messages; `configs` and `batch_sizes` are the names of its configs and its
    batch sizes. `inherited`: the tables were written for another variant of the scenario, and claims about configs or
    batch sizes that this variant lacks are left out. Raises ScenarioError with the file and the key of a mistake."""
    names = list(dict.fromkeys(configs))
    claims = []
    for place, table in enumerate(tables):
        key = f"{path}: claim[{place}]"
        mistake = _mistake(table)
        missing = None if mistake else _missing(table, names, batch_sizes)
        if missing and inherited:
            continue
        if mistake or missing:
            raise ScenarioError(f"{key}.{mistake or missing}")
        fields: dict[str, Any] = {"margin": ABOUT if table.relation == "about" else 0.0}
        fields |= {name: value for name, value in msgspec.structs.asdict(table).items() if value is not None}
        fields["quantifier"] = fields.pop("at")
        fields |= {name: _side(fields[name]) for name in ("left", "right") if name in fields}
        claims.append(Claim(**fields | {"batch_sizes": tuple(dict.fromkeys(table.batch_sizes or batch_sizes))}))
    return tuple(claims)


def _side(text: str) -> ClaimSide:
    return ClaimSide(text.removeprefix(BEST_OF), text.startswith(BEST_OF))


def _mistake(table: ClaimTable) -> str | None:
    """Return the first mistake in a table that does not depend on the scenario's configs: the key, what is wrong and
    what is expected. None if there is no mistake."""
    relation = table.relation
    if relation not in RELATIONS:
        return f"relation: unknown '{relation}'; {hint(relation, RELATIONS)}"
    if table.at not in get_args(Quantifier):
        return f"at: expected all or any, got '{table.at}'"
    if relation in COMPARISONS:
        if (table.right is None) == (table.images_per_s is None):
            return f"right: expected for '{relation}', or images_per_s instead"
        if table.right is None and table.right_batch_size is not None:
            return "right_batch_size: expected only together with right"
        return None
    needs_right = relation in ("trains like", "fewer kernels")
    if needs_right and table.right is None:
        return f"right: missing; expected for '{relation}'"
    for key in ("images_per_s", "factor", "margin", "right_batch_size", *(() if needs_right else ("right",))):
        if getattr(table, key) is not None:
            return f"{key}: not allowed for '{relation}'; expected for {', '.join(COMPARISONS)} only"
    for key in ("left", "right"):
        if (getattr(table, key) or "").startswith(BEST_OF):
            return f"{key}: '{BEST_OF}...' is not allowed for '{relation}'; expected a config's name"
    return None


def _missing(table: ClaimTable, names: Sequence[str], batch_sizes: Sequence[int]) -> str | None:
    """Return an error about the first config or batch size that a table names and the scenario lacks, or None. `names`
    are the names of the scenario's configs."""
    for key, text in (("left", table.left), ("right", table.right)):
        for config in dict.fromkeys((text or "").replace(LOW, low) for low in LOW_PRECISIONS if text):
            side = _side(config)
            if any(map(side.matches, names)):
                continue
            if side.best:
                return f"{key}: '{config}' matches none of {', '.join(names)}"
            return f"{key}: unknown config '{config}'; {hint(config, names)}"
    sizes = ", ".join(map(str, batch_sizes))
    for place, size in enumerate(table.batch_sizes or ()):
        if size not in batch_sizes:
            return f"batch_sizes[{place}]: expected one of {sizes}, got {size}"
    if table.right_batch_size is not None and table.right_batch_size not in batch_sizes:
        return f"right_batch_size: expected one of {sizes}, got {table.right_batch_size}"
    return None
