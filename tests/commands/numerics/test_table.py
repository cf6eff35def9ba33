"""The words beside the pictures of `tcbench numerics`."""

import msgspec
import pytest
from consoles import printed
from numerics_documents import SETTING, make_document, make_gradients, make_run

from tcbench.commands.numerics.judgement import Margins
from tcbench.commands.numerics.table import about, bfloat16_line, costs_table, notes, safe_line, to_json, why_lines


def document_with(**changes):
    return make_document(setting=msgspec.structs.replace(SETTING, **changes))


def test_the_losss_divisor_is_told_by_its_factors():
    [gradients, updates] = why_lines(document_with())
    assert gradients.startswith(
        "Small gradients: the loss is divided by 32,768 = 4,096 x 8. 4,096: it is one replica's "
    )
    assert " 8: gradients are divided by the number of pixels of the last feature map" in gradients
    assert updates.startswith("Small updates: a learning rate of 0.001 is what a schedule ends with")
    [shown] = [fact for fact in about(document_with()) if fact.startswith("loss")]
    assert shown == "loss divided by 32768: 4096 replicas × 8 for fewer pixels"
    [gradients, _] = why_lines(document_with(data="images", loss_divisor=4096.0))
    assert gradients.startswith("Small gradients: the loss is divided by 4,096, as one replica's share")
    assert "pixels" not in gradients


@pytest.mark.parametrize("rate", [0.1, 100.0])
def test_a_learning_rate_that_is_not_small_is_not_called_so(rate):
    updates = why_lines(document_with(learning_rate=rate))[-1]
    assert updates.startswith(f"Learning rate {rate:g}: updates are not as small")


def test_safe_scales_are_those_of_the_steps_that_were_seen_and_the_one_in_use_is_named():
    assert safe_line(make_document()).endswith("(none overflows), from 3 of 48 steps; used: 2^16.")
    wide = make_gradients(-26.0)
    far = make_gradients(14.0)
    both = msgspec.structs.replace(wide, layers=wide.layers + far.layers)
    shown = safe_line(make_document(gradients=both))
    assert shown.startswith("No loss scale is safe: ") and shown.endswith("; used: 2^16.")


def test_gradients_that_float16_loses_are_within_bfloat16s_range():
    assert bfloat16_line(make_document()).endswith("none of the gradients become zero without a loss scale.")
    assert ", 100.00% of the gradients become zero" in bfloat16_line(make_document(gradients=make_gradients(-140.0)))


def test_a_processs_memory_has_no_ratio_and_a_devices_has():
    assert printed(costs_table(make_document())).count("vs fp32") == 1
    assert "0.800 (0.800 to 0.800)" in printed(costs_table(make_document()))
    assert "0.80×, one seed" in printed(costs_table(make_document(seeds=[0])))
    on_device = [make_run(t, 0, peak_memory_of="device") for t in ("fp32", "both")]
    assert printed(costs_table(make_document(extra=on_device))).count("vs fp32") == 2


def test_a_runaway_loss_is_short():
    runaway = [make_run("fp32", seed, test_loss=8.4474e24) for seed in range(5)]
    document = make_document(extra=runaway)
    assert " 8.447e+24 " in printed(costs_table(document))
    assert notes(document, Margins()) and to_json(document, Margins())
