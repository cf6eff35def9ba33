import nvtx
import pytest

from tcbench.engine.measure import ranges
from tcbench.engine.measure.ranges import Ranges


@pytest.fixture(params=["no tool", "a tool that does not say so"])
def tool(request, monkeypatch):
    """NVTX works without a tool if the library does not exist, or if the tool does not answer."""
    monkeypatch.delenv("NVTX_INJECTION64_PATH", raising=False)
    if request.param != "no tool":
        monkeypatch.setenv("NVTX_INJECTION64_PATH", "/nonexistent.so")
    return request.param


def test_a_tool_gets_real_ranges_even_if_it_does_not_answer_whether_it_listens(tool):
    nvtx_ranges = Ranges(["io"])
    stand_in = isinstance(nvtx_ranges._domain, nvtx._lib.lib.DummyDomain)
    assert stand_in == (tool == "no tool")
    assert ranges.attached() == (tool != "no tool")


def test_every_call_works_with_and_without_one(tool):
    nvtx_ranges = Ranges(["io"])
    nvtx_ranges.mark("cell {}")
    nvtx_ranges.push(nvtx_ranges.step(7))
    nvtx_ranges.push(nvtx_ranges.phases[0])
    nvtx_ranges.push(nvtx_ranges.layer("stem/conv"))
    for _ in range(3):
        nvtx_ranges.pop()


def test_a_layers_attributes_are_built_once(monkeypatch):
    monkeypatch.setenv("NVTX_INJECTION64_PATH", "/nonexistent.so")
    nvtx_ranges = Ranges([])
    assert nvtx_ranges.layer("stem/conv") is nvtx_ranges.layer("stem/conv")
    assert nvtx_ranges.layer("stem/conv") is not nvtx_ranges.layer("stem/bn")
    assert nvtx_ranges.step(7).payload == 7
