"""cuDNN builds a plan for every kind of work, for GPUs that are not there. Needs cuDNN and libcuda, no GPU."""

import ctypes
import re
from dataclasses import replace

import numpy as np
import pytest
from engine.accelerators.cuda.cudnn.test_graphs import norms

from tcbench.core.cache import VARIABLE, Cache
from tcbench.core.record import CudnnSettings
from tcbench.engine import work as w
from tcbench.engine.accelerators.cuda import packages
from tcbench.engine.accelerators.cuda.cudnn import absent, ahead, graphs, libraries, plans
from tcbench.engine.accelerators.cuda.cudnn.plans import RUNTIME_COMPILED_TIMED, NoPlan, PlanFacts, Search
from tcbench.hardware import gpus

pytestmark = [pytest.mark.plans, pytest.mark.usefixtures("real_cudnn")]

MIB = 1 << 20
LIMIT = 512 * MIB
CONVS = (w.ConvFprop, w.ConvDgrad, w.ConvWgrad)

STEM = w.Conv2d(32, 3, 224, 224, 64, 7, 7, 2, 3, "NHWC", "float16")
BOTTLENECK = w.Conv2d(32, 128, 56, 56, 128, 3, 3, 2, 1, "NHWC", "float16")
POINTWISE = w.Conv2d(32, 1024, 14, 14, 256, 1, 1, 1, 0, "NHWC", "float16")
CLASSIFIER = w.Conv2d(32, 2048, 1, 1, 1000, 1, 1, 1, 0, "NHWC", "float16")
NORM = w.Norm(32, 256, 56, 56, "NHWC", "float16")


def plan(work, gpu="H200", limit=LIMIT):
    return absent.plan_without_device(work, gpus.load(gpu), limit)


def target(name="H200"):
    return graphs.absent_target(gpus.load(name).json, gpus.load(name).sm)


@pytest.mark.parametrize("batch", [32, 256])
@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_every_kind_of_work_has_a_plan_within_the_limit(gpu, batch):
    convs = [replace(conv, n=batch) for conv in (STEM, BOTTLENECK, POINTWISE, CLASSIFIER)]
    variants = [
        replace(conv, layout=layout, dtype=dtype, math=math)
        for conv in convs
        for layout in ("NHWC", "NCHW")
        for dtype, math in (("float16", "strict"), ("bfloat16", "strict"), ("float32", "strict"), ("float32", "tf32"))
    ]
    works = [kind(conv) for conv in variants for kind in CONVS]
    works += [w.ConvFpropStats(conv) for conv in convs[1:3]]
    works += [work for half in w.HALVES for work in norms(replace(NORM, n=batch, dtype=half))]
    if batch == 32:
        works += norms(replace(NORM, n=batch, dtype="float32"))
    for work in works:
        search = Search(work, target(gpu), gpus.load(gpu).sm, LIMIT)
        assert search.first().workspace_bytes <= LIMIT, work.key
        assert search.serialize(), work.key


def test_hoppers_own_engine_is_among_the_plans_as_it_is_where_a_run_asks_for_them():
    """cuDNN refuses it where the frontend is told a number of multiprocessors, which no run tells it."""
    work = w.ConvFprop(replace(BOTTLENECK, c=256, k=256, h=14, w=14, stride=1))
    assert len(list(Search(work, target("H100"), 90, LIMIT).candidates())) > 30


@pytest.mark.parametrize(("work", "timed"), [(w.ConvFprop(BOTTLENECK), 12), (norms(NORM)[0], 2)])
def test_tuning_times_twelve_plans_of_a_convolution_and_two_of_a_normalisation(work, timed):
    """Hopper's heuristic offers some forty of one and thirty of the other."""
    search = Search(work, target("H100"), 90, LIMIT)
    candidates, left_out, cut = search.shortlist({}, lambda: True, RUNTIME_COMPILED_TIMED)
    assert (len(candidates), cut) == (timed, False)
    assert left_out > 20


@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_statistics_of_a_bfloat16_convolution_have_no_plan(gpu):
    """The reason why convstats needs fp16."""
    for conv in (BOTTLENECK, POINTWISE):
        with pytest.raises(NoPlan, match="has no plan for conv_fprop_stats NHWC bfloat16"):
            plan(w.ConvFpropStats(replace(conv, dtype="bfloat16")), gpu)


@pytest.mark.parametrize("kernel", ["bn_fw_tr_1C11_kernel_NCHW", "bn_bw_1C11_kernel_new"])
def test_the_older_calls_have_kernels_for_bfloat16(kernel):
    """The header does not list the types that the calls support, and the calls need a GPU."""
    [library] = [path for folder in libraries.folders() for path in folder.glob("libcudnn_ops.so.9")][:1]
    assert f"{len(kernel)}{kernel}I13__nv_bfloat16f".encode() in library.read_bytes()


LATE = w.Conv2d(32, 512, 7, 7, 512, 3, 3, 1, 1, "NHWC", "float16")


def products(layout, dtype, math="strict"):
    """The matrix products that im2col makes of convolutions; the stem's has no gradient of its columns."""
    for conv in (STEM, BOTTLENECK, LATE):
        columns = w.product(replace(conv, n=256, layout=layout, dtype=dtype, math=math))
        yield from (kind(columns) for kind in CONVS if conv is not STEM or kind is not w.ConvDgrad)


@pytest.mark.parametrize(("dtype", "math"), [("float16", "strict"), ("float32", "tf32")])
@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_a_product_of_columns_has_a_plan_that_copies_none_of_them(gpu, layout, dtype, math):
    """The columns take a gigabyte at batch size 256; partial sums are small."""
    for work in products(layout, dtype, math):
        search = Search(work, target(gpu), gpus.load(gpu).sm, LIMIT)
        chosen = search.first()
        assert chosen.workspace_bytes < 25 * MIB, (work, chosen)
        assert search.serialize()


@pytest.mark.parametrize("layout", ["NCHW", "NHWC"])
@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_a_product_of_columns_in_strict_single_precision_has_a_plan(gpu, layout):
    for work in products(layout, "float32"):
        assert plan(work, gpu).workspace_bytes <= LIMIT


@pytest.mark.parametrize("gpu", ["V100", "T4"])
def test_before_compute_capability_8_convolutions_have_plans_and_normalisations_none(gpu):
    if misfit := packages.cudnn_misfit(gpus.load(gpu).compute_capability):
        pytest.skip(misfit)
    for conv in (STEM, BOTTLENECK, POINTWISE, CLASSIFIER):
        for kind in CONVS:
            assert isinstance(plan(kind(conv), gpu), PlanFacts)
    for layout in ("NCHW", "NHWC"):
        for work in products(layout, "float16"):
            assert isinstance(plan(work, gpu), PlanFacts)
    for work in [*norms(NORM), w.ConvFpropStats(POINTWISE)]:
        with pytest.raises(NoPlan) as none:
            plan(work, gpu)
        sm = gpus.load(gpu).sm
        assert none.value.reason.endswith(
            f"has no plan for {work.name} NHWC float16 on compute capability {sm // 10}.{sm % 10}"
        )


@pytest.mark.parametrize("gpu", ["A100", "L40S", "H200", "B200"])
def test_statistics_without_a_workspace_for_partial_sums_are_those_that_are_zeroed_first(gpu):
    work, sm = w.ConvFpropStats(BOTTLENECK), gpus.load(gpu).sm
    search = Search(work, target(gpu), sm, LIMIT)
    assert {plan.workspace_bytes == 0 for plan in search.candidates()} == {bool(graphs.accumulated_operands(work, sm))}


@pytest.mark.parametrize("kind", CONVS)
@pytest.mark.parametrize("gpu", ["A100", "H200", "B200"])
def test_strict_single_precision_takes_another_plan_than_tf32(kind, gpu):
    for conv in (BOTTLENECK, POINTWISE):
        strict, tf32 = (plan(kind(replace(conv, dtype="float32", math=math)), gpu) for math in ("strict", "tf32"))
        assert strict.plan != tf32.plan
        assert strict.place > tf32.place


def test_a_tighter_limit_finds_a_plan_that_needs_less_or_says_what_is_the_least():
    work = w.ConvFprop(replace(BOTTLENECK, layout="NCHW", n=256))
    wide = plan(work)
    assert wide.workspace_bytes > 0
    try:
        assert plan(work, limit=wide.workspace_bytes - 1).workspace_bytes < wide.workspace_bytes
    except NoPlan as none:
        assert "the smallest needs" in none.reason
    norm = norms(replace(NORM, layout="NCHW", dtype="float32", n=256))[0]
    with pytest.raises(NoPlan, match=r"no plan that fits in a workspace of 512 MiB \(the smallest needs \d+ MiB\)"):
        plan(norm)


@pytest.mark.parametrize(("gpu", "dtype"), [("A100", "float16"), ("H200", "float32"), ("B200", "float16")])
def test_what_is_foretold_is_what_is_built(gpu, dtype):
    """All that cuDNN compiles: the forecast does not build it."""
    file = gpus.load(gpu)
    for work in norms(replace(NORM, dtype=dtype, n=64, c=512, h=28, w=28)):
        foretold = absent.plan_without_device(work, file, LIMIT, build=False)
        assert plan(work, gpu) == foretold, work.key


def test_nothing_is_foretold_that_does_not_fit():
    [work, *_] = norms(replace(NORM, n=64))
    needed = absent.plan_without_device(work, gpus.load("H200"), LIMIT, build=False).workspace_bytes
    with pytest.raises(NoPlan, match="the smallest needs"):
        absent.plan_without_device(work, gpus.load("H200"), needed // 100, build=False)


@pytest.mark.parametrize(
    "work", [w.ConvFprop(BOTTLENECK), w.ConvFpropStats(POINTWISE), *norms(NORM)], ids=lambda work: work.name
)
def test_a_plan_that_is_serialized_and_restored_takes_our_operands_in_our_order(work):
    search = Search(work, target(), 90, LIMIT)
    chosen = search.first()
    plans._check_order(work, search.graph)
    graph = plans.restore(search.serialize(), target())
    plans._check_order(work, graph)
    assert graph.get_workspace_size() == chosen.workspace_bytes
    assert {str(created.get_cuda_graph_retention()) for created in (search.graph, graph)} == {
        "cuda_graph_retention.NONE"
    }


@pytest.mark.parametrize("work", [w.ConvFprop(BOTTLENECK), *norms(NORM)], ids=lambda work: work.name)
def test_a_restored_plan_takes_bare_addresses_their_number_a_workspace_and_a_handle(work):
    search = Search(work, target(), 90, LIMIT)
    chosen = search.first()
    graph = plans.restore(search.serialize(), target())
    n = len(graphs.slots(work))
    addresses = (ctypes.c_int64 * n)(*range(1 << 46, (1 << 46) + 512 * n, 512))

    def run(n, workspace):
        graph._execute_with_raw_ptrs(ctypes.addressof(addresses), n, workspace, 0)

    with pytest.raises(ValueError, match=rf"n_user \({n - 1}\) does not match"):
        run(n - 1, 1 << 46)
    if chosen.workspace_bytes:
        with pytest.raises(ValueError, match=f"requires a {chosen.workspace_bytes}-byte workspace but received null"):
            run(n, 0)
    with pytest.raises(RuntimeError, match=r"handle (is NULL|== __null)"):  # all else is as it should be
        run(n, 1 << 46)


def test_what_is_built_ahead_is_what_tuning_would_build_and_takes_our_operands(monkeypatch, tmp_path):
    """The properties of the present GPU are read from a file."""
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    monkeypatch.setattr(ahead, "_properties", lambda index: gpus.load("H200").json)
    gpu, settings = gpus.load("H200").properties(), CudnnSettings()
    works = [*norms(NORM)[:2], w.ConvFprop(BOTTLENECK)]
    ahead.build(0, gpu, [(work, settings) for work in works], 2, lambda *_: None)
    for work in works:
        search = Search(work, target(), 90, LIMIT)
        candidates, *_ = search.shortlist({}, lambda: True, RUNTIME_COMPILED_TIMED)
        built = plans.built_from_entry(plans.built_cache().get(plans.built_key(work, gpu, LIMIT)))
        workspaces = {candidate.plan: candidate.workspace_bytes for candidate in candidates}
        assert {tag: plan.workspace_bytes for tag, plan in built.items()}.items() <= workspaces.items()
        assert len(built) == RUNTIME_COMPILED_TIMED or isinstance(work, w.ConvFprop)
        # The other card of this chip takes them too.
        for plan in built.values():
            for card in ("H200", "H100"):
                graph = plans.restore(plan.data, target(card))
                plans._check_order(work, graph)
                assert graph.get_workspace_size() == plan.workspace_bytes


def test_constants_go_to_cudnn_as_four_bytes_of_single_precision():
    """The frontend hands cuDNN the address of what it keeps, a float or a double, and cuDNN reads the tensor's type."""
    search = Search(w.BatchNormForward(replace(NORM, after="add_relu"), 2e-5, 0.1), target(), 90, LIMIT)
    search.select(search.first())
    constants = re.search(rb"pass_by_values\{(.*?)\}\}", search.serialize(), re.DOTALL)
    assert constants is not None
    # In UBJSON, index 3 of the frontend's types is float, which it writes as hexadecimal digits.
    assert re.findall(rb"i\x05index(i.)i\x05value(.{11})", constants[1], re.DOTALL) == [
        (b"i\x03", b"Si\x08" + np.float32(value).byteswap().tobytes().hex().upper().encode())
        for value in (0.1, 2e-5, 0.0)
    ]


def test_cudnn_says_which_plans_it_compiles_when_they_are_built():
    for work, compiled in ((w.ConvFprop(BOTTLENECK), False), (norms(NORM)[0], True)):
        search = Search(work, target(), 90, LIMIT)
        assert search._is_runtime_compiled(search.first().place) == compiled


def test_the_selected_plan_is_the_one_that_is_serialized():
    search = Search(w.ConvWgrad(BOTTLENECK), target(), 90, LIMIT)
    candidates = list(search.candidates())
    assert len({candidate.workspace_bytes for candidate in candidates}) > 1
    for candidate in (candidates[0], candidates[-1], max(candidates, key=lambda c: c.workspace_bytes)):
        search.select(candidate)
        graph = plans.restore(search.serialize(), target())
        assert graph.get_workspace_size() == candidate.workspace_bytes


def test_bytes_that_are_no_plan_are_refused():
    with pytest.raises(Exception):  # noqa: B017 - whatever the frontend raises: prepare() catches all
        plans.restore(b"not a plan", target())


def test_workers_answer_as_this_process_does_and_the_cache_says_the_same(tmp_path):
    works = [w.ConvFprop(BOTTLENECK), w.ConvDgrad(POINTWISE), norms(NORM)[0], w.ConvFpropStats(STEM)]
    gpu = gpus.load("H200")
    cold = absent.plan_all(works, gpu, LIMIT, cache=Cache(tmp_path))
    warm = absent.plan_all(works, gpu, LIMIT, cache=Cache(tmp_path))
    assert warm == cold
    assert all(answer.from_cache for answer in warm.values() if isinstance(answer, PlanFacts))
    facts = plan(works[0])
    assert (cold[works[0].key].plan, cold[works[0].key].workspace_bytes) == (facts.plan, facts.workspace_bytes)
    assert [isinstance(cold[work.key], PlanFacts) for work in works] == [True, True, True, False]
