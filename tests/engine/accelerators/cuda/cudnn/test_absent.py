"""Planning for a GPU that is not there, with a frontend that plans nothing. In real: test_real_plans.py."""

import os
import pickle
import signal
from dataclasses import dataclass
from unittest.mock import Mock

import pytest

from tcbench.core.cache import Cache
from tcbench.engine.accelerators.cuda.cudnn import absent, libraries
from tcbench.engine.accelerators.cuda.cudnn.plans import NoPlan, PlanFacts
from tcbench.engine.work import Conv2d, ConvDgrad, ConvFprop, Relu, Work
from tcbench.hardware import gpus

H200 = gpus.load("H200")
MIB = 1 << 20
LIMIT = 512 * MIB
CONVS = [
    kind(Conv2d(4, 8, 14, 14, k, 3, 3, 1, 1, "NHWC", "float16")) for kind in (ConvFprop, ConvDgrad) for k in (8, 16)
]


@pytest.fixture
def planning(frontend, monkeypatch):
    """The fake frontend; plan_all with one process uses no worker, so that the fake is seen."""
    monkeypatch.setattr(absent.graphs, "absent_target", lambda *arguments: {"absent": arguments})
    return frontend


@pytest.mark.parametrize("workspace", [0, 7])
@pytest.mark.parametrize("build", [True, False], ids=["built", "taken from its configuration"])
def test_the_plan_is_the_heuristics_first_that_fits_without_building_what_cudnn_would_compile(
    planning, build, workspace
):
    offer, how = planning.Offer, {"runtime_compiled": not build}
    planning.offers = [offer("large", LIMIT + 1, **how), offer("fits", workspace, **how), offer("later")]
    facts = absent.plan_without_device(CONVS[0], H200, LIMIT, build=build)
    assert (facts.plan, facts.place, facts.offered, facts.workspace_bytes) == ("fits", 1, 3, workspace)
    assert planning.built == ["fits"] * build


def test_without_building_what_needs_no_compiler_is_built_all_the_same(planning):
    offer = planning.Offer
    planning.offers = [
        offer("large", LIMIT + 1, runtime_compiled=True),
        offer("broken", fails="does not compile"),
        offer("plain", 7),
    ]
    facts = absent.plan_without_device(CONVS[0], H200, LIMIT, build=False)
    assert (facts.plan, facts.place, facts.workspace_bytes) == ("plain", 2, 7)
    assert planning.built == ["plain"]


def test_without_building_a_plan_that_does_not_fit_says_what_it_would_take(planning):
    planning.offers = [planning.Offer("large", 600 * MIB, runtime_compiled=True)]
    with pytest.raises(NoPlan, match=r"\(the smallest needs 600 MiB\)"):
        absent.plan_without_device(CONVS[0], H200, LIMIT, build=False)


def test_what_was_not_built_is_no_proof_later(planning, cache):
    planning.offers = [planning.Offer("compiled", runtime_compiled=True)]
    absent.plan_all(CONVS[:1], H200, LIMIT, processes=1, cache=cache, build=False)
    assert planning.built == []
    absent.plan_all(CONVS[:1], H200, LIMIT, processes=1, cache=cache)
    assert planning.built == ["compiled"]


def test_all_are_answered_by_key_in_order_each_once(planning, cache):
    answers = absent.plan_all([*CONVS, *CONVS], H200, LIMIT, processes=1, cache=cache)
    assert list(answers) == [work.key for work in CONVS]
    assert all(isinstance(answer, PlanFacts) for answer in answers.values())
    assert planning.defined == len(CONVS)


def test_a_second_time_nothing_is_planned_and_no_frontend_asked_for(planning, cache, monkeypatch):
    cold = absent.plan_all(CONVS, H200, LIMIT, processes=1, cache=cache)
    monkeypatch.setattr(libraries, "frontend", lambda: pytest.fail("was asked for"))
    warm = absent.plan_all(CONVS, H200, LIMIT, processes=2, cache=Cache(cache.root))
    assert warm == cold
    assert planning.defined == len(CONVS)
    assert not any(answer.from_cache for answer in cold.values())
    assert all(answer.from_cache for answer in warm.values())


def test_no_plan_is_an_answer_that_is_kept(planning, cache):
    planning.supported = False
    cold = absent.plan_all(CONVS[:1], H200, LIMIT, processes=1, cache=cache)
    planning.supported = True
    warm = absent.plan_all(CONVS[:1], H200, LIMIT, processes=1, cache=cache)
    [answer] = warm.values()
    assert isinstance(answer, NoPlan)
    assert warm == cold


def test_that_no_plan_could_be_built_is_an_answer_that_is_not_kept(planning, cache):
    planning.offers = [planning.Offer("a", fails="does not compile")]
    for defined in (1, 2):
        [answer] = absent.plan_all(CONVS[:1], H200, LIMIT, processes=1, cache=cache).values()
        assert isinstance(answer, NoPlan)
        assert planning.defined == defined


def test_whether_an_answer_is_worth_keeping_reaches_who_asked_a_worker():
    assert [pickle.loads(pickle.dumps(NoPlan("none", lasting))).lasting for lasting in (True, False)] == [True, False]


def test_other_gpus_limits_and_files_are_kept_apart(planning, cache, tmp_path):
    file = tmp_path / "mine.json"
    file.write_text(H200.json.replace('"l2CacheSize": 62914560', '"l2CacheSize": 1'))
    settings = [(H200, LIMIT), (H200, LIMIT - 1), (gpus.load("A100"), LIMIT), (gpus.load(str(file)), LIMIT)]
    for gpu, limit in settings:
        absent.plan_all(CONVS[:1], gpu, limit, processes=1, cache=cache)
    assert planning.defined == len(settings)


def test_only_what_is_missing_is_planned_and_progress_counts_what_the_cache_had(planning, cache):
    absent.plan_all(CONVS[:2], H200, LIMIT, processes=1, cache=cache)
    seen = []
    absent.plan_all(CONVS, H200, LIMIT, processes=1, cache=cache, progress=lambda *counts: seen.append(counts))
    assert seen == [(2, 4), (3, 4), (4, 4)]
    assert planning.defined == len(CONVS)


def test_what_is_missing_is_said_once_before_any_worker_starts(planning, cache, monkeypatch):
    monkeypatch.setattr(libraries, "frontend", Mock(side_effect=libraries.LibraryError("cuDNN is missing")))
    with pytest.raises(libraries.LibraryError, match="cuDNN is missing"):
        absent.plan_all(CONVS, H200, LIMIT, cache=cache)


# -- workers ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deadly(Work):
    """Kills the process that takes it."""

    how: str

    def __setstate__(self, state):
        # Runs where the work arrives: in the worker.
        if state["how"] == "signal":
            os.kill(os.getpid(), signal.SIGKILL)
        os._exit(3)


def test_a_worker_that_dies_takes_only_its_own_graph_with_it(planning, cache):
    deadly = [Deadly("signal"), Deadly("exit")]
    works = [CONVS[0], *deadly, *CONVS[1:]]
    answers = absent.plan_all(works, H200, LIMIT, processes=2, cache=cache)
    assert list(answers) == [work.key for work in works]
    for work in deadly:
        assert answers[work.key] == NoPlan("the process that built its plan died")
    assert all("died" not in str(answers[work.key]) for work in CONVS)


def test_that_a_worker_died_is_not_kept(planning, cache):
    absent.plan_all([Deadly("exit"), Deadly("signal")], H200, LIMIT, processes=2, cache=cache)
    assert list(cache.root.iterdir()) == []


@pytest.mark.parametrize("processes", [1, 2])
def test_a_mishap_is_told_in_one_line_and_not_kept(planning, cache, processes):
    """A worker has the real frontend, and where there is none, that is what it trips over."""
    works = [Relu(8, "float16"), Relu(16, "float16")]
    answers = absent.plan_all(works, H200, LIMIT, processes=processes, cache=cache)
    for answer in answers.values():
        assert isinstance(answer, NoPlan)
        assert answer.reason.startswith("its plan cannot be built (")
        assert "is not done by a cuDNN graph" in answer.reason or "LibraryError" in answer.reason
        assert "\n" not in answer.reason
    assert list(cache.root.iterdir()) == []
