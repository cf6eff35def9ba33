"""The scorecard: the outcomes of a scenario's claims on a machine. Pure functions from claims and records to outcomes.

A comparison is decided by the 95% interval of left's images/s over right's, never by its value. The claim holds if the
whole interval lies where the claim says, does not hold if the whole interval lies elsewhere, and is undecided
otherwise. "About" is therefore a test of equivalence: two configs whose difference is merely not significant are not
"about equal" (D. Schuirmann, "A comparison of the two one-sided tests procedure", J. Pharmacokinetics and
Biopharmaceutics 15, 1987; with 95% instead of 90% limits, which is stricter). Batch sizes are judged one by one without
correction for multiple tests. There is also no correction for choosing the fastest of several configs by the same
trials that are then compared."""

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
from tcbench.analysis.summary import CellSummary, Setting, best, group_by_code, summarise
from tcbench.analysis.verdict import Rule
from tcbench.analysis.welch import Estimate, SampleStats
from tcbench.core.claim import BOUNDS, COMPARISONS, LOW_PRECISIONS, RUNS, Claim, ClaimSide
from tcbench.core.record import TAKE_ENOUGH, Cell, Code, Environment, Record

ClaimOutcome = Literal["holds", "does not hold", "undecided", "not measured", "not testable here"]
"""The outcome of a claim on this machine."""
OUTCOMES: tuple[ClaimOutcome, ...] = ("holds", "does not hold", "undecided", "not measured", "not testable here")
"""All outcomes. `not testable here` is what this device cannot show, however often it is measured."""


@dataclass(frozen=True)
class Evidence:
    """An outcome from a source other than the records of `tcbench run`, and its reason in one line."""

    outcome: ClaimOutcome
    why: str


EvidenceSource = Callable[[Claim], Evidence | None]
"""A function that judges a claim by other evidence, such as training runs or timelines. It returns None for a claim
about which it has no evidence."""


@dataclass(frozen=True)
class BatchSizeOutcome:
    """The outcome of a claim at one batch size.

    - `left`, `right`: the configs compared, None if not available.
    - `ratio`: left's images/s over right's, or over the claim's `images_per_s`, with an interval over `unit` ("steps"
      if a side has only one trial).
    - `more_trials`: how many more trials per side would decide an undecided claim (None: no sensible number, or more
      trials would not help).
    - `out_of_memory`: a side does not fit into memory, so there is nothing to compare.
    - `missing`: the configs that were not measured, named as for `tcbench run`, each with its batch size.
    - `bottleneck`: the left config's bottleneck, if the claim is about it. It is shown instead of `why`."""

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
class EvaluatedClaim:
    """A claim with its outcome. `why` is the reason in one line, unless it follows from the outcomes at its batch
    sizes. `command` measures what is missing."""

    claim: Claim
    outcome: ClaimOutcome
    batch_sizes: tuple[BatchSizeOutcome, ...] = ()
    why: str = ""
    command: str | None = None

    @property
    def by_one_trial(self) -> bool:
        """Whether a comparison rests on the steps of one trial, which show how steady that process was but not how
        trials vary."""
        return any(outcome.unit == "steps" for outcome in self.batch_sizes)


@dataclass(frozen=True)
class ScenarioClaims:
    """The claims of a scenario, and the command that runs its cells, without configs and batch sizes."""

    scenario: str
    claims: tuple[Claim, ...]
    run: str = "tcbench run"


@dataclass(frozen=True)
class Scorecard:
    """The outcomes of all claims of a scenario on one machine in one setting.

    - `cell`: a cell that holds the setting; its config and batch size are empty.
    - `commands`: the commands that measure what is missing.
    - `low`: the low precision used for claims that leave the choice to the machine; None without such claims.
    - `codes`: the code that was measured, if it differs between scorecards."""

    machine: str | None
    environment: Environment | None
    cell: Cell
    scenario: str
    claims: tuple[EvaluatedClaim, ...]
    commands: tuple[str, ...] = ()
    low: str | None = None
    codes: tuple[Code, ...] = ()

    def count(self, outcome: ClaimOutcome) -> int:
        """Return the number of claims with this outcome."""
        return sum(claim.outcome == outcome for claim in self.claims)


def scorecards(
    records: Iterable[Record],
    claims_of: Callable[[Cell], ScenarioClaims],
    sources: Sequence[EvidenceSource] = (),
    lacking: Callable[[str | None], Iterable[str]] = lambda _: (),
) -> tuple[Scorecard, ...]:
    """Return one scorecard per machine and setting, in the order of first appearance.

    - `records`: as returned by `store.current`.
    - `claims_of`: returns the claims on a setting.
    - `sources`: other evidence for claims that records cannot decide. The first source that returns evidence is used.
    - `lacking`: returns the rungs that a machine is known to emulate, whether they were measured or not."""
    cards, settings = [], _by_setting(records)
    several = len({setting.codes for setting in settings}) > 1
    for (machine, cell, codes), measured in settings.items():
        cells = _SettingCells(measured, frozenset(lacking(machine)))
        scenario = claims_of(cell)
        precision = _low_precision(cells)
        claims = tuple(
            _evaluate(claim.with_precision(precision), cells, scenario.run, sources) for claim in scenario.claims
        )
        environment = next((m.summary.environment for m in measured.values() if m.summary.environment), None)
        low = precision if any(claim.depends_on_precision for claim in scenario.claims) else None
        commands = _commands(claims, scenario.run)
        shown_codes = codes if several else ()
        cards.append(Scorecard(machine, environment, cell, scenario.scenario, claims, commands, low, shown_codes))
    return tuple(cards)


@dataclass(frozen=True)
class _Measured:
    """A measured cell: its summary, and its successful trials."""

    summary: CellSummary
    trials: tuple[Record, ...]

    @property
    def emulated(self) -> tuple[str, ...]:
        """Rungs that the processor emulated. Their speed says nothing about the rung."""
        return self.summary.environment.emulated if self.summary.environment else ()


@dataclass(frozen=True)
class _SettingCells:
    """The cells of a setting by config and batch size, and the rungs that its processor is known to emulate."""

    cells: Mapping[tuple[str, int], _Measured]
    emulated_rungs: frozenset[str] = frozenset()

    def emulated(self, side: ClaimSide, cell: _Measured | None) -> tuple[str, ...]:
        """Return the rungs of one side of a claim that the processor emulates.

        They are recorded in `cell`. For a config that was not measured (None), they are those in `emulated_rungs`."""
        if cell:
            return cell.emulated
        return tuple(rung for rung in side.config.rstrip("*").split("+") if rung in self.emulated_rungs)


def _by_setting(records: Iterable[Record]) -> dict[Setting, dict[tuple[str, int], _Measured]]:
    """Return the measured cells of each setting, by config and batch size. Of settings that differ only in the number
    of ranks, only the one with the fewest ranks is returned, since the talk's claims are about one device."""
    records = tuple(records)
    settings: dict[Setting, dict[tuple[str, int], _Measured]] = {}
    for summary, group in zip(summarise(records), group_by_code(records).values(), strict=True):
        measured = _Measured(summary, tuple(record for record in group if record.status == "ok"))
        settings.setdefault(summary.setting, {})[summary.cell.config, summary.cell.batch_size] = measured
    fewest: dict[Setting, Setting] = {}
    for setting in sorted(settings, key=lambda setting: setting.cell.ranks):
        fewest.setdefault(setting._replace(cell=msgspec.structs.replace(setting.cell, ranks=1)), setting)
    return {setting: cells for setting, cells in settings.items() if setting in fewest.values()}


def _low_precision(setting: _SettingCells) -> str:
    """Return the low precision that claims are judged by: the first in `LOW_PRECISIONS` that was measured and not
    emulated. If there is none, it is the talk's, so that the outcomes name what is missing."""
    measured = {rung for m in setting.cells.values() if m.trials and not m.emulated for rung in m.summary.cell.rungs}
    return next((low for low in LOW_PRECISIONS if low in measured), LOW_PRECISIONS[0])


def _evaluate(claim: Claim, setting: _SettingCells, run: str, sources: Sequence[EvidenceSource]) -> EvaluatedClaim:
    """Return the outcome of a claim over all its batch sizes. `run` is the command that measures the setting."""
    judges = ((COMPARISONS, _comparison_outcome), (RUNS, _run_outcome), (BOUNDS, _bound_outcome))
    judge = next((judge for relations, judge in judges if claim.relation in relations), None)
    if judge is None:
        return _from_other_source(claim, setting, run, sources)
    outcomes = tuple(judge(claim, batch_size, setting) for batch_size in claim.batch_sizes)
    # Other batch sizes would be emulated too, unless a side is the best of several configs, of which some are not.
    has_best = any(side is not None and side.best for side in (claim.left, claim.right))
    if any(judged.outcome == "not testable here" for judged in outcomes) and not has_best:
        outcomes = tuple(replace(judged, missing=()) for judged in outcomes)
    missing = [missing for judged in outcomes for missing in judged.missing]
    return EvaluatedClaim(claim, _overall_outcome(claim, outcomes), outcomes, command=_command(run, missing))


def _from_other_source(
    claim: Claim, setting: _SettingCells, run: str, sources: Sequence[EvidenceSource]
) -> EvaluatedClaim:
    """Return the outcome of a claim that records cannot decide, by the first source that has evidence. If none has, the
    outcome is `not measured`, with the command that would measure the claim, or `not testable here` without a GPU."""
    for finding in filter(None, (source(claim) for source in sources)):
        return EvaluatedClaim(claim, finding.outcome, why=finding.why)
    if claim.relation == "fewer kernels":
        configs = [side.config for side in (claim.left, claim.right) if side is not None]
        if any(m.summary.cell.device == "cpu" for m in setting.cells.values()):
            return EvaluatedClaim(claim, "not testable here", why="no GPU here, so no kernels")
        options = shlex.split(run)[2:]
        profiles = [
            ["tcbench", "profile", config, *options, "--bs", str(n)] for n in claim.batch_sizes for config in configs
        ]
        why = "needs GPU timelines of `tcbench profile`, named together with the records"
        return EvaluatedClaim(claim, "not measured", why=why, command=" && ".join(map(shlex.join, profiles)))
    command = "tcbench numerics --ranks 4" if claim.relation == "scales" else "tcbench numerics"
    return EvaluatedClaim(claim, "not measured", why=f"needs `{command}`", command=command)


def by_timelines(bottlenecks: Iterable[Bottleneck]) -> EvidenceSource:
    """Return a source that judges claims about the number of kernels by the bottlenecks of one machine's timelines. The
    number is the same in every step, so no interval is needed."""
    kernels = {b.label: b.device.kernels_per_step for b in bottlenecks if b.device is not None}

    def by_kernels(claim: Claim) -> Evidence | None:
        """Return the evidence on a claim about the number of kernels. None for other claims, or if a timeline of either
        side is missing at one of the batch sizes."""
        if claim.relation != "fewer kernels" or claim.right is None:
            return None
        says, fewer = [], []
        for n in claim.batch_sizes:
            left, right = (kernels.get(f"{side.config}, batch size {n}") for side in (claim.left, claim.right))
            if left is None or right is None:
                return None
            says.append(f"{n}: {left:.0f} kernels per step against {right:.0f}")
            fewer.append(left < right)
        holds = all(fewer) if claim.quantifier == "all" else any(fewer)
        return Evidence("holds" if holds else "does not hold", "; ".join(says))

    return by_kernels


def _overall_outcome(claim: Claim, batch_sizes: Sequence[BatchSizeOutcome]) -> ClaimOutcome:
    """Return the outcome of a claim over all batch sizes. A claim about `all` of them does not hold if it fails at one;
    a claim about `any` of them holds if it holds at one. Batch sizes that run out of memory do not count."""
    outcomes = {judged.outcome for judged in batch_sizes if not judged.out_of_memory}
    ranked: tuple[ClaimOutcome, ...] = ("does not hold", "undecided", "not measured", "not testable here", "holds")
    ordered = ranked if claim.quantifier == "all" else (ranked[-1], *ranked[1:-1], ranked[0])
    return next((outcome for outcome in ordered if outcome in outcomes), "not measured")


# -- comparisons ---------------------------------------------------------------------------------------------------


def _comparison_outcome(claim: Claim, batch_size: int, setting: _SettingCells) -> BatchSizeOutcome:
    """Return the outcome of a comparison at one batch size, or which of its sides are missing."""
    sides = [(claim.left, batch_size)]
    if claim.right is not None:
        sides.append((claim.right, claim.right_batch_size or batch_size))
    cells = [(side, size, _fastest(side, size, setting)) for side, size in sides]
    lacking = [side for side in cells if side[2] is None or not side[2].trials or side[2].emulated]
    if lacking:
        return _unmeasured_outcome(setting, batch_size, lacking)
    left, *right = [cell for _, _, cell in cells if cell is not None]
    return _ratio_outcome(claim, batch_size, left, right[0] if right else None)


def _fastest(side: ClaimSide, batch_size: int, setting: _SettingCells) -> _Measured | None:
    """Return the fastest measured cell that a side of a claim matches. If none was measured, return the matching cell
    whose status explains it best, or None if there is no matching cell."""
    matching = [m for (name, size), m in setting.cells.items() if size == batch_size and side.matches(name)]
    fastest = best(measured.summary for measured in matching)
    if fastest is None:
        # Answers come before faults, and faults before skips.
        order = ("oom", "failed", "crashed", "timeout", "skipped")
        return min(matching, key=lambda m: order.index(m.summary.status), default=None)
    return next(measured for measured in matching if measured.summary is fastest)


def _unmeasured_outcome(
    setting: _SettingCells, batch_size: int, lacking: Sequence[tuple[ClaimSide, int, _Measured | None]]
) -> BatchSizeOutcome:
    """Return the outcome of a comparison that cannot be made. `lacking` holds each side without a usable measurement,
    with its batch size and its cell (None if it was not run)."""
    reasons: dict[str, list[str]] = {}
    missing = []
    for side, size, cell in lacking:
        config = str(side) if cell is None else cell.summary.cell.config
        name = f"{config}, batch size {size}" if size != batch_size else config
        emulated = setting.emulated(side, cell)
        reasons.setdefault(_why_missing(cell, emulated), []).append(name)
        if not emulated and (cell is None or cell.summary.status not in ("oom", "skipped")):
            missing.append((side.config, size))
    any_emulated = EMULATED in reasons
    if any_emulated:  # the other reasons do not matter then
        reasons = {EMULATED: reasons[EMULATED]}
    return BatchSizeOutcome(
        batch_size=batch_size,
        outcome="not testable here" if any_emulated else "not measured",
        why="; ".join(f"{' and '.join(dict.fromkeys(names))} {why}" for why, names in reasons.items()),
        out_of_memory=any(cell is not None and cell.summary.status == "oom" for _, _, cell in lacking),
        missing=tuple(missing),
    )


EMULATED = "emulated"
"""The reason for a config whose rungs the processor emulates, so that its speed is no evidence."""


def _why_missing(cell: _Measured | None, emulated: Sequence[str] = ()) -> str:
    """Return in words why a cell has no figure to compare. `emulated` are the rungs that the processor emulates."""
    if emulated:
        return EMULATED
    if cell is None:
        return "not run"
    summary = cell.summary
    if summary.status == "ok":
        return "has no profiled pass"
    return "out of memory" if summary.status == "oom" else f"{summary.status}: {summary.reason}"


def _ratio_outcome(claim: Claim, batch_size: int, left: _Measured, right: _Measured | None) -> BatchSizeOutcome:
    """Return the outcome of a comparison whose sides were measured. If `right` is None, left is compared with the rate
    that the claim states."""
    numerator = left.summary.throughput
    assert numerator is not None
    stated_rate = SampleStats(numerator.n, math.log(claim.images_per_s or 1.0), 0.0, math.inf)  # a constant
    denominator = stated_rate if right is None else right.summary.throughput
    assert denominator is not None
    by_trials = all(side is None or side.summary.unit != "steps" for side in (left, right))
    ratio = welch.log_ratio(numerator, denominator).interval()
    # The steps of one trial do not show how trials vary.
    outcome = _outcome(claim, ratio) if by_trials else "undecided"
    decided = BatchSizeOutcome(
        batch_size=batch_size,
        outcome=outcome,
        left=left.summary.cell.config,
        right=None if right is None else right.summary.cell.config,
        ratio=ratio,
        unit="trials" if by_trials else "steps",
    )
    if outcome != "undecided":
        return decided
    if not by_trials:
        return replace(decided, why=TAKE_ENOUGH)
    more = _more_trials(claim, ratio, numerator, denominator)
    if more is None:
        return replace(decided, why="on the limit: more trials would not decide")
    return replace(decided, more_trials=more, why=f"about {more} more trial{'s' * (more != 1)} a side would decide")


def _outcome(claim: Claim, ratio: Interval) -> ClaimOutcome:
    """Return whether a claim about a ratio holds: its whole interval must lie within the claim's limits. It does not
    hold if the whole interval lies outside them, and is undecided otherwise."""
    least, most = claim.least, claim.most
    if (least is not None and ratio.high < least) or (most is not None and ratio.low > most):
        return "does not hold"
    inside = (least is None or ratio.low > least) and (most is None or ratio.high < most)
    return "holds" if inside else "undecided"


def _more_trials(claim: Claim, ratio: Interval, left: SampleStats, right: SampleStats) -> int | None:
    """Return how many more trials per side would decide an undecided claim, if means and variances stayed the same.
    None if no sensible number of trials would.

    With that number of trials, the interval no longer includes any of the limits that it includes now."""
    included = [limit for limit in (claim.least, claim.most) if limit is not None and ratio.holds(limit)]
    # With threshold 0 the rule asks whether the ratio is significantly above or below 1, which stands for the limit.
    rule = Rule(threshold=0.0, level=0.025, change_level=0.025)
    estimates = [Estimate(left, replace(right, mean=right.mean + math.log(limit))) for limit in included]
    needed = [rule.more_trials(estimate) for estimate in estimates]
    return max((n for n in needed if n is not None), default=None) if None not in needed else None


# -- whether a config runs, and its bottleneck ---------------------------------------------------------------------


def _run_outcome(claim: Claim, batch_size: int, setting: _SettingCells) -> BatchSizeOutcome:
    """Return the outcome of a claim that a config runs, or does not run, at one batch size. A config that runs out of
    memory, fails or crashes does not run. After a timeout, or if the cell was skipped, the outcome is `not measured`;
    if only some trials ran, it is `undecided`."""
    cell = setting.cells.get((claim.left.config, batch_size))
    unmeasured = BatchSizeOutcome(batch_size, "not measured", left=claim.left.config)
    if cell is None:
        return replace(unmeasured, why="not run", missing=((claim.left.config, batch_size),))
    summary = cell.summary
    if summary.status in ("skipped", "timeout"):
        missing = ((claim.left.config, batch_size),) if summary.status == "timeout" else ()
        return replace(unmeasured, why=_why_missing(cell), missing=missing)
    if 0 < summary.trials_ok < summary.trials:
        return replace(unmeasured, outcome="undecided", why=f"{summary.trials_ok} of {summary.trials} trials ran")
    ran = summary.status == "ok"
    why = "ran" if ran else _why_missing(cell)
    return replace(unmeasured, outcome="holds" if ran == (claim.relation == "runs") else "does not hold", why=why)


def _bound_outcome(claim: Claim, batch_size: int, setting: _SettingCells) -> BatchSizeOutcome:
    """Return the outcome of a claim about a config's bottleneck at one batch size: `undecided` unless all trials
    agree."""
    cell = setting.cells.get((claim.left.config, batch_size))
    if cell is None or not cell.trials or not all(r.measurement and r.measurement.profiled_steps for r in cell.trials):
        return _unmeasured_outcome(setting, batch_size, [(claim.left, batch_size, cell)])
    if cell.summary.cell.device == "cpu":
        return BatchSizeOutcome(batch_size, "not testable here", "no GPU here", left=claim.left.config)
    outcomes = {_trial_bound_outcome(claim, record) for record in cell.trials}
    outcome: ClaimOutcome = outcomes.pop() if len(outcomes) == 1 else "undecided"
    return BatchSizeOutcome(batch_size, outcome, left=claim.left.config, bottleneck=explain_records(cell.trials))


def _trial_bound_outcome(claim: Claim, record: Record) -> ClaimOutcome:
    """Return the outcome of a claim about a bottleneck by one trial. It is undecided if the stages are balanced, unless
    the GPU's time is unknown: then the GPU is not one of the balanced stages."""
    needs = explain_records([record]).needs
    if needs.verdict == "balanced" and needs.gpu_s is not None:
        return "undecided"
    return "holds" if (needs.verdict == "gpu-bound") == (claim.relation == "gpu-bound") else "does not hold"


# -- commands ------------------------------------------------------------------------------------------------------


def _command(run: str, missing: Sequence[tuple[str, int]]) -> str | None:
    """Return one command that measures all `missing` cells, given as config and batch size, or None if there are none.
    `run` is the command without configs and batch sizes. The command measures every config at every batch size, so it
    may measure cells that are not missing."""
    if not missing:
        return None
    names = dict.fromkeys(config for config, _ in missing)
    # A glob (from "best of *") covers the names that it matches.
    widest = [name for name in names if not any(fnmatchcase(name, other) for other in names if other != name)]
    configs = [] if widest == ["*"] else [word for config in widest for word in ("--config", config)]
    sizes = ",".join(map(str, sorted({size for _, size in missing})))
    return f"{run} {shlex.join([*configs, '--bs', sizes])}"


def _commands(claims: Sequence[EvaluatedClaim], run: str) -> tuple[str, ...]:
    """Return the commands that measure what the claims miss, without duplicates: one `run` command for all missing
    cells, then the commands of claims that need other evidence."""
    missing = [missing for claim in claims for outcome in claim.batch_sizes for missing in outcome.missing]
    other_commands = [claim.command for claim in claims if not any(outcome.missing for outcome in claim.batch_sizes)]
    return tuple(dict.fromkeys(command for command in (_command(run, missing), *other_commands) if command))
