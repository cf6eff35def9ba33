"""The ladder chart says what each rung buys, and how sure that is."""

import msgspec
import pytest
from factories import make_cell, make_environment, make_record
from matplotlib.figure import Figure
from present.charts.charts import BATCHED, assert_tidy, bars, run, words

from tcbench.analysis.summary import summarise
from tcbench.core.errors import SelectionError
from tcbench.present.charts.palette import GAIN, GAIN_PALE, LOSS, LOSS_PALE, fill
from tcbench.views.ladder.chart import ladder_chart


@pytest.mark.parametrize(
    ("scale", "batch_sizes"), [(1e-6, (4,)), (1.0, (4, 8)), (1e7, (32, 64, 128, 256)), (1.0, (1, 2, 4, 8, 16, 32))]
)
def test_the_ladder_is_tidy(scale: float, batch_sizes: tuple[int, ...]) -> None:
    missing = {("fp32", batch_sizes[-1]): "oom", (BATCHED, batch_sizes[0]): "failed"}
    figure = ladder_chart(run(batch_sizes=batch_sizes, scale=scale, missing=missing))  # type: ignore[arg-type]
    assert_tidy(figure)
    assert len(figure.axes) == 2 * len(batch_sizes)


def test_the_ladder_of_two_machines_is_tidy() -> None:
    summaries = (*run(batch_sizes=(4,)), *run(batch_sizes=(4, 8), environment=make_environment()))
    assert_tidy(ladder_chart(summaries))


def test_the_ladder_bears_the_steps_own_unit() -> None:
    records = [make_record(cell=make_cell(config, unit="rows")) for config in ("fp32", "fp32+dali")]
    said = " ".join(words(ladder_chart(summarise(records))))
    assert "Rows/s gained or lost" in said and "mages" not in said.replace("64 × 64 images", "")


def test_gains_and_losses_carry_sign_and_colour_and_doubt_is_pale() -> None:
    rates = {"fp16": 100, "fp16+dali": 150, "fp16+dali+batched": 120, BATCHED: 120.1}
    records = [
        make_record(config, images_per_s=value * (1 + trial / 500), noise=0.005, trial=trial)
        for config, value in rates.items()
        for trial in range(3)
    ]
    figure = ladder_chart(summarise(records))
    said = [text for text in words(figure) if "×" in text and text[0] in "+−"]
    assert [text[0] for text in said[:2]] == ["+", "−"]
    assert [text.split()[1] for text in said] == ["1.50×", "0.80×", "1.00×"]
    colours = [msgspec.convert(patch.get_facecolor(), tuple[float, ...], strict=False) for patch in bars(figure)]
    shown = ["#" + "".join(f"{round(255 * channel):02x}" for channel in colour[:3]) for colour in colours]
    assert shown[0] == fill("fp16").colour and shown[-1] == fill(BATCHED).colour
    assert shown[1:3] == [GAIN, LOSS]
    assert shown[3] in (GAIN_PALE, LOSS_PALE)
    assert bars(figure)[2].get_hatch() and not bars(figure)[1].get_hatch()


def test_a_great_loss_has_no_more_digits_than_the_base() -> None:
    records = [
        make_record(config, images_per_s=value * (1 + trial / 500), noise=0.005, trial=trial)
        for config, value in {"fp16": 18.9, "fp16+dali": 0.857}.items()
        for trial in range(3)
    ]
    [said] = [text for text in words(ladder_chart(summarise(records))) if text.startswith("−")]
    assert said.split()[0] in ("−18.0", "−18.1")


def test_one_trial_draws_pale_bars_the_whole_ladder_included() -> None:
    """However large its ratio is: it does not tell how the next process will be."""

    def drawn(trials: int) -> Figure:
        records = [
            make_record(config, images_per_s=value * (1 + trial / 500), noise=0.005, trial=trial)
            for config, value in {"fp16": 100, "fp16+dali": 150}.items()
            for trial in range(trials)
        ]
        return ladder_chart(summarise(records))

    (_, step, whole), (_, pale_step, pale_whole) = (bars(drawn(trials)) for trials in (3, 1))
    assert step.get_facecolor() != pale_step.get_facecolor()
    assert whole.get_facecolor()[3] == 1.0
    assert pale_whole.get_facecolor()[3] < 0.5
    assert "pale: one trial each, not judged" in " ".join(words(drawn(1)))


def test_no_ladder_is_one_clear_line() -> None:
    with pytest.raises(SelectionError, match="no ladder in these results"):
        ladder_chart(run(("fp32", "fp16")))
    with pytest.raises(SelectionError, match="no results to plot"):
        ladder_chart([])
