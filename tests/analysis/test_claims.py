import math
from collections.abc import Sequence
from typing import Any

import factories
import msgspec
import pytest
import timelines

from tcbench.analysis import bottleneck
from tcbench.analysis.claims import ClaimOutcome, EvaluatedClaim, ScenarioClaims, by_timelines, scorecards
from tcbench.core.claim import EXTERNAL, Claim, ClaimSide, Relation
from tcbench.core.record import Record
from tcbench.run import scenario


def make_claim(relation: Relation = "faster", left: str = "fp16", right: str | None = "fp32", **changes: Any) -> Claim:
    def side(text: str) -> ClaimSide:
        return ClaimSide(text.removeprefix("best of "), text.startswith("best of "))

    fields: dict[str, Any] = {"says": "s", "batch_sizes": (4,), "right": None if right is None else side(right)}
    return Claim(relation=relation, left=side(left), **fields | changes)


def trials(config: str, *rates: float, batch_size: int = 4) -> list[Record]:
    """One trial for each rate in images/s, with steps that are all alike; fp32's in the other order, so that the rounds
    have nothing in common."""
    ordered = rates[::-1] if config == "fp32" else rates
    return [
        factories.make_record(config, batch_size, images_per_s=rate, noise=0.0, trial=n)
        for n, rate in enumerate(ordered)
    ]


def evaluate(claims, records: Sequence[Record], run="tcbench run", sources=()) -> tuple[EvaluatedClaim, ...]:
    """All of one setting's claims; without records by those of a config that none names."""
    [card] = scorecards(records or UNRELATED, lambda _: ScenarioClaims("cpu", tuple(claims), run), sources)
    return card.claims


def judged(claim: Claim, *groups: Sequence[Record]) -> EvaluatedClaim:
    [evaluated] = evaluate([claim], [record for group in groups for record in group], "tcbench run cpu")
    return evaluated


UNRELATED = [factories.make_record(cell=factories.make_cell("tf32", device="cuda:0"))]

STEADY = (99.0, 100.0, 101.0, 100.0)


def times(factor: float, rates: Sequence[float] = STEADY) -> list[float]:
    return [factor * rate for rate in rates]


@pytest.mark.parametrize(
    ("relation", "factor", "expected"),
    [
        ("faster", 1.2, "holds"),
        ("faster", 0.8, "does not hold"),
        ("faster", 1.0, "undecided"),
        ("slower", 0.8, "holds"),
        ("slower", 1.2, "does not hold"),
        ("slower", 1.0, "undecided"),
        ("about", 1.0, "holds"),
        ("about", 1.05, "holds"),
        ("about", 1.2, "does not hold"),
        ("about", 0.8, "does not hold"),
        ("about", 1.1, "undecided"),
        ("about", 1 / 1.1, "undecided"),
    ],
)
def test_the_whole_interval_decides_a_comparison(relation: Relation, factor: float, expected: ClaimOutcome) -> None:
    margin = 0.1 if relation == "about" else 0.0
    evaluated = judged(make_claim(relation, margin=margin), trials("fp16", *times(factor)), trials("fp32", *times(1.0)))
    [outcome] = evaluated.batch_sizes
    assert evaluated.outcome == outcome.outcome == expected
    assert outcome.unit == "trials"
    assert outcome.ratio.value == pytest.approx(factor, rel=1e-9)
    assert outcome.ratio.low < factor < outcome.ratio.high
    assert not evaluated.by_one_trial


@pytest.mark.parametrize(("relation", "factor"), [("faster", 1.1), ("slower", 0.9), ("about", 1.05), ("about", 1.3)])
def test_an_undecided_comparison_says_how_many_more_trials_would_decide(relation: Relation, factor: float) -> None:
    def judgement(n: int) -> EvaluatedClaim:
        """Return the outcome with n trials a side, of equal mean and variance; the sides have nothing in common."""
        sd = 0.15 * math.sqrt((n - 1) / n)
        left, other = ([math.exp(sd if i % 4 in ups else -sd) for i in range(n)] for ups in ((1, 3), (0, 1)))
        margin = 0.12 if relation == "about" else 0.0
        return judged(make_claim(relation, margin=margin), trials("fp16", *times(factor, left)), trials("fp32", *other))

    few = judgement(4)
    more = few.batch_sizes[0].more_trials
    assert few.outcome == "undecided"
    assert few.batch_sizes[0].why == f"about {more} more trials a side would decide"
    assert judgement(4 + more + -more % 4).outcome != "undecided"
    fewer = 2 * (4 + more) // 3
    assert judgement(fewer - fewer % 4).outcome == "undecided"


def test_factor_and_margin_move_the_limit_at_which_no_number_of_trials_decides() -> None:
    evaluated = judged(make_claim(), trials("fp16", *STEADY), trials("fp32", *STEADY))
    assert (evaluated.outcome, evaluated.batch_sizes[0].more_trials) == ("undecided", None)
    assert "more trials would not decide" in evaluated.batch_sizes[0].why
    pair = trials("fp16", *times(2.9)), trials("fp32", *STEADY)
    assert judged(make_claim("faster", factor=3.0), *pair).outcome == "does not hold"
    assert judged(make_claim("faster", factor=3.0, margin=0.1), *pair).outcome == "holds"
    assert judged(make_claim("slower", factor=3.0), *pair).outcome == "holds"


def test_the_best_of_a_glob_is_the_fastest_that_ran() -> None:
    claim = make_claim("faster", "best of fp16*")
    slow, fast = trials("fp16", *times(0.8)), trials("fp16+dali", *times(1.5))
    evaluated = judged(claim, slow, fast, trials("fp32", *STEADY))
    assert (evaluated.outcome, evaluated.batch_sizes[0].left, evaluated.batch_sizes[0].right) == (
        "holds",
        "fp16+dali",
        "fp32",
    )
    oom = [factories.make_record("fp16+dali", status="oom")]
    evaluated = judged(claim, slow, oom, trials("fp32", *STEADY))
    assert (evaluated.outcome, evaluated.batch_sizes[0].left) == ("does not hold", "fp16")
    evaluated = judged(claim, trials("fp32", *STEADY))
    assert (evaluated.outcome, evaluated.command) == ("not measured", "tcbench run cpu --config 'fp16*' --bs 4")


@pytest.mark.parametrize(
    ("quantifier", "factors", "expected"),
    [
        ("all", (1.2, 1.3), "holds"),
        ("all", (1.2, 0.8), "does not hold"),
        ("all", (1.0, 0.8), "does not hold"),
        ("all", (1.2, 1.0), "undecided"),
        ("all", (1.2, None), "not measured"),
        ("all", (0.8, None), "does not hold"),
        ("any", (1.2, 0.8), "holds"),
        ("any", (1.2, None), "holds"),
        ("any", (0.8, 0.8), "does not hold"),
        ("any", (1.0, 0.8), "undecided"),
        ("any", (0.8, None), "not measured"),
    ],
)
def test_batch_sizes_together_make_the_claims_outcome(quantifier: str, factors: tuple, expected: ClaimOutcome) -> None:
    records = []
    for batch_size, factor in zip((4, 8), factors, strict=True):
        if factor:
            records += trials("fp16", *times(factor), batch_size=batch_size)
            records += trials("fp32", *STEADY, batch_size=batch_size)
    evaluated = judged(make_claim(batch_sizes=(4, 8), quantifier=quantifier), records)
    assert evaluated.outcome == expected
    assert [outcome.batch_size for outcome in evaluated.batch_sizes] == [4, 8]


@pytest.mark.parametrize(
    ("status", "reason", "run_again"),
    [
        ("skipped", "fp16 skipped: opencv: needs the package cv2: pip install opencv-python-headless", False),
        ("oom", "fp16 out of memory", False),
        ("failed", "fp16 failed: ValueError: the loss is nan", True),
        ("timeout", "fp16 timeout: no result after 1800 s (--timeout)", True),
        (None, "fp16 not run", True),
    ],
)
def test_what_was_not_measured_has_its_reason_and_the_command(status: Any, reason: str, run_again: bool) -> None:
    left = [] if status is None else [factories.make_record("fp16", status=status)]
    evaluated = judged(make_claim(), left, trials("fp32", *STEADY))
    assert evaluated.outcome == "not measured"
    assert evaluated.batch_sizes[0].why == reason
    assert evaluated.command == ("tcbench run cpu --config fp16 --bs 4" if run_again else None)


def emulated_trials(config: str, *rates: float) -> list[Record]:
    """Trials on a processor without the instructions of the config's first rung."""
    environment = factories.make_environment(emulated=(config.split("+")[0],))
    return [msgspec.structs.replace(record, environment=environment) for record in trials(config, *rates)]


def skipped(config: str) -> list[Record]:
    return [factories.make_record(config, status="skipped", reason=f"{config}: needs avx512_bf16")]


@pytest.mark.parametrize(
    ("fp16", "bf16", "expected"),
    [
        (trials("fp16", *STEADY), trials("bf16", *STEADY), "fp16"),
        (trials("fp16", *STEADY), skipped("bf16"), "fp16"),
        (emulated_trials("fp16", *STEADY), trials("bf16", *STEADY), "bf16"),
        ([], trials("bf16", *STEADY), "bf16"),
        (emulated_trials("fp16", *STEADY), skipped("bf16"), "fp16"),
        ([], [], "fp16"),
    ],
    ids=["both", "no bf16", "fp16 is emulated", "fp16 was not run", "neither", "nothing"],
)
def test_a_claim_that_leaves_the_low_precision_to_the_machine_is_asked_of_what_it_computes_in(
    fp16: list[Record], bf16: list[Record], expected: str
) -> None:
    claim = make_claim(left="{low}", says="{low} is faster")
    records = [*fp16, *bf16, *trials("fp32", *times(0.5))]
    [card] = scorecards(records, lambda _: ScenarioClaims("cpu", (claim, make_claim(left="fp32+dali"))))
    evaluated = card.claims[0]
    assert card.low == expected
    assert (evaluated.claim.says, evaluated.claim.left.config) == (f"{expected} is faster", expected)
    computed = bool(bf16) if expected == "bf16" else bool(fp16) and not fp16[0].environment.emulated
    missing = "not testable here" if fp16 and expected == "fp16" else "not measured"
    assert evaluated.outcome == ("holds" if computed else missing)


def test_the_speed_of_a_rung_that_is_emulated_says_nothing_of_it() -> None:
    evaluated = judged(make_claim(left="bf16"), emulated_trials("bf16", *times(0.3)), trials("fp32", *STEADY))
    assert (evaluated.outcome, evaluated.command) == ("not testable here", None)
    assert evaluated.batch_sizes[0].why == "bf16 emulated"
    more = make_claim(left="bf16", batch_sizes=(4, 8))  # at 8 it was never run, and would tell no more
    measured_trials = (emulated_trials("bf16", *times(0.3)), trials("fp32", *STEADY))
    assert judged(more, *measured_trials).command is None
    best = make_claim(left="best of *", batch_sizes=(4, 8))  # another config may be the best at 8
    assert judged(best, emulated_trials("bf16", *times(3.0)), trials("fp32", *STEADY)).command is not None
    measured = judged(make_claim(left="bf16"), trials("bf16", *times(0.3)), trials("fp32", *STEADY))
    assert measured.outcome == "does not hold"


@pytest.mark.parametrize("left", ["fp16+dali", "best of fp16*"])
def test_what_a_machine_is_known_to_emulate_is_not_asked_for_though_it_was_never_run(left: str) -> None:
    claim = ScenarioClaims("cpu", (make_claim(left=left),))
    [card] = scorecards(trials("fp32", *STEADY), lambda _: claim, lacking=lambda _: ("fp16",))
    assert (card.claims[0].outcome, card.commands) == ("not testable here", ())
    assert card.claims[0].batch_sizes[0].why == f"{left} emulated"
    [card] = scorecards(trials("fp32", *STEADY), lambda _: claim)
    assert (card.claims[0].outcome, len(card.commands)) == ("not measured", 1)


@pytest.mark.parametrize(
    ("statuses", "runs", "does_not_run"),
    [
        (("ok",), "holds", "does not hold"),
        (("oom",), "does not hold", "holds"),
        (("failed",), "does not hold", "holds"),
        (("crashed",), "does not hold", "holds"),
        (("ok", "oom"), "undecided", "undecided"),
        (("timeout",), "not measured", "not measured"),
        (("skipped",), "not measured", "not measured"),
        ((), "not measured", "not measured"),
    ],
)
def test_whether_a_config_runs(statuses: tuple, runs: ClaimOutcome, does_not_run: ClaimOutcome) -> None:
    records = [factories.make_record("fp16", status=status, trial=n) for n, status in enumerate(statuses)]
    for relation, outcome in (("runs", runs), ("does not run", does_not_run)):
        evaluated = judged(make_claim(relation, right=None), records)
        assert evaluated.outcome == outcome
        assert evaluated.batch_sizes[0].why


def test_without_a_gpu_nothing_can_be_bound_by_one() -> None:
    for relation in ("gpu-bound", "not gpu-bound"):
        evaluated = judged(make_claim(relation, right=None), [factories.make_record("fp16")])  # type: ignore[arg-type]
        assert (evaluated.outcome, evaluated.batch_sizes[0].why) == ("not testable here", "no GPU here")


def kernels(label: str, n: int) -> bottleneck.Bottleneck:
    spans = [timelines.kernel(i / (2 * n), (i + 0.5) / (2 * n)) for i in range(n)]
    return bottleneck.explain_timeline(
        timelines.make_timeline(
            timelines.step(0, 1), timelines.phase("forward", 0, 1), *spans, label=label, batch_size=4
        )
    )


@pytest.mark.parametrize(
    ("left", "right", "expected"), [(3, 5, "holds"), (5, 5, "does not hold"), (6, 5, "does not hold")]
)
def test_kernels_per_step_come_from_timelines(left: int, right: int, expected: ClaimOutcome) -> None:
    seen = [by_timelines([kernels("fp16+nhwc, batch size 4", left), kernels("fp16, batch size 4", right)])]
    claim = make_claim("fewer kernels", "fp16+nhwc", "fp16")
    [evaluated] = evaluate([claim], [], sources=seen)
    assert evaluated.outcome == expected
    assert evaluated.why == f"4: {left} kernels per step against {right}"
    [other] = evaluate([make_claim("fewer kernels", "fp16+nhwc", "fp32")], [], sources=seen)
    assert other.outcome == "not measured"
    assert other.command == "tcbench profile fp16+nhwc --bs 4 && tcbench profile fp32 --bs 4"
    setting = "cpu --device virtual:V100 --data synthetic"
    [other] = evaluate([make_claim("fewer kernels", "fp16", "fp32")], [], run=f"tcbench run {setting}", sources=seen)
    assert other.command == f"tcbench profile fp16 {setting} --bs 4 && tcbench profile fp32 {setting} --bs 4"


def test_a_stated_rate_stands_beside_a_cell_of_one_trial_among_others_of_more() -> None:
    few, more = trials("fp16", 120.0), trials("fp32", *STEADY)
    evaluated = judged(make_claim("about", right=None, images_per_s=100.0, margin=0.5), few, more)
    [outcome] = evaluated.batch_sizes
    assert (evaluated.outcome, outcome.unit, outcome.ratio.value) == ("holds", "trials", pytest.approx(1.2))
    assert outcome.ratio.low < 1.2 < outcome.ratio.high


def test_a_scorecards_commands_run_what_is_missing_at_once() -> None:
    claims = (make_claim(), make_claim("runs", "fp16+dali", None, batch_sizes=(8,)), make_claim("trains like"))
    scenario_claims = ScenarioClaims("cpu", claims, "tcbench run cpu")
    [card] = scorecards(trials("fp32", *STEADY), lambda _: scenario_claims)
    assert card.commands == ("tcbench run cpu --config fp16 --config fp16+dali --bs 4,8", "tcbench numerics")


def test_the_talk_holds_on_records_planted_as_the_talk_tells_them() -> None:
    """All of naruse2018's claims that records tell, on a V100 as slides 12 to 33 show it."""
    dali, best = "fp16+dali", "fp16+dali+batched+nhwc+fused"
    static = best + "+static_graph"
    rates: dict[str, dict[int, float | None]] = {
        "fp32": {32: 320, 64: 350, 128: 370, 256: None},
        "fp16": {32: 150, 64: 280, 128: 500, 256: 700},
        dali: {32: 200, 64: 420, 128: 760, 256: 780},
        best: {32: 400, 64: 750, 128: 1050, 256: 1200},
        static: {32: 700, 64: 950, 128: None, 256: None},
    }
    gpu_bound = {("fp32", 64), (static, 64)}
    records = []
    for config, by_size in rates.items():
        for batch_size, rate in by_size.items():
            cell = factories.make_cell(config, batch_size, device="cuda:0", image_size=224, scenario="naruse2018")
            if rate is None:
                records.append(factories.make_record(cell=cell, status="oom"))
                continue
            for n, wavering in enumerate((0.99, 1.0, 1.01, 1.0)):
                record = factories.make_record(cell=cell, trial=n, images_per_s=rate * wavering)
                share = 0.2 if (config, batch_size) in gpu_bound else 1.0
                phases = factories.make_phases({"forward": share * batch_size / rate})
                records.append(factories.remeasured(record, phases=phases, prefetch_depth=0))
    claims = scenario.load("naruse2018").claims
    evaluated = evaluate(claims, records)
    internal = [claim for claim in evaluated if claim.claim.relation not in EXTERNAL]
    assert len(internal) == len(claims) - 4
    assert [(claim.claim.says, claim.outcome) for claim in internal if claim.outcome != "holds"] == []


def test_settings_that_differ_in_ranks_alone_are_judged_at_the_fewest():
    records = [
        factories.make_record(cell=factories.make_cell(config, ranks=ranks), images_per_s=rate)
        for ranks in (4, 2)
        for config, rate in (("fp32", 40.0), ("fp16", 60.0))
    ]
    cards = scorecards(records, lambda cell: ScenarioClaims(cell.scenario, ()))
    assert [card.cell.ranks for card in cards] == [2]
