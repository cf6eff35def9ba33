import pytest

from tcbench.engine import clock
from tcbench.engine.accelerators.ceilings import least_s
from tcbench.engine.accelerators.cpu import ceilings
from tcbench.engine.accelerators.cpu.onednn import library


def test_the_host_is_measured_with_a_product_and_passes_over_memory() -> None:
    ceilings_found = ceilings.measure(2, size=64, n_bytes=1 << 16, rounds=2)
    precisions = ["fp32"] if library.problem() else ["fp32", "bf16", "fp16"]
    assert sorted(ceilings_found["flops_s"]) == sorted(precisions) and next(iter(ceilings_found["flops_s"])) == "fp32"
    assert min(ceilings_found["flops_s"].values()) > 0
    assert ceilings_found["bandwidth_bytes_s"] > 0
    assert ceilings_found["says"] == "measured: matrix products and memory passes on 2 threads"


def test_runs_take_turns_and_the_best_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[str] = []
    now = [0.0]
    costs = {"a": iter([9.0, 3.0, 2.0, 4.0]), "b": iter([9.0, 1.0, 5.0, 6.0])}

    def run(name: str) -> None:
        order.append(name)
        now[0] += next(costs[name])

    monkeypatch.setattr(clock.time, "perf_counter_ns", lambda: int(now[0] * 1e9))
    assert least_s({name: lambda name=name: run(name) for name in costs}, clock.HostClock(), 3) == {"a": 2.0, "b": 1.0}
    assert order == ["a", "b"] * 4
