"""The verdict on traces of training on a CPU, of which one test records real ones."""

import time
from dataclasses import replace

import pytest

from tcbench.analysis.host_trace import judge_training
from tcbench.analysis.trace_verdict import BACKWARD, OUTSIDE
from tcbench.core.training_trace import TrainingTrace, UserRange
from tcbench.tracing import kineto

MAIN, HELPER = (1, 1), (1, 2)


def make_host_trace(operators, ranges=(("ProfilerStep#1", 0, 1000),), helper_ranges=(), helper_operators=(), **changes):
    user_ranges = [UserRange(name, MAIN, begin, end) for name, begin, end in ranges]
    user_ranges += [UserRange(name, HELPER, begin, end) for name, begin, end in helper_ranges]
    trace = TrainingTrace(
        source="pytorch",
        device_name="",
        begin_ns=0,
        end_ns=10_000,
        activities=(),
        calls=(),
        ranges=tuple(sorted(user_ranges, key=lambda each: (each.begin_ns, -each.end_ns))),
        operators={MAIN: tuple(operators), HELPER: tuple(helper_operators)},
    )
    return replace(trace, **changes)


def test_each_nanosecond_is_input_or_work_or_communication_or_python():
    ranges = [("ProfilerStep#1", 0, 1000), ("enumerate(DataLoader)#Iter.__next__", 100, 300)]
    collective = [("gloo:all_reduce", 540, 700)]
    trace = make_host_trace([(200, 290), (300, 500)], ranges, collective, helper_operators=[(450, 550)])
    verdict = judge_training(trace)
    causes = {cause: time_ns for cause, time_ns in verdict.causes.items() if time_ns}
    assert causes == {"input": 200, "python": 100 + 300}
    assert (verdict.work_ns, verdict.exposed_ns, verdict.communication_ns) == (250, 150, 160)
    assert (verdict.limit, verdict.device_name, verdict.window_ns) == ("host-bound", "CPU", 1000)


def test_a_loader_on_another_thread_neither_computes_nor_keeps_the_step_waiting():
    loading = [("load_batch", 0, 900)]
    verdict = judge_training(make_host_trace([(0, 600)], helper_ranges=loading, helper_operators=[(600, 900)]))
    assert (verdict.limit, verdict.work_ns, verdict.causes["input"]) == ("compute-bound", 600, 0)


def test_the_backward_pass_lasts_from_its_first_operator_to_its_last_unless_others_run_between():
    backward = ((300, 400), (450, 500), (700, 720))
    trace = make_host_trace([(0, 100), *backward[:2], (600, 650), backward[2]], backward={MAIN: backward})
    phases = {phase.name: (phase.launches, phase.work_ns, phase.idle_ns) for phase in judge_training(trace).phases}
    assert phases == {OUTSIDE: (2, 150, 630), BACKWARD: (3, 170, 50)}


def test_an_update_that_runs_most_operators_is_no_step():
    updates = [("Optimizer.step#SGD.step", 500 + 1000 * k, 900 + 1000 * k) for k in range(4)]
    operators = [(begin + 10 * k, begin + 10 * k + 5) for _, begin, _ in updates for k in range(-1, 30)]
    verdict = judge_training(make_host_trace(operators, updates))
    assert (verdict.source, verdict.n_steps, verdict.step_ns) == ("optimizer", 3, 1000)


def test_without_steps_the_phases_add_up_to_the_time_from_the_first_operator_to_the_last():
    ranges = [("setup", 0, 150), ("forward", 300, 500), ("save", 900, 2000)]
    verdict = judge_training(make_host_trace([(100, 200), (300, 450), (990, 1000)], ranges))
    assert (verdict.source, verdict.window_ns) == ("none", 900)
    phases = [(phase.name, phase.work_ns + phase.idle_ns) for phase in verdict.phases]
    assert phases == [("setup", 50), (OUTSIDE, 550), ("forward", 200), ("save", 100)]


def test_steps_without_operators_have_no_verdict():
    assert judge_training(make_host_trace([(2000, 2100)])).limit == "cannot be told"


@pytest.mark.parametrize(("slow_input", "limit"), [(True, "input-bound"), (False, "compute-bound")])
def test_shares_agree_with_what_a_program_measures_itself(tmp_path, slow_input, limit):
    torch = pytest.importorskip("torch", reason="PyTorch is not installed: pip install torch==2.13.0")

    class Images(torch.utils.data.Dataset):
        def __len__(self):
            return 64

        def __getitem__(self, index):
            time.sleep(0.02 if slow_input else 0)
            return torch.ones(20_000), index % 2

    small = torch.nn.ParameterList([torch.nn.Parameter(torch.randn(20_000)) for _ in range(200)])
    optimizer = torch.optim.Adam(small.parameters(), foreach=False)
    batches = iter(torch.utils.data.DataLoader(Images(), batch_size=16))
    times_s = {"input": 0.0, BACKWARD: 0.0, "Optimizer.step": 0.0}

    def timed(phase, call):
        begin = time.perf_counter()
        returned = call()
        times_s[phase] += time.perf_counter() - begin
        return returned

    schedule = torch.profiler.schedule(wait=0, warmup=1, active=3)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], schedule=schedule) as profiler:
        for step in range(4):
            if step == 1:
                begin, times_s = time.perf_counter(), dict.fromkeys(times_s, 0.0)
            images, _ = timed("input", lambda: next(batches))
            loss = sum((images[0] * parameter).mean() for parameter in small)
            timed(BACKWARD, loss.backward)
            timed("Optimizer.step", optimizer.step)
            total_s = time.perf_counter() - begin if step else 0.0
            if step < 3:
                profiler.step()
    profiler.export_chrome_trace(str(tmp_path / "t.json"))
    verdict = judge_training(kineto.read(tmp_path / "t.json"))
    assert (verdict.limit, verdict.source, verdict.n_steps) == (limit, "profiler", 3)
    shares = {phase.name: verdict.share(phase.work_ns + phase.idle_ns) for phase in verdict.phases}
    assert {name: shares[name] for name in times_s} == pytest.approx(
        {name: time_s / total_s for name, time_s in times_s.items()}, abs=0.02
    )
    assert verdict.share(verdict.causes["input"]) == pytest.approx(times_s["input"] / total_s, abs=0.02)
    if not slow_input:
        largest = max(verdict.phases, key=lambda phase: phase.work_ns)
        assert (largest.name, largest.launches >= 3 * 200) == ("Optimizer.step", True)
