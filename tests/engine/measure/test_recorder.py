import itertools

from tcbench.core.recording import HostSpan
from tcbench.engine.measure.recorder import SpanRecorder


def test_spans_know_their_step_and_phase_and_lie_in_each_other():
    ticks = itertools.count(10)
    recorder = SpanRecorder(lambda: next(ticks))
    recorder.begin_step(4)
    recorder.begin_phase("forward")
    recorder.begin_layer("stem/conv")
    recorder.end()
    recorder.end()
    recorder.end()
    recorder.begin_step(5)
    recorder.end()
    assert recorder.spans == (
        HostSpan("layer", "stem/conv", 4, "forward", 12, 13),
        HostSpan("phase", "forward", 4, "forward", 11, 14),
        HostSpan("step", "step", 4, None, 10, 15),
        HostSpan("step", "step", 5, None, 16, 17),
    )
