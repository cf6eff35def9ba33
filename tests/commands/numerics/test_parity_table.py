"""The output of `--rungs`: a row per config, the reasons, the last line, and JSON."""

import json

from consoles import printed

from tcbench.commands.numerics import parity_table as view
from tcbench.commands.numerics import plan
from tcbench.commands.numerics.parity_judgement import judge
from tcbench.core.numerics import Distance, ParityRun
from tcbench.engine.accelerators.device import host_device
from tcbench.engine.backends.chainer.rungs import RUNGS
from tcbench.run.scenario import load


def job():
    scenario = load("cpu")
    return plan.parity_job(scenario, host_device(), scenario.configs, 5, 1)[0]


def runs(gradient: float = 3e-6):
    to_fp32 = Distance(loss=1e-7, update=1e-3, gradient=2e-6)
    common = {"in_scenario": True, "to_fp32": to_fp32, "optimizer_distance": 1e-6}
    to = Distance(loss=1e-7, update=1e-3, gradient=gradient, gradient_of="stem.w", length=1e-6, length_of="gamma")
    half = Distance(loss=1e-4, update=1e-2, gradient=0.1, gradient_of="stem.w", length=2e-3, length_of="gamma")
    shows = [dict(RUNGS[name].effects) for name in ("fp32", "nhwc", "fp16")]
    return judge(
        [
            ParityRun(config="fp32", rung="fp32", without=None, to_without=to, seen=shows[0], **common),
            ParityRun(config="fp32+nhwc", rung="nhwc", without="fp32", to_without=to, seen=shows[1], **common),
            ParityRun(
                config="fp16", rung="fp16", without="fp32", storage="float16", to_without=half, seen=shows[2], **common
            ),
            ParityRun(
                config="fp16+dali", rung="dali", without="fp16", storage="float16", in_scenario=True, reason="it broke"
            ),
        ],
        lambda name: RUNGS[name],
    )


def test_the_table_keeps_its_figures_whole_on_80_columns():
    assert "\u2026" not in printed(view.table(runs()), width=80)


def test_the_last_line_counts_what_is_off():
    assert view.summary(runs()[:3]) == "3 configs: all within their tolerances."
    assert view.summary(runs()) == "4 configs: 1 off."


def test_the_json_holds_everything_and_no_number_that_is_none():
    value = json.loads(view.to_json(job(), runs(), {}))
    assert value["ok"] is False
    assert [config["ok"] for config in value["configs"]] == [True, True, True, False]
    fp16 = value["configs"][2]
    assert (fp16["allowed_gradient"], fp16["allowed_length"], fp16["allowed_optimizer"]) == (0.2, 0.01, 1e-3)
    assert fp16["seen"] == {"storage": "float16", "master weights": "float32"}
    assert json.loads(view.to_json(job(), runs()[:3], {}))["ok"] is True


def test_that_an_input_rung_is_fed_the_same_batches_is_said_where_there_is_one():
    noted = [any(note.startswith("Input rungs") for note in view.notes(some, {})) for some in (runs(), runs()[:3])]
    assert noted == [True, False]
