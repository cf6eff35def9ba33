from pathlib import Path

import factories
import msgspec
import pytest
import scale_out as published

from tcbench.analysis.scale_out import OVERLAP
from tcbench.core.errors import SelectionError
from tcbench.core.record import GpuSample, GpuSamples, GpuState, Simulated
from tcbench.engine.accelerators import device as devices
from tcbench.engine.accelerators.device import Prospects, Way
from tcbench.hardware import gpus, networks
from tcbench.run import plan, scenario
from tcbench.run import scale_out as run
from tcbench.run.demand import Demand
from tcbench.run.forecast import CellForecast, Forecast

ABCI = networks.load("abci")
V100 = gpus.load("V100")


def trial(config="fp32", batch_size=4, time_s=0.1, **changes):
    cell = factories.make_cell(config, batch_size, ranks=changes.pop("ranks", 1))
    measurement = factories.make_measurement([time_s] * 12)
    return factories.make_record(cell=cell, measurement=measurement, **changes)


def test_sixteen_bit_gradients_have_half_the_bytes():
    bases = run.measured([trial("fp32"), trial("fp16"), trial("bf16+nhwc")], all_configs=True)
    bytes_each = {basis.cell.config: basis.step.gradient_bytes / 25_557_032 for basis in bases}
    assert bytes_each == {"fp32": 4, "fp16": 2, "bf16+nhwc": 2}


@pytest.mark.parametrize(
    ("counted_j", "mig", "power_w"),
    [((None,) * 4, False, 250), ((0, 40, 300, 900), False, 260), ((None,) * 4, True, None)],
)
def test_power_is_the_energy_counters_while_steps_were_timed_else_the_readings(counted_j, mig, power_w):
    readings = zip((1.0, 5.0, 6.0, 9.0), (50.0, 200.0, 300.0, 60.0), counted_j, strict=True)
    samples = tuple(GpuSample(time_s=t, power_w=w, energy_j=j) for t, w, j in readings)
    gpu = GpuSamples(state=GpuState(mig=mig), samples=samples, timed_from_s=4.0, timed_to_s=7.0)
    [basis] = run.measured([msgspec.structs.replace(trial(), gpu=gpu)], all_configs=True)
    assert basis.step.power_w == power_w
    [[size]] = run.scale_out([basis], [64], ABCI).bases.values()
    assert size.fastest.energy_j == (power_w and pytest.approx(64 * power_w * size.fastest.time_to_train_s))


def test_a_simulated_step_says_so():
    simulated = Simulated(card="V100", host="a host", host_speed=1, attained="attained-0")
    environment = factories.make_environment(simulated=simulated)
    [basis] = run.measured([trial(environment=environment)], all_configs=True)
    assert basis.source == "simulated"


def a_forecast(*cells):
    _, device = devices.absent(V100)
    planned = plan.make(scenario.load("naruse2018"), plan.Selection(), device, remote=True)
    return Forecast(planned, V100, cells, Prospects(lambda *_: Way(None), None, None, None))


def test_where_nothing_fits_there_is_nothing_to_scale_out():
    cell = factories.make_cell("fp32", 256)
    large = CellForecast(cell, V100, demand=Demand({}, 0, (), V100.memory_bytes))
    with pytest.raises(SelectionError, match="on V100: fp32, batch size 256: does not fit into the memory of V100"):
        run.forecast(a_forecast(large), all_configs=True)
    with pytest.raises(SelectionError, match="needs compute capability"):
        run.forecast(a_forecast(CellForecast(cell, V100, cannot_run="needs compute capability 8.0")), all_configs=False)


@pytest.mark.long
def test_the_page_shows_what_this_model_makes_of_published_results():
    page = (Path(__file__).parents[2] / "docs" / "forecast.md").read_text("utf-8")
    assert "\n".join(published.table()) in page, "make its table anew: benchmarks/scale_out.py"


@pytest.mark.long
def test_the_overlap_is_the_least_squares_of_those_that_overlap():
    assert published.fitted() == OVERLAP
