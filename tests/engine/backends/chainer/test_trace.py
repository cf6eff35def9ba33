"""Tests of the traced work of one step on a GPU. tests/corpus/traced has the complete traces of every config."""

import msgspec
import pytest
from factories import make_cell

from tcbench.core.record import Input, KfacSettings
from tcbench.engine.accelerators.device import Device
from tcbench.engine.backends import trace_cell
from tcbench.hardware import gpus
from tcbench.run import plan, scenario


def planned(name: str, batch_size: int = 2, image_size: int = 32, **selected):
    """The cells of a scenario on an H200, by config; as they are, at a size that shows the order and costs little."""
    gpu = gpus.load("H200")
    device = Device("cuda:0", gpu.device_name, gpu.memory_bytes, divmod(gpu.sm, 10))
    selection = plan.Selection(batch_sizes=(batch_size,), image_size=image_size, **selected)
    return {
        planned_cell.cell.config: planned_cell.cell
        for planned_cell in plan.make(scenario.load(name), selection, device, remote=True).cells
    }


@pytest.mark.long
def test_a_recorded_graph_holds_little_more_than_the_step_that_it_was_recorded_from():
    """Freed memory is reused; without reuse a recorded graph would need half as much again."""
    config = "fp16+dali+batched+nhwc+fused"
    cells = planned("naruse2018", 8, 224, configs=(config, f"{config}+static_graph"))
    dynamic, static = (trace_cell(cell, gpus.load("H200").properties()) for cell in cells.values())
    assert dynamic.peak_bytes < static.peak_bytes < 1.1 * dynamic.peak_bytes


@pytest.mark.long
def test_a_step_of_kfac_is_traced_where_it_makes_factors_and_inverses_whatever_the_interval():
    gpu = gpus.load("V100")
    cell = make_cell("fp32+kfac", 2, image_size=32, model="alexnet", input=Input(kind="synthetic"))
    works = {}
    for interval in (1, 7):
        train = msgspec.structs.replace(cell.train, kfac=KfacSettings(interval=interval))
        step = trace_cell(msgspec.structs.replace(cell, train=train), gpu.properties()).step
        works[interval] = {phase.name: [event.name for event in phase.events] for phase in step}
    assert works[1] == works[7]
    assert works[7]["factors"].count("kronecker_factor") == works[7]["inverse"].count("cholesky_inverse") == 16
    assert works[7]["precondition"].count("conv_fprop") == 8


def test_a_trace_draws_no_images(monkeypatch):
    monkeypatch.setattr("numpy.random.default_rng", lambda *_: pytest.fail("images were drawn"))
    assert trace_cell(planned("naruse2018")["fp32"], gpus.load("H200").properties()).works
