"""Every kernel compiles for every architecture that is supported; what was compiled is kept."""

import ctypes
import re
from types import SimpleNamespace

import pytest
from engine.accelerators.cuda.kernels.cases import all_cases
from engine.accelerators.cuda.kernels.on_cpu import KERNEL

from tcbench.engine import work as w
from tcbench.engine.accelerators.cuda.kernels import compile as compiling
from tcbench.engine.accelerators.cuda.kernels import load as loading
from tcbench.engine.accelerators.cuda.kernels.compile import FOLDER, CompileError, compile_kernel, compile_uncached
from tcbench.engine.accelerators.cuda.kernels.launches import launch_of
from tcbench.engine.accelerators.cuda.kernels.load import Kernels

MODULES = sorted({(case.launch.source, case.launch.defines) for case in all_cases()} | {("stall.cu", ())})
ARCHITECTURES = (70, 75, 80, 90, 100, 120)
EXAMPLE = ("mean_loss.cu", (), 90)


@pytest.fixture
def nvrtc():
    from cupy.cuda import nvrtc

    return nvrtc


@pytest.mark.plans
@pytest.mark.parametrize("sm", ARCHITECTURES)
def test_every_kernel_compiles_for_every_architecture(nvrtc, sm, record_property):
    if sm not in nvrtc.getSupportedArchs():
        assert sm == 70, "only CUDA 13 may miss one: sm_70"
        return
    n_kernels = 0
    for source, defines in MODULES:
        kernels = set(KERNEL.findall((FOLDER / source).read_text()))
        n_kernels += len(kernels)
        if "DTYPE=bfloat16" in defines and sm < 80:
            continue
        cubin = compile_uncached(source, defines, sm)
        assert cubin.startswith(b"\x7fELF")
        missing = {kernel for kernel in kernels if f".text.{kernel}\0".encode() not in cubin}
        assert not missing, f"{source} for sm_{sm} lacks {missing}"
    record_property("kernels", n_kernels)
    print(f"\n{n_kernels} kernels of {len(MODULES)} modules compiled for sm_{sm}")


@pytest.mark.plans
def test_float16_moves_by_16_bytes(nvrtc):
    """PTX reads and writes a vector of 8 float16 by one access of four words."""
    name, header = "elementwise.cu", (FOLDER / "common.cuh").read_bytes()
    program = nvrtc.createProgram((FOLDER / name).read_text(), name, (header,), (b"common.cuh",))
    nvrtc.compileProgram(program, ("--gpu-architecture=compute_80", "-DDTYPE=half", "-DCHUNK=16384", "--std=c++17"))
    ptx = nvrtc.getPTX(program)
    nvrtc.destroyProgram(program)
    text = ptx.decode() if isinstance(ptx, bytes) else ptx
    kernel = text[text.index(".entry add_relu(") :].partition("\n}\n")[0]
    assert len(re.findall(r"ld\.global\.v4\.[bu]32", kernel)) == 2
    assert len(re.findall(r"st\.global\.v4\.[bu]32", kernel)) == 1


@pytest.mark.plans
def test_a_refused_source_says_why(nvrtc, monkeypatch):
    monkeypatch.setattr(compiling, "_text", lambda name: "void broken(" if name.endswith(".cu") else "")
    with pytest.raises(CompileError, match=r"(?s)broken\.cu \(A=1\) for sm_90: .*error"):
        compile_uncached("broken.cu", ("A=1",), 90)


@pytest.mark.plans
def test_an_architecture_that_nvrtc_does_not_know_is_named():
    with pytest.raises(CompileError, match="not for sm_30: 'uv sync --extra volta' for GPUs older than sm_75"):
        compile_uncached("mean_loss.cu", (), 30)


@pytest.mark.plans
def test_a_prepared_launch_hands_the_driver_one_parameter_block(monkeypatch, tmp_path):
    import cupy

    calls = []

    def launch_kernel(*arguments):
        *head, parameters, extra = arguments
        pointers = (ctypes.c_void_p * 6).from_address(parameters)
        values = [ctypes.c_int64.from_address(pointer).value for pointer in pointers[:4]]
        values += [ctypes.c_float.from_address(pointer).value for pointer in pointers[4:]]
        calls.append((head, values, extra))

    function = SimpleNamespace(ptr=77)
    module = SimpleNamespace(load=lambda cubin: None, get_function={"momentum_update": function}.__getitem__)
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(loading, "_new_module", lambda: module)
    monkeypatch.setattr(cupy.cuda.driver, "launchKernel", launch_kernel)
    streams = iter([5, 6])
    run = Kernels(90, lambda: next(streams)).prepare(w.MomentumUpdate(3000, 0.5, 0.25))
    run(1 << 40, 2 << 40, 3 << 40)
    run(4 << 40, 5 << 40, 6 << 40)
    head = [77, 3, 1, 1, 256, 1, 1, 0]
    assert calls == [
        ([*head, 5], [1 << 40, 2 << 40, 3 << 40, 3000, 0.5, 0.25], 0),
        ([*head, 6], [4 << 40, 5 << 40, 6 << 40, 3000, 0.5, 0.25], 0),
    ]


@pytest.fixture
def compiled(monkeypatch, tmp_path):
    """The compilations by a fake NVRTC 12.9, whose output is always the same."""
    monkeypatch.setenv("TCBENCH_CACHE", str(tmp_path))
    monkeypatch.setattr(compiling, "_nvrtc_version", lambda: "12.9")
    compilations = []
    monkeypatch.setattr(compiling, "compile_uncached", lambda *module: compilations.append(module) or b"\x7fELF")
    return compilations


def test_what_was_compiled_is_kept(compiled, monkeypatch, tmp_path):
    assert compile_kernel(*EXAMPLE) == compile_kernel(*EXAMPLE) == b"\x7fELF"
    assert len(compiled) == 1
    compile_kernel("mean_loss.cu", (), 80)
    monkeypatch.setattr(compiling, "_nvrtc_version", lambda: "13.0")
    compile_kernel(*EXAMPLE)
    assert len(compiled) == 3, "another architecture and another NVRTC need another cubin"
    assert not list(tmp_path.rglob(".tcbench-*"))


def test_a_module_is_loaded_once(monkeypatch):
    kernels = Kernels(90, int)
    half, _, single = (case.work for case in all_cases() if case.work.name == "relu" and case.work.size == 1)
    loaded = []
    monkeypatch.setattr(loading, "_new_module", lambda: SimpleNamespace(load=loaded.append))
    monkeypatch.setattr(loading, "compile_kernel", lambda *module: module)
    assert kernels.module(launch_of(half)) is kernels.module(launch_of(half))
    assert kernels.module(launch_of(half)) is not kernels.module(launch_of(single))
    assert [defines[0] for _, defines, _ in loaded] == ["DTYPE=half", "DTYPE=float"]
