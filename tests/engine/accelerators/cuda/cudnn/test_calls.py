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
EXTENDED = [("none", "0"), ("relu", "1"), ("add_relu", "2")]

needs_compiler = pytest.mark.skipif(COMPILER is None, reason="no C compiler")


def compile_recorder(folder, *flags):
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
        """What was called since last asked: [(name, {argument: value})]."""
        lines = self.raw.recorded().decode().splitlines()
        self.raw.forget()
        return [
            (name, dict(argument.split("=") for argument in arguments))
            for name, *arguments in (line.split() for line in lines)
        ]

    def run(self, work, workspace=WORKSPACE):
        """Prepares the work and runs it; what the run itself called, with the address of each operand."""
        call = calls.prepare_call(work, HANDLE, self.library)
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


def described(norm):
    kind = {"float16": "half", "bfloat16": "bfloat16", "float32": "float"}[norm.dtype]
    return f"{kind}:{norm.layout}:{norm.n}x{norm.c}x{norm.h}x{norm.w}"


VECTORS = "float:NCHW:1x16x1x1"


@needs_compiler
@pytest.mark.parametrize(("norm", "persistent"), PLAIN, ids=str)
def test_forward(recorder, norm, persistent):
    name, arguments, at = recorder.run(BatchNormCallForward(norm, 2e-5, 0.1, persistent))
    assert name == "cudnnBatchNormalizationForwardTraining"
    assert arguments == {
        "handle": str(HANDLE),
        "mode": "2" if persistent else "1",
        "alpha": "1",
        "beta": "0",
        "xDesc": described(norm),
        "x": at["x"],
        "yDesc": described(norm),
        "y": at["y"],
        "bnScaleBiasMeanVarDesc": VECTORS,
        "bnScale": at["gamma"],
        "bnBias": at["beta"],
        "exponentialAverageFactor": "0.10000000000000001",
        "resultRunningMean": at["running_mean"],
        "resultRunningVariance": at["running_var"],
        "epsilon": "2.0000000000000002e-05",
        "resultSaveMean": at["mean"],
        "resultSaveInvVariance": at["inv_std"],
    }


@needs_compiler
@pytest.mark.parametrize(("norm", "persistent"), PLAIN, ids=str)
def test_backward(recorder, norm, persistent):
    name, arguments, at = recorder.run(BatchNormCallBackward(norm, 2e-5, persistent))
    assert name == "cudnnBatchNormalizationBackward"
    assert arguments == {
        "handle": str(HANDLE),
        "mode": "2" if persistent else "1",
        "alphaDataDiff": "1",
        "betaDataDiff": "0",
        "alphaParamDiff": "1",
        "betaParamDiff": "0",
        "xDesc": described(norm),
        "x": at["x"],
        "dyDesc": described(norm),
        "dy": at["gy"],
        "dxDesc": described(norm),
        "dx": at["gx"],
        "dBnScaleBiasDesc": VECTORS,
        "bnScale": at["gamma"],
        "dBnScaleResult": at["ggamma"],
        "dBnBiasResult": at["gbeta"],
        "epsilon": "2.0000000000000002e-05",
        "savedMean": at["mean"],
        "savedInvVariance": at["inv_std"],
    }


@needs_compiler
@pytest.mark.parametrize("work", [BatchNormCallForward(NORM, 2e-5, 0.1, True), BatchNormCallBackward(NORM, 2e-5, True)])
def test_the_talks_fast_mode_is_the_persistent_one(recorder, work):
    assert recorder.run(work)[1]["mode"] == "2"
    assert recorder.run(replace(work, persistent=False))[1]["mode"] == "1"


@needs_compiler
@pytest.mark.parametrize(("after", "ops"), EXTENDED)
def test_half_precision_nhwc_goes_forward_through_the_extended_call_whatever_follows(recorder, after, ops):
    norm = replace(NORM, after=after)
    if not norm.relu:
        recorder.raw.set_sizes(WORKSPACE_BYTES, 0)
    name, arguments, at = recorder.run(BatchNormCallForward(norm, 2e-5, 0.1, True))
    assert name == "cudnnBatchNormalizationForwardTrainingEx"
    assert arguments == {
        "handle": str(HANDLE),
        "mode": "2",
        "bnOps": ops,
        "alpha": "1",
        "beta": "0",
        "xDesc": described(norm),
        "xData": at["x"],
        "zDesc": described(norm) if norm.add else "none",
        "zData": at["residual"] if norm.add else "0",
        "yDesc": described(norm),
        "yData": at["y"],
        "bnScaleBiasMeanVarDesc": VECTORS,
        "bnScale": at["gamma"],
        "bnBias": at["beta"],
        "exponentialAverageFactor": "0.10000000000000001",
        "resultRunningMean": at["running_mean"],
        "resultRunningVariance": at["running_var"],
        "epsilon": "2.0000000000000002e-05",
        "resultSaveMean": at["mean"],
        "resultSaveInvVariance": at["inv_std"],
        "activation": "1:1:0" if norm.relu else "none",
        "workspace": str(WORKSPACE),
        "workSpaceSizeInBytes": str(WORKSPACE_BYTES),
        "reserveSpace": at["reserve"] if norm.relu else "0",
        "reserveSpaceSizeInBytes": str(RESERVE_BYTES) if norm.relu else "0",
    }


@needs_compiler
@pytest.mark.parametrize(("after", "ops"), EXTENDED)
def test_half_precision_nhwc_goes_backward_through_the_extended_call_whatever_follows(recorder, after, ops):
    norm = replace(NORM, after=after)
    if not norm.relu:
        recorder.raw.set_sizes(WORKSPACE_BYTES, 0)
    name, arguments, at = recorder.run(BatchNormCallBackward(norm, 2e-5, True))
    assert name == "cudnnBatchNormalizationBackwardEx"
    assert arguments == {
        "handle": str(HANDLE),
        "mode": "2",
        "bnOps": ops,
        "alphaDataDiff": "1",
        "betaDataDiff": "0",
        "alphaParamDiff": "1",
        "betaParamDiff": "0",
        "xDesc": described(norm),
        "xData": at["x"],
        "yDesc": described(norm) if norm.relu else "none",
        "yData": at["y"] if norm.relu else "0",
        "dyDesc": described(norm),
        "dyData": at["gy"],
        "dzDesc": described(norm) if norm.add else "none",
        "dzData": at["gresidual"] if norm.add else "0",
        "dxDesc": described(norm),
        "dxData": at["gx"],
        "dBnScaleBiasDesc": VECTORS,
        "bnScaleData": at["gamma"],
        "bnBiasData": at["beta"] if norm.relu else "0",
        "dBnScaleData": at["ggamma"],
        "dBnBiasData": at["gbeta"],
        "epsilon": "2.0000000000000002e-05",
        "savedMean": at["mean"],
        "savedInvVariance": at["inv_std"],
        "activation": "1:1:0" if norm.relu else "none",
        "workspace": str(WORKSPACE),
        "workSpaceSizeInBytes": str(WORKSPACE_BYTES + 1),
        "reserveSpace": at["reserve"] if norm.relu else "0",
        "reserveSpaceSizeInBytes": str(RESERVE_BYTES) if norm.relu else "0",
    }


@needs_compiler
@pytest.mark.parametrize(("after", "ops"), EXTENDED)
def test_sizes_are_asked_once_for_the_same_setting(recorder, after, ops):
    norm = replace(NORM, after=after)
    activation = "1:1:0" if norm.relu else "none"
    if not norm.relu:
        recorder.raw.set_sizes(WORKSPACE_BYTES, 0)
    z = described(norm) if norm.add else "none"
    shared = {"handle": str(HANDLE), "mode": "2", "bnOps": ops}
    reserve = (
        "cudnnGetBatchNormalizationTrainingExReserveSpaceSize",
        {**shared, "activation": activation, "xDesc": described(norm)},
    )
    forward = calls.prepare_call(BatchNormCallForward(norm, 2e-5, 0.1, True), HANDLE, recorder.library)
    assert forward.workspace_bytes == WORKSPACE_BYTES
    assert recorder.take() == [
        reserve,
        (
            "cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize",
            {
                **shared,
                "xDesc": described(norm),
                "zDesc": z,
                "yDesc": described(norm),
                "bnScaleBiasMeanVarDesc": VECTORS,
                "activation": activation,
            },
        ),
    ]
    backward = calls.prepare_call(BatchNormCallBackward(norm, 2e-5, True), HANDLE, recorder.library)
    assert backward.workspace_bytes == WORKSPACE_BYTES + 1
    assert recorder.take() == [
        reserve,
        (
            "cudnnGetBatchNormalizationBackwardExWorkspaceSize",
            {
                **shared,
                "xDesc": described(norm),
                "yDesc": described(norm),
                "dyDesc": described(norm),
                "dzDesc": z,
                "dxDesc": described(norm),
                "dBnScaleBiasDesc": VECTORS,
                "activation": activation,
            },
        ),
    ]


@needs_compiler
def test_a_plain_call_needs_no_workspace(recorder):
    call = calls.prepare_call(BatchNormCallForward(NORM, 2e-5, 0.1, False), HANDLE, recorder.library)
    assert call.workspace_bytes == 0


@needs_compiler
@pytest.mark.parametrize(
    ("work", "plain"),
    [
        (BatchNormCallForward(NORM, 2e-5, 0.1, True), "cudnnBatchNormalizationForwardTraining"),
        (BatchNormCallBackward(NORM, 2e-5, True), "cudnnBatchNormalizationBackward"),
    ],
)
def test_where_cudnn_would_keep_something_without_relu_the_plain_call_serves(recorder, work, plain):
    recorder.raw.set_sizes(WORKSPACE_BYTES, 1)
    assert recorder.run(work)[0] == plain


@needs_compiler
def test_reserve_space_has_room_for_the_whole_tiles_of_few_channels(recorder):
    norm = Norm(64, 16, 56, 56, "NHWC", "float16", "relu")
    asked = 64 * 56 * 56 * 64 // 8 + 1024
    recorder.raw.set_sizes(0, asked)
    for work in (BatchNormCallForward(norm, 2e-5, 0.1, True), BatchNormCallBackward(norm, 2e-5, True)):
        assert recorder.run(work)[1]["reserveSpaceSizeInBytes"] == str(asked)


@needs_compiler
def test_more_reserve_space_than_the_operand_has_is_an_error_not_an_overrun(recorder, monkeypatch):
    monkeypatch.setattr(libraries, "version", lambda: "9.28.0")
    norm = replace(NORM, after="relu")
    recorder.raw.set_sizes(0, reserve_bytes(norm))
    calls.prepare_call(BatchNormCallForward(norm, 2e-5, 0.1, True), HANDLE, recorder.library)
    recorder.raw.set_sizes(0, reserve_bytes(norm) + 1)
    with pytest.raises(calls.CallError, match=f"asks for {reserve_bytes(norm) + 1} bytes of reserve space"):
        calls.prepare_call(BatchNormCallForward(norm, 2e-5, 0.1, True), HANDLE, recorder.library)


@needs_compiler
def test_a_reserve_space_of_many_gigabytes_is_told_in_full(recorder):
    norm = replace(NORM, n=1 << 14, c=1024, h=112, w=112, after="relu")
    assert reserve_bytes(norm) > 1 << 34
    recorder.raw.set_sizes(0, reserve_bytes(norm))
    _, told, _ = recorder.run(BatchNormCallForward(norm, 2e-5, 0.1, True))
    assert told["reserveSpaceSizeInBytes"] == str(reserve_bytes(norm))


@needs_compiler
@pytest.mark.parametrize(
    ("change", "persistent"), [({"layout": "NCHW"}, True), ({"dtype": "float32"}, True), ({}, False)]
)
def test_relu_is_fused_for_half_precision_nhwc_and_persistent_only(recorder, change, persistent):
    norm = replace(NORM, after="relu", **change)
    with pytest.raises(ValueError, match="persistent mode only"):
        calls.prepare_call(BatchNormCallForward(norm, 2e-5, 0.1, persistent), HANDLE, recorder.library)


@needs_compiler
def test_a_kernels_work_is_no_call(recorder):
    with pytest.raises(ValueError, match="relu is not one of"):
        calls.prepare_call(Relu(8, "float16"), HANDLE, recorder.library)


@needs_compiler
@pytest.mark.parametrize("after", ["none", "add_relu"])
def test_a_refusal_names_the_call_and_cudnns_reason_in_one_line(recorder, after):
    work = BatchNormCallForward(replace(NORM, after=after), 2e-5, 0.1, True)
    call = calls.prepare_call(work, HANDLE, recorder.library)
    recorder.raw.fail_next(5)
    with pytest.raises(calls.CallError) as refused:
        call([0] * len(work.operands), 0)
    name = "cudnnBatchNormalizationForwardTraining" + ("" if after == "none" else "Ex")
    assert str(refused.value) == f"{name}: CUDNN_STATUS_MADE_UP (as the test wished)"


@needs_compiler
def test_descriptors_live_as_long_as_the_call(recorder):
    gc.collect()
    before = recorder.raw.descriptors_alive()
    call = calls.prepare_call(
        BatchNormCallForward(replace(NORM, after="relu"), 2e-5, 0.1, True), HANDLE, recorder.library
    )
    gc.collect()
    assert recorder.raw.descriptors_alive() == before + 3
    del call
    gc.collect()
    assert recorder.raw.descriptors_alive() == before


@needs_compiler
@pytest.mark.parametrize("wrong", [-1, 1])
@pytest.mark.parametrize("after", ["none", "relu", "add_relu"])
def test_a_wrong_number_of_addresses_is_refused(recorder, after, wrong):
    for work in (
        BatchNormCallForward(replace(NORM, after=after), 2e-5, 0.1, True),
        BatchNormCallBackward(replace(NORM, after=after), 2e-5, True),
    ):
        call = calls.prepare_call(work, HANDLE, recorder.library)
        recorder.take()
        with pytest.raises(ValueError, match=f"expected {len(work.operands)} addresses"):
            call([0] * (len(work.operands) + wrong), 0)
        assert recorder.take() == []


@needs_compiler
def test_a_handle_is_made_bound_to_a_stream_and_destroyed_once(recorder):
    handle = calls.Handle(recorder.library)
    assert handle.address == HANDLE
    handle.set_stream(STREAM)
    handle.close()
    handle.close()
    assert recorder.take() == [
        ("cudnnCreate", {}),
        ("cudnnSetStream", {"handle": str(HANDLE), "stream": str(STREAM)}),
        ("cudnnDestroy", {"handle": str(HANDLE)}),
    ]


@pytest.mark.plans
@needs_compiler
def test_the_recording_library_has_the_orders_types_and_numbers_of_nvidias_header(tmp_path):
    """A parameter that stands elsewhere in cudnn_ops.h is a conflicting type, which does not compile."""
    spec = find_spec("nvidia")
    headers = [
        found
        for place in (spec.submodule_search_locations or () if spec else ())
        for found in Path(place).glob("cudnn/include")
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
