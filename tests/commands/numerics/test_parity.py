"""`tcbench numerics --rungs` as a user meets it, computed: the exit code, the row that is off, the last line."""

import json

import pytest
from command import ended

from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.engine.accelerators.cpu.reference.operands import OPERATIONS
from tcbench.engine.work import ConvWgrad

RUNGS = ("numerics", "--rungs", "--steps", "2", "--device", "cpu")

pytestmark = [pytest.mark.long, pytest.mark.usefixtures("trains_here", "generated")]


def test_it_ends_with_0_when_all_is_within_what_is_declared(tmp_path):
    done = ended(tmp_path, *RUNGS, "--config", "fp32+nhwc", "--json")
    value = json.loads(done.out)
    assert (value["schema"], value["ok"]) == ("tcbench-parity", True)
    assert [config["config"] for config in value["configs"]] == ["fp32", "fp32+nhwc"]


@pytest.mark.slow
def test_it_ends_with_1_when_a_config_is_off(tmp_path, monkeypatch):
    wgrad = OPERATIONS[ConvWgrad]

    def off(work, a):
        wgrad(work, a)
        if work.conv.layout == "NHWC":
            a.write(gw=a.gw * 1.01)

    monkeypatch.setattr(library, "problem", lambda: "oneDNN is not installed")  # NumPy computes.
    monkeypatch.setitem(OPERATIONS, ConvWgrad, off)
    done = ended(tmp_path, *RUNGS, "--config", "fp32+nhwc", code=1)
    [reason] = [line for line in done.out.splitlines() if line.startswith("fp32+nhwc: off: ")]
    assert "w) 0.01 above 0.0001" in reason
    assert done.out.splitlines()[-1] == "2 configs: 1 off."
