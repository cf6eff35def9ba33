"""`tcbench forecast` as a user meets it, with CUDA packages and without."""

import json
import os
import signal
from pathlib import Path

import pytest
from command import finish, start, tcbench
from corpus_inputs import QUICK
from processes import soon

from tcbench.hardware import gpus

WORDS = "forecast quick.toml --bs 2"
V100 = Path(gpus.__file__).parent / "v100.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "quick.toml").write_text(QUICK.replace("[model]", '[model]\nname = "resnet18"'), encoding="utf-8")
    facts = json.loads(V100.read_text())
    (tmp_path / "tiny.json").write_text(json.dumps(facts | {"totalGlobalMem": 2**29, "deviceName": "Tiny"}))
    return tmp_path


def test_a_cell_that_does_not_fit_is_an_answer(folder):
    done = tcbench(folder, *f"{WORDS} --gpu tiny.json --config fp16 --json -q".split())
    assert (done.code, done.err) == (0, "")
    value = json.loads(done.out)
    assert (value["schema"], value["schema_version"]) == ("tcbench-forecast", 1)
    assert value["gpu"]["device_name"] == "Tiny"
    (cell,) = value["cells"]
    assert cell["fits"] is False
    assert cell["arrays_bytes"] < 2**29 < cell["memory_bytes"]


def test_a_second_forecast_takes_what_the_first_has_found(folder):
    first = tcbench(folder, *f"{WORDS} --gpu V100 --json".split())
    assert list((folder / "cache").glob("traces-*/*"))
    second = tcbench(folder, *f"{WORDS} --gpu V100 --json".split())
    assert second.out == first.out


@pytest.mark.slow
def test_an_interrupted_forecast_says_that_it_goes_on_where_it_was(folder):
    words = ("forecast", "quick.toml", "--gpu", "V100", "--bs", ",".join(map(str, range(2, 40))))
    process = start(folder, *words, start_new_session=True)
    assert soon(lambda: [*folder.glob("cache/traces-*/*.plan")] or process.poll() is not None, 600)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    done = finish(process)
    assert (done.code, done.out) == (130, "")
    assert "interrupted; finished work is kept" in done.err
    assert "Traceback" not in done.err


@pytest.mark.long
def test_a_forecast_needs_no_cuda_package(folder):
    blocked = "import sys; [sys.modules.__setitem__(n, None) for n in ('cupy', 'cudnn', 'pynvml', 'torch')]; "
    blocked += "from tcbench.commands import main; main()"
    done = finish(start(folder, *f"{WORDS} --gpu V100 --config fp16 --details".split(), python=("-c", blocked)), code=0)
    assert "Plans: not checked: " in done.out
    assert "Kernels: not compiled: " in done.out
    assert "1 of 1 cells fit into 15.78 GiB." in done.out
