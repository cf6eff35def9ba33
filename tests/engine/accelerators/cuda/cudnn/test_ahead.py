"""Plans that are built before the trial that times them, with a frontend that plans nothing, in this process. In real:
test_real_plans.py, and test_gpu_ahead.py on a GPU."""

import dataclasses
import math
import sys

import pytest

from tcbench.core import messages
from tcbench.core.cache import VARIABLE
from tcbench.core.record import CudnnSettings
from tcbench.engine.accelerators.cuda.cudnn import ahead, libraries, plans
from tcbench.engine.accelerators.cuda.cudnn.plans import NoPlan, Plans
from tcbench.engine.work import BatchNormBackward, Conv2d, ConvDgrad, ConvFprop, Norm, Relu
from tcbench.hardware.gpus import GpuProperties

H200 = GpuProperties("NVIDIA H200", 90, 132, 150 << 30)
CONV = ConvFprop(Conv2d(4, 8, 14, 14, 16, 3, 3, 1, 1, "NHWC", "float16"))
OTHER = ConvDgrad(CONV.conv)
NORM = BatchNormBackward(Norm(4, 16, 7, 7, "NHWC", "float16", "relu"))
SETTINGS = CudnnSettings()


@pytest.fixture(autouse=True)
def planning(frontend, monkeypatch, tmp_path):
    """Plans a to f, all but b compiled when they are built."""
    frontend.offers = [frontend.Offer(tag, runtime_compiled=tag != "b") for tag in "abcdef"]
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setenv(messages.TUNING_BUDGET, "60")
    monkeypatch.setattr(ahead, "_properties", lambda index: f"GPU {index}")
    monkeypatch.setattr(ahead.graphs, "absent_target", lambda properties, sm: {"absent": (properties, sm)})


@pytest.fixture
def build_lines(monkeypatch):
    """The lines that `ahead.build` returns."""
    lines, build = [], ahead.build
    monkeypatch.setattr(ahead, "build", lambda *arguments: lines.append(build(*arguments)))
    return lines


def build(works=(CONV,), settings=SETTINGS):
    lines = []
    ahead.build(3, H200, [(work, settings) for work in works], 0, lambda *progress: lines.append(progress))
    return lines


def trial(bench, settings=SETTINGS, budget_s=60.0):
    settings_of_plans = {"workspace_bytes": settings.workspace_bytes, "tuning_budget_s": budget_s}
    workbench = bench(**dict(zip("abcdef", (3, 4, 1, 2, 5, 6), strict=True))) if settings.autotune else None
    return Plans(77, H200, **settings_of_plans, cache=plans.plan_cache(), workbench=workbench)


def built(frontend):
    """Return the plans built since the last call."""
    tags = "".join(sorted(set(frontend.built)))
    frontend.built.clear()
    return tags


def test_what_was_compiled_is_timed_by_the_trial_which_compiles_nothing(frontend, bench):
    alone = trial(bench).prepare(NORM).facts
    assert built(frontend) == "abc"
    assert build([CONV, Relu(8, "float16"), CONV]) == [
        ("compiling cuDNN's plans (first run only)", 0, 1),
        ("compiling cuDNN's plans (first run only)", 1, 1),
    ]
    assert {"absent": ("GPU 3", 90)}.items() <= frontend.settings[-1].items()
    assert built(frontend) == "ac"
    plan = trial(bench).prepare(CONV)
    assert built(frontend) == "b"
    assert (plan.facts.plan, plan.facts.timed, plan.facts.left_out) == ("c", alone.timed, alone.left_out)
    frontend.executed.clear()
    plan([1, 2, 3], 9)
    assert frontend.executed == [("c", [1, 2, 3], 9, 77)]
    assert (plan.facts.ahead, alone.ahead) == (2, 0)
    # It is kept as any other, and what was not chosen is gone.
    assert trial(bench).prepare(CONV).facts == dataclasses.replace(plan.facts, from_cache=True)
    assert (built(frontend), build()) == ("", [])
    assert list(plans.built_cache().root.glob("*.plan")) == []


def carry(most, gpu=H200, works=(CONV,)):
    """Compile plans for a GPU as another machine does."""
    ahead.compile_for("H200", gpu, [(work, SETTINGS.workspace_bytes) for work in works], most, 0, lambda *_: None)


def test_all_that_was_compiled_elsewhere_is_timed_whatever_the_budget_and_any_card_of_the_chip_takes_it(
    frontend, bench, build_lines
):
    carry(math.inf, dataclasses.replace(H200, name="NVIDIA H100 80GB HBM3"))
    assert built(frontend) == "acdef"
    assert build() == []
    assert build_lines == ["cuDNN: 5 plans for 1 operations of this run are already compiled"]
    facts = trial(bench, budget_s=1).prepare(CONV).facts
    assert ("".join(time.plan for time in facts.timed), facts.ahead, facts.left_out) == ("abcdef", 5, 0)


def test_more_than_the_budgets_number_is_restored_only_while_there_is_time(frontend, bench):
    carry(math.inf)
    assert trial(bench, budget_s=1e-9).prepare(CONV).facts.ahead == 2


def test_plans_for_another_cudnn_are_not_taken_and_the_run_says_why(frontend, bench, build_lines, monkeypatch):
    carry(math.inf)
    monkeypatch.setattr(libraries, "version", lambda: "9.19.0")
    assert len(build()) == 2
    folder = plans.built_cache().root
    assert build_lines == [
        f"cuDNN: ignoring the plans in {folder}: compiled for cudnn 9.28.0 (this machine has 9.19.0)"
    ]


@pytest.mark.parametrize("part", ["folder", "files"])
def test_plans_that_another_user_could_have_written_are_not_taken_and_the_run_says_so(
    frontend, build_lines, part, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "own"))
    carry(math.inf)
    folder = plans.built_folder()
    for path in [folder] if part == "folder" else folder.glob("*.plan"):
        path.chmod(0o777)
    build()
    owned = "they are damaged, or the folder is writable by other users"
    assert build_lines == [f"cuDNN: ignoring the plans in {folder}: {owned} (chmod -R go-w {tmp_path})"]


@pytest.mark.parametrize("deaths", [1, 2])
def test_a_trial_that_dies_while_it_tunes_leaves_the_plans_to_the_next_but_only_once(
    frontend, bench, monkeypatch, deaths
):
    """The plans may be what it died of."""
    build()
    with monkeypatch.context() as patch:
        patch.setattr(plans.autotune, "fastest", lambda *_: sys.exit("killed"))
        for _ in range(deaths):
            with pytest.raises(SystemExit):
                trial(bench).prepare(CONV)
    built(frontend)
    assert trial(bench).prepare(CONV).facts.ahead == (2 if deaths == 1 else 0)
    assert built(frontend) == ("b" if deaths == 1 else "abc")


def test_what_autotuning_would_not_look_at_is_not_compiled(frontend):
    frontend.offers = [frontend.Offer("r0", runtime_compiled=True), *(frontend.Offer(f"p{n}") for n in range(12))]
    frontend.offers.append(frontend.Offer("r1", runtime_compiled=True))
    build()
    assert frontend.built == ["r0"]


def test_other_limits_are_apart_and_where_nothing_is_timed_nothing_is_built(frontend, bench):
    small = CudnnSettings(workspace_bytes=5)
    assert len(build()) == len(build(settings=small)) == 2
    built(frontend)
    trial(bench, small).prepare(CONV)
    trial(bench).prepare(CONV)
    assert built(frontend) == "b"
    assert build(settings=CudnnSettings(autotune=False)) == []


def test_what_was_compiled_takes_no_time_of_the_budget(frontend, bench):
    build()
    facts = trial(bench, budget_s=1e-9).prepare(CONV).facts
    assert ([time.plan for time in facts.timed], facts.cut) == (["a", "b", "c"], False)


def test_a_larger_budget_and_fresh_tuning_ask_for_more_but_not_of_kept_plans(frontend, bench, monkeypatch):
    build()
    assert built(frontend) == "ac"
    monkeypatch.setenv(messages.TUNING_BUDGET, "120")
    build()
    assert built(frontend) == "acde"
    trial(bench, budget_s=120).prepare(CONV)
    assert build() == []
    monkeypatch.setenv(messages.FRESH_AUTOTUNE, "1")
    assert len(build()) == 2


@pytest.mark.parametrize("refuses", [RuntimeError("no plan of this GPU"), RuntimeError("cudaErrorMemoryAllocation")])
def test_what_the_gpu_does_not_take_is_built_by_the_trial(frontend, bench, refuses):
    build()
    built(frontend)
    plans_of_it = trial(bench)
    restore_all = plans_of_it._built_ahead

    def refused(*arguments):
        frontend.refuses_to_restore = refuses
        restored = restore_all(*arguments)
        frontend.refuses_to_restore = None
        return restored

    plans_of_it._built_ahead = refused
    facts = plans_of_it.prepare(CONV).facts
    assert (facts.plan, facts.ahead, built(frontend)) == ("c", 0, "abc")


def test_plans_that_are_taken_but_do_not_run_are_built_by_the_trial(frontend, bench, monkeypatch):
    frontend.offers = frontend.offers[::2]
    build()
    built(frontend)
    graph, execute = frontend._pybind_module.backend_graph, frontend._pybind_module.backend_graph._execute_with_raw_ptrs

    def of_this_process(self, *arguments):
        if not self.operations:
            raise RuntimeError("CUDNN_STATUS_EXECUTION_FAILED")
        execute(self, *arguments)

    monkeypatch.setattr(graph, "_execute_with_raw_ptrs", of_this_process)
    assert trial(bench).prepare(CONV).facts.plan == "c"
    assert built(frontend) == "ac"


def test_a_plan_that_asks_for_more_workspace_than_it_said_is_built_by_the_trial(frontend, bench):
    build()
    built(frontend)
    frontend.offers[0].workspace = 1
    trial(bench).prepare(CONV)
    assert built(frontend) == "ab"


def test_a_work_whose_plans_do_not_build_takes_none_of_the_others(frontend, bench, monkeypatch):
    """The trial meets the same error, and reports it."""
    build_graph = ahead.graphs.build_graph

    def unknown(work, target, sm):
        if work is NORM:
            raise frontend.cudnnGraphNotSupportedError("No valid engine configs")
        return build_graph(work, target, sm)

    monkeypatch.setattr(ahead.graphs, "build_graph", unknown)
    assert build([NORM, CONV])[-1][1:] == (2, 2)
    built(frontend)
    with pytest.raises(NoPlan):
        trial(bench).prepare(NORM)
    trial(bench).prepare(CONV)
    assert built(frontend) == "b"


def test_a_compiler_that_fails_is_asked_again_by_the_next_run(frontend):
    for offer in frontend.offers:
        offer.fails = "CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED"
    assert len(build()) == 2
    assert len(build()) == 2
    frontend.offers = [frontend.Offer("ready")]  # nothing to compile: that is so next time too
    assert len(build()) == 2
    assert build() == []


def test_what_cannot_be_serialized_is_left_to_the_trial(frontend, bench):
    frontend.serializable = False
    build()
    built(frontend)
    assert (trial(bench).prepare(CONV).facts.plan, built(frontend)) == ("c", "abc")


def test_a_cudnn_that_nobody_tried_it_with_builds_nothing(frontend, monkeypatch):
    monkeypatch.setattr(libraries, "version", lambda: "9.10.2")
    assert build() == []
