"""Differences that make two sides incomparable, by facet."""

import factories
import msgspec
import pytest

from tcbench.analysis import comparability
from tcbench.core.record import GpuFacts, GpuSamples, GpuState, Input, MeasureSettings, Simulated, TrainSettings

GPU = GpuFacts(
    name="NVIDIA H200", compute_capability=(9, 0), multiprocessors=132, memory_bytes=141 * 2**30, driver="570.86"
)
STATE = GpuSamples(state=GpuState(power_limit_w=700.0, sm_clock_set_mhz=1980), samples=())
LIMITED = GpuSamples(state=GpuState(power_limit_w=350.0), samples=())


def differences(base, current):
    return comparability.differences(comparability.values(base), comparability.values(current))


def mixtures(records):
    return comparability.mixtures(records, comparability.values(records))


def on_gpu(**changes):
    cell = factories.make_cell(device=changes.pop("device", "cuda:0"))
    gpu = msgspec.structs.replace(GPU, **changes)
    environment = factories.make_environment("nvidia-h200", "NVIDIA H200", gpu=gpu)
    return factories.make_record(cell=cell, environment=environment, gpu=STATE)


def environment(**changes):
    return factories.make_record(environment=factories.make_environment(**changes))


def virtual(**changes):
    simulated = Simulated(card="Tesla V100", host="AMD EPYC", host_speed=1.0, attained="table 1a2b")
    return environment(simulated=msgspec.structs.replace(simulated, **changes))


def cell(**changes):
    return factories.make_record(cell=factories.make_cell(**changes))


def on_ranks(**changes):
    return environment(ranks=factories.make_ranks(**changes))


def decoded(decoding):
    return factories.make_record(measurement=factories.make_measurement(decoding=decoding))


@pytest.mark.parametrize(
    ("facet", "base", "current"),
    [
        ("simulated", environment(), virtual()),
        ("simulated", virtual(), virtual(host_speed=0.5)),
        ("simulated", virtual(), virtual(attained="table 3c4d")),
        ("host", environment(processor="AMD/25/17 1a"), environment(processor="AMD/26/17 2b")),
        ("host", environment(cpu_quota=0.0), environment(cpu_quota=1.5)),
        ("gpu", on_gpu(), on_gpu(multiprocessors=114)),
        ("gpu", environment(), environment(device_name="AMD EPYC 2")),
        ("gpu", factories.make_record(), cell(device="cuda:0")),
        ("driver", on_gpu(), on_gpu(driver="580.12")),
        ("clocks", on_gpu(), msgspec.structs.replace(on_gpu(), gpu=LIMITED)),
        ("host", environment(), environment(cpus=4)),
        ("os", environment(), environment(kernel="6.6.0")),
        ("python", environment(), environment(python="3.13.1")),
        ("libraries", environment(), environment(packages={"chainer": "7.8.1", "numpy": "2.4.0"})),
        ("libraries", environment(), environment(packages={"chainer": "7.8.1"})),
        ("libraries", environment(), environment(blas="OpenBLAS 0.3.31")),
        ("accelerator", environment(accelerator="NumPy"), environment(accelerator="oneDNN 3.2.0")),
        ("settings", factories.make_record(), cell(image_size=96)),
        ("settings", factories.make_record(), cell(threads=4)),
        ("settings", factories.make_record(), cell(train=TrainSettings(loss_scale=1024))),
        ("measure", factories.make_record(), cell(measure=MeasureSettings(max_time_s=5))),
        ("input", factories.make_record(), cell(input=Input(kind="synthetic"))),
        ("input", cell(input=Input(kind="folder", path="a")), cell(input=Input(kind="folder", path="b"))),
        ("input", decoded("on the GPU"), decoded("on the GPU, hw_decoder_load 0")),
        ("input", decoded(None), decoded("on the GPU")),
        *(("ranks", on_ranks(), on_ranks(engine="NCCL 2.28")), ("ranks", on_ranks(), on_ranks(hosts=("a", "b")))),
        ("ranks", on_ranks(), on_ranks(binding="none")),
    ],
)
def test_each_facet_is_told_in_both_directions(facet, base, current):
    forth = differences([base], [current])
    back = differences([current], [base])
    assert {difference.facet for difference in forth} == {facet}
    assert {(d.fact, d.base, d.current) for d in forth} == {(d.fact, d.current, d.base) for d in back}


def test_one_of_several_like_gpus_or_hosts_is_as_good_as_another():
    assert differences([on_gpu()], [on_gpu(device="cuda:3")]) == ()
    assert differences([on_ranks()], [on_ranks(launcher="srun")]) == ()
    assert differences([on_ranks(hosts=("a", "b"))], [on_ranks(hosts=("c", "d"))]) == ()


def test_trials_that_disagree_are_a_mixture_also_of_two_commits_of_a_users_project():
    pair = [environment(python="3.11.2", commit="a1"), environment(python="3.12.1", commit="b2")]
    assert set(mixtures(pair)) == {"python: 3.11.2, 3.12.1", "commit: a1, b2"}
    assert mixtures(pair[:1]) == ()
    first, second, without = (environment(project_commit=commit) for commit in ("a1", "b2", None))
    assert mixtures([first, without, second]) == ("project's commit: a1, b2",)
    assert mixtures([first, without]) == ()


def test_the_decoding_of_a_cell_tells_nothing_of_the_stack_beneath_its_run():
    runs = {"fp32": None, "fp16+dali": "on the GPU"}
    records = [msgspec.structs.replace(decoded(how), run_id=run) for run, how in runs.items()]
    assert comparability.stack_differences(records) == {"fp32": (), "fp16+dali": ()}


def test_runs_of_two_processors_of_one_name_are_two_stacks_and_earlier_records_join_the_first():
    names = {"before": "", "old": "AMD/25/17 1a", "new": "AMD/26/17 2b", "again": "AMD/25/17 1a"}
    environments = {run: factories.make_environment(processor=name) for run, name in names.items()}
    records = [factories.make_record(run_id=run, environment=environment) for run, environment in environments.items()]
    stacks = comparability.stack_differences(records)
    assert stacks["before"] == stacks["old"] == stacks["again"] == ("processor: AMD/25/17 1a",)
    assert stacks["new"] == ("processor: AMD/26/17 2b",)
