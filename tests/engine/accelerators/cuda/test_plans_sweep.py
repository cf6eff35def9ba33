"""Every cuDNN graph of every config of every scenario builds a plan for GPUs that are not there."""

import pytest

from tcbench.engine.accelerators.cuda.cudnn import absent
from tcbench.engine.accelerators.cuda.cudnn.plans import NoPlan
from tcbench.engine.accelerators.device import Device
from tcbench.hardware import gpus
from tcbench.run import demand, plan, scenario

pytestmark = [pytest.mark.plans, pytest.mark.usefixtures("real_cudnn")]

SCENARIOS = ("naruse2018", "beyond", "settings", "peers", "scaling", "networks")
GPUS = {"A100": 80, "H200": 90, "B200": 100}
BATCH_SIZES = (32, 256)
WORKSPACE_LIMIT = 512 * 2**20


def test_no_scenario_with_gpu_configs_is_left_out():
    assert {*SCENARIOS, "cpu"} == set(scenario.shipped())


def graphs(gpu, tell):
    """Every distinct cuDNN graph of all configs, with the configs' number."""
    device = Device("cuda:0", gpu.device_name, gpu.memory_bytes, divmod(gpu.sm, 10))
    cells = [
        planned.cell
        for name in SCENARIOS
        for planned in plan.make(
            scenario.load(name), plan.Selection(batch_sizes=BATCH_SIZES), device, remote=True
        ).cells
        if planned.skip_reason is None and planned.cell.backend == "chainer"
    ]
    demands = demand.trace_all(cells, gpu.properties(), fresh=False, processes=2, progress=tell)
    works = {work: None for demand in demands.values() for work, _ in demand.works if work.kind == "graph"}
    return list(works), len({cell.config for cell in cells})


@pytest.mark.parametrize("name", GPUS)
def test_every_graph_has_a_plan_within_the_workspace_limit(name):
    gpu = gpus.load(name)
    assert gpu.sm == GPUS[name]
    works, configs = graphs(gpu, lambda *_: None)
    answers = absent.plan_all(works, gpu, WORKSPACE_LIMIT, processes=2)
    without = {work: answers[work.key].reason for work in works if isinstance(answers[work.key], NoPlan)}
    largest = max(answer.workspace_bytes for answer in answers.values() if not isinstance(answer, NoPlan))
    print(  # shown by -rP
        f"{name} (sm_{gpu.sm}): {len(works) - len(without)} of {len(works)} cuDNN graphs of {configs} configs at batch "
        f"sizes {' and '.join(map(str, BATCH_SIZES))} have a plan; the largest workspace is {largest / 2**20:.0f} MiB "
        f"of {WORKSPACE_LIMIT / 2**20:.0f}"
    )
    assert len(works) > 500
    assert configs > 20
    assert not without, "\n".join(f"{work}: {reason}" for work, reason in without.items())
    assert largest <= WORKSPACE_LIMIT
