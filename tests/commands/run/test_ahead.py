"""Compilation for a run's trials before the first one."""

from types import SimpleNamespace

import factories
import pytest

from tcbench.commands.run import ahead
from tcbench.core.record import CudnnSettings
from tcbench.engine.work import Relu
from tcbench.hardware.gpus import GpuProperties
from tcbench.run import demand
from tcbench.run.demand import Demand

GPU = GpuProperties("NVIDIA H200", 90, 132, 150 << 30)
WORKS = (Relu(8, "float16"), Relu(16, "float16"))


@pytest.fixture
def build_calls(monkeypatch):
    """Record the calls of build_ahead, and the cells that are traced."""
    calls, traced = [], []

    def trace_all(cells, properties, **_):
        traced.extend(cells)
        demand = Demand({}, 0, tuple((work, 2) for work in WORKS), 0)
        return {cell: demand if cell.config == "fp16" else "no step" for cell in cells}

    def build_ahead(device, works, progress):
        calls.append((device, [*works(GPU)]))
        return "compiled before"

    kind = SimpleNamespace(build_ahead=build_ahead)
    monkeypatch.setattr(demand, "trace_all", trace_all)
    monkeypatch.setattr(ahead, "kind_of", lambda device: kind)
    return SimpleNamespace(asked=calls, traced=traced, kind=kind)


def test_a_device_is_told_the_works_of_all_cells_of_ours(build_calls):
    settings = CudnnSettings(workspace_bytes=7)
    fp16, fp32 = factories.make_cell("fp16", cudnn=settings), factories.make_cell("fp32")
    many, torch = factories.make_cell("fp16", ranks=2), factories.make_cell("fp16", backend="torch")
    assert ahead.build([fp16, many, torch, fp32, fp16], "cuda:0", lambda *_: None) == "compiled before"
    assert build_calls.traced == [fp16, fp32]
    assert build_calls.asked == [("cuda:0", [(work, settings) for work in WORKS])]
    ahead.build([torch], "cuda:0", lambda *_: None)
    assert len(build_calls.asked) == 1


def test_what_cannot_be_built_ahead_ends_no_run(build_calls, caplog):
    def refuse(*_):
        raise OSError("no process")

    build_calls.kind.build_ahead = refuse
    with caplog.at_level("INFO"):
        assert ahead.build([factories.make_cell("fp16")], "cuda:0", lambda *_: None) == ""
    assert "plans are left to the trials: no process" in caplog.text
