"""`tcbench forecast` as a user meets it, with CUDA packages and without."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path

import pytest
from command import finish, start, tcbench

from tcbench.accelerators.cuda.cudnn import libraries
from tcbench.hardware import gpus

SCENARIO = """
schema = 1
title = "A quick one"
[model]
image_size = 32
classes = 20
[measure]
batch_sizes = [2, 4]
[[config]]
rungs = ["fp16"]
[[config]]
rungs = ["tf32"]
"""

V100 = Path(gpus.__file__).parent / "v100.json"


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "quick.toml").write_text(SCENARIO, encoding="utf-8")
    (tmp_path / "list.json").write_text("[]", encoding="utf-8")
    (tmp_path / "words.json").write_text("no JSON", encoding="utf-8")
    facts = json.loads(V100.read_text())
    (tmp_path / "tiny.json").write_text(json.dumps(facts | {"totalGlobalMem": 2**29, "deviceName": "Tiny"}))
    (tmp_path / "old.json").write_text(json.dumps(facts | {"deviceVer": 600, "deviceName": "Old"}))
    (tmp_path / "short.json").write_text(json.dumps({key: facts[key] for key in facts if key != "smClockRateKHz"}))
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (
            ["--gpu", "H2000"],
            "unknown GPU 'H2000': expected one of V100, T4, A100, L40S, H100, H200, B200, or a JSON file",
        ),
        (["--gpu", "nowhere.json"], "unknown GPU 'nowhere.json'"),
        (["--gpu", "words.json"], "words.json is not JSON"),
        (["--gpu", "list.json"], "list.json: expected a JSON object"),
        (["--gpu", "short.json"], "short.json: smClockRateKHz must be a whole number above 0, not None"),
        (["--gpu", "old.json"], "GPU Old: the peak rates of compute capability 6.0 are not known; expected one of 7.0"),
        (["--gpu", "."], "unknown GPU '.'"),
        (["--gpu", "V100", "--bs", "0"], "--bs: '0' is not a batch size"),
        (["--gpu", "V100", "--config", "fp17"], "--config 'fp17': unknown; did you mean 'fp16'?"),
        (["--gpu", "V100", "--image-size", "31"], "--image-size 31: resnet50 takes images of at least 32 pixels"),
        (["--gpu", "V100", "nowhere"], "scenario 'nowhere': unknown"),
    ],
)
def test_a_mistake_is_one_clear_line_and_exit_code_2(here, arguments, expected):
    scenario = [] if "nowhere" in arguments else ["quick.toml"]
    done = tcbench(here, "forecast", *scenario, *arguments)
    assert done.code == 2, done
    assert expected in done.err
    assert done.err.startswith("tcbench: error: ")
    assert done.err.count("\n") == 1
    assert not done.out


def test_the_gpu_must_be_named(here):
    done = tcbench(here, "forecast")
    assert done.code == 2
    assert "Missing option '--gpu'" in done.err
    assert "Traceback" not in done.err


def test_a_forecast_is_a_table_with_words_for_what_never_runs_there(here):
    done = tcbench(here, "forecast", "quick.toml", "--gpu", "v100", "--details")
    assert done.code == 0, done.err
    for words in (
        "quick on Tesla V100-SXM2-16GB, 32x32 pixels",
        "fp16, batch size 2: launches by host: io 0, forward 177, backward 229, update 591",
        "cuDNN call batch_norm_call_forward",
        "images/s",
        "Cannot run on V100: tf32: needs compute capability 8.0, Tesla V100-SXM2-16GB has 7.0 (tf32)",
        "2 of 2 cells fit into 15.78 GiB.",
        "not a prediction",
    ):
        assert words in done.out
    if libraries.problem():
        assert "Plans: not checked: " in done.out
        assert "uv sync --extra cuda12" in done.out or "libcuda" in done.out


def test_a_cell_that_does_not_fit_is_an_answer(here):
    done = tcbench(
        here, "forecast", "quick.toml", "--gpu", "tiny.json", "--bs", "2", "--config", "fp16", "--json", "-q"
    )
    assert done.code == 0
    assert not done.err
    value = json.loads(done.out)
    assert (value["schema"], value["schema_version"]) == ("tcbench-forecast", 1)
    assert value["gpu"]["device_name"] == "Tiny"
    (cell,) = value["cells"]
    assert cell["fits"] is False
    assert cell["arrays_bytes"] < 2**29 < cell["memory_bytes"]


def test_a_second_forecast_takes_what_the_first_has_found(here):
    first = tcbench(here, "forecast", "quick.toml", "--gpu", "V100", "--bs", "2", "--json")
    assert list((here / "cache").glob("traces-*/*"))
    second = tcbench(here, "forecast", "quick.toml", "--gpu", "V100", "--bs", "2", "--json")
    assert second.out == first.out


@pytest.mark.slow
def test_an_interrupted_forecast_says_that_it_goes_on_where_it_was(here):
    words = ("forecast", "quick.toml", "--gpu", "V100", "--bs", ",".join(map(str, range(2, 40))))
    process = start(here, *words, start_new_session=True)
    deadline = time.monotonic() + 60
    while not list((here / "cache").glob("traces-*/*.plan")) and time.monotonic() < deadline:
        assert process.poll() is None
        time.sleep(0.02)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does: the workers get it too
    done = finish(process)
    assert (done.code, done.out) == (130, "")
    assert "interrupted; what is finished is kept" in done.err
    assert "Traceback" not in done.err


def test_a_forecast_needs_no_cuda_package(here):
    blocked = "import sys; [sys.modules.__setitem__(n, None) for n in ('cupy', 'cudnn', 'pynvml', 'torch')]; "
    blocked += "from tcbench.cli import main; main()"
    words = ("forecast", "quick.toml", "--gpu", "V100", "--bs", "2", "--config", "fp16")
    done = finish(start(here, *words, python=("-c", blocked)))
    assert done.code == 0, done.err
    assert "Plans: not checked: " in done.out
    assert "Kernels: not compiled: " in done.out
    assert "1 of 1 cells fit into 15.78 GiB." in done.out
