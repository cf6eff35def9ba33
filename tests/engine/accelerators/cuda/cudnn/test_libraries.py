import ctypes
import importlib.metadata
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from tcbench.engine.accelerators.cuda.cudnn import libraries, plans

CACHED = [function for function in vars(libraries).values() if hasattr(function, "cache_clear")]


@pytest.fixture(autouse=True)
def asked_anew():
    for function in CACHED:
        function.cache_clear()
    yield
    for function in CACHED:
        function.cache_clear()


class World:
    """The installed files, packages and libraries. `opened`: the libraries loaded so far, in order."""

    def __init__(self, root):
        self.root = root
        self.opened = []
        self.system = set()
        self.packages = {}

    def wheel(self, folder, *names):
        (self.root / "nvidia" / folder / "lib").mkdir(parents=True, exist_ok=True)
        for name in names:
            (self.root / "nvidia" / folder / "lib" / name).touch()

    def open(self, name, mode=0):
        if "/" not in name and name not in self.system:
            raise OSError(f"{name}: cannot open shared object file")
        assert mode == ctypes.RTLD_GLOBAL
        self.opened.append(name.removeprefix(f"{self.root}/"))

        def nvrtc_version(major, minor):
            major._obj.value, minor._obj.value = int(name.rpartition(".")[2]), 9

        return types.SimpleNamespace(cudnnGetVersion=lambda: 92800, nvrtcVersion=nvrtc_version)

    def version(self, package):
        if package not in self.packages:
            raise importlib.metadata.PackageNotFoundError(package)
        return self.packages[package]


@pytest.fixture
def world(tmp_path, monkeypatch):
    world = World(tmp_path)
    spec = types.SimpleNamespace(submodule_search_locations=[str(tmp_path / "nvidia")])
    monkeypatch.setattr(libraries.importlib.util, "find_spec", lambda name: spec)
    monkeypatch.setattr(libraries.pkgutil, "extend_path", lambda path, name: path)
    monkeypatch.setattr(libraries.importlib.metadata, "version", world.version)
    monkeypatch.setattr(libraries.ctypes, "CDLL", world.open)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    # What is set meanwhile goes afterwards.
    monkeypatch.setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", "")
    monkeypatch.delenv("CUDNN_FRONTEND_CUDART_LIB_NAME")
    return world


@pytest.fixture
def cuda12(world):
    world.wheel("cudnn", "libcudnn.so.9")
    world.wheel("cublas", "libcublas.so.12", "libcublasLt.so.12")
    world.wheel("cuda_nvrtc", "libnvrtc.so.12")
    world.wheel("cuda_runtime", "libcudart.so.12")
    world.packages = {"nvidia-cudnn-cu12": "9.28.0.1", "nvidia-cudnn-frontend": "1.32.0"}
    world.system = {"libcuda.so.1"}
    return world


def test_libraries_are_found_beside_a_wheel_in_another_folder_that_makes_nvidia_a_package_of_its_own(
    tmp_path, monkeypatch
):
    """The wheel of nvImageCodec, used by DALI, is such a package. `pip install --target` separates it from cuDNN."""
    for place in ("carried/nvidia/cu13/lib", "installed/nvidia/cudnn/lib"):
        (tmp_path / place).mkdir(parents=True)
    (tmp_path / "carried/nvidia/__init__.py").touch()
    monkeypatch.delitem(sys.modules, "nvidia", raising=False)
    for place in ("installed", "carried"):
        monkeypatch.syspath_prepend(tmp_path / place)
    names = [folder.relative_to(tmp_path).parts[0] for folder in libraries.folders() if tmp_path in folder.parents]
    assert names == ["carried", "installed"]


def test_the_wheels_of_cuda_12_lie_in_a_folder_each(cuda12):
    libraries.cudnn_library()
    assert cuda12.opened == [
        "nvidia/cudnn/lib/libcudnn.so.9",
        "nvidia/cuda_runtime/lib/libcudart.so.12",
        "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        "nvidia/cublas/lib/libcublasLt.so.12",
        "nvidia/cublas/lib/libcublas.so.12",
    ]


def test_the_wheels_of_cuda_13_share_a_folder(world):
    world.wheel("cudnn", "libcudnn.so.9")
    world.wheel("cu13", "libcublas.so.13", "libcublasLt.so.13", "libnvrtc.so.13", "libcudart.so.13")
    # Of these, those of NVRTC's own CUDA come before it, since the wheels of CUDA 13.0 have no run path.
    world.wheel("cu13", "libnvrtc-builtins.so.13.0", "libnvrtc-builtins.alt.so.13.0", "libnvrtc-builtins.so.12.9")
    world.packages = {"nvidia-cudnn-cu13": "9.28.0.1"}
    libraries.cudnn_library()
    assert [name.rpartition("/")[2] for name in world.opened] == [
        "libcudnn.so.9",
        "libcudart.so.13",
        "libnvrtc-builtins.so.13.0",
        "libnvrtc.so.13",
        "libcublasLt.so.13",
        "libcublas.so.13",
    ]


def test_libraries_of_the_system_serve_where_there_are_no_wheels(world):
    world.system = {"libcudnn.so.9", "libcudart.so.13", "libnvrtc.so.13", "libcublasLt.so.13", "libcublas.so.13"}
    libraries.cudnn_library()
    assert set(world.opened) == world.system


def test_a_folder_named_by_the_user_comes_first(cuda12, monkeypatch, tmp_path):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "libcudnn.so.9").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/nowhere::{mine}")
    libraries.cudnn_library()
    assert cuda12.opened[0] == "mine/libcudnn.so.9"


def test_the_frontend_is_told_which_runtime_was_loaded_unless_the_user_says_so(cuda12, monkeypatch):
    cuda12.system.add("libcudart.so.13")
    libraries.cudnn_library()
    assert os.environ["CUDNN_FRONTEND_CUDART_LIB_NAME"] == "libcudart.so.12"
    monkeypatch.setenv("CUDNN_FRONTEND_CUDART_LIB_NAME", "mine.so")
    libraries.cudnn_library.cache_clear()
    libraries.cudnn_library()
    assert os.environ["CUDNN_FRONTEND_CUDART_LIB_NAME"] == "mine.so"


def test_of_two_runtimes_none_is_named_where_it_is_not_known_which_cudnn_was_made_for(world):
    names = ("libcudart", "libnvrtc", "libcublasLt", "libcublas")
    world.system = {"libcudnn.so.9", *(f"{name}.so.{major}" for name in names for major in (12, 13))}
    libraries.cudnn_library()
    assert "CUDNN_FRONTEND_CUDART_LIB_NAME" not in os.environ
    assert libraries.nvrtc_version() == "12.9, 13.9"


@pytest.mark.parametrize(
    ("missing", "subject"),
    [
        ("cudnn/lib/libcudnn.so.9", "cuDNN 9 (libcudnn.so.9)"),
        ("cuda_runtime/lib/libcudart.so.12", "the CUDA runtime (libcudart.so.12)"),
        ("cuda_nvrtc/lib/libnvrtc.so.12", "NVRTC (libnvrtc.so.12)"),
        ("cublas/lib/libcublasLt.so.12", "cuBLASLt (libcublasLt.so.12)"),
        ("cublas/lib/libcublas.so.12", "cuBLAS (libcublas.so.12)"),
    ],
)
def test_what_is_missing_is_named_with_the_command_that_mends_it(cuda12, missing, subject):
    (cuda12.root / "nvidia" / missing).unlink()
    problem = libraries.problem()
    assert problem is not None
    assert problem.startswith(subject)
    assert "was not found" in problem
    assert "uv sync --extra cuda12" in problem
    assert "\n" not in problem


def test_without_any_package_the_first_thing_named_is_cudnn(world):
    assert (libraries.problem() or "").startswith("cuDNN 9 (libcudnn.so.9) was not found")


def test_a_missing_driver_is_said_with_what_mends_it(cuda12):
    cuda12.system.clear()
    assert all(name in (libraries.problem() or "") for name in ("libcuda.so.1", "libcuda1"))


@pytest.mark.parametrize(
    ("version", "module", "message"),
    [
        (None, None, "cuDNN's frontend (nvidia-cudnn-frontend) is not installed"),
        ("1.14.0", "too old", "cuDNN's frontend 1.14.0 lacks _execute_with_raw_ptrs, expected 1.32 or newer"),
        ("1.32.0", None, "cuDNN's frontend 1.32.0 cannot be imported"),
    ],
)
def test_a_frontend_that_cannot_serve_is_said(cuda12, monkeypatch, version, module, message):
    cuda12.packages["nvidia-cudnn-frontend"] = version
    if version is None:
        del cuda12.packages["nvidia-cudnn-frontend"]
    old = types.SimpleNamespace(pygraph=type("Graph", (), {"serialize": 0}))
    monkeypatch.setitem(sys.modules, "cudnn", old if module else None)
    assert (libraries.problem() or "").startswith(message)


def test_every_private_call_of_the_graph_is_asked_for_before_it_is_needed():
    """The frontend promises nothing of these from one version to the next."""
    source = Path(plans.__file__).read_text()
    called = set(re.findall(r"\bgraph\.(_\w+)", source))
    assert called
    assert called <= set(libraries._NEEDED)


def test_the_versions_are_asked_of_the_libraries(cuda12):
    assert (libraries.version(), libraries.nvrtc_version()) == ("9.28.0", "12.9")


def test_importing_any_of_it_needs_neither_cudnn_nor_cupy():
    code = (
        "import sys\n"
        "for name in ('cudnn', 'cupy', 'chainer', 'nvidia', 'pynvml'): sys.modules[name] = None\n"
        "from tcbench.engine.accelerators.cuda import driver, nvml, packages\n"
        "from tcbench.engine.accelerators.cuda.cudnn import absent, autotune, calls, graphs, libraries, plans"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


_ASK_FOR_THE_RUNTIME = """
import ctypes, sys
for name in ("libcudart.so.12", "libcudart.so.13"):
    try:
        ctypes.CDLL(name)
    except OSError:
        continue
    sys.exit(f"{name} is not hidden")
from tcbench.engine.accelerators.cuda.cudnn import libraries
cudnn = libraries.frontend()
half, single = cudnn.data_type.HALF, cudnn.data_type.FLOAT
graph = libraries.graph_class(cudnn)(
    io_data_type=half, intermediate_data_type=single, compute_data_type=single
)
q, k, v = (graph.tensor(dim=[1, 1, 64, 64], stride=[4096, 4096, 64, 1], data_type=half) for _ in range(3))
out, _ = graph.sdpa(q=q, k=k, v=v, attn_scale=0.1, is_inference=True)
out.set_output(True).set_dim([1, 1, 64, 64]).set_stride([4096, 4096, 64, 1])
try:
    graph.validate()
except RuntimeError as error:
    print(error)
"""


@pytest.mark.plans
def test_without_a_toolkit_the_frontend_finds_the_runtime_that_the_wheels_bring(real_cudnn, tmp_path):
    """Attention, of all that the frontend does without a GPU, calls the CUDA runtime: cudaGetDevice, which fails here.
    A step's batch normalisations call it whenever they run. An empty file of a library's name hides the system's."""
    for major in (12, 13):
        (tmp_path / f"libcudart.so.{major}").touch()
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path)}
    environment.pop("CUDNN_FRONTEND_CUDART_LIB_NAME", None)
    command = [sys.executable, "-c", _ASK_FOR_THE_RUNTIME]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
    assert (done.returncode, done.stderr) == (0, "")
    assert not done.stdout or "cuda_get_device" in done.stdout
