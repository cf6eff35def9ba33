from dataclasses import replace
from math import inf

import pytest

from tcbench.core import messages
from tcbench.core.cache import Cache
from tcbench.engine.accelerators.cuda.cudnn import plans as module
from tcbench.engine.accelerators.cuda.cudnn.plans import NoPlan, Plans, cache_key
from tcbench.engine.work import BatchNormBackward, BatchNormForward, Conv2d, ConvFprop, Norm
from tcbench.hardware.gpus import GpuProperties

H200 = GpuProperties("NVIDIA H200", 90, 132, 150 << 30)
CONV = ConvFprop(Conv2d(4, 8, 14, 14, 16, 3, 3, 1, 1, "NHWC", "float16"))
STRICT = ConvFprop(Conv2d(4, 8, 14, 14, 16, 3, 3, 1, 1, "NCHW", "float32"))
NORM = BatchNormForward(Norm(4, 16, 7, 7, "NHWC", "float16", "add_relu"), 2e-5, 0.1)
HANDLE = 77
MIB = 1 << 20


def plans(cache, bench=None, limit=512 * MIB, properties=H200, budget_s=inf, **more):
    return Plans(
        HANDLE, properties, workspace_bytes=limit, cache=cache, workbench=bench, tuning_budget_s=budget_s, **more
    )


# -- choosing --------------------------------------------------------------------------------------------------------


def test_without_autotuning_the_heuristics_first_plan_is_used_and_no_other_is_built(frontend, cache):
    facts = plans(cache).prepare(CONV).facts
    assert (facts.plan, facts.place, facts.offered, facts.timed) == ("first", 0, 3, ())
    assert set(frontend.built) == {"first"}


@pytest.mark.parametrize("workspace_known", [True, False], ids=["known before it is built", "known after"])
def test_a_plan_over_the_workspace_limit_is_passed_over(frontend, cache, workspace_known):
    frontend.offers = [
        frontend.Offer("large", 513 * MIB, workspace_known=workspace_known),
        frontend.Offer("fits", 512 * MIB),
    ]
    facts = plans(cache).prepare(CONV).facts
    assert (facts.plan, facts.place, facts.workspace_bytes) == ("fits", 1, 512 * MIB)


def test_a_plan_that_does_not_build_is_passed_over(frontend, cache):
    frontend.offers = [frontend.Offer("broken", fails="does not compile"), frontend.Offer("second")]
    assert plans(cache).prepare(CONV).facts.plan == "second"


def test_autotuning_takes_the_fastest_and_records_all(frontend, cache, bench):
    frontend.offers[1].workspace = 3 * MIB
    workbench = bench(first=2e-3, second=1e-3, third=3e-3)
    facts = plans(cache, workbench).prepare(CONV).facts
    assert (facts.plan, facts.place, facts.workspace_bytes) == ("second", 1, 3 * MIB)
    assert [(t.plan, t.time_s) for t in facts.timed] == [("first", 2e-3), ("second", 1e-3), ("third", 3e-3)]
    assert workbench.asked_workspace == 3 * MIB


def test_autotuning_times_each_plan_on_the_works_own_operands(frontend, cache, bench):
    plans(cache, bench(first=1, second=1, third=1)).prepare(NORM)
    operands = [1000 * (index + 1) for index in range(len(NORM.operands))]
    running = [operands[[o.name for o in NORM.operands].index(n)] for n in ("running_mean", "running_var")]
    assert {tag for tag, *_ in frontend.executed} == {"first", "second", "third"}
    assert all(addresses == operands + running for _, addresses, *_ in frontend.executed)
    assert all((workspace, handle) == (5, HANDLE) for *_, workspace, handle in frontend.executed)


def test_autotuning_leaves_out_what_does_not_fit_and_what_is_named_twice(frontend, cache, bench):
    offer = frontend.Offer
    frontend.offers = [offer("large", 600 * MIB), offer("a"), offer("a"), offer("b")]
    facts = plans(cache, bench(a=2, b=1)).prepare(CONV).facts
    assert [t.plan for t in facts.timed] == ["a", "b"]


@pytest.mark.parametrize(
    ("offers", "budget_s", "timed"),
    [
        ("p" * 20 + "r", inf, [*range(12)]),
        ("p" * 20 + "r", 0, [0]),
        ("rrrrpp", 60, [0, 1, 4, 5]),
        ("rrrrpp", 100, [0, 1, 2, 4, 5]),
        ("rrrrpp", inf, [0, 1, 2, 3, 4, 5]),
        ("rrrrpp", 0, [0, 4]),
        ("pprr", 0, [0, 2]),
        ("xxxppp", 0, [3]),
        ("x" * 20 + "p" * 13, inf, [*range(20, 32)]),
    ],
)
def test_autotuning_times_the_first_of_each_kind_and_more_as_far_as_its_budget_and_the_twelfth(
    frontend, cache, bench, offers, budget_s, timed
):
    """p is a plan that is there, r one that cuDNN compiles, x one that does not fit."""
    frontend.offers = [
        frontend.Offer(f"{kind}{n}", 600 * MIB * (kind == "x"), runtime_compiled=kind == "r")
        for n, kind in enumerate(offers)
    ]
    workbench = bench(**{offer.tag: 1 for offer in frontend.offers})
    facts = plans(cache, workbench, budget_s=budget_s).prepare(CONV).facts
    assert [int(t.plan[1:]) for t in facts.timed] == timed
    assert {int(tag[1:]) for tag in frontend.built} == set(timed)
    assert (facts.left_out, facts.budget_s) == (len(offers) - offers.count("x") - len(timed), budget_s)


OTHER = ConvFprop(replace(CONV.conv, k=32))


@pytest.fixture
def clock(monkeypatch):
    """A second passes with every plan that is built."""
    build = module.Search._build
    passed = [0.0]

    def slow(search, place, plan):
        passed[0] += 1
        return build(search, place, plan)

    monkeypatch.setattr(module, "perf_counter", lambda: passed[0])
    monkeypatch.setattr(module.Search, "_build", slow)


def test_the_budget_of_tuning_is_one_for_all_works_of_a_trial(frontend, cache, bench, clock):
    prepared = plans(cache, bench(first=3, second=2, third=1), budget_s=2)
    facts = [prepared.prepare(work).facts for work in (CONV, OTHER)]
    assert [[t.plan for t in fact.timed] for fact in facts] == [["first", "second"], ["first"]]
    assert [(fact.plan, fact.left_out) for fact in facts] == [("second", 1), ("first", 2)]


def test_a_larger_budget_goes_on_where_a_smaller_one_ended_and_builds_nothing_that_is_known(
    frontend, cache, bench, clock
):
    times = {"first": 2, "second": 1, "third": 3}
    assert plans(cache, bench(**times), budget_s=2).prepare(CONV).facts.left_out == 1
    assert plans(cache, bench(), budget_s=2).prepare(CONV).facts.from_cache
    frontend.built.clear()
    facts = plans(cache, bench(third=3), budget_s=9).prepare(CONV).facts
    assert frontend.built == ["third"]
    assert {t.plan: t.time_s for t in facts.timed} == times
    assert (facts.plan, facts.left_out, facts.budget_s, facts.from_cache) == ("second", 0, 9, False)
    for budget_s in (2, 99):
        expected = replace(facts, budget_s=max(9, budget_s), from_cache=True)  # 99 s would have timed no more
        assert plans(cache, bench(), budget_s=budget_s).prepare(CONV).facts == expected


def test_a_minute_more_times_two_more_of_the_plans_that_cudnn_compiles(frontend, cache, bench):
    """A trial of three minutes continues from one of a minute; another of three minutes reuses its answer."""
    frontend.offers = [frontend.Offer(tag, runtime_compiled=True) for tag in "abcdefgh"]
    times = {tag: 9 - place for place, tag in enumerate("abcdefgh")}
    timed = []
    for budget_s in (20, 60, 180, 180):
        facts = plans(cache, bench(**times), budget_s=budget_s).prepare(CONV).facts
        timed.append(("".join(time.plan for time in facts.timed), facts.cut, facts.from_cache))
    assert timed == [("ab", False, False), ("ab", False, True), ("abcdef", False, False), ("abcdef", False, True)]


def test_tuning_says_how_far_it_is_and_what_comes_from_the_cache_says_nothing(frontend, cache, bench, clock):
    messages_sent = []
    token = messages.SEND.set(messages_sent.append)
    for _ in range(2):
        prepared = plans(cache, bench(first=3, second=2, third=1), budget_s=9)
        [prepared.prepare(work) for work in (CONV, OTHER)]
    messages.SEND.reset(token)
    assert messages_sent == [
        messages.Tuning(plans=1, spent_s=3.0, budget_s=9),
        messages.Tuning(plans=2, spent_s=6.0, budget_s=9),
    ]


def test_strict_arithmetic_bars_plans_by_their_notes(frontend, cache):
    frontend.offers = [frontend.Offer("tensor cores", notes=("TENSOR_CORE",)), frontend.Offer("strict")]
    assert plans(cache).prepare(STRICT).facts.plan == "strict"
    tf32 = ConvFprop(replace(STRICT.conv, math="tf32"))
    assert plans(cache).prepare(tf32).facts.plan == "tensor cores"


# -- when there is none ----------------------------------------------------------------------------------------------


def test_work_that_cudnn_does_not_know_has_no_plan_in_one_line(frontend, cache):
    frontend.supported = False
    with pytest.raises(NoPlan) as none:
        plans(cache, properties=replace(H200, sm=75)).prepare(NORM)
    assert none.value.reason == (
        "cuDNN 9.28.0 has no plan for batch_norm_forward NHWC float16 on compute capability 7.5"
    )


def test_when_none_fits_the_reason_says_what_would(frontend, cache):
    frontend.offers = [frontend.Offer("a", 700 * MIB), frontend.Offer("b", 600 * MIB, workspace_known=False)]
    with pytest.raises(NoPlan, match=r"fits in a workspace of 512 MiB \(the smallest needs 600 MiB\)"):
        plans(cache).prepare(CONV)


def test_when_all_are_barred_the_reason_says_so(frontend, cache):
    frontend.offers = [frontend.Offer("a", notes=("TENSOR_CORE",))]
    with pytest.raises(NoPlan, match="has no plan that computes in float32 for conv_fprop NCHW float32"):
        plans(cache).prepare(STRICT)


def test_when_none_can_be_built_the_reason_says_that(frontend, cache):
    frontend.offers = [frontend.Offer("a", notes=("TENSOR_CORE",)), frontend.Offer("b", fails="NOT\nLOADED")]
    with pytest.raises(NoPlan, match=r"has no plan that can be built for .* capability 9\.0: NOT LOADED$"):
        plans(cache).prepare(STRICT)


def test_a_compiler_that_fails_is_named_as_the_cause(frontend, cache):
    failed = "compilationResult != NVRTC_SUCCESS cudnn_status: CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED"
    frontend.offers = [frontend.Offer("a", fails="NOT_LOADED"), frontend.Offer("b", fails=failed)]
    with pytest.raises(
        NoPlan, match=r": NVRTC 13\.0 fails to compile cuDNN's kernels \(check with `tcbench doctor`\)$"
    ):
        plans(cache).prepare(CONV)


def test_that_there_is_none_is_kept_too(frontend, cache, bench):
    frontend.supported = False
    for workbench in (None, bench()):
        with pytest.raises(NoPlan) as first:
            plans(cache, workbench).prepare(CONV)
        frontend.supported = True
        with pytest.raises(NoPlan) as again:
            plans(cache, workbench).prepare(CONV)
        assert first.value == again.value
        frontend.supported = False


@pytest.mark.parametrize("workbench", [False, True], ids=["first", "autotuned"])
def test_that_none_could_be_built_is_asked_again_the_next_time(frontend, cache, bench, workbench):
    frontend.offers = [frontend.Offer("a", fails="CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED")]
    times = bench(a=1) if workbench else None
    with pytest.raises(NoPlan, match="has no plan that can be built"):
        plans(cache, times).prepare(CONV)
    frontend.offers = [frontend.Offer("a")]
    assert plans(cache, times).prepare(CONV).facts.plan == "a"


def test_memory_that_runs_out_while_plans_are_built_is_said_as_such_and_not_kept(frontend, cache):
    full = "cudnnFinalize Descriptor Failed cudnn_status: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED"
    frontend.offers = [frontend.Offer("a", fails=full), frontend.Offer("b", fails="does not compile")]
    with pytest.raises(frontend.cudnnGraphNotSupportedError, match="DEVICE_ALLOCATION_FAILED"):
        plans(cache).prepare(CONV)
    frontend.offers = [frontend.Offer("a")]
    assert plans(cache).prepare(CONV).facts.plan == "a"


# -- keeping ---------------------------------------------------------------------------------------------------------


def test_a_warm_process_builds_and_times_nothing(frontend, cache, bench):
    cold = plans(cache, bench(first=2, second=1, third=3)).prepare(CONV)
    frontend.built.clear()
    frontend.executed.clear()
    defined = frontend.defined
    warm = plans(Cache(cache.root), bench()).prepare(CONV)
    assert warm.facts == cold.facts
    assert (cold.facts.from_cache, warm.facts.from_cache) == (False, True)
    assert (frontend.built, frontend.executed, frontend.defined) == ([], [], defined)
    warm([1, 2, 3], 9)
    assert frontend.executed == [("second", [1, 2, 3], 9, HANDLE)]


def test_autotuned_and_other_choices_and_other_limits_are_kept_apart(frontend, cache, bench):
    frontend.offers[0].workspace = 2
    assert plans(cache, bench(first=2, second=1, third=3)).prepare(CONV).facts.plan == "second"
    assert plans(cache).prepare(CONV).facts.plan == "first"
    assert plans(cache, limit=1).prepare(CONV).facts.plan == "second"


def test_a_key_holds_the_gpu_and_the_versions(frontend):
    key = cache_key(CONV, GpuProperties("G", 90, 132, 0), 7, autotuned=True, present=True)
    assert key["work"] == CONV.key
    assert (key["gpu"], key["sm"], key["multiprocessors"], key["workspace_bytes"]) == ("G", 90, 132, 7)
    assert (key["cudnn"], key["nvrtc"], key["frontend"]) == ("9.28.0", "13.0", "1.32.0")


def test_a_fresh_cache_tunes_anew(frontend, cache, bench):
    plans(cache, bench(first=2, second=1, third=3)).prepare(CONV)
    fresh = Cache(cache.root, fresh=True)
    assert plans(fresh, bench(first=1, second=2, third=3)).prepare(CONV).facts.plan == "first"
    assert plans(Cache(cache.root), bench()).prepare(CONV).facts.plan == "first"


def test_a_kept_plan_that_cannot_be_restored_is_built_again(frontend, cache):
    plans(cache).prepare(CONV)
    frontend.offers = [frontend.Offer("another")]
    plan = plans(cache).prepare(CONV)
    assert (plan.facts.plan, plan.facts.from_cache) == ("another", False)


def test_memory_for_tuning_is_given_back_before_the_plan_is_restored(frontend, cache, bench, monkeypatch):
    """The frontend takes a megabyte of its own to warm a restored plan up."""
    workbench, held = bench(first=1, second=2, third=3), []
    graph = frontend._pybind_module.backend_graph
    restore = graph.deserialize
    monkeypatch.setattr(graph, "deserialize", lambda self, data: (held.append(workbench.held), restore(self, data)))
    plans(cache, workbench).prepare(CONV)
    assert held == [False]


def test_a_plan_that_fails_to_warm_up_for_lack_of_memory_leaves_no_capture_open_and_stays_in_the_cache(frontend, cache):
    """The frontend raises this error and leaves its capture open: `warmup` in graph_interface.h."""
    plans(cache).prepare(CONV)
    message = "detail::cuda_malloc((void **)&tmp_pointer, 1024 * 1024) failed with out of memory"
    frontend.refuses_to_restore = RuntimeError(message)
    ended = []
    full = plans(cache, end_capture=lambda: ended.append(1))
    with pytest.raises(RuntimeError, match="out of memory"):
        full.prepare(CONV)
    assert ended == [1]
    frontend.refuses_to_restore = None
    assert plans(cache).prepare(CONV).facts.from_cache


def test_a_plan_that_cannot_be_serialized_still_runs_but_is_not_kept(frontend, cache):
    frontend.serializable = False
    plan = plans(cache).prepare(CONV)
    plan([1, 2, 3], 9)
    assert frontend.executed == [("first", [1, 2, 3], 9, HANDLE)]
    assert not plans(cache).prepare(CONV).facts.from_cache


def test_a_plan_that_takes_other_tensors_than_ours_is_never_run(frontend, cache, monkeypatch):
    frontend.serializable = False
    monkeypatch.setattr(
        frontend._pybind_module.backend_graph, "_get_variant_pack_uids_sorted", lambda self: [1, 2, 3, 90]
    )
    with pytest.raises(RuntimeError, match=r"takes tensors \[1, 2, 3, 90\], expected \[1, 2, 3\]"):
        plans(cache).prepare(CONV)


def test_plans_found_and_restored_leave_it_to_us_to_outlive_the_graphs_that_captured_them(frontend, cache):
    for _ in range(2):
        plans(cache).prepare(CONV)
    assert frontend.restored == 2
    assert [settings["cuda_graph_retention"] for settings in frontend.settings] == ["NONE"] * 3


# -- calling ---------------------------------------------------------------------------------------------------------


def test_a_plan_takes_addresses_in_the_order_of_operands_again_and_again(frontend, cache):
    plan = plans(cache).prepare(BatchNormBackward(NORM.norm))
    count = len(plan._pointers)
    for start in (10, 500):
        plan(list(range(start, start + count)), start)
    assert [(addresses, workspace) for _, addresses, workspace, _ in frontend.executed] == [
        (list(range(10, 10 + count)), 10),
        (list(range(500, 500 + count)), 500),
    ]


def test_a_forward_norm_writes_the_running_statistics_in_place(frontend, cache):
    plan = plans(cache).prepare(NORM)
    names = [operand.name for operand in NORM.operands]
    plan([10 * (index + 1) for index in range(len(names))], 0)
    [(_, addresses, _, _)] = frontend.executed
    assert addresses[: len(names)] == [10 * (index + 1) for index in range(len(names))]
    assert addresses[len(names) :] == [10 * (names.index(n) + 1) for n in ("running_mean", "running_var")]


@pytest.mark.parametrize("wrong", [2, 4])
def test_a_wrong_number_of_addresses_is_refused(frontend, cache, wrong):
    plan = plans(cache).prepare(CONV)
    with pytest.raises(ValueError, match="size"):
        plan(list(range(wrong)), 0)
    assert frontend.executed == []


# -- in a gate -------------------------------------------------------------------------------------------------------


def side_takes(side, cache, bench, monkeypatch, **times):
    monkeypatch.setenv(messages.SIDE, side)
    facts = plans(cache, bench(**times)).prepare(CONV).facts
    return facts.plan, facts.from_cache


def test_both_sides_of_a_gate_take_the_plan_that_is_fastest_by_the_times_of_both(frontend, cache, bench, monkeypatch):
    """Base has met a busy moment, in which the better plan looks worse."""
    assert side_takes("base", cache, bench, monkeypatch, first=2, second=3, third=9) == ("first", False)
    assert side_takes("current", cache, bench, monkeypatch, first=2, second=1, third=9) == ("second", False)
    for side in ("base", "current") * 2:
        assert side_takes(side, cache, bench, monkeypatch) == ("second", True)


def test_a_side_of_a_gate_whose_candidates_or_code_are_its_own_tunes_in_every_trial(
    frontend, cache, bench, monkeypatch
):
    for digest, fastest in zip("abab", ("first", "second", "second", "first"), strict=True):
        monkeypatch.setattr(module, "source_digest", lambda package, digest=digest: digest)
        times = {"first": 2, "second": 2, "third": 2, fastest: 1}
        side = {"a": "base", "b": "current"}[digest]
        assert side_takes(side, cache, bench, monkeypatch, **times) == (fastest, False)
