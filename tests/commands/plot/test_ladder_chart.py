"""The ladder chart says what each rung buys, and how sure that is."""

import pytest
from factories import make_cell, make_record
from matplotlib.figure import Figure
from show.charts.charts import BATCHED, assert_tidy, bars, run, words

from tcbench.analysis.summary import summarise
from tcbench.commands.plot.ladder_chart import ladder_chart


@pytest.mark.long
@pytest.mark.parametrize(("scale", "batch_sizes"), [(1e-6, (4,)), (1e7, (4, 8)), (1.0, (1, 2, 4, 8, 16, 32))])
def test_the_ladder_is_tidy(scale: float, batch_sizes: tuple[int, ...]) -> None:
    missing = {("fp32", batch_sizes[-1]): "oom", (BATCHED, batch_sizes[0]): "failed"}
    figure = ladder_chart(run(batch_sizes=batch_sizes, scale=scale, missing=missing))  # type: ignore[arg-type]
    assert_tidy(figure)
    assert len(figure.axes) == 2 * len(batch_sizes)


def test_the_ladder_bears_the_steps_own_unit() -> None:
    records = [make_record(cell=make_cell(config, unit="rows")) for config in ("fp32", "fp32+dali")]
    texts = " ".join(words(ladder_chart(summarise(records))))
    assert "Rows/s gained or lost" in texts and "mages" not in texts.replace("64 × 64 images", "")


def test_a_great_loss_has_no_more_digits_than_the_base() -> None:
    records = [
        make_record(config, images_per_s=value * (1 + trial / 500), noise=0.005, trial=trial)
        for config, value in {"fp16": 18.9, "fp16+dali": 0.857}.items()
        for trial in range(3)
    ]
    [text_of_loss] = [text for text in words(ladder_chart(summarise(records))) if text.startswith("−")]
    assert text_of_loss.split()[0] in ("−18.0", "−18.1")


def test_a_rung_that_changes_nothing_has_no_sign() -> None:
    records = [make_record(config, images_per_s=18.9, noise=0.0) for config in ("fp16", "fp16+dali")]
    assert "±0.0  1.00×" in words(ladder_chart(summarise(records)))


def test_one_trial_draws_pale_bars_the_whole_ladder_included() -> None:
    """However large its ratio is: it does not tell how the next process will be."""

    def drawn(trials: int) -> Figure:
        records = [
            make_record(config, images_per_s=value * (1 + trial / 500), noise=0.005, trial=trial)
            for config, value in {"fp16": 100, "fp16+dali": 150}.items()
            for trial in range(trials)
        ]
        return ladder_chart(summarise(records))

    (_, step, total), (_, pale_step, pale_whole) = (bars(drawn(trials)) for trials in (3, 1))
    assert step.get_facecolor() != pale_step.get_facecolor()
    assert total.get_facecolor()[3] == 1.0
    assert pale_whole.get_facecolor()[3] < 0.5
    assert "pale: one trial each, not judged" in " ".join(words(drawn(1)))
