import re

import factories
import msgspec
from comparisons import sides

from tcbench.analysis.compare import compare
from tcbench.core.record import GpuSample, GpuSamples, GpuState
from tcbench.views.comparison import wording
from tcbench.views.comparison.markdown import markdown
from tcbench.views.comparison.table import table


def test_the_interval_that_decides_is_printed_where_the_usual_one_seems_to_decide_otherwise():
    configs = dict.fromkeys(factories.LADDERS, 1.0)
    base, current = sides(configs, trials=4, spread=0.01)
    base += factories.make_trials("wild", trials=4, spread=0.18)
    current += factories.make_trials("wild", trials=4, spread=0.18, seed=1, images_per_s=26)
    comparison = compare(base, current, ("throughput", "memory"))
    cell = next(one for one in comparison.cells if one.cell.config == "wild")
    assert (cell.verdict, cell.ratio.high < 0.97) == ("inconclusive", True)
    expected = r"decided by its 99\.\d+% interval, -\d+\.\d% to \+\d+\.\d%, which includes no change at all"
    assert re.search(rf"\nwild, batch size 4: inconclusive: throughput .* {expected}", table(comparison))
    assert "which includes no change at all" in markdown(comparison)


def test_cells_with_the_same_reason_share_a_line():
    base = [factories.make_record(config) for config in factories.LADDERS]
    text = table(compare(base, base))
    (line,) = [line for line in text.splitlines() if "tells nothing" in line]
    assert line.startswith("fp32, batch size 4; fp32+dali, batch size 4; fp32+dali+batched, batch size 4; and 7 more: ")


def test_the_median_step_stands_beside_the_ratio_only_where_it_tells_something():
    base, current = sides({"fp32": 1.0})
    assert "median step" not in table(compare(base, current))
    spiky = []
    for record in current:
        times_s = list(record.measurement.step_times_s)
        times_s[3] *= 20
        measurement = msgspec.structs.replace(record.measurement, step_times_s=tuple(times_s))
        spiky.append(msgspec.structs.replace(record, measurement=measurement))
    text = table(compare(base, spiky))
    assert "spikes 0.0% -> 5.0%" in " ".join(text.split())
    line = next(line for line in text.splitlines() if line.startswith("    4  fp32"))
    assert "0.991, spikes" in line and line.endswith("regression")


def test_what_no_number_of_trials_decides_is_not_said_to_be_at_the_threshold_where_trials_vary_too_much():
    wild = [factories.make_record(trial=trial, images_per_s=rate) for trial, rate in enumerate((4.0, 400.0))]
    (cell,) = compare(wild, wild[::-1]).cells
    assert (cell.verdict, cell.more_trials) == ("inconclusive", None)
    said = wording.sentence(cell)
    assert "not even 1,000 trials a side would decide" in said
    assert "threshold itself" not in said


def test_few_doubtful_trials_are_named_and_many_are_counted():
    base, current = sides({"fp32": 1.0})
    throttled = GpuSamples(
        state=GpuState(), samples=(GpuSample(1.0, throttle_mask=0x40),), timed_from_s=0.0, timed_to_s=2.0
    )
    base[2] = msgspec.structs.replace(base[2], gpu=throttled)
    text = table(compare(base, current))
    assert "base, fp32, batch size 4: trial 3 throttled (hardware thermal slowdown)" in text
    hot = [msgspec.structs.replace(record, gpu=throttled) for record in current]
    assert "current: 8 trials throttled, in 1 cell (--format json names them)" in table(compare(base, hot))


def test_cells_of_one_name_are_told_apart_by_what_differs():
    small, large = factories.make_cell(image_size=64), factories.make_cell(image_size=96)
    both = [record for cell in (small, large) for record in factories.make_trials(cell=cell)]
    text = table(compare(both, both))
    assert "image_size 64" in text and "image_size 96" in text
    assert "where" not in table(compare(both[:8], both[:8]))
