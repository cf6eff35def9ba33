import factories
import pytest

from tcbench.analysis.summary import summarise
from tcbench.core.record import KfacSettings, TrainSettings
from tcbench.show.naming import another_session, distinguishing_settings, setting_headings, stable_names


def test_only_namesakes_are_told_apart_and_only_by_what_differs():
    first, other, third = (
        factories.make_cell(),
        factories.make_cell(image_size=96),
        factories.make_cell("fp16", threads=8),
    )
    assert distinguishing_settings([("m", first), ("m", other), ("n", third)]) == ("image_size 64", "image_size 96", "")
    assert distinguishing_settings([("m", first), ("n", first)]) == ("m", "n")
    assert distinguishing_settings([(None, first), ("n", first)]) == ("unknown machine", "n")
    assert distinguishing_settings([("m", first), ("m", first)]) == ("", "#2")


def test_an_ablation_is_told_from_its_namesake_in_either_order():
    cell = factories.make_cell("fp16")
    ablation = factories.make_cell("fp16", scenario_cudnn=cell.cudnn)
    assert distinguishing_settings([("m", cell), ("m", ablation)])[0] == ""
    assert "scenario_cudnn.autotune True" in distinguishing_settings([("m", cell), ("m", ablation)])[1]
    assert (
        distinguishing_settings([("m", ablation), ("m", cell)])
        == distinguishing_settings([("m", cell), ("m", ablation)])[::-1]
    )


def test_a_setting_within_settings_is_named_by_its_value_and_one_that_is_not_set_not_at_all():
    plain, kfac = factories.make_cell(), factories.make_cell(train=TrainSettings(kfac=KfacSettings(interval=5)))
    names = distinguishing_settings([("m", plain), ("m", kfac)])
    assert names == ("", "train.kfac.damping 0.01, train.kfac.decay 0.95, train.kfac.interval 5")


def test_a_lasting_name_does_not_depend_on_what_else_was_run():
    cell, other = factories.make_cell(), factories.make_cell("fp16")
    assert stable_names([("m", cell)])[0] == stable_names([("m", other), ("m", cell)])[1]
    assert stable_names([("m", cell)]) == ("fp32, batch size 4, resnet50 v1, 64 px, generated, cpu, m",)
    assert (
        stable_names([("m", cell)])[0] == stable_names([("m", cell), ("m", factories.make_cell(model="resnet18"))])[0]
    )


def test_settings_are_told_apart_by_machine_and_threads_and_else_by_what_tells_cells_of_one_name():
    def headings(**changes: object) -> tuple[str, ...]:
        cells = [factories.make_cell(), factories.make_cell("fp16", scenario="other"), factories.make_cell(**changes)]
        return setting_headings(summarise([factories.make_record(cell=cell) for cell in cells]))

    assert headings(batch_size=8) == ("", "", "")  # another scenario's config stands beside this one's
    assert headings(threads=8) == ("threads 2", "threads 2", "threads 8")
    assert headings(image_size=96, train=TrainSettings(momentum=0.5))[::2] == ("image_size 64", "image_size 96")


RUN = summarise([factories.make_record("fp32", 4, images_per_s=40.0, noise=0.0)])[0]
DAY = "2025-01-02T09:00:00+00:00"


@pytest.mark.parametrize(
    ("taken_at", "images_per_s", "expected"),
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
def test_a_profile_of_another_day_or_speed_than_the_run_beside_it_says_both(taken_at, images_per_s, expected):
    line = another_session(taken_at, 4 / images_per_s, RUN)
    if expected is None:
        assert line is None
    else:
        assert line == (f"fp32, batch size 4: {expected}, in another session than the run (2025-01-02, 40.0 images/s)")


def test_beside_a_cell_without_a_figure_nothing_is_said():
    assert another_session(DAY, 1.0, summarise([factories.make_record(status="oom")])[0]) is None
