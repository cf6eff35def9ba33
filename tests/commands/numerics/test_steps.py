"""Steps to a loss by SGD and by K-FAC: the counting, the tuning, the table and the picture."""

import msgspec
import pytest

from tcbench.commands.numerics import call, plan
from tcbench.commands.numerics.call import ProgramOptions
from tcbench.commands.numerics.second_order_chart import notes, steps_chart
from tcbench.commands.numerics.steps import SMOOTH, MethodRun, StepsDocument, best_learning_rate
from tcbench.commands.numerics.training import compare_methods
from tcbench.core.numerics import Run, TrainingFinished
from tcbench.core.record import KfacSettings
from tcbench.engine.accelerators.device import host_device
from tcbench.run.scenario import load


def method_run(losses, method="sgd", rate=0.1, seed=0, reason=None) -> MethodRun:
    facts = {"losses": tuple(losses), "train_time_s": None if reason else 2.0, "reason": reason}
    return MethodRun(method=method, learning_rate=rate, seed=seed, **facts)


def setting(steps=10, batch=1024):
    request = plan.NumericsRequest(steps=steps, batch_size=batch, global_batch=batch)
    return plan.training_setting(load("cpu"), host_device(), request, 1, None)


def test_a_loss_is_reached_at_the_last_of_the_steps_whose_mean_is_at_it():
    run = method_run([2.0] * 3 + [0.0] * 7)
    assert run.smooth[0] == pytest.approx(6 / 5)
    assert [run.steps_to(loss) for loss in (1.2, 1.0, 0.8, 0.1, 0)] == [5, 6, 6, 8, 8]
    assert method_run([0.4] * 4).steps_to(1.0) is None  # fewer steps than a mean has


def test_the_best_rate_reaches_the_lowest_loss_first_and_never_by_diverging():
    early = method_run([1.0] * 5 + [0.19] * 5, rate=0.1)
    earlier = method_run([0.9] * 4 + [0.1] * 6, rate=0.3)
    stuck = method_run([0.3] * 10, rate=1.0)
    diverged = method_run([0.01] * 3, rate=3.0, reason="diverged at step 3")
    assert best_learning_rate([early, earlier, stuck, diverged]) == 0.3
    assert best_learning_rate([stuck, diverged]) == 1.0


def test_both_methods_have_the_same_budget_rates_weights_and_batches_and_one_rung_apart():
    sgd, kfac = (plan.method_job(setting(), KfacSettings(), method, 0.3, 2) for method in plan.METHODS)
    assert kfac.cell.rungs == (*sgd.cell.rungs, "kfac")
    same = msgspec.structs.replace(kfac.cell, rungs=sgd.cell.rungs, config=sgd.cell.config, train=sgd.cell.train)
    assert (same, kfac.setting, kfac.technique) == (sgd.cell, sgd.setting, sgd.technique)
    assert (sgd.setting.learning_rate, sgd.cell.seed, sgd.setting.loss_divisor) == (0.3, 2, 1.0)


class Trains(call.NumericsRunner):
    """A runner whose K-FAC needs half the steps, and whose best rate is 0.3."""

    def run(self, jobs):
        for job in jobs:
            slow = abs(job.setting.learning_rate - 0.3) + (0.1 if "kfac" in job.cell.rungs else 0.2)
            losses = tuple(max(0.05, 2.3 - number / (20 * slow)) for number in range(job.setting.steps))
            run = Run(technique="fp32", seed=job.cell.seed, status="ok", losses=losses, train_time_s=1.5)
            yield job, TrainingFinished(run, None, None)


def test_the_command_tunes_both_trains_both_from_every_seed_and_keeps_what_it_shows(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(call, "NumericsRunner", Trains)
    compare_methods(
        ProgramOptions(host_device(), 60.0, tmp_path, quiet=True, json=False, details=False),
        setting(steps=24),
        KfacSettings(),
        2,
    )
    output = capsys.readouterr().out
    files = {path.suffix: path for path in tmp_path.rglob("steps-*")}
    document = msgspec.json.decode(files[".json"].read_bytes(), type=StepsDocument)
    assert {run.seed for run in document.tuning} == {plan.TUNING_SEED}
    assert [(run.method, run.learning_rate, run.seed) for run in document.runs] == [
        (method, 0.3, seed) for seed in (0, 1) for method in ("sgd", "kfac")
    ]
    steps = [document.runs_of(method)[0].steps_to(1.0) for method in ("sgd", "kfac")]
    assert None not in steps
    assert steps[1] < steps[0]
    assert f"{steps[0]}, {steps[0]}" in output and f"{steps[1]}, {steps[1]}" in output


def document(rate: float, losses) -> StepsDocument:
    runs = tuple(method_run(losses, method, rate) for method in plan.METHODS)
    tuning = tuple(method_run(losses, method, rate) for method in plan.METHODS for rate in plan.RATES)
    return StepsDocument(created_at="", setting=setting(), kfac=KfacSettings(), tuning=tuning, runs=runs)


def test_a_best_rate_at_the_end_of_the_list_is_said():
    assert not any("another may be better" in line for line in notes(document(0.1, [1.0] * 9)))
    assert sum("another may be better" in line for line in notes(document(1.0, [1.0] * 9))) == 2


def test_runs_too_short_for_a_mean_are_drawn_all_the_same():
    assert steps_chart(document(0.1, [1.0] * (SMOOTH - 1)), ["a machine"]).axes
