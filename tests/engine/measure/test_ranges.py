import nvtx
import pytest

from tcbench.engine.measure import ranges
from tcbench.engine.measure.ranges import Ranges


@pytest.fixture(params=["no tool", "a tool that does not say so"])
def tool(request, monkeypatch):
    """With a library that is not there NVTX goes on without one, as with a tool that answers no question."""
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    if request.param != "no tool":
        monkeypatch.setenv("NVTX_INJECTION64_PATH", "/nonexistent.so")
    return request.param


def test_a_tool_gets_real_ranges_even_if_it_does_not_answer_whether_it_listens(tool):
    made = Ranges(["io"])
    stand_in = isinstance(made._domain, nvtx._lib.lib.DummyDomain)
    assert stand_in == (tool == "no tool")
    assert ranges.attached() == (tool != "no tool")


def test_every_call_works_with_and_without_one(tool):
    made = Ranges(["io"])
    made.mark("cell {}")
    made.push(made.step(7))
    made.push(made.phases[0])
    made.push(made.layer("stem/conv"))
    for _ in range(3):
        made.pop()


def test_a_layers_attributes_are_built_once(monkeypatch):
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/nonexistent.so")
    made = Ranges([])
    assert made.layer("stem/conv") is made.layer("stem/conv")
    assert made.layer("stem/conv") is not made.layer("stem/bn")
    assert made.step(7).payload == 7
