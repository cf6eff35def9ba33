"""The causes of idle time against simulated training, whose causes are known."""

import planted_traces
import pytest

from tcbench import tracing
from tcbench.analysis.trace_verdict import judge


def check(path, seed):
    truth = planted_traces.write(path, seed, graphs=seed % 3 == 0)
    verdict = judge(tracing.read_training(path))
    assert verdict.window_ns == truth.window * planted_traces.TICK_NS
    assert (verdict.n_steps, verdict.launches) == (truth.steps, truth.launches)
    assert verdict.share(verdict.busy_ns) == pytest.approx(truth.busy, abs=1e-6)
    assert verdict.share(verdict.exposed_ns) == pytest.approx(truth.exposed, abs=1e-6)
    shares = {cause: verdict.share(time_ns) for cause, time_ns in verdict.causes.items()}
    assert shares == pytest.approx(truth.causes, abs=0.01)
    assert sum(shares.values()) + truth.busy == pytest.approx(1)
    limits = {
        "gpu-bound": truth.busy - truth.exposed + truth.causes["dispatch"] + truth.causes["stream_wait"],
        "network-bound": truth.exposed,
        "input-bound": truth.causes["input"],
        "host-bound": sum(truth.causes[c] for c in ("synchronisation", "launch_call", "operator", "python")),
    }
    if verdict.limit in limits:  # a verdict never contradicts the shares
        assert limits[verdict.limit] > max(limits.values()) - 0.01


@pytest.mark.parametrize("name", ["t.json.gz", "t.sqlite"])
@pytest.mark.parametrize("seed", range(12))
def test_each_cause_of_idle_time_is_within_a_point_of_what_was_simulated(tmp_path, seed, name):
    check(tmp_path / name, seed)


@pytest.mark.long
@pytest.mark.parametrize(
    "seeds", [range(first, first + 47) for first in range(12, 200, 47)], ids=lambda seeds: seeds[0]
)
def test_each_cause_is_within_a_point_for_200_seeds(tmp_path, seeds):
    for seed in seeds:
        check(tmp_path / "t.json", seed)
        check(tmp_path / f"{seed}.sqlite", seed)
