"""The output of `tcbench list`: GPUs, and rungs on a device."""

import json

from tcbench.commands.list import gpus_table as shown
from tcbench.commands.list import table as catalogue
from tcbench.core.packages import Package
from tcbench.engine.accelerators import peaks
from tcbench.engine.accelerators.cuda import driver, packages
from tcbench.engine.accelerators.cuda.driver import Gpu, Gpus
from tcbench.engine.accelerators.device import Device
from tcbench.hardware import tensor_cores
from tcbench.show.tables import Screen


def test_gpus_that_are_here_are_marked_or_added(monkeypatch, capsys):
    devices = (
        Gpu(0, "NVIDIA H200", (9, 0), 132, 2**37),
        Gpu(1, "NVIDIA A10", (8, 6), 72, 2**34),
        Gpu(2, "NVIDIA A10", (8, 6), 72, 2**34),
        Gpu(3, "Some GPU to come", (19, 0), 1, 2**34),
    )
    monkeypatch.setattr(driver, "gpus", lambda: Gpus(devices, (13, 0)))
    shown.show(as_json=True)
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)["gpus"]}
    assert rows["H200"]["devices"] == ["cuda:0"]
    a10 = rows["NVIDIA A10"]
    assert a10["devices"] == ["cuda:1", "cuda:2"]
    assert (a10["tensor_core_generation"], a10["formats"]["bf16"], a10["formats"]["fp8"]) == (3, True, False)
    assert a10["peak_fp16_flops_s"] is a10["peak_source"] is None
    assert rows["Some GPU to come"]["formats"] is None
    shown.show(as_json=False)
    text = capsys.readouterr().out
    assert "NVIDIA A10 (cuda:1, cuda:2)" in text
    assert "not known" in text


def test_every_known_compute_capability_has_all_of_its_facts():
    capabilities = {capability for generation in tensor_cores._GENERATIONS for capability in generation.capabilities}
    assert {divmod(sm, 10) for sm in peaks._PER_CLOCK} == set(packages._FIRST_CUDA) == capabilities
    for sm, rates in peaks._PER_CLOCK.items():
        cores = tensor_cores.generation_of(divmod(sm, 10))
        assert cores is not None
        assert (rates.tf32 > rates.fp32) == ("tf32" in cores.formats)


def test_a_rung_whose_backend_lacks_its_package_is_not_here(monkeypatch, capsys):
    monkeypatch.setattr(Package, "is_installed", lambda package: package.module != "torch")
    catalogue.show(Device("cpu", "A Processor", 2**34), as_json=True)
    rungs = json.loads(capsys.readouterr().out)["rungs"]
    missing = {(rung["backend"], rung["name"]): rung["missing"] for rung in rungs}
    assert missing["chainer", "nhwc"] is None
    assert missing["torch", "nhwc"] == "needs the package torch: uv pip install torch --torch-backend=cpu"
    assert missing["torch", "tf32"] == "needs cuda"


def test_the_names_of_rungs_are_whole_on_80_columns(monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "make_console", lambda: Screen(width=80))
    catalogue.show(Device("cpu", "A Processor", 2**34), as_json=False)
    words = set(capsys.readouterr().out.split())
    assert words >= {"double_buffering", "torch/fused_optimizer", "flat_allreduce", "accumulation,"}


def test_a_low_precision_that_the_processor_lacks_instructions_for_says_how_it_runs(monkeypatch, capsys):
    monkeypatch.setattr(catalogue, "make_console", lambda: Screen(width=200))
    catalogue.show(Device("cpu", "A Processor", 2**34, instructions=frozenset()), as_json=False)
    lines = {line.split()[0]: line for line in capsys.readouterr().out.splitlines() if line.strip()}
    assert "yes, stored in 16 bits, computed in 32" in lines["fp16"]
    catalogue.show(Device("cpu", "A Processor", 2**34, instructions=frozenset({"amx_fp16"})), as_json=False)
    assert "stored in 16 bits, computed in 32" not in capsys.readouterr().out
