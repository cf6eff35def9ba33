"""The gain of each rung: a ladder's configs in order, each against the last one below it that ran. Pure functions."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, Setting, ratio, unsure


@dataclass(frozen=True)
class DerivedConfig:
    """A config found in results. `backend` is what its name begins with."""

    rungs: tuple[str, ...]
    backend: str = ""

    @property
    def name(self) -> str:
        return (f"{self.backend}/" if self.backend else "") + "+".join(self.rungs)


@dataclass(frozen=True)
class DerivedLadder:
    """A ladder found in results: configs in order, each adding rungs."""

    name: str
    configs: tuple[DerivedConfig, ...]


@dataclass(frozen=True)
class LadderStep:
    """One config of a ladder at one batch size. `added` are the rungs it adds to the last config below it that ran, so
    that what a missing config would have brought is not credited to this one alone; the base adds all of its own.
    `before` and `after` are in images/s. On the base, and while no config below ran, `before` and `ratio` are None.
    `unsure`: the step may as well have changed nothing, as in `summary.unsure`. A config that gave no number has
    `after` None; `summary` is None when it was never run."""

    config: str
    added: tuple[str, ...]
    before: Interval | None
    after: Interval | None
    ratio: Interval | None
    summary: CellSummary | None
    unsure: bool = False


@dataclass(frozen=True)
class Climb:
    """A ladder climbed at one batch size in one setting (machine, device, input, ...)."""

    ladder: str
    setting: Setting
    batch_size: int
    steps: tuple[LadderStep, ...]

    @property
    def base(self) -> LadderStep | None:
        return next((step for step in self.steps if step.after), None)

    @property
    def top(self) -> LadderStep | None:
        return next((step for step in reversed(self.steps) if step.after), None)

    @property
    def total(self) -> Interval | None:
        """The top over the base; None where the two are one."""
        base, top = self._ends
        return ratio(top, base) if base and top and top is not base else None

    @property
    def unsure(self) -> bool:
        """Whether the whole ladder may as well have changed nothing."""
        base, top = self._ends
        return base is not None and top is not None and top is not base and unsure(top, base)

    @property
    def _ends(self) -> tuple[CellSummary | None, CellSummary | None]:
        return (self.base.summary if self.base else None), (self.top.summary if self.top else None)


def derive(summaries: Sequence[CellSummary]) -> tuple[DerivedLadder, ...]:
    """The ladders that results hold: each config stands on the longest other one that its rungs begin with. A ladder
    leads from a config that stands on none up to one that nothing stands on; two of one base are named by their top,
    else the name is the base's. Configs that neither stand on another nor carry one are no ladder, and neither are
    ablations, which change a setting instead of adding a rung."""
    cells = [s.cell for s in summaries if not s.cell.scenario_cudnn]
    configs = dict.fromkeys(DerivedConfig(cell.rungs, cell.config.rpartition("/")[0]) for cell in cells)

    def below(config: DerivedConfig) -> DerivedConfig | None:
        shorter = (DerivedConfig(config.rungs[:n], config.backend) for n in range(len(config.rungs) - 1, 0, -1))
        return next((other for other in shorter if other in configs), None)

    carriers = {below(c) for c in configs}
    chains = []
    for top in (c for c in configs if c not in carriers):
        chain = [top]
        while (under := below(chain[-1])) is not None:
            chain.append(under)
        if len(chain) > 1:
            chains.append(tuple(reversed(chain)))
    of_base = Counter(chain[0] for chain in chains)

    def name(chain: tuple[DerivedConfig, ...]) -> str:
        return (chain[-1] if of_base[chain[0]] > 1 else chain[0]).name

    return tuple(DerivedLadder(name(chain), chain) for chain in chains)


def climbs(summaries: Sequence[CellSummary], ladders: Sequence[DerivedLadder] | None = None) -> tuple[Climb, ...]:
    """Every ladder at every batch size of every setting: by setting, then ladder, then batch size (ascending). Without
    `ladders`, those that the results hold (`derive`), but where all that ran of one ran of another too. A ladder none
    of whose configs was run is left out."""
    derived = ladders is None
    ladders = derive(summaries) if ladders is None else ladders
    summaries = [s for s in summaries if not s.cell.scenario_cudnn]
    climbed = []
    for setting in dict.fromkeys(s.setting for s in summaries):
        at = {(s.cell.config, s.cell.batch_size): s for s in summaries if s.setting == setting}
        for ladder in ladders:
            wanted = {config.name for config in ladder.configs}
            for batch_size in sorted({size for name, size in at if name in wanted}):
                steps = _steps([(config, at.get((config.name, batch_size))) for config in ladder.configs])
                climbed.append(Climb(ladder.name, setting, batch_size, steps))
    ran = [(c.setting, c.batch_size, {step.config for step in c.steps if step.summary}) for c in climbed]
    within = [
        any(
            one[:2] == other[:2] and (one[2] < other[2] or (one[2] == other[2] and j < i))
            for j, other in enumerate(ran)
        )
        for i, one in enumerate(ran)
    ]
    return tuple(climb for climb, spare in zip(climbed, within, strict=True) if not (derived and spare))


def _steps(configs: Sequence[tuple[DerivedConfig, CellSummary | None]]) -> tuple[LadderStep, ...]:
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
