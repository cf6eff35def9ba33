"""The scorecard: the outcomes of a scenario's claims on a machine. Pure functions from claims and records to outcomes.

A comparison is decided by the 95% interval of left's images/s over right's, never by its value: it holds when the whole
interval lies where the claim says, does not when the whole interval lies elsewhere, and is undecided otherwise. So
"about" is an equivalence: two configs that merely cannot be told apart are not about equal (D. Schuirmann, "A
comparison of the two one-sided tests procedure", J. Pharmacokinetics and Biopharmaceutics 15, 1987; with 95% instead of
90% limits, which is stricter). Batch sizes are judged one by one without a correction, and so is the fastest of several
configs, which was chosen by the same trials that then speak for it.
"""

import math
import shlex
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from typing import Literal

import msgspec

from tcbench.analysis import welch
from tcbench.analysis.bottleneck import Bottleneck, explain_records
from tcbench.analysis.stats import Interval
from tcbench.analysis.summary import CellSummary, Setting, best, by_code, summarise
from tcbench.analysis.verdict import Rule
from tcbench.analysis.welch import Estimate, Group
from tcbench.core.claim import BOUNDS, COMPARISONS, LOW_PRECISIONS, RUNS, Claim, ClaimSide
from tcbench.core.record import TAKE_ENOUGH, Cell, Code, Environment, Record

ClaimOutcome = Literal["holds", "does not hold", "undecided", "not measured", "not testable here"]
OUTCOMES: tuple[ClaimOutcome, ...] = ("holds", "does not hold", "undecided", "not measured", "not testable here")
"""Not testable here is what this device cannot show, however often it is measured."""


@dataclass(frozen=True)
class Evidence:
    """An outcome from elsewhere than records of `tcbench run`, and what it rests on in one line."""

    outcome: ClaimOutcome
    why: str


OtherSource = Callable[[Claim], Evidence | None]
"""Another source of findings on a claim: training runs, timelines. None where it holds nothing on that claim."""


@dataclass(frozen=True)
class AtBatchSize:
    """A claim at one batch size. `left` and `right` are the configs that were compared, None where none was there.
    `ratio` is left's images/s over right's or over the claim's `images_per_s`; its interval is over `unit`, "steps"
    where a side has one trial only. `more_trials` a side would decide what is undecided (None: no sensible number, or
    not a matter of trials). `out_of_memory`: a side does not fit, so that there is nothing to compare. `missing`:
    configs with a batch size that were not measured, as `tcbench run` would be asked for them. `bottleneck`: of the
    left config, in place of `why`, where the claim is what holds it back."""

    batch_size: int
    outcome: ClaimOutcome
    why: str = ""
    left: str | None = None
    right: str | None = None
    ratio: Interval | None = None
    unit: Literal["steps", "trials"] | None = None
    more_trials: int | None = None
    out_of_memory: bool = False
    missing: tuple[tuple[str, int], ...] = ()
    bottleneck: Bottleneck | None = None


@dataclass(frozen=True)
class Evaluated:
    """A claim and what became of it. `why` is one line where the batch sizes do not say it; `command` measures what is
    missing."""

    claim: Claim
    outcome: ClaimOutcome
    at: tuple[AtBatchSize, ...] = ()
    why: str = ""
    command: str | None = None

    @property
    def by_one_trial(self) -> bool:
        """Whether a comparison that it rests on is over the steps of one trial, which says how steady that process was
        and not how the next one will be."""
        return any(at.unit == "steps" for at in self.at)


@dataclass(frozen=True)
class AskedClaims:
    """The claims on a setting's cells, and the command that runs them, without configs and batch sizes."""

    scenario: str
    claims: tuple[Claim, ...]
    run: str = "tcbench run"


@dataclass(frozen=True)
class Scorecard:
    """All claims on one machine in one setting. `cell` stands for the setting: its config and batch size are empty.
    `commands` measure what is missing. `low`: the low precision that claims were asked of which leave it to the
    machine; None where none does. `codes`: those that were measured, where other scorecards are of others."""

    machine: str | None
    environment: Environment | None
    cell: Cell
    scenario: str
    claims: tuple[Evaluated, ...]
    commands: tuple[str, ...] = ()
    low: str | None = None
    codes: tuple[Code, ...] = ()

    def count(self, outcome: ClaimOutcome) -> int:
        return sum(claim.outcome == outcome for claim in self.claims)


def scorecards(
    records: Iterable[Record],
    asked_of: Callable[[Cell], AskedClaims],
    sources: Sequence[OtherSource] = (),
    lacking: Callable[[str | None], Iterable[str]] = lambda _: (),
) -> tuple[Scorecard, ...]:
    """One scorecard per machine and setting, in the order of first appearance. `records` are those that `store.current`
    leaves; `asked_of` says what is claimed of a setting; the first of `sources` that knows a claim judges it where
    records do not; `lacking` says which rungs a machine is known to emulate, whether they were measured or not."""
    cards, settings = [], _by_setting(records)
    several = len({setting.codes for setting in settings}) > 1
    for (machine, cell, codes), measured in settings.items():
        here = _Here(measured, frozenset(lacking(machine)))
        asked = asked_of(cell)
        precision = _low_precision(here)
        claims = tuple(_evaluated(claim.of(precision), here, asked.run, sources) for claim in asked.claims)
        environment = next((m.summary.environment for m in measured.values() if m.summary.environment), None)
        low = precision if any(claim.asks_low for claim in asked.claims) else None
        commands = _commands(claims, asked.run)
        named = codes if several else ()
        cards.append(Scorecard(machine, environment, cell, asked.scenario, claims, commands, low, named))
    return tuple(cards)


@dataclass(frozen=True)
class _Measured:
    """A cell: its summary, and its trials that are ok."""

    summary: CellSummary
    ok: tuple[Record, ...]

    @property
    def emulated(self) -> tuple[str, ...]:
        """Rungs that the processor emulated: their speed says nothing of them."""
        return self.summary.environment.emulated if self.summary.environment else ()


@dataclass(frozen=True)
class _Here:
    """The cells of a setting by config and batch size, and the rungs that its processor is known to emulate."""

    cells: Mapping[tuple[str, int], _Measured]
    lacking: frozenset[str] = frozenset()

    def emulated(self, side: ClaimSide, cell: _Measured | None) -> tuple[str, ...]:
        """The rungs of a side that the processor emulates, as its trials say, or what is known without them."""
        return (
            cell.emulated
            if cell
            else tuple(rung for rung in side.config.rstrip("*").split("+") if rung in self.lacking)
        )


def _by_setting(records: Iterable[Record]) -> dict[Setting, dict[tuple[str, int], _Measured]]:
    """Of settings that differ in their ranks alone that with the fewest: claims are about configs, on one device where
    that was measured, as in the talk."""
    records = tuple(records)
    settings: dict[Setting, dict[tuple[str, int], _Measured]] = {}
    for summary, group in zip(summarise(records), by_code(records).values(), strict=True):
        measured = _Measured(summary, tuple(record for record in group if record.status == "ok"))
        settings.setdefault(summary.setting, {})[summary.cell.config, summary.cell.batch_size] = measured
    fewest: dict[Setting, Setting] = {}
    for setting in sorted(settings, key=lambda setting: setting.cell.ranks):
        fewest.setdefault(setting._replace(cell=msgspec.structs.replace(setting.cell, ranks=1)), setting)
    return {setting: cells for setting, cells in settings.items() if setting in fewest.values()}


def _low_precision(here: _Here) -> str:
    """The low precision that the machine computes in: the first that was measured and not emulated; without one, the
    talk's, whose claims then say what is missing."""
    measured = {rung for m in here.cells.values() if m.ok and not m.emulated for rung in m.summary.cell.rungs}
    return next((low for low in LOW_PRECISIONS if low in measured), LOW_PRECISIONS[0])


def _evaluated(claim: Claim, here: _Here, run: str, sources: Sequence[OtherSource]) -> Evaluated:
    judges = ((COMPARISONS, _compared), (RUNS, _ran), (BOUNDS, _bound))
    judge = next((judge for relations, judge in judges if claim.relation in relations), None)
    if judge is None:
        return _from_other_source(claim, here, run, sources)
    at = tuple(judge(claim, batch_size, here) for batch_size in claim.batch_sizes)
    if any(judged.outcome == "not testable here" for judged in at) and not _has_best(claim):
        at = tuple(replace(judged, missing=()) for judged in at)  # at other batch sizes it would be emulated too
    missing = [missing for judged in at for missing in judged.missing]
    return Evaluated(claim, _together(claim, at), at, command=_command(run, missing))


def _has_best(claim: Claim) -> bool:
    """Whether a side is the best of several configs, of which only some may be emulated."""
    return any(side is not None and side.best for side in (claim.left, claim.right))


def _from_other_source(claim: Claim, here: _Here, run: str, sources: Sequence[OtherSource]) -> Evaluated:
    for finding in filter(None, (source(claim) for source in sources)):
        return Evaluated(claim, finding.outcome, why=finding.why)
    if claim.relation == "fewer kernels":
        configs = [side.config for side in (claim.left, claim.right) if side is not None]
        if any(m.summary.cell.device == "cpu" for m in here.cells.values()):
            return Evaluated(claim, "not testable here", why="no GPU here, and so no kernels")
        setting = shlex.split(run)[2:]
        profiles = [
            ["tcbench", "profile", config, *setting, "--bs", str(n)] for n in claim.batch_sizes for config in configs
        ]
        why = "needs timelines of `tcbench profile`, taken on a GPU and named beside the records"
        return Evaluated(claim, "not measured", why=why, command=" && ".join(map(shlex.join, profiles)))
    command = "tcbench numerics --ranks 4" if claim.relation == "scales" else "tcbench numerics"
    return Evaluated(claim, "not measured", why=f"needs `{command}`", command=command)


def by_timelines(bottlenecks: Iterable[Bottleneck]) -> OtherSource:
    """Judge claims by timelines of one machine: kernels per step are the same in every step and need no interval."""
    kernels = {of.label: of.device.kernels_per_step for of in bottlenecks if of.device is not None}

    def by_kernels(claim: Claim) -> Evidence | None:
        if claim.relation != "fewer kernels" or claim.right is None:
            return None
        says, fewer = [], []
        for n in claim.batch_sizes:
            left, right = (kernels.get(f"{side.config}, batch size {n}") for side in (claim.left, claim.right))
            if left is None or right is None:
                return None
            says.append(f"{n}: {left:.0f} kernels per step against {right:.0f}")
            fewer.append(left < right)
        held = all(fewer) if claim.at == "all" else any(fewer)
        return Evidence("holds" if held else "does not hold", "; ".join(says))

    return by_kernels


def _together(claim: Claim, at: Sequence[AtBatchSize]) -> ClaimOutcome:
    """Of all, one that does not hold decides; of any, one that holds. What does not fit in memory leaves the rest."""
    outcomes = {each.outcome for each in at if not each.out_of_memory}
    ranked: tuple[ClaimOutcome, ...]
    ranked = ("does not hold", "undecided", "not measured", "not testable here", "holds")
    ordered = ranked if claim.at == "all" else (ranked[-1], *ranked[1:-1], ranked[0])
    return next((outcome for outcome in ordered if outcome in outcomes), "not measured")


# -- comparisons ---------------------------------------------------------------------------------------------------


def _compared(claim: Claim, batch_size: int, here: _Here) -> AtBatchSize:
    named = [(claim.left, batch_size)]
    if claim.right is not None:
        named.append((claim.right, claim.right_batch_size or batch_size))
    measured = [_fastest(side, size, here) for side, size in named]
    lacking = [
        (side, size, cell)
        for (side, size), cell in zip(named, measured, strict=True)
        if cell is None or not cell.ok or cell.emulated
    ]
    if lacking:
        return _not_compared(here, batch_size, lacking)
    left, *right = [cell for cell in measured if cell is not None]
    return _decided(claim, batch_size, left, right[0] if right else None)


def _fastest(side: ClaimSide, batch_size: int, here: _Here) -> _Measured | None:
    """The cell that is meant; of several the fastest, or else one that tells why there is none."""
    matching = [m for (name, size), m in here.cells.items() if size == batch_size and side.matches(name)]
    fastest = best(measured.summary for measured in matching)
    if fastest is None:
        # An answer before a fault, and a fault before a skip.
        order = ("oom", "failed", "crashed", "timeout", "skipped")
        return min(matching, key=lambda m: order.index(m.summary.status), default=None)
    return next(measured for measured in matching if measured.summary is fastest)


def _not_compared(
    here: _Here, batch_size: int, lacking: Sequence[tuple[ClaimSide, int, _Measured | None]]
) -> AtBatchSize:
    reasons: dict[str, list[str]] = {}
    missing = []
    for side, size, cell in lacking:
        found = str(side) if cell is None else cell.summary.cell.config
        name = f"{found}, batch size {size}" if size != batch_size else found
        emulated = here.emulated(side, cell)
        reasons.setdefault(_why_missing(cell, emulated), []).append(name)
        if not emulated and (cell is None or cell.summary.status not in ("oom", "skipped")):
            missing.append((side.config, size))
    any_emulated = EMULATED in reasons
    if any_emulated:  # whatever else is missing
        reasons = {EMULATED: reasons[EMULATED]}
    return AtBatchSize(
        batch_size=batch_size,
        outcome="not testable here" if any_emulated else "not measured",
        why="; ".join(f"{' and '.join(dict.fromkeys(names))} {why}" for why, names in reasons.items()),
        out_of_memory=any(cell is not None and cell.summary.status == "oom" for _, _, cell in lacking),
        missing=tuple(missing),
    )


EMULATED = "emulated"
"""Why a config's speed says nothing of it."""


def _why_missing(cell: _Measured | None, emulated: Sequence[str] = ()) -> str:
    if emulated:
        return EMULATED
    if cell is None:
        return "never run"
    summary = cell.summary
    if summary.status == "ok":
        return "left no profiled pass"
    return "out of memory" if summary.status == "oom" else f"{summary.status}: {summary.reason}"


def _decided(claim: Claim, batch_size: int, left: _Measured, right: _Measured | None) -> AtBatchSize:
    one = left.summary.throughput
    assert one is not None
    stated = Group(one.n, math.log(claim.images_per_s or 1.0), 0.0, math.inf)  # it does not vary
    other = stated if right is None else right.summary.throughput
    assert other is not None
    by_trials = all(side is None or side.summary.unit != "steps" for side in (left, right))
    ratio = welch.log_ratio(one, other).interval()
    # The steps of one trial tell nothing of how processes differ.
    outcome = _outcome(claim, ratio) if by_trials else "undecided"
    at = AtBatchSize(
        batch_size=batch_size,
        outcome=outcome,
        left=left.summary.cell.config,
        right=None if right is None else right.summary.cell.config,
        ratio=ratio,
        unit="trials" if by_trials else "steps",
    )
    if outcome != "undecided":
        return at
    if not by_trials:
        return replace(at, why=TAKE_ENOUGH)
    more = _more_trials(claim, ratio, one, other)
    if more is None:
        return replace(at, why="at the limit: no number of trials would decide")
    return replace(at, more_trials=more, why=f"about {more} more trial{'s' * (more != 1)} a side would decide")


def _outcome(claim: Claim, ratio: Interval) -> ClaimOutcome:
    least, most = claim.least, claim.most
    if (least is not None and ratio.high < least) or (most is not None and ratio.low > most):
        return "does not hold"
    inside = (least is None or ratio.low > least) and (most is None or ratio.high < most)
    return "holds" if inside else "undecided"


def _more_trials(claim: Claim, ratio: Interval, left: Group, right: Group) -> int | None:
    """The trials a side that would decide on top, if means and variances stayed what they are: the value is to be
    cleared of every limit that the interval includes, and what clears it of the nearest clears it of the other too."""
    included = [limit for limit in (claim.least, claim.most) if limit is not None and ratio.holds(limit)]
    # With no threshold it asks whether the ratio is surely above or below 1, here the limit.
    rule = Rule(threshold=0.0, level=0.025, change_level=0.025)
    over = [Estimate(left, replace(right, mean=right.mean + math.log(limit))) for limit in included]
    needed = [rule.more_trials(estimate) for estimate in over]
    return max((n for n in needed if n is not None), default=None) if None not in needed else None


# -- what runs, and what holds it back -----------------------------------------------------------------------------


def _ran(claim: Claim, batch_size: int, here: _Here) -> AtBatchSize:
    """Out of memory, a failure and a crash are ways not to run; a timeout is none, and neither is a skip."""
    cell = here.cells.get((claim.left.config, batch_size))
    at = AtBatchSize(batch_size, "not measured", left=claim.left.config)
    if cell is None:
        return replace(at, why="never run", missing=((claim.left.config, batch_size),))
    summary = cell.summary
    if summary.status in ("skipped", "timeout"):
        missing = ((claim.left.config, batch_size),) if summary.status == "timeout" else ()
        return replace(at, why=_why_missing(cell), missing=missing)
    if 0 < summary.trials_ok < summary.trials:
        return replace(at, outcome="undecided", why=f"{summary.trials_ok} of {summary.trials} trials ran")
    ran = summary.status == "ok"
    why = "ran" if ran else _why_missing(cell)
    return replace(at, outcome="holds" if ran == (claim.relation == "runs") else "does not hold", why=why)


def _bound(claim: Claim, batch_size: int, here: _Here) -> AtBatchSize:
    cell = here.cells.get((claim.left.config, batch_size))
    if cell is None or not cell.ok or not all(r.measurement and r.measurement.profiled_steps for r in cell.ok):
        return _not_compared(here, batch_size, [(claim.left, batch_size, cell)])
    at = AtBatchSize(batch_size, "not testable here", left=claim.left.config, why="no GPU here")
    if cell.summary.cell.device == "cpu":
        return at
    said = {_says(claim, record) for record in cell.ok}
    outcome: ClaimOutcome = said.pop() if len(said) == 1 else "undecided"
    return replace(at, outcome=outcome, why="", bottleneck=explain_records(cell.ok))


def _says(claim: Claim, record: Record) -> ClaimOutcome:
    """The outcome by one trial. Two stages that are balanced are neither's, but for a GPU that is none of the two."""
    needs = explain_records([record]).needs
    if needs.verdict == "balanced" and needs.gpu_s is not None:
        return "undecided"
    return "holds" if (needs.verdict == "gpu-bound") == (claim.relation == "gpu-bound") else "does not hold"


# -- commands ------------------------------------------------------------------------------------------------------


def _command(run: str, missing: Sequence[tuple[str, int]]) -> str | None:
    """One command that runs all of them, and more where not every config lacks every batch size."""
    if not missing:
        return None
    named = dict.fromkeys(config for config, _ in missing)
    # A glob, as of "best of *", names others too; a name matches itself.
    widest = [one for one in named if not any(fnmatchcase(one, other) for other in named if other != one)]
    configs = [] if widest == ["*"] else [word for config in widest for word in ("--config", config)]
    sizes = ",".join(map(str, sorted({size for _, size in missing})))
    return f"{run} {shlex.join([*configs, '--bs', sizes])}"


def _commands(claims: Sequence[Evaluated], run: str) -> tuple[str, ...]:
    """Every command once, those that run cells as one."""
    missing = [missing for claim in claims for at in claim.at for missing in at.missing]
    others = [claim.command for claim in claims if not any(at.missing for at in claim.at)]
    return tuple(dict.fromkeys(command for command in (_command(run, missing), *others) if command))
