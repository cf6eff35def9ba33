import factories
import pytest
from consoles import printed

from tcbench.commands.forecast import table as view
from tcbench.commands.forecast.forecast import CellForecast, Forecast, WorkForecast
from tcbench.engine.accelerators.device import Device, Prospects, Way
from tcbench.engine.work import BatchNormCallForward, Conv2d, ConvFprop, Norm, Relu
from tcbench.hardware import gpus
from tcbench.run import plan, scenario
from tcbench.run.demand import Demand

GPU = gpus.load("V100")
CONV = ConvFprop(Conv2d(32, 64, 56, 56, 64, 3, 3, 1, 1, "NCHW", "float16"))
NORM = BatchNormCallForward(Norm(32, 64, 56, 56, "NCHW", "float16"), 1e-5, 0.1, True)
RELU = Relu(32 * 64 * 56 * 56, "float16")


def cell(config="fp16", batch_size=32, *, arrays_gib=2.0, problem=None, cannot_run=None):
    planned = factories.make_cell(config, batch_size)
    if cannot_run:
        return CellForecast(planned, GPU, cannot_run)
    space = 0 if problem else 25 * 2**20
    works = (
        WorkForecast(CONV, 53, Way(None if problem else "eng12_k2=3", space, problem), 1e-3, 2e-3),
        WorkForecast(NORM, 53, Way("batch_norm_call_forward"), 2e-3, 3e-3),
        WorkForecast(RELU, 49, Way("relu_forward"), 1e-4, 1e-4),
    )
    demand = Demand({"io": 0, "forward": 155}, 0, (), int(arrays_gib * 2**30))
    return CellForecast(planned, GPU, works=works, demand=demand)


def forecast(*cells, kernels_unchecked=None):
    device = Device("cuda:0", GPU.device_name, GPU.memory_bytes, (7, 0))
    planned = plan.make(scenario.load("naruse2018"), plan.Selection(), device, remote=True)
    prospects = Prospects(lambda *_: Way(None), "9.28.0", None, kernels_unchecked)
    return Forecast(planned, GPU, cells, prospects)


def shown(computed, width=100):
    return printed(view.table(computed), width=width)


@pytest.mark.parametrize("width", [80, 132])
def test_the_table_keeps_its_figures_however_long_the_config(width):
    config = "fp16+dali+batched+nhwc+fused+cuda_graph+convstats"
    text = shown(forecast(cell(config, 256, arrays_gib=21.0)), width)
    assert max(map(len, text.splitlines())) <= width
    for words in ("256", "NO", "21.51", "GiB", "images/s by", "the GPU alone", "± 25.0%"):
        assert words in text


def test_what_does_not_fit_is_named_with_its_batch_size():
    computed = forecast(cell("fp32", 128, arrays_gib=10.7), cell("fp32", 256, arrays_gib=21.2), cell("fp16", 256))
    assert view.verdict(computed) == "2 of 3 cells fit into 15.78 GiB; too large: at 256: fp32."
    assert view.verdict(forecast(cell())) == "1 of 1 cells fit into 15.78 GiB."
    assert view.verdict(forecast(cell("tf32", cannot_run="too old"))) == "0 of 0 cells fit into 15.78 GiB."


def test_a_config_that_cannot_be_traced_is_unknown_and_says_why():
    computed = forecast(CellForecast(factories.make_cell("fp16"), GPU, untraced="needs the GPU itself"))
    assert view.reasons(computed) == ["Unknown: needs the GPU itself (fp16)"]
    assert "unknown" in shown(computed)


def test_a_work_without_a_plan_is_counted_and_its_reason_shown():
    computed = forecast(cell(problem="cuDNN has no plan"), cell("fp32", problem="cuDNN has no plan"))
    assert "0/1" in shown(computed)
    assert view.reasons(computed) == ["cuDNN has no plan (fp16, batch size 32; fp32, batch size 32)"]


def test_the_notes_say_what_the_figures_hold_and_leave_out():
    text = "\n".join(view.notes(forecast(cell(), kernels_unchecked="No module named 'cupy'")))
    for words in ("cuDNN 9.28.0", "500 MiB", "estimated", "DALI", "not compiled", "older"):
        assert words in text
    assert "Engines of fp16: eng12." in text


def test_details_list_the_works_longest_first_with_their_plans():
    ((heading, table),) = view.details(forecast(cell(), cell("tf32", cannot_run="too old")))
    assert heading == "fp16, batch size 32: launches by host: io 0, forward 155; at most 195 images/s"
    lines = printed(table).splitlines()[1:]
    assert [line.split()[0] for line in lines] == ["53", "53", "49"]
    assert "cuDNN call batch_norm_call_forward" in lines[0]
    for words in ("cuDNN conv_fprop", "32x64x56x56 float16", "eng12_k2=3", "25 MiB", "53 ms"):
        assert words in lines[1]
    assert "kernel relu" in lines[2] and "relu_forward" in lines[2]
