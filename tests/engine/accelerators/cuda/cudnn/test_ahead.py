"""Plans that are built before the trial that times them, with a frontend that plans nothing, in this process. In real:
test_real_plans.py, and test_gpu_ahead.py on a GPU."""

import dataclasses
import math

import pytest

from tcbench.core import messages
from tcbench.core.cache import VARIABLE
from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.cuda.cudnn import ahead, plans
from tcbench.engine.accelerators.cuda.cudnn.plans import NoPlan, Plans
from tcbench.engine.work import BatchNormBackward, Conv2d, ConvDgrad, ConvFprop, Norm, Relu
from tcbench.hardware.gpus import GpuProperties

H200 = GpuProperties("NVIDIA H200", 90, 132, 150 << 30)
CONV = ConvFprop(Conv2d(4, 8, 14, 14, 16, 3, 3, 1, 1, "NHWC", "float16"))
NORM = BatchNormBackward(Norm(4, 16, 7, 7, "NHWC", "float16", "relu"))
SETTINGS = CudnnSettings()


@pytest.fixture(autouse=True)
def planning(frontend, monkeypatch, tmp_path):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv(messages.TUNING_BUDGET, "60")
    monkeypatch.setattr(ahead, "SLOW_S", 0.0)
    monkeypatch.setattr(ahead, "_properties", lambda index: f"GPU {index}")
    monkeypatch.setattr(ahead.graphs, "absent_target", lambda properties, sm: {"absent": (properties, sm)})
    return frontend


def build(works=(CONV,), settings=SETTINGS):
    said = []
    ahead.build(3, H200, [(work, settings) for work in works], 1, lambda *progress: said.append(progress))
    return said


def trial(bench=None, settings=SETTINGS, budget_s=60.0):
    of = {"workspace_bytes": settings.workspace_bytes, "tuning_budget_s": budget_s}
    return Plans(77, H200, **of, cache=plans.plan_cache(), workbench=bench)


def test_what_was_built_is_timed_by_the_trial_which_builds_nothing(frontend, bench):
    times = {"first": 3, "second": 1, "third": 2}
    alone = trial(bench(**times)).prepare(NORM).facts
    said = build([CONV, Relu(8, "float16"), CONV])
    assert said == [("building cuDNN's plans, once", 0, 1), ("building cuDNN's plans, once", 1, 1)]
    assert {"absent": ("GPU 3", 90)}.items() <= frontend.made[-1].items()
    frontend.built.clear()
    plan = trial(bench(**times)).prepare(CONV)
    assert frontend.built == []
    assert (plan.facts.plan, plan.facts.timed, plan.facts.left_out) == ("second", alone.timed, alone.left_out)
    frontend.executed.clear()
    plan([1, 2, 3], 9)
    assert frontend.executed == [("second", [1, 2, 3], 9, 77)]
    # It is kept as any other, and what was not chosen is gone.
    assert trial(bench()).prepare(CONV).facts == dataclasses.replace(plan.facts, from_cache=True)
    assert (frontend.built, build()) == ([], [])
    [left] = plans.built_cache().root.glob("*.plan")
    assert b"second" not in left.read_bytes()


def test_without_autotuning_the_first_is_built(frontend):
    settings = CudnnSettings(autotune=False)
    build(settings=settings)
    frontend.built.clear()
    assert trial(settings=settings).prepare(CONV).facts.plan == "first"
    assert frontend.built == []


def test_what_a_trial_builds_as_fast_is_left_to_it_and_not_tried_again(frontend, bench, monkeypatch):
    monkeypatch.setattr(ahead, "SLOW_S", math.inf)
    build()
    frontend.built.clear()
    assert build() == []
    assert trial(bench(first=1, second=2, third=3)).prepare(CONV).facts.plan == "first"
    assert set(frontend.built) == {"first", "second", "third"}


def test_what_was_built_takes_no_time_of_the_budget(frontend, bench):
    frontend.offers = [frontend.Offer(tag, runtime_compiled=True) for tag in "abc"]
    build()
    facts = trial(bench(a=2, b=1, c=3), budget_s=1e-9).prepare(CONV).facts
    assert ([time.plan for time in facts.timed], facts.cut) == (["a", "b"], False)


def test_kept_plans_are_not_built_but_a_larger_budget_and_fresh_tuning_ask_for_more(frontend, bench, monkeypatch):
    frontend.offers = [frontend.Offer(tag, runtime_compiled=True) for tag in "abcdef"]
    times = dict.fromkeys("abcdef", 1)
    build()
    assert set(frontend.built) == {"a", "b"}
    monkeypatch.setenv(messages.TUNING_BUDGET, "120")
    build()
    assert set(frontend.built) == {"a", "b", "c", "d"}
    trial(bench(**times)).prepare(CONV)
    assert build() == []
    monkeypatch.setenv(messages.FRESH_AUTOTUNE, "1")
    assert len(build()) == 2


@pytest.mark.parametrize("refuses", [RuntimeError("no plan of this GPU"), ValueError("no bytes")])
def test_what_the_gpu_does_not_take_is_built_by_the_trial(frontend, bench, refuses):
    build()
    frontend.built.clear()
    frontend.refuses_to_restore = refuses
    assert trial(bench(first=3, second=1, third=2)).prepare(CONV).facts.plan == "second"
    assert set(frontend.built) == {"first", "second", "third"}


def test_a_work_whose_plans_do_not_build_takes_none_of_the_others(frontend, bench):
    """What stops it there a trial meets too, and says."""
    frontend.supported = False
    assert len(build([NORM])) == 2
    with pytest.raises(NoPlan):
        trial(bench()).prepare(NORM)
    frontend.supported = True
    other = ConvDgrad(CONV.conv)
    frontend.offers = [frontend.Offer("a", fails="does not compile"), frontend.Offer("b")]
    assert build([CONV, other])[-1][1:] == (2, 2)
    assert trial(bench(b=1)).prepare(other).facts.plan == "b"


def test_what_cannot_be_serialized_is_left_to_the_trial(frontend, bench):
    frontend.serializable = False
    build()
    frontend.built.clear()
    assert trial(bench(first=1, second=2, third=3)).prepare(CONV).facts.plan == "first"
    assert "first" in frontend.built


def test_a_gpu_whose_properties_cannot_be_asked_leaves_plans_to_the_trials(monkeypatch, frontend):
    def refused(index):
        raise RuntimeError("CUDNN_STATUS_NOT_SUPPORTED")

    monkeypatch.setattr(ahead, "_properties", refused)
    assert (build(), frontend.built) == ([], [])
