"""What a run's trials need, built before the first."""

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
def asked(monkeypatch):
    """What is asked of the device's kind, and of which cells traces are made."""
    asked, traced = [], []

    def trace_all(cells, properties, **_):
        traced.extend(cells)
        known = Demand({}, 0, tuple((work, 2) for work in WORKS), 0)
        return {cell: known if cell.config == "fp16" else "no step" for cell in cells}

    def build_ahead(device, works, progress):
        asked.append((device, [*works(GPU)]))
        return "compiled before"

    kind = SimpleNamespace(build_ahead=build_ahead)
    monkeypatch.setattr(demand, "trace_all", trace_all)
    monkeypatch.setattr(ahead, "kind_of", lambda device: kind)
    return SimpleNamespace(asked=asked, traced=traced, kind=kind)


def test_a_device_is_told_the_works_of_all_cells_of_ours(asked):
    settings = CudnnSettings(workspace_bytes=7)
    fp16, fp32 = factories.make_cell("fp16", cudnn=settings), factories.make_cell("fp32")
    many, torch = factories.make_cell("fp16", ranks=2), factories.make_cell("fp16", backend="torch")
    assert ahead.build([fp16, many, torch, fp32, fp16], "cuda:0", lambda *_: None) == "compiled before"
    assert asked.traced == [fp16, fp32]
    assert asked.asked == [("cuda:0", [(work, settings) for work in WORKS])]
    ahead.build([torch], "cuda:0", lambda *_: None)
    assert len(asked.asked) == 1


def test_what_cannot_be_built_ahead_ends_no_run(asked, caplog):
    def refuse(*_):
        raise OSError("no process")

    asked.kind.build_ahead = refuse
    with caplog.at_level("INFO"):
        assert ahead.build([factories.make_cell("fp16")], "cuda:0", lambda *_: None) == ""
    assert "plans are left to the trials: no process" in caplog.text
