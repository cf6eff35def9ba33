from pathlib import Path

import factories
import msgspec
import pytest

from tcbench.core import store
from tcbench.core.record import PlanChoice
from tcbench.run.eta import estimate
from tcbench.run.plan import PlannedCell
from tcbench.run.rounds import in_order


def cells(*pairs):
    return [factories.make_cell(config, batch_size) for config, batch_size in pairs]


def test_how_a_step_grows_with_the_batch_size_is_learned_from_a_config_seen_at_two():
    seen = estimate(())
    for size in (4, 8):
        seen = seen.finished(factories.make_record("fp32", size, images_per_s=10.0 * size / 4))  # the same step
    seen = seen.finished(factories.make_record("fp16", 4, images_per_s=4.0))
    assert seen.step_s(factories.make_cell("fp16", 16)) == pytest.approx(1.0, rel=0.1)


def test_what_the_model_foresaw_is_in_proportion_to_what_was_seen():
    base, dali, other = cells(("fp32", 4), ("fp32+dali", 4), ("fp16", 4))
    ahead = estimate([base, dali], slowdown=2.0, foreseen={base: 0.1, dali: 0.05})
    assert (ahead.step_s(base), ahead.step_s(dali)) == pytest.approx((0.2, 0.1))  # the machine is busy
    seen = ahead.finished(factories.make_record("fp32", 4, images_per_s=4 / 0.3))
    assert (seen.step_s(dali), seen.step_s(other)) == pytest.approx((0.15, 0.3), rel=0.05)


def test_an_earlier_run_tells_the_time_of_a_trial_until_this_ones_trials_outvote_it():
    fast, slow = ([factories.make_record(trial=n, duration_s=s) for n in range(4)] for s in (10.0, 14.0))
    cell = fast[0].cell
    costs = [estimate((), slow[:trials], slowdown=9.0, earlier=fast).trial_s(cell) for trials in range(4)]
    assert costs == pytest.approx([10, 12, 14, 14])


def test_where_nothing_ran_a_trial_starts_as_fast_as_on_an_ordinary_device_of_the_kind():
    cpu, gpu = (factories.make_cell(device=device) for device in ("cpu", "cuda:0"))
    ahead = estimate((), foreseen={cpu: 0.0, gpu: 0.0})
    assert ahead.trial_s(gpu) - ahead.trial_s(cpu) == pytest.approx(3.5)


def tuned(from_cache):
    """A trial of 50 s, the first step of which took 30 s longer than the others."""
    plans = (PlanChoice("conv", "eng1", 0, from_cache=from_cache, timed=12, budget_s=60.0),)
    measurement = factories.make_measurement(warmup_times_s=(30.1, 0.1, 0.1), plans=plans)
    return factories.make_record("fp32", 4, duration_s=50.0, measurement=measurement)


def test_a_config_that_was_not_seen_is_expected_to_tune_as_those_that_were():
    other = factories.make_cell("fp32+dali", 4)
    costs_s = [estimate(()).finished(tuned(from_cache)).trial_s(other) for from_cache in (False, True)]
    assert costs_s[0] - costs_s[1] == pytest.approx(30.0, abs=0.01)


def test_what_the_running_trial_takes_to_tune_is_added_to_what_is_left():
    cell = factories.make_cell("fp32", 4)
    before = estimate([cell], [tuned(from_cache=True)])
    assert before.tuned(cell, 60.0).remaining_s() == pytest.approx(before.remaining_s() + 60)


def test_time_spent_on_the_running_trial_is_taken_off_but_never_below_zero_and_one_that_failed_is_over():
    waiting = estimate(cells(("fp32", 4), ("fp32", 8)))
    assert waiting.remaining_s(2.0) == pytest.approx(waiting.remaining_s() - 2.0)
    assert waiting.remaining_s(1e9) > 0
    assert waiting.remaining_s(20.0, running=2) == pytest.approx(waiting.remaining_s() - 20.0)
    assert estimate(cells(("fp32", 4))).finished(factories.make_record("fp32", 4, status="crashed")).remaining_s() == 0


RESULTS = Path(__file__).parents[2] / "results"


def committed(run):
    """The trials of a committed run, in the order in which a run of these cells takes them."""
    records = [record for record in store.read([RESULTS / f"{run}.jsonl"]).records if record.status != "skipped"]
    cells = {record.cell: PlannedCell(record.cell) for record in records}
    places = {planned.cell: place for place, planned in enumerate(in_order(list(cells.values())))}
    return sorted(records, key=lambda record: (record.trial, places[record.cell]))


def errors(records):
    """Return the relative errors of the expected time left, before each trial."""
    left_s = [sum(record.duration_s for record in records[n:]) for n in range(len(records))]
    waiting, said_s = estimate([record.cell for record in records]), []
    for record in records:
        said_s.append(waiting.remaining_s())
        waiting = waiting.finished(record)
    return [abs(expected / true - 1) for expected, true in zip(said_s, left_s, strict=True)]


RUNS = ("amd-epyc-2cpu/cpu-20261124-132901", "amd-epyc-2cpu/peers-20261121-110639")


@pytest.mark.parametrize("run", [*RUNS, "intel-xeon-2cpu/scaling-20261122-171003"])
def test_from_the_third_cell_on_the_time_left_of_a_real_run_is_within_30_percent(run):
    assert max(errors(committed(run))[2:]) < 0.3


def slowed(record, factor):
    """The same trial on a machine where all takes so many times as long."""
    measured = record.measurement
    times = {name: [factor * s for s in getattr(measured, name)] for name in ("warmup_times_s", "step_times_s")}
    phases = [msgspec.structs.replace(phase, host_s=[factor * s for s in phase.host_s]) for phase in measured.phases]
    slow = msgspec.structs.replace(record, duration_s=factor * record.duration_s)
    return factories.remeasured(slow, **times, phases=phases)


@pytest.mark.parametrize(("run", "step_times_known"), [*zip(RUNS, (slice(33, 60), slice(14, None)), strict=True)])
@pytest.mark.parametrize("busy", [slice(10, None), slice(10)], ids=["begins", "ends"])
def test_the_time_left_follows_other_work_that_begins_or_ends_while_a_run_goes_on(run, step_times_known, busy):
    """Ten trials are half of a round, and a whole one; what comes then takes three times as long, or a third."""
    records = committed(run)
    records[busy] = [slowed(record, 3.0) for record in records[busy]]
    assert max(errors(records)[step_times_known]) < 0.3
