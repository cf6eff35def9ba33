import factories
import pytest

from tcbench.analysis.summary import summarise
from tcbench.present.session import apart

RUN = summarise([factories.make_record("fp32", 4, images_per_s=40.0, noise=0.0)])[0]
DAY = "2025-01-02T09:00:00+00:00"


@pytest.mark.parametrize(
    ("taken_at", "images_per_s", "said"),
    [
        (DAY, 40.0, None),
        (DAY, 43.0, None),
        (None, 40.0, None),
        ("2024-11-20T09:00:00+00:00", 40.0, "profiled 2024-11-20 at 40.0 images/s"),
        (DAY, 20.0, "profiled 2025-01-02 at 20.0 images/s"),
        (DAY, 50.0, "profiled 2025-01-02 at 50.0 images/s"),
        (None, 20.0, "profiled at an unknown time at 20.0 images/s"),
    ],
)
def test_a_profile_of_another_day_or_speed_than_the_run_beside_it_says_both(taken_at, images_per_s, said):
    line = apart(taken_at, 4 / images_per_s, RUN)
    if said is None:
        assert line is None
    else:
        assert line == (
            f"fp32, batch size 4: {said}, another session than the run beside it, of 2025-01-02 at 40.0 images/s"
        )


def test_beside_a_cell_without_a_figure_nothing_is_said():
    assert apart(DAY, 1.0, summarise([factories.make_record(status="oom")])[0]) is None
