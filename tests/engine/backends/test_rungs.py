"""A rung is one file: one that is dropped into a backend's folder is found, and may bring a kernel of its own."""

import importlib
import sys

from tcbench.engine.accelerators.cuda.kernels.launches import launch_of
from tcbench.engine.backends.chainer import rungs

PLAIN = """
from tcbench.engine.backends.chainer import rungs
from tcbench.engine.rung import Rung


class Sideways(Rung):
    name = "sideways"
    says = "reads images sideways"
    source = "tests"
"""

WITH_A_KERNEL = (
    PLAIN
    + """

from tcbench.engine.accelerators.cuda.kernels.launches import launches, pointwise
from tcbench.engine.work.base import reads, writes
from tcbench.engine.work.pointwise import Pointwise


class Turn(Pointwise):
    name = "turn"
    roles = reads("x") | writes("y")


@launches(Turn)
def turn(work):
    return pointwise(work, "turn.cu", "turn_sideways")
"""
)


def dropped_in(text: str, tmp_path, monkeypatch):
    (tmp_path / "sideways.py").write_text(text)
    monkeypatch.setattr(rungs, "__path__", [*rungs.__path__, str(tmp_path)])
    importlib.invalidate_caches()
    monkeypatch.delitem(sys.modules, f"{rungs.__name__}.sideways", raising=False)
    return rungs.load_rungs()


def test_a_rung_that_is_dropped_in_is_found(tmp_path, monkeypatch):
    rung_set = dropped_in(PLAIN, tmp_path, monkeypatch)
    assert "sideways" in rung_set
    assert rung_set.problem(("fp32", "sideways")) is None


def test_a_kernel_comes_with_its_rung_and_a_source_beside_the_others(tmp_path, monkeypatch):
    dropped_in(WITH_A_KERNEL, tmp_path, monkeypatch)
    module = importlib.import_module("tcbench.engine.backends.chainer.rungs.sideways")
    work = module.Turn(4096, "float16")
    launch = launch_of(work)
    assert (launch.source, launch.function, launch.grid) == ("turn.cu", "turn_sideways", (2, 1, 1))
    assert [operand.role for operand in work.operands] == ["in", "out"]
