from __future__ import annotations

import factories
import pytest

from tcbench.analysis.eta import estimate


def cells(*pairs):
    return [factories.make_cell(config, batch_size) for config, batch_size in pairs]


def test_before_anything_is_seen_larger_batches_are_expected_to_take_longer():
    small, large = estimate(cells(("fp32", 8))), estimate(cells(("fp32", 256)))
    assert 1 < small.remaining_s() < large.remaining_s()


def test_what_was_seen_of_a_config_scales_with_the_batch_size():
    first, second = cells(("fp16", 32), ("fp16", 256))
    seen = estimate([first, second]).finished(factories.make_record("fp16", 32, images_per_s=20.0))
    assert seen.image_s(second) == pytest.approx(1 / 20, rel=0.05)
    step_s = 256 / 20
    # At least 3 + 12 + 5 steps, at most the timed pass's budget more.
    assert 20 * step_s <= seen.remaining_s() <= 21 * step_s + 60 + 10


def test_the_running_trials_steps_inform_the_others():
    first, second = cells(("fp32", 4), ("fp32+dali", 4))
    slow = estimate([first, second]).stepped(first, 10.0)
    fast = estimate([first, second]).stepped(first, 0.1)
    assert slow.remaining_s() > 3 * fast.remaining_s()


def test_a_family_member_is_a_better_guess_than_the_last_one_seen():
    first, second, third = cells(("fp32", 4), ("fp16", 4), ("fp32+dali", 4))
    seen = estimate([first, second, third])
    seen = seen.finished(factories.make_record("fp32", 4, images_per_s=40.0))
    seen = seen.finished(factories.make_record("fp16", 4, images_per_s=4.0))
    assert seen.image_s(third) == pytest.approx(1 / 40, rel=0.05)


def test_time_spent_on_the_running_trial_is_taken_off_but_never_below_zero():
    waiting = estimate(cells(("fp32", 4), ("fp32", 8)))
    assert waiting.remaining_s(2.0) == pytest.approx(waiting.remaining_s() - 2.0)
    assert waiting.remaining_s(1e9) > 0


def test_a_trial_that_failed_is_over_too():
    assert estimate(cells(("fp32", 4))).finished(factories.make_record("fp32", 4, status="crashed")).remaining_s() == 0
