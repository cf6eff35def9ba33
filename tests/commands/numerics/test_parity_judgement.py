"""Distances become answers: what is off, and why."""

import pytest

from tcbench.commands.numerics.parity_judgement import judge
from tcbench.core.numerics import Distance, ParityRun
from tcbench.engine.backends.chainer.rungs import RUNGS
from tcbench.engine.rung import Parity, Rung, Tolerance

PLAIN = {"storage": "float32", "layout": "NCHW"}


def a_run(rung: str = "nhwc", storage: str = "float32", **changes) -> ParityRun:
    facts = {
        "config": f"fp32+{rung}",
        "without": "fp32",
        "in_scenario": True,
        "to_without": Distance(loss=0.0, update=0.0, gradient=0.0, gradient_of="stem.w", length=0.0, length_of="gamma"),
        "to_fp32": Distance(loss=0.0, update=0.0),
        "seen": {"storage": storage, "layout": "NHWC"},
        "seen_without": {"storage": storage, "layout": "NCHW"},
        "optimizer_distance": 0.0,
        "optimizer_parameter": "head.w",
    }
    return ParityRun(rung=rung, storage=storage, **(facts | changes))


def why(run: ParityRun) -> str | None:
    [judged] = judge([run], lambda name: RUNGS[name])
    return judged.off


def far(**changes) -> Distance:
    return Distance(**({"loss": 0.0, "update": 0.0, "gradient_of": "stem.w", "length_of": "gamma"} | changes))


@pytest.mark.parametrize(
    ("storage", "distance", "expected"),
    [
        ("float32", far(gradient=0.0, length=0.0), None),
        ("float32", Distance(loss=0.0, update=0.0), None),  # a step that is one launch has no gradients to hold
        ("float32", far(loss=6e-4), "loss 0.0006 above 0.0005"),
        ("float32", far(gradient=2e-4), "gradient (stem.w) 0.0002 above 0.0001"),
        ("float32", far(gradient=9e-5), None),
        ("float32", far(length=1.0), None),  # the gradient's distance says it all where rounding is small
        ("float32", far(update=0.2), "update 0.2 above 0.1"),
        ("float16", far(gradient=0.14), None),
        ("float16", far(gradient=0.16), "gradient (stem.w) 0.16 above 0.15"),
        ("float16", far(length=0.02), "gradient's length (gamma) 0.02 above 0.01"),
        ("float16", far(loss=0.02, length=0.02), "loss 0.02 above 0.01, gradient's length (gamma) 0.02 above 0.01"),
        ("bfloat16", far(gradient=0.3), None),
        ("bfloat16", far(gradient=0.4), "gradient (stem.w) 0.4 above 0.35"),
        ("float32", far(finite=False), "its loss or its parameters are not finite"),
    ],
)
def test_each_distance_has_a_tolerance_of_its_own(storage, distance, expected):
    assert why(a_run(storage=storage, to_without=distance)) == expected


def test_of_a_dtype_that_a_rung_declares_no_tolerance_for_that_is_said():
    class Otherwise(Rung):
        parity = Parity("other", float32=Tolerance(0.1, 0.1, 0.1, 0.1))

    [judged] = judge([a_run(storage="float16", to_without=far(loss=0.05))], lambda name: Otherwise())
    assert judged.off.startswith("loss 0.05 above 0, ") and judged.off.endswith("declares no tolerance for float16")


@pytest.mark.parametrize(("storage", "most"), [("float32", 1e-5), ("bfloat16", 1e-5), ("float16", 1e-3)])
def test_an_optimizer_is_held_against_its_update_with_what_float16_rounds_away(storage, most):
    assert why(a_run(storage=storage, optimizer_distance=0.9 * most)) is None
    expected = f"optimizer (head.w) {1.1 * most:.2g} from the update of its rungs in float64, above {most:.2g}"
    assert why(a_run(storage=storage, optimizer_distance=1.1 * most)) == expected


def test_a_rung_that_is_seen_to_do_other_than_it_shows_is_off():
    assert why(a_run(seen=PLAIN)) == "layout: NCHW, expected NHWC"
    assert why(a_run(seen={"storage": "float32"})) == "layout: not seen, expected NHWC"
    assert why(a_run(seen={"storage": "float16", "layout": "NHWC"})) == "storage: float16, expected float32"
    # What could be looked at without the rung only says nothing.
    without = {"launches": "several", "graph": "built"}
    assert why(a_run("cuda_graph", seen={"launches": "one"}, seen_without=without)) is None
