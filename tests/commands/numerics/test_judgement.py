import msgspec
import pytest
from numerics_documents import SETTING, make_document, make_gradients, make_ranks_document, make_run

from tcbench.commands.numerics.judgement import (
    Margins,
    costs,
    document_evidence,
    loss_curve,
    not_learnt,
    ratio_curve,
    verdicts,
)
from tcbench.core.claim import Claim, ClaimSide
from tcbench.core.numerics import TECHNIQUES, Gradients


def words(document, margins=None):
    return {verdict.technique: verdict.word for verdict in verdicts(document, margins)}


def test_few_or_wavering_seeds_leave_a_verdict_undecided_else_the_margin_decides():
    assert set(words(make_document(seeds=[0])).values()) == {"undecided"}
    wavering = [make_run("both", seed, worse) for seed, worse in enumerate((0.05, -0.05, 0.04, -0.04, 0.0))]
    assert words(make_document(extra=wavering))["both"] == "undecided"
    document = make_document(worse={"both": 0.03})
    assert words(document, Margins(0.02, 0.02))["both"] == "does not"
    assert words(document, Margins(0.10, 0.10))["both"] == "trains like fp32"


def test_a_run_that_diverged_is_an_answer_and_one_that_failed_is_none():
    diverged = [make_run("both", 0, status="diverged", reason="diverged at step 3: overflow")]
    verdict = next(v for v in verdicts(make_document(extra=diverged)) if v.technique == "both")
    assert (verdict.word, verdict.reason) == ("does not", "diverged at step 3: overflow")
    failed = [make_run("both", 0, status="failed", reason="killed")]
    assert words(make_document(extra=failed))["both"] == "undecided"
    # Nothing trains like an fp32 that did not finish.
    broken = [make_run("fp32", seed, status="diverged", reason="x", test_loss=None, accuracy=None) for seed in range(5)]
    assert set(words(make_document(extra=broken)).values()) == {"undecided"}


def setting(**changes):
    return msgspec.structs.replace(SETTING, **changes)


def test_nothing_trains_like_an_fp32_that_learnt_nothing():
    chance = [make_run(name, seed, accuracy=0.11 - 0.01 * seed) for name in TECHNIQUES for seed in range(3)]
    document = make_document(extra=chance)
    assert set(words(document).values()) == {"undecided"}
    assert {v.reason for v in verdicts(document)} == {
        "fp32 itself has not clearly learnt here: its accuracy of 10.0% is not significantly above 28.0% (chance: "
        "10.0%); use more --steps or a lower --lr"
    }
    finding = document_evidence(document)(claim("trains like"))
    assert finding.outcome == "undecided"
    assert "fp32 itself has not clearly learnt here" in finding.why

    one_step = [make_run(name, seed, losses=(2.3,)) for name in TECHNIQUES for seed in range(5)]
    document = make_document(extra=one_step, setting=setting(steps=1))
    assert set(words(document).values()) == {"undecided"}
    assert "its loss did not fall in 1 step;" in verdicts(document)[0].reason
    # A little above chance is not enough, however many images say so.
    begun = [make_run(name, seed, accuracy=0.15) for name in TECHNIQUES for seed in range(5)]
    document = make_document(extra=begun, setting=setting(test_images=10_000))
    assert set(words(document).values()) == {"undecided"}
    assert document_evidence(document)(claim("trains like")).outcome == "undecided"


def test_above_chance_is_asked_over_seeds_and_over_test_images():
    lucky = [make_run(name, seed, accuracy=0.45 if seed else 0.10) for name in TECHNIQUES for seed in range(3)]
    assert not_learnt(make_document(extra=lucky, setting=setting(test_images=2048)))  # it varies over seeds
    few = [make_run(name, seed, accuracy=0.4) for name in TECHNIQUES for seed in range(3)]
    assert not_learnt(make_document(extra=few, setting=setting(test_images=4)))
    assert not not_learnt(make_document(extra=few, setting=setting(test_images=64)))
    # What diverged is an answer all the same.
    diverged = make_run("both", 0, status="diverged", reason="x", test_loss=None, accuracy=None)
    rest = [run for run in few if run.technique != "both"]
    document = make_document(extra=[*rest, diverged], setting=setting(test_images=4))
    assert words(document)["both"] == "does not"
    assert document_evidence(document)(claim("trains like")).outcome == "undecided"


def test_few_test_images_tell_no_accuracies_apart():
    same = [make_run(name, seed, accuracy=0.75) for name in TECHNIQUES for seed in range(5)]
    few, many = (make_document(extra=same, setting=setting(test_images=n)) for n in (32, 64))
    assert words(few)["both"] == "undecided"
    reason = next(v.reason for v in verdicts(few) if v.technique == "both")
    assert reason.endswith("32 test images resolve 3.1 points at best, more than the margin of 2")
    assert words(many)["both"] == "trains like fp32"
    accuracy = next(v.accuracy for v in verdicts(many) if v.technique == "both")
    assert accuracy.low < 0 < accuracy.high


def test_a_loss_far_beyond_fp32s_has_no_interval_of_millions_of_percent():
    runaway = [make_run("both", seed, test_loss=loss) for seed, loss in enumerate((80.0, 2.0, 1e30, 1e300, 1e-9))]
    verdict = next(v for v in verdicts(make_document(extra=runaway)) if v.technique == "both")
    assert "times as much (no useful interval)" in verdict.reason
    assert ratio_curve(make_document(extra=[make_run("both", 0, losses=(1e300,) * 48)]), "both", 4)
    tiny = make_document(extra=[make_run("fp32", 0, losses=(1e20,) * 48)])
    assert 1e-21 < ratio_curve(tiny, "both", 4)[0].value < 1e-19


def test_ratios_are_fp32s_figure_over_the_techniques():
    rows = {row.technique: row for row in costs(make_document())}
    varying = [make_run("both", seed, train_time_s=time_s) for seed, time_s in enumerate((9.0, 10.0, 11.0))]
    [time] = [r.time_ratio for r in costs(make_document(seeds=range(3), extra=varying)) if r.technique == "both"]
    assert time.low < 0.75 < time.value < 0.85 < time.high  # paired by seed, over seeds
    assert rows["both"].time_ratio.value == pytest.approx(0.8)
    assert rows["both"].memory_ratio is None  # a process' memory
    peaks = {"fp32": 8, "both": 4}
    on_device = [make_run(name, 0, peak_memory_of="device", peak_memory_bytes=n) for name, n in peaks.items()]
    rows_of_device = {row.technique: row for row in costs(make_document(extra=on_device))}
    assert rows_of_device["both"].memory_ratio == 2.0
    assert rows["fp32"].accuracy.value == pytest.approx(0.76)


def test_curves_are_paired_by_seed():
    document = make_document()
    for point in ratio_curve(document, "neither", 4):
        assert point.value == pytest.approx(1.3, abs=0.002)
        assert point.high - point.low < 0.01
    assert loss_curve(document, "fp32", 4)[0].high - loss_curve(document, "fp32", 4)[0].low > 0.1


def claim(relation, left="fp16"):
    right = ClaimSide("fp32") if relation == "trains like" else None
    return Claim(says="x", left=ClaimSide(left), batch_sizes=(4,), relation=relation, right=right, slide=5)


def test_documents_answer_the_claims_of_slides_5_to_7():
    evidence = document_evidence(make_document())
    assert evidence(claim("trains like")).outcome == "holds"
    assert evidence(claim("keeps gradients")).outcome == "holds"
    assert evidence(claim("fewer kernels")) is None
    assert document_evidence(make_document(worse={"dynamic": 0.3}))(claim("trains like")).outcome == "does not hold"
    assert document_evidence(make_document(seeds=[0]))(claim("trains like")).outcome == "undecided"
    unseen = make_document(gradients=Gradients(seed=0, layers=(), steps=()))
    assert document_evidence(unseen)(claim("keeps gradients")) is None
    easy = make_document(gradients=make_gradients(-8.0), static_scale=1.0)
    assert document_evidence(easy)(claim("keeps gradients")).outcome == "does not hold"


def test_a_claim_of_scaling_is_answered_by_ranks_alone_and_they_answer_nothing_else():
    scales = Claim("many ranks train like one", "scales", ClaimSide("fp32"), (4,), slide=34)
    assert document_evidence(make_document())(scales) is None
    evidence = document_evidence(make_ranks_document(), source="numerics-ranks.json")
    finding = evidence(scales)
    assert finding.outcome == "holds"
    assert "ranks, linear scaling alone: does not" in finding.why
    assert finding.why.endswith("(numerics-ranks.json: 48 steps, 5 seeds)")
    assert evidence(claim("trains like")) is None
    assert evidence(claim("keeps gradients")) is None
    assert document_evidence(make_ranks_document(worse={"ranks": 0.3}))(scales).outcome == "does not hold"


def test_curves_and_costs_of_ranks_are_over_one_rank():
    document = make_ranks_document()
    assert [row.time_ratio and row.time_ratio.value for row in costs(document)] == [None, 1.0, 1.0, 1.0, 1.0]
    ratios = [point.value for point in ratio_curve(document, "no-warm-up", 8)]
    assert ratios == pytest.approx([1.4] * len(ratios), rel=0.01)
