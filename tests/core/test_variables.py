"""The variables that workers, Slurm's commands and matplotlib get, and those that a record stores."""

import os
import subprocess
import sys
from unittest import mock

import factories
import pytest

from tcbench.analysis import comparability
from tcbench.core import variables
from tcbench.engine.accelerators.cpu.onednn import library
from tcbench.run.worker_launch import worker_environment

PATH = os.environ["PATH"]
KEPT = (
    *("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "OMP_PROC_BIND", "GOMP_CPU_AFFINITY", "KMP_BLOCKTIME", "MKL_CBWR"),
    *("OPENBLAS_CORETYPE", "CUDA_LAUNCH_BLOCKING", "CUDNN_LOGLEVEL_DBG", "CUBLAS_WORKSPACE_CONFIG", "GLIBC_TUNABLES"),
    *("CUBLASLT_WORKSPACE_SIZE", "NVIDIA_TF32_OVERRIDE", "CUPY_TF32", "TORCHINDUCTOR_MAX_AUTOTUNE", "LD_PRELOAD"),
    *("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "PYTORCH_CUDA_ALLOC_CONF", "NCCL_ALGO", "DALI_AFFINITY_MASK", "LD_BIND_NOW"),
    *("OMPI_MCA_btl", "MALLOC_ARENA_MAX", "LD_LIBRARY_PATH", "PYTHONMALLOC", "PYTHONOPTIMIZE", "PYTHONHASHSEED"),
)
LEFT_OUT = (
    *("HOME", "PATH", "NVIDIA_API_KEY", "CUDA_VISIBLE_DEVICES", "CUDA_HOME", "CUPY_CACHE_DIR", "NVIDIA_REQUIRE_CUDA"),
    *("PYTHONPATH", "PYTHON_VERSION", "PYTHONUNBUFFERED", "OMP_NUM_THREADS", "ONEDNN_VERBOSE", "OMPI_COMM_WORLD_RANK"),
)


def test_a_record_keeps_the_variables_by_which_results_may_differ_and_no_others(monkeypatch):
    for name in (*KEPT, *LEFT_OUT):
        monkeypatch.setenv(name, "1")
    stored = variables.recorded(worker_environment(factories.make_cell()))
    assert set(KEPT) <= stored.keys()
    assert not stored.keys() & set(LEFT_OUT)
    monkeypatch.setenv("LD_PRELOAD", os.fsdecode(b"\xff.so"))
    assert variables.recorded(os.environ)["LD_PRELOAD"] == "\ufffd.so"


@pytest.mark.parametrize("prefix", ["ONEDNN", "DNNL"])
def test_float32_is_computed_in_float32_and_nothing_is_printed_for_each_operation(monkeypatch, prefix):
    monkeypatch.setenv(f"{prefix}_DEFAULT_FPMATH_MODE", "BF16")
    monkeypatch.setenv(f"{prefix}_VERBOSE", "1")
    environment = worker_environment(factories.make_cell())
    assert environment[f"{prefix}_DEFAULT_FPMATH_MODE"] == "STRICT"
    assert f"{prefix}_VERBOSE" not in environment


def test_an_empty_entry_of_pythonpath_is_no_folder_of_modules(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", ":/a::/b:")
    assert worker_environment(factories.make_cell())["PYTHONPATH"] == "/a:/b"


@pytest.mark.skipif(library.problem() is not None, reason=str(library.problem()))
@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"])
def test_low_precision_that_onednn_may_not_use_is_emulated(name):
    patch = "machine.cpu_flags = lambda: frozenset(['avx512_bf16', 'amx_bf16', 'avx512_fp16', 'amx_fp16', 'avx2'])"
    program = f"from tcbench.hardware import machine; {patch}; "
    program += "from tcbench.engine.accelerators.cpu.kind import KIND; print(*KIND.devices()[0].instructions)"
    unlimited = {key: text for key, text in os.environ.items() if not key.endswith("_MAX_CPU_ISA")}
    environment = {**unlimited, name: "AVX2"}
    shown = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert shown.stdout.split() == ["avx2"]


@pytest.mark.skipif(library.problem() is not None, reason=str(library.problem()))
def test_to_load_onednn_changes_no_variable_for_other_processes():
    program = "import os; from tcbench.engine.accelerators.cpu.onednn import library; before = dict(os.environ); "
    program += "library.version(); assert dict(os.environ) == before"
    subprocess.run([sys.executable, "-c", program], check=True)


def test_records_with_other_variables_are_not_alike_and_older_ones_say_nothing():
    plain, limited, older = (
        [factories.make_record(environment=factories.make_environment(variables=set_here))]
        for set_here in ({}, {"ONEDNN_MAX_CPU_ISA": "AVX2"}, None)
    )
    values = comparability.values
    (difference,) = comparability.differences(values(plain), values(limited))
    assert (difference.facet, difference.says) == ("variables", "variables: none -> ONEDNN_MAX_CPU_ISA=AVX2")
    assert comparability.differences(values(older), values(limited)) == ()
    (mixed,) = comparability.mixtures([*plain, *limited], values([*plain, *limited]))
    assert mixed == "variables: none, ONEDNN_MAX_CPU_ISA=AVX2"


def test_a_surrounding_job_is_left_behind():
    inside = {
        "SLURM_JOB_ID": "1",
        "SBATCH_TIMELIMIT": "1",
        "SLURMD_NODENAME": "n",
        "SQUEUE_FORMAT": "x",
        "PMI_RANK": "0",
    }
    inside |= {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_RANK": "0", "SINFO_FORMAT": "x", "PMIX_SERVER_URI": "x"}
    stays = {
        "SLURM_CONF": "/etc/slurm.conf",
        "SLURM_JWT": "x",
        "OMPI_MCA_btl": "tcp",
        "PMIX_MCA_gds": "hash",
        "HOME": "/",
    }
    assert variables.outside_jobs(inside | stays) == stays
    with mock.patch.dict(os.environ, inside | stays, clear=True):
        command = [*variables.outside_jobs_command(), sys.executable, "-c", "import os; print(*os.environ)"]
        shown = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "PATH": PATH})
    assert set(shown.stdout.split()) - {"LC_CTYPE"} == {*stays, "PATH"}
