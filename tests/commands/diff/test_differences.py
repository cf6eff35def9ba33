"""The change of a step, shared out: every level adds up to it, whatever came, went, grew or shrank."""

import math

import factories
import pytest
from timelines import make_timeline, phase, step

from tcbench.commands.diff.differences import diff_records, diff_timelines
from tcbench.core.errors import NotComparableError
from tcbench.core.record import Record
from tcbench.core.timeline import Span


def trials(step_s: float, phases: dict[str, float], n: int = 1, spread: float = 0.0, **changes) -> list[Record]:
    """Trials about a step, each a little off the others."""
    records = []
    for trial in range(n):
        off = 1 + spread * (trial - (n - 1) / 2)
        on_host = factories.make_phases({name: s * off for name, s in phases.items()})
        measured = factories.make_measurement((step_s * off,) * 12, phases=on_host)
        records.append(factories.make_record(cell=factories.make_cell(**changes), trial=trial, measurement=measured))
    return records


def test_phases_of_records_add_up_to_the_change_of_the_timed_step():
    base = trials(0.100, {"io": 0.01, "forward": 0.03, "backward": 0.05})
    current = trials(0.110, {"forward": 0.041, "backward": 0.049, "allreduce": 0.012})
    diff = diff_records(base, current)
    (level,) = diff.levels
    parts = (*level.parts, level.rest)
    for side in ("base_s", "current_s"):
        total = math.fsum(getattr(part, side) or 0.0 for part in parts)
        assert total == pytest.approx(getattr(diff.step, side), abs=1e-12)
    assert math.fsum(diff.share(part) or 0.0 for part in parts) == pytest.approx(1.0)
    changes = [abs(part.change_s) for part in level.parts]
    assert changes == sorted(changes, reverse=True)
    assert {part.name: part.kind for part in level.parts} == {
        "forward": "grew",
        "backward": "shrank",
        "allreduce": "appeared",
        "io": "went",
    }
    forward = next(part for part in level.parts if part.name == "forward")
    assert (forward.change_s, diff.share(forward)) == (pytest.approx(0.011), pytest.approx(1.1))
    assert forward.ratio == pytest.approx(0.041 / 0.03)
    assert level.rest.change_s == pytest.approx(0.010 - 0.012)


def test_an_interval_takes_two_trials_a_side_and_decides_what_surely_changed():
    phases, grown = {"forward": 0.03, "backward": 0.05}, {"forward": 0.04, "backward": 0.0501}
    alone = diff_records(trials(0.1, phases), trials(0.11, grown, 5))
    assert alone.step.change is None
    assert not any(part.decided for part in (alone.step, *alone.levels[0].parts))
    several = diff_records(trials(0.1, phases, 5, 0.01), trials(0.11, grown, 5, 0.01))
    assert several.step.decided
    assert {part.name: part.decided for part in several.levels[0].parts} == {"forward": True, "backward": False}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"batch_size": 8}, "batch size 4 against 8"),
        ({"model": "vgg16", "image_size": 32}, "model resnet50 against vgg16, image size 64 against 32"),
        ({"ranks": 2}, "ranks 1 against 2"),
        ({"device": "cuda:0"}, "device cpu against cuda"),
        ({"status": "oom"}, "fp32, batch size 4: oom: out of memory"),  # it was not measured
    ],
)
def test_what_did_not_train_the_same_is_refused_with_every_reason(changes, says):
    broken = [factories.make_record(**changes)] if "status" in changes else None
    with pytest.raises(NotComparableError, match=says):
        diff_records(trials(0.1, {"io": 0.1}), broken or trials(0.1, {"io": 0.1}, **changes))


def layered(times: dict[str, float], *, on_gpu: bool):
    spans, begin_s = [step(0, 1), phase("forward", 0, 1)], 0.0
    for name, took in times.items():
        host = Span(begin_s, begin_s + 0.01 if on_gpu else begin_s + took, "host", "layer", name, 0, "forward")
        spans.append(host)
        if on_gpu:
            spans.append(Span(begin_s, begin_s + took, "gpu", "kernel", "conv", 0, "forward", layer=name))
        begin_s += took
    return make_timeline(*spans)


@pytest.mark.parametrize("on_gpu", [False, True])
def test_layers_are_the_host_s_time_or_that_of_the_kernels_they_launched(on_gpu):
    before, after = {"stem": 0.1, "block1": 0.2}, {"stem": 0.1, "block1": 0.35, "head": 0.05}
    diff = diff_timelines(layered(before, on_gpu=on_gpu), layered(after, on_gpu=on_gpu))
    (layers,) = (level for level in diff.levels if level.name == "layers")
    assert layers.clock == ("device" if on_gpu else "host")
    changes = {part.name: round(part.change_s, 6) for part in layers.parts}
    assert changes == {"block1": 0.15, "head": 0.05, "stem": 0.0}
    assert layers.rest.change_s == pytest.approx(-0.2)
