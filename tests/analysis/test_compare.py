"""Verdicts on planted records: each kind, each metric, pairing, attribution, and what is said of trials."""

import itertools
import math

import factories
import msgspec
import pytest
from comparisons import reported
from factories import remeasured

from tcbench.analysis import comparability
from tcbench.analysis.compare import compare
from tcbench.core.record import GpuSample, GpuSamples, GpuState, HostLoad, Input, PhaseTimes, PlanChoice


def trials(*arguments, side="base", **changes):
    return factories.make_trials(*arguments, seed={"base": 1, "current": 3}[side], **({"run_id": side} | changes))


BROKEN = ("oom", "failed", "timeout", "crashed", "skipped")


def ended(config: str, *statuses: str, side: str = "base") -> list:
    """Trials that end so; those that are ok take almost the same time."""
    return [
        factories.make_record(config, 4, trial=n, run_id=side, status=status, images_per_s=40 + n / 100, reason="why")
        for n, status in enumerate(statuses)
    ]


def pair(current_rate=40.0, trials_a_side=8, **changes):
    base = trials("fp32", 4, trials_a_side, **changes)
    return base, trials("fp32", 4, trials_a_side, side="current", images_per_s=current_rate, **changes)


def only(comparison):
    (cell,) = comparison.cells
    return cell


def test_noise_is_inconclusive_and_tells_how_many_more_trials_would_decide():
    def side_of(*rates, run_id):
        return [factories.make_record(trial=n, images_per_s=r, run_id=run_id) for n, r in enumerate(rates)]

    noisy = compare(side_of(40, 36, 44, 40, run_id="base"), side_of(39.5, 36.2, 43.6, 39.9, run_id="current"))
    assert only(noisy).verdict == "inconclusive"
    assert only(noisy).more_trials > 4
    assert not noisy.failing


@pytest.mark.parametrize(
    ("more_of_base", "more_of_current", "verdict", "failing"),
    [
        (trials("fp16"), [], "missing", True),
        (ended("fp16", "skipped"), [], "missing", False),  # never ran, and is not missed
        ([], trials("fp16", side="current"), "new", False),
        *((trials("fp16"), ended("fp16", status), "changed status", True) for status in BROKEN),
        *((ended("fp16", status), trials("fp16", side="current"), "changed status", False) for status in BROKEN),
    ],
)
def test_a_cell_that_is_gone_or_does_not_run_any_more_fails(more_of_base, more_of_current, verdict, failing):
    base, current = pair()
    comparison = compare([*base, *more_of_base], [*current, *more_of_current])
    assert [cell.verdict for cell in comparison.cells] == ["pass", verdict]
    assert comparison.failing is failing
    if verdict == "changed status" and failing:
        assert comparison.cells[1].why == f"ok -> {more_of_current[0].status}: why"


def test_cells_pair_by_likeness_where_a_side_has_several():
    def on(side, machine, kind, rate):
        cell, environment = (
            factories.make_cell(input=Input(kind=kind)),
            factories.make_environment(machine, machine.upper()),
        )
        return trials(side=side, run_id=side + machine, cell=cell, environment=environment, images_per_s=rate)

    places = [("a", "generated", 40), ("b", "generated", 20), ("a", "synthetic", 80)]
    base, current = ([on(side, *place) for place in places] for side in ("base", "current"))
    comparison = compare(itertools.chain(*base), itertools.chain(*reversed(current)))
    assert [(cell.machine, cell.verdict) for cell in comparison.cells] == [("a", "pass"), ("a", "pass"), ("b", "pass")]
    assert comparison.differences == ()


def test_trials_of_several_commits_and_versions_of_tcbench_that_differ_are_notes():
    def notes(*facts):
        environments = [factories.make_environment(**changes) for changes in facts]
        base = [msgspec.structs.replace(r, environment=environments[r.trial]) for r in trials(trials=2)]
        return compare(base, trials(side="current")).notes

    assert notes({"commit": "c0"}, {"commit": "c1"}) == ("the trials of base differ in commit: c0, c1",)
    assert notes(*[{"tcbench": "0.0.1"}] * 2) == ("base was measured by tcbench 0.0.1, current by 0.1.0",)


def tuned(timed, left_out, budget_s, **changes):
    conv = PlanChoice("conv", "eng1", 0, False, 1.0, 1.0, timed, left_out, budget_s)
    plans = [conv, PlanChoice("a call", "", 0, False)]
    return [remeasured(record, plans=plans) for record in trials(trials=2, **changes)]


@pytest.mark.parametrize("current", [(12, 30, 60.0), (1, 41, 0.0), (12, 30, 9.0)])
def test_plans_that_were_tuned_otherwise_are_a_note_and_stay_comparable(current):
    comparison = compare(tuned(12, 30, 60.0), tuned(*current, side="current"))
    timed, left_out, budget_s = current
    says = (
        "cuDNN's plans were tuned differently in 1 of 1 cells: fp32, batch size 4: 12 candidates timed, 30 left out, "
        f"budget 60 s -> {timed} candidates timed, {left_out} left out, budget {budget_s:g} s"
    )
    assert comparison.notes == ((says,) if current != (12, 30, 60.0) else ())
    assert comparison.refused(()) == ()
    assert compare(trials(trials=2), tuned(*current, side="current")).notes == ()  # base does not say how


def stalled(record, factor):
    """One of its 20 counted steps (24, of which one in six does not count) takes so many times as long."""
    times_s = list(record.measurement.step_times_s)
    times_s[7] *= factor
    return remeasured(record, step_times_s=tuple(times_s))


def test_a_stall_in_every_trial_is_a_regression_that_the_median_step_hides_and_one_accident_is_none():
    base, current = pair(trials_a_side=4)
    accident = only(compare(base, [stalled(current[0], 8), *current[1:]]))
    assert (accident.verdict, accident.failing) == ("inconclusive", False)
    cell = only(compare(base, [stalled(record, 3) for record in current]))
    assert cell.verdict == "regression"
    assert cell.ratio.value == pytest.approx(1 / 1.1, rel=0.01)
    assert cell.current.spikes == pytest.approx(1 / 20)
    assert cell.current.median_images_per_s == pytest.approx(cell.base.median_images_per_s, rel=0.01)
    assert cell.current.images_per_s == cell.current.figure


def with_phases(record, waver=0.01, **times_s):
    """Phases that differ from trial to trial by `waver`; `update` by half of itself where it is named wild."""
    draw = 1 + waver * math.sin(record.trial * 7 + len(record.run_id))
    wild = 1 + 0.9 * math.sin(record.trial * 5 + len(record.run_id))
    phases = {"io": 0.01, "forward": 0.03, "backward": 0.05, "update": 0.01} | times_s
    drawn = {name: time_s * (wild if name == "wild" else draw) for name, time_s in phases.items()}
    return remeasured(record, phases=factories.make_phases(drawn))


@pytest.mark.parametrize(
    ("rate", "before", "after", "verdict", "culprit"),
    [
        (40 / 1.1, {}, {"update": 0.02}, "regression", "update"),
        (40 / 1.1, {}, {}, "regression", None),
        (40 / 1.3, {}, {"io": 0.015, "forward": 0.04}, "regression", "forward"),  # grew more
        (40 / 1.1, {"wild": 0.05}, {"wild": 0.075, "update": 0.02}, "regression", "update"),  # the other only drifts
        (40, {}, {"io": 0.011}, "pass", None),
    ],
)
def test_the_phase_that_surely_grew_most_is_named_where_a_cell_regressed(rate, before, after, verdict, culprit):
    base, current = pair(rate)
    cell = only(compare([with_phases(r, **before) for r in base], [with_phases(r, **after) for r in current]))
    assert (cell.verdict, cell.clock) == (verdict, "host")
    assert (cell.culprit and cell.culprit.name) == culprit
    changes = {phase.name: phase.change_s for phase in cell.phases}
    assert list(changes)[:4] == ["io", "forward", "backward", "update"]
    if culprit == "update":
        assert changes["update"].holds(0.01)
        assert "wild" not in changes or changes["wild"].value > changes["update"].value


def timed_by_phase(record, **grown_s):
    """Phases of the timed steps: trials differ by 3% in all, and the update does by 1% of itself."""
    n = record.trial
    draw, steady = (1 + sd * math.sin(n * 5 + 2 * len(record.run_id)) for sd in (0.045, 0.01))
    phases = {"forward": 0.03 * draw, "backward": 0.05 * draw, "update": 0.02 * steady}
    phases = {name: time_s + grown_s.get(name, 0.0) for name, time_s in phases.items()}
    step_s = sum(phases.values())
    steps = len(record.measurement.step_times_s)
    return remeasured(record, phases=factories.make_phases(phases), step_times_s=(step_s,) * steps)


@pytest.mark.parametrize(
    ("grown_s", "verdict", "decisions"),
    [
        ({"update": 0.005}, "regression", {"update": "slower"}),
        ({"update": 0.012, "backward": -0.012}, "inconclusive", {"backward": "faster", "update": "moved"}),
        ({"update": 0.008, "backward": -0.004}, "inconclusive", {"update": "unsettled"}),
        ({"update": 0.001}, "inconclusive", {}),
    ],
)
def test_what_the_whole_leaves_open_is_decided_by_a_phase_unless_its_work_came_from_another(
    grown_s, verdict, decisions
):
    base, current = pair(trials_a_side=6)
    before, after = [timed_by_phase(r) for r in base], [timed_by_phase(r, **grown_s) for r in current]
    cell = only(compare(before, after))
    assert cell.verdict == verdict
    assert {phase.name: phase.decision for phase in cell.phases if phase.decision} == decisions
    assert cell.moved == ("moved" in decisions.values())
    assert bool(cell.slower_phases) == (verdict == "inconclusive" and "update" in decisions)
    update = next(phase for phase in cell.phases if phase.name == "update")
    assert update.slower_by.holds(grown_s["update"] / 0.1)
    # Where the phases are not those of the timed steps nothing but the whole is judged.
    untimed = [remeasured(r, phases=factories.make_phases({"update": 0.02 + grown_s["update"]})) for r in after]
    of_whole = only(compare([remeasured(r, phases=factories.make_phases({"update": 0.02})) for r in before], untimed))
    assert (of_whole.verdict, of_whole.phases[0].slower_by) == ("inconclusive", None)


def test_where_the_device_fills_the_step_its_times_are_compared():
    def on_device(record, backward_s):
        phases = {"forward": (0.001, 0.03), "backward": (0.001, backward_s), "update": (0.05, 0.02)}
        draw = 1 + 0.01 * math.sin(record.trial * 5 + len(record.run_id))
        accident_s = 1.0 + record.trial  # to one step, which says nothing of the phase
        changed = tuple(
            PhaseTimes(name=n, host_s=(host_s * draw,) * 5, device_s=(*(device_s * draw,) * 4, accident_s))
            for n, (host_s, device_s) in phases.items()
        )
        return remeasured(record, phases=changed)

    base, current = pair(36.0)
    cell = only(compare([on_device(r, 0.05) for r in base], [on_device(r, 0.06) for r in current]))
    assert (cell.clock, cell.culprit.name) == ("device", "backward")


def with_power(record, counter=True, mig=False):
    samples = tuple(
        # Before and after the timed pass the GPU draws another power.
        GpuSample(time_s=t, power_w=100.0 if timed else 7.0, energy_j=joules if counter else None)
        for t, joules, timed in ((1.0, 1.0, 0), (2.0, 10.0, 1), (3.0, 110.0, 1), (9.0, 5e4, 0))
    )
    gpu = GpuSamples(state=GpuState(mig=mig), samples=samples, timed_from_s=1.5, timed_to_s=3.5)
    return msgspec.structs.replace(record, gpu=gpu)


@pytest.mark.parametrize(
    "records",
    [
        # The power of a part of a card is the whole card's.
        [with_power(r, counter=False, mig=True) for r in factories.make_trials(trials=3)],
        # Of many ranks one GPU is watched.
        [with_power(r) for r in factories.make_trials(cell=factories.make_cell(ranks=2), trials=3)],
    ],
    ids=["a slice", "ranks"],
)
def test_energy_that_no_record_tells_is_not_measured(records):
    cell = only(compare(records, records, metrics=("energy",)))
    assert (cell.verdict, cell.why) == ("not measured", "no images per joule in the records of base")


def test_doubtful_trials_are_named():
    def throttled(record, mask):
        sample = GpuSample(time_s=2.0, throttle_mask=mask)
        gpu = GpuSamples(state=GpuState(), samples=(sample,), timed_from_s=1.0, timed_to_s=3.0)
        return msgspec.structs.replace(record, gpu=gpu)

    base, current = pair(trials_a_side=3)
    current[1] = throttled(current[1], 0x40 | 0x1)
    noisy = factories.make_measurement(factories.make_step_times(0.1, 24, noise=0.5))
    current[2] = msgspec.structs.replace(current[2], measurement=msgspec.structs.replace(noisy, warmup_settled=False))
    current.append(factories.make_record("fp32", 4, status="failed", trial=3, run_id="current"))
    load = HostLoad(elapsed_s=1.0, processors=2, own_s=0.75, waited_s=1.0, others_s=0.25, stolen_s=0.0)
    current[0] = msgspec.structs.replace(current[0], host=load)
    busy, hot, noisy, *rest = only(compare(base, current)).current.notes
    assert busy == "trial 1 on a busy machine (25% of its processor time went to other processes)"
    assert hot == "trial 2 throttled (hardware thermal slowdown)"
    assert noisy.startswith("trial 3 noisy (mean step ± ")
    assert rest == ["trial 3 not settled when its warm-up ended", "trial 4 failed: ValueError: the loss is nan"]
    base[0] = throttled(base[0], 0x1)  # it was idle
    few = factories.make_measurement((0.1, 0.1, 0.12, 0.1), block_steps=4)  # ± 27%, as three steps easily are
    base[1] = msgspec.structs.replace(base[1], measurement=few)
    assert only(compare(base, current)).base.notes == ()


@pytest.mark.parametrize(
    ("base", "current", "why"),
    [
        ([], ["ok"] * 7 + ["oom"], "1 of 8 trials oom: why"),
        ([], ["ok"] + ["oom"] * 7, "7 of 8 trials oom: why"),
        ([], ["ok"] * 3 + ["crashed"] * 2, "2 of 5 trials crashed: why"),
        ([], ["ok"] * 3 + ["timeout", "crashed", "failed"], "1 of 6 trials failed: why"),
        ([], ["ok"] * 8 + ["crashed"], None),  # one accident
        (["oom"], ["ok"] * 8 + ["oom"], None),  # the base breaks too
        ([], ["ok"] * 8 + ["skipped"], None),
    ],
)
def test_trials_that_break_where_none_of_the_base_does_fail_unless_it_may_be_an_accident(base, current, why):
    cell = only(compare(ended("fp32", *["ok"] * 8, *base), ended("fp32", *current, side="current")))
    assert (cell.verdict, cell.failing) == (("changed status", True) if why else ("pass", False))
    assert cell.why == why or not why


@pytest.mark.parametrize(("status", "is_answer"), [("failed", False), ("skipped", True), ("oom", True)])
def test_cells_that_fail_on_both_sides_are_not_known_to_be_well_but_not_to_fit_is_an_answer(status, is_answer):
    comparison = compare(ended("fp32", status), ended("fp32", status, side="current"))
    assert only(comparison).verdict == "not measured"
    assert (comparison.inconclusive, comparison.failing) == (not is_answer, False)


def test_cells_that_are_alike_pair_without_being_measured_against_each_other(monkeypatch):
    """A thousand cells of one config would be a million distances."""
    base = [factories.make_record(cell=factories.make_cell(seed=seed)) for seed in range(20)]
    monkeypatch.setattr(comparability, "distance", lambda first, other: pytest.fail("not needed"))
    comparison = compare(base, reversed(base))
    assert [cell.base.cell.seed for cell in comparison.cells] == list(range(20))
    assert all(cell.base.cell == cell.current.cell for cell in comparison.cells)


def spiky(records, step_s, spike_s):
    """Trials whose steps take `step_s`, but for one in five, which takes `spike_s` in some trials and 10 times that in
    others."""

    def times(n):
        long_s = spike_s * (10 if n % 2 else 1)
        return tuple(long_s if i % 5 == 2 else step_s * (1 + 0.001 * n) for i in range(20))

    return [remeasured(record, step_times_s=times(n)) for n, record in enumerate(records)]


def test_a_median_step_that_is_surely_slower_is_told_where_the_mean_is_not_settled():
    base, current = pair(trials_a_side=6)
    cell = only(compare(spiky(base, 0.001, 0.05), spiky(current, 0.0025, 0.05)))
    assert cell.verdict == "inconclusive"
    assert cell.slower_at_median.value == pytest.approx(0.4, rel=0.01)
    assert only(compare(spiky(base, 0.001, 0.05), spiky(current, 0.001, 0.05))).slower_at_median is None
    assert only(compare(*pair(30.0))).slower_at_median is None  # the mean says it already


@pytest.mark.parametrize(("steps", "word"), [((-0.02, -0.02), "slower"), ((0.02, 0.02), "faster"), ((0.02, -0.02), "")])
def test_a_drift_that_both_sides_share_is_named(steps, word):
    sides = [
        [factories.make_record(trial=n, images_per_s=40 * (1 + step * (n + 10 * side))) for n in range(10)]
        for side, step in enumerate(steps)
    ]
    notes = [note for note in compare(*sides).notes if "drift" in note]
    assert [note.split(" during")[0] for note in notes] == [f"base and current both become {word}"] * bool(word)
    assert not any("drift" in note for note in compare(*sides, in_turns=True).notes)


def test_trials_that_are_equal_to_the_last_digit_decide_nothing():
    base, current = pair(38.0)
    copies = [msgspec.structs.replace(current[0], trial=n) for n in range(5)]
    compared = compare(base, copies)
    assert only(compared).verdict == "inconclusive"
    assert only(compared).why == "the trials of current have identical figures and may be copies"
    assert compared.power is None


def ran(*kernels, **changes):
    """Trials that ran the kernels (kind of work, name, digest of choices), one set of them for each trial in turn."""
    changed_trials = trials(trials=4, **changes)
    plans = [[PlanChoice(work, name, 0, False, choices=digest) for work, name, digest in each] for each in kernels]
    return [remeasured(record, plans=plans[place % len(plans)]) for place, record in enumerate(changed_trials)]


@pytest.mark.parametrize(
    ("current", "differing"),
    [
        ([[("conv_wgrad bfloat16", "brg", "1"), ("add float32", "jit", "2")]], {}),
        ([[("add float32", "jit", "2"), ("conv_wgrad bfloat16", "brg", "1"), ("new float32", "x", "9")]], {}),
        ([[("conv_wgrad bfloat16", "brg", "7"), ("add float32", "jit", "2")]], {"backward": ["conv_wgrad bfloat16"]}),
        ([[("conv_wgrad bfloat16", "brg", ""), ("add float32", "C", "")]], {"forward": ["add float32"]}),
        (
            [[("conv_wgrad bfloat16", "brg", "1")], [("conv_wgrad bfloat16", "im2col", "8")]],
            {"backward": ["conv_wgrad bfloat16"]},
        ),
    ],
)
def test_sides_that_ran_different_kernels_for_the_same_work_say_so_by_phase(current, differing):
    base = [[("conv_wgrad bfloat16", "brg", "1"), ("add float32", "jit", "2")]]
    comparison = compare(ran(*base), ran(*current, side="current"))
    assert only(comparison).other_kernels == differing
    says = [
        f"base and current ran different kernels for the same work in 1 of 1 cells: fp32, batch size 4: in {phase}: "
        f"{', '.join(kinds)}"
        for phase, kinds in differing.items()
    ]
    assert list(comparison.notes) == says


@pytest.mark.parametrize(("grown", "only_there"), [("forward", False), ("backward", True)])
def test_a_regression_that_lies_only_where_kernels_differ_says_so(grown, only_there):
    base, current = (ran([("conv_wgrad bfloat16", "brg", digest)], side=digest) for digest in ("base", "current"))
    cell = only(reported([timed_by_phase(r) for r in base], [timed_by_phase(r, **{grown: 0.02}) for r in current]))
    assert (cell.verdict, cell.grew_by_kernels) == ("regression", only_there)
    assert ("phases grew only where the two sides ran different kernels: backward" in cell.sentence) == only_there


def waiting(record, wait, computed=1.0):
    """The record's steps take `computed` times as long, and wait for a processor for `wait` times that time besides."""
    times_s = [time_s * computed * (1 + wait) for time_s in record.measurement.step_times_s]
    waited_s = sum(times_s) * wait / (1 + wait)
    facts = {"elapsed_s": sum(times_s), "processors": 2, "own_s": 1.0, "waited_s": waited_s, "others_s": 9.0}
    host = HostLoad(**facts, stolen_s=0.0, step_waited_s=waited_s)
    return remeasured(msgspec.structs.replace(record, host=host), step_times_s=tuple(times_s))


@pytest.mark.parametrize(
    ("computed", "waits", "verdict"),
    [
        (1.1, (0.5, 2.0, 1.0, 0.6, 1.8, 0.7), "regression"),  # hidden in the noise of the waits
        (1.0, (0.5, 2.0, 1.0, 0.6, 1.8, 0.7), "inconclusive"),  # its threads may cause some of the waits
        (1.1, (0.0, 0.02, 0.0, 0.01, 0.0, 0.02), "regression"),  # by the whole step
    ],
)
def test_a_loss_that_waits_for_a_processor_hide_is_found_without_them_but_nothing_passes_so(computed, waits, verdict):
    base, current = pair(trials_a_side=6)
    slower = [waiting(record, wait, computed) for record, wait in zip(current, waits, strict=True)]
    cell = only(compare([waiting(*each) for each in zip(base, reversed(waits), strict=True)], slower, in_turns=True))
    assert cell.verdict == verdict
    assert (cell.slower_without_waits is not None) == (computed > 1 and waits[0] > 0)
    if cell.slower_without_waits:
        assert cell.slower_without_waits.holds(1 / computed)
    before = [
        msgspec.structs.replace(r, host=msgspec.structs.replace(r.host, step_waited_s=msgspec.UNSET)) for r in slower
    ]
    assert only(compare(base, before, in_turns=True)).without_waits is None  # a record of an earlier version
