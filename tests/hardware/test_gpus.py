import json
import re

import pytest

from tcbench.core.errors import SelectionError
from tcbench.hardware import gpus


@pytest.mark.parametrize(
    ("name", "sm", "multiprocessors", "memory_gb", "bandwidth_gb_s"),
    [
        # Memory and bandwidth as in NVIDIA's data sheets.
        ("V100", 70, 80, 16, 900),
        ("T4", 75, 40, 16, 320),
        ("A100", 80, 108, 80, 2039),
        ("L40S", 89, 142, 48, 864),
        ("H100", 90, 132, 80, 3350),
        ("H200", 90, 132, 141, 4800),
        ("B200", 100, 148, 180, 7700),
    ],
)
def test_the_gpus_that_come_with_tcbench(name, sm, multiprocessors, memory_gb, bandwidth_gb_s):
    gpu = gpus.load(name)
    assert (gpu.name, gpu.sm, gpu.multiprocessors) == (name, sm, multiprocessors)
    assert name in gpu.device_name
    assert gpu.memory_bytes / 1e9 == pytest.approx(memory_gb, rel=0.08)
    assert gpu.memory_bandwidth_bytes_s / 1e9 == pytest.approx(bandwidth_gb_s, rel=0.03)
    assert 1e9 < gpu.sm_clock_hz < 3e9


def test_names_are_listed_oldest_first_and_known_in_any_case():
    assert gpus.NAMES == ("V100", "T4", "A100", "L40S", "H100", "H200", "B200")
    assert {gpus.load(name).name for name in ("h200", "H200", " h200 ")} == {"H200"}
    gpu = gpus.load("T4").properties()
    assert (gpu.name, gpu.sm, gpu.multiprocessors, gpu.memory_bytes) == ("Tesla T4", 75, 40, 15835660288)


@pytest.fixture
def user_file(tmp_path):
    content = json.loads(gpus.load("H200").json)

    def write(**changes):
        changed = {key: value for key, value in {**content, **changes}.items() if value is not None}
        path = tmp_path / f"gpu{len(list(tmp_path.iterdir()))}.json"
        path.write_text(json.dumps(changed))
        return str(path)

    return write


def test_a_users_file_serves_as_well(user_file):
    gpu = gpus.load(user_file(deviceName="NVIDIA H100", multiProcessorCount=114))
    assert (gpu.name, gpu.device_name, gpu.multiprocessors) == ("NVIDIA H100", "NVIDIA H100", 114)
    assert gpu.digest != gpus.load("H200").digest


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"deviceVer": None}, "deviceVer must be a whole number above 0, not None"),
        ({"multiProcessorCount": 0}, "multiProcessorCount must be a whole number above 0, not 0"),
        ({"totalGlobalMem": "lots"}, "totalGlobalMem must be a whole number above 0, not 'lots'"),
        ({"memoryBusWidth": True}, "memoryBusWidth must be a whole number above 0, not True"),
        ({"deviceName": " "}, "deviceName must be the GPU's name, not ' '"),
        ({"deviceName": None}, "deviceName must be the GPU's name, not None"),
    ],
)
def test_a_file_that_lacks_something_says_what_and_where(user_file, changes, words):
    path = user_file(**changes)
    with pytest.raises(SelectionError) as error:
        gpus.load(path)
    assert f"GPU file {path}: {words}" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"{", " is not JSON"), (b"[1]", ": expected a JSON object"), (b"\xff", " cannot be read (not UTF-8 text)")],
)
def test_a_file_that_is_no_json_object_is_refused(tmp_path, content, words):
    path = tmp_path / "gpu.json"
    path.write_bytes(content)
    with pytest.raises(SelectionError, match=rf"^GPU file {re.escape(str(path) + words)}"):
        gpus.load(str(path))
