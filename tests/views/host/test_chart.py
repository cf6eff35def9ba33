"""The flame graph: widths are times, callees stand on their callers, nothing overlaps."""

import pytest
from factories import make_host_profile
from matplotlib.patches import Rectangle

from tcbench.core.host_profile import Frame, Stack
from tcbench.views.host.chart import flame_chart

FORWARD, BACKWARD = Frame("forward", "tcbench/x.py", 1), Frame("backward", "tcbench/x.py", 9)
A, B = Frame("a", "chainer/a.py", 1), Frame("b", "numpy/b.py", 2)
PROFILE = make_host_profile(
    Stack("forward", (FORWARD,), 0.01),
    Stack("forward", (FORWARD, A), 0.01),
    Stack("forward", (FORWARD, A, B), 0.02),
    Stack("forward", (FORWARD, B), 0.03),
    Stack("backward", (BACKWARD, B), 0.05),
    step_s=0.11,
    timed_spread=0.02,
)


def boxes(figure) -> list[tuple[float, float, float]]:
    """Row, begin and width (ms) of every function."""
    (axes,) = figure.axes
    those = [patch for patch in axes.patches if isinstance(patch, Rectangle)]
    return sorted((round(p.get_y()), p.get_x(), p.get_width()) for p in those)


def test_phases_stand_side_by_side_and_callees_on_their_callers():
    expected = [(0, 0, 70), (0, 70, 50), (1, 0, 30), (1, 30, 30), (1, 70, 50), (2, 0, 20)]
    assert boxes(flame_chart(PROFILE)) == [pytest.approx(box) for box in expected]
