"""The gain of each rung: a ladder's configs in order, each compared with the last config below it that ran."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, Setting, ratio, unsure


@dataclass(frozen=True)
class DerivedConfig:
    """A config in results: its rungs, and the backend that its name begins with, if any."""

    rungs: tuple[str, ...]
    backend: str = ""

    @property
    def name(self) -> str:
        """The config's name as in records."""
        return (f"{self.backend}/" if self.backend else "") + "+".join(self.rungs)


@dataclass(frozen=True)
class DerivedLadder:
    """A ladder derived from results: configs in order, each adding rungs to the one before."""

    name: str
    configs: tuple[DerivedConfig, ...]


@dataclass(frozen=True)
class LadderStep:
    """A config of a ladder at one batch size, compared with the last config below it that ran.

    `added` are the rungs that it adds to that config; the base adds all of them. `before` and `after` are throughputs.
    `before` and `ratio` are None if no config below ran, `after` if this config has no number, and `summary` if it did
    not run. `unsure` means that the step may have changed nothing (`summary.unsure`)."""

    config: str
    added: tuple[str, ...]
    before: Interval | None
    after: Interval | None
    ratio: Interval | None
    summary: CellSummary | None
    unsure: bool = False


@dataclass(frozen=True)
class Climb:
    """A ladder at one batch size in one setting (machine, device, input, ...)."""

    ladder: str
    setting: Setting
    batch_size: int
    steps: tuple[LadderStep, ...]

    @property
    def base(self) -> LadderStep | None:
        """The first step that has a number."""
        return next((step for step in self.steps if step.after), None)

    @property
    def top(self) -> LadderStep | None:
        """The last step that has a number."""
        return next((step for step in reversed(self.steps) if step.after), None)

    @property
    def total(self) -> Interval | None:
        """The ratio of the top over the base; None if they are the same step."""
        return ratio(*ends) if (ends := self._ends) else None

    @property
    def unsure(self) -> bool:
        """Whether the whole ladder may have changed nothing."""
        return unsure(*ends) if (ends := self._ends) else False

    @property
    def _ends(self) -> tuple[CellSummary, CellSummary] | None:
        """The cells of top and base; None if they are the same step."""
        measured = [step.summary for step in self.steps if step.after and step.summary]
        return (measured[-1], measured[0]) if len(measured) > 1 else None


def derive_ladders(summaries: Sequence[CellSummary]) -> tuple[DerivedLadder, ...]:
    """Derive the ladders from the configs in results.

    The parent of a config is the longest other config whose rungs are the beginning of its rungs. A ladder is a chain
    of at least two configs, from one without parent to one without children. It is named after its base, or after its
    top if several ladders share the base. Ablations are left out, because they change a setting and add no rung."""
    cells = [s.cell for s in summaries if not s.cell.scenario_cudnn]
    configs = dict.fromkeys(DerivedConfig(cell.rungs, cell.config.rpartition("/")[0]) for cell in cells)

    def parent(config: DerivedConfig) -> DerivedConfig | None:
        """Return the parent of a config, None if it has none."""
        shorter = (DerivedConfig(config.rungs[:n], config.backend) for n in range(len(config.rungs) - 1, 0, -1))
        return next((candidate for candidate in shorter if candidate in configs), None)

    parents = {parent(config) for config in configs}
    chains = []
    for top in (config for config in configs if config not in parents):
        chain = [top]
        while (below := parent(chain[-1])) is not None:
            chain.append(below)
        if len(chain) > 1:
            chains.append(tuple(reversed(chain)))
    ladders_per_base = Counter(chain[0] for chain in chains)

    def name(chain: tuple[DerivedConfig, ...]) -> str:
        return (chain[-1] if ladders_per_base[chain[0]] > 1 else chain[0]).name

    return tuple(DerivedLadder(name(chain), chain) for chain in chains)


def climbs(summaries: Sequence[CellSummary], ladders: Sequence[DerivedLadder] | None = None) -> tuple[Climb, ...]:
    """Return every ladder at every batch size of every setting, ordered by setting, ladder and batch size.

    Without `ladders`, derive them from the results, and leave out a ladder if its measured configs are all part of
    another one. Ladders without any measured config are left out."""
    derived = ladders is None
    ladders = derive_ladders(summaries) if ladders is None else ladders
    summaries = [s for s in summaries if not s.cell.scenario_cudnn]
    climbed = []
    for setting in dict.fromkeys(s.setting for s in summaries):
        cells = {(s.cell.config, s.cell.batch_size): s for s in summaries if s.setting == setting}
        for ladder in ladders:
            names = {config.name for config in ladder.configs}
            for batch_size in sorted({size for name, size in cells if name in names}):
                steps = _steps([(config, cells.get((config.name, batch_size))) for config in ladder.configs])
                climbed.append(Climb(ladder.name, setting, batch_size, steps))
    if not derived:
        return tuple(climbed)
    measured = [((c.setting, c.batch_size), {step.config for step in c.steps if step.summary}) for c in climbed]

    def is_part_of_another(i: int) -> bool:
        """Return whether another ladder of this setting and batch size has all measured configs of climb `i`. Of
        ladders with equal configs, the first is kept."""
        place, configs = measured[i]
        return any(
            place == other_place and (configs < other or (configs == other and j < i))
            for j, (other_place, other) in enumerate(measured)
        )

    return tuple(climb for i, climb in enumerate(climbed) if not is_part_of_another(i))


def _steps(configs: Sequence[tuple[DerivedConfig, CellSummary | None]]) -> tuple[LadderStep, ...]:
    """Return the steps of a ladder at one batch size, each compared with the last config before it that has a result.

    `configs` are the ladder's configs in order with their cells, None for a cell that did not run."""
    steps = []
    below: CellSummary | None = None
    rungs_below: tuple[str, ...] = ()
    for config, summary in configs:
        after = summary.images_per_s if summary else None
        steps.append(
            LadderStep(
                config=config.name,
                added=tuple(rung for rung in config.rungs if rung not in rungs_below),
                before=below.images_per_s if below else None,
                after=after,
                ratio=ratio(summary, below) if summary and below else None,
                summary=summary,
                unsure=bool(summary and below and unsure(summary, below)),
            )
        )
        if after is not None:
            below, rungs_below = summary, config.rungs
    return tuple(steps)
