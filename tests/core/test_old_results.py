"""Results that earlier versions of tcbench wrote still read: all that are kept here, and the first form of a record."""

import hashlib

import pytest
import shipped

from tcbench.core import numerics, record, store

RUNS = [shipped.ROOT / file for file in shipped.files() if file.suffix == ".jsonl"]
DOCUMENTS = [shipped.ROOT / file for file in shipped.files() if file.match("numerics-*.json")]

CELL = (
    b'{"scenario":"cpu","backend":"chainer","model":"resnet50","variant":"v1","config":"fp32","rungs":["fp32"],'
    b'"batch_size":8,"image_size":64,"n_classes":1000,"device":"cpu","input":{"kind":"generated","path":null},"seed":0,'
    b'"threads":2,"train":{"learning_rate":0.01,"momentum":0.9,"weight_decay":0.0001,"loss_scale":128.0},'
    b'"cudnn":{"workspace_bytes":536870912,"autotune":true,"fast_batch_norm":true},"measure":{"target":0.02,'
    b'"max_time_s":60.0,"min_warmup_steps":3,"max_warmup_steps":30,"block_steps":6,"min_timed_steps":10,'
    b'"profiled_steps":5}}'
)
FIRST_FORM = (
    b'{"schema_version":1,"run_id":"cpu-20261115-000000","cell":' + CELL + b',"trial":0,"status":"ok","reason":null,'
    b'"started_at":"2026-11-15T00:00:00.000+00:00","duration_s":9.5,"measurement":{"warmup_times_s":[0.3,0.2,0.2],'
    b'"warmup_settled":true,"step_times_s":[0.2,0.21,0.19],"block_steps":6,"stopped_by":"target","phases":[{"name":"io",'
    b'"host_s":[0.02],"device_s":null}],"warmup_loss":7.0,"last_loss":6.9,"peak_memory_bytes":1000000,'
    b'"peak_memory_of":"process","prefetch_depth":2,"parameters":25557032,"macs_per_image":4089184256,'
    b'"gc_frozen":true},"environment":{"machine":"m","device_name":"a CPU","cpu":"a CPU","cpus":2,"memory_bytes":8000,'
    b'"os":"Linux","kernel":"6.1","python":"3.11.7","packages":{"numpy":"1.26.4"},"blas":"openblas","tcbench":"0.1.0",'
    b'"commit":"0123456789ab"},"log":null}'
)
"""A record that commit 3d4cb74 wrote, the first to write any: without GPU, plans, ablations or the project's commit."""


def test_there_are_results_to_read():
    assert RUNS and DOCUMENTS


@pytest.mark.parametrize("path", RUNS, ids=lambda path: path.stem)
def test_every_run_that_is_kept_here_reads_whole(path):
    read = store.read([path])
    assert len(read.records) == len(path.read_bytes().splitlines())
    assert read.notes == ()


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.stem)
def test_every_numerics_document_that_is_kept_here_reads(path):
    assert numerics.read(path).runs


def test_the_first_form_of_a_record_reads_and_its_cell_is_the_same_measurement():
    old = record.decode(FIRST_FORM)
    assert old.gpu is old.cell.scenario_cudnn is old.environment.project_commit is None
    assert old.measurement.plans == ()
    assert old == record.RecordDecoder().decode(FIRST_FORM)
    written = CELL.removesuffix(b"}") + b',"host_speed":1.0}'  # as every record since has it
    assert old.cell.key == hashlib.sha256(written).hexdigest()[:16]


def test_every_version_of_a_record_has_a_form_here():
    """A new version needs its predecessor's form beside FIRST_FORM."""
    assert record.SCHEMA_VERSION == numerics.SCHEMA_VERSION == 1
