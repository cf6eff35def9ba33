"""`tcbench diff` of two traces of another profiler."""

import json
import math
from dataclasses import replace

import planted_traces
import pytest
from command import tcbench
from timelines import talk
from training_traces import launch, make_trace

from tcbench.analysis.trace_verdict import judge
from tcbench.show.trace_report import labelled_times
from tcbench.tracing import perfetto


@pytest.fixture
def traces(tmp_path):
    return [planted_traces.write(tmp_path / f"{name}.json", seed) for name, seed in (("a", 3), ("b", 5))]


def test_the_parts_of_every_level_add_up_to_the_change_of_the_step(tmp_path, traces):
    (cell,) = json.loads(tcbench(tmp_path, "diff", "a.json", "b.json", "--format", "json").out)["cells"]
    for truth, side in zip(traces, ("base_s", "current_s"), strict=True):
        step_s = truth.window * planted_traces.TICK_NS * 1e-9 / truth.steps
        times_s = {part["name"]: part[side] for part in cell["levels"][0]["parts"]}
        assert cell["step"][side] == pytest.approx(step_s)
        assert times_s["busy with its own work"] == pytest.approx((truth.busy - truth.exposed) * step_s)
    assert [level["level"] for level in cell["levels"]] == ["time", "phases", "kernels"]
    for level in cell["levels"]:
        assert math.fsum(part["share"] for part in [*level["parts"], level["rest"]]) == pytest.approx(1)
    assert abs(cell["levels"][0]["rest"]["change_s"]) < 1e-12


def test_the_times_of_the_first_level_divide_the_window_with_recomputation_too():
    verdict = judge(make_trace([launch(1, 100, 200, 300), launch(2, 110, 400, 500)]))
    verdict = replace(verdict, recomputation_ns=60, exposed_ns=30)
    assert sum(time_ns for _, time_ns in labelled_times(verdict, 0.0)) == verdict.window_ns == 300


def test_the_lines_name_what_changed_most_and_no_rest_where_there_is_none(tmp_path, traces):
    done = tcbench(tmp_path, "diff", "a.json", "b.json", "-o", "d.png")
    assert (done.code, (tmp_path / "d.png").is_file()) == (0, True)
    assert "a_kernel" in done.out
    assert "rounding" not in done.out


def test_traces_that_cannot_be_compared_are_refused_in_one_line(tmp_path, traces):
    perfetto.write([next(iter(talk().values()))], tmp_path / "ours.json.gz")
    without_steps = (tmp_path / "a.json").read_text().replace("ProfilerStep", "Part").replace("Optimizer.step", "part")
    (tmp_path / "stepless.json").write_text(without_steps)
    for other, why in (("ours.json.gz", "two of the same kind"), ("stepless.json", "has marked steps")):
        done = tcbench(tmp_path, "diff", "a.json", other)
        assert (done.code != 0, done.out, len(done.err.splitlines())) == (True, "", 1)
        assert why in done.err
