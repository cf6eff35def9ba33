"""A kind of device is one folder: nothing outside it asks for its name, and one that is dropped in is found."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import factories
import numpy as np
import pytest
from training import small_session

import tcbench
from tcbench.engine import accelerators
from tcbench.engine.accelerators import device
from tcbench.engine.backends.chainer.sites import open_site
from tcbench.run import devices

PACKAGE = Path(tcbench.__file__).parent
NAMES = re.compile(r"(?<![a-z])cuda(?![a-z])", re.IGNORECASE)
A_NAME_OF_SOMETHING_ELSE = re.compile(r"cuda_graph|nvidia-dali-cuda1[23]0|driver_cuda")
"""A rung, a distribution, a field of records: not the kind of device."""

ALLOWED = {
    "marks.py": "the libraries in a user's process, whose events it records",
    "engine/measure/marked_steps.py": "PyTorch's call that a message advises",
    "core/variables.py": "the families of environment variables that change a measurement",
    "engine/accelerators/out_of_memory.py": "what libraries say when a GPU's memory is spent",
    "engine/accelerators/virtual/kind.py": "it models that kind's devices",
    "show/options.py": "--device's help, which stands at every start of a command: kinds are not read for it",
    "tracing/nsys_tables.py": "the tables of Nsight Systems' export",
    "tracing/nsys_training.py": "the tables of Nsight Systems' export",
    "tracing/kineto.py": "the categories of PyTorch's profiler",
    "tracing/perfetto.py": "the categories of PyTorch's profiler",
    "tracing/__init__.py": "how to record with PyTorch's profiler",
    "analysis/kernel_names.py": "what kernels are called",
    "analysis/trace_causes.py": "the calls of a trace of any program",
    "show/trace_report.py": "what CUDA graphs are called",
    "commands/report/environment.py": "what a record says of a driver, in its own words",
}
"""Files outside of the folder and of the backends, which name the libraries that they call, and why they may."""


def names_in(path: Path) -> Iterator[str]:
    """Every identifier, module and string of a file but its docstrings; of one that never says cuda none."""
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text if "cuda" in text.lower() else "")
    docstrings = {
        id(inner.value)
        for node in ast.walk(tree)
        for inner in ast.iter_child_nodes(node)
        if isinstance(inner, ast.Expr)
    }
    for node in ast.walk(tree):
        if id(node) in docstrings:
            continue
        for field in ("value", "id", "attr", "arg", "name", "module"):
            if isinstance(value := getattr(node, field, None), str):
                yield value


def test_nothing_outside_its_folder_asks_for_cuda():
    asking = {
        str(path.relative_to(PACKAGE))
        for path in PACKAGE.rglob("*.py")
        if not path.relative_to(PACKAGE).is_relative_to("engine/backends")
        and not path.relative_to(PACKAGE).is_relative_to("engine/feeds")
        and "accelerators/cuda" not in str(path)
        for name in names_in(path)
        if NAMES.search(A_NAME_OF_SOMETHING_ELSE.sub("", name))
    }
    assert asking == set(ALLOWED)


KIND = """
from reference_accelerator import ReferenceAccelerator

from tcbench.engine.accelerators.device import Device, DeviceKind, OpenDevice
from tcbench.core.record import GpuFacts
from tcbench.engine.clock import HostClock
from tcbench.hardware.gpus import GpuProperties


class Abacus(DeviceKind):
    name = "abacus"
    noun = "abacus"
    assumed_flops_s = 1.0

    def devices(self):
        return (Device("abacus:0", "Roman Hand Abacus", 2**30), Device("abacus:1", "Suanpan", 2**30))

    def facts(self, device):
        return GpuFacts("Suanpan", (9, 0), 13, 2**30)

    def open(self, device, settings, threads, host_speed):
        accelerator = ReferenceAccelerator(GpuProperties("Suanpan", 90, 13, 2**30))
        return OpenDevice(accelerator, HostClock(), lambda: 7)


KIND = Abacus()
"""


@pytest.fixture
def abacus(tmp_path, monkeypatch):
    """A folder of one file, as if it lay beside `cuda`."""
    folder = tmp_path / "abacus"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "kind.py").write_text(KIND)
    monkeypatch.setattr(accelerators, "__path__", [*accelerators.__path__, str(tmp_path)])
    device.device_kinds.cache_clear()
    yield
    device.device_kinds.cache_clear()


def expected_of(kinds) -> str:
    *first, last = (kind.selector for kind in kinds.values())
    return f"expected auto, {', '.join(first)} or {last}"


def test_a_kind_that_is_dropped_in_is_found(abacus):
    names = [name for name in device.device_kinds() if name != "cpu"]
    assert list(device.device_kinds()) == ["cpu", *sorted(names)] and "abacus" in names
    assert device.find_device("abacus:1", {"abacus": None}).title == "Suanpan"
    assert device.find_device("auto", {"abacus": None, "cpu": None}).name == "abacus:0"
    assert "abacus:1" in devices.device_selectors()
    assert device.find_device("abacus", {"abacus": None}).machine == "roman-hand-abacus"
    with pytest.raises(device.SelectionError, match=expected_of(device.device_kinds()) + "$"):
        device.find_device("tpu", {})


def test_a_cell_trains_on_a_kind_that_is_dropped_in(abacus):
    site = open_site(factories.make_cell("fp16", device="abacus:1"))
    with small_session("fp16+nhwc", site=site) as session:
        for phase in session.phases:
            phase.run()
        facts = session.facts()
    assert np.isfinite(facts.loss)
    assert (facts.peak_memory_bytes, facts.peak_memory_of) == (7, "device")


def test_a_name_of_no_kind_is_refused_with_those_that_there_are():
    with pytest.raises(device.SelectionError, match=f"device tpu:0: {expected_of(device.device_kinds())}$"):
        device.kind_of("tpu:0")
