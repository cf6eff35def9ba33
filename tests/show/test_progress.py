import io
import logging
import re
from types import SimpleNamespace

import factories
import pytest

from tcbench.core.messages import Building, Stepped, Tuning
from tcbench.core.record import GpuSample, GpuSamples, GpuState
from tcbench.run.eta import estimate
from tcbench.show import progress as views
from tcbench.show.progress import RunProgress, Stages
from tcbench.show.tables import Screen


@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_terminal_shows_the_eta_however_narrow_it_is_and_long_the_config(width):
    out = Screen(file=io.StringIO(), width=width, force_terminal=True)
    cell = factories.make_cell(factories.LADDERS[-1], 256)
    with RunProgress(out, estimate([cell]), 1) as progress:
        progress.listen(cell, 0, Stepped("timed", 0, 0.1))  # its first block is not over
        progress._progress.refresh()
        progress.listen(cell, 0, Stepped("timed", 6, 0.1))
        progress._progress.refresh()
        drawn = out.file.getvalue().rpartition("\r")[2]
    assert "0/1" in drawn
    assert re.search(r"ETA \d+ s", drawn)
    assert "\n" not in drawn
    assert ("timed, 6 steps, " in drawn) == (width == 120)
    assert " 0 step" not in out.file.getvalue()


def test_a_warning_stands_on_a_line_of_its_own_above_the_progress():
    out = Screen(file=io.StringIO(), width=80, force_terminal=True, columns=80)
    with Stages(out) as stages:
        stages.advance("timing the parts of steps", 1, 2)
        stages._progress.refresh()
        logging.getLogger("tcbench.run.prediction").warning("busy machine: other processes used up to %.0f%%", 81)
    lines = re.sub("\x1b[^a-zA-Z]*[a-zA-Z]", "", out.file.getvalue().replace("\r", "\n")).splitlines()
    assert "busy machine: other processes used up to 81%" in lines


def test_trials_that_are_not_run_after_all_count_as_over_so_that_the_count_never_goes_down():
    out = Screen(file=io.StringIO(), width=120)
    cells = [factories.make_cell("fp32"), factories.make_cell("fp16")]
    with RunProgress(out, estimate(()), 0) as progress:
        for cell, ahead in ((cells[0], 12), (cells[1], 8), (cells[1], 7)):  # fp32 gave up after a trial
            progress.begin("base, look 1/2", [cell], ahead)
            progress.finished(factories.make_record(cell=cell))
        progress.begin("base, look 2/2", [cells[1]], 12)
        progress.finished(factories.make_record(cell=cells[1]))
    counts = [line.partition(" ")[0] for line in out.file.getvalue().splitlines()]
    assert counts == ["[1/12]", "[5/12]", "[6/12]", "[7/18]"]


def test_a_trial_that_is_repeated_is_not_counted_and_says_why():
    out = Screen(file=io.StringIO(), width=200)
    cell = factories.make_cell(device="cuda:0")
    samples = (GpuSample(1.0, throttle_mask=0x44),)
    gpu = GpuSamples(state=GpuState(), samples=samples, timed_from_s=0.0, timed_to_s=2.0)
    with RunProgress(out, estimate([cell]), 1) as progress:
        progress.finished(factories.make_record(cell=cell, gpu=gpu), [cell], again=True)
        progress.finished(factories.make_record(cell=cell, gpu=gpu), [])
    first, second = out.file.getvalue().splitlines()
    why = "; it runs again after a pause, since the GPU was slowed down (hardware thermal slowdown)"
    assert first.startswith("[0/1] ") and why in first
    assert second.startswith("[1/1] ") and "slowed down" not in second


def test_the_eta_of_trials_in_turns_takes_off_what_they_have_spent_together(monkeypatch):
    out, now_s = Screen(file=io.StringIO(), width=200), [100.0]
    monkeypatch.setattr("tcbench.show.progress.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    cells = [factories.make_cell(config) for config in ("fp32", "bf16", "fp16")]
    seen = [factories.make_record(cell=cell, duration_s=10.0) for cell in cells]
    with RunProgress(out, estimate(cells, seen), 3) as progress:
        progress.begin("", cells, 3, together=3)
        now_s[0] += 24.0
        progress.finished(seen[0], cells[1:])
    assert "(ETA 6 s)" in out.file.getvalue()


@pytest.mark.parametrize(("done", "shown"), [(0, "0 trials ETA"), (1, "1 trial ETA"), (2, "2 trials ETA")])
def test_where_nobody_knows_how_many_trials_there_will_be_those_that_are_over_are_counted(done, shown):
    out = Screen(file=io.StringIO(), width=80, force_terminal=True)
    cell = factories.make_cell("fp32")
    with RunProgress(out, estimate(()), None) as progress:
        for _ in range(done):
            progress.finished(factories.make_record(cell=cell))
        progress.begin("round 2 of at most 5", [cell], None)
        progress.listen(cell, done, Stepped("timed", 6, 0.1))
        progress._progress.refresh()
        drawn = re.sub("\x1b[^a-zA-Z]*[a-zA-Z]", "", out.file.getvalue().rpartition("\r")[2])
    assert drawn.startswith(shown)
    assert " round 2 of at most 5: fp32, batch size 4: timed" in drawn


def test_tuning_shows_its_budget_which_the_eta_counts_until_a_step_is_done():
    out = Screen(file=io.StringIO(), width=120, force_terminal=True)
    cell = factories.make_cell("fp16")
    with RunProgress(out, estimate([cell]), 1) as progress:
        progress.listen(cell, 0, Building("imports"))
        before_s = progress._remaining_s()
        progress.listen(cell, 0, Tuning(34, 12.0, 60.0))
        progress._progress.refresh()
        assert "tuning, 34 plans so far, 12 s of at most 1 min 00 s" in out.file.getvalue()
        assert progress._remaining_s() == pytest.approx(before_s + 60, abs=0.5)
        progress.listen(cell, 0, Stepped("warm-up", 1, estimate([cell]).step_s(cell)))
        assert progress._remaining_s() == pytest.approx(before_s + 12, abs=0.5)


def test_the_first_step_which_prepares_says_nothing_of_the_others():
    cell = factories.make_cell("fp32")
    with RunProgress(Screen(file=io.StringIO()), estimate([cell]), 1) as progress:
        before_s = progress._remaining_s()
        progress.listen(cell, 0, Stepped("warm-up", 1, 20.0))
        assert progress._remaining_s() == pytest.approx(before_s, abs=0.5)
        progress.listen(cell, 0, Stepped("warm-up", 2, 20.0))
        assert progress._remaining_s() > before_s + 100


def test_quiet_is_quiet():
    out = Screen(file=io.StringIO(), force_terminal=True, quiet=True)
    with RunProgress(out, estimate([factories.make_cell()]), 1) as progress:
        progress.finished(factories.make_record())
    with Stages(out) as stages:
        stages.advance("generating", 1, 2)
    assert out.file.getvalue() == ""


def test_stages_say_now_and_then_how_far_they_are_where_there_is_no_terminal(monkeypatch):
    out = Screen(file=io.StringIO(), width=100)
    now = [0.0]
    monkeypatch.setattr(views.time, "monotonic", lambda: now[0])
    with Stages(out) as stages:
        for second in range(21):
            now[0] = float(second)
            stages.advance("tracing", 10 + second, 50)
        now[0] = 100.0
        stages.advance("building plans", 0, 4)
        stages.advance("building plans", 4, 4)
    # Ten were there at once: the rest comes at one a second.
    assert out.file.getvalue().splitlines() == [
        "tracing: 15/50, ETA 35 s",
        "tracing: 20/50, ETA 30 s",
        "tracing: 25/50, ETA 25 s",
        "tracing: 30/50, ETA 20 s",
    ]


def test_stages_show_how_far_they_are_and_an_eta_on_a_terminal(monkeypatch):
    """Units done at the start took no time, and the first unit includes start-up, so neither counts for the ETA."""
    out = Screen(file=io.StringIO(), width=40, force_terminal=True)
    now = [0.0]
    monkeypatch.setattr(views.time, "monotonic", lambda: now[0])
    with Stages(out) as stages:
        for done, shown in ((5, "5/20 ETA ?"), (6, "6/20 ETA ?"), (7, "7/20 ETA 13 s")):
            total = 20
            stages.advance("steps [of] one training whose name is long", done, total)
            stages._progress.refresh()
            drawn = re.sub("\x1b[^a-zA-Z]*[a-zA-Z]", "", out.file.getvalue().rpartition("\r")[2])
            assert drawn.startswith(f"{shown} steps [of] one")
            assert (len(drawn) <= 38, drawn.count("\n")) == (True, 0)
            now[0] += 10.0 if done == 5 else 1.0


def test_a_trials_rate_is_that_of_all_its_ranks():
    record = factories.make_record(cell=factories.make_cell(ranks=4), images_per_s=80.0, noise=0.0)
    assert views.outcome(record) == "80.0 images/s"
