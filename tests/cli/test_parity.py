"""`tcbench numerics --rungs` as a user meets it: the exit code, the row that is off, the last line."""

from __future__ import annotations

import json
import sys

from command import tcbench

from tcbench.run.numerics_runner import Runner

RUNGS = ("numerics", "--rungs", "--steps", "2", "--device", "cpu")


def broken(monkeypatch, code: str) -> None:
    """The worker takes its ops from here, and `code` breaks one on purpose."""
    ends = "; from tcbench.numerics.worker import main; main()"
    right = Runner.__init__

    def with_code(self, at_once, timeout_s, listen):
        right(self, at_once, timeout_s, listen, lambda pipe: [sys.executable, "-c", code + ends, str(pipe)])

    monkeypatch.setattr(Runner, "__init__", with_code)


def test_it_ends_with_0_when_all_is_within_what_is_declared(tmp_path):
    done = tcbench(tmp_path, *RUNGS, "--config", "fp32+nhwc", "--json")
    assert done.code == 0, done.err
    value = json.loads(done.out)
    assert (value["schema"], value["ok"]) == ("tcbench-parity", True)
    assert [one["config"] for one in value["configs"]] == ["fp32", "fp32+nhwc"]
    assert value["reference"]["ok"]


def test_it_ends_with_1_when_a_config_is_off(tmp_path, monkeypatch):
    broken(
        monkeypatch,
        "import sys; import tcbench.backends.chainer.ops.cpu.conv_nhwc as c; r = c.wgrad; "
        "c.wgrad = lambda *a, **k: 1.01 * r(*a, **k)",
    )
    done = tcbench(tmp_path, *RUNGS, "--config", "fp32+nhwc")
    assert done.code == 1, done.err
    [reason] = [line for line in done.out.splitlines() if line.startswith("fp32+nhwc: off: ")]
    assert "w) 0.01 above 0.0001" in reason
    assert done.out.splitlines()[-1] == "2 configs, and float64: 1 off."


def test_it_ends_with_1_when_the_reference_is_off_and_counts_it(tmp_path, monkeypatch):
    broken(
        monkeypatch,
        "import sys; from tcbench.backends.chainer.ops.linear import LinearWgrad as n; r = n.forward_cpu; "
        "n.forward_cpu = lambda s, i: (1.001 * r(s, i)[0],)",
    )
    done = tcbench(tmp_path, *RUNGS, "--config", "fp32")
    assert done.code == 1, done.err
    [reason] = [line for line in done.out.splitlines() if ": off: " in line]
    assert reason.startswith("float64: off: gradient from the slope of the loss, above 1e-05: head.w 0.00")
    assert done.out.splitlines()[-1] == "1 configs, and float64: 1 off."
