"""Every argument of cuDNN's older calls, against a library that writes them down."""

import ctypes
import gc
import shutil
import subprocess
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest

from tcbench.engine.accelerators.cuda.cudnn import calls, libraries
from tcbench.engine.work import BatchNormCallBackward, BatchNormCallForward, Norm, Relu, reserve_bytes

SOURCE = Path(__file__).with_name("recording_cudnn.c")
COMPILER = shutil.which("cc") or shutil.which("gcc")
HANDLE, STREAM, FIRST_ADDRESS = 0x7F01_2345_6780, 0x7F02_2345_6780, 0x7F03_0000_0000
WORKSPACE_BYTES, RESERVE_BYTES = 0x3_0000_0100, 512
"""Above 2^32, as on a GPU: what goes through a C int is seen."""
WORKSPACE = 0x7F04_0000_0000
NORM = Norm(4, 16, 7, 5, "NHWC", "float16")
PLAIN = [
    (Norm(4, 16, 7, 5, layout, dtype), persistent)
    for layout in ("NCHW", "NHWC")
    for dtype in ("float16", "bfloat16", "float32")
    for persistent in (True, False)
    if (layout, dtype, persistent) != ("NHWC", "float16", True)
]


def compile_recorder(folder, *flags):
    if COMPILER is None:
        pytest.skip("no C compiler")
    built = folder / "librecording_cudnn.so"
    command = [COMPILER, "-Wall", "-Wextra", "-Werror", *flags, "-shared", "-fPIC", str(SOURCE), "-o", str(built)]
    subprocess.run(command, check=True)
    return built


class Recorder:
    def __init__(self, path):
        self.raw = ctypes.CDLL(str(path))
        self.raw.recorded.restype = ctypes.c_char_p
        self.raw.set_sizes.argtypes = [ctypes.c_size_t, ctypes.c_size_t]
        self.library = calls.Library(self.raw)

    def take(self):
        """Return the calls since the last time: [(name, {argument: value})]."""
        lines = self.raw.recorded().decode().splitlines()
        self.raw.forget()
        return [
            (name, dict(argument.split("=") for argument in arguments))
            for name, *arguments in (line.split() for line in lines)
        ]

    def run(self, work, workspace=WORKSPACE):
        """Prepares the work and runs it; what the run itself called, with the address of each operand."""
        call, _ = calls.prepare_call(work, HANDLE, self.library)
        self.take()
        addresses = {operand.name: FIRST_ADDRESS + 256 * index for index, operand in enumerate(work.operands)}
        call(list(addresses.values()), workspace)
        [(name, arguments)] = self.take()
        return name, arguments, {name: str(address) for name, address in addresses.items()}


@pytest.fixture(scope="session")
def recorder_path(tmp_path_factory):
    return compile_recorder(tmp_path_factory.mktemp("recorder"))


@pytest.fixture
def recorder(recorder_path):
    recorder = Recorder(recorder_path)
    recorder.raw.forget()
    recorder.raw.set_sizes(WORKSPACE_BYTES, RESERVE_BYTES)
    yield recorder
    gc.collect()


_EPSILON = "epsilon=eps savedMean=mean savedInvVariance=inv_std"
_FOLLOWING = "exponentialAverageFactor=momentum resultRunningMean=running_mean resultRunningVariance=running_var"
_SAVED = f"{_FOLLOWING} epsilon=eps resultSaveMean=mean resultSaveInvVariance=inv_std"
_MEMORY = "activation workspace workSpaceSizeInBytes=workspace_bytes reserveSpace=reserve reserveSpaceSizeInBytes"
_DIFF = "alphaDataDiff=one betaDataDiff=zero alphaParamDiff=one betaParamDiff=zero"
FORWARD, BACKWARD = "cudnnBatchNormalizationForwardTraining", "cudnnBatchNormalizationBackward"
RESERVE_SIZE = "cudnnGetBatchNormalizationTrainingExReserveSpaceSize"
FORWARD_SIZE = "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize"
BACKWARD_SIZE = "cudnnGetBatchNormalizationBackwardExWorkspaceSize"
ARGUMENTS = {
    FORWARD: "handle mode alpha=one beta=zero xDesc=maps x yDesc=maps y "
    f"bnScaleBiasMeanVarDesc=vectors bnScale=gamma bnBias=beta {_SAVED}",
    f"{FORWARD}Ex": "handle mode bnOps alpha=one beta=zero xDesc=maps xData=x zDesc=added_maps zData=residual "
    f"yDesc=maps yData=y bnScaleBiasMeanVarDesc=vectors bnScale=gamma bnBias=beta {_SAVED} {_MEMORY}",
    BACKWARD: f"handle mode {_DIFF} xDesc=maps x dyDesc=maps dy=gy dxDesc=maps dx=gx dBnScaleBiasDesc=vectors "
    f"bnScale=gamma dBnScaleResult=ggamma dBnBiasResult=gbeta {_EPSILON}",
    f"{BACKWARD}Ex": f"handle mode bnOps {_DIFF} xDesc=maps xData=x yDesc=relu_maps yData=y dyDesc=maps dyData=gy "
    "dzDesc=added_maps dzData=gresidual dxDesc=maps dxData=gx dBnScaleBiasDesc=vectors bnScaleData=gamma "
    f"bnBiasData=beta dBnScaleData=ggamma dBnBiasData=gbeta {_EPSILON} {_MEMORY}",
    RESERVE_SIZE: "handle mode bnOps activation xDesc=maps",
    FORWARD_SIZE: "handle mode bnOps xDesc=maps zDesc=added_maps yDesc=maps bnScaleBiasMeanVarDesc=vectors activation",
    BACKWARD_SIZE: "handle mode bnOps xDesc=maps yDesc=maps dyDesc=maps dzDesc=added_maps dxDesc=maps "
    "dBnScaleBiasDesc=vectors activation",
}
"""cuDNN's arguments of each call by their names in its header, and what each is to be where that has another name."""


def expected(name, work, addresses):
    """Return a call's expected arguments for operands at these addresses; missing operands are null."""
    norm = work.norm
    kind = {"float16": "half", "bfloat16": "bfloat16", "float32": "float"}[norm.dtype]
    maps = f"{kind}:{norm.layout}:{norm.n}x{norm.c}x{norm.h}x{norm.w}"
    values = {
        "handle": str(HANDLE),
        "mode": "2" if work.persistent else "1",
        "bnOps": {"none": "0", "relu": "1", "add_relu": "2"}[norm.after],
        "one": "1",
        "zero": "0",
        "maps": maps,
        "added_maps": maps if norm.add else "none",
        "relu_maps": maps if norm.relu else "none",
        "vectors": "float:NCHW:1x16x1x1",
        "momentum": "0.10000000000000001",
        "eps": "2.0000000000000002e-05",
        "activation": "1:1:0" if norm.relu else "none",
        "workspace": str(WORKSPACE),
        "workspace_bytes": str(WORKSPACE_BYTES + (name == f"{BACKWARD}Ex")),
        "reserveSpaceSizeInBytes": str(RESERVE_BYTES) if norm.relu else "0",
        **addresses,
    }
    pairs = (argument.partition("=") for argument in ARGUMENTS[name].split())
    return {argument: values.get(meant or argument, "0") for argument, _, meant in pairs}


def both(norm, persistent=True):
    return BatchNormCallForward(norm, 2e-5, 0.1, persistent), BatchNormCallBackward(norm, 2e-5, persistent)


@pytest.mark.parametrize(("norm", "persistent"), PLAIN, ids=str)
def test_of_most_settings_the_plain_calls_get_every_argument(recorder, norm, persistent):
    for work, call in zip(both(norm, persistent), (FORWARD, BACKWARD), strict=True):
        name, arguments, addresses = recorder.run(work)
        assert (name, arguments) == (call, expected(call, work, addresses))


@pytest.mark.parametrize("after", ["none", "relu", "add_relu"])
def test_half_precision_nhwc_goes_through_the_extended_calls_whatever_follows(recorder, after):
    norm = replace(NORM, after=after)
    recorder.raw.set_sizes(WORKSPACE_BYTES, RESERVE_BYTES if norm.relu else 0)
    for work, call in zip(both(norm), (f"{FORWARD}Ex", f"{BACKWARD}Ex"), strict=True):
        name, arguments, addresses = recorder.run(work)
        assert (name, arguments) == (call, expected(call, work, addresses))


@pytest.mark.parametrize("after", ["none", "relu", "add_relu"])
def test_sizes_are_asked_once_for_the_same_setting(recorder, after):
    norm = replace(NORM, after=after)
    recorder.raw.set_sizes(WORKSPACE_BYTES, RESERVE_BYTES if norm.relu else 0)
    for more, (work, size) in enumerate(zip(both(norm), (FORWARD_SIZE, BACKWARD_SIZE), strict=True)):
        _, workspace_bytes = calls.prepare_call(work, HANDLE, recorder.library)
        assert workspace_bytes == WORKSPACE_BYTES + more
        assert recorder.take() == [(name, expected(name, work, {})) for name in (RESERVE_SIZE, size)]


def test_a_plain_call_needs_no_workspace(recorder):
    _, workspace_bytes = calls.prepare_call(BatchNormCallForward(NORM, 2e-5, 0.1, False), HANDLE, recorder.library)
    assert workspace_bytes == 0


@pytest.mark.parametrize(("work", "plain"), list(zip(both(NORM), (FORWARD, BACKWARD), strict=True)))
def test_where_cudnn_would_keep_something_without_relu_the_plain_call_serves(recorder, work, plain):
    recorder.raw.set_sizes(WORKSPACE_BYTES, 1)
    assert recorder.run(work)[0] == plain


def test_reserve_space_has_room_for_the_whole_tiles_of_few_channels(recorder):
    norm = Norm(64, 16, 56, 56, "NHWC", "float16", "relu")
    needed = 64 * 56 * 56 * 64 // 8 + 1024
    recorder.raw.set_sizes(0, needed)
    for work in both(norm):
        assert recorder.run(work)[1]["reserveSpaceSizeInBytes"] == str(needed)


def test_more_reserve_space_than_the_operand_has_is_an_error_not_an_overrun(recorder, monkeypatch):
    monkeypatch.setattr(libraries, "version", lambda: "9.28.0")
    norm = replace(NORM, after="relu")
    recorder.raw.set_sizes(0, reserve_bytes(norm))
    calls.prepare_call(BatchNormCallForward(norm, 2e-5, 0.1, True), HANDLE, recorder.library)
    recorder.raw.set_sizes(0, reserve_bytes(norm) + 1)
    with pytest.raises(calls.CallError, match=f"needs {reserve_bytes(norm) + 1} bytes of reserve space"):
        calls.prepare_call(BatchNormCallForward(norm, 2e-5, 0.1, True), HANDLE, recorder.library)


def test_a_reserve_space_of_many_gigabytes_is_told_in_full(recorder):
    norm = replace(NORM, n=1 << 14, c=1024, h=112, w=112, after="relu")
    assert reserve_bytes(norm) > 1 << 34
    recorder.raw.set_sizes(0, reserve_bytes(norm))
    _, arguments, _ = recorder.run(BatchNormCallForward(norm, 2e-5, 0.1, True))
    assert arguments["reserveSpaceSizeInBytes"] == str(reserve_bytes(norm))


@pytest.mark.parametrize(
    ("change", "persistent"), [({"layout": "NCHW"}, True), ({"dtype": "float32"}, True), ({}, False)]
)
def test_relu_is_fused_for_half_precision_nhwc_and_persistent_only(recorder, change, persistent):
    norm = replace(NORM, after="relu", **change)
    with pytest.raises(ValueError, match="persistent mode only"):
        calls.prepare_call(BatchNormCallForward(norm, 2e-5, 0.1, persistent), HANDLE, recorder.library)


def test_a_kernels_work_is_no_call(recorder):
    with pytest.raises(ValueError, match="relu is not one of"):
        calls.prepare_call(Relu(8, "float16"), HANDLE, recorder.library)


@pytest.mark.parametrize("after", ["none", "add_relu"])
def test_a_refusal_names_the_call_and_cudnns_reason_in_one_line(recorder, after):
    work = BatchNormCallForward(replace(NORM, after=after), 2e-5, 0.1, True)
    call, _ = calls.prepare_call(work, HANDLE, recorder.library)
    recorder.raw.fail_next(5)
    with pytest.raises(calls.CallError) as refused:
        call([0] * len(work.operands), 0)
    name = "cudnnBatchNormalizationForwardTraining" + ("" if after == "none" else "Ex")
    assert str(refused.value) == f"{name}: CUDNN_STATUS_MADE_UP (as the test wished)"


def test_descriptors_live_as_long_as_the_call(recorder):
    gc.collect()
    before = recorder.raw.descriptors_alive()
    call, _ = calls.prepare_call(
        BatchNormCallForward(replace(NORM, after="relu"), 2e-5, 0.1, True), HANDLE, recorder.library
    )
    gc.collect()
    assert recorder.raw.descriptors_alive() == before + 3
    del call
    gc.collect()
    assert recorder.raw.descriptors_alive() == before


@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("after", ["none", "relu", "add_relu"])
def test_a_wrong_number_of_addresses_is_refused(recorder, after, wrong):
    for work in both(replace(NORM, after=after)):
        call, _ = calls.prepare_call(work, HANDLE, recorder.library)
        recorder.take()
        with pytest.raises(ValueError, match=f"expected {len(work.operands)} addresses"):
            call([0] * (len(work.operands) + wrong), 0)
        assert recorder.take() == []


def test_a_handle_is_made_bound_to_a_stream(recorder):
    assert calls.new_handle(STREAM, recorder.library) == HANDLE
    assert recorder.take() == [("cudnnCreate", {}), ("cudnnSetStream", {"handle": str(HANDLE), "stream": str(STREAM)})]


@pytest.mark.plans
def test_the_recording_library_has_the_orders_types_and_numbers_of_nvidias_header(tmp_path):
    """A parameter that stands elsewhere in cudnn_ops.h is a conflicting type, which does not compile."""
    spec = find_spec("nvidia")
    headers = [
        folder
        for place in (spec.submodule_search_locations or () if spec else ())
        for folder in Path(place).glob("cudnn/include")
    ]
    if not headers:
        pytest.skip("the cuDNN wheel is not installed")
    # The header asks for CUDA's, of which it needs three names.
    (tmp_path / "cuda_runtime_api.h").write_text(
        "typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUgraph_st *cudaGraph_t;\n"
    )
    (tmp_path / "library_types.h").write_text("typedef int libraryPropertyType;\n")
    compile_recorder(
        tmp_path,
        "-DWITH_CUDNN_HEADER",
        "-Wno-deprecated-declarations",
        f"-I{tmp_path}",
        *(f"-isystem{folder}" for folder in headers),
    )


@pytest.mark.plans
def test_the_installed_cudnn_exports_every_call(real_cudnn):
    lib = calls.library()
    for name in calls._SIGNATURES:
        assert lib.bare(name).restype is ctypes.c_int
