import functools
from pathlib import Path

import pytest
from factories import make_cell

from tcbench.commands.forecast import forecast as forecasts
from tcbench.commands.forecast.forecast import CellForecast, WorkForecast
from tcbench.core import spawn
from tcbench.core.errors import SelectionError, TcbenchError
from tcbench.engine.accelerators.cuda import packages, prospects
from tcbench.engine.accelerators.cuda.cudnn.libraries import LibraryError
from tcbench.engine.accelerators.cuda.cudnn.plans import NoPlan, PlanFacts
from tcbench.engine.accelerators.cuda.kernels.compile import CompileError
from tcbench.engine.accelerators.device import Device, Way
from tcbench.engine.accelerators.peaks import peak_rates
from tcbench.engine.backends import trace_cell
from tcbench.engine.work import Conv2d, ConvFprop, Relu
from tcbench.hardware import gpus
from tcbench.hardware.gpus import ALLOWANCE_BYTES
from tcbench.run import demand as demands
from tcbench.run import plan, scenario
from tcbench.run.demand import Demand

SMALL = """
schema = 1
title = "Small images"
[model]
name = "resnet18"
image_size = 32
classes = 20
[cudnn]
workspace_mib = 64
[measure]
batch_sizes = [2]
[[ladder]]
name = "fp16"
steps = ["fp16", "dali", ["batched", "nhwc", "fused"], "cuda_graph", "convstats"]
"""


TRACED_ONCE = functools.cache(demands._trace)


class Stand:
    """Stands for cuDNN and NVRTC: what they were asked, and what they answer."""

    def __init__(self):
        self.planned = []
        self.compiled = []
        self.workspace_bytes = {"conv_fprop": 7 * 2**20}
        self.no_plan = {}
        self.no_library = None
        self.no_kernel = {}
        self.no_compiler = None

    def plan_all(self, works, gpu, workspace_limit, *, build, processes, progress, cache):
        if self.no_library:
            raise LibraryError(self.no_library)
        answers = {}
        for work in works:
            self.planned.append((work, gpu.name, workspace_limit, cache.fresh))
            reason = self.no_plan.get(work.name)
            facts = PlanFacts("eng7_k2=1", self.workspace_bytes.get(work.name, 0), 0, 3)
            answers[work.key] = NoPlan(reason) if reason else facts
            progress(len(answers), 0)
        return answers

    def compile_kernel(self, source, defines, sm):
        if self.no_compiler:
            raise ImportError(self.no_compiler)
        self.compiled.append((source, defines, sm))
        if source in self.no_kernel:
            raise CompileError(self.no_kernel[source])
        return b""


@pytest.fixture
def stand(monkeypatch, tmp_path):
    stand = Stand()
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(prospects.absent, "plan_all", stand.plan_all)
    monkeypatch.setattr(prospects.kernels, "compile_kernel", stand.compile_kernel)
    monkeypatch.setattr(prospects.libraries, "version", lambda: "9.10.2")
    monkeypatch.setattr(demands, "_trace", TRACED_ONCE)
    return stand


def planned(text_or_name, gpu, tmp_path: Path | None = None, **selection):
    if tmp_path is not None:
        path = tmp_path / "small.toml"
        path.write_text(text_or_name, encoding="utf-8")
        text_or_name = str(path)
    device = Device("cuda:0", gpu.device_name, gpu.memory_bytes, divmod(gpu.sm, 10))
    return plan.make(scenario.load(text_or_name), plan.Selection(**selection), device, remote=True)


H200, V100 = gpus.load("H200"), gpus.load("V100")


def forecast_of(gpu, tmp_path, *, text=SMALL, configs=(), **options):
    return forecasts.forecast(planned(text, gpu, tmp_path, configs=configs), gpu, processes=1, **options)


@pytest.mark.long
def test_every_work_of_every_cell_is_planned_called_or_compiled_for_that_gpu(stand, tmp_path):
    forecast = forecast_of(H200, tmp_path)
    assert [cell.cell.config.rpartition("+")[2] for cell in forecast.cells] == [
        *("fp16", "dali", "fused", "cuda_graph", "convstats")
    ]
    for cell in forecast.cells:
        assert cell.cannot_run is None
        assert cell.problems == ()
        assert all(work.way.implementation for work in cell.works)
        assert {work.way.implementation for work in cell.of_kind("graph")} == {"eng7_k2=1"}
        assert cell.engines == {"eng7": len(cell.of_kind("graph"))}
        assert cell.workspace_bytes == 7 * 2**20  # conv_fprop's: the stem's has no statistics
        assert cell.demand.peak_bytes > 10**6
        assert cell.floor_s > 0
    base, _, fused, *_ = forecast.cells
    assert base.of_kind("call") and not fused.of_kind("call")
    assert {work.work.kind for work in base.works} == {"graph", "call", "kernel"}
    assert {(gpu, limit) for _, gpu, limit, _ in stand.planned} == {("H200", 64 * 2**20)}
    assert {sm for _, _, sm in stand.compiled} == {90}
    works = [work for work, *_ in stand.planned]
    assert len({*works, *stand.compiled}) == len(works) + len(stand.compiled)  # each is asked for once


def test_a_work_without_a_plan_names_its_reason_and_counts_no_workspace(stand, tmp_path):
    stand.no_plan = {"conv_fprop": "cuDNN has no plan"}
    cell = forecast_of(H200, tmp_path, configs=("fp16",)).cells[0]
    assert cell.problems == ("cuDNN has no plan",)
    assert {work.way.implementation for work in cell.works if work.work.name == "conv_fprop"} == {None}
    assert cell.workspace_bytes == 0


def test_a_kernel_that_does_not_compile_is_a_problem_of_its_works(stand, tmp_path):
    stand.no_kernel = {"pooling.cu": "nvrtc: invalid value\nfor --gpu-architecture"}
    cell = forecast_of(H200, tmp_path, configs=("fp16",)).cells[0]
    assert cell.problems == ("nvrtc: invalid value for --gpu-architecture",)
    pooling = {"max_pool_forward", "max_pool_backward", "global_average_forward", "global_average_backward"}
    assert {work.work.name for work in cell.works if work.way.problem} == pooling


def test_a_cudnn_without_code_for_that_gpu_is_refused_with_the_one_that_has(stand, tmp_path, monkeypatch):
    monkeypatch.setattr(prospects.libraries, "version", lambda: "9.28.0")
    with pytest.raises(SelectionError) as error:
        forecast_of(V100, tmp_path, configs=("fp16",))
    assert str(error.value) == (
        "GPU V100: cuDNN 9.28.0 does not support compute capability 7.0; "
        "the last version that does is 9.10.2: uv sync --extra volta"
    )
    assert not stand.planned
    assert forecast_of(H200, tmp_path, configs=("fp16",)).cells


def test_without_cudnn_and_cupy_memory_and_floor_are_forecast_all_the_same(stand, tmp_path):
    uncut = forecast_of(H200, tmp_path, configs=("fp16",)).cells[0]
    stand.no_library, stand.no_compiler = "cuDNN 9 was not forecast: install it", "No module named 'cupy'"
    forecast = forecast_of(H200, tmp_path, configs=("fp16",))
    assert forecast.prospects.plans_unchecked == "cuDNN 9 was not forecast: install it"
    assert "No module named 'cupy'" in forecast.prospects.kernels_unchecked
    assert "uv sync --extra cuda12" in forecast.prospects.kernels_unchecked
    assert forecast.prospects.library is None
    cell = forecast.cells[0]
    assert cell.problems == ()
    assert (cell.floor_s, cell.floor_in_arithmetic_s) == (uncut.floor_s, uncut.floor_in_arithmetic_s)
    assert (cell.demand.peak_bytes, cell.workspace_bytes) == (uncut.demand.peak_bytes, 64 * 2**20)
    assert {work.way.implementation for work in cell.of_kind("graph")} == {None}


def test_a_trace_is_made_anew_when_asked_for_or_when_the_program_changed(stand, tmp_path, monkeypatch):
    calls = []
    real = demands._trace
    monkeypatch.setattr(demands, "_trace", lambda *args: calls.append(args[1].config) or real(*args))
    forecast_of(H200, tmp_path, configs=("fp16",))
    forecast_of(H200, tmp_path, configs=("fp16",))
    assert calls == ["fp16"]
    forecast_of(H200, tmp_path, configs=("fp16",), fresh=True)
    assert calls == ["fp16"] * 2
    assert stand.planned[-1][3] is True
    monkeypatch.setattr(demands, "program", lambda: "another")
    forecast_of(H200, tmp_path, configs=("fp16",))
    assert calls == ["fp16"] * 3


def test_a_trace_serves_gpus_of_its_compute_capability_only(stand, tmp_path):
    config = ("fp16+dali+batched+nhwc+fused",)
    newer = forecast_of(H200, tmp_path, configs=config).cells[0]
    older = forecast_of(V100, tmp_path, configs=config).cells[0]
    assert newer.of_kind("call") == () and older.of_kind("call") != ()


def test_ablations_share_the_trace_of_their_config_unless_it_depends_on_them(stand, tmp_path, monkeypatch):
    text = SMALL + '[[ablation]]\nname = "no-autotune"\ncudnn.autotune = false\n'
    text += '[[ablation]]\nname = "small"\ncudnn.workspace_mib = 1\n'
    text += '[[ablation]]\nname = "slow"\ncudnn.fast_batch_norm = false\n'
    calls = []
    real = demands._trace
    monkeypatch.setattr(demands, "_trace", lambda *args: calls.append(args[1]) or real(*args))
    forecast = forecast_of(H200, tmp_path, text=text, configs=("fp16", "fp16:*"))
    assert [cell.cell.config for cell in forecast.cells] == ["fp16", "fp16:no-autotune", "fp16:small", "fp16:slow"]
    assert [cell.cudnn.fast_batch_norm for cell in calls] == [True, False]
    assert {limit for _, _, limit, _ in stand.planned} == {64 * 2**20, 2**20}
    base, *_, slow = (cell.of_kind("call")[0].work.persistent for cell in forecast.cells)
    assert base and not slow


def test_a_cell_that_cannot_be_traced_says_so_and_leaves_the_others_alone(stand, tmp_path, monkeypatch):
    monkeypatch.setattr(demands, "_trace", TRACED_ONCE.__wrapped__)

    def traces(cell, properties):
        if "dali" in cell.rungs:
            raise SelectionError("needs the GPU itself")
        return trace_cell(cell, properties)

    monkeypatch.setattr(demands, "trace_cell", traces)
    traced, untraced = forecast_of(H200, tmp_path, configs=("fp16", "fp16+dali")).cells
    assert traced.is_known and traced.works
    assert not untraced.is_known and untraced.untraced == "needs the GPU itself"
    assert len(list((tmp_path / "cache" / demands.TRACES).iterdir())) == 1


def test_a_trace_whose_process_dies_says_what_to_do(stand, tmp_path, monkeypatch):
    monkeypatch.setattr(spawn, "spread", lambda cells, *_: ((cell, spawn.Died()) for cell in cells))
    with pytest.raises(TcbenchError, match=r"was killed, probably for lack of memory: select fewer cells at a time"):
        forecast_of(H200, tmp_path, configs=("fp16",))


@pytest.mark.slow
def test_two_processes_find_what_one_does(stand, tmp_path):
    first = forecast_of(H200, tmp_path, configs=("fp16", "fp16+dali+batched+nhwc+fused"))
    plan_of_two = planned(SMALL, H200, tmp_path, configs=("fp16", "fp16+dali+batched+nhwc+fused"))
    calls = []
    two = forecasts.forecast(plan_of_two, H200, fresh=True, processes=2, progress=lambda *call: calls.append(call))
    assert two.cells == first.cells
    assert ("tracing training steps", 2, 2) in calls


def test_every_kind_of_work_survives_being_kept(stand, tmp_path):
    forecast = forecast_of(H200, tmp_path)
    works = {work.work for cell in forecast.cells for work in cell.works}
    assert {work.name for work in works} > {"conv_fprop_stats", "batch_norm_forward", "batched_update", "unscale"}
    for work in works:
        again = demands._work(work.key)
        assert again == work and type(again) is type(work)
        assert again.key == work.key


def test_what_the_host_asks_for_is_counted_by_phase(stand, tmp_path):
    forecast = forecast_of(H200, tmp_path)
    base, _, _, graph, _ = forecast.cells
    assert [*base.demand.phases] == ["io", "forward", "backward", "update"]
    assert base.demand.requests == sum(work.count for work in base.works)
    assert graph.demand.phases == {"io": 0, "replay": 1}
    assert graph.demand.requests == 1
    assert graph.demand.replayed >= sum(work.count for work in graph.works) > 100


def test_the_floor_of_a_step_adds_up_every_launch():
    big = ConvFprop(Conv2d(64, 64, 28, 28, 64, 3, 3, 1, 1, "NHWC", "float32"))
    small, limits = Relu(1 << 20, "float32"), peak_rates(V100)
    counted = ((big, 3), (small, 5))
    works = tuple(WorkForecast(work, n, Way(None), limits.floor_s(work), 0.0) for work, n in counted)
    cell = CellForecast(make_cell(batch_size=64), V100, works=works)
    assert cell.flops == 3 * big.flops + 5 * small.flops
    assert cell.bytes == 3 * big.bytes + 5 * small.bytes
    in_conv, in_relu = 3 * big.flops / limits.peak_flops_s("fp32"), 5 * small.bytes / V100.memory_bandwidth_bytes_s
    assert cell.floor_in_arithmetic_s == pytest.approx(in_conv)
    assert cell.floor_s == pytest.approx(in_conv + in_relu)
    assert cell.images_per_s_at_most == pytest.approx(64 / (in_conv + in_relu))


def test_a_step_fits_when_arrays_workspace_and_allowance_do():
    def cell(workspace_bytes):
        works = (WorkForecast(Relu(1, "float32"), 1, Way("relu", workspace_bytes), 0.0, 0.0),)
        demand = Demand({}, 0, (), V100.memory_bytes - ALLOWANCE_BYTES - 20)
        return CellForecast(make_cell(), V100, works=works, demand=demand)

    assert cell(20).memory_bytes == V100.memory_bytes
    assert cell(20).fits and not cell(21).fits


def test_a_demand_that_is_kept_wrongly_is_no_demand():
    assert demands._from_entry(None) is None
    assert demands._from_entry(demands.Entry({"phases": [], "replayed": 0})) is None
    demand = Demand({"io": 0}, 0, (), 5)
    assert demands._from_entry(demands._to_entry(demand)) == demand


@pytest.fixture
def real_cudnn():
    pytest.importorskip("cudnn", exc_type=ImportError)
    problem = prospects.libraries.problem()
    if problem:
        pytest.skip(problem)


TALK = ("fp32", "fp16", "fp16+dali+batched+nhwc+fused")


@pytest.mark.plans
def test_the_talks_out_of_memory_is_foretold(real_cudnn):
    if misfit := packages.cudnn_misfit((7, 0)):
        pytest.skip(misfit)
    forecast = forecasts.forecast(planned("naruse2018", V100, configs=TALK, batch_sizes=(128, 256)), V100)
    assert forecast.prospects.plans_unchecked is None and forecast.prospects.kernels_unchecked is None
    fits = {(cell.cell.config, cell.cell.batch_size): cell.fits for cell in forecast.cells}
    assert fits == {
        ("fp32", 128): True,
        ("fp32", 256): False,
        ("fp16", 128): True,
        ("fp16", 256): True,
        ("fp16+dali+batched+nhwc+fused", 128): True,
        ("fp16+dali+batched+nhwc+fused", 256): True,
    }
    assert all(cell.problems == () for cell in forecast.cells)
    arrays_gib = {(cell.cell.config, cell.cell.batch_size): cell.demand.peak_bytes / 2**30 for cell in forecast.cells}
    assert arrays_gib["fp32", 256] == pytest.approx(21.2, abs=0.1)
    assert arrays_gib["fp32", 128] == pytest.approx(10.7, abs=0.1)
    assert arrays_gib["fp16", 256] == pytest.approx(10.7, abs=0.1)


@pytest.mark.plans
def test_everything_of_the_talk_runs_and_fits_on_an_h200(real_cudnn):
    forecast = forecasts.forecast(planned("naruse2018", H200, configs=TALK, batch_sizes=(128, 256)), H200)
    assert forecast.prospects.plans_unchecked is None and forecast.prospects.kernels_unchecked is None
    assert all(cell.problems == () and cell.fits for cell in forecast.cells)
    assert all(work.way.implementation for cell in forecast.cells for work in cell.works)
    assert all(cell.workspace_bytes <= 512 * 2**20 for cell in forecast.cells)
